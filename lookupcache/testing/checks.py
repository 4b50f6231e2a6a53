"""Base of all checks of the suite: the claims of a connector, its tables, and the report of a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pytest

from lookupcache.connector import Connector, connector_class
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Row, Wanted, difference, expected_rows
from lookupcache.testing.samples import Supported, field_of

Load = Callable[[pa.Table, list[str]], dict[str, Any]]
"""Creates a table with exactly these rows and this key, and returns the connector's own options for it."""

NONE: Mapping[str, str] = {}
ID = Wanted(key=("id",))


class Checks:
    """The claims of a suite about its connector, which `ConnectorSuite` documents, and helpers of the checks."""

    connector: ClassVar[str] = ""
    unsupported: ClassVar[Mapping[str, str]] = {}
    unsupported_keys: ClassVar[Mapping[str, str]] = {}
    unique_keys: ClassVar[bool] = False
    pushes_filters: ClassVar[bool] = False
    can_scan: ClassVar[bool] = False
    filter_examples: ClassVar[int] = 200
    patience: ClassVar[float] = 10.0

    @pytest.fixture
    def load(self) -> Load:
        """Return a function that creates a table; the suite's author overrides it."""
        pytest.fail(
            "The suite does not define how tables are created.\n\nHint: Write a fixture `load` that returns a function "
            "`load(rows, key)`, which stores the pyarrow.Table and returns the connector's options for it.",
            pytrace=False,
        )

    @property
    def supported(self) -> Supported:
        """The values that the source can store."""
        return Supported(self.unsupported)

    @property
    def supported_keys(self) -> Supported:
        """The values that the source can store in key columns."""
        return Supported({**self.unsupported, **self.unsupported_keys})

    @property
    def kind(self) -> type[Connector]:
        """The connector's class."""
        return connector_class(self.connector)

    def table(
        self, schema: pa.Schema | None, options: Mapping[str, Any], lookup: Mapping[str, str] = NONE
    ) -> LookupTable:
        """Return the lookup table; without retries, unless the ``lookup.*`` options in ``lookup`` enable them."""
        own = {"connector": self.connector, "lookup.max-retries": "0", "lookup.timeout": "60 s"}
        return LookupTable("t", schema, {**own, **options, **lookup})

    def expect_rows(
        self,
        rows: pa.Table,
        options: Mapping[str, Any],
        wanted: Wanted,
        keys: Iterable[Row],
        hint: str,
        lookup: Mapping[str, str] = NONE,
    ) -> None:
        """Look keys up, each once, and fail with a hint unless exactly their rows of the table are returned."""
        keys = list(dict.fromkeys(keys))
        with LocalJoin(self.table(rows.schema, options, lookup), wanted) as join:
            self.compare(join.rows(keys), rows, wanted, keys, hint)

    def compare(self, found: Sequence[Row], rows: pa.Table, wanted: Wanted, keys: Iterable[Row], hint: str) -> None:
        """Fail with a hint unless the rows found are those that the table has for these keys."""
        fields = rows.schema if wanted.columns is None else [rows.schema.field(name) for name in wanted.columns]
        wrong = difference(found, expected_rows(rows, wanted, keys), pa.schema(fields))
        if wrong is not None:
            fail_check(f"The lookup did not return the matching rows of the table.\n{wrong}", hint)


def fail_check(fact: str, hint: str) -> NoReturn:
    """Fail a check with the fault and the cure."""
    pytest.fail(f"{fact}\n\nHint: {hint}", pytrace=False)


def table_of(columns: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
    """Return a table; each column is passed as its type and values.

    >>> table_of({"id": ("bigint", [1, 2]), "name": ("string", ["ann", None])}).num_rows
    2
    """
    fields = [field_of(name, type_) for name, (type_, _) in columns.items()]
    arrays = [pa.array(values, field.type) for field, (_, values) in zip(fields, columns.values(), strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[Row]:
    """Return the keys of rows as a join requests them: distinct and without nulls."""
    columns = zip(*(rows.column(name).to_pylist() for name in key), strict=True)
    return list(dict.fromkeys(row for row in columns if None not in row))


def people() -> pa.Table:
    """Return a small table, of types that every source supports."""
    return table_of({"id": ("bigint", [1, 2, 3]), "name": ("string", ["ann", "bob", "cy"])})


def call_threads() -> set[threading.Thread]:
    """Return the threads that have an open connector."""
    return {thread for thread in threading.enumerate() if thread.name == "lookupcache-slot"}


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, at most ``seconds``: threads end and connections close asynchronously."""
    ends, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > ends:
            return False
        pause.wait(0.01)
    return True
