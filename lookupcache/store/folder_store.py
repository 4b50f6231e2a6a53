"""`FolderStore`: a store in a folder that all hosts see, or in a bucket of an object store.

Entries that are put together are a file, which never changes; so writers never harm each other. On a mounted file
system a lock makes claims and what `clear` and `invalidate` do exact; object stores have no claims.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EDQUOT, ENOSPC

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Mask
from lookupcache.store.contract import CLAIMED, PREFIX, Content, Reading, Store, StoreFullError
from lookupcache.store.folder_claims import CLAIM, FolderClaims
from lookupcache.store.folder_clock import FolderClock, Moment, elapsed
from lookupcache.store.folder_files import Files, LocalFiles, Root, random_name
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
from lookupcache.store.folder_merge import choose_segments, clean_folder, merge_segments
from lookupcache.store.folder_segments import INVALIDATION, SEGMENT, Segments
from lookupcache.store.writer import flush_writers
from lookupcache.thread_start import start_thread

Seconds = npt.NDArray[np.float64]

_ABOUT = "about.json"
_MOST_ABOUT_BYTES = 1 << 20
_DIGITS = 32
_FULL = {ENOSPC, EDQUOT}
_MOST_PENDING_BYTES = 8 << 20
_FIRST_FLUSH_SECONDS = 1.0
_LAST_FLUSH_SECONDS = 30.0


@dataclass
class _Pending:
    """Entries that are not written yet, by name: frame, since, end."""

    entries: dict[bytes, tuple[bytes, int, int]] = field(default_factory=dict)
    nbytes: int = 0


@dataclass
class _Identity:
    """What this process knows of an identity."""

    name: str
    files: Files
    clock: FolderClock
    segments: Segments
    pending: _Pending = field(default_factory=_Pending)
    pending_lock: threading.Lock = field(default_factory=threading.Lock)
    flushing: threading.Lock = field(default_factory=threading.Lock)
    stamp: int = 0
    to_merge: Sequence[str] = ()
    is_to_clean: bool = False
    cleaned_at: float = field(default_factory=elapsed)


class FolderStore(Store):
    """A store in a folder; its calls are made by one thread at a time, see `TimedStore`.

    Args:
        root: The folder.
        timeout: How long to wait for the folder's lock, in seconds.
        shown: The folder's location, for `repr`.
    """

    def __init__(self, root: Root, timeout: float, shown: str = "") -> None:
        self._root = root
        self._timeout = timeout
        self._shown = shown
        self._claims = FolderClaims()
        self._known: dict[str, _Identity] = {}
        self._process = os.getpid()
        self._background = _Background(self._work)
        self._failure: Exception | None = None
        _open_stores.add(self)

    def __repr__(self) -> str:
        return f"FolderStore({self._shown})"

    # ── entries and claims ───────────────────────────────────────────────────────────────────────────────

    def get(self, names: Sequence[bytes]) -> Reading:
        """Return the entries of names."""
        identity, words = _parse(names)
        with self._open(identity, create=True) as one:
            one.segments.refresh(one.clock)
            return self._reading(one, words)

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names under the folder's lock, and read their entries as they are then.

        Without locks every name is claimed: then only the processes of a host, by its cache, request a key once.
        """
        identity, words = _parse(names)
        with self._open(identity, create=True) as one, one.files.lock(self._timeout):
            one.segments.refresh(one.clock, now=one.files.has_locks)
            now, states = one.clock.now(), [CLAIMED] * len(names)
            since = int(now.least * MICROSECONDS)
            if one.files.has_locks:
                states = self._claims.states(identity, one.files, one.segments, words, token, now)
                # Under the lock all invalidations until now are known, and what is requested from now on is newer.
                since = max(since, one.segments.last_invalidation + 1)
            mine = np.array([state == CLAIMED for state in states], np.bool_)
            if mine.any() and one.files.is_writable:
                self._claims.hold(identity, one.files, words[mine], token, since, seconds)
            return states, self._reading(one, words)

    def renew(self, names: Sequence[bytes], token: bytes, seconds: float) -> None:
        """Prolong the claims of this process."""
        identity, words = _parse(names)
        with self._open(identity, create=False) as one:
            if one.files.has_locks:
                self._claims.renew(identity, one.files, words)

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        """Write entries as a file, or where a file takes long, collect them; end their claims."""
        identity, words = _parse(names)
        with self._open(identity, create=True) as one:
            if not one.files.is_writable:
                return 0
            try:
                return self._put(one, words, entries, np.array(seconds, np.float64), token)
            except Exception:
                # Else others would wait for entries that do not come.
                with suppress(OSError), one.files.lock(self._timeout):
                    self._claims.end(one.files, words, token)
                raise

    def _put(self, one: _Identity, names: Words, frames: Sequence[bytes], seconds: Seconds, token: bytes) -> int:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        held, since = self._claims.held(token, names)
        now, kept = one.clock.now(), np.flatnonzero(held)
        new = Entries(names, frames, np.full(len(names), since), _ends(seconds, now))
        # Before the lock, which all writers need: it is rare that a claim was lost.
        aside = self._write_aside(one, new.take(kept), now) if kept.size else None
        try:
            with one.files.lock(self._timeout):
                one.segments.refresh(one.clock, now=one.files.has_locks)
                own = np.flatnonzero(held & self._is_valid(one, names, since, token))
                if len(own) == len(kept):
                    self._publish(one, aside)
                    aside = None
                elif own.size:
                    self._publish(one, self._write_aside(one, new.take(own), now))
                self._claims.end(one.files, names, token)
        finally:
            if isinstance(aside, str):
                one.files.remove(aside)
        self._keep_small(one)
        return len(own)

    def _is_valid(self, one: _Identity, names: Words, since: int, token: bytes) -> Mask:
        """Return which names have not been invalidated since they were claimed."""
        valid: Mask = since > one.segments.valid_after(names)
        if one.files.has_locks and not self._claims.has_file(one.files, token):
            valid[:] = False
        return valid

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        """End claims."""
        identity, words = _parse(names)
        with self._open(identity, create=False) as one, one.files.lock(self._timeout):
            self._claims.end(one.files, words, token)

    def invalidate(self, names: Sequence[bytes]) -> None:
        """Write a file that says from when on entries of names may be used."""
        identity, words = _parse(names)
        with self._open(identity, create=True) as one:
            self._invalidate(one, words)

    def _invalidate(self, one: _Identity, names: Words | None) -> None:
        with one.files.lock(self._timeout):
            one.segments.refresh(one.clock, now=True)
            # Above the time of any claim that was made before, see `claim`.
            time = max(int(one.clock.now().most * MICROSECONDS), one.segments.last_invalidation + 2)
            one.files.write(random_name(INVALIDATION), [invalidation(one.name, names, time)])
            one.segments.refresh(one.clock, now=True)

    # ── identities ───────────────────────────────────────────────────────────────────────────────────────

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        """Return what describes an identity; if there is nothing yet, write it."""
        with self._open(identity, create=True) as one:
            found = _read_about(one.files)
            if found is not None or not one.files.is_writable:
                return found or about
            with one.files.lock(self._timeout):
                found = _read_about(one.files)
                if found is None:
                    one.files.write(_ABOUT, [json.dumps(about, sort_keys=True).encode()])
            return found or _read_about(one.files) or about

    def contents(self) -> list[Content]:
        """Return what lies in the folder."""
        found = []
        for identity in self._root.identities():
            try:
                with self._open(identity, create=False) as one:
                    one.segments.refresh(one.clock, now=True)
                    about, segments = _read_about(one.files), one.segments.segments
                    if about is not None or segments:
                        size = sum(segment.file.size for segment in segments)
                        found.append(Content(identity, about or {}, one.segments.count(one.clock.now()), size))
            except FileNotFoundError:
                continue
        return found

    def clear(self, identity: str | None = None) -> int:
        """Remove all entries and claims of an identity, or of all; what is being fetched is not written."""
        if identity is None:
            return sum(self.clear(one) for one in self._root.identities())
        if identity not in self._root.identities():
            return 0
        with self._open(identity, create=False) as one:
            return self._clear(one)

    def _clear(self, one: _Identity) -> int:
        if not one.files.is_writable:
            raise PermissionError("the folder is read-only")
        one.segments.refresh(one.clock, now=True)
        count = one.segments.count(one.clock.now())
        known = set(one.segments.listed)
        self._invalidate(one, None)
        with one.files.lock(self._timeout):
            for name in one.files.names():
                is_new = name.endswith(INVALIDATION) and name not in known
                if name == _ABOUT or (name.endswith((SEGMENT, INVALIDATION, CLAIM)) and not is_new):
                    one.files.remove(name)
            one.segments.refresh(one.clock, now=True)
        return count

    def flush(self) -> None:
        """Write what was collected."""
        if self._process == os.getpid():
            for one in list(self._known.values()):
                self._flush(one)

    @property
    def is_flushed(self) -> bool:
        """Whether nothing is collected that is not written."""
        return not any(one.pending.entries for one in list(self._known.values()))

    def close(self) -> None:
        """Write what was collected, and close all files."""
        if self._process != os.getpid():
            # What was collected is the parent's, and so is the thread.
            self._renew_after_fork()
        self._background.stop()
        for one in list(self._known.values()):
            with suppress(Exception):
                self._flush(one)
            one.segments.close()
            with suppress(OSError):
                one.files.close()
        self._known.clear()
        self._root.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    # ── reading and writing ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _open(self, identity: str, *, create: bool) -> Iterator[_Identity]:
        """Yield an identity; if something fails, its files are opened again by the next call."""
        if self._process != os.getpid():
            self._renew_after_fork()
        one = self._known.get(identity)
        try:
            if one is None:
                files = self._root.files(identity, create=create)
                clock = FolderClock(files.touch, files.clock_seconds)
                one = self._known[identity] = _Identity(identity, files, clock, Segments(identity, files))
            yield one
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFullError(str(error)) from error
            if one is not None and isinstance(one.files, LocalFiles) and not isinstance(error, TimeoutError):
                self._forget(one)
            raise

    def _renew_after_fork(self) -> None:
        """Open everything again: the locks are the parent's, and one of its threads may have held any other."""
        for one in self._known.values():
            one.segments.close()
            with suppress(OSError):
                one.files.close_inherited()
        self._process, self._known, self._root = os.getpid(), {}, self._root.again()
        self._background = _Background(self._work)

    def _forget(self, one: _Identity) -> None:
        self._known.pop(one.name, None)
        one.segments.close()
        with suppress(OSError):
            one.files.close()

    def _reading(self, one: _Identity, names: Words) -> Reading:
        now = one.clock.now()
        # Before the files: what is written meanwhile is in one or the other.
        collected = [one.pending.entries.get(name) for name in names_as_bytes(names)] if one.pending.entries else []
        entries = one.segments.find(names, now)
        if one.segments.is_outdated:
            one.segments.refresh(one.clock, now=True)
            entries = one.segments.find(names, now)
        if collected:
            valid_after, least_end = one.segments.valid_after(names), int(now.most * MICROSECONDS)
            for position, found in enumerate(collected):
                if found is not None and found[1] > valid_after[position] and found[2] > least_end:
                    entries[position] = found[0]
        damaged, one.segments.damaged = one.segments.damaged, 0
        return Reading(now.most, entries, least=now.least, dropped=damaged)

    def _write_aside(self, one: _Identity, entries: Entries, now: Moment) -> str | Entries:
        """Write entries as a file that nobody reads yet; where files take long, return them."""
        if not one.files.writes_at_once:
            return entries
        return one.files.write_aside(segment_parts(one.name, self._stamp(one, now), entries))

    def _publish(self, one: _Identity, aside: str | Entries | None) -> None:
        if isinstance(aside, str):
            one.files.publish(aside, random_name(SEGMENT))
        elif aside is not None:
            self._collect(one, aside)

    def _collect(self, one: _Identity, entries: Entries) -> None:
        each = zip(
            names_as_bytes(entries.names), entries.frames, entries.since.tolist(), entries.ends.tolist(), strict=True
        )
        with one.pending_lock:
            for name, frame, since, end in each:
                one.pending.entries[name] = (frame, since, end)
                one.pending.nbytes += len(frame)
        self._background.run_soon(at_once=one.pending.nbytes >= _MOST_PENDING_BYTES)

    def _flush(self, one: _Identity) -> None:
        """Write what was collected as a file; until then it is found where it was collected."""
        with one.flushing:
            with one.pending_lock:
                pending = dict(one.pending.entries)
            if not pending:
                return
            try:
                self._write_segment(one, pending)
                one.segments.is_outdated = True
            finally:
                self._drop_pending(one, pending)

    def _write_segment(self, one: _Identity, collected: dict[bytes, tuple[bytes, int, int]]) -> None:
        names = np.frombuffer(b"".join(collected), "<u8").reshape(-1, 2)
        frames, since, ends = zip(*collected.values(), strict=True)
        entries = Entries(names, frames, np.array(since, np.int64), np.array(ends, np.int64))
        stamp = self._stamp(one, one.clock.now())
        one.files.write(random_name(SEGMENT), segment_parts(one.name, stamp, entries))

    def _stamp(self, one: _Identity, now: Moment) -> int:
        """Return the time of a new segment: later than of all that are known, which it may replace."""
        known = one.segments.segments[:1]
        one.stamp = max(int(now.most * MICROSECONDS), one.stamp + 1, *(last.index.published + 1 for last in known))
        return one.stamp

    def _drop_pending(self, one: _Identity, written: dict[bytes, tuple[bytes, int, int]]) -> None:
        """Drop what was collected, but for what was put since."""
        with one.pending_lock:
            left = {name: new for name, new in one.pending.entries.items() if written.get(name) is not new}
            one.pending = _Pending(left, sum(len(frame) for frame, _, _ in left.values()))

    def _keep_small(self, one: _Identity) -> None:
        """Start a merge if there are many segments; remove what has expired from time to time."""
        if elapsed() - one.cleaned_at > one.files.clean_seconds:
            one.cleaned_at = elapsed()
            if one.files.writes_at_once:
                clean_folder(one.files, one.segments, one.clock.now())
            else:
                one.is_to_clean = True  # By the thread that writes.
        if isinstance(one.files, LocalFiles):
            one.to_merge = choose_segments(one.segments.segments)
            if one.to_merge:
                self._background.run_soon(at_once=True)

    def _work(self) -> None:
        """Write what was collected, and merge; called by a thread of its own."""
        for one in list(self._known.values()):
            try:
                self._flush(one)
            except Exception as error:
                # The next call raises it: else nobody would hear that nothing is stored.
                self._failure = error
            with suppress(Exception):
                names, one.to_merge = one.to_merge, []
                if names:
                    self._merge(one.name, names)
                if one.is_to_clean:
                    one.is_to_clean = False
                    clean_folder(one.files, one.segments, one.clock.now())

    def _merge(self, identity: str, names: Sequence[str]) -> None:
        files = self._root.files(identity, create=False)
        try:
            if isinstance(files, LocalFiles):
                merge_segments(identity, files, FolderClock(files.touch, files.clock_seconds), names)
        finally:
            files.close()


