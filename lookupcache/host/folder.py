"""`Folder`: a folder that belongs to this user alone, and the files in it, opened relative to its descriptor."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

_TRIED_BYTES = 4 << 20
"""More than the files that a new cache has."""

_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.mount-s3", "fuse.s3fs",
    "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb2", "smb3",
    "smbfs",
}  # fmt: skip
"""Types of file systems whose locks and mapped files other machines take part in."""

LOCK_SECONDS = 5.0
"""How long a process waits for a lock: others hold it for milliseconds, unless they are stopped."""

_SOON_SECONDS = 0.03
"""The same for a lock that was not released in time before: each thread that waits for it takes it for a moment."""

_PAUSE_SECONDS = 0.001
_SMALL_PART = 4096
_SHARED_NOW = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
"""All pages of a file that was just written are mapped at once, rather than by a fault for each few of them."""


class HostUnavailableError(Exception):
    """The host's cache cannot be used here; the text says why, and ``is_missing`` if a file or folder is not there."""

    def __init__(self, text: str, *, is_missing: bool = False) -> None:
        super().__init__(text)
        self.is_missing = is_missing


class Folder:
    """A folder of mode 0700 that this user owns; the last part of its path is created, the rest may be.

    All files are opened relative to its descriptor, so that no user can exchange the folder for another. A folder that
    was deleted is noticed by the first operation that fails. Raises HostUnavailableError.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self.path = Path(path).absolute()
        self._lock_seconds = lock_seconds
        self._overdue: set[str] = set()
        try:
            if create:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            raise HostUnavailableError(f"{self.path}: {error.strerror}", is_missing=is_missing) from None
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid():
            raise HostUnavailableError(f"{self.path} belongs to another user")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise HostUnavailableError(f"{self.path} is open to other users; it needs mode 0700")
        kind = file_system_of(self.path)
        if kind in _NETWORK:
            raise HostUnavailableError(f"{self.path} is on a network file system ({kind})")

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def names(self) -> list[str]:
        return list_names(self._fd)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a file and return its descriptor; it must be a regular file of this user."""
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(fd)
            raise PermissionError(errno.EPERM, "not a regular file of this user", name)
        return fd

    def map(self, name: str, *, writable: bool = False) -> tuple[mmap.mmap, os.stat_result]:
        """Map a file; return it with what `os.fstat` says of it. Raises ValueError if it is empty."""
        fd = self.open(name, os.O_RDWR if writable else os.O_RDONLY)
        try:
            found = os.fstat(fd)
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            return mmap.mmap(fd, found.st_size, mmap.MAP_SHARED, protection), found
        finally:
            os.close(fd)

    def write(
        self, name: str, parts: Iterable[Any], seal: Callable[[memoryview], tuple[int, bytes]] | None = None
    ) -> os.stat_result:
        """Write a new file from buffers; if that fails, remove it. Returns what `os.fstat` says of it.

        ``seal`` gets the mapped content and returns a position and bytes to write there last, such as a checksum.
        """
        with self._new_file(name) as fd:
            for part in _joined_small(parts):
                _write_all(fd, part)
            if seal is not None:
                with mmap.mmap(fd, 0, _SHARED_NOW, mmap.PROT_READ) as mapped, memoryview(mapped) as content:
                    position, data = seal(content)
                os.pwrite(fd, data, position)
            return os.fstat(fd)

    def allocate(self, name: str, size: int, head: bytes = b"") -> None:
        """Write a new file of zeros after its head, with all its blocks: a mapped page must not need any later."""
        with self._new_file(name) as fd:
            os.posix_fallocate(fd, 0, size)
            _write_all(fd, memoryview(head))

    @contextmanager
    def _new_file(self, name: str) -> Iterator[int]:
        """Create a file and yield its descriptor; the file is removed if what writes it fails."""
        fd = self.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            yield fd
        except BaseException:
            with suppress(OSError):
                self.remove(name)
            raise
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; a file of the new name is replaced."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes, 0 if it is not there."""
        return 0 if (found := self._stat(name)) is None else found.st_size

    def inode(self, name: str) -> int:
        """Return the inode of a file, 0 if it is not there."""
        return 0 if (found := self._stat(name)) is None else found.st_ino

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a file; yields whether it is held, which without ``wait`` may be false.

        Raises TimeoutError if another process keeps it for too long, as one that was stopped does. Until it was free
        once, processes wait only a moment for such a lock, since each wait would add to the time of a lookup.
        """
        fd = self._open_lock(name)
        try:
            yield self._wait_for_lock(fd, name) if wait else _lock(fd)
        finally:
            self.unlock(fd)

    def _wait_for_lock(self, fd: int, name: str) -> bool:
        if not _lock_within(fd, _SOON_SECONDS if name in self._overdue else self._lock_seconds):
            self._overdue.add(name)
            raise TimeoutError(errno.ETIMEDOUT, "another process does not release the lock", name)
        self._overdue.discard(name)
        return True

    def try_lock(self, name: str) -> int | None:
        """Take the lock of a file if that is possible at once; return what `unlock` needs."""
        fd = self._open_lock(name)
        if _lock(fd):
            return fd
        self.unlock(fd)
        return None

    def unlock(self, lock: int) -> None:
        """Release a lock that `try_lock` took."""
        with _guard:
            _open_locks.discard(lock)
            os.close(lock)

    def _open_lock(self, name: str) -> int:
        with _guard:
            fd = self.open(name, os.O_RDWR | os.O_CREAT)
            _open_locks.add(fd)
            return fd


_open_locks: set[int] = set()
"""The descriptors of this process's locks. A forked child closes them: a lock lasts until no process has it open."""

