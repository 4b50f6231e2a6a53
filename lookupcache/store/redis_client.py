"""`RedisClient`: the connection of the store, and of the limits of the cluster, to a Redis server."""

from __future__ import annotations

import threading
from contextlib import suppress

from lookupcache.redis_server import Address, Cluster, Server, check_driver


class RedisClient:
    """Connects to a server; ``url`` is as the option ``url`` of the redis connector, ``timeout`` in seconds.

    It may be used by several threads.
    """

    def __init__(self, url: str, timeout: float) -> None:
        check_driver()
        self._address = Address.of({"url": url}).with_timeout(timeout)
        self._connected: Server | Cluster | None = None
        self._connecting = threading.Lock()

    @property
    def _server(self) -> Server | Cluster:
        found = self._connected
        if found is None:
            # Two threads would make two clients, and one of them would never be closed.
            with self._connecting:
                found = self._connected = self._connected or self._address.new_client()
        return found

    def close(self) -> None:
        """Disconnect."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def __del__(self) -> None:
        # A function that is cached has no end at which its user must close it.
        with suppress(Exception):
            self.close()
