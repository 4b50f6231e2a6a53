"""`Feed`: the keys that a Redis server reports as changed, while the connection for these reports lasts.

CLIENT TRACKING, by prefix ─► thread: names of changed keys ─► take() ─► names, or None: any may have changed
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lookupcache.shared_error import SharedError
from lookupcache.thread_start import start_thread

HEARTBEAT = 1.0
"""Seconds without a message after which the server is pinged; after as many more, the connection counts as lost."""

_MOST_NAMES = 100_000
_PAUSE = 0.1


class Feed:
    """Collects the names of keys that have changed; copies of a connector in one process share one.

    While the connection is lost, any key may have changed; rows that were read before it is back may be outdated.
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
        self._error: SharedError | None = None
        self._ready = threading.Event()
        self._stop = threading.Event()

    def start(self, connect: Callable[[], Any]) -> None:
        """Listen on the connection that ``connect`` returns, on which the server reports changes; once per feed.

        Returns when the server reports every change from now on; raises the error of the connection attempt.
        """
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._ready, self._stop, self._error = threading.Event(), threading.Event(), None
                work = (connect, self._ready, self._stop)
                start_thread(threading.Thread(target=self._run, args=work, name="lookupcache-redis-push", daemon=True))
        self._ready.wait()
        if self._error is not None:
            error = self._error
            self.stop()
            raise error.take()

    def stop(self) -> None:
        """Stop listening if all users that called `start` have called `stop`."""
        with self._lock:
            self._users = max(self._users - 1, 0)
            if not self._users:
                self._stop.set()
                self._listens = False

    def take(self) -> set[bytes] | None:
        """Return the names of keys that have changed since the last call, None if any may have changed."""
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
                        self._error = self._error if ready.is_set() else SharedError(error)
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
                # Rows that were read before this may have changed without a report.
                self._listens, self._names = True, None
            ready.set()
            while not stop.is_set():
                self._note(_next_message(connection))
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


def _next_message(connection: Any) -> Any:
    """Return the next message; raises TimeoutError if the server sends nothing and does not answer a ping."""
    from redis.exceptions import TimeoutError

    try:
        return connection.read_response(push_request=True, disconnect_on_error=False)
    except TimeoutError:
        connection.send_command("PING", check_health=False)
    return connection.read_response(push_request=True, disconnect_on_error=False)
