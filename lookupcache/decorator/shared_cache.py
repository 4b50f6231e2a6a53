"""`SharedCache`: the values that `cached` shares with other processes of a host, in the files of `lookupcache.host`.

missing in this process ─► found in the files ──────────────────────────────► value, with its true age
                           │ not: claim ──mine──► call ─► publish ─► release ─┘
                           └────────another process's──► wait, and look again ┘
"""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, finalize, ref

import numpy as np
import pyarrow as pa

from lookupcache.background import Background
from lookupcache.cache import Limits
from lookupcache.cache.keys import KeyBatch, Mask, Positions
from lookupcache.cache.row_cache import rows_in
from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import Key
from lookupcache.decorator.values import Drop, Tier, Values, at, repeated
from lookupcache.errors import LookupAdvice
from lookupcache.flow.flow import NO_KEYS, TierCall
from lookupcache.flow.held_claims import HeldClaims
from lookupcache.flow.waiting import HOST_PAUSES, Pauses, host_claim_seconds
from lookupcache.host import Found, HostCache, HostUnavailableError
from lookupcache.host.folder import LOCK_SECONDS
from lookupcache.host.host_search import HostSearch
from lookupcache.plan import digest

if TYPE_CHECKING:
    from collections import Counter

_KEEPER_SECONDS = 0.25
_KEY = [pa.binary()]
_SCHEMA = pa.schema([("value", pa.binary()), ("kind", pa.int8())])
_VALUE, _ROW, _NO_ROWS = 0, 1, 2
"""Kinds of rows: a value, a row of a list, and an empty list."""


