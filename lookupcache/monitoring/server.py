"""A server for metrics, over HTTP, whose thread ends when it is closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

PATH = "/metrics"
_POLL_SECONDS = 0.2
_REQUEST_SECONDS = 1.0
"""How long a client may take to send its request, or to take the answer: other clients wait meanwhile."""

Render = Callable[[], tuple[str, bytes]]
"""Returns a content type and a body."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with the metrics; requests that take long to arrive are dropped."""

    server: _HttpServer
    timeout = _REQUEST_SECONDS
    server_version, sys_version = "lookupcache", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in (PATH, "/"):
            self.send_error(404, explain=f"The metrics are at {PATH}.")
            return
        try:
            kind, body = self.server.render()
        except Exception as error:
            # The error's text may name anything; its type does not.
            self.send_error(500, explain=f"The metrics cannot be read: {type(error).__name__}.")
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape per second is not news."""


class _HttpServer(HTTPServer):
    """Answers one request after the other, in the thread of the server."""

    allow_reuse_address = True
    timeout = _POLL_SECONDS

    def __init__(self, address: tuple[str, int], render: Render) -> None:
        self.render = render
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that goes away is no error of ours."""


class MetricsServer:
    """Serves metrics until it is closed, or until ``is_over`` returns true, which it is asked several times a second.

    Port 0 takes a free one. ``render`` returns the content type and the body of an answer. ``when_closed`` is called
    once, when no thread of the server but the calling one is left. Raises OSError for an address that it cannot use.
    """

    def __init__(
        self, addr: str, port: int, render: Render, *, is_over: Callable[[], bool], when_closed: Callable[[], None]
    ) -> None:
        self._server = _HttpServer((addr, port), render)
        self._closing = threading.Event()
        self._is_over, self._when_closed = is_over, when_closed
        self._thread = threading.Thread(target=self._serve, name="lookupcache-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else host
        return f"http://{name!s}:{port}{PATH}"

    @property
    def is_closed(self) -> bool:
        """Whether nothing is served any more."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close the port, and wait for the threads."""
        self._closing.set()
        # It wakes the thread on Linux; elsewhere that looks for itself soon.
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._closing.is_set() and not self._is_over():
                self._server.handle_request()
        finally:
            self._server.server_close()
            self._when_closed()
