"""A rate limit shared by all processes of an executor: calls are evenly spaced, none starts before its slot."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from lookupcache.errors import LookupCacheError

try:
    import fcntl
except ImportError:  # no file locks on this system: each process then has its own rate limit
    fcntl = None  # type: ignore[assignment]

# The next free slot, when it was written, and since which start of the machine the clock has been running.
_SLOT = struct.Struct("<dd16s")
_UNUSED = 86_400.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class RateLimit:
    """Gives each call the next free slot, ``1 / rate`` seconds after the one before (virtual scheduling, GCRA).

    ``path`` is the file that stores the next free slot, shared by all processes that use it. Without one, the
    slots are those of this object. ``clock`` gives seconds, and must be the same for all that share the file.

    >>> limit = RateLimit(10.0, clock=lambda: 0.0)
    >>> limit.reserve(), limit.reserve(), limit.reserve()
    (0.0, 0.1, 0.2)
    """

    def __init__(self, rate: float, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.path = None if fcntl is None else path
        self._clock = clock
        self._lock = threading.Lock()
        self._next = -math.inf

    @classmethod
    def of_executor(cls, rate: float, name: str) -> RateLimit:
        """Return the limit that the workers of this executor share for the source of that name.

        Outside of a Spark worker, each process has its own. Raises LookupCacheError if no file can be used.
        """
        path = file_of_executor(name)
        _remove_unused(path.parent)
        return cls(rate, path)

    def reserve(self, within: float = math.inf) -> float:
        """Reserve the next slot and return the seconds until it.

        A slot later than ``within`` seconds is not reserved: the result is then more than ``within``.
        """
        if self.path is None:
            with self._lock:
                wait, self._next = self._take(self._next, within)
            return wait
        with _lock_file(self.path) as file:
            wait, after = self._take(_read(file, self._clock()), within)
            os.pwrite(file, _SLOT.pack(after, self._clock(), _boot()), 0)
        return wait

    def reset_after_fork(self) -> None:
        """Replace a lock that a thread of the parent process may hold."""
        self._lock = threading.Lock()

    def _take(self, free: float, within: float) -> tuple[float, float]:
        """Return the wait for a slot, and the slot that is free after it."""
        now = self._clock()
        slot = max(free, now)
        return slot - now, slot + 1 / self.rate if slot - now <= within else free


def _read(file: int, now: float) -> float:
    """Return the next free slot that is stored in a file; minus infinity where it has none that is still valid.

    The clock starts again with the machine: a slot that was written before is not valid.
    """
    stored = os.pread(file, _SLOT.size, 0)
    if len(stored) != _SLOT.size:
        return -math.inf
    slot, written, boot = _SLOT.unpack(stored)
    return float(slot) if math.isfinite(slot) and written <= now and boot == _boot() else -math.inf


@cache
def _boot() -> bytes:
    """Return an identifier of this start of the machine; zeros where the system has none."""
    try:
        return bytes.fromhex(_BOOT.read_text().strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    """Open a file, created if necessary, and lock it."""
    while True:
        # A clean-up of temporary directories may have removed ours, after days without a call.
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Another process may have removed the file between the two lines above.
            if os.fstat(file).st_nlink:
                yield file
                return
        finally:
            # A process that was forked meanwhile has the file open too, and closing it here would not free the lock.
            try:
                fcntl.flock(file, fcntl.LOCK_UN)
            finally:
                os.close(file)


def file_of_executor(name: str) -> Path:
    """Return the path of a file of that name that the workers of this executor share, and no others.

    Raises LookupCacheError if no file can be used.
    """
    return _private_directory() / hashlib.sha256(f"{executor_name()}\n{name}".encode()).hexdigest()[:32]


def executor_name() -> str:
    """Return an identifier that all Python workers of this executor share, and no others.

    Spark gives every worker its executor's own block directories. The parent process would not do: an executor has such
    a daemon per set of environment variables, as per Spark Connect session.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        return os.environ.get("SPARK_LOCAL_DIRS") or f"parent {os.getppid()}"
    return f"process {os.getpid()}"


def _private_directory() -> Path:
    """Return a directory that no other user can write to; raises LookupCacheError if it is missing."""
    folder = Path(tempfile.gettempdir()) / f"lookupcache-{_owner()}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise _no_directory(f"{str(folder)!r} cannot be made: {error.strerror}") from error
    if fcntl is not None and (not stat.S_ISDIR(found.st_mode) or found.st_uid != _owner() or found.st_mode & 0o077):
        raise _no_directory(f"{str(folder)!r} is open to others")
    return folder


def _owner() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _no_directory(fact: str) -> LookupCacheError:
    return LookupCacheError(
        f"'lookup.rate-limit' needs a separate directory, and {fact}.",
        hint="Remove what is there, or set TMPDIR on the executors.",
    )


def _remove_unused(folder: Path) -> None:
    """Remove the files of executors that have ended: files with a past slot, unchanged for a day."""
    for path in folder.iterdir():
        with suppress(OSError):
            if path.lstat().st_mtime < time.time() - _UNUSED and _next_slot(path) <= time.monotonic():
                path.unlink()


def _next_slot(path: Path) -> float:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _read(file, time.monotonic())
    finally:
        os.close(file)
