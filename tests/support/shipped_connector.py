"""A user's connector, which tests ship to a cluster alongside lookupcache."""

from __future__ import annotations

import os

import pyarrow as pa

from lookupcache import Connector


class Noting(Connector):
    """Names numbers, but those that are divisible by five; notes each request in the file of the option ``log``."""

    def __init__(self, schema, options):
        super().__init__(schema, options)
        self.log = options["log"]

    def lookup(self, request, keys):
        """Return the names, and note by which executor each key was requested."""
        numbers = keys.column(0).to_pylist()
        with open(self.log, "a") as log:
            log.write("".join(f"{os.environ['SPARK_LOCAL_DIRS']} {number}\n" for number in numbers))
        named = [number for number in numbers if number % 5]
        return pa.table({"id": pa.array(named, pa.int64()), "name": [f"n{number}" for number in named]})
