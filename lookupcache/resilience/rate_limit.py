"""A rate limit shared by all processes of an executor: calls are evenly spaced, none starts before its slot."""

from __future__ import annotations

import hashlib
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # no file locks on this system: each process then has its own rate limit
    fcntl = None  # type: ignore[assignment]

# The next free slot, and when it was written.
_SLOT = struct.Struct("<dd")


class RateLimit:
    """Gives each call the next free slot, ``1 / rate`` seconds after the one before (virtual scheduling, GCRA).

    ``path`` is the file that stores the next free slot, shared by all processes that use it. Without one, that is in
    ``memory``. ``clock`` gives seconds, and must be the same for all that share the file.

    >>> limit = RateLimit(10.0, clock=lambda: 0.0)
    >>> limit.reserve(), limit.reserve(), limit.reserve()
    (0.0, 0.1, 0.2)
    """

    def __init__(
        self, rate: float, path: Path | None = None, clock: Callable[[], float] = time.monotonic,
        memory: _Memory | None = None,
    ) -> None:  # fmt: skip
        self.rate = rate
        self.path = None if fcntl is None else path
        self._clock = clock
        self._memory = memory or _Memory()

    @classmethod
    def of_executor(cls, rate: float, name: str) -> RateLimit:
        """Return the limit that the workers of this executor share for the source of that name.

        Its file is in a directory of the executor, which Spark deletes. Outside of a Spark worker, each process has its
        own.
        """
        hashed, folder = hashlib.sha256(name.encode()).hexdigest()[:32], _directory_of_executor()
        path = None if folder is None else folder / f"lookupcache-rate-{hashed}"
        return cls(rate, path, memory=_memory_of(os.getpid(), name))

    def reserve(self, within: float = math.inf) -> float:
        """Reserve the next slot and return the seconds until it.

        A slot later than ``within`` seconds is not reserved: the result is then more than ``within``.
        """
        if self.path is None:
            with self._memory.lock:
                wait, self._memory.next = self._take(self._memory.next, within)
            return wait
        with _lock_file(self.path) as file:
            wait, after = self._take(_read(file, self._clock()), within)
            os.pwrite(file, _SLOT.pack(after, self._clock()), 0)
        return wait

    def reset_after_fork(self) -> None:
        """Replace a lock that a thread of the parent process may hold."""
        self._memory.lock = threading.Lock()

    def _take(self, free: float, within: float) -> tuple[float, float]:
        """Return the wait for a slot, and the slot that is free after it."""
        now = self._clock()
        slot = max(free, now)
        return slot - now, slot + 1 / self.rate if slot - now <= within else free


class _Memory:
    """The next free slot of the limits of a process that share it."""

    def __init__(self) -> None:
        self.next = -math.inf
        self.lock = threading.Lock()


@cache
def _memory_of(process: int, name: str) -> _Memory:
    return _Memory()


def _read(file: int, now: float) -> float:
    """Return the next free slot that is stored in a file; minus infinity where it has none that is still valid.

    The clock starts again with the machine: a slot that was written later than now is of an earlier start.
    """
    stored = os.pread(file, _SLOT.size, 0)
    if len(stored) != _SLOT.size:
        return -math.inf
    slot, written = _SLOT.unpack(stored)
    return float(slot) if math.isfinite(slot) and written <= now else -math.inf


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    """Open a file, created if necessary, and lock it."""
    while True:
        # A clean-up of temporary directories may have removed it, after days without a call.
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


def executor_name() -> str:
    """Return an identifier that all Python workers of this executor share, and no others.

    Spark gives every worker its executor's own block directories. The parent process would not do: an executor has such
    a daemon per set of environment variables, as per Spark Connect session.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        return os.environ.get("SPARK_LOCAL_DIRS") or f"parent {os.getppid()}"
    return f"process {os.getpid()}"


def _directory_of_executor() -> Path | None:
    """Return a directory of this executor, None outside of its workers."""
    directories = executor_name()
    return Path(directories.split(",")[0]) if directories.startswith("/") else None
