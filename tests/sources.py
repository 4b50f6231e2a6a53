"""Functions and connectors that the tests' workers import by name."""

from __future__ import annotations

import threading

import pyarrow as pa
from pyspark import TaskContext

from lookupcache.connector import Connector

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