class SharedCache(Tier):
    """The part of a decorated function's cache that all processes of a host share; thread-safe.

    The folder is opened by the first call. Where it cannot be used, a warning says why, and nothing is shared.
    ``identify`` is called when the folder is opened. All processes share ``host_clock``; None is the one that counts
    from boot.
    """

    without = "set 'lookup.cache.scope' to worker"

    def __init__(
        self,
        function: Any,
        config: LookupConfig,
        identify: Callable[[], str],
        counters: Counter[str],
        clock: Callable[[], float],
        host_clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(function)
        self.config = config
        self.clock = clock
        # A call that waited for the claim of a process that was stopped still has two thirds of its time.
        self.claim_seconds = host_claim_seconds(config.timeout)
        self._identify = identify
        self.limits = Limits.of(config, "host")
        self._counters = counters
        self._host_clock = host_clock
        self._close: Callable[[], object] = lambda: None
        self.lock = threading.RLock()
        self.claims = HeldClaims(partial(_renew, ref(self)), math.inf, self.claim_seconds)
        self._keeper: Background | None = None
        self._host: HostCache | None = None
        self._forget_files()
        self._start_without_executor()

    def _start_without_executor(self) -> None:
        # An event loop takes this lock, so no thread holds it while it works on files.
        self._executor_lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def _forget_files(self) -> None:
        # Calls go on with a cache that was closed as if it were empty.
        self._is_opened = False
        self._seen = 0

    def reset_after_fork(self) -> None:
        if not self.lock.acquire(blocking=False):
            # A thread of the parent was at work on them.
            self._forget_files()
        self.lock = threading.RLock()
        self._keeper = None
        self._start_without_executor()

    def close(self) -> None:
        with self._executor_lock:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
            self._executor = None
        with self.lock:
            self._close()
            self._keeper = None
            self._forget_files()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do work on files in the one thread for it, so that it does not block an event loop; also after `close`."""
        with self._executor_lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "lookupcache shared cache")
            with suppress(RuntimeError):
                return self._executor.submit(work, *arguments)
        # The interpreter exits, and its threads take no more work: it is done here.
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except BaseException as error:
            done.set_exception(error)
        return done

    def finish(self, work: Callable[[], object]) -> None:
        """Do work on files without waiting for it: in the thread, after what it does just now, if there is one."""
        if self._executor is None:
            work()
        else:
            self.submit(work)

    def open(self, drop: Drop) -> bool:
        """Open the files, if they are not; return whether they can be used."""
        host = self._host
        if host is not None and self._keeper is not None:
            # Without the lock: an event loop must not wait for a thread that works on files.
            return not host.is_lost
        with self.lock:
            if not self._is_opened:
                self._host = self._open()
                self._is_opened = True
                self._seen = 0 if self._host is None else self._host.position
            if self._host is not None and self._keeper is None:
                keeper = Background(partial(_keep, ref(self), WeakMethod(drop)), "lookupcache-keeper")
                try:
                    keeper.wake(_KEEPER_SECONDS)
                except RuntimeError:  # As when the interpreter exits; invalidations of others are then not noticed.
                    return False
                # A function may be freed without being closed, as the copies in Spark's tasks are.
                self._close = finalize(self, _close, self._host, self.claims, keeper)
                self._close.atexit = False
                self._keeper = keeper
            return self._host is not None and not self._host.is_lost

    def _open(self) -> HostCache | None:
        assert self.config.cache_path is not None
        parts = [self._identify(), dataclasses.asdict(self.limits)]
        if self.config.store is not None:
            from lookupcache.store.locations import entries_of  # Functions without a store do without it.

            parts += entries_of(self.config)
        fingerprint = digest(parts)
        about = {"table": self.name, "connector": "cached", "keys": "the arguments", "plan": fingerprint}
        try:
            return HostCache(
                self.config.cache_path, fingerprint, _KEY, _SCHEMA, self.limits,
                about=about, clock=self._host_clock, counters=self._counters,
                lock_seconds=min(LOCK_SECONDS, self.config.timeout / 10),
            )  # fmt: skip
        except HostUnavailableError as error:
            warnings.warn(
                f"{self.name}: each process has its own cache, because they cannot share one: {error}.",
                LookupAdvice,
                stacklevel=2,
            )
            return None

    def call(self, keys: Sequence[Key], *, refresh: bool, most: float) -> SharedCall:
        assert self._host is not None, "it is open, or was"
        return SharedCall(self, self._host, keys, refresh=refresh, most=most)

    # ── values ───────────────────────────────────────────────────────────────────────────────────────────

    def read(self, host: HostCache, found: Found, now: float) -> Iterator[tuple[int, Any, float]]:
        """Yield number, value and time of the keys that were found at a time of the host's clock."""
        ahead, start = self.clock() - host.clock(), 0
        miss_seconds = max(self.limits.miss_seconds, self.limits.stale_seconds)
        values, kinds = (found.rows.column(name).to_pylist() for name in ("value", "kind"))
        for row, (count, written) in enumerate(zip(found.counts, found.written, strict=True)):
            end = start + int(count)
            with suppress(ValueError):
                value = self._value(values[start:end], kinds[start:end])
                # An empty list is stored as one row, whose age limit is that of a known miss.
                if rows_in(value) or now <= written + miss_seconds:
                    yield row, value, float(written) + ahead
            start = end

    def _value(self, values: list[bytes], kinds: list[int]) -> Any:
        if not values:
            return None
        if kinds[0] == _VALUE:
            return self.codec.read(values[0])
        return [self.codec.read(value) for value in values if kinds[0] == _ROW]

    def rows(self, value: Any) -> tuple[list[bytes], int]:
        """Return the rows that a value is stored as, and their kind; raises OptionError for one that cannot be read."""
        if value is None:
            return [], _VALUE
        rows = value if type(value) is list else [value]
        encoded = [self.encode(self.codec.write, row, "returned") for row in rows]
        if type(value) is list:
            return (encoded, _ROW) if encoded else ([b""], _NO_ROWS)
        return encoded, _VALUE

    def renew(self, encoded: Sequence[bytes]) -> None:
        """Extend claims of this process."""
        with self.lock:
            if self._host is not None:
                self._host.renew(_batch(encoded), self.claim_seconds)

    # ── invalidation ─────────────────────────────────────────────────────────────────────────────────────

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        encoded = None if keys is None else dict.fromkeys(map(self.encode_key, keys))
        with self.lock:
            if self._host is not None:
                self._host.invalidate(None if encoded is None else _batch(encoded))

    def news(self) -> list[Sequence[Key] | None]:
        """Return the keys that processes have invalidated since the last call; None stands for all."""
        with self.lock:
            host = self._host
            if host is None or not (host.is_changed or host.position != self._seen):
                return []
            messages = host.invalidations_since(self._seen)
            self._seen = host.position
        return [None if keys is None else self._decode_keys(keys) for keys in messages]

    def _decode_keys(self, keys: KeyBatch) -> Sequence[Key] | None:
        try:
            return [self.codec.read(data) for data in keys.columns[0].to_pylist()]
        except ValueError:
            return None


def _close(host: HostCache, claims: HeldClaims, keeper: Background) -> None:
    if sys.is_finalizing():
        return  # Threads were ended wherever they were, perhaps with a lock; files close with the process.
    keeper.close(drop=True)
    claims.close()
    host.close()


def _renew(shared: ref[SharedCache], encoded: Sequence[bytes]) -> None:
    if (cache := shared()) is not None:
        cache.renew(encoded)


def _keep(shared: ref[SharedCache], drop: WeakMethod[Drop]) -> float | None:
    """Drop keys that other processes have invalidated; return when to look again, None after the cache was freed."""
    if (cache := shared()) is None:
        return None
    with suppress(Exception):  # A key's own code may raise; the next messages follow.
        for keys in cache.news():
            if (drop_now := drop()) is not None:
                drop_now(keys)
    return _KEEPER_SECONDS


class SharedCall(HostSearch, TierCall[Values]):
    """One call's keys in the files of the host; ``found`` has the values from there.

    With ``refresh``, old values are served meanwhile. A call that hangs for longer than ``most`` seconds is abandoned.
    """

    def __init__(
        self, shared: SharedCache, host: HostCache, keys: Sequence[Key], *, refresh: bool, most: float
    ) -> None:
        encoded = list(map(shared.encode_key, keys))
        after = host.clock() - shared.limits.refresh_seconds if refresh else -math.inf
        HostSearch.__init__(self, host, _batch(encoded), shared.claim_seconds, after=after, lock=shared.lock)
        TierCall.__init__(self, len(keys), shared.clock, Pauses(*HOST_PAUSES), repeated(encoded))
        self.found = Values()
        self._keys = keys
        self._shared = shared
        self._most = most
        self._mine = NO_KEYS
        # Its own: after an invalidation, another call may have claimed the same keys.
        self._token = object()

    def look(self, is_over: bool) -> Positions:
        mine = super().look(is_over)
        self._mine = np.concatenate([self._mine, mine])
        if self.left.size and self._after > -math.inf:
            # Another process refreshes them: its old values are served.
            self._after = -math.inf
            self.left = self._find(self.left)
        return mine

    def _take(self, positions: Positions, found: Found, now: float) -> Positions:
        rows = []
        for row, value, written in self._shared.read(self.host, found, now):
            key = self._keys[positions[row]]
            self.found.values[key], self.found.written[key] = value, written
            rows.append(row)
        return positions[rows]

    def _claim(self, keys: KeyBatch) -> Mask:
        with self._shared.lock:
            mine = super()._claim(keys)
            self._shared.claims.add(_encoded(keys.take(np.flatnonzero(mine))), self._token, self._most)
        return mine

    def _release(self, keys: KeyBatch) -> None:
        with self._shared.lock:
            if held := self._shared.claims.remove(_encoded(keys), self._token):
                super()._release(_batch(held))

    def publish(self, positions: Positions, new: Values) -> None:
        try:
            self._publish(np.intersect1d(positions, self._mine), new)
        finally:
            self.release()

    def _publish(self, positions: Positions, new: Values) -> None:
        keys, misses = at(self._keys, positions), self._shared.limits.misses
        kept = [number for number, key in enumerate(keys) if misses or rows_in(new.values[key])]
        if not kept:
            return
        now, ahead = self.host.clock(), self.clock() - self.host.clock()
        written = [min(now, new.written.get(keys[number], math.inf) - ahead) for number in kept]
        values = [self._shared.rows(new.values[keys[number]]) for number in kept]
        kinds = [kind for rows, kind in values for _ in rows]
        rows = [row for rows, _ in values for row in rows]
        table = pa.table([pa.array(rows, pa.binary()), pa.array(kinds, pa.int8())], schema=_SCHEMA)
        counts = np.array([len(rows) for rows, _ in values], np.int64)
        with self._shared.lock:
            stored = self._at(positions[kept])
            self.host.publish(stored, table, counts, np.array(written), self._seen or 0)

    @property
    def has_claims(self) -> bool:
        return bool(self._mine.size)

    def release(self) -> None:
        mine, self._mine = self._mine, NO_KEYS
        self._release(self._at(mine))

    def find_stale(self) -> None:
        if self._shared.config.stale_if_error is not None:
            self._after = -math.inf
            self._find(self._mine, stale=True)


def _batch(encoded: Iterable[bytes]) -> KeyBatch:
    return KeyBatch.of([pa.array(list(encoded), pa.binary())], _KEY)


def _encoded(keys: KeyBatch) -> list[bytes]:
    return keys.columns[0].to_pylist()
