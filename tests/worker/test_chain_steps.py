"""What the worker does between two joins of a chain, without Spark."""

from __future__ import annotations

import pyarrow as pa

from lookupcache.expr import Call, Column, Literal
from lookupcache.worker.chain import Between

NUMBER, TEXT = Column("left", "0", pa.int64()), Column("left", "1", pa.string())
BATCH = pa.RecordBatch.from_pydict({"a": [1, 2, None, 4], "b": ["x", None, "y", "z"]})


def run(between: Between, *batches: pa.RecordBatch) -> list[list[list]]:
    return [[column.to_pylist() for column in batch.columns] for batch in between(batches)]


def test_rows_are_filtered_before_columns_are_computed():
    largest = pa.RecordBatch.from_pydict({"a": [2**63 - 1, 1], "b": ["no", "yes"]})
    one_more = Call("+", (NUMBER, Literal(1, pa.int64())), pa.int64())
    between = Between((Call("=", (TEXT, Literal("yes", pa.string()))),), (one_more, 1))
    assert run(between, largest) == [[[2], ["yes"]]]


def test_a_row_stays_for_which_all_filters_are_true():
    filters = (Call(">", (NUMBER, Literal(0, pa.int64()))), Call("not", (Call("is null", (TEXT,)),)))
    assert run(Between(filters, (1, 0)), BATCH) == [[["x", "z"], [1, 4]]]
    assert run(Between((Literal(None, pa.bool_()),), (0,)), BATCH) == []
    assert run(Between((Literal(True, pa.bool_()),), (Literal("c", pa.string()),)), BATCH) == [[["c"] * 4]]
