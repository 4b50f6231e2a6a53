"""`FolderStore`: a store in a folder that all hosts see, or in a bucket of an object store.

Entries that are put together are a file, which never changes; so writers never harm each other, and there are no locks.
Processes do not see each other's claims: two hosts that need a key at the same time both request it.
"""

from __future__ import annotations

import atexit
import json
import math
import random
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.background import Background
from lookupcache.cache.keys import Mask
from lookupcache.store.contract import CLAIMED, PREFIX, Reading, Store, StoreContent, StoreFullError, read_about
from lookupcache.store.folder_entries import FolderEntries
from lookupcache.store.folder_files import DamagedFileError, Files
from lookupcache.store.folder_segment import (
    ENDLESS,
    MICROSECONDS,
    Numbers,
    StoredEntries,
    names_as_bytes,
    names_as_words,
)
from lookupcache.store.writer import flush_writers

_ABOUT = "about.json"
_DIGITS = 32
_MOST_COLLECTED_BYTES = 8 << 20
_FIRST_FLUSH_SECONDS = 1.0
_LAST_FLUSH_SECONDS = 30.0
_MOST_CLAIMS = 10_000
_MOST_CLAIM_SECONDS = 12 * 3_600.0
"""Rows of an older claim are not written: invalidations are removed some time later."""


@dataclass
class _Claim:
    """Names that are claimed with a token, and since when."""

    names: set[bytes]
    since: int


