"""Lookup functions and connectors that the workers of the tests import by name."""

from __future__ import annotations

import asyncio
import base64
import threading

import pyarrow as pa
from pyspark import TaskContext
from time_limit import LIMIT

from lookupcache.connector import Connector
from lookupcache.expr import keep, to_text

PEOPLE = [(1, "ann", "NL", 900.0), (2, "bob", "DE", 1500.0), (2, "rob", "NL", 2500.0), (3, "cy", None, None)]
SCHEMA = "id BIGINT, name STRING, country STRING, salary DOUBLE"


def rows_of(key):
    return [row for row in PEOPLE if row[0] == key]


def fails_at_first(key):
    context = TaskContext.get()
    if key == 2 and context.attemptNumber() == 0:
        raise ValueError("not now")
    return rows_of(key)


def always_fails(key):
    raise ConnectionError("no route, password=hunter2")


class Unpicklable(Connector):
    def __init__(self, schema, options):
        super().__init__(schema, options)
        self.lock = threading.Lock()

    def lookup(self, request, keys):
        return pa.table({})


class Guarded(Connector):
    secrets = ("phrase",)

    def lookup(self, request, keys):
        raise OSError(f"cannot log in with {self.settings['phrase']} at {self.settings['url']}")


class Memory(Connector):
    """A connector whose table is serialized in its options."""

    def open(self):
        with pa.ipc.open_stream(base64.b64decode(self.settings["rows"])) as stream:
            self.table = stream.read_all()

    def lookup(self, request, keys):
        requested = {equal_alike(key.values()) for key in keys.to_pylist()}
        own = self.table.select(list(request.key_columns)).to_pylist()
        mask = [equal_alike(row.values()) in requested for row in own]
        return self.answer(request, self.table.filter(pa.array(mask, pa.bool_())))

    def scan(self, request):
        yield from self.answer(request, self.table).to_batches()

    def answer(self, request, table):
        return keep(table, request.filters).select(list(request.fields))


class Superset(Memory):
    """Returns its full table for any request."""

    def lookup(self, request, keys):
        return self.answer(request, self.table)


class Filtering(Memory):
    """Accepts and applies every filter."""

    def accept(self, filters):
        return filters


class People(Filtering):
    """The table `PEOPLE`, without options; filters on the salary alone are left to others."""

    def open(self):
        columns = zip(*PEOPLE, strict=True)
        self.table = pa.table(dict(zip(self.schema.names, map(list, columns), strict=True)), schema=self.schema)

    def accept(self, filters):
        return [one for one in filters if "salary" not in to_text(one)]


class Awaited(Memory):
    """Implements `lookup_async` only; earlier calls take longer, so later calls finish first."""

    prefers_async = True
    lookup = Connector.lookup
    calls = 0

    async def lookup_async(self, request, keys):
        self.calls += 1
        await asyncio.sleep(0.001 / self.calls)
        return Memory.lookup(self, request, keys)


def options_of(table):
    """Return the options of a `Memory` connector with this table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return {"rows": base64.b64encode(sink.getvalue().to_pybytes()).decode()}


def equal_alike(values):
    """Return values whose Python equality is Spark's: NaN equals itself."""
    return tuple("NaN" if value != value else value for value in values)


class Rows:
    """A lookup function that finds a table's rows by its first column."""

    def __init__(self, table):
        self.rows = table.to_pylist()
        self.key = table.column_names[0]

    def __call__(self, key):
        return [row for row in self.rows if equal_alike([row[self.key]]) == equal_alike([key])]


class RowsLater(Rows):
    async def __call__(self, key):
        await asyncio.sleep(0)
        return Rows.__call__(self, key)


class RowsOfMany(Rows):
    def __call__(self, keys):
        return [Rows.__call__(self, key) for key in keys]


class RowsOfManyLater(Rows):
    async def __call__(self, keys):
        await asyncio.sleep(0)
        return [Rows.__call__(self, key) for key in keys]


_all_asked = threading.Barrier(3)


class Together:
    """A lookup function that answers once three of them are being called, in the same process at the same time."""

    def __init__(self, name):
        self.name = name

    def __call__(self, keys):
        _all_asked.wait(timeout=LIMIT)
        return [[(key, f"{self.name}{key}")] for key in keys]
