"""`Writer`: writes entries to a store in a thread, so that lookups do not wait for that.

Until they are written, their keys stay claimed: other processes wait. Rows that are lost with a process are requested
again when its claims have lapsed. A lookup of the same process, which does not wait for claims, waits for the writer.
"""

from __future__ import annotations

import atexit
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import ref

from lookupcache.background import Background

MOST_BYTES = 32 << 20
"""The number of bytes that may wait to be written; with more, the lookup writes them itself."""

HOLD_SECONDS = 0.02
"""How long a task waits for `Writer.hurry` at most: its lookup may never wait for its source."""

_EXIT_SECONDS = 1.0

_all: dict[int, ref[Writer]] = {}
"""All writers by their numbers: a dict can be copied while another thread makes a writer."""
_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class _Task:
    number: int
    names: frozenset[bytes]
    nbytes: int
    write: Callable[[], None]


class Writer:
    """Runs tasks that write, in order, in a thread that ends after the last one.

    They wait until the lookup has nothing to do, which `hurry` says. At once, they would take the interpreter from the
    join of the fetched rows, and the server from the claims of the next ones.

    >>> writer, written = Writer(), []
    >>> writer.add([b"name"], 5, lambda: written.append(b"entry"))
    >>> writer.flush(10), written
    (True, [b'entry'])
    """

    def __init__(self) -> None:
        self._reset()
        number = next(_numbers)
        _all[number] = ref(self, lambda gone: _all.pop(number, None))

    def _reset(self) -> None:
        self._tasks: deque[_Task] = deque()
        self._unfinished: set[_Task] = set()
        self._nbytes = 0
        self._added = self._done = self._hurried = 0
        self._background = Background(self._write_first, "lookupcache-writer")
        self._changed = self._background.changed

    def add(self, names: Sequence[bytes], nbytes: int, write: Callable[[], None]) -> None:
        """Run a task soon, or now where too much waits already.

        It writes ``names``, and takes ``nbytes`` of memory until then; its errors are ignored.
        """
        if not self._background.is_own:
            self._reset()
        with self._changed:
            is_added = self._nbytes + nbytes <= MOST_BYTES and self._wake()
            if is_added:
                self._added += 1
                task = _Task(self._added, frozenset(names), nbytes, write)
                self._tasks.append(task)
                self._unfinished.add(task)
                self._nbytes += nbytes
        if not is_added:
            with suppress(Exception):
                write()

    def _wake(self) -> bool:
        """Return whether there is a thread; where the interpreter exits, none can be started."""
        with suppress(RuntimeError):
            self._background.wake(HOLD_SECONDS)
        return self._background.has_thread

    def hurry(self) -> None:
        """Run the tasks that were added before without further waiting."""
        if self._hurried != self._added and self._background.is_own:
            with self._changed:
                self._hurried = self._added
                if self._tasks:
                    self._background.wake()

    def flush(self, seconds: float) -> bool:
        """Wait until everything is written that was added before; return whether that is so."""
        if not self._background.is_own:
            return True
        self.hurry()
        with self._changed:
            added = self._added
            return self._changed.wait_for(lambda: self._done >= added, seconds)

    def close(self) -> None:
        """Let the thread end when everything is written; the next task starts another."""
        self.hurry()
        self._background.close()

    def has(self, names: Iterable[bytes]) -> bool:
        """Return whether one of the names is still to be written."""
        if not self._unfinished or not self._background.is_own:
            return False
        names = frozenset(names)
        with self._changed:
            return not all(task.names.isdisjoint(names) for task in self._unfinished)

    def _write_first(self) -> float | None:
        with self._changed:
            task = self._tasks.popleft() if self._tasks else None
        if task is not None:
            with suppress(BaseException):  # Whatever it was, the task has ended.
                task.write()
            self._end(task)
        with self._changed:
            if not self._tasks:
                return None
            return 0.0 if self._tasks[0].number <= self._hurried else HOLD_SECONDS

    def _end(self, task: _Task) -> None:
        with self._changed:
            self._unfinished.discard(task)
            self._nbytes -= task.nbytes
            self._done += 1
            self._changed.notify_all()


def _writers() -> list[Writer]:
    return [writer for one in list(_all.values()) if (writer := one()) is not None]


def flush_names(names: Sequence[bytes], seconds: float) -> None:
    """Wait until the writers of this process have written these names, at most so long."""
    for writer in _writers():
        if writer.has(names):
            writer.flush(seconds)


@atexit.register
def flush_writers() -> None:
    """Wait until all writers of this process have written, at most a second."""
    until = time.monotonic() + _EXIT_SECONDS
    for writer in _writers():
        writer.flush(max(until - time.monotonic(), 0.0))
