"""`RowStore`: the rows of keys in a store, a batch of keys at a time.

keys ─► names ─► entries ─► rows of those that are intact, of the same columns, and young enough, with their true age
rows ─► frames ─► entries, each with its own expiry

What keys and rows are, a `Codec` knows: Arrow columns for a plan, Python values for `cached`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from lookupcache.arrays import from_numpy
from lookupcache.cache.keys import Mask, Positions
from lookupcache.cache.limits import Limits
from lookupcache.config import LookupConfig
from lookupcache.errors import OptionError
from lookupcache.lazy import cached_property
from lookupcache.metrics import Counters
from lookupcache.plan import LookupPlan, schema_of
from lookupcache.redaction import hidden, url_secrets
from lookupcache.store.answer_time import most_seconds
from lookupcache.store.contract import Reading
from lookupcache.store.frames import Floats
from lookupcache.store.guard import Clock, GuardedStore
from lookupcache.store.locations import open_store, url_of
from lookupcache.store.names import identity_of, is_of_other_schema, names_of_keys, schema_hash
from lookupcache.store.rows import StoredRows, from_frames, to_frames

_DRIFT = 0.001


@dataclass(frozen=True)
class Known(StoredRows):
    """Rows from the store, with their times by the own clock; entries of the ``damaged`` keys could not be read."""

    damaged: Positions


def store_limits(config: LookupConfig) -> Limits:
    """Return the limits of the cache, with lifetimes that are no longer than those of the store.

    >>> config = LookupConfig(cache="TTL", expire_after_write=60, store="redis://h", store_expire_after_write=5)
    >>> store_limits(config).write_seconds
    5.0
    """
    limits, own = Limits.of(config), config.store_expire_after_write
    if own is None:
        return limits
    return replace(limits, write_seconds=min(limits.write_seconds, own), miss_seconds=min(limits.miss_seconds, own))


def may_be_used(limits: Limits, ages: Floats, counts: Positions, is_refreshed: Mask) -> Mask:
    """Return which entries may be used; one that is due for a refresh is fetched again instead.

    ``is_refreshed`` says which are being fetched elsewhere: these are used until they expire.
    """
    lifetimes = np.where(counts > 0, limits.write_seconds, limits.miss_seconds)
    young = (ages >= 0) & (ages <= lifetimes) & ((ages < limits.refresh_seconds) | is_refreshed)
    return young & (limits.misses | (counts > 0))


@dataclass(frozen=True)
class Codec:
    """Keys and rows as names and entries, for rows that ``columns`` describe; ``none`` are the rows of no key.

    - ``names``: returns the names of keys under an identity.
    - ``read``: returns the rows of those keys whose entries are intact, and of the key itself.
    - ``write``: returns the entries of keys, from their rows, the numbers of these, and the store's time.
    - ``take``: returns the rows of some keys, from those of all, their numbers, and the positions of these keys.
    """

    columns: str
    none: Any
    names: Callable[[str, Any], list[bytes]]
    read: Callable[[Sequence[bytes | None], Any], StoredRows]
    write: Callable[[Any, Any, Positions, float], list[bytes]]
    take: Callable[[Any, Positions, Positions], Any]

    @classmethod
    def of_plan(cls, plan: LookupPlan, key_types: Sequence[pa.DataType]) -> Codec:
        """Return the codec of a plan's rows, as Arrow columns."""
        schema = plan.columns_schema
        columns, hashed = schema_of(plan), schema_hash(schema_of(plan))
        return cls(
            columns, schema.empty_table(), names_of_keys,
            lambda entries, keys: from_frames(entries, keys, key_types, schema, hashed),
            lambda keys, rows, counts, written: to_frames(keys, rows, counts, written, hashed),
            _take_rows,
        )  # fmt: skip


