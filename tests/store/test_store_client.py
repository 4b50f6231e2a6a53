"""How long a call to a Redis server takes at most, and what a forked process does with the connection."""

from __future__ import annotations

import math
import os
import re
import socket
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from forks import reply_of_child
from redis._parsers import _RESP2Parser
from servers import until
from time_limit import LIMIT

from lookupcache.errors import OptionError
from lookupcache.redis.address import Address
from lookupcache.store import Store, open_store
from lookupcache.store.answer_time import AnswerTime
from lookupcache.store.contract import CLAIMED
from lookupcache.store.redis_rate import RedisRate

NAME, ENTRY = b"lookupcache:1:x:{0}", b"entry" * 80


@pytest.fixture
def opened():
    """Return a function that opens a store."""
    stores: list[Store] = []

    def opens(url, timeout=0.05, most=None):
        stores.append(open_store(url, timeout, most))
        return stores[-1]

    yield opens
    for store in stores:
        store.close()


class Listener:
    """Listens, and calls a function with each connection in a thread of its own."""

    def __init__(self, serve) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []
        self._serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection) -> None:
        try:
            self._serve(connection)
        except OSError:
            connection.close()

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def listener(request, serve) -> Listener:
    found = Listener(serve)
    request.addfinalizer(found.close)
    return found


def relay(port, send, receive=lambda connection: connection.recv(1 << 16)):
    """Return what forwards to a server what ``receive`` returns of a connection, and its replies by ``send``."""

    def serve(connection):
        with socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=forward, args=(connection, server), daemon=True).start()
            while data := server.recv(1 << 16):
                send(connection, data)

    def forward(connection, server):
        with suppress(OSError):
            while data := receive(connection):
                server.sendall(data)

    return serve


@pytest.fixture(scope="module")
def server(redis_server):
    with redis_server.client() as client:
        client.set(NAME, ENTRY)
    return redis_server


@pytest.fixture(params=["hiredis", "python"])
def parser(request, monkeypatch):
    """Both parsers of redis-py: the one in C, if it is installed, and the one without."""
    original = Address.new_client

    def new_client(self):
        made = original(self)
        if request.param == "python":
            made._client.connection_pool.connection_kwargs["parser_class"] = _RESP2Parser
        return made

    monkeypatch.setattr(Address, "new_client", new_client)


@pytest.mark.usefixtures("parser")
def test_an_idle_connection_that_the_server_closed_is_reopened(server, opened):
    store = opened(server.url, 0.2)
    assert store.get([NAME]).entries == [ENTRY]
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    time.sleep(0.3)
    assert store.get([NAME]).entries == [ENTRY]


@pytest.mark.extended
@pytest.mark.usefixtures("parser")
def test_a_reply_that_comes_a_byte_at_a_time_is_late(request, server, opened, monkeypatch):
    """Each byte comes in time; where a second is allowed for each, so does the reply, which takes two timeouts."""
    trickles = threading.Event()

    def send(connection, data):
        if not trickles.is_set():
            connection.sendall(data)
            return
        for at in range(len(data)):
            connection.sendall(data[at : at + 1])
            time.sleep(0.001)

    store = opened(f"redis://127.0.0.1:{listener(request, relay(server.port, send)).port}", 0.2)
    assert store.get([NAME]).entries == [ENTRY]
    trickles.set()
    with pytest.raises(Exception, match="Timeout reading"):
        store.get([NAME])
    monkeypatch.setattr("lookupcache.redis.replies.LEAST_BYTES_PER_SECOND", 1)
    assert store.get([NAME]).entries == [ENTRY]


def test_a_large_first_reply_may_take_longer_than_connecting(request, server, opened, monkeypatch):
    """Nor is one after a failure that a large reply was: it needs no small one before it."""
    name, entry = b"lookupcache:1:x:{large}", b"entry" * 20_000
    with server.client() as client:
        client.set(name, entry)

    def send(connection, data):
        for at in range(0, len(data), 8_000):
            if len(data) > 8_000:
                time.sleep(0.05)
            connection.sendall(data[at : at + 8_000])

    monkeypatch.setattr("lookupcache.redis.replies.LEAST_BYTES_PER_SECOND", 1 << 14)
    store = opened(f"redis://127.0.0.1:{listener(request, relay(server.port, send)).port}", 0.15)
    for _ in range(2):
        assert store.get([name]).entries == [entry]
        store._has_answered = False


def test_answers_may_take_long_at_first_and_after_slow_ones():
    now = [0.0]
    time = AnswerTime(0.2, 30.0, lambda: now[0])
    assert time.limit() == 30.0
    now[0] += 59
    time.answered(0.05)
    assert time.limit() == 30.0
    now[0] += 2
    assert time.limit() == 0.2
    time.answered(0.15)
    assert time.limit() == 30.0
    time.ran_out()
    assert time.limit() == 0.2
    time.answered(0.05)
    assert time.limit() == 0.2
    time.answered(5.0)
    assert time.limit() == 30.0


def test_a_server_that_refuses_ping_is_read_from(request, server, opened):
    """As Redis does while it cannot save its data to its disk."""

    def receive(connection):
        while b"PING" in (data := connection.recv(1 << 16)):
            refused.append(connection.sendall(b"-MISCONF Errors writing to the disk\r\n"))
        return data

    refused: list = []
    port = listener(request, relay(server.port, lambda connection, data: connection.sendall(data), receive)).port
    assert opened(f"redis://127.0.0.1:{port}", 1).get([NAME]).entries == [ENTRY]
    assert len(refused) == 1


@pytest.mark.extended
def test_a_large_request_with_progress_may_exceed_the_timeout(request, server, opened, monkeypatch):
    """With 4 MB/s at least; one that is not read at all may not."""
    reads, let_go, token = threading.Event(), threading.Event(), b"mine" + bytes(8)

    def receive(connection):
        if not reads.is_set() and received[0] > 1 << 20:
            let_go.wait(LIMIT)
        data = connection.recv(1 << 18)
        received[0] += len(data)
        time.sleep(0.02)
        return data

    received, entry = [0], bytes(16 << 20)
    monkeypatch.setattr("lookupcache.redis.replies.LEAST_BYTES_PER_SECOND", 1 << 18)
    port = listener(request, relay(server.port, lambda connection, data: connection.sendall(data), receive)).port
    store = opened(f"redis://127.0.0.1:{port}", 1.0)
    for is_read, matching in ((True, None), (False, "Timeout writing")):
        reads.set() if is_read else reads.clear()
        received[0] = 0
        store.claim([NAME], token, 60)
        with nullcontext() if is_read else pytest.raises(Exception, match=matching):
            assert store.put([NAME], [entry], [60.0], token) == 1
    let_go.set()


@pytest.mark.parametrize("kind", ["redis", "redis+cluster"])
def test_a_name_that_is_not_resolved_is_not_waited_for(opened, monkeypatch, kind):
    let_go, asked = threading.Event(), []

    def resolve(*given, **settings):
        asked.append(given)
        let_go.wait(LIMIT)
        raise socket.gaierror("no such name")

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    store = opened(f"{kind}://no-such-host:6379")
    with pytest.raises(TimeoutError, match="to connect took longer than"):
        store.get([NAME])
    until(lambda: asked)
    with pytest.raises(TimeoutError, match="an earlier call has not ended yet"):
        store.get([NAME])
    assert len(asked) == 1
    let_go.set()


