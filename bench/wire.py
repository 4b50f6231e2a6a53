"""What crosses the wire between a client and a server: bytes each way, and how often the client waits."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Wire:
    """Counts of a connection; a turn is an answer that the client waited for."""

    sent: int = 0
    received: int = 0
    turns: int = 0
    asking: bool = False

    def clear(self) -> None:
        """Count from nothing."""
        self.sent = self.received = self.turns = 0
        self.asking = False

    def count(self, data: bytes, *, to_server: bool) -> None:
        """Count what passes by."""
        if to_server:
            self.sent += len(data)
        else:
            self.received += len(data)
            self.turns += self.asking
        self.asking = to_server


@contextlib.contextmanager
def counted(port: int) -> Iterator[tuple[int, Wire]]:
    """Listen before a server on this port; give the port to connect to, and what passes by."""
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
                threading.Thread(target=_pass_on, args=(source, target, wire, to_server), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, wire: Wire, to_server: bool) -> None:
    with contextlib.suppress(OSError), source, target:
        while data := source.recv(1 << 20):
            wire.count(data, to_server=to_server)
            target.sendall(data)