_guard = threading.RLock()
"""Held while a descriptor of a lock is opened or closed, while pyarrow looks for pandas, and during a fork."""


def settle_pandas() -> None:
    """Let pyarrow look for pandas now, if it has not yet: later, the process might fork meanwhile.

    Its first conversion of a value does, which takes a second where pandas is installed. A child that is forked
    meanwhile would wait forever, for pyarrow's lock and for the import of a thread that it does not have.
    """
    # A private name: without it, pyarrow looks when it likes to.
    interface = getattr(pa.lib, "_pandas_api", None)
    if interface is not None:
        with _guard:
            _ = interface.have_pandas


def _close_inherited_locks() -> None:
    for fd in _open_locks:
        with suppress(OSError):
            os.close(fd)
    _open_locks.clear()
    _guard.release()


os.register_at_fork(
    before=lambda: _guard.acquire(), after_in_parent=lambda: _guard.release(), after_in_child=_close_inherited_locks
)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(fd: int, seconds: float) -> bool:
    """Wait for a lock; return False if it was not free within the seconds."""
    until = time.monotonic() + seconds
    while not _lock(fd):
        if time.monotonic() >= until:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _joined_small(parts: Iterable[Any]) -> Iterator[memoryview]:
    """Yield parts as bytes, small ones together."""
    small = bytearray()
    for part in parts:
        view = memoryview(part)
        if not view.nbytes:
            continue
        if view.nbytes < _SMALL_PART:
            small += view.cast("B")
            continue
        if small:
            yield memoryview(bytes(small))
            small.clear()
        yield view.cast("B")
    if small:
        yield memoryview(bytes(small))


def _write_all(fd: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(fd, data) :]


def list_names(folder: int) -> list[str]:
    """Return the names in an open folder, none if it was removed.

    Threads and forked processes that list the same descriptor share its position, and miss names: each list opens its
    own.
    """
    try:
        own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return []
    try:
        return os.listdir(own)
    finally:
        os.close(own)


def why_unusable(path: str | os.PathLike[str]) -> str | None:
    """Return why the caches of a host cannot be in a directory, None if they can: create what each of them needs.

    >>> why_unusable("/proc/lookupcache")
    '/proc/lookupcache: No such file or directory'
    """
    try:
        folder = Folder(path)
    except HostUnavailableError as error:
        return str(error)
    name = f"try-{os.getpid()}"
    try:
        folder.allocate(name, _TRIED_BYTES)
        folder.map(name, writable=True)[0].close()
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    finally:
        with suppress(OSError):
            folder.remove(name)
        folder.close()
    return None


def file_system_of(path: Path) -> str:
    """Return the type of the file system that a path is on, as the kernel names it; empty where that is unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    except OSError:
        return ""
    # As bytes, in which names are the same in any locale; the kernel writes blanks and backslashes in octal.
    real, best, kind = os.fsencode(os.path.realpath(path)), -1, b""
    for line in filter(None, lines):
        fields, _, rest = line.partition(b" - ")
        point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), fields.split(b" ")[4])
        inside = real == point or real.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= best:
            best, kind = len(point), rest.split(b" ")[0]
    return kind.decode()
