"""`ObjectRoot` and `ObjectFiles`: the folder's store in an object store, through pyarrow's file systems.

There is no rename, no append and no lock; a file is put at once. What is read is downloaded once for all processes of
this user on a host.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

from lookupcache.host.folder import Folder, HostUnavailableError
from lookupcache.redaction import hide_address
from lookupcache.store.folder_files import (
    ROOT,
    Files,
    LocalFile,
    OpenFile,
    Root,
    folder_name,
    identity_of_folder,
    random_name,
)

_CLOCK = ".clock"
_TEMPORARY = ".tmp"
_DOWNLOADS = "lookupcache-downloads"
_MOST_DOWNLOADED_BYTES = 2 << 30
_MOST_FILE_BYTES = 1 << 30
_SHOW_UNFINISHED = {"hdfs", "local", "viewfs"}
"""Types of file systems where others see a file that is being written; it can be renamed there."""


class ObjectRoot(Root):
    """A path in one of pyarrow's file systems.

    Args:
        connect: Returns the file system and the path; it may take time, and is called when a file is needed.
        location: Names the path among what is downloaded on this host.
    """

    def __init__(self, connect: Callable[[], tuple[fs.FileSystem, str]], location: str) -> None:
        self._connect = connect
        self._location = location
        self._connected: tuple[fs.FileSystem, str] | None = None

    @classmethod
    def at(cls, url: str) -> ObjectRoot:
        """Return the root at a URL."""
        return cls(lambda: fs.FileSystem.from_uri(url), hide_address(url))

    def again(self) -> Root:
        """Return the same for a forked process, which needs connections of its own."""
        return ObjectRoot(self._connect, self._location)

    def identities(self) -> list[str]:
        """Return the identities that have files."""
        system, root = self._at()
        found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
        names = map(identity_of_folder, (one.base_name for one in found if one.type == fs.FileType.Directory))
        return sorted(name for name in names if name is not None)

    def files(self, identity: str, *, create: bool) -> Files:
        """Return the files of an identity."""
        system, root = self._at()
        path = f"{root}/{folder_name(identity)}"
        if create and _shows_unfinished(system):
            system.create_dir(path, recursive=True)
        return ObjectFiles(system, path, f"{self._location}\n{identity}")

    def _at(self) -> tuple[fs.FileSystem, str]:
        if self._connected is None:
            system, path = self._connect()
            self._connected = system, f"{path.rstrip('/')}/{ROOT}"
        return self._connected

    def close(self) -> None:
        """Do nothing."""


class ObjectFiles(Files):
    """The files under a path; ``scope`` distinguishes them from others with the same names."""

    writes_at_once = False
    list_seconds = 10.0
    clock_seconds = 60.0
    clean_seconds = 600.0

    def __init__(self, system: fs.FileSystem, path: str, scope: str) -> None:
        self._system = system
        self._path = path
        self._scope = scope
        self._clock_name = random_name(_CLOCK)
        self._has_clock = False

    def version(self) -> object:
        """Return always the same: a listing is used for some time."""
        return None

    def names(self) -> list[str]:
        """Return the names of the files."""
        found = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return [one.base_name for one in found if one.type == fs.FileType.File]

    def open(self, name: str) -> OpenFile:
        """Download a file, unless this host has it."""
        info = self._info(name)
        if info.size > _MOST_FILE_BYTES:
            raise OSError(errno.EFBIG, "it is too large", name)
        return _Downloaded(info, lambda: _download(self._system, info, f"{self._scope}\n{name}\n{info.mtime_ns}"))

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Put a file; where it could be seen before it is complete, under another name first."""
        if _shows_unfinished(self._system):
            self.publish(self.write_aside(parts), name)
        else:
            self._put(f"{self._path}/{name}", b"".join(parts))

    def write_aside(self, parts: Iterable[Any]) -> str:
        """Put a file under a name of its own."""
        aside = random_name(_TEMPORARY)
        self._put(f"{self._path}/{aside}", b"".join(parts))
        return aside

    def publish(self, aside: str, name: str) -> None:
        """Rename a file; object stores copy it."""
        self._system.move(f"{self._path}/{aside}", f"{self._path}/{name}")

    def modified(self, name: str) -> float:
        """Return when a file was written."""
        found = _seconds(self._info(name))
        return math.inf if found is None else found

    def remove_leftovers(self, before: float) -> None:
        """Remove what was never published, and the clocks of processes that have died."""
        for one in self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True)):
            if one.base_name.endswith((_TEMPORARY, _CLOCK)) and (_seconds(one) or math.inf) < before:
                self.remove(one.base_name)

    def _put(self, path: str, data: bytes) -> None:
        with self._system.open_output_stream(path) as stream:
            stream.write(data)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._system.delete_file(f"{self._path}/{name}")

    def touch(self) -> float | None:
        """Put a small file, and return the time that it got."""
        try:
            self._put(f"{self._path}/{self._clock_name}", b"-")
            self._has_clock = self.is_writable = True
            return _seconds(self._info(self._clock_name))
        except OSError:
            self.is_writable = False
            return None

    @contextmanager
    def lock(self, timeout: float) -> Iterator[None]:
        """Do nothing: there are no locks."""
        yield

    def close(self) -> None:
        """Remove the file by which the time was read."""
        if self._has_clock:
            with suppress(OSError):
                self.remove(self._clock_name)

    def _info(self, name: str) -> fs.FileInfo:
        info = self._system.get_file_info(f"{self._path}/{name}")
        if info.type != fs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, "it is not there", name)
        return info


