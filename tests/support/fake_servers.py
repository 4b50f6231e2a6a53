"""Redis servers of other kinds and versions than run here: `fakeredis` implements them in Python, with Lua."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fakeredis import TcpFakeServer

SERVERS = [("redis", (6, 2)), ("redis", (8, 0)), ("valkey", (8, 0)), ("dragonfly", (1, 25))]


class Server(TcpFakeServer):
    """A server in a thread; each connection has another."""

    daemon_threads = True
    block_on_close = False


@contextmanager
def serving(kind: str, version: tuple[int, int]) -> Iterator[str]:
    """Run a server, and return its URL."""
    server = Server(("127.0.0.1", 0), server_type=kind, server_version=version)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()