class FolderStore(Store):
    """A store in a folder; its calls are made by one thread at a time, see `TimedStore`.

    ``shown`` is the folder's location for `repr`. The clocks of all hosts must agree.
    """

    def __init__(self, files: Files, shown: str = "", clock: Callable[[], float] = time.time) -> None:
        self._files = files
        self._shown = shown
        self._clock = clock
        self._failure: Exception | None = None
        self._reset()
        _open_stores.add(self)

    def _reset(self) -> None:
        self._known: dict[str, FolderEntries] = {}
        self._claims: OrderedDict[bytes, _Claim] = OrderedDict()
        self._wait = _FIRST_FLUSH_SECONDS
        self._background = Background(self._work, "lookupcache-folder")

    def __repr__(self) -> str:
        return f"FolderStore({self._shown})"

    # ── entries and claims ───────────────────────────────────────────────────────────────────────────────

    def get(self, names: Sequence[bytes]) -> Reading:
        identity, words = _parse(names)
        return self._reading(self._open(identity), words)

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Note since when names are requested, and read their entries; other processes do not see it."""
        identity, words = _parse(names)
        one = self._open(identity)
        reading = self._reading(one, words)
        # Rows that are requested from now on are newer than all invalidations that were listed.
        self._claims[token] = _Claim(set(names_as_bytes(words)), max(one.now, one.last_invalidation + 1))
        while len(self._claims) > _MOST_CLAIMS:
            self._claims.popitem(last=False)
        return [CLAIMED] * len(names), reading

    def renew(self, names: Sequence[bytes], token: bytes, seconds: float) -> None:
        """Do nothing: no other process waits for a claim."""

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        """Write entries as a file, or where a file takes long, collect them; end their claims."""
        identity, words = _parse(names)
        held, since = self._end(words, token)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        one = self._open(identity)
        one.refresh()
        valid = np.flatnonzero(held & (since > one.valid_after(words)))
        if valid.size:
            ends = _ends(np.array(seconds, np.float64), self._clock())
            one.put(StoredEntries(words, entries, np.full(len(names), since), ends).take(valid))
            if not one.is_flushed:
                self._run_soon(0.0 if one.nbytes >= _MOST_COLLECTED_BYTES else self._wait)
            if one.is_due:
                one.is_to_compact, one.cleaned_at = True, time.monotonic()
                # At a random time, so that of several processes the others find that it is done.
                self._run_soon(random.uniform(0.0, _FIRST_FLUSH_SECONDS))
        return len(valid)

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        self._end(_parse(names)[1], token)

    def _end(self, names: Numbers, token: bytes) -> tuple[Mask, int]:
        """End the claims on names that a token has; return which of them it had, and since when."""
        claim = self._claims.get(token)
        if claim is None or self._clock() - claim.since / MICROSECONDS > _MOST_CLAIM_SECONDS:
            return np.zeros(len(names), np.bool_), 0
        each = names_as_bytes(names)
        held = np.array([name in claim.names for name in each], np.bool_)
        claim.names.difference_update(each)
        if not claim.names:
            del self._claims[token]
        return held, claim.since

    def invalidate(self, names: Sequence[bytes]) -> None:
        """Write a file that says from when on entries of names may be used."""
        identity, words = _parse(names)
        self._open(identity).invalidate(words)

    def _reading(self, one: FolderEntries, names: Numbers) -> Reading:
        entries = one.find(names)
        damaged, one.damaged = one.damaged, 0
        # Afterwards: no entry may seem to be of the future.
        return Reading(self._clock(), entries, damaged)

    # ── identities ───────────────────────────────────────────────────────────────────────────────────────

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        found = self._about(identity)
        if found is None:
            with suppress(StoreFullError):
                self._files.write(identity, _ABOUT, [json.dumps(about, sort_keys=True).encode()])
                found = self._about(identity)
        return found or about

    def _about(self, identity: str) -> dict[str, str] | None:
        try:
            return read_about(self._files.read(identity, _ABOUT))
        except (FileNotFoundError, DamagedFileError):
            return None

    def contents(self) -> list[StoreContent]:
        found = []
        for identity in self._files.identities():
            one = self._open(identity)
            one.refresh(now=True)
            about = self._about(identity)
            if about is not None or one.segments:
                size = sum(segment.file.size for segment in one.segments)
                found.append(StoreContent(identity, about or {}, one.count(), size))
        return found

    def clear(self, identity: str | None = None) -> int:
        identities = self._files.identities()
        return sum(self._open(one).remove_all() for one in identities if identity in (None, one))

    def flush(self) -> None:
        if self._background.is_own:
            for one in list(self._known.values()):
                one.flush()

    @property
    def is_flushed(self) -> bool:
        return all(one.is_flushed for one in list(self._known.values()))

    def close(self) -> None:
        """Write the collected entries, and close all files."""
        self._renew_after_fork()
        self._background.close(None, drop=True)
        for one in self._known.values():
            with suppress(Exception):
                one.flush()
            one.close()
        self._known.clear()
        self._files.disconnect()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _open(self, identity: str) -> FolderEntries:
        self._renew_after_fork()
        if identity not in self._known:
            self._known[identity] = FolderEntries(identity, self._files, self._clock)
        return self._known[identity]

    def _renew_after_fork(self) -> None:
        """Open everything again in a forked process.

        One of the parent's threads may have held any lock; connections and collected entries are the parent's.
        """
        if not self._background.is_own:
            for one in self._known.values():
                one.close()
            self._files.disconnect()
            self._reset()

    # ── in the background ────────────────────────────────────────────────────────────────────────────────

    def _run_soon(self, seconds: float) -> None:
        # Where no thread can be started, as when the interpreter exits, `flush` writes.
        with suppress(RuntimeError):
            self._background.wake(seconds)

    def _work(self) -> None:
        """Write the collected entries, and compact; called by a thread of its own, the more often, the later."""
        self._wait = min(2 * self._wait, _LAST_FLUSH_SECONDS)
        for one in list(self._known.values()):
            try:
                one.flush()
            except Exception as error:
                # The next call raises it: else it would stay unknown that nothing is stored.
                self._failure = error
            if one.is_to_compact:
                one.is_to_compact = False
                # Another object: this one finds entries meanwhile.
                with suppress(Exception), closing(FolderEntries(one.identity, self._files, self._clock)) as read:
                    read.compact()


_open_stores: weakref.WeakSet[FolderStore] = weakref.WeakSet()


@atexit.register
def _flush_stores() -> None:
    """Write entries that decorated functions have collected, since most are never closed."""
    flush_writers()  # They put entries here.
    for store in list(_open_stores):
        with suppress(Exception):
            store.flush()


def _parse(names: Sequence[bytes]) -> tuple[str, Numbers]:
    """Return the identity of names, and the names as words."""
    size = len(names[0])
    joined = np.frombuffer(b"".join(names), np.uint8)
    if len(joined) != size * len(names):
        raise ValueError("names of several identities")
    each = joined.reshape(-1, size)
    head = each[0, : -_DIGITS - 2]
    if (each[:, : len(head)] != head).any():
        raise ValueError("names of several identities")
    words = names_as_words(each[:, -_DIGITS - 1 : -1].tobytes())
    return head.tobytes().decode().removeprefix(PREFIX).removesuffix(":"), words


def _ends(seconds: npt.NDArray[np.float64], now: float) -> Numbers:
    limited = np.minimum(seconds, ENDLESS / MICROSECONDS / 2)
    ends: Numbers = ((now + limited) * MICROSECONDS).astype(np.int64)
    ends[seconds == math.inf] = ENDLESS
    return ends
