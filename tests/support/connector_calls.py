"""Calls of a connector, and a left join with a table as a worker makes it, in the process of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from lookupcache.connector import Connector, LookupRequest
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

Rows = list[tuple[Any, ...]]


def request(keys: Iterable[str], columns: Iterable[str] = (), **rest: Any) -> LookupRequest:
    return LookupRequest(table="t", key_columns=tuple(keys), columns=tuple(columns), **rest)


def keys_of(connector: Connector, names: Iterable[str], *keys: tuple[Any, ...]) -> pa.RecordBatch:
    """Return keys, given as tuples, as a batch of these columns."""
    fields = [connector.schema.field(name) for name in names]
    columns = zip(*keys, strict=True) if keys else [()] * len(fields)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def answered(connector: Connector, wanted: LookupRequest, *keys: tuple[Any, ...]) -> Rows:
    """Look keys up, given as tuples; return the rows as tuples, in the order of the answer."""
    answer = connector.lookup(wanted, keys_of(connector, wanted.key_columns, *keys))
    assert answer.column_names == list(wanted.fields)
    return [tuple(row.values()) for row in answer.to_pylist()]


def rows_for(connector: Connector, wanted: LookupRequest, *keys: tuple[Any, ...]) -> Rows:
    """Return the same, sorted."""
    return sorted(answered(connector, wanted, *keys), key=repr)


def tuples(table: Any) -> Rows:
    """Return the rows of a table or batch as tuples, sorted."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def scanned(connector: Connector, wanted: LookupRequest) -> Rows:
    """Return all rows of a table, sorted."""
    schema = pa.schema([connector.schema.field(name) for name in wanted.fields])
    return tuples(pa.Table.from_batches(connector.scan(wanted), schema))


def looked_up(
    table: LookupTable, keys: Iterable[Any], *columns: str, times: int = 1, between: Callable[[], None] = lambda: None
) -> Rows:
    """Left join keys with a table, some times; return the rows of the last."""
    plan = LookupPlan(
        table=table.name, connector=table.connector_name, source=table.source, schema=table.schema, how="left",
        keys=(FieldKey(column="id", sql="l.`id`"),), columns=columns, left_columns=("id",), config=table.config,
    )  # fmt: skip
    source = Source(plan, table.connector)
    runner = Runner(plan, Layout(("id",), (0,)), lookup_of(source))
    try:
        for _ in range(times):
            batches = list(runner.run([pa.record_batch({"id": pa.array(keys, table.schema.field("id").type)})]))
            between()
    finally:
        source.close()
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
