"""Connections that hang: what other threads do meanwhile."""

from __future__ import annotations

import threading

import pyarrow as pa
from openings import ListedOpenings
from thread_simulation import simulate_threads
from time_limit import LIMIT

from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.errors import LookupTimeoutError
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.worker.source import Source

TABLE = LookupTable.from_function("c", "id BIGINT, v STRING", key=["id"], function=lambda id: [])


class Echo(ListedOpenings, Connector):
    """Has the row ("x") for each key."""

    def __init__(self, *openings):
        ListedOpenings.__init__(self, *openings)
        Connector.__init__(self, TABLE.schema, {})

    def lookup(self, request, keys):
        return pa.table({"id": keys.column("id"), "v": pa.array(["x"] * keys.num_rows)})


class SharedEcho(Echo):
    thread_safe = True


def plan_with(**config):
    return LookupPlan(
        table="c",
        connector="x",
        source=TABLE.source,
        schema=TABLE.schema,
        how="left",
        keys=(FieldKey(column="id", sql="l.`id`"),),
        columns=("v",),
        left_columns=("id",),
        config=LookupConfig(**config),
    )


def test_a_hanging_shared_connection_does_not_stop_other_threads():
    connector = SharedEcho("hang")
    connection = Source(plan_with(timeout="10 ms", max_retries=0), connector)._connection
    hung = threading.Thread(target=connection.open)
    hung.start()
    assert connector.begun.wait(LIMIT)
    assert connection.open() is connector
    assert connector.opened == 1
    connector.release.set()
    hung.join(LIMIT)
    connection.close(connector)
    assert connector.closed == 0, "the thread that hung uses it now"
    connection.close(connector)
    assert connector.closed == 1


def test_a_shared_connection_that_took_too_long_is_a_timeout():
    """The job goes on: another thread has begun to connect, which the first one must not interfere with."""
    errors = []
    with simulate_threads(1) as threads:
        threads.slow = 0.0
        connector = SharedEcho()
        connector.open = lambda: threads.sleep(3)
        connection = Source(plan_with(timeout=1, max_retries=0), connector)._connection

        def connect():
            try:
                assert connection.open() is connector
            except LookupTimeoutError as error:
                errors.append(error.fact)

        threads.run_thread("the first", connect)
        threads.advance(1.5)
        threads.run_thread("another", connect)
    assert errors == ["Connecting took longer than 1 s, and another thread has begun again."]
