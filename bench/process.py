"""CPU time and memory of this process and its descendants: Spark's JVM and the Python workers."""

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
    """CPU seconds used, and the peak of resident bytes, as sampled."""

    cpu: float = 0.0
    peak: int = 0


@contextmanager
def measure_usage() -> Iterator[Usage]:
    """Measure the usage of the block; memory is sampled every 50 ms."""
    usage, done = Usage(), threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            usage.peak = max(usage.peak, sum(memory for _, memory in _process_tree()))

    watcher = threading.Thread(target=watch, daemon=True)
    before = sum(cpu for cpu, _ in _process_tree())
    watcher.start()
    try:
        yield usage
    finally:
        done.set()
        watcher.join()
        usage.cpu = sum(cpu for cpu, _ in _process_tree()) - before


def _process_tree() -> list[tuple[float, int]]:
    """Return CPU seconds and resident bytes of this process and each of its descendants."""
    stats = dict(_read_stats())
    mine, found = {os.getpid()}, True
    while found:
        found = {pid for pid, fields in stats.items() if int(fields[1]) in mine} - mine
        mine |= found
    return [_parse_usage(stats[pid]) for pid in mine if pid in stats]


def _parse_usage(fields: list[str]) -> tuple[float, int]:
    """Return user and system time, including that of ended children, and the resident bytes."""
    return sum(int(fields[index]) for index in (11, 12, 13, 14)) / _TICK, int(fields[21]) * _PAGE


def _read_stats() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue
