"""Trying a table out, without Spark: what a definition says, whether the source answers, what would be pushed.

TOML ─► definition ─► schema (given or inferred) ─► connect ─► one row
                                              └─► plan of a condition
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lookupcache.cache.keys import KeyBatch
from lookupcache.calls.flight import run_async
from lookupcache.connector import Connector, offers
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, PlanError, SchemaError, nearest
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.redaction import hidden
from lookupcache.schema import parse_ddl, type_name
from lookupcache.table import LookupTable
from lookupcache.worker.answers import Reader

_KNOWN = ("name", "schema", "options")


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A table as a TOML file describes it: ``schema`` is None where the source is to tell."""

    name: str
    schema: str | None
    options: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Definition:
        """Read ``name``, ``schema`` and the table ``[options]``; the name is by default that of the file.

        Raises OptionError for a file that is no TOML, or says anything else.
        """
        try:
            data = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OptionError(f"{str(path)!r} is no TOML: {error}.") from error
        if unknown := [key for key in data if key not in _KNOWN]:
            hint = nearest(unknown[0], _KNOWN, what="keys") + " Options stand under [options]."
            raise OptionError(f"{str(path)!r} has no use for {unknown[0]!r}.", hint=hint)
        options = data.get("options")
        if not isinstance(options, Mapping):
            raise OptionError(
                f"{str(path)!r} has no [options].", hint='Write [options], and under it connector = "sql".'
            )
        schema = data.get("schema")
        return cls(name=str(data.get("name", path.stem)), schema=schema, options=dict(_flat(options)))

    def table(self) -> LookupTable:
        """Return the lookup table, its schema inferred where none is given; raises what is wrong with it."""
        return LookupTable(self.name, self.schema, self.options)


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield options as text; in TOML a dot in a bare key makes a table of its own."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value).lower() if isinstance(value, bool) else str(value)


# ── one row ──────────────────────────────────────────────────────────────────────────────────────────────────


def first_row(table: LookupTable, key: Mapping[str, str]) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Connect and return a row of the table, or None where there is none: of this key, or else of a scan.

    Then follows what the source says would make lookups by this key, or else by the first column, faster.

    ``key`` gives the text of each column. Raises ConnectorError for a source that cannot be reached, and where
    there is no key and the connector cannot scan; SourceError for a row that does not fit the schema.
    """
    connector = table.connector
    if not key and not offers(connector, "scan"):
        raise ConnectorError(
            f"Connector {table.connector_name!r} reads no row without a key.",
            hint=f"Give one that is there, as in --key {table.schema.names[0]}=1.",
        )
    reader = Reader(
        _plan(table, list(key) or table.schema.names[:1]), lambda text: hidden(text, connector.secret_values())
    )
    asynchronous = connector.runs_async(table.config.async_)
    connector.resolve()
    with _told(connector):
        _finish(connector.open, asynchronous)
        try:
            row = _first(table.schema.names, _answers(connector, reader, key, asynchronous))
            return row, () if table.config.cache == "ALL" else connector.advice(reader.request)
        finally:
            _finish(connector.close, asynchronous)


def _plan(table: LookupTable, key: Sequence[str]) -> LookupPlan:
    if unknown := [name for name in key if name not in table.schema.names]:
        hint = nearest(unknown[0], table.schema.names, what="columns")
        raise SchemaError(f"Table {table.name!r} has no column {unknown[0]!r}.", hint=hint)
    return LookupPlan(
        table=table.name,
        connector=table.connector_name,
        source=table.source,
        schema=table.schema,
        how="inner",
        keys=tuple(FieldKey(column=name, sql=f"l.`{name}`") for name in key),
        columns=tuple(table.schema.names),
    )


def _answers(connector: Connector, reader: Reader, key: Mapping[str, str], asynchronous: bool) -> Iterator[pa.Table]:
    if not key:
        yield from (reader.check(pa.table(batch)) for batch in connector.scan(reader.request))
        return
    keys = _keys(reader.plan.schema, key)
    if asynchronous:
        answer = run_async(_awaited(connector.lookup_async(reader.request, keys)))
    else:
        answer = connector.lookup(reader.request, keys)
    yield reader.only(KeyBatch.of(keys.columns, reader.key_types), reader.check(answer))


def _first(names: Sequence[str], answers: Iterator[pa.Table]) -> dict[str, Any] | None:
    rows = (answer.select(names).slice(0, 1).to_pylist()[0] for answer in answers if answer.num_rows)
    return next(rows, None)


def _keys(schema: pa.Schema, key: Mapping[str, str]) -> pa.RecordBatch:
    """Read the key's values from their texts."""
    arrays = []
    for name, text in key.items():
        type_ = schema.field(name).type
        try:
            arrays.append(pa.array([text]).cast(type_))
        except pa.ArrowException as error:
            raise OptionError(f"--key {name}={text}: this is no {type_name(type_).upper()}.") from error
    return pa.RecordBatch.from_arrays(arrays, names=list(key))


@contextmanager
def _told(connector: Connector) -> Iterator[None]:
    """Turn what a driver raises into a ConnectorError without secrets; lookupcache's own errors pass."""
    try:
        yield
    except LookupCacheError as error:
        text = hidden(str(error), connector.secret_values())
        if text != str(error):
            raise type(error)(text) from None
        raise
    except Exception as error:
        text = hidden(str(error), connector.secret_values())
        raise ConnectorError(f"The source cannot be read: {type(error).__name__}: {text}.") from None


def _finish(method: Any, asynchronous: bool) -> None:
    """Call open or close, on the event loop where lookups run there."""

    async def on_the_loop() -> None:
        result = method()
        if inspect.isawaitable(result):
            await result

    if asynchronous:
        run_async(on_the_loop())
    else:
        method()


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


# ── what would be pushed ─────────────────────────────────────────────────────────────────────────────────────


class _Offline:
    """Stands in for Spark, which is not there to be asked."""

    def types(self, expressions: Sequence[str]) -> list[str]:
        """Refuse: only Spark can type what is more than a column."""
        raise self._refused(expressions[0])

    def names(self, expressions: Sequence[str]) -> list[str]:
        """Refuse: only Spark gives names."""
        raise self._refused(expressions[0])

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Refuse: only Spark can compute."""
        raise self._refused(expressions[0])

    def _refused(self, sql: str) -> PlanError:
        return PlanError(f"{sql!r} is for Spark to judge, which this command does without.", hint="Try plain columns.")


def plan_of(
    table: LookupTable, on: str | None, where: str | None, left: str | None, select: Sequence[str] | None = None
) -> LookupPlan:
    """Plan an inner join under a condition; without ``on``, by the table's first column.

    ``left`` is the left side's schema; without it, a left column has the type of the table's column that it is compared
    with. ``select`` are columns of the table, by default all. Raises PlanError where the condition needs Spark.
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
    """Return the table's columns as a select list has them."""
    return [f"`{table.name}`.`{name.replace('`', '``')}`" for name in table.schema.names]


def _left_columns(table: LookupTable, condition: str) -> list[LeftColumn]:
    """Guess the left side from the columns in a condition that are not the table's."""
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


def parse_key(text: str) -> tuple[str, str]:
    """Read ``column=value``.

    >>> parse_key("id=a=b")
    ('id', 'a=b')
    """
    found = re.fullmatch(r"([^=]+)=(.*)", text, re.DOTALL)
    if found is None:
        raise OptionError(f"--key {text!r} is no key.", hint="Write it as COLUMN=VALUE, as in --key id=1.")
    return found[1], found[2]
