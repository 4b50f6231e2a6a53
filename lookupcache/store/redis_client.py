"""`RedisClient`: the connection of the store, and of the limits of the cluster, to a Redis server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from lookupcache.redis.address import Address
from lookupcache.redis.clients import Cluster, RedisServer
from lookupcache.redis.errors import check_driver, load_driver
from lookupcache.store.answer_time import AnswerTime
from lookupcache.thread_start import start_thread

_CONNECT_TIMES = 3
"""How many times the timeout it may take to resolve the name and be accepted; then, to log in and be answered."""
_FIRST_CONNECT_SECONDS = 5.0
"""How long it may take a process to be accepted the first time: its host may be busy with starting others."""

T = TypeVar("T")


class RedisClient:
    """Connects to a server. Calls raise TimeoutError where they, or connecting, take too long; threads may share it.

    ``url`` is as the option of the redis connector. ``timeout`` is for connecting and for an answer; one of a server
    that may have a queue may take ``most`` seconds. The first connection of a process may take as long as
    ``first_connect``, by default ``most``, but at most some seconds.
    """

    def __init__(self, url: str, timeout: float, most: float | None = None, first_connect: float | None = None) -> None:
        check_driver()
        self._given_address = Address.of({"url": url})
        self._timeout = timeout
        self._answer_time = AnswerTime(timeout, timeout if most is None else most)
        self._connect_seconds = _CONNECT_TIMES * timeout
        self._first_connect_seconds = min(first_connect or most or timeout, _FIRST_CONNECT_SECONDS)
        self._inherited: RedisServer | Cluster | None = None
        self._connected: RedisServer | Cluster | None = None
        self._start_without_connection()

    def _start_without_connection(self) -> None:
        # The parent's connection is kept unused: threads that do not exist here may hold its locks.
        self._inherited, self._connected = self._connected, None
        self._connecting = threading.Lock()
        self._accepted = threading.Event()
        self._address = self._given_address.with_timeout(self._timeout, self._answer_time.limit, self._accepted.set)
        self._process = os.getpid()
        self._has_answered = self._has_tried = False
        self._late: Future[Any] | None = None

    @property
    def _server(self) -> RedisServer | Cluster:
        if self._process != os.getpid():
            self._start_without_connection()
        found = self._connected
        if found is None:
            # Two threads would make two clients, and one of them would never be closed.
            with self._connecting:
                found = self._connected = self._connected or self._address.new_client()
        return found

    @property
    def _is_cluster(self) -> bool:
        return self._address.kind == "cluster"

    def _call(self, work: Callable[[RedisServer | Cluster], T]) -> T:
        """Return what the server returns; before the first call, and after a failure, a thread connects.

        No timeout of a socket ends the search for the address of a name. While it hangs, all calls fail at once.
        """
        if self._process != os.getpid():
            self._start_without_connection()
        limit, began = self._answer_time.limit(), time.monotonic()
        try:
            if not self._has_answered:
                # Only that: a large answer to the call itself may take longer, as long as it goes on.
                self._connect_in_time()
                self._has_answered = True
            done = work(self._server)
        except BaseException as error:
            from redis.exceptions import TimeoutError as LateError

            self._has_answered = False
            if time.monotonic() - began >= limit:
                self._answer_time.ran_out()
            if isinstance(error, LateError):
                raise TimeoutError(str(error)) from error
            raise
        self._answer_time.answered(time.monotonic() - began)
        return done

    def _run(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Send commands in one round trip, in a cluster one per server; return the replies, which may be errors."""
        return self._call(lambda server: server.run(commands))

    def _connect_in_time(self) -> None:
        if self._late is not None and not self._late.done():
            raise TimeoutError("an earlier call has not ended yet")
        load_driver()  # Not in the thread, whose time is limited: a server that answers would be given up.
        done: Future[Any] = Future()
        self._accepted.clear()

        def run() -> None:
            try:
                done.set_result(self._server.connect())
            except BaseException as error:
                done.set_exception(error)
            finally:
                self._accepted.set()

        thread = threading.Thread(target=run, name="lookupcache-connect", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError:
            return  # The interpreter exits.
        most = self._connect_seconds
        if not self._has_tried:
            most, self._has_tried = max(most, self._first_connect_seconds), True
        if self._accepted.wait(most):
            most = _CONNECT_TIMES * self._answer_time.limit()
            wait([done], most)
        if done.done():
            done.result()
            return
        self._late = done
        raise TimeoutError(f"to connect took longer than {most:g} s")

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def __del__(self) -> None:
        # A function that is cached has no end at which its user must close it.
        with suppress(Exception):
            self.close()
