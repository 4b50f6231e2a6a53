"""`FolderClaims`: which process requests a key, by files in the folder; they are read and written under its lock."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from lookupcache.store.contract import CALL_BYTES, CLAIMED, OTHERS, OWN
from lookupcache.store.folder_clock import Moment, elapsed
from lookupcache.store.folder_files import Files
from lookupcache.store.folder_format import MICROSECONDS, DamagedFileError, Words, claim, names_as_bytes, read_claim
from lookupcache.store.folder_segments import Segments

CLAIM = ".claim"

_MOST_HELD = 10_000
_MOST_SECONDS = 12 * 3_600.0
"""Rows of an older claim are not written: invalidations are removed some time later."""
_LAPSED_SECONDS = 60.0
"""How long after it has lapsed a claim's file is removed by others."""


@dataclass
class _Held:
    """Names that are claimed with a token: ``since`` is when, by the clock of the folder, ``at`` by the own."""

    identity: str
    names: set[bytes]
    since: int
    lasts: int
    at: float


class FolderClaims:
    """The claims of this process in a folder; a forked process has none of its parent."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._process = os.getpid()

    def states(self, identity: str, files: Files, segments: Segments, names: Words, token: bytes,
               now: Moment) -> list[int]:  # fmt: skip
        """Return for each name whether it is claimed: by this process, by others, or by nobody, which is `CLAIMED`."""
        states = np.full(len(names), CLAIMED)
        valid_after = segments.valid_after(names)
        own = token[:-CALL_BYTES].hex()
        # Those of others last: a name that both have claimed is theirs.
        for name in sorted(
            (one for one in segments.listed if one.endswith(CLAIM)), key=lambda n: not n.startswith(own)
        ):
            try:
                modified = files.modified(name)
                found = read_claim(identity, files.read(name))
            except (OSError, DamagedFileError):
                continue
            lapses = modified + found.lasts / MICROSECONDS
            if now.most > lapses:
                if now.least > lapses + _LAPSED_SECONDS:
                    files.remove(name)
                continue
            claimed = np.sort(found.names[:, 0])
            if not len(claimed):
                continue
            at = np.minimum(np.searchsorted(claimed, names[:, 0]), len(claimed) - 1)
            states[(claimed[at] == names[:, 0]) & (found.time > valid_after)] = OWN if name.startswith(own) else OTHERS
        return [int(state) for state in states]

    def hold(self, identity: str, files: Files, names: Words, token: bytes, since: int, seconds: float) -> None:
        """Claim names; where there are no locks, only this process knows."""
        held = self._of_process()
        lasts = int(seconds * MICROSECONDS)
        if files.has_locks:
            files.write(token.hex() + CLAIM, [claim(identity, names, since, lasts)])
        held[token] = _Held(identity, set(names_as_bytes(names)), since, lasts, elapsed())
        while len(held) > _MOST_HELD:
            held.popitem(last=False)

    def held(self, token: bytes, names: Words) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int]:
        """Return which names are claimed with a token, and since when."""
        found = self._of_process().get(token)
        if found is None or elapsed() - found.at > _MOST_SECONDS:
            return np.zeros(len(names), np.bool_), 0
        return np.array([name in found.names for name in names_as_bytes(names)], np.bool_), found.since

    def has_file(self, files: Files, token: bytes) -> bool:
        """Return whether the claims of a token have not been removed by others."""
        try:
            files.modified(token.hex() + CLAIM)
        except OSError:
            return False
        return True

    def end(self, files: Files, names: Words, token: bytes) -> None:
        """End the claims on names that a token has."""
        held = self._of_process()
        found = held.get(token)
        if found is None:
            return
        found.names.difference_update(names_as_bytes(names))
        if not found.names:
            del held[token]
        if not files.has_locks:
            return
        name = token.hex() + CLAIM
        if not found.names:
            files.remove(name)
        elif self.has_file(files, token):
            left = np.frombuffer(b"".join(sorted(found.names)), "<u8").reshape(-1, 2)
            files.write(name, [claim(found.identity, left, found.since, found.lasts)])

    def renew(self, identity: str, files: Files, names: Words) -> None:
        """Prolong the claims on names."""
        renewed = set(names_as_bytes(names))
        for token, held in self._of_process().items():
            if held.identity == identity and not renewed.isdisjoint(held.names):
                with suppress(FileNotFoundError):
                    files.renew(token.hex() + CLAIM)

    def tokens(self) -> Sequence[bytes]:
        """Return the tokens that have claims."""
        return list(self._of_process())

    def _of_process(self) -> OrderedDict[bytes, _Held]:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._held = OrderedDict()
        return self._held
