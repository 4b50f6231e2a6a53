"""A real disk that is full: a small file system in memory, seen by one process alone; its end removes it."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from host_processes import in_processes

SIZE = 2 << 20
_NEW_MOUNTS, _NEW_USERS = 0x0002_0000, 0x1000_0000
_PRIVATE = 0x4000 | 0x4_0000


class SmallDisk:
    """A directory with little space; ``is_real`` unless this machine lets nobody mount anything.

    Then `full` limits the size of the files of this process instead: writes fail as well, with another error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_real = _is_mounted(path)

    @contextmanager
    def full(self, free: int = 0) -> Iterator[None]:
        """Leave so many bytes of space."""
        if not self.is_real:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (free, before[1]))
            yield
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            return
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(filler, max(filler.stat().st_size - free, 0))
        yield
        filler.unlink()


def on_small_disk(path: Path, work: Callable[[SmallDisk], None]) -> None:
    """Run something in a forked process that has a small disk at a path; raises if it fails."""
    path.mkdir()
    in_processes(1, lambda number: work(SmallDisk(path)))


def _is_mounted(path: Path) -> bool:
    libc, user, group = ctypes.CDLL(None), os.geteuid(), os.getegid()
    # Without root, a process may mount where it is root of its own users; not everywhere is it allowed to be that.
    if libc.unshare(_NEW_MOUNTS | (_NEW_USERS if user else 0)):
        return False
    with suppress(OSError):
        if user:
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                Path(f"/proc/self/{name}").write_text(text)
        if libc.mount(None, b"/", None, _PRIVATE, None):
            return False
        options = f"size={SIZE},mode=700".encode()
        return not libc.mount(b"none", os.fsencode(path), b"tmpfs", 0, options)
    return False
