"""What all checks of the suite share: what a connector claims, its tables, and how a check says what is wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pytest

from lookupcache.connector import Connector, connector_class
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Row, Wanted, difference, matching
from lookupcache.testing.samples import Held, field_of

Load = Callable[[pa.Table, list[str]], dict[str, Any]]
"""Makes a table with exactly these rows and this key, and returns the connector's own options for it."""

NONE: Mapping[str, str] = {}


class Checks:
    """What a suite is told of a connector; `ConnectorSuite` says what each claim means."""

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
        """Return what makes a table; the suite's user writes it."""
        pytest.fail(
            "The suite has no table to look up in.\n\nHint: Write a fixture `load` that returns a function "
            "`load(rows, key)`, which stores the pyarrow.Table and returns the connector's options for it.",
            pytrace=False,
        )

    @property
    def held(self) -> Held:
        """What the source can hold."""
        return Held(self.unsupported)

    @property
    def keyed(self) -> Held:
        """What the source can hold in key columns."""
        return Held({**self.unsupported, **self.unsupported_keys})

    @property
    def kind(self) -> type[Connector]:
        """The connector's class."""
        return connector_class(self.connector)

    def table(self, schema: pa.Schema, options: Mapping[str, Any], lookup: Mapping[str, str] = NONE) -> LookupTable:
        """Return the lookup table; a failed call is not made again, unless the ``lookup.*`` options say so."""
        own = {"connector": self.connector, "lookup.max-retries": "0", "lookup.timeout": "60 s"}
        return LookupTable("t", schema, {**own, **options, **lookup})

    def expect_rows(
        self,
        rows: pa.Table,
        options: Mapping[str, Any],
        wanted: Wanted,
        keys: Iterable[Row],
        cure: str,
        lookup: Mapping[str, str] = NONE,
    ) -> None:
        """Look keys up, each once, and refuse anything but the rows that are there for them."""
        keys = list(dict.fromkeys(keys))
        with LocalJoin(self.table(rows.schema, options, lookup), wanted) as join:
            self.compare(join.rows(keys), rows, wanted, keys, cure)

    def compare(self, found: Sequence[Row], rows: pa.Table, wanted: Wanted, keys: Iterable[Row], cure: str) -> None:
        """Refuse found rows that are not those that the table holds for these keys."""
        fields = rows.schema if wanted.columns is None else [rows.schema.field(name) for name in wanted.columns]
        wrong = difference(found, matching(rows, wanted, keys), pa.schema(fields))
        if wrong is not None:
            refuse(f"The lookup did not return the rows that are in the table.\n{wrong}", cure)


def refuse(fact: str, cure: str) -> NoReturn:
    """Fail a check: say what is wrong, and how to mend it."""
    pytest.fail(f"{fact}\n\nHint: {cure}", pytrace=False)


def table_of(columns: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
    """Return a table of columns given as type and values.

    >>> table_of({"id": ("bigint", [1, 2]), "name": ("string", ["ann", None])}).num_rows
    2
    """
    fields = [field_of(name, type_) for name, (type_, _) in columns.items()]
    arrays = [pa.array(values, field.type) for field, (_, values) in zip(fields, columns.values(), strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[Row]:
    """Return the keys of rows as a join asks for them: without nulls, each once."""
    columns = zip(*(rows.column(name).to_pylist() for name in key), strict=True)
    return list(dict.fromkeys(row for row in columns if None not in row))


def people() -> pa.Table:
    """Return a small table, of the types that every source has."""
    return table_of({"id": ("bigint", [1, 2, 3]), "name": ("string", ["ann", "bob", "cy"])})


def lanes() -> set[threading.Thread]:
    """Return the threads in which connectors are open."""
    return {thread for thread in threading.enumerate() if thread.name == "lookupcache-lane"}


def eventually(true: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so, for a while: threads end, and connections close, in their own time."""
    ends, pause = time.monotonic() + seconds, threading.Event()
    while not true():
        if time.monotonic() > ends:
            return False
        pause.wait(0.01)
    return True
