"""`ObjectFiles`: a store in an object store, through pyarrow's file systems.

There is no rename and no append; a file is put at once. Segments that are read are downloaded once for all processes of
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

from lookupcache.host.folder import Folder
from lookupcache.redaction import hide_address
from lookupcache.store.folder_files import (
    ROOT,
    TEMPORARY,
    DamagedFileError,
    Files,
    OpenFile,
    folder_name,
    identities_of,
    random_name,
)

_DOWNLOADS = "lookupcache-downloads"
_MOST_DOWNLOADED_BYTES = 2 << 30
_MOST_FILE_BYTES = 1 << 30
_SHOW_UNFINISHED = {"hdfs", "local", "viewfs"}
"""Types of file systems where others see a file that is being written; it can be renamed there."""


class ObjectFiles(Files):
    """A path in one of pyarrow's file systems.

    ``connect`` is called when a file is needed, and may take time. ``location`` names the path among what is downloaded
    here.
    """

    writes_at_once = False
    list_seconds = 10.0
    clean_seconds = 600.0

    def __init__(self, connect: Callable[[], tuple[fs.FileSystem, str]], location: str) -> None:
        self._connect = connect
        self._location = location
        self._connected: tuple[fs.FileSystem, str] | None = None

    @classmethod
    def at(cls, url: str) -> ObjectFiles:
        return cls(lambda: fs.FileSystem.from_uri(url), hide_address(url))

    def identities(self) -> list[str]:
        return identities_of(self._list(self._root, fs.FileType.Directory))

    def names(self, identity: str) -> list[str]:
        return self._list(self._path(identity), fs.FileType.File)

    def open(self, identity: str, name: str) -> OpenFile:
        """Download a file, unless this host has it."""
        return self._download(self._path(identity, name))

    def read(self, identity: str, name: str) -> bytes:
        with self._system.open_input_stream(self._path(identity, name)) as stream:
            return bytes(stream.read())

    def write(self, identity: str, name: str, parts: Iterable[Any]) -> None:
        """Put a file; where it could be seen before it is complete, under another name first."""
        data = b"".join(parts)
        if not _shows_unfinished(self._system):
            self._put(self._path(identity, name), data)
            return
        aside = self._path(identity, random_name(TEMPORARY))
        self._system.create_dir(self._path(identity), recursive=True)
        self._put(aside, data)
        self._system.move(aside, self._path(identity, name))

    def remove(self, identity: str, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.delete_file(self._path(identity, name))

    def modified(self, identity: str, name: str) -> float:
        found = self._info(self._path(identity, name)).mtime_ns
        return math.inf if found is None else found / 1e9

    def disconnect(self) -> None:
        self._connected = None

    @property
    def _system(self) -> fs.FileSystem:
        return self._at()[0]

    @property
    def _root(self) -> str:
        return self._at()[1]

    def _at(self) -> tuple[fs.FileSystem, str]:
        if self._connected is None:
            system, path = self._connect()
            self._connected = system, f"{path.rstrip('/')}/{ROOT}"
        return self._connected

    def _path(self, identity: str, *name: str) -> str:
        return "/".join((self._root, folder_name(identity), *name))

    def _list(self, path: str, kind: fs.FileType) -> list[str]:
        found = self._system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return [one.base_name for one in found if one.type == kind]

    def _info(self, path: str) -> fs.FileInfo:
        info = self._system.get_file_info(path)
        if info.type != fs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, "it is not there", path)
        return info

    def _put(self, path: str, data: bytes) -> None:
        with self._system.open_output_stream(path) as stream:
            stream.write(data)

    def _download(self, path: str) -> OpenFile:
        name = hashlib.sha256(f"{self._location}\n{path}".encode()).hexdigest()[:40]
        with closing(Folder(Path(tempfile.gettempdir()) / f"{_DOWNLOADS}-{os.geteuid()}")) as folder:
            with suppress(OSError):
                return OpenFile(folder.open(name))
            info = self._info(path)
            if info.size > _MOST_FILE_BYTES:
                raise DamagedFileError("it is too large")
            with self._system.open_input_stream(path) as stream:
                data = stream.read()
            if len(data) != info.size:
                raise OSError(errno.EIO, "it was not downloaded as a whole", path)
            _make_space(folder, len(data))
            aside = random_name(TEMPORARY)
            folder.write(aside, [data])
            if info.mtime_ns is not None:
                os.utime(folder.path / aside, ns=(info.mtime_ns, info.mtime_ns))
            folder.rename(aside, name)
            return OpenFile(folder.open(name))


def _shows_unfinished(system: fs.FileSystem) -> bool:
    while isinstance(system, fs.SubTreeFileSystem):
        system = system.base_fs
    return system.type_name in _SHOW_UNFINISHED


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
