"""Caches of a host for tests, and processes that use one and are killed at a chosen step."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lookupcache.cache.keys import KeyBatch
from lookupcache.cache.limits import Limits
from lookupcache.host import HostCache
from lookupcache.host.control import Control

PLAN = "ab" * 16
SCHEMA = pa.schema([("id", pa.string()), ("match", pa.int64())])
KINDS: dict[str, list[pa.DataType]] = {
    "int": [pa.int64()],
    "text": [pa.string()],
    "pair": [pa.int64(), pa.string()],
}


def new_cache(
    path: Path,
    kind: str = "int",
    clock: Callable[[], float] | None = None,
    about: dict[str, str] | None = None,
    **limits: Any,
) -> HostCache:
    """Open the cache of a folder."""
    return HostCache(path, PLAN, KINDS[kind], SCHEMA, Limits(**limits), clock=clock, about=about)


def keys_of(numbers: Any, kind: str = "int") -> KeyBatch:
    """Return a batch of keys by numbers."""
    ints, texts = pa.array(numbers, pa.int64()), pa.array([f"key {number}" for number in numbers], pa.string())
    columns = {"int": [ints], "text": [texts], "pair": [ints, texts]}[kind]
    return KeyBatch.of(columns, KINDS[kind])


def rows_of(numbers: Any, version: str = "") -> tuple[pa.Table, Any]:
    """Return the rows of keys, and how many each has: a third of the keys has none, a third has two."""
    counts = np.array([int(number) % 3 for number in numbers], dtype=np.int64)
    rows = [(f"{version}{n}", match) for n, count in zip(numbers, counts, strict=True) for match in range(count)]
    return pa.table(list(zip(*rows, strict=True)) or [[], []], schema=SCHEMA), counts


def store(cache: HostCache, numbers: Any, kind: str = "int", version: str = "", since: int | None = None) -> None:
    """Publish the rows of keys."""
    rows, counts = rows_of(numbers, version)
    written = cache.clock()
    cache.publish(keys_of(numbers, kind), rows, counts, written, cache.position if since is None else since)


def look_up(cache: HostCache, numbers: Any, kind: str = "int", **options: Any) -> dict[int, list[str]]:
    """Return the rows of the keys that are found, and check that each has as many as it should."""
    found = cache.find(keys_of(numbers, kind), **options)
    ids, start, shown = found.rows.column("id").to_pylist(), 0, {}
    for position, count in zip(found.positions.tolist(), found.counts.tolist(), strict=True):
        shown[int(numbers[position])] = ids[start : start + count]
        assert count == int(numbers[position]) % 3
        start += count
    return shown


def right(numbers: Any, version: str = "") -> dict[int, list[str]]:
    """Return what `look_up` should find for keys that are all there."""
    return {int(number): [f"{version}{number}"] * (int(number) % 3) for number in numbers}


def _fork(work: Callable[[], None]) -> int:
    """Run something in a forked process, which ends with code 1 if that fails; return the process's number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def in_processes(count: int, work: Callable[[int], None], watch: Callable[[], None] | None = None) -> None:
    """Run something in forked processes at once, each with its number; raises if one fails.

    ``watch`` is called again and again until all have ended.
    """
    children = [_fork(partial(work, number)) for number in range(count)]
    codes = []
    for child in children:
        while watch is not None and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            watch()
        codes.append(os.waitpid(child, 0)[1])
    assert codes == [0] * count


STEPS = (
    "open", "write", "rename", "unlink", "link", "mkdir", "posix_fallocate", "listdir", "stat", "fstat",
)  # fmt: skip
"""The functions of `os` that the cache uses for its files; ``flock`` of `fcntl`, maps, and each number that is written
into the control page are steps too."""


class Killer:
    """Counts calls of the functions that change or read files, and kills this process before the n-th."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def install(self) -> None:
        import fcntl
        import mmap

        for name in STEPS:
            setattr(os, name, self._count_calls(getattr(os, name)))
        fcntl.flock = self._count_calls(fcntl.flock)
        Control.__setitem__ = self._count_calls(Control.__setitem__)  # type: ignore[method-assign]
        plain = mmap.mmap

        class Counted(plain):  # type: ignore[misc,valid-type]
            def __new__(cls, *arguments: Any, **named: Any) -> Any:
                self.step()
                return plain.__new__(cls, *arguments, **named)

        mmap.mmap = Counted  # type: ignore[misc,assignment]

    def _count_calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def count_call(*arguments: Any, **named: Any) -> Any:
            self.step()
            return function(*arguments, **named)

        return count_call

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None], at: int = -1) -> tuple[bool, int]:
    """Run something in a forked process that is killed at a step; return whether it was, and how many steps it took."""
    read, write = os.pipe()

    def counting() -> None:
        os.close(read)
        killer = Killer(at)
        send = os.write
        killer.install()
        work()
        send(write, str(killer.count).encode())

    child = _fork(counting)
    os.close(write)
    with os.fdopen(read) as counted:
        steps = counted.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True, at
    assert os.WEXITSTATUS(status) == 0, "the child has failed"
    return False, int(steps)
