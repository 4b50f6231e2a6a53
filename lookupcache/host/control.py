"""`Control`: a mapped page with the numbers that the processes of a host share."""

from __future__ import annotations

import os
import struct

import numpy as np

from lookupcache.host.clock import host_now
from lookupcache.host.folder import Folder
from lookupcache.host.segment import FORMAT

NAME = "control"
PUBLISH_LOCK = "publish.lock"
"""Held while the list of segments or a sequence number changes."""

_MAGIC = b"LKCCTL\r\n"
_HEAD = struct.Struct("<8sII16s")
_SIZE = 4096
_FIELDS_AT = 64
_FIELDS = (
    "seed", "next", "generation", "forgotten", "weight", "hits", "published", "evictions", "merges", "merging",
    "evicted_at", "merged_bytes", "failures", "full_disk", "quiet_until", "index", "ids", "used_slots",
    "is_indexing", "closed", "merging_since", "changed",
)  # fmt: skip
_AT = {field: number for number, field in enumerate(_FIELDS)}


class Control:
    """The page: a field is read and written in place, in one aligned word.

    - ``seed``: of the hashes of keys; ``next``: the last sequence number that was taken.
    - ``generation``: changes with the list of segments and invalidations.
    - ``changed``: changes with each merge and invalidation, and is odd while one is at work. Unless it has changed,
      what a process has mapped of older entries is right.
    - ``forgotten``: the highest number of an invalidation that is no longer there to be read.
    - ``weight``: what all entries weigh, approximately; ``evict`` corrects it.
    - ``merging``: the highest number of the segments that a large merge is at work on, 0 for none;
      ``merging_since``: when the last one began.
    - ``index``: the number of the index, 0 for none. ``ids``: the last number of an entry that was taken.
      ``used_slots``: how many slots of the index are used. ``is_indexing``: 1 while it is behind the segments.
    - ``quiet_until``: the time before which no merge is made only because nothing is published any more.
    - ``evicted_at``: the time of the last eviction.
    - ``closed``: 1 if the folder must not be used any more, since a change of the source could not be noted in it.
    - ``failures``, ``full_disk``: how often a process failed to read or write files, and because the disk was full.
    - ``hits``, ``published``, ``evictions``, ``merges``, ``merged_bytes``: counts for people, some of
      which get lost.
    """

    def __init__(self, folder: Folder, plan: bytes, *, create: bool = True) -> None:
        self._plan = plan
        self._folder = folder
        if not create:
            self._open()
            return
        try:
            self._open()
        except (FileNotFoundError, ValueError):
            self._create()

    def __getitem__(self, field: str) -> int:
        return int(self._numbers[_AT[field]])

    def __setitem__(self, field: str, value: int) -> None:
        self._numbers[_AT[field]] = value

    def time(self, field: str) -> float:
        return float(self._numbers[_AT[field] :][:1].view("<f8")[0])

    def set_time(self, field: str, value: float) -> None:
        self._numbers[_AT[field] :][:1].view("<f8")[0] = value

    def close(self) -> None:
        """Unmap the page."""
        self._numbers = np.zeros(len(_FIELDS), np.int64)

    @property
    def is_current(self) -> bool:
        """Whether the page is still the one that the folder has."""
        return self._folder.inode(NAME) == self._inode

    def _open(self) -> None:
        """Map the page; raises ValueError for one of another version or plan, or that was closed."""
        page, found = self._folder.map(NAME, writable=True)
        if len(page) != _SIZE or _HEAD.unpack_from(page) != (_MAGIC, FORMAT, 0, self._plan):
            raise ValueError("it is of another version or plan")
        self._inode = found.st_ino
        self._numbers = np.frombuffer(page, "<i8", len(_FIELDS), _FIELDS_AT)
        if self["closed"]:
            raise ValueError("it was closed")

    def _create(self) -> None:
        """Make the page, unless another process is faster, and map it."""
        name = f"{NAME}.new"
        # Higher than all numbers of a page that this one replaces, which running processes may still have.
        first = int(host_now() * 1_000_000)
        head = _HEAD.pack(_MAGIC, FORMAT, 0, self._plan).ljust(_FIELDS_AT, b"\0") + struct.pack(
            "<4q", int.from_bytes(os.urandom(8)) >> 2 | 1, first, first, first
        )
        with self._folder.lock(PUBLISH_LOCK):
            try:
                self._open()
            except (FileNotFoundError, ValueError):
                self._folder.remove(NAME)
                # A process that was killed may have left one.
                self._folder.remove(name)
                self._folder.allocate(name, _SIZE, head)
                self._remove_entries()
                self._folder.rename(name, NAME)
                self._open()

    def _remove_entries(self) -> None:
        """Remove what was published with a page that is lost: its numbers and hashes mean nothing any more."""
        for one in self._folder.names():
            if one.endswith((".seg", ".use", ".inv")) or one.startswith("index-"):
                self._folder.remove(one)
