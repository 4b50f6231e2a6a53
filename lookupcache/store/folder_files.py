"""`Files`: the file system of a store in a folder; `LocalFiles`: one that is mounted here.

<folder>/lookupcache-1/<identity>/about.json, <hex>.seg, <hex>.inv
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote, unquote

from lookupcache.store.contract import StoreFullError

ROOT = "lookupcache-1"
"""The name of the folder in which all files of this version lie."""

TEMPORARY = ".tmp"
_WRITABLE_BY_OTHERS = 0o022
_TAKES_NOTHING = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}
_LONGEST_NAME = 200
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class DamagedFileError(Exception):
    """A file that must not be used; the text says why."""


class OpenFile:
    """A file that is open for reading; it stays readable when it is removed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self.size = found.st_size
        self.modified = found.st_mtime

    def read(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes from a position, or fewer at the end."""
        # Not mapped: a page that another host has cut off or removed would end this process.
        parts = []
        while size > 0 and (part := os.pread(self._descriptor, size, position)):
            parts.append(part)
            position, size = position + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class Files(ABC):
    """The files of a store, each in the folder of its identity. All methods raise OSError; names have no path."""

    list_seconds = 0.0
    """For how long a listing is used."""
    writes_at_once = True
    """Whether entries are written when they are put; otherwise they are collected, since each file takes long."""
    clean_seconds = 60.0
    """How often a writer looks for expired segments."""

    @abstractmethod
    def identities(self) -> list[str]:
        """Return the identities that have a folder."""

    @abstractmethod
    def names(self, identity: str) -> list[str]:
        """Return the names of an identity's files."""

    @abstractmethod
    def open(self, identity: str, name: str) -> OpenFile:
        """Open a file that never changes; raises DamagedFileError for one that others can write to."""

    @abstractmethod
    def read(self, identity: str, name: str) -> bytes:
        """Return the content of a file that may change."""

    @abstractmethod
    def write(self, identity: str, name: str, parts: Iterable[Any]) -> None:
        """Write a file as a whole: readers never see a part of it. Raises StoreFullError where that is not possible."""

    @abstractmethod
    def remove(self, identity: str, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def modified(self, identity: str, name: str) -> float:
        """Return when a file was written, by the clock of the file system."""

    def disconnect(self) -> None:
        """Drop connections; the next call makes new ones, as a forked process needs them."""
        return


def folder_name(identity: str) -> str:
    """Return the name of an identity's folder, which never leads out of the store.

    >>> folder_name("geo-2"), folder_name("../../etc"), folder_name("..")
    ('geo-2', '%2E%2E%2F%2E%2E%2Fetc', '%2E%2E')
    """
    name = quote(identity, safe="").replace(".", "%2E").replace("~", "%7E")
    if not name or len(name) > _LONGEST_NAME:
        raise OSError(errno.ENAMETOOLONG, "no identity", identity)
    return name


def identities_of(folders: Iterable[str]) -> list[str]:
    """Return the identities whose folders have these names; other folders are of none.

    >>> identities_of(["geo-2", "%2E%2E", "..", "~a"])
    ['..', 'geo-2']
    """
    found = []
    for name in folders:
        with suppress(OSError):
            if folder_name(unquote(name)) == name:
                found.append(unquote(name))
    return sorted(found)


def random_name(suffix: str) -> str:
    """Return a new name for a file."""
    return secrets.token_hex(16) + suffix


class LocalFiles(Files):
    """A folder that is mounted here. Its content must belong to this user or to root."""

    def __init__(self, path: str) -> None:
        self._path = path

    def identities(self) -> list[str]:
        """Return the identities whose folder is no symlink and closed to other writers."""
        found = []
        with suppress(FileNotFoundError):
            root = self._folder()
            for name in os.listdir(root):
                with suppress(OSError):
                    found.append(os.path.basename(_checked_folder(f"{root}/{name}")))
        return identities_of(found)

    def names(self, identity: str) -> list[str]:
        with suppress(FileNotFoundError):
            return os.listdir(self._folder(identity))
        return []

    def open(self, identity: str, name: str) -> OpenFile:
        """Open a regular file; a symlink is refused."""
        path = f"{self._folder(identity)}/{name}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FILE_FLAGS)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
                raise DamagedFileError(error.strerror) from error
            raise
        found = os.fstat(descriptor)
        reason = _why_foreign(found) if stat.S_ISREG(found.st_mode) else "it is no regular file"
        if reason is not None:
            os.close(descriptor)
            raise DamagedFileError(reason)
        return OpenFile(descriptor)

    def read(self, identity: str, name: str) -> bytes:
        with closing(self.open(identity, name)) as file:
            return file.read(0, file.size)

    def write(self, identity: str, name: str, parts: Iterable[Any]) -> None:
        """Write a file under another name, and rename it; if that fails, remove it."""
        try:
            _write(self._folder(identity, create=True), name, parts)
        except OSError as error:
            if error.errno in _TAKES_NOTHING:
                raise StoreFullError(str(error)) from error
            raise

    def remove(self, identity: str, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._folder(identity)}/{name}")

    def modified(self, identity: str, name: str) -> float:
        return os.lstat(f"{self._folder(identity)}/{name}").st_mtime

    def _folder(self, identity: str | None = None, *, create: bool = False) -> str:
        """Return the path of an identity's folder, or of that of all, which other users cannot write to.

        Of the store's own path only the last part is created: a file system that is not mounted must not become a
        folder of this host.
        """
        path = self._path
        if create:
            _make_folder(path)
        for name in (ROOT, *([] if identity is None else [folder_name(identity)])):
            path = f"{path}/{name}"
            if create:
                _make_folder(path)
            _checked_folder(path)
        return path


def _make_folder(path: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _checked_folder(path: str) -> str:
    """Return the path of a folder that is no symlink, and that only this user and root can write to."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", path)
    if (reason := _why_foreign(found)) is not None:
        raise PermissionError(errno.EPERM, reason, path)
    return path


def _why_foreign(found: os.stat_result) -> str | None:
    if found.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user"
    return "other users can write to it" if found.st_mode & _WRITABLE_BY_OTHERS else None


def _write(folder: str, name: str, parts: Iterable[Any]) -> None:
    aside = f"{folder}/{random_name(TEMPORARY)}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS, 0o600)
        with open(descriptor, "wb") as file:
            file.writelines(parts)
        os.rename(aside, f"{folder}/{name}")
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(aside)
        raise
