"""A fault at every socket call: lookups over a real service and real servers, with the n-th call to a socket failing.

Whatever fails, each row is right or the lookup has failed; then no socket is left open, and the next lookup works.
"""

from __future__ import annotations

import gc
import socket
from contextlib import ExitStack
from unittest import mock

import audit
import pyarrow as pa
import pytest
from databases import MariaTables
from servers import RedisServer

from lookupcache.errors import LookupCacheError
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted

SCHEMA = "id BIGINT, name STRING"
WANTED = Wanted(key=("id",), columns=("name",))
CALLS = ("connect", "connect_ex", "send", "sendall", "sendmsg", "recv", "recv_into")
KEYS = (1, 2, 3)
QUICK = {"lookup.max-retries": "0", "lookup.timeout": "20 s"}


class Points:
    """Counts the calls to sockets, and fails the n-th with an error of the network."""

    def __init__(self, failing: int) -> None:
        self.failing, self.count, self.failed = failing, 0, ""

    def inject(self) -> ExitStack:
        stack = ExitStack()
        for name in CALLS:
            stack.enter_context(mock.patch.object(socket.socket, name, self._wrap(name), create=True))
        return stack

    def _wrap(self, name):
        original = getattr(socket.socket, name)

        def called(sock, *args):
            # The pair of sockets that wakes an event loop is not a connection.
            self.count += sock.family == socket.AF_INET
            if self.count == self.failing and not self.failed:
                self.failed = name
                raise ConnectionResetError(f"injected into {name}")
            return original(sock, *args)

        return called


@pytest.fixture(scope="module")
def redis_options():
    server = RedisServer().start()
    with server.client() as client:
        for key in KEYS:
            client.hset(f"c:{key}", "name", f"n{key}")
    yield {"connector": "redis", "url": server.url, "key": "c:{id}"}
    server.close()


@pytest.fixture
def http_options(service):
    service.set_rows({key: [{"name": f"n{key}"}] for key in KEYS})
    return {"connector": "http", "url": service.url + "/rows/{id}"}


@pytest.fixture
def maria_options(maria_server):
    rows = pa.table({"id": KEYS, "name": [f"n{key}" for key in KEYS]})
    return {"connector": "sql", **MariaTables(maria_server).of(rows, ["id"])}


def look_up(options):
    with LocalJoin(LookupTable("t", SCHEMA, {**options, **QUICK}), WANTED) as join:
        return sorted(row[-1] for row in join.rows([(key,) for key in KEYS]))


@pytest.mark.parametrize(
    ("source", "async_"),
    [("http_options", "true"), ("redis_options", "true"), ("redis_options", "false"), ("maria_options", "false")],
)
def test_a_fault_of_a_socket_never_becomes_a_miss(request, source, async_):
    options = {**request.getfixturevalue(source), "lookup.async": async_}
    right = [f"n{key}" for key in KEYS]
    assert look_up(options) == right
    before, number, seen = audit.files(), 0, set()
    while True:
        number += 1
        points = Points(number)
        with points.inject():
            try:
                assert look_up(options) == right, points.failed
            except LookupCacheError:
                assert points.failed
        if not points.failed:
            break
        seen.add(points.failed)
    assert number > 3
    assert seen & {"send", "sendall", "sendmsg"}
    assert look_up(options) == right

    def left():
        gc.collect()
        return set(audit.files() - before) - audit.loop_files() - audit.spark_sockets()

    assert audit._until_empty(lambda: [path for path in left() if path.startswith("socket:")]) == []
