"""CPU time and memory of this process and all that it started: Spark's JVM and the Python workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """CPU seconds spent meanwhile, and the most bytes held at a time, as sampled."""

    cpu: float = 0.0
    peak: int = 0


@contextmanager
def measured() -> Iterator[Usage]:
    """Measure what runs inside; memory is looked at every 50 ms."""
    usage, done = Usage(), threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            usage.peak = max(usage.peak, sum(memory for _, memory in _tree()))

    watcher = threading.Thread(target=watch, daemon=True)
    before = sum(cpu for cpu, _ in _tree())
    watcher.start()
    try:
        yield usage
    finally:
        done.set()
        watcher.join()
        usage.cpu = sum(cpu for cpu, _ in _tree()) - before


def _tree() -> list[tuple[float, int]]:
    """Return CPU seconds and resident bytes of each process that descends from this one, and of this one."""
    told = dict(_stats())
    mine, found = {os.getpid()}, True
    while found:
        found = {pid for pid, fields in told.items() if int(fields[1]) in mine} - mine
        mine |= found
    return [_used(told[pid]) for pid in mine if pid in told]


def _used(fields: list[str]) -> tuple[float, int]:
    """Read user and system time, those of children that have ended included, and the resident pages."""
    return sum(int(fields[place]) for place in (11, 12, 13, 14)) / _TICK, int(fields[21]) * _PAGE


def _stats() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue
