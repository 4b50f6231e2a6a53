"""The HTTP service of the tests does what it says."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path

import pytest
from service import Service
from time_limit import LIMIT

ROWS = {1: [[1, "ann"]], 2: [[2, "bob"], [2, "rob"]], "a b": [["a b", "cy"]]}


@pytest.fixture
def served(service: Service) -> Service:
    service.set_rows(ROWS)
    return service


@pytest.fixture
def client(served: Service):
    connection = HTTPConnection("127.0.0.1", served.port, timeout=LIMIT)
    yield connection
    connection.close()


def response(client: HTTPConnection, path: str = "/rows/1", keys: list | None = None) -> HTTPResponse:
    client.request("GET" if keys is None else "POST", path, None if keys is None else json.dumps(keys))
    return client.getresponse()


def answer(client: HTTPConnection, path: str = "/rows/1", keys: list | None = None):
    return json.loads(response(client, path, keys).read())


@pytest.mark.parametrize(
    ("path", "keys", "rows"),
    [
        ("/rows/1", None, [[1, "ann"]]),
        ("/rows/a%20b", None, [["a b", "cy"]]),
        ("/rows/9", None, []),
        ("/rows", [2, 9, 1], [[[2, "bob"], [2, "rob"]], [], [[1, "ann"]]]),
        ("/rows", [], []),
    ],
)
def test_rows_by_key(client, path, keys, rows):
    assert answer(client, path, keys) == rows


def test_a_connection_is_kept(client):
    answer(client)
    kept = client.sock
    answer(client)
    assert kept is client.sock is not None


def test_it_reports_what_arrived_and_when(served, client):
    before = time.monotonic()
    answer(client)
    answer(client, "/rows", [1, "a b"])
    first, second = served.requests()
    assert (first.method, first.path, first.keys) == ("GET", "/rows/1", ["1"])
    assert (second.method, second.path, second.keys) == ("POST", "/rows", [1, "a b"])
    assert before <= first.at <= second.at <= time.monotonic()


def test_it_is_slow_so_many_times(served, client):
    served.slow(0.05, times=1)
    started = time.monotonic()
    assert answer(client) == ROWS[1]
    assert time.monotonic() - started >= 0.05
    served.slow(60, times=1)
    served.heal()
    assert answer(client) == ROWS[1]


@pytest.mark.parametrize(("status", "hint"), [(500, None), (503, 7), (503, "Wed, 21 Oct 2015 07:28:00 GMT")])
def test_it_fails_with_a_status(served, client, status, hint):
    served.fail(status, retry_after=hint, times=1)
    failed = response(client)
    failed.read()
    assert (failed.status, failed.headers["Retry-After"]) == (status, None if hint is None else str(hint))
    assert answer(client) == ROWS[1]


def test_failures_occur_in_the_order_in_which_they_were_set(served, client):
    served.fail(503, times=2)
    served.fail(500)
    statuses = []
    for _ in range(4):
        failed = response(client)
        failed.read()
        statuses.append(failed.status)
    assert statuses == [503, 503, 500, 500]


def test_it_answers_short(served, client):
    served.short(times=2)
    assert answer(client, "/rows", [1, 2]) == [ROWS[1]]
    assert answer(client, "/rows/2") == [[2, "bob"]]


def test_it_breaks_a_connection_in_the_middle_of_the_body(served, client):
    served.tear(times=1)
    with pytest.raises(IncompleteRead):
        answer(client)
    client.close()
    assert answer(client) == ROWS[1]


def test_a_hanging_request_is_answered_when_released(served, client):
    served.hang(times=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(answer, client)
        served.wait_open(1)
        assert not waiting.done()
        served.release()
        assert waiting.result(LIMIT) == ROWS[1]
    assert (served.open(), served.most_open()) == (0, 1)


def test_a_client_that_disconnects_leaves_nothing_open(served, client):
    served.hang()
    client.request("GET", "/rows/1")
    served.wait_open(1)
    client.close()
    served.wait_open(0)
    assert len(served.requests()) == 1


def test_waiting_in_vain_ends(served):
    with pytest.raises(TimeoutError, match="0 requests open, 0 received, not 2"):
        served.wait_came(2, seconds=0.01)


def test_a_killed_service_breaks_connections_and_keeps_its_port(served, client):
    served.hang()
    client.request("GET", "/rows/1")
    served.wait_open(1)
    served.kill()
    with pytest.raises(ConnectionError):
        client.getresponse()
    client.close()
    with pytest.raises(ConnectionRefusedError):
        client.connect()
    served.start()
    assert answer(client) == ROWS[1]


def test_it_ends_with_the_process_that_started_it():
    script = "import os, service; s = service.Service(); s.start(); print(s._process.pid, flush=True); os._exit(1)"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[1] / "support", capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert exited(int(ended.stdout))


def exited(pid: int) -> bool:
    """Return whether the process is over within ten seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(handle):
        return bool(select.select([handle], [], [], 10)[0])
