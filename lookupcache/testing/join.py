"""A lookup join without Spark, as a worker runs it; the checks use it to call a connector."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lookupcache import expr
from lookupcache.connector import Connector
from lookupcache.plan import ConstantKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.testing.samples import JSON
from lookupcache.worker.full_scan import plan_by_keys
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import ERROR, Layout, Runner
from lookupcache.worker.source import Source

if TYPE_CHECKING:
    from lookupcache.worker.dead_letters import DeadLetters

Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The request of a join: rows by ``key`` columns, with ``constants`` and ``filters``.

    If ``columns`` is None, all columns are requested.
    """

    key: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    constants: Mapping[str, Any] | None = None
    filters: tuple[expr.Expr, ...] = ()


def plan_of(table: LookupTable, wanted: Wanted) -> LookupPlan:
    """Plan an inner join with a left side of key columns only; filters that the connector accepts are pushed."""
    accepted = list(table.connector.accept(list(wanted.filters))) if wanted.filters else []
    types = {name: table.schema.field(name).type for name in wanted.constants or {}}
    constants = (wanted.constants or {}).items()
    return replace(
        plan_by_keys(table, wanted.key),
        constants=tuple(ConstantKey(column=name, value=expr.literal(value, types[name])) for name, value in constants),
        pushed=tuple(one for one in wanted.filters if one in accepted),
        calc=tuple(one for one in wanted.filters if one not in accepted),
        columns=tuple(table.schema.names) if wanted.columns is None else wanted.columns,
    )


class LocalJoin:
    """Joins keys with a table in this process; as a context manager it disconnects at the end.

    ``connector`` replaces the table's own, for example by a `Recorder` or a flaky connector. The rows have the
    requested columns. If the table's options name columns for them, the age in seconds and the error (a struct of code
    and message) follow. Dead letters are written, too.

    >>> squares = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"], function=lambda n: [(n, n * n)])
    >>> with LocalJoin(squares, Wanted(key=("n",))) as join:
    ...     join.rows([(2,), (3,)])
    [(2, 4), (3, 9)]
    """

    def __init__(self, table: LookupTable, wanted: Wanted, connector: Connector | None = None) -> None:
        self.plan = plan_of(table, wanted)
        self.source = Source(self.plan, table.connector if connector is None else connector)
        self._layout = Layout(wanted.key, tuple(range(len(wanted.key))))
        self._width = len(wanted.key)
        self._letters: DeadLetters | None = None
        if (path := table.config.dead_letter_path) is not None:
            from lookupcache.worker.dead_letters import DeadLetters  # It imports Spark, which most checks do without.

            self._letters = DeadLetters(path, table.name, wanted.key)
        self._connect()
        self._fields = [table.schema.field(name) for name in wanted.key]
        marks = [(table.config.age_column, pa.float64()), (table.config.error_column, ERROR)]
        self._added = [pa.field(name, type_) for name, type_ in marks if name is not None]

    def _connect(self) -> None:
        self._is_closed = False
        self._lookup = lookup_of(self.source)
        self._runner = Runner(self.plan, self._layout, self._lookup, self._letters)

    def __enter__(self) -> LocalJoin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, and drop the cache in this process; the next lookup connects again."""
        if not self._is_closed:
            self._is_closed = True
            self._lookup.disconnect()

    def table(self, keys: Iterable[Row]) -> pa.Table:
        """Return the rows of these keys."""
        rows = list(keys)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=True)]
        left = pa.RecordBatch.from_arrays(arrays, names=[field.name for field in self._fields])
        return self.join(left)

    def join(self, left: pa.RecordBatch) -> pa.Table:
        """Return the rows of a left side that has the key's columns."""
        if self._is_closed:
            self._connect()
        batches = [batch.select(range(self._width, batch.num_columns)) for batch in self._runner.run([left])]
        schema = pa.schema([*self._runner.schema, *self._added])
        joined = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches]
        return pa.Table.from_batches(joined, schema)

    def rows(self, keys: Iterable[Row]) -> list[Row]:
        """Return the rows of these keys as tuples."""
        return tuples(self.table(keys))


def expected_rows(rows: pa.Table, wanted: Wanted, keys: Iterable[Row]) -> list[Row]:
    """Return the rows that a join of these keys must return, computed independently: filtered, with equal keys.

    >>> people = pa.table({"id": [1, 2, 2], "name": ["ann", "bob", "bo"]})
    >>> expected_rows(people, Wanted(key=("id",), columns=("name",)), [(2,), (7,)])
    [('bob',), ('bo',)]
    """
    types = {field.name: field.type for field in rows.schema}
    constants = [
        expr.Call("=", (expr.Column("right", name, types[name]), expr.literal(value, types[name])))
        for name, value in (wanted.constants or {}).items()
    ]
    kept = expr.keep(rows, [*constants, *wanted.filters])
    requested = {tuple(map(_to_comparable, key)) for key in keys}
    own = zip(*(kept.column(name).to_pylist() for name in wanted.key), strict=True)
    mask = [None not in key and tuple(map(_to_comparable, key)) in requested for key in own]
    found = kept.filter(pa.array(mask, pa.bool_()))
    return tuples(found if wanted.columns is None else found.select(list(wanted.columns)))


def difference(found: Sequence[Row], expected: Sequence[Row], schema: pa.Schema) -> str | None:
    """Return how two lists of rows differ, ignoring their order, or None if they do not.

    NaN equals NaN, -0.0 does not equal 0.0, and JSON texts are equal if their parsed values are.

    >>> names = pa.schema([("name", pa.string())])
    >>> difference([("b",), ("a",)], [("a",), ("b",)], names)
    >>> print(difference([("a",)], [("b",)], names))
    1 row is missing: ('b',)
    1 row is not in the table: ('a',)
    """
    json_columns = [number for number, field in enumerate(schema) if (field.metadata or {}) == JSON]
    left, right = (_count_rows(rows, json_columns) for rows in (found, expected))
    lines = [_describe_rows(right - left, "missing"), _describe_rows(left - right, "not in the table")]
    return "\n".join(line for line in lines if line) or None


def tuples(table: pa.Table) -> list[Row]:
    """Return a table's rows as tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _to_comparable(value: Any) -> Any:
    """Return a value whose Python equality is Spark's equality."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def _count_rows(rows: Iterable[Row], json_columns: Sequence[int]) -> Counter[str]:
    return Counter(_row_text(row, json_columns) for row in rows)


def _row_text(row: Row, json_columns: Sequence[int]) -> str:
    shown = [
        _normalize_json(value) if number in json_columns else _sort_maps(value) for number, value in enumerate(row)
    ]
    return repr(tuple(shown))


def _normalize_json(text: str | None) -> Any:
    """Return a JSON text with sorted members, or the text itself if it is not JSON."""
    try:
        return None if text is None else json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def _sort_maps(value: Any) -> Any:
    """Return a value with the entries of maps sorted, since their order is undefined."""
    if isinstance(value, dict):
        return {name: _sort_maps(member) for name, member in value.items()}
    if isinstance(value, list):
        items = [_sort_maps(item) for item in value]
        return sorted(items, key=repr) if items and all(isinstance(item, tuple) for item in items) else items
    return value


def _describe_rows(rows: Counter[str], what: str) -> str:
    if not rows:
        return ""
    count = rows.total()
    texts = [text if len(text) <= 200 else f"{text[:200]}…" for text in list(rows)[:5]]
    more = ", …" if len(rows) > 5 else ""
    return f"{count} row{' is' if count == 1 else 's are'} {what}: {', '.join(texts)}{more}"
