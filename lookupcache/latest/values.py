"""The latest values of one bucket as an Arrow table: rows are folded in, keys are matched, old values are removed.

Columns of the table, and of rows to fold in:

    k0, k1, …        the key, normalised: NaN and 0.0 are each one value
    v:NAME           the columns that the join reads; null in a row that is not alive
    o:NAME           the columns that order rows, if any
    alive            whether the row is a value; otherwise it only says that older rows of its key are not the latest
    arrived          when its micro-batch began, in microseconds   (table)
    origin, position from which part of the source the row is, and its number there   (rows)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import encode, to_numpy, whole
from lookupcache.cache.keys import KeyBatch, Mask, Positions, match
from lookupcache.errors import LookupRuntimeError

ALIVE, ARRIVED, ORIGIN, POSITION = "alive", "arrived", "origin", "position"


@dataclass(frozen=True)
class BucketLayout:
    """The columns of a bucket's table: types by name of key, value and order columns.

    ``key_names`` are the key columns' names for errors, ``table`` that of the lookup table; ``ttl`` is in microseconds.
    """

    table: str
    keys: dict[str, pa.DataType]
    values: dict[str, pa.DataType]
    orders: dict[str, pa.DataType]
    key_names: tuple[str, ...] = ()
    ttl: int | None = None
    schema: pa.Schema = field(init=False)
    """Columns of a bucket's table."""

    def __post_init__(self) -> None:
        types = {**self.keys, **self.values, **self.orders, ALIVE: pa.bool_(), ARRIVED: pa.int64()}
        object.__setattr__(self, "schema", pa.schema(list(types.items())))

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of rows to fold in."""
        own = {name: self.schema.field(name).type for name in self.schema.names if name != ARRIVED}
        return pa.schema([*own.items(), (ORIGIN, pa.int64()), (POSITION, pa.int64())])

    def normal_keys(self, table: pa.Table) -> tuple[pa.Array, ...]:
        """Return the key columns of rows, normalised."""
        return KeyBatch.of([whole(table.column(name)) for name in self.keys], list(self.keys.values())).columns


def fold(layout: BucketLayout, stored: pa.Table, rows: pa.Table, now: int) -> pa.Table:
    """Return the latest row of each key: of the stored ones, and of rows that arrive in a micro-batch.

    A row is later by the order columns, a null before all values. Where they are equal, or missing, a row that arrives
    is later than a stored one. Of two that arrive, the one with the later place in its part of the source is later: its
    partition or file is `ORIGIN`. Times are in microseconds. Raises LookupRuntimeError where it is undefined which of
    two different rows of a key is later.

    >>> layout = BucketLayout("r", {"k0": pa.string()}, {"v:rate": pa.float64()}, {})
    >>> rows = pa.table({"k0": ["EUR", "USD", "EUR"], "v:rate": [1.1, 1.0, 1.2], "alive": [True] * 3,
    ...     "origin": [0] * 3, "position": [0, 1, 2]})
    >>> fold(layout, layout.schema.empty_table(), rows, 7).select(["k0", "v:rate", "arrived"]).to_pylist()
    [{'k0': 'USD', 'v:rate': 1.0, 'arrived': 7}, {'k0': 'EUR', 'v:rate': 1.2, 'arrived': 7}]
    """
    rows = _with_normal_keys(layout, rows)
    both = _stack(layout, stored, rows, now)
    codes = encode([whole(both.column(name)) for name in layout.keys])
    if not layout.orders:
        _refuse_ambiguous(layout, both, codes)
    order = _order(layout, both, stored.num_rows)
    last = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    last[codes[order]] = order  # Of several assignments to one position numpy keeps the last.
    latest = both.take(pa.array(np.sort(last))).select(layout.schema.names)
    # Without an order, any later row replaces a deleted one: nothing has to be remembered.
    return latest if layout.orders else latest.filter(latest.column(ALIVE))


def without_expired(layout: BucketLayout, stored: pa.Table, now: int, since: int = 0) -> pa.Table:
    """Return the rows that are within the age limit; ages count from ``since`` on."""
    if layout.ttl is None or not stored.num_rows or since > now - layout.ttl:
        return stored
    young = pc.greater(stored.column(ARRIVED), now - layout.ttl)
    return stored if pc.all(young).as_py() else stored.filter(young)


@dataclass(frozen=True, eq=False)
class LatestValues:
    """The values of a bucket after a micro-batch, which all its left rows find."""

    layout: BucketLayout
    table: pa.Table

    @classmethod
    def of(cls, layout: BucketLayout, values: pa.Table) -> LatestValues:
        """Return the rows of a bucket that are values."""
        return cls(layout, values.filter(values.column(ALIVE)) if values.num_rows else values)

    def find(self, left_keys: Sequence[pa.Array], left_orders: Sequence[pa.Array]) -> Positions:
        """Return for each left row the position of its value in the table, -1 where it has none."""
        if not self.table.num_rows:
            return np.full(len(left_keys[0]), -1, np.int64)
        keys = KeyBatch.of(left_keys, list(self.layout.keys.values())).columns
        return match([whole(self.table.column(name)) for name in self.layout.keys], keys)


@dataclass(frozen=True, eq=False)
class Moments:
    """The rows of a bucket that may be the latest for some left row of a micro-batch, where both sides have an order.

    ``values`` are the bucket's values after the micro-batch. Then come the ``rows`` of keys that got new ones: their
    stored rows, and the rows that have arrived. ``codes`` has the number of each row's key.
    """

    layout: BucketLayout
    values: pa.Table
    rows: pa.Table
    codes: Positions
    table: pa.Table
    """The rows that `find` returns positions of: ``values``, then ``rows``."""

    @classmethod
    def of(cls, layout: BucketLayout, stored: pa.Table, arrived: pa.Table, values: pa.Table, now: int) -> Moments:
        """Return the rows of a bucket: those stored before the micro-batch, and those that arrive in it."""
        arrived = _with_normal_keys(layout, arrived)
        names = list(layout.keys)
        fresh = [whole(arrived.column(name)) for name in names]
        first = _first_of_each(encode(fresh))
        changed = match([key.take(pa.array(first)) for key in fresh], [whole(stored.column(name)) for name in names])
        stored = stored.filter(pa.array(changed >= 0))
        both = _stack(layout, stored, arrived, now)
        rows = both.take(pa.array(_order(layout, both, stored.num_rows)))
        codes = match([key.take(pa.array(first)) for key in fresh], [whole(rows.column(name)) for name in names])
        return cls(layout, values, rows, codes, pa.concat_tables([values, rows.select(layout.schema.names)]))

    def find(self, left_keys: Sequence[pa.Array], left_orders: Sequence[pa.Array]) -> Positions:
        """Return for each left row the position of the latest row of its key then, -1 where that is no value.

        That is the latest of the stored value and of the micro-batch's rows whose order is not above the left row's.
        """
        keys = KeyBatch.of(left_keys, list(self.layout.keys.values())).columns
        positions = match([whole(self.values.column(name)) for name in self.layout.keys], keys)
        firsts = _first_of_each(self.codes)
        own = match([whole(self.rows.column(name)).take(pa.array(firsts)) for name in self.layout.keys], keys)
        left = np.flatnonzero(own >= 0)
        orders = [column.take(pa.array(left)) for column in left_orders]
        at = self._last_before(self.codes[firsts][own[left]], orders)
        positions[left] = np.where(at < 0, -1, at + self.values.num_rows)
        alive = to_numpy(whole(self.table.column(ALIVE)))
        return np.where((positions >= 0) & alive[positions], positions, -1)

    def _last_before(self, codes: Positions, orders: Sequence[pa.Array]) -> Positions:
        """Return for each left row, by the number of its key, the position among the rows of its latest one, or -1."""
        count, names = self.rows.num_rows, list(self.layout.orders)
        columns: dict[str, pa.Array] = {"code": pa.array(np.concatenate([self.codes, codes]))}
        for name, column in zip(names, orders, strict=True):
            both = pa.concat_arrays([whole(self.rows.column(name)), column])
            columns |= {f"{name} is there": both.is_valid(), name: both}
        # Rows are in their order already, so their position decides among equals; left rows come after equal ones.
        columns["position"] = pa.array(np.arange(count + len(codes)))
        order = _sorted(columns)
        last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        found = np.empty(count + len(codes), np.int64)
        found[order] = np.where(last < 0, -1, order[last])
        at = found[count:]
        at = np.where((at >= 0) & (self.codes[at] == codes), at, -1)
        # A stored row was there before, whatever its order.
        stored = np.full(int(self.codes.max(initial=-1)) + 1, -1, np.int64)
        before = np.flatnonzero(to_numpy(whole(self.rows.column(ORIGIN))) < 0)
        stored[self.codes[before]] = before
        return np.maximum(at, stored[codes])


def _first_of_each(codes: Positions) -> Positions:
    """Return the first position of each number."""
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return first


def _stack(layout: BucketLayout, stored: pa.Table, arrived: pa.Table, now: int) -> pa.Table:
    """Return stored rows and then those that arrive, with all columns of both."""
    return pa.concat_tables(
        [
            stored.append_column(ORIGIN, _repeat(-1, stored)).append_column(POSITION, _repeat(-1, stored)),
            arrived.append_column(ARRIVED, _repeat(now, arrived)),
        ],
        promote_options="default",
    )


def _with_normal_keys(layout: BucketLayout, rows: pa.Table) -> pa.Table:
    for name, column in zip(layout.keys, layout.normal_keys(rows), strict=True):
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _order(layout: BucketLayout, both: pa.Table, stored: int) -> Positions:
    """Return the positions of all rows, of each key the latest last."""
    columns: dict[str, pa.Array] = {}
    for name in layout.orders:
        order = whole(both.column(name))
        # Arrow sorts nulls last, unless an option says otherwise, which newer versions want in another place.
        columns |= {f"{name} is there": order.is_valid(), name: order}
    columns |= {"fresh": pa.array(np.arange(both.num_rows) >= stored)}
    columns |= {name: whole(both.column(name)) for name in (ORIGIN, POSITION)}
    return _sorted(columns)


def _sorted(columns: Mapping[str, pa.Array]) -> Positions:
    """Return the positions of the rows in the order of all columns, the first one first."""
    table, keys = pa.table(columns), [(name, "ascending") for name in columns]
    # Arrow's positions are unsigned: NumPy 2.5 combines them with no negative number.
    return to_numpy(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)


def _refuse_ambiguous(layout: BucketLayout, both: pa.Table, codes: Positions) -> None:
    """Raise LookupRuntimeError where rows of one key come from several parts of the source and differ."""
    origins = to_numpy(whole(both.column(ORIGIN)))
    fresh = np.flatnonzero(origins >= 0)
    last = _last_of_each(codes[fresh], origins[fresh], to_numpy(whole(both.column(POSITION)))[fresh])
    rows = fresh[last]
    _, first, owners = np.unique(codes[rows], return_index=True, return_inverse=True)
    others = rows[first][owners]
    several = rows != others
    rows, others = rows[several], others[several]
    for name in (*layout.values, ALIVE):
        column = whole(both.column(name))
        differs = np.flatnonzero(~_are_same(column.take(pa.array(rows)), column.take(pa.array(others))))
        if len(differs):
            raise _ambiguous(layout, both.slice(int(rows[differs[0]]), 1))


def _last_of_each(codes: Positions, origins: Positions, positions: Positions) -> npt.NDArray[np.int64]:
    """Return the last position of each pair of key and origin."""
    order = np.lexsort((positions, origins, codes))
    end = np.ones(len(order), np.bool_)
    end[:-1] = (np.diff(codes[order]) != 0) | (np.diff(origins[order]) != 0)
    return order[end]


def _are_same(one: pa.Array, other: pa.Array) -> Mask:
    """Return which values of two columns are the same; null is null, and NaN is NaN."""
    if pa.types.is_nested(one.type):
        return np.array([repr(a) == repr(b) for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], np.bool_)
    same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return to_numpy(same)


def _ambiguous(layout: BucketLayout, row: pa.Table) -> LookupRuntimeError:
    shown = ", ".join(f"{name} = {row.column(n)[0].as_py()!r}" for n, name in enumerate(layout.key_names))
    of_key = f" of {shown}" if shown else ""
    return LookupRuntimeError(
        f"Two values{of_key} reached table {layout.table!r} in one micro-batch from different files or partitions of "
        "the stream, and nothing tells which is later.",
        hint="Pass order_by=[…] to LookupTable.from_stream, a column that orders the rows. Or read the stream so that "
        "the rows of a key are in one partition, or one file per micro-batch (maxFilesPerTrigger).",
    )


def _repeat(value: int, table: pa.Table) -> pa.Array:
    return pa.array(np.full(table.num_rows, value, np.int64))
