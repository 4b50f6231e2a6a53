"""A real HTTP service of rows by key, in its own process, with injectable faults.

    GET  /rows/<key>                 the key's rows, a JSON list
    POST /rows     [key, …]          a list of rows per key, in the order of the keys
    POST /steer/<command>  {…}       a command of `Service`; never affected by faults, never recorded

Run as a program it reads one line of JSON, prints its port, and serves until its standard input is closed, so that
it ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Table = Mapping[Any, Sequence[Any]]


@dataclass(frozen=True)
class Request:
    """A received request; ``at`` is the time of the monotonic clock, which all processes of a machine share."""

    method: str
    path: str
    keys: list[Any]
    at: float


class Service:
    """Starts, controls and kills the service; every method returns when the command has taken effect.

    Each of `slow`, `fail`, `hang`, `short` and `tear` affects the next ``times`` requests, or all until `heal`; a
    further fault follows those set before.
    """

    program = __file__

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._rows: Table = {}

    @property
    def url(self) -> str:
        """The service's URL, which stays the same after `kill` and `start`."""
        return f"http://127.0.0.1:{self.port}"

    # ── the process ──────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the service without faults, on its previous port, with the rows set last."""
        if self._process is not None:
            return
        program = [sys.executable, "-I", self.program]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = process = subprocess.Popen(program, **pipes)
        process.stdin.write(json.dumps({"port": self.port, "rows": _with_text_keys(self._rows)}) + "\n")
        process.stdin.flush()
        self.port = int(process.stdout.readline())

    def kill(self) -> None:
        """Kill the process with SIGKILL: connections break, and nothing is answered any more."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()

    def reset(self) -> None:
        """Restore the initial state: running, without faults, rows, recorded requests and open requests."""
        self.start()
        self.heal()
        self.release()
        self.wait_open(0)
        self.set_rows({})
        self._send_command("forget")

    # ── rows and faults ──────────────────────────────────────────────────────────────────────────────────

    def set_rows(self, rows: Table) -> None:
        """Replace the table; missing keys have no rows."""
        self._rows = dict(rows)
        self._send_command("rows", rows=_with_text_keys(rows))

    def slow(self, seconds: float, times: int | None = None) -> None:
        """Respond after this time, or on `release`."""
        self._inject("wait", times, seconds=seconds)

    def hang(self, times: int | None = None) -> None:
        """Do not respond until `release`, or for half a minute, so that no test hangs forever."""
        self._inject("wait", times, seconds=30)

    def fail(self, status: int = 503, *, retry_after: int | str | None = None, times: int | None = None) -> None:
        """Respond with an error status."""
        self._inject("fail", times, status=status, retry_after=retry_after)

    def short(self, times: int | None = None) -> None:
        """Omit the last list of the response, or the last row of a key."""
        self._inject("short", times)

    def tear(self, times: int | None = None) -> None:
        """Break the connection in the middle of the body."""
        self._inject("tear", times)

    def heal(self) -> None:
        """Remove all faults; requests that hang keep hanging."""
        self._send_command("heal")

    def release(self) -> None:
        """Respond to all hanging and slow requests now."""
        self._send_command("release")

    # ── recorded requests ────────────────────────────────────────────────────────────────────────────────

    def requests(self) -> list[Request]:
        """Return the received requests in order."""
        return [Request(**request) for request in self._send_command("requests")]

    def open(self) -> int:
        """Return the number of requests that are neither answered nor abandoned by the client."""
        return self._send_command("open")

    def most_open(self) -> int:
        """Return the maximum number of requests that were open at the same time."""
        return self._send_command("most_open")

    def wait_open(self, number: int, seconds: float = 10) -> None:
        """Wait until exactly ``number`` requests are open; raises TimeoutError."""
        self._send_command("wait", what="open", number=number, seconds=seconds)

    def wait_came(self, number: int, seconds: float = 10) -> None:
        """Wait until at least ``number`` requests were received; raises TimeoutError."""
        self._send_command("wait", what="received", number=number, seconds=seconds)

    def _inject(self, kind: str, times: int | None, **how: Any) -> None:
        self._send_command("inject", kind=kind, times=times, how=how)

    def _send_command(self, command: str, **arguments: Any) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=200)
        try:
            connection.request("POST", f"/steer/{command}", json.dumps(arguments))
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "late" in answer:
            raise TimeoutError(answer["late"])
        return answer["is"]


def _with_text_keys(rows: Table) -> dict[str, Any]:
    return {str(key): list(some) for key, some in rows.items()}


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Fault:
    """A fault of the next ``times`` requests."""

    kind: str = "none"
    times: int | None = None
    how: dict[str, Any] = field(default_factory=dict)


@dataclass
class State:
    """The state shared by all requests; changes notify the waiting threads."""

    rows: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    wakers: set[socket.socket] = field(default_factory=set)
    releases: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def enter(self, method: str, path: str, keys: list[Any]) -> tuple[Fault, int]:
        """Record a request; return its fault, and the number of releases before it."""
        with self.changed:
            self.received.append({"method": method, "path": path, "keys": keys, "at": time.monotonic()})
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            self.changed.notify_all()
            return self._next_fault(), self.releases

    def leave(self) -> None:
        """Record the end of a request."""
        with self.changed:
            self.open -= 1
            self.changed.notify_all()

    def _next_fault(self) -> Fault:
        if not self.faults:
            return Fault()
        first = self.faults[0]
        if first.times is not None:
            first.times -= 1
            if not first.times:
                self.faults.pop(0)
        return first

    def hold(self, client: socket.socket, seconds: float, releases: int) -> bool:
        """Wait for the time to pass or for the next release; return whether the client is still connected."""
        waiter, waker = socket.socketpair()
        with waiter, waker:
            with self.changed:
                self.wakers.add(waker)
                if releases != self.releases:
                    waker.send(b"!")
            ready, _, _ = select.select([client, waiter], [], [], seconds)
            with self.changed:
                self.wakers.discard(waker)
        return client not in ready

    def steer(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Execute a command of `Service`."""
        with self.changed:
            return {"is": getattr(self, f"_{command}")(**arguments)}

    def wait(self, what: str, number: int, seconds: float) -> dict[str, Any]:
        """Wait until ``number`` requests are open, or were received."""

        def is_reached() -> bool:
            return self.open == number if what == "open" else len(self.received) >= number

        with self.changed:
            if self.changed.wait_for(is_reached, seconds):
                return {"is": None}
            return {
                "late": f"after {seconds:g} s {self.open} requests open, {len(self.received)} received, not {number}"
            }

    def _rows(self, rows: dict[str, Any]) -> None:
        self.rows = rows

    def _inject(self, **fault: Any) -> None:
        self.faults.append(Fault(**fault))

    def _heal(self) -> None:
        self.faults.clear()

    def _release(self) -> None:
        self.releases += 1
        for waker in self.wakers:
            waker.send(b"!")

    def _forget(self) -> None:
        self.received.clear()
        self.most_open = self.open

    def _requests(self) -> list[dict[str, Any]]:
        return self.received

    def _open(self) -> int:
        return self.open

    def _most_open(self) -> int:
        return self.most_open


