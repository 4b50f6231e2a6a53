"""Tests a table without Spark: connects, reads a row, and plans a condition."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lookupcache.cache.keys import KeyBatch
from lookupcache.connector import Connector, offers
from lookupcache.errors import ConnectorError, OptionError, PlanError, SchemaError, nearest
from lookupcache.executor.call_group import run_async
from lookupcache.opening import opened
from lookupcache.plan import LookupPlan
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.schema import parse_ddl, shown_type, type_name
from lookupcache.table import LookupTable
from lookupcache.worker.answers import Reader
from lookupcache.worker.full_scan import plan_by_keys

# ── one row ──────────────────────────────────────────────────────────────────────────────────────────────────


def first_row(table: LookupTable, key: Mapping[str, str]) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Connect and return a row of the table or None, and the source's advice for lookups by the same columns.

    The row is looked up by ``key``, which contains the text of each column. Without a key it is read by a scan, and the
    advice is for lookups by the first column. Raises ConnectorError if the source cannot be reached, or cannot be
    scanned without a key; SourceError for a row that does not match the schema.
    """
    connector = table.connector
    if not key and not offers(connector, "scan"):
        raise ConnectorError(
            f"Connector {table.connector_name!r} cannot read a row without a key.",
            hint=f"Pass an existing key, as in --key {table.schema.names[0]}=1.",
        )
    _check_columns(table, key)
    reader = Reader(plan_by_keys(table, list(key) or table.schema.names[:1]), connector.hide)
    asynchronous = connector.runs_async(table.config.async_)
    with opened(connector, asynchronous=asynchronous):
        row = _find_first_row(table.schema.names, _read_rows(connector, reader, key, asynchronous))
        return row, () if table.config.cache == "ALL" else connector.advice(reader.request)


def _check_columns(table: LookupTable, key: Mapping[str, str]) -> None:
    if unknown := [name for name in key if name not in table.schema.names]:
        hint = nearest(unknown[0], table.schema.names, what="columns")
        raise SchemaError(f"Table {table.name!r} has no column {unknown[0]!r}.", hint=hint)


def _read_rows(connector: Connector, reader: Reader, key: Mapping[str, str], asynchronous: bool) -> Iterator[pa.Table]:
    if not key:
        yield from (reader.check(pa.table(batch)) for batch in connector.scan(reader.request))
        return
    keys = _parse_keys(reader.plan.schema, key)
    if asynchronous:
        answer = run_async(_await(connector.lookup_async(reader.request, keys)))
    else:
        answer = connector.lookup(reader.request, keys)
    yield reader.only(KeyBatch.of(keys.columns, reader.key_types), reader.check(answer))


def _find_first_row(names: Sequence[str], answers: Iterator[pa.Table]) -> dict[str, Any] | None:
    rows = (answer.select(names).slice(0, 1).to_pylist()[0] for answer in answers if answer.num_rows)
    return next(rows, None)


def _parse_keys(schema: pa.Schema, key: Mapping[str, str]) -> pa.RecordBatch:
    arrays = []
    for name, text in key.items():
        type_ = schema.field(name).type
        try:
            arrays.append(pa.array([text]).cast(type_))
        except pa.ArrowException as error:
            raise OptionError(f"--key {name}={text}: the value is not a valid {shown_type(type_)}.") from error
    return pa.RecordBatch.from_arrays(arrays, names=list(key))


async def _await(answer: Awaitable[Any]) -> Any:
    return await answer


# ── what would be pushed ─────────────────────────────────────────────────────────────────────────────────────


class _Offline:
    """Replaces Spark in planning; it refuses what only Spark can do."""

    def types(self, expressions: Sequence[str]) -> list[str]:
        """Refuse: only Spark can determine the type of an expression."""
        raise self._refuse(expressions[0])

    def names(self, expressions: Sequence[str]) -> list[list[str]]:
        """Refuse: only Spark gives names."""
        raise self._refuse(expressions[0])

    def star(self, qualifier: str) -> None:
        """Return that no qualifier is known: each means the left side."""

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Refuse: only Spark can evaluate an expression."""
        raise self._refuse(expressions[0])

    def _refuse(self, sql: str) -> PlanError:
        return PlanError(
            f"{sql!r} can only be evaluated by Spark, which this command does not start.", hint="Use plain columns."
        )


def plan_of(
    table: LookupTable, on: str | None, where: str | None, left: str | None, select: Sequence[str] | None = None
) -> LookupPlan:
    """Plan an inner join with a condition; raises PlanError if the condition can only be evaluated by Spark.

    Without ``on``, the table's first column is the key. ``left`` is the schema of the left side; without it, a left
    column has the type of the column it is compared with.
    """
    if left is not None:
        columns = [LeftColumn(field.name, type_name(field.type)) for field in parse_ddl(left)]
    else:
        columns = _left_columns(table, " AND ".join(f"({text})" for text in (on, where) if text))
    if on is None:
        first = table.schema.field(0)
        columns = [*(one for one in columns if one.name != first.name), LeftColumn(first.name, type_name(first.type))]
    condition: str | list[str] = [table.schema.names[0]] if on is None else on
    return plan_join(
        columns, table, on=condition, where=where, select=select or table_columns(table), analyst=_Offline()
    )


def table_columns(table: LookupTable) -> list[str]:
    """Return the table's columns as items of a select list."""
    return [f"`{table.name}`.`{name.replace('`', '``')}`" for name in table.schema.names]


def _left_columns(table: LookupTable, condition: str) -> list[LeftColumn]:
    """Derive the columns of the left side from a condition: those that do not belong to the table."""
    try:
        tree = sqlglot.parse_one(condition, read="spark") if condition else exp.Null()
    except SqlglotError:
        return []
    known = {name.lower(): table.schema.field(name) for name in table.schema.names}
    types: dict[str, str] = {}
    for column in tree.find_all(exp.Column):
        if _is_left(column, table.name, known):
            types.setdefault(column.name, "string")
    for pair in tree.find_all(exp.EQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE):
        for one, other in ((pair.left, pair.right), (pair.right, pair.left)):
            if isinstance(one, exp.Column) and isinstance(other, exp.Column) and one.name in types:
                field = known.get(other.name.lower())
                types[one.name] = types[one.name] if field is None else type_name(field.type)
    return [LeftColumn(name, type_) for name, type_ in types.items()]


def _is_left(column: exp.Column, table: str, known: Mapping[str, Any]) -> bool:
    if column.table:
        return column.table.lower() != table.lower()
    return column.name.lower() not in known


def parse_keys(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts of the form ``column=value``; raises OptionError for another form, or a column that is given twice.

    >>> parse_keys(["id=a=b", "n=1"])
    {'id': 'a=b', 'n': '1'}
    """
    found: dict[str, str] = {}
    for text in texts:
        match = re.fullmatch(r"([^=]+)=(.*)", text, re.DOTALL)
        if match is None:
            raise OptionError(f"--key {text!r} is not a key.", hint="Write it as COLUMN=VALUE, as in --key id=1.")
        if match[1] in found:
            raise OptionError(f"--key {match[1]!r} is given twice.", hint="A row is looked up by one value per column.")
        found[match[1]] = match[2]
    return found
