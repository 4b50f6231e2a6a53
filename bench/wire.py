"""Counts the network traffic between a client and a server: bytes in each direction, and round trips."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Wire:
    """Counts of a connection; ``turns`` is the number of round trips."""

    sent: int = 0
    received: int = 0
    turns: int = 0
    is_sending: bool = False

    def clear(self) -> None:
        """Reset the counts."""
        self.sent = self.received = self.turns = 0
        self.is_sending = False

    def count(self, data: bytes, *, to_server: bool) -> None:
        """Count forwarded data."""
        if to_server:
            self.sent += len(data)
        else:
            self.received += len(data)
            self.turns += self.is_sending
        self.is_sending = to_server


@contextlib.contextmanager
def count_traffic(port: int) -> Iterator[tuple[int, Wire]]:
    """Start a proxy for the server on this port; yield the proxy's port and its counts."""
    wire = Wire()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=(listening, port, wire), daemon=True).start()
        yield listening.getsockname()[1], wire


def _serve(listening: socket.socket, port: int, wire: Wire) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for source, target, to_server in ((client, server, True), (server, client, False)):
                threading.Thread(target=_forward, args=(source, target, wire, to_server), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, wire: Wire, to_server: bool) -> None:
    with contextlib.suppress(OSError), source, target:
        while data := source.recv(1 << 20):
            wire.count(data, to_server=to_server)
            target.sendall(data)