class Handler(BaseHTTPRequestHandler):
    """A persistent connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    state: State
    releases = 0

    def do_GET(self) -> None:
        """Respond with the rows of one key."""
        key = unquote(self.path.removeprefix("/rows/"))
        self._serve([key], lambda: self.state.rows.get(key, []))

    def do_POST(self) -> None:
        """Respond with the rows of many keys, or execute a command."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        command = self.path.removeprefix("/steer/")
        if command == "wait":
            self._send(self.state.wait(**body))
        elif command != self.path:
            self._send(self.state.steer(command, body))
        else:
            self._serve(body, lambda: [self.state.rows.get(str(key), []) for key in body])

    def _serve(self, keys: list[Any], rows: Any) -> None:
        fault, self.releases = self.state.enter(self.command, self.path, keys)
        try:
            getattr(self, f"_{fault.kind}")(rows, **fault.how)
        finally:
            # The response is flushed after this, so a client that has received it finds the request counted as ended.
            self.state.leave()

    def _none(self, rows: Any) -> None:
        self._send(rows())

    def _wait(self, rows: Any, seconds: float) -> None:
        if self.state.hold(self.connection, seconds, self.releases):
            self._send(rows())
        else:
            self.close_connection = True

    def _fail(self, rows: Any, status: int, retry_after: int | str | None) -> None:
        self._send({"error": status}, status, {} if retry_after is None else {"Retry-After": str(retry_after)})

    def _short(self, rows: Any) -> None:
        self._send(rows()[:-1])

    def _tear(self, rows: Any) -> None:
        self._send(rows(), torn=True)

    def _send(self, data: Any, status: int = 200, headers: Mapping[str, str] | None = None, torn: bool = False) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if torn else body)
        self.close_connection = self.close_connection or torn

    def log_message(self, *_: Any) -> None:
        """Log nothing: requests are recorded elsewhere."""


class Server(ThreadingHTTPServer):
    """A server that accepts bursts of connections, and does not wait for its threads at exit."""

    request_queue_size = 1024
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Ignore connections that clients have broken."""


def main(handler: type[Handler] = Handler) -> None:
    """Serve until standard input is closed."""
    setting = json.loads(sys.stdin.readline())
    handler.state = State(setting["rows"])
    server = Server(("127.0.0.1", setting["port"]), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
