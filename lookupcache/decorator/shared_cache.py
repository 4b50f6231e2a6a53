"""`SharedCache`: what `cached` shares with other processes of a host, in the files of `lookupcache.host`.

missing in this process ─► found in the files ──────────────────────────────► value, with its true age
                           │ not: claim ──mine──► call ─► publish ─► release ─┘
                           └────────another process's──► wait, and look again ┘
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, finalize, ref

import numpy as np
import pyarrow as pa

from lookupcache.background import Background
from lookupcache.cache import Limits
from lookupcache.cache.keys import KeyBatch
from lookupcache.cache.row_cache import rows_in
from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import Instance, Key, arguments_of
from lookupcache.errors import LookupAdvice, OptionError
from lookupcache.flow.flow import TierCall, Values
from lookupcache.flow.held_claims import HeldClaims
from lookupcache.flow.waiting import Pauses, host_claim_seconds
from lookupcache.functions.value_codec import SUPPORTED, UnsupportedValueError, ValueCodec, dataclasses_of
from lookupcache.host import HostCache, HostUnavailableError
from lookupcache.host.folder import LOCK_SECONDS

if TYPE_CHECKING:
    from collections import Counter

_KEEPER_SECONDS = 0.25
_KEY = [pa.binary()]
_SCHEMA = pa.schema([("value", pa.binary()), ("kind", pa.int8())])
_VALUE, _ROW, _NO_ROWS = 0, 1, 2
"""Kinds of rows: a value, a row of a list, and an empty list."""


Drop = Callable[[Sequence[Key] | None], None]


class SharedCache:
    """The part of a decorated function's cache that all processes of a host share; thread-safe.

    The folder is opened by the first call. Where it cannot be used, a warning says why, and nothing is shared.

    Args:
        function: The decorated function, which other processes find by its module and name.
        config: The options; ``cache_path`` is the folder.
        counters: Where hits, waits and failures are counted.
        clock: The clock of the process's own cache.
        host_clock: The clock of all processes; None for the one that counts from boot.
    """

    def __init__(
        self,
        function: Any,
        config: LookupConfig,
        counters: Counter[str],
        clock: Callable[[], float],
        host_clock: Callable[[], float] | None = None,
    ) -> None:
        self.name = _importable_name(function)
        self.config = config
        self.clock = clock
        # A call that waited for the claim of a process that was stopped still has two thirds of its time.
        self.claim_seconds = host_claim_seconds(config.timeout)
        self._fingerprint = _fingerprint(self.name, config)
        self._codec = ValueCodec(dataclasses_of(function))
        self._limits = Limits.of(config, "host")
        self._counters = counters
        self._host_clock = host_clock
        self._close: Callable[[], object] = _do_nothing
        self._lock = threading.RLock()
        self._claims = HeldClaims(partial(_renew, ref(self)), math.inf, self.claim_seconds)
        self._keeper: Background | None = None
        self._forget_files()
        self._start_without_executor()

    def _start_without_executor(self) -> None:
        # Its own lock, which nobody holds while working on files: an event loop takes it.
        self._executor_lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def _forget_files(self) -> None:
        self._host: HostCache | None = None
        self._is_opened = False
        self._seen = 0

    def reset_after_fork(self) -> None:
        """Drop the threads of the parent process, which do not exist in this process."""
        if not self._lock.acquire(blocking=False):
            # A thread of the parent was at work on them.
            self._forget_files()
        self._lock = threading.RLock()
        self._keeper = None
        self._start_without_executor()

    def close(self) -> None:
        """Release the claims of this process, and close the files; the next call opens them again."""
        self._end_executor()
        with self._lock:
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

    def _end_executor(self) -> None:
        with self._executor_lock:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
            self._executor = None

    def open(self, drop: Drop) -> bool:
        """Open the files, if they are not; return whether they can be used.

        Args:
            drop: Called, in another thread, with keys that another process has invalidated, or None for all.
        """
        host = self._host
        if host is not None and self._keeper is not None:
            # Without the lock: an event loop must not wait for a thread that works on files.
            return not host.is_lost
        with self._lock:
            if not self._is_opened:
                self._is_opened = True
                self._host = self._open()
                self._seen = 0 if self._host is None else self._host.position
            if self._host is not None and self._keeper is None:
                keeper = Background(partial(_keep, ref(self), WeakMethod(drop)), "lookupcache-keeper")
                try:
                    keeper.wake(_KEEPER_SECONDS)
                except RuntimeError:  # As when the interpreter exits; nothing hears what others invalidate.
                    return False
                # A function may be freed without being closed, as the copies in Spark's tasks are.
                self._close = finalize(self, _close, self._host, self._claims, keeper)
                self._close.atexit = False
                self._keeper = keeper
            return self._host is not None and not self._host.is_lost

    def _open(self) -> HostCache | None:
        assert self.config.cache_path is not None
        about = {"table": self.name, "connector": "cached", "keys": "the arguments", "plan": self._fingerprint}
        try:
            return HostCache(
                self.config.cache_path, self._fingerprint, _KEY, _SCHEMA, self._limits,
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
        """Return the work of a call for these keys, which takes so many seconds at most."""
        return SharedCall(self, keys, refresh=refresh, most=most)

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────

    def encode_key(self, key: Key) -> bytes:
        """Return a key as other processes write it; raises OptionError for one that they do not have."""
        values = arguments_of(key)
        if values and type(values[0]) is Instance:
            raise OptionError(
                f"{self.name} is a method, whose objects other processes do not have, so they cannot share its cache.",
                hint="Decorate a function or a static method, or set 'lookup.cache.scope' to worker.",
            )
        try:
            return self._codec.write_key(tuple(values))
        except UnsupportedValueError as error:
            raise self._unsupported_error("is called with", error) from None

    def _unsupported_error(self, does: str, error: UnsupportedValueError) -> OptionError:
        return OptionError(
            f"{self.name} {does} a value that the processes of this host cannot share: {error}.",
            hint=f"Use {SUPPORTED}; or set 'lookup.cache.scope' to worker.",
        )

    # ── finding ──────────────────────────────────────────────────────────────────────────────────────────

    def find(self, keys: Sequence[Key], *, after: float = -math.inf, stale: bool = False) -> tuple[Values[Key], int]:
        """Return the values that were written after a time of the host's clock; with ``stale``, also those too old.

        Also returns the number of the last publication that was there when they were looked up.
        """
        host, shared = self._host, Values[Key]()
        if host is None or not keys:
            return shared, self.position
        with self._lock:
            found = host.find(_batch(map(self.encode_key, keys)), after=after, fresh=not stale)
            # With the lock: another thread may see a later one, among whose values nobody has looked for these keys.
            now, position = host.clock(), host.position
        shift, start = self.clock() - now, 0
        miss_seconds = max(self._limits.miss_seconds, self._limits.stale_seconds)
        values, kinds = (found.rows.column(name).to_pylist() for name in ("value", "kind"))
        for row, count, written in zip(found.positions, found.counts, found.written, strict=True):
            end = start + int(count)
            with suppress(ValueError):
                value = self._value(values[start:end], kinds[start:end])
                # An empty list is stored as one row, whose age limit is that of a known miss.
                if rows_in(value) or now <= written + miss_seconds:
                    shared.values[keys[row]], shared.written[keys[row]] = value, float(written) + shift
            start = end
        return shared, position

    def _value(self, values: list[bytes], kinds: list[int]) -> Any:
        if not values:
            return None
        if kinds[0] == _VALUE:
            return self._codec.read(values[0])
        return [self._codec.read(value) for value in values if kinds[0] == _ROW]

    @property
    def position(self) -> int:
        """The number of the last publication that has been seen."""
        return 0 if self._host is None else self._host.position

    def has_news_since(self, position: int) -> bool:
        """Return whether another process has published something since."""
        return self._host is not None and self._host.has_news_since(position)

    def refresh_threshold(self) -> float:
        """Return when a value must have been written, by the host's clock, so that it need not be refreshed."""
        return -math.inf if self._host is None else self._host.clock() - self._limits.refresh_seconds

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, keys: Sequence[Key], most: float = math.inf) -> list[Key]:
        """Claim keys for so many seconds at most; return those that this process is to request."""
        host, encoded = self._host, [self.encode_key(key) for key in keys]
        if host is None or not keys:
            return list(keys)
        with self._lock:
            mine = host.claim(_batch(encoded), self.claim_seconds)
            self._claims.add([data for data, is_mine in zip(encoded, mine, strict=True) if is_mine], b"", most)
        return [key for key, is_mine in zip(keys, mine, strict=True) if is_mine]

    def release(self, keys: Sequence[Key]) -> None:
        """End this process's claims of keys."""
        with self._lock:
            held = self._claims.remove(map(self.encode_key, keys), b"")
            if held and self._host is not None:
                self._host.release(_batch(held))

    def all_claimed(self, keys: Sequence[Key]) -> bool:
        """Return whether living processes have claimed all of these keys."""
        if self._host is None or self._host.is_lost:
            return False
        with self._lock:
            return bool((self._host.claimants(_batch(map(self.encode_key, keys))) != 0).all())

    def renew(self, encoded: Sequence[bytes]) -> None:
        """Extend claims of this process."""
        with self._lock:
            if self._host is not None:
                self._host.renew(_batch(encoded), self.claim_seconds)

    # ── storing ──────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, answers: dict[Key, Any], since: int, written: Mapping[Key, float]) -> None:
        """Store values for all processes; raises OptionError for one that they cannot read.

        Args:
            answers: The values by key.
            since: `position` when they were requested.
            written: When values were fetched, by the clock of the process's own cache, where that was not just now.
        """
        if self._host is None:
            return
        now, old = self._host.clock(), {key: answers[key] for key in answers.keys() & written.keys()}
        self._publish({key: value for key, value in answers.items() if key not in old}, since, now)
        if old:
            # One time for all of them, the earliest: too high an age only means to look into the store again.
            self._publish(old, since, now - self.clock() + min(written[key] for key in old))

    def _publish(self, answers: dict[Key, Any], since: int, at: float) -> None:
        keys, rows, kinds, counts = [], [], [], []
        for key, value in answers.items():
            if not (self._limits.misses or rows_in(value)):
                continue
            data, kind = self._rows(value)
            keys.append(self.encode_key(key))
            rows += data
            kinds += [kind] * len(data)
            counts.append(len(data))
        if keys and self._host is not None:
            table = pa.table([pa.array(rows, pa.binary()), pa.array(kinds, pa.int8())], schema=_SCHEMA)
            with self._lock:
                self._host.publish(_batch(keys), table, np.array(counts, np.int64), at, since)

    def _rows(self, value: Any) -> tuple[list[bytes], int]:
        try:
            if value is None:
                return [], _VALUE
            if type(value) is not list:
                return [self._codec.write(value)], _VALUE
            return ([self._codec.write(row) for row in value], _ROW) if value else ([b""], _NO_ROWS)
        except UnsupportedValueError as error:
            raise self._unsupported_error("returned", error) from None

    # ── invalidation ─────────────────────────────────────────────────────────────────────────────────────

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Remove keys, or with None all, from the caches of all processes."""
        encoded = None if keys is None else dict.fromkeys(map(self.encode_key, keys))
        with self._lock:
            if self._host is not None:
                self._host.invalidate(None if encoded is None else _batch(encoded))

    def news(self) -> list[Sequence[Key] | None]:
        """Return the keys that processes have invalidated since the last call; None stands for all."""
        with self._lock:
            host = self._host
            if host is None or not (host.is_changed or host.position != self._seen):
                return []
            messages = host.invalidations_since(self._seen)
            self._seen = host.position
        return [None if keys is None else self._decode_keys(keys) for keys in messages]

    def _decode_keys(self, keys: KeyBatch) -> Sequence[Key] | None:
        try:
            return [self._codec.read(data) for data in keys.columns[0].to_pylist()]
        except ValueError:
            return None


def _do_nothing() -> None:
    """Close nothing: there is nothing open."""


def _close(host: HostCache, claims: HeldClaims, keeper: Background) -> None:
    keeper.close(drop=True)
    claims.close()
    host.close()


def _renew(shared: ref[SharedCache], encoded: Sequence[bytes]) -> None:
    if (cache := shared()) is not None:
        cache.renew(encoded)


def _keep(shared: ref[SharedCache], drop: WeakMethod[Drop]) -> float | None:
    """Drop what other processes have invalidated; return when to look again, None after the cache was freed."""
    if (cache := shared()) is None:
        return None
    with suppress(Exception):  # Of a key's own code; what is invalidated later is heard.
        for keys in cache.news():
            if (drop_now := drop()) is not None:
                drop_now(keys)
    return _KEEPER_SECONDS


class SharedCall(TierCall[Key]):
    """One call's keys in the files of the host.

    Args:
        shared: The cache.
        keys: Distinct keys.
        refresh: Whether their old values are served meanwhile.
        most: How long the call may take, in seconds: one that hangs longer is abandoned.
    """

    waits = "host_waits"
    is_source_asked = True

    def __init__(self, shared: SharedCache, keys: Sequence[Key], *, refresh: bool, most: float) -> None:
        super().__init__(keys, shared.encode_key, shared.clock, Pauses.of_host())
        self._shared = shared
        self._most = most
        self._after = shared.refresh_threshold() if refresh else -math.inf
        self._refresh = refresh
        self._mine: list[Key] = []
        # What is requested next is as new as what was seen at this position.
        self._seen: int | None = None

    def look(self, is_over: bool) -> list[Key]:
        """Find keys, if anything has changed since the last look, and claim the others."""
        if self._seen is not None and not is_over and not self._is_worth_a_look(self._seen):
            return []
        self._find(self._after)
        mine = list(self.left) if is_over else self._claim()
        self._mine += mine
        if self._refresh and len(mine) < len(self.left):
            # Another process refreshes them: its old values are served.
            self._refresh, self._after = False, -math.inf
            self._find(-math.inf, without=set(mine))
        return mine

    def _claim(self) -> list[Key]:
        """Claim the keys that are left; whoever had claimed a key has published it before that claim was released."""
        claimed = self._shared.claim(self.left, self._most)
        if not claimed or self._seen is None or not self._shared.has_news_since(self._seen):
            return claimed
        self._find(self._after)
        left = set(self.left)
        self._shared.release([key for key in claimed if key not in left])
        return [key for key in claimed if key in left]

    def _find(self, after: float, without: Set[Key] = frozenset()) -> None:
        found, self._seen = self._shared.find([key for key in self.left if key not in without], after=after)
        self.found.add(found)
        self.left = [key for key in self.left if key not in found.values]

    def _is_worth_a_look(self, position: int) -> bool:
        return self._shared.has_news_since(position) or not self._shared.all_claimed(self.left)

    def publish(self, new: Values[Key]) -> None:
        """Store the values of keys that were requested, and end their claims."""
        try:
            mine = set(self._mine)
            own = {key: value for key, value in new.values.items() if key in mine}
            self._shared.publish(own, self._seen or 0, new.written)
        finally:
            self.release()

    @property
    def has_claims(self) -> bool:
        """Whether keys that were requested are still claimed."""
        return bool(self._mine)

    def release(self) -> None:
        """End the claims of keys that were requested."""
        mine, self._mine = self._mine, []
        self._shared.release(mine)

    def find_stale(self) -> None:
        """Add the old values that may be served for keys whose request has failed."""
        if self._shared.config.stale_if_error is not None:
            self.found.add(self._shared.find(self._mine, stale=True)[0])


def _importable_name(function: Any) -> str:
    """Return the module and name by which all processes know a function; raises OptionError if it has none."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<" in name:
        shown = name or type(function).__qualname__
        raise OptionError(
            f"{shown} has no name by which other processes know it, so they cannot share its cache.",
            hint="Decorate a function or class of a module, or set 'lookup.cache.scope' to worker.",
        )
    if module == "__main__":
        module = os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or "__main__")
    return f"{module}.{name}"


def _fingerprint(name: str, config: LookupConfig) -> str:
    """Return the identity of the cache: the function's name and the options, but for where the folder is."""
    options = {key: value for key, value in config.to_json().items() if key != "lookup.cache.path"}
    identity = json.dumps(["cached", name, options], sort_keys=True, default=str)
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _batch(encoded: Iterable[bytes]) -> KeyBatch:
    return KeyBatch.of([pa.array(list(encoded), pa.binary())], _KEY)
