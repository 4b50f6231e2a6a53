"""`Feed`: what a Redis server tells of changed keys, as long as the connection on which it does lasts.

CLIENT TRACKING, by prefix ─► thread: names of changed keys ─► taken() ─► names, or None: any may have changed
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

HEARTBEAT = 1.0
"""Seconds of silence after which the server is asked whether it is there; with as many more, it is not."""

_MOST_NAMES = 100_000
_PAUSE = 0.1


class Feed:
    """Collects the names of keys that have changed; copies of a connector in one process share one.

    While the server cannot tell, anything may have changed, and so it is for whatever was read before it could again.
    """

    def __init__(self) -> None:
        self._reset()

    def __reduce__(self) -> tuple[type[Feed], tuple[()]]:
        return Feed, ()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._listens = False
        self._names: set[bytes] | None = None
        self._error: Exception | None = None
        self._ready = threading.Event()
        self._stop = threading.Event()

    def start(self, connect: Callable[[], Any]) -> None:
        """Listen on what ``connect`` returns, a connection that the server tells changes on; a second time, do nothing.

        Returns when the server will tell of every change; raises what keeps it from doing so.
        """
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._ready, self._stop, self._error = threading.Event(), threading.Event(), None
                work = (connect, self._ready, self._stop)
                threading.Thread(target=self._run, args=work, name="lookupcache-redis-push", daemon=True).start()
        self._ready.wait()
        if self._error is not None:
            error = self._error
            self.stop()
            raise error

    def stop(self) -> None:
        """Listen no more, when all who started it have stopped it."""
        with self._lock:
            self._users = max(self._users - 1, 0)
            if not self._users:
                self._stop.set()
                self._listens = False

    def taken(self) -> set[bytes] | None:
        """Return the names of keys that have changed since the last call, None where any may have."""
        with self._lock:
            if not self._listens:
                return None
            names, self._names = self._names, set()
            return names

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────────

    def _run(self, connect: Callable[[], Any], ready: threading.Event, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._listen(connect, ready, stop)
            except Exception as error:
                with self._lock:
                    if not stop.is_set():
                        self._listens = False
                        self._error = self._error if ready.is_set() else error
            if not ready.is_set():
                return ready.set()
            stop.wait(_PAUSE)
        return None

    def _listen(self, connect: Callable[[], Any], ready: threading.Event, stop: threading.Event) -> None:
        connection = connect()
        try:
            with self._lock:
                if stop.is_set():
                    return
                # What was read before this moment may have changed without a word.
                self._listens, self._names = True, None
            ready.set()
            while not stop.is_set():
                self._note(_heard(connection))
        finally:
            with suppress(Exception):
                connection.disconnect()

    def _note(self, message: Any) -> None:
        if not isinstance(message, list) or not message or message[0] not in (b"invalidate", "invalidate"):
            return
        with self._lock:
            if message[1] is None or self._names is None:
                self._names = None
                return
            self._names.update(message[1])
            if len(self._names) > _MOST_NAMES:
                self._names = None


def _heard(connection: Any) -> Any:
    """Return the next message; raises TimeoutError where the server neither speaks nor answers."""
    from redis.exceptions import TimeoutError

    try:
        return connection.read_response(push_request=True, disconnect_on_error=False)
    except TimeoutError:
        connection.send_command("PING", check_health=False)
    return connection.read_response(push_request=True, disconnect_on_error=False)
