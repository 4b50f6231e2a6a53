"""CPU time, memory and files of this process and its descendants: Spark's JVM and the Python workers."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


DRIVER, JVM, WORKERS = "driver", "JVM", "workers"


@dataclass
class Usage:
    """CPU seconds used, and peaks of bytes, as sampled: in memory, in all and by kind of process, and on disk.

    Memory is what is resident; of files that several processes map, such as a host's cache, each counts its part. Disk
    is what was written since the beginning.
    """

    cpu: float = 0.0
    peak: int = 0
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys((DRIVER, JVM, WORKERS), 0))
    disk: int = 0

    def add(self, memory: list[tuple[str, int]], disk: int) -> None:
        """Add a sample."""
        of = Counter[str]()
        for kind, nbytes in memory:
            of[kind] += nbytes
        self.peak = max(self.peak, of.total())
        self.peaks = {kind: max(peak, of[kind]) for kind, peak in self.peaks.items()}
        self.disk = max(self.disk, disk)


@contextmanager
def measure_usage(folder: Path | None = None) -> Iterator[Usage]:
    """Measure the usage of the block, and of a folder, four times a second: to add up a large JVM's memory takes ms."""
    usage, done = Usage(), threading.Event()
    first = bytes_in(folder) if folder else 0

    def sample() -> None:
        usage.add([(one.kind, one.memory) for one in process_tree()], bytes_in(folder) - first if folder else 0)

    def watch() -> None:
        while not done.wait(0.25):
            sample()

    watcher = threading.Thread(target=watch, daemon=True)
    before = sum(one.cpu for one in process_tree())
    watcher.start()
    try:
        yield usage
    finally:
        done.set()
        watcher.join()
        sample()
        usage.cpu = sum(one.cpu for one in process_tree()) - before


def bytes_in(folder: Path) -> int:
    """Return how much disk the files of a folder take."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
    return total


@dataclass(frozen=True)
class _Process:
    """A process as its `stat` says it: CPU seconds with those of ended children, and the resident bytes."""

    pid: int
    parent: int
    program: str
    cpu: float
    resident: int

    @property
    def kind(self) -> str:
        if self.pid == os.getpid():
            return DRIVER
        return JVM if self.program == "java" else WORKERS

    @property
    def command_line(self) -> bytes:
        """The program and its arguments, with a zero byte after each; empty for a process that has ended."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return b""

    @property
    def memory(self) -> int:
        """The resident bytes, of what is shared with other processes its part, where Linux says that."""
        with suppress(OSError):
            found = _PART.search(Path(f"/proc/{self.pid}/smaps_rollup").read_text())
            if found:
                return int(found[1]) * 1024
        return self.resident


_PART = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)


def process_tree() -> list[_Process]:
    """Return this process and each of its descendants."""
    processes = {one.pid: one for one in _processes()}
    mine, found = {os.getpid()}, True
    while found:
        found = {pid for pid, one in processes.items() if one.parent in mine} - mine
        mine |= found
    return [processes[pid] for pid in mine if pid in processes]


def _processes() -> Iterator[_Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                program, rest = (folder / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
                fields = rest.split()
                cpu = sum(int(fields[index]) for index in (11, 12, 13, 14)) / _TICK
                yield _Process(int(folder.name), int(fields[1]), program, cpu, int(fields[21]) * _PAGE)
