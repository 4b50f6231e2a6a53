"""Real servers for the connectors' tests, each on a free port of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request as it came, the path with its query and nothing decoded."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True)
class Reply:
    """What is sent back; a body that is neither text nor bytes becomes JSON."""

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        """Return the body as it is sent."""
        body = self.body if isinstance(self.body, str | bytes) else json.dumps(self.body)
        return body.encode() if isinstance(body, str) else body


class HttpServer:
    """An HTTP server, with TLS where it is given a certificate, that replies as a function says.

    ``asked`` are the requests that came, ``connections`` how many connections they came over. `kill` breaks all of
    them; `start` then listens on the same port again.
    """

    def __init__(
        self, reply: Callable[[Asked], Reply], *, certificate: Path | None = None, clients_of: Path | None = None
    ) -> None:
        self.reply = reply
        self.asked: list[Asked] = []
        self.connections = 0
        self.port = 0
        self._open: set[socket.socket] = set()
        self._scheme = "http"
        self._tls = None
        if certificate is not None:
            self._scheme, self._tls = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        if self._tls is not None and clients_of is not None:
            self._tls.verify_mode = ssl.CERT_REQUIRED
            self._tls.load_verify_locations(clients_of)

    @property
    def url(self) -> str:
        """Where it listens; the same after it was killed."""
        return f"{self._scheme}://localhost:{self.port}"

    def start(self) -> HttpServer:
        """Listen."""
        outer = self

        class Handler(_Handler):
            server_of = outer

        self._server = _Listener(("localhost", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def kill(self) -> None:
        """Break all connections, and refuse new ones."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def taken(self, connection: socket.socket) -> socket.socket:
        """Take a connection, in a thread of its own: a TLS handshake waits for the client."""
        self.connections += 1
        taken = connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)
        self._open.add(taken)
        return taken

    def left(self, connection: socket.socket) -> None:
        """Forget a connection."""
        self._open.discard(connection)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """Pass over connections that were broken."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_of: HttpServer

    def setup(self) -> None:
        self.request = self.server_of.taken(self.request)
        super().setup()

    def finish(self) -> None:
        self.server_of.left(self.request)
        super().finish()
        # The listener closes the plain socket, which TLS has taken over.
        self.request.close()

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        asked = Asked(self.command, self.path, dict(self.headers), body)
        self.server_of.asked.append(asked)
        reply = self.server_of.reply(asked)
        data = reply.data()
        self.send_response(reply.status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **reply.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
