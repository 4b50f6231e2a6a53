"""`Files`: what a folder's store needs of a file system; `LocalRoot` and `LocalFiles` for mounted ones.

<folder>/lookupcache-1/<identity>/about.json, lock, <hex>.seg, <hex>.inv, <token>.claim
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from lookupcache.host.folder import list_names

ROOT = "lookupcache-1"
"""The name of the folder in which all files of this version lie."""

LOCK = "lock"
_MERGE_LOCK = "merge.lock"
_TEMPORARY = ".tmp"
_WRITABLE_BY_OTHERS = 0o022
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
_POLL_SECONDS = 0.002
_LONGEST_NAME = 200


class OpenFile(ABC):
    """A file that is open for reading; it stays readable when it is removed."""

    size: int
    modified: float
    """When it was written, by the clock of the file system; infinity if that does not say."""

    @abstractmethod
    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes from a position, or fewer at the end."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def rest(self) -> None:
        """Keep no descriptor until it is read again, which then fails if the file was removed."""
        return


class Files(ABC):
    """The files of one identity. All methods raise OSError; names are plain, without a path."""

    has_locks = False
    """Whether `lock` excludes other processes, so that a listing under it misses nothing."""
    is_writable = True
    list_seconds = 0.0
    """For how long a listing is used; 0 where `version` says at once whether something has changed."""
    writes_at_once = True
    """Whether entries are written when they are put; otherwise they are collected, since each file takes long."""
    clock_seconds = 1.0
    """For how long a reading of the clock is used."""
    clean_seconds = 60.0
    """How often a writer looks for what has expired."""

    @abstractmethod
    def version(self) -> object:
        """Return what changes when files are added or removed, though maybe once for all changes of two seconds."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files."""

    @abstractmethod
    def open(self, name: str) -> OpenFile:
        """Open a file."""

    @abstractmethod
    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file as a whole: nobody sees a part of it."""

    @abstractmethod
    def write_aside(self, parts: Iterable[Any]) -> str:
        """Write a file that nobody reads; return its name, for `publish` or `remove`."""

    @abstractmethod
    def publish(self, aside: str, name: str) -> None:
        """Give a file that was written aside its name."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def touch(self) -> float | None:
        """Return what time it is in the file system, None if it cannot be written."""

    @abstractmethod
    def lock(self, timeout: float) -> AbstractContextManager[None]:
        """Hold the lock of the folder, where there is one; raises TimeoutError."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def close_inherited(self) -> None:
        """Close what a forked process has of its parent."""
        return

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        file = self.open(name)
        try:
            return file.read(0, file.size)
        finally:
            file.close()

    def modified(self, name: str) -> float:
        """Return when a file was written, by the clock of the file system."""
        file = self.open(name)
        file.close()
        return file.modified

    def renew(self, name: str) -> None:
        """Give a file the time of now."""
        raise NotImplementedError

    def remove_leftovers(self, before: float) -> None:
        """Remove files that a process began to write before a time, and never finished."""
        raise NotImplementedError


class Root(ABC):
    """All identities of a folder."""

    @abstractmethod
    def again(self) -> Root:
        """Return the same folder for a forked process."""

    @abstractmethod
    def identities(self) -> list[str]:
        """Return the identities that have files."""

    @abstractmethod
    def files(self, identity: str, *, create: bool) -> Files:
        """Return the files of an identity; raises FileNotFoundError if there are none, unless they are created."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""


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
    """Return the identity whose folder has a name, None if it is no name of a folder."""
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
    """A folder that is mounted here. What lies in it must belong to this user or to root, and to nobody else."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._opening = threading.Lock()

    def again(self) -> Root:
        """Return the same folder for a forked process."""
        return LocalRoot(self.path)

    def identities(self) -> list[str]:
        """Return the identities that have a folder, which is no symlink, and which nobody else can write to."""
        with self._opening:
            try:
                folder = self._folder(create=False)
            except FileNotFoundError:
                return []
            names = [name for name in os.listdir(folder) if _is_usable(name, folder)]
        return sorted(found for found in map(identity_of_folder, names) if found is not None)

    def files(self, identity: str, *, create: bool) -> Files:
        """Return the files of an identity; a missing folder that cannot be created is a FileNotFoundError."""
        name = folder_name(identity)
        with self._opening, self._naming(f"{self.path}/{ROOT}/{name}"):
            descriptor = _open_folder(name, self._folder(create=create), create)
        return LocalFiles(descriptor)

    def close(self) -> None:
        """Close the folder."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _folder(self, *, create: bool) -> int:
        if self._descriptor >= 0 and not os.fstat(self._descriptor).st_nlink:
            self.close()
        if self._descriptor < 0:
            if create:
                # Only the last part: a file system that is not mounted must not become a folder of this host. What
                # cannot be made is missing, whatever the reason; opening it says so.
                with suppress(OSError):
                    os.mkdir(self.path, 0o700)
            with self._naming(self.path):
                outer = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with self._naming(f"{self.path}/{ROOT}"):
                    self._descriptor = _open_folder(ROOT, outer, create)
            finally:
                os.close(outer)
        return self._descriptor

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Name the path in an error that has none, or the last part only."""
        try:
            yield
        except OSError as error:
            if not str(error.filename).startswith("/"):
                error.filename = path
            raise


def _open_folder(name: str, parent: int, create: bool) -> int:
    """Open a folder inside of another, which is no symlink, and which nobody else can write to."""
    if create:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        _check_owner(os.fstat(descriptor), name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_usable(name: str, parent: int) -> bool:
    try:
        os.close(_open_folder(name, parent, create=False))
    except OSError:
        return False
    return True


def _check_owner(found: os.stat_result, name: str) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, "it belongs to another user", name)
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(errno.EPERM, "other users can write to it", name)


class LocalFile(OpenFile):
    """A file of a mounted file system."""

    def __init__(self, descriptor: int, found: os.stat_result, again: Callable[[], int]) -> None:
        self._descriptor = descriptor
        self._again = again
        self._is_resting = False
        self._inode = found.st_ino
        self.size = found.st_size
        self.modified = found.st_mtime

    def read(self, position: int, size: int) -> bytes:
        if not self._is_resting:
            return self._read(position, size)
        self._descriptor = self._again()
        try:
            if os.fstat(self._descriptor).st_ino != self._inode:
                raise FileNotFoundError(errno.ENOENT, "it was replaced")
            return self._read(position, size)
        finally:
            self._close()

    def rest(self) -> None:
        self._is_resting = True
        self._close()

    def _read(self, position: int, size: int) -> bytes:
        # Not mapped: a page that another host has cut off or removed would end this process.
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, size, position)
            if not part:
                break
            parts.append(part)
            position, size = position + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._is_resting = False
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self._close()


def open_regular(name: str, folder: int | None) -> OpenFile:
    """Open a regular file that nobody else can write to; a symlink is refused."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

    def open_again() -> int:
        return os.open(name, flags, dir_fd=folder)

    descriptor = open_again()
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EPERM, "it is no regular file", name)
        _check_owner(found, name)
    except BaseException:
        os.close(descriptor)
        raise
    return LocalFile(descriptor, found, open_again)


