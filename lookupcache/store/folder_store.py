"""`FolderStore`: a store in a folder that all hosts see, or in a bucket of an object store.

Entries that are put together are a file, which never changes; so writers never harm each other, and there are no locks.
Processes do not see each other's claims: two hosts that need a key at the same time both request it.
"""

from __future__ import annotations

import atexit
import json
import math
import random
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lookupcache.background import Background
from lookupcache.cache.keys import Mask
from lookupcache.store.contract import CLAIMED, PREFIX, Reading, Store, StoreContent, StoreFullError, read_about
from lookupcache.store.folder_clock import FolderClock, Moment, elapsed
from lookupcache.store.folder_compaction import choose_segments, compact
from lookupcache.store.folder_files import FULL, Files, Root, random_name
from lookupcache.store.folder_format import (
    ENDLESS,
    MICROSECONDS,
    Entries,
    Numbers,
    Words,
    invalidation,
    names_as_bytes,
    names_as_words,
    segment_parts,
)
from lookupcache.store.folder_segments import INVALIDATION, SEGMENT, FolderSegments
from lookupcache.store.writer import flush_writers

Seconds = npt.NDArray[np.float64]

_ABOUT = "about.json"
_MOST_ABOUT_BYTES = 1 << 20
_DIGITS = 32
_MOST_COLLECTED_BYTES = 8 << 20
_FIRST_FLUSH_SECONDS = 1.0
_LAST_FLUSH_SECONDS = 30.0
_MOST_CLAIMS = 10_000
_MOST_CLAIM_SECONDS = 12 * 3_600.0
"""Rows of an older claim are not written: invalidations are removed some time later."""

_Collected = dict[bytes, tuple[bytes, int, int]]
"""Entries that are not written yet, by name: frame, since when, until when."""


@dataclass
class _Identity:
    """This process's state of an identity."""

    name: str
    files: Files
    clock: FolderClock
    segments: FolderSegments
    collected: _Collected = field(default_factory=dict)
    nbytes: int = 0
    collecting: threading.Lock = field(default_factory=threading.Lock)
    flushing: threading.Lock = field(default_factory=threading.Lock)
    stamp: int = 0
    is_to_compact: bool = False
    cleaned_at: float = field(default_factory=elapsed)


@dataclass
class _Claim:
    """Names that are claimed with a token: ``since`` is when, by the clock of the folder, ``at`` by the own."""

    names: set[bytes]
    since: int
    at: float


