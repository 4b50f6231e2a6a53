"""`ObjectRoot` and `ObjectFiles`: the folder's store in an object store, through pyarrow's file systems.

There is no rename and no append; a file is put at once. Objects that are read are downloaded once for all processes of
this user on a host.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

from lookupcache.host.folder import Folder, HostUnavailableError
from lookupcache.redaction import hide_address
from lookupcache.store.folder_files import (
    CLOCK,
    ROOT,
    TEMPORARY,
    Files,
    OpenFile,
    Root,
    folder_name,
    identity_of_folder,
    random_name,
)

_DOWNLOADS = "lookupcache-downloads"
_MOST_DOWNLOADED_BYTES = 2 << 30
_MOST_FILE_BYTES = 1 << 30
_SHOW_UNFINISHED = {"hdfs", "local", "viewfs"}
"""Types of file systems where others see a file that is being written; it can be renamed there."""


class ObjectRoot(Root):
    """A path in one of pyarrow's file systems.

    ``connect`` is called when a file is needed, and may take time. ``location`` names the path among what is downloaded
    here.
    """

    def __init__(self, connect: Callable[[], tuple[fs.FileSystem, str]], location: str) -> None:
        self._connect = connect
        self._location = location
        self._connected: tuple[fs.FileSystem, str] | None = None

    @classmethod
    def at(cls, url: str) -> ObjectRoot:
        return cls(lambda: fs.FileSystem.from_uri(url), hide_address(url))

    def identities(self) -> list[str]:
        system, root = self._at()
        found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
        names = map(identity_of_folder, (one.base_name for one in found if one.type == fs.FileType.Directory))
        return sorted(name for name in names if name is not None)

    def files(self, identity: str, *, create: bool) -> Files:
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

    def disconnect(self) -> None:
        self._connected = None


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
        # Stores limit how often one object is written, so each process has its own.
        self._clock_name = random_name(f".{CLOCK}{TEMPORARY}")
        self._process = os.getpid()
        self._has_clock = False

    def names(self) -> list[str]:
        found = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return [one.base_name for one in found if one.type == fs.FileType.File]

    def open(self, name: str) -> OpenFile:
        """Download a file, unless this host has it."""
        info = self._info(name)
        if info.size > _MOST_FILE_BYTES:
            raise OSError(errno.EFBIG, "it is too large", name)
        content = _download(self._system, info, f"{self._scope}\n{name}\n{info.mtime_ns}")
        if content.size != info.size:
            content.close()
            raise OSError(errno.EIO, "it was not downloaded as a whole")
        content.modified = _seconds(info)
        return content

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Put a file; where it could be seen before it is complete, under another name first."""
        if not _shows_unfinished(self._system):
            self._put(name, b"".join(parts))
            return
        aside = random_name(TEMPORARY)
        self._put(aside, b"".join(parts))
        self._system.move(f"{self._path}/{aside}", f"{self._path}/{name}")

    def modified(self, name: str) -> float:
        return _seconds(self._info(name))

    def _put(self, name: str, data: bytes) -> None:
        with self._system.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(data)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.delete_file(f"{self._path}/{name}")

    def touch(self) -> float | None:
        """Put a small file, and return the time that it got."""
        try:
            self._put(self._clock_name, b"-")
            self._has_clock = self.is_writable = True
            found = self._info(self._clock_name).mtime_ns
            return None if found is None else found / 1e9
        except OSError:
            self.is_writable = False
            return None

    def close(self) -> None:
        """Remove the file by which the time was read; a forked process leaves it to its parent."""
        if self._has_clock and self._process == os.getpid():
            with suppress(OSError):
                self.remove(self._clock_name)

    def _info(self, name: str) -> fs.FileInfo:
        info = self._system.get_file_info(f"{self._path}/{name}")
        if info.type != fs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, "it is not there", name)
        return info


def _shows_unfinished(system: fs.FileSystem) -> bool:
    while isinstance(system, fs.SubTreeFileSystem):
        system = system.base_fs
    return system.type_name in _SHOW_UNFINISHED


def _seconds(info: fs.FileInfo) -> float:
    return math.inf if info.mtime_ns is None else info.mtime_ns / 1e9


def _download(system: fs.FileSystem, info: fs.FileInfo, identity: str) -> OpenFile:
    """Open a file's content, in a file of this host that others have downloaded or this process does, or in memory."""
    name = hashlib.sha256(identity.encode()).hexdigest()[:40]
    try:
        folder = Folder(Path(tempfile.gettempdir()) / f"{_DOWNLOADS}-{os.geteuid()}")
    except HostUnavailableError:
        return _in_memory(_read_all(system, info.path))
    with closing(folder):
        with suppress(OSError):
            return _open_in(folder, name)
        data = _read_all(system, info.path)
        try:
            _make_space(folder, len(data))
            aside = random_name(TEMPORARY)
            folder.write(aside, [data])
            folder.rename(aside, name)
            return _open_in(folder, name)
        except OSError:
            return _in_memory(data)  # The disk is full.


def _open_in(folder: Folder, name: str) -> OpenFile:
    descriptor = folder.open(name)
    return OpenFile(descriptor, os.fstat(descriptor).st_size, math.inf)


def _in_memory(data: bytes) -> OpenFile:
    return OpenFile(data, len(data), math.inf)


def _read_all(system: fs.FileSystem, path: str) -> bytes:
    with system.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data


def _make_space(folder: Folder, size: int) -> None:
    """Remove the oldest downloads if there are too many; a process that has one open goes on reading it."""
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