def test_the_first_connection_waits_longer_than_the_next_ones(redis_server, opened, monkeypatch):
    """A host that starts many processes at once may need seconds for what takes a moment on an idle one."""
    look_up, let_go = socket.getaddrinfo, threading.Event()

    def resolve(*given, **settings):
        let_go.wait(LIMIT)
        return look_up(*given, **settings)

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    url = f"redis://127.0.0.1:{redis_server.port}"
    with pytest.raises(TimeoutError, match=r"to connect took longer than 0\.15 s"):
        opened(url, 0.05).get([NAME])
    store = opened(url, 0.05, LIMIT)
    threading.Timer(1.0, let_go.set).start()
    assert store.get([b"lookupcache:1:first:{0}"]).entries == [None]
    let_go.clear()
    store._has_answered, store._connected = False, None
    with pytest.raises(TimeoutError, match=r"to connect took longer than 0\.15 s"):
        store.get([NAME])
    let_go.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["redis", "redis+cluster"])
def test_a_process_forked_while_a_thread_connects_can_connect(request, opened, kind):
    """The thread has the lock, and the one of redis-py, neither of which is ever released in the child."""
    accepted, let_go = threading.Event(), threading.Event()

    def serve(connection):
        accepted.set()
        let_go.wait(LIMIT)
        connection.close()

    store = opened(f"{kind}://127.0.0.1:{listener(request, serve).port}", 5.0)

    def get():
        with suppress(Exception):
            store.get([NAME])

    thread = threading.Thread(target=get)
    thread.start()
    assert accepted.wait(LIMIT)

    def get_at_once():
        store._connect_seconds = store._first_connect_seconds = 0.15
        store._answer_time = AnswerTime(0.05, 0.05)
        store.get([NAME])

    assert reply_of_child(get_at_once).startswith("TimeoutError: ")
    let_go.set()
    thread.join()


GUIDE = (Path(__file__).parents[2] / "docs/sharing.md").read_text()
COMMANDS = " ".join(re.findall(r"`([A-Z ]+)`", re.search(r"\*\*Rights\.\*\*.*?and a URL", GUIDE, re.DOTALL)[0]))
"""What the documentation says that a user of the server needs."""


def test_a_user_needs_only_the_documented_commands_and_names(redis_server, opened):
    commands = [f"+{command.lower()}" for command in COMMANDS.split()]
    names, token = [b"lookupcache:1:x:{%d}" % number for number in range(4)], b"mine" + bytes(8)
    url = f"redis://app:kx7secretq@127.0.0.1:{redis_server.port}"
    with redis_server.client() as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "app", "on", ">kx7secretq", "~lookupcache:*", *commands)
        store, limits = opened(url, 10.0), RedisRate(url, 10.0, "source")
        assert store.describe("x", {"table": "t"}) == {"table": "t"}
        assert store.claim_missing(names, token, 60)[0] == [CLAIMED] * 4
        store.renew(names, token, 60)
        assert store.put(names, [b"entry"] * 4, [60.0, 60.0, math.inf, math.inf], token) == 4
        store.claim(names, token, 60), store.release(names, token)
        store.invalidate(names[:1])
        assert [(content.entries, content.nbytes) for content in store.contents()] == [(3, 15)]
        assert store.get(names).entries == [None, b"entry", b"entry", b"entry"]
        client.rpush(b"lookupcache:1:x:{9}c", "of somebody else")
        assert store.claim([b"lookupcache:1:x:{9}"], token, 60)[0] == [CLAIMED]
        assert store.clear() == 3
        for name in limits.names:
            client.rpush(name, "of somebody else")
        assert limits.take_times(1, 5.0, 1.0, b"m").granted == 1
        with pytest.raises(Exception, match=r"(?i)no permissions to access"):
            store.get([b"of somebody else"])
        limits.close()
        client.execute_command("ACL", "DELUSER", "app")


def test_a_reference_to_what_is_no_store_is_not_read_out(monkeypatch):
    monkeypatch.setenv("STORE_WORD", "s3cret-word")
    with pytest.raises(OptionError, match="which is no store") as refused:
        open_store("env:STORE_WORD", 1.0)
    assert "s3cret" not in str(refused.value)
    assert "env:STORE_WORD" in str(refused.value)