class _Downloaded(OpenFile):
    """A file on this host, or in memory if nothing can be written here."""

    def __init__(self, info: fs.FileInfo, download: Callable[[], OpenFile | bytes]) -> None:
        self.size = info.size
        found = _seconds(info)
        self.modified = math.inf if found is None else found
        self._download = download
        self._is_resting = False
        self._content = self._downloaded()

    def _downloaded(self) -> OpenFile | bytes:
        content = self._download()
        if (len(content) if isinstance(content, bytes) else content.size) != self.size:
            raise OSError(errno.EIO, "it was not downloaded as a whole")
        return content

    def read(self, position: int, size: int) -> bytes:
        if not isinstance(self._content, bytes):
            try:
                return self._content.read(position, size)
            except FileNotFoundError:
                # Removed from what is kept of downloads.
                self._content = self._downloaded()
                if self._is_resting:
                    self.rest()
        if isinstance(self._content, bytes):
            return self._content[position : position + size]
        return self._content.read(position, size)

    def rest(self) -> None:
        self._is_resting = True
        if isinstance(self._content, OpenFile):
            self._content.rest()

    def close(self) -> None:
        if isinstance(self._content, OpenFile):
            self._content.close()


def _shows_unfinished(system: fs.FileSystem) -> bool:
    while isinstance(system, fs.SubTreeFileSystem):
        system = system.base_fs
    return system.type_name in _SHOW_UNFINISHED


def _seconds(info: fs.FileInfo) -> float | None:
    return None if info.mtime_ns is None else info.mtime_ns / 1e9


def _download(system: fs.FileSystem, info: fs.FileInfo, identity: str) -> OpenFile | bytes:
    """Return a file's content, in a file of this host that others have downloaded or this process does."""
    name = hashlib.sha256(identity.encode()).hexdigest()[:40]
    try:
        folder = Folder(Path(tempfile.gettempdir()) / f"{_DOWNLOADS}-{os.geteuid()}")
    except HostUnavailableError:
        return _read_all(system, info.path)
    try:
        with suppress(OSError):
            return _open_in(folder, name)
        data = _read_all(system, info.path)
        try:
            _make_space(folder, len(data))
            aside = random_name(_TEMPORARY)
            folder.write(aside, [data])
            folder.rename(aside, name)
            return _open_in(folder, name)
        except OSError:
            return data  # The disk is full.
    finally:
        folder.close()


def _open_in(folder: Folder, name: str) -> OpenFile:
    path = folder.path

    def open_again() -> int:
        try:
            again = Folder(path)
        except HostUnavailableError as error:
            raise OSError(errno.EIO, str(error)) from None
        try:
            return again.open(name)
        finally:
            again.close()

    descriptor = folder.open(name)
    return LocalFile(descriptor, os.fstat(descriptor), open_again)


def _read_all(system: fs.FileSystem, path: str) -> bytes:
    with system.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data


def _make_space(folder: Folder, size: int) -> None:
    """Remove the downloads that were made first, if there are too many; who has one open goes on reading it."""
    files = []
    for name in folder.names():
        with suppress(OSError):
            found = os.stat(folder.path / name, follow_symlinks=False)
            files.append((found.st_mtime, found.st_size, name))
    files.sort()
    total = size + sum(length for _, length, _ in files)
    for _, length, name in files:
        if total <= _MOST_DOWNLOADED_BYTES:
            return
        folder.remove(name)
        total -= length
