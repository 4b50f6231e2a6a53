"""A fault at every socket call: lookups over real services and servers, with the n-th call to a socket failing.

Whatever fails, each row is right or the lookup has failed; then no socket is left open, and the next lookup works.
"""

from __future__ import annotations

import gc
import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import audit
import pyarrow as pa
import pytest
from databases import MariaTables, PostgresTables
from model_service import KEY, ModelService, vector_of
from scale import IS_NIGHT
from servers import BreakingRelay

from lookupcache.errors import LookupCacheError
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted

CALLS = ("connect", "connect_ex", "send", "sendall", "sendmsg", "recv", "recv_into")
QUICK = {"lookup.max-retries": "0", "lookup.timeout": "20 s"}
ROWS = pa.table({"id": [1, 2, 3], "name": ["n1", "n2", "n3"]})


@dataclass(frozen=True)
class Source:
    """A table of a real server: its keys, and their values."""

    options: dict[str, str]
    schema: str = "id BIGINT, name STRING"
    keys: tuple[Any, ...] = (1, 2, 3)
    right: tuple[Any, ...] = ("n1", "n2", "n3")

    def look_up(self) -> list[Any]:
        """Return the values of the keys, from a connector and connections of their own."""
        table = LookupTable("t", self.schema, {**self.options, **QUICK})
        key, value = table.schema.names
        with LocalJoin(table, Wanted(key=(key,), columns=(value,))) as join:
            return [row[-1] for row in join.rows([(key,) for key in self.keys])]


@dataclass
class FailingCall:
    """Names the call that has failed."""

    failed: str = ""


@contextmanager
def failing_call(options: dict[str, str], number: int) -> Iterator[tuple[FailingCall, dict[str, str]]]:
    """Let the n-th call to a socket of Python raise an error of the network; the options stay as they are."""
    fault, numbers = FailingCall(), itertools.count(1)

    def wrapped(name):
        original = getattr(socket.socket, name)

        def called(sock, *args):
            # The pair of sockets that wakes an event loop is not a connection.
            if sock.family == socket.AF_INET and next(numbers) == number:
                fault.failed = name
                raise ConnectionResetError(f"injected into {name}")
            return original(sock, *args)

        return called

    with ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(socket.socket, name, wrapped(name), create=True))
        yield fault, options


def check_every_fault(source: Source, faults: Callable[[dict[str, str], int], Any], step: int = 1) -> list[str]:
    """Look up with the n-th call failing, for every n, or for every few; return what failed.

    ``faults`` returns a context with what says that it has failed, and the options of the lookup that is to reach it.
    """
    assert source.look_up() == list(source.right)
    before, seen = audit.files(), []
    for number in itertools.count(1, step):
        with faults(source.options, number) as (fault, options):
            try:
                assert replace(source, options=options).look_up() == list(source.right), fault.failed
            except LookupCacheError:
                assert fault.failed
        if not fault.failed:
            break
        seen.append(fault.failed)
    assert source.look_up() == list(source.right)

    def left():
        gc.collect()
        return set(audit.files() - before) - audit.loop_files() - audit.spark_sockets()

    assert audit._until_empty(lambda: [path for path in left() if path.startswith("socket:")]) == []
    return seen


@pytest.fixture
def redis_source(redis_server):
    with redis_server.client() as client:
        client.flushall()
        for key in (1, 2, 3):
            client.hset(f"c:{key}", "name", f"n{key}")
    return Source({"connector": "redis", "url": redis_server.url, "key": "c:{id}"})


@pytest.fixture
def http_source(service):
    service.set_rows({key: [{"name": f"n{key}"}] for key in (1, 2, 3)})
    return Source({"connector": "http", "url": service.url + "/rows/{id}"})


@pytest.fixture
def maria_source(maria_server):
    return Source({"connector": "sql", **MariaTables(maria_server).of(ROWS, ["id"])})


@pytest.fixture
def openai_source():
    models, texts = ModelService(), ("a", "b", "c")
    try:
        models.start()
        own = {"connector": "openai", "url": f"{models.url}/v1", "task": "embeddings", "model": "m", "prompt": "{text}"}
        schema, right = "text STRING, v ARRAY<FLOAT>", tuple(map(vector_of, texts))
        yield Source({**own, "api-key": KEY}, schema, texts, right)
    finally:
        models.kill()


@pytest.fixture
def feast_source(tmp_path, redis_server):
    from features import Repository

    made = Repository(tmp_path, f"127.0.0.1:{redis_server.port}")
    yield Source({"connector": "feast", **made.load(ROWS, ["id"])})
    made.close()


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("http_source", {}),
        ("redis_source", {"lookup.async": "true"}),
        ("redis_source", {"lookup.async": "false"}),
        ("maria_source", {}),
        ("openai_source", {}),
        pytest.param("feast_source", {}, marks=pytest.mark.nightly),
    ],
)
# Feast, and what it imports, use deprecated functions of each other.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_fault_of_a_socket_never_becomes_a_miss(request, source, options):
    own = request.getfixturevalue(source)
    seen = check_every_fault(replace(own, options={**own.options, **options}), failing_call)
    assert len(seen) > 2
    assert set(seen) & {"send", "sendall", "sendmsg"}


@pytest.mark.parametrize("share", [pytest.param(0.0, marks=pytest.mark.nightly), 0.5])
def test_a_connection_that_breaks_anywhere_never_becomes_a_miss(postgres_server, share):
    # The sockets of PostgreSQL's client are not Python's.
    @contextmanager
    def breaking(options, number):
        relay = BreakingRelay(postgres_server.port, number, share)
        port, other = f":{postgres_server.port}/", f":{relay.port}/"
        yield relay, {**options, "url": options["url"].replace(port, other)}
        relay.close()

    source = Source({"connector": "sql", **PostgresTables(postgres_server).of(ROWS, ["id"])})
    # By day one in five.
    seen = check_every_fault(source, breaking, 1 if IS_NIGHT else 5)
    assert len(seen) > 8
    assert len(set(seen)) == 2