class RowStore:
    """The rows of keys in a store that is ``guarded``: whatever fails there is counted, and lookups go on.

    ``identify`` is called when the identity is needed; ``what`` is the user of the store for messages, ``about`` what
    describes the entries apart from their columns. Ages are by ``clock``.
    """

    def __init__(
        self, config: LookupConfig, codec: Codec, identify: Callable[[], str], what: str, about: dict[str, str],
        counters: Counters, clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        assert config.store is not None
        secrets = url_secrets(url_of(config.store))
        self.counters = counters
        self.clock = clock
        self.guarded = GuardedStore(
            open_store(config.store, config.store_timeout, most_seconds(config)), counters, what,
            lambda text: hidden(text, secrets), config.timeout, most_seconds(config),
        )  # fmt: skip
        self._codec = codec
        self._identify = identify
        self._limits = store_limits(config)
        self._what = what
        self._about = about | {"columns": codec.columns, "schema": f"{schema_hash(codec.columns):016x}"}
        self._is_described = False
        # A second run finds all; in a first one, this costs its first batch a round trip.
        self.finds_most = True
        self._known_since = -math.inf
        self._read: tuple[float, float] | None = None  # The store's clock, and the own one after it was read.

    @classmethod
    def of_plan(
        cls, plan: LookupPlan, key_types: Sequence[pa.DataType], counters: Counters, clock: Clock,
        source: str | None = None,
    ) -> RowStore:  # fmt: skip
        """Return the rows of a plan's keys; ``source`` is the identity of the source, that of the plan by default."""
        name, identity = "pinned" if plan.config.store_name is not None else "", identity_of(plan, source)
        about = {"table": plan.table, "connector": plan.connector, "name": name}
        codec = Codec.of_plan(plan, list(key_types))
        return cls(plan.config, codec, lambda: identity, f"Table {plan.table!r}", about, counters, clock)

    @cached_property
    def identity(self) -> str:
        """The identity of the entries."""
        return self._identify()

    def names(self, keys: Any) -> list[bytes]:
        return self._codec.names(self.identity, keys)

    def put(
        self, keys: Any, names: Sequence[bytes], rows: Any, counts: Positions, token: bytes, *, at_once: bool = False
    ) -> None:
        """Store the rows of keys that were claimed with a token, and fetched just now; end the claims then.

        Soon, in a thread, or ``at_once``.
        """
        written = self._store_time()
        is_stored = ((counts > 0) | self._limits.misses) & (written is not None)
        stored = np.flatnonzero(is_stored)
        self.guarded.release([names[row] for row in np.flatnonzero(~is_stored).tolist()], token)
        if not len(stored) or written is None:
            return
        seconds = np.where(counts[stored] > 0, self._limits.write_seconds, self._limits.miss_seconds).tolist()
        taken = keys if len(stored) == len(keys) else keys.take(stored)
        names = [names[row] for row in stored.tolist()]
        make = partial(self._codec.write, taken, rows, counts[stored], written)
        if at_once:
            self.guarded.put(names, make(), seconds, token)
        else:
            nbytes = rows.nbytes + sum(column.nbytes for column in taken.columns)
            self.guarded.put_later(names, seconds, token, nbytes, make)

    def _store_time(self) -> float | None:
        """Return the store's time, rather too early than too late; None if its clock was never read.

        So an entry that is dated by it seems older than it is, and never younger.
        """
        if self._read is None:
            return None
        # The two clocks may not run at the same speed: an entry of the future would not be used.
        return self._read[0] + max(self.clock() - self._read[1], 0.0) * (1 - _DRIFT)

    def take(self, rows: Any, counts: Positions, positions: Positions) -> Any:
        """Return the rows of some keys, from those of all."""
        return rows if len(positions) == len(counts) else self._codec.take(rows, counts, positions)

    def invalidate(self, keys: Any) -> None:
        """Remove keys that have changed; with None, any may have, and rows that were stored until now are not used."""
        is_done = keys is not None and (not len(keys) or self.guarded.invalidate(self.names(keys)))
        if not is_done or self._known_since == math.inf:
            self._forget_known()

    def clear(self) -> None:
        """Remove all entries of the identity; without the store, they stay, and none of them is used here."""
        if not self.guarded.clear(self.identity):
            self._forget_known()
        self._is_described = False

    def _forget_known(self) -> None:
        """Use nothing that was stored until now, and store nothing that is being fetched."""
        self.guarded.void_claims()
        self._known_since = self.clock()

    def distrust(self) -> None:
        """Use no rows until `invalidate` is called: while the source's changes are not reported, any may be old."""
        self._known_since = math.inf

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def known(self, keys: Any, reading: Reading | None, before: float, is_refreshed: Mask | None = None) -> Known:
        """Return the rows of entries that may be used.

        ``before`` is the time before the entries were read. Another process fetches those again that are
        ``is_refreshed``, so that they are used until they expire.
        """
        if reading is None:
            return self._nothing()
        self._read = (reading.now, self.clock())
        if not any(reading.entries):
            return self._nothing()
        found = self._codec.read(reading.entries, keys)
        there = [number for number, entry in enumerate(reading.entries) if entry is not None]
        damaged = np.setdiff1d(np.array(there, np.int64), found.positions)
        # Counted from before the request: so no age is below the true one.
        ages = reading.now - found.written
        refreshed = np.zeros(len(ages), np.bool_) if is_refreshed is None else is_refreshed[found.positions]
        allowed = may_be_used(self._limits, ages, found.counts, refreshed) & (before - ages > self._known_since)
        found = found.take(np.flatnonzero(allowed))
        self.counters.add("store_dropped", reading.dropped)
        self.counters.add("store_hits", len(found.positions))
        return Known(found.positions, found.rows, found.counts, before - (reading.now - found.written), damaged)

    def _nothing(self) -> Known:
        none = np.zeros(0, np.int64)
        return Known(none, self._codec.none, none, none.astype(np.float64), none)

    def describe(self) -> None:
        """Note in the store what the entries are, once; raises OptionError if others use a pinned name for others."""
        if self._is_described:
            return
        found = self.guarded.describe(self.identity, self._about)
        self._is_described = found is not None
        if found is not None and is_of_other_schema(found, self._about["schema"]):
            raise OptionError(
                f"{self._what}: the entries in the store named {self.identity!r} have other columns: "
                f"{found.get('columns', '?')}; this lookup has {self._codec.columns}.",
                hint="Choose another 'lookup.cache.store.name', or remove the entries with 'lookupcache cache clear'.",
            )


def _take_rows(rows: pa.Table, counts: Positions, positions: Positions) -> pa.Table:
    kept = np.zeros(len(counts), np.bool_)
    kept[positions] = True
    return rows.take(from_numpy(np.flatnonzero(np.repeat(kept, counts))))