class LocalFiles(Files):
    """The files in a folder that is open as ``descriptor``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        try:
            self._lock = self._open_lock()
        except BaseException:
            self.close()
            raise

    def _open_lock(self) -> int:
        try:
            lock = self._open_lock_file(LOCK)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            self.is_writable = False
            return -1
        self.has_locks = True
        return lock

    def _open_lock_file(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(name, flags, 0o600, dir_fd=self._descriptor)
        _lock_descriptors.add(lock)
        return lock

    def version(self) -> object:
        """Return the time at which files were last added or removed."""
        found = os.fstat(self._descriptor)
        if not found.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "the folder was removed")
        return found.st_mtime_ns

    def names(self) -> list[str]:
        """Return the names of the files."""
        return [name for name in list_names(self._descriptor) if not name.endswith(_TEMPORARY)]

    def open(self, name: str) -> OpenFile:
        """Open a file."""
        return open_regular(name, self._descriptor)

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file aside, and rename it."""
        self.publish(self.write_aside(parts), name)

    def write_aside(self, parts: Iterable[Any]) -> str:
        """Write a file under a name of its own; if that fails, remove it."""
        aside = random_name(_TEMPORARY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(aside, flags, 0o600, dir_fd=self._descriptor)
        try:
            data = memoryview(b"".join(parts))
            while len(data):
                data = data[os.write(descriptor, data) :]
        except BaseException:
            self.remove(aside)
            raise
        finally:
            os.close(descriptor)
        return aside

    def publish(self, aside: str, name: str) -> None:
        """Rename a file."""
        try:
            os.rename(aside, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(aside)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def modified(self, name: str) -> float:
        """Return when a file was written."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime

    def renew(self, name: str) -> None:
        """Give a file the time of now, by the clock of the file system."""
        os.utime(name, None, dir_fd=self._descriptor, follow_symlinks=False)

    def touch(self) -> float | None:
        """Give the lock's file the time of now, and return that."""
        if not self.is_writable:
            return None
        os.utime(self._lock, None)
        return os.fstat(self._lock).st_mtime

    @contextmanager
    def lock(self, timeout: float) -> Iterator[None]:
        """Hold the lock; it ends with the process."""
        if not self.has_locks:
            yield
            return
        until = time.monotonic() + timeout
        while not self._try_lock(self._lock) or self._has_lost_lock():
            if time.monotonic() >= until:
                raise TimeoutError("another process keeps the folder locked")
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            if self.has_locks:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _has_lost_lock(self) -> bool:
        """Return whether the lock's file was removed, so that others lock another; then open that."""
        try:
            found = os.stat(LOCK, dir_fd=self._descriptor, follow_symlinks=False)
            if found.st_ino == os.fstat(self._lock).st_ino:
                return False
        except FileNotFoundError:
            pass
        old, self._lock = self._lock, self._open_lock_file(LOCK)
        _lock_descriptors.discard(old)
        os.close(old)
        return True

    @contextmanager
    def lock_merging(self) -> Iterator[bool]:
        """Yield whether this process alone may merge segments now."""
        if not self.is_writable:
            yield False
            return
        lock = self._open_lock_file(_MERGE_LOCK)
        try:
            yield self._try_lock(lock) and self.has_locks
        finally:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)
            _lock_descriptors.discard(lock)
            os.close(lock)

    def _try_lock(self, lock: int) -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self.has_locks = False
        return True

    def remove_leftovers(self, before: float) -> None:
        """Remove files that were written aside before a time, and never published."""
        for name in list_names(self._descriptor):
            with suppress(OSError):
                if name.endswith(_TEMPORARY) and self.modified(name) < before:
                    self.remove(name)

    def close(self) -> None:
        """Close the folder, and its lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        lock, self._lock = getattr(self, "_lock", -1), -1
        if lock >= 0:
            _lock_descriptors.discard(lock)
            os.close(lock)

    def close_inherited(self) -> None:
        """Close the descriptors, which are a child's own."""
        self.close()


_lock_descriptors: set[int] = set()
"""What a forked child closes: a lock that its parent holds just now would last as long as the child."""


def _close_locks_of_parent() -> None:
    # Replaced, not closed: their owners still have the numbers, and may close or use them.
    for descriptor in list(_lock_descriptors):
        with suppress(OSError):
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)


os.register_at_fork(after_in_child=_close_locks_of_parent)
