"""`Files`: the interface of a file system for a folder's store; `LocalRoot` and `LocalFiles` for mounted ones.

<folder>/lookupcache-1/<identity>/about.json, clock, <hex>.seg, <hex>.inv
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from lookupcache.host.folder import list_names

ROOT = "lookupcache-1"
"""The name of the folder in which all files of this version lie."""

TEMPORARY = ".tmp"
CLOCK = "clock"
_WRITABLE_BY_OTHERS = 0o022
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
FULL = {errno.ENOSPC, errno.EDQUOT}
_LONGEST_NAME = 200
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OpenFile:
    """A file that is open for reading, or its content; it stays readable when it is removed.

    ``modified`` is when it was written, by the clock of the file system; infinity if that does not say.
    """

    def __init__(self, content: int | bytes, size: int, modified: float) -> None:
        self._content: int | bytes = content
        self.size = size
        self.modified = modified

    def read(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes from a position, or fewer at the end."""
        if isinstance(self._content, bytes):
            return self._content[position : position + size]
        # Not mapped: a page that another host has cut off or removed would end this process.
        parts = []
        while size > 0 and (part := os.pread(self._content, size, position)):
            parts.append(part)
            position, size = position + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the file."""
        content, self._content = self._content, b""
        if not isinstance(content, bytes):
            os.close(content)

    def __del__(self) -> None:
        self.close()


class Files(ABC):
    """The files of one identity. All methods raise OSError; names are plain, without a path."""

    is_writable = True
    list_seconds = 0.0
    """For how long a listing is used."""
    writes_at_once = True
    """Whether entries are written when they are put; otherwise they are collected, since each file takes long."""
    clock_seconds = 1.0
    """For how long a reading of the clock is used."""
    clean_seconds = 60.0
    """How often a writer looks for expired segments."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files."""

    @abstractmethod
    def open(self, name: str) -> OpenFile:
        """Open a file."""

    @abstractmethod
    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file as a whole: readers never see a part of it."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def modified(self, name: str) -> float:
        """Return when a file was written, by the clock of the file system."""

    @abstractmethod
    def touch(self) -> float | None:
        """Return the time of the file system, None if it cannot be written."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with closing(self.open(name)) as file:
            return file.read(0, file.size)


class Root(ABC):
    """All identities of a folder."""

    @abstractmethod
    def identities(self) -> list[str]:
        """Return the identities that have files."""

    @abstractmethod
    def files(self, identity: str, *, create: bool) -> Files:
        """Return the files of an identity; raises FileNotFoundError if its folder is missing, unless it is created."""

    @abstractmethod
    def disconnect(self) -> None:
        """Drop connections; the next call makes new ones, as a forked process needs them."""


def folder_name(identity: str) -> str:
    """Return the name of an identity's folder, which never leads out of the store.

    >>> folder_name("geo-2"), folder_name("../../etc"), folder_name("..")
    ('geo-2', '%2E%2E%2F%2E%2E%2Fetc', '%2E%2E')
    """
    name = quote(identity, safe="").replace(".", "%2E").replace("~", "%7E")
    if not name or len(name) > _LONGEST_NAME:
        raise FileNotFoundError(errno.ENOENT, "no identity", identity)
    return name


def identity_of_folder(name: str) -> str | None:
    """Return the identity whose folder has a name, None if no identity has a folder of that name."""
    identity = unquote(name)
    with suppress(OSError):
        if folder_name(identity) == name:
            return identity
    return None


def random_name(suffix: str) -> str:
    """Return a new name for a file."""
    return secrets.token_hex(16) + suffix


# ── mounted file systems ─────────────────────────────────────────────────────────────────────────────────────


class LocalRoot(Root):
    """A folder that is mounted here. Its content must belong to this user or to root."""

    def __init__(self, path: str) -> None:
        self.path = path

    def identities(self) -> list[str]:
        """Return the identities whose folder is no symlink and closed to other writers."""
        try:
            with self._folder(create=False) as folder:
                names = [name for name in list_names(folder) if _is_usable(name, folder)]
        except FileNotFoundError:
            return []
        return sorted(found for found in map(identity_of_folder, names) if found is not None)

    def files(self, identity: str, *, create: bool) -> Files:
        name = folder_name(identity)
        with self._folder(create=create) as folder, _naming(f"{self.path}/{ROOT}/{name}"):
            return LocalFiles(_open_folder(name, folder, create=create))

    def disconnect(self) -> None:
        """Do nothing: there is no connection."""

    @contextmanager
    def _folder(self, *, create: bool) -> Iterator[int]:
        if create:
            # Only the last part: a file system that is not mounted must not become a folder of this host. A folder that
            # cannot be made is missing; opening it says so.
            with suppress(OSError):
                os.mkdir(self.path, 0o700)
        with _naming(self.path):
            outer = os.open(self.path, _FOLDER_FLAGS)
        with _closing(outer), _naming(f"{self.path}/{ROOT}"):
            root = _open_folder(ROOT, outer, create=create)
        with _closing(root):
            yield root


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the path in an error that has none, or the last part only."""
    try:
        yield
    except OSError as error:
        if not str(error.filename).startswith("/"):
            error.filename = path
        raise


def _open_folder(name: str, parent: int, *, create: bool) -> int:
    """Open a folder inside of another, which is no symlink, and closed to other writers."""
    if create:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
    return _checked(os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent), name)


def _is_usable(name: str, parent: int) -> bool:
    try:
        os.close(_open_folder(name, parent, create=False))
    except OSError:
        return False
    return True


def _checked(descriptor: int, name: str) -> int:
    """Return an open file or folder that only this user and root can write to; else close it and raise."""
    found = os.fstat(descriptor)
    reason = None
    if found.st_uid not in (os.geteuid(), 0):
        reason = "it belongs to another user"
    elif found.st_mode & _WRITABLE_BY_OTHERS:
        reason = "other users can write to it"
    elif not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        reason = "it is no regular file"
    if reason is not None:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, reason, name)
    return descriptor


def open_regular(name: str, folder: int | None) -> OpenFile:
    """Open a regular file that only this user and root can write to; a symlink is refused."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = _checked(os.open(name, flags, dir_fd=folder), name)
    found = os.fstat(descriptor)
    return OpenFile(descriptor, found.st_size, found.st_mtime)


class LocalFiles(Files):
    """The files in a folder that is open as ``descriptor``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def names(self) -> list[str]:
        if not os.fstat(self._descriptor).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "the folder was removed")
        return list_names(self._descriptor)

    def open(self, name: str) -> OpenFile:
        return open_regular(name, self._descriptor)

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file under another name, and rename it; if that fails, remove it."""
        aside = random_name(TEMPORARY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(aside, flags, 0o600, dir_fd=self._descriptor), "wb") as file:
                file.writelines(parts)
            os.rename(aside, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(aside)
            raise

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def modified(self, name: str) -> float:
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime

    def touch(self) -> float | None:
        """Give the clock's file the time of now, and return that."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with _closing(os.open(CLOCK, flags, 0o600, dir_fd=self._descriptor)) as descriptor:
                os.utime(descriptor, None)
                self.is_writable = True
                return os.fstat(descriptor).st_mtime
        except OSError as error:
            if error.errno not in _NOT_WRITABLE | FULL:
                raise
            self.is_writable = False
            return None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