class FolderStore(Store):
    """A store in a folder; its calls are made by one thread at a time, see `TimedStore`.

    ``shown`` is the folder's location for `repr`.
    """

    def __init__(self, root: Root, shown: str = "") -> None:
        self._root = root
        self._shown = shown
        self._failure: Exception | None = None
        self._reset()
        _open_stores.add(self)

    def _reset(self) -> None:
        self._known: dict[str, _Identity] = {}
        self._claims: OrderedDict[bytes, _Claim] = OrderedDict()
        self._wait = _FIRST_FLUSH_SECONDS
        self._background = Background(self._work, "lookupcache-folder")

    def __repr__(self) -> str:
        return f"FolderStore({self._shown})"

    # ── entries and claims ───────────────────────────────────────────────────────────────────────────────

    def get(self, names: Sequence[bytes]) -> Reading:
        identity, words = _parse(names)
        with self._open(identity, create=True) as one:
            return self._reading(one, words)

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Note since when names are requested, and read their entries; other processes do not see it."""
        identity, words = _parse(names)
        with self._open(identity, create=True) as one:
            reading = self._reading(one, words)
            # Rows that are requested from now on are newer than all invalidations that were listed.
            since = max(int(one.clock.now().least * MICROSECONDS), one.segments.last_invalidation + 1)
            self._claims[token] = _Claim(set(names_as_bytes(words)), since, elapsed())
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
        with self._open(identity, create=True) as one:
            one.segments.refresh(one.clock)
            ends = _ends(np.array(seconds, np.float64), one.clock.now())
            valid = np.flatnonzero(held & (since > one.segments.valid_after(words)))
            if not one.files.is_writable or not valid.size:
                return 0
            self._collect(one, Entries(words, entries, np.full(len(names), since), ends).take(valid))
            self._keep_small(one)
            return len(valid)

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        self._end(_parse(names)[1], token)

    def _end(self, names: Words, token: bytes) -> tuple[Mask, int]:
        """End the claims on names that a token has; return which of them it had, and since when."""
        claim = self._claims.get(token)
        if claim is None or elapsed() - claim.at > _MOST_CLAIM_SECONDS:
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
        with self._open(identity, create=True) as one:
            self._invalidate(one, words)

    def _invalidate(self, one: _Identity, names: Words | None) -> None:
        one.segments.refresh(one.clock, now=True)
        # Above the time of any claim that was made before, see `claim`.
        time = max(int(one.clock.now().most * MICROSECONDS), one.segments.last_invalidation + 2)
        one.files.write(random_name(INVALIDATION), [invalidation(one.name, names, time)])
        one.segments.refresh(one.clock, now=True)

    # ── identities ───────────────────────────────────────────────────────────────────────────────────────

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        with self._open(identity, create=True) as one:
            found = _read_about(one.files)
            one.clock.now()
            if found is None and one.files.is_writable:
                one.files.write(_ABOUT, [json.dumps(about, sort_keys=True).encode()])
                found = _read_about(one.files)
            return found or about

    def contents(self) -> list[StoreContent]:
        found = []
        for identity in self._root.identities():
            with suppress(FileNotFoundError), self._open(identity, create=False) as one:
                one.segments.refresh(one.clock, now=True)
                about, segments = _read_about(one.files), one.segments.segments
                if about is not None or segments:
                    size = sum(segment.file.size for segment in segments)
                    found.append(StoreContent(identity, about or {}, one.segments.count(one.clock.now()), size))
        return found

    def clear(self, identity: str | None = None) -> int:
        identities = self._root.identities()
        return sum(self._clear(one) for one in identities if identity in (None, one))

    def _clear(self, identity: str) -> int:
        with self._open(identity, create=False) as one:
            now = one.clock.now()
            if not one.files.is_writable:
                raise PermissionError("the folder is read-only")
            one.segments.refresh(one.clock, now=True)
            count, known = one.segments.count(now), one.segments.listed
            # First: entries that another process compacts meanwhile are invalid when they are written.
            self._invalidate(one, None)
            for name in known:
                if name == _ABOUT or name.endswith((SEGMENT, INVALIDATION)):
                    one.files.remove(name)
            one.segments.refresh(one.clock, now=True)
            return count

    def flush(self) -> None:
        if self._background.is_own:
            for one in list(self._known.values()):
                self._flush(one)

    @property
    def is_flushed(self) -> bool:
        return not any(one.collected for one in list(self._known.values()))

    def close(self) -> None:
        """Write the collected entries, and close all files."""
        if not self._background.is_own:
            # The collected entries and the thread are the parent's.
            self._renew_after_fork()
        self._background.close(None, drop=True)
        for one in list(self._known.values()):
            with suppress(Exception):
                self._flush(one)
            self._forget(one)
        self._root.disconnect()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    # ── reading and writing ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _open(self, identity: str, *, create: bool) -> Iterator[_Identity]:
        """Yield an identity; if something fails, its files are opened again by the next call."""
        if not self._background.is_own:
            self._renew_after_fork()
        one = self._known.get(identity)
        try:
            if one is None:
                files = self._root.files(identity, create=create)
                clock = FolderClock(files.touch, files.clock_seconds)
                one = self._known[identity] = _Identity(identity, files, clock, FolderSegments(identity, files))
            yield one
        except OSError as error:
            if error.errno in FULL:
                raise StoreFullError(str(error)) from error
            if one is not None and not one.collected:
                self._forget(one)
            raise

    def _renew_after_fork(self) -> None:
        """Open everything again: one of the parent's threads may have held any lock, and connections are its own."""
        for one in list(self._known.values()):
            self._forget(one)
        self._root.disconnect()
        self._reset()

    def _forget(self, one: _Identity) -> None:
        self._known.pop(one.name, None)
        one.segments.close()
        with suppress(OSError):
            one.files.close()

    def _reading(self, one: _Identity, names: Words) -> Reading:
        # Before the files: an entry that is written meanwhile is in one or the other.
        collected = [one.collected.get(name) for name in names_as_bytes(names)] if one.collected else []
        one.segments.refresh(one.clock)
        now = one.clock.now()
        entries = one.segments.find(names, now)
        if collected:
            valid_after, least_end = one.segments.valid_after(names), int(now.most * MICROSECONDS)
            for position, found in enumerate(collected):
                if found is not None and found[1] > valid_after[position] and found[2] > least_end:
                    entries[position] = found[0]
        damaged, one.segments.damaged = one.segments.damaged, 0
        return Reading(now.most, entries, least=now.least, dropped=damaged)

    def _collect(self, one: _Identity, entries: Entries) -> None:
        """Note entries that are to be written; write them where that is done at once."""
        each = zip(entries.frames, entries.since.tolist(), entries.ends.tolist(), strict=True)
        with one.collecting:
            one.collected.update(zip(names_as_bytes(entries.names), each, strict=True))
            one.nbytes += sum(map(len, entries.frames))
        if one.files.writes_at_once:
            self._flush(one)
        else:
            self._run_soon(0.0 if one.nbytes >= _MOST_COLLECTED_BYTES else self._wait)

    def _flush(self, one: _Identity) -> None:
        """Write the collected entries as a file; until then readers find them in memory."""
        with one.flushing:
            with one.collecting:
                collected, one.nbytes = dict(one.collected), 0
            if not collected:
                return
            try:
                self._write_segment(one, collected)
                one.segments.expire()
            finally:
                with one.collecting:
                    # Entries that were put since stay; a new dict, since readers may go through the old one.
                    left = {name: new for name, new in one.collected.items() if collected.get(name) is not new}
                    one.collected = left

    def _write_segment(self, one: _Identity, collected: _Collected) -> None:
        names = np.frombuffer(b"".join(collected), "<u8").reshape(-1, 2)
        frames, since, ends = zip(*collected.values(), strict=True)
        entries = Entries(names, frames, np.array(since, np.int64), np.array(ends, np.int64))
        # Later than all that are known, which it may replace.
        known = (segment.index.published + 1 for segment in one.segments.segments[:1])
        one.stamp = max(int(one.clock.now().most * MICROSECONDS), one.stamp + 1, *known)
        one.files.write(random_name(SEGMENT), segment_parts(one.name, one.stamp, entries))

    def _keep_small(self, one: _Identity) -> None:
        """Start a compaction if there are many segments, and from time to time."""
        if choose_segments(one.segments.segments) or elapsed() - one.cleaned_at > one.files.clean_seconds:
            one.cleaned_at, one.is_to_compact = elapsed(), True
            # At a random time, so that of several processes the others find that it is done.
            self._run_soon(random.uniform(0.0, _FIRST_FLUSH_SECONDS))

    def _run_soon(self, seconds: float) -> None:
        # Where no thread can be started, as when the interpreter exits, `flush` writes.
        with suppress(RuntimeError):
            self._background.wake(seconds)

    def _work(self) -> None:
        """Write the collected entries, and compact; called by a thread of its own, the more often, the later."""
        self._wait = min(2 * self._wait, _LAST_FLUSH_SECONDS)
        for one in list(self._known.values()):
            try:
                self._flush(one)
            except Exception as error:
                # The next call raises it: else it would stay unknown that nothing is stored.
                self._failure = error
            if one.is_to_compact:
                one.is_to_compact = False
                with suppress(Exception), closing(self._root.files(one.name, create=False)) as files:
                    compact(one.name, files, FolderClock(files.touch, files.clock_seconds))


_open_stores: weakref.WeakSet[FolderStore] = weakref.WeakSet()


@atexit.register
def _flush_stores() -> None:
    """Write entries that decorated functions have collected, since most are never closed."""
    flush_writers()  # They put entries here.
    for store in list(_open_stores):
        with suppress(Exception):
            store.flush()


def _parse(names: Sequence[bytes]) -> tuple[str, Words]:
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


def _ends(seconds: Seconds, now: Moment) -> Numbers:
    limited = np.minimum(seconds, ENDLESS / MICROSECONDS / 2)
    ends: Numbers = ((now.least + limited) * MICROSECONDS).astype(np.int64)
    ends[seconds == math.inf] = ENDLESS
    return ends


def _read_about(files: Files) -> dict[str, str] | None:
    try:
        with closing(files.open(_ABOUT)) as file:
            return read_about(file.read(0, _MOST_ABOUT_BYTES))
    except FileNotFoundError:
        return None