_open_stores: weakref.WeakSet[FolderStore] = weakref.WeakSet()


@atexit.register
def _flush_stores() -> None:
    """Write what was collected by functions that are cached, which nobody closes."""
    flush_writers()  # They put entries here.
    for store in list(_open_stores):
        with suppress(Exception):
            store.flush()


class _Background:
    """Runs work in a thread, which ends when there is none; the more often it runs, the longer it waits."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._urgent = threading.Event()
        self._is_due = False
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self._wait = _FIRST_FLUSH_SECONDS

    def run_soon(self, *, at_once: bool) -> None:
        """Run the work at once, or after some time."""
        with self._lock:
            self._is_due = True
            if at_once:
                self._urgent.set()
            if self._thread is None and not self._is_stopped:
                # Where none can be started, as when the interpreter exits, `flush` writes.
                with suppress(RuntimeError):
                    thread = threading.Thread(target=self._run, name="lookupcache-folder", daemon=True)
                    start_thread(thread)
                    self._thread = thread

    def stop(self) -> None:
        """Wait for the thread to end."""
        with self._lock:
            self._is_stopped = True
            self._urgent.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._is_stopped = False

    def _run(self) -> None:
        while True:
            self._urgent.wait(self._wait)
            with self._lock:
                self._urgent.clear()
                if not self._is_due or self._is_stopped:
                    self._thread = None
                    return
                self._is_due = False
            self._wait = min(2 * self._wait, _LAST_FLUSH_SECONDS)
            self._work()


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
        file = files.open(_ABOUT)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(file.read(0, _MOST_ABOUT_BYTES))
    except ValueError:
        return None
    finally:
        file.close()
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None
