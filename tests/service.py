"""A real HTTP service of rows by key, in a process of its own, that can be made to misbehave.

    GET  /rows/<key>                 the key's rows, a JSON list
    POST /rows     [key, …]          a list of rows per key, in the order of the keys
    POST /steer/<command>  {…}       what `Service` says; never disturbed, never counted

Run as a program it takes one line of JSON, says its port in one line, and serves until its input ends: so it
ends with whoever started it, however that ends.
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
    """A request that came: ``at`` is the monotonic clock's seconds, which all processes of a machine share."""

    method: str
    path: str
    keys: list[Any]
    at: float


class Service:
    """Starts, steers and kills the service; every call returns when it is done.

    Each of `slow`, `fail`, `hang`, `short` and `tear` is for the next ``times`` requests, or until `heal`; what
    is said later comes after what was said before.
    """

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._rows: Table = {}

    @property
    def url(self) -> str:
        """Where the service is; the same after it was killed and started again."""
        return f"http://127.0.0.1:{self.port}"

    # ── the process ──────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start it, healthy, on the port that it had before, with the rows that it was given last."""
        if self._process is not None:
            return
        program = [sys.executable, "-I", __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = process = subprocess.Popen(program, **pipes)
        process.stdin.write(json.dumps({"port": self.port, "rows": _by_text(self._rows)}) + "\n")
        process.stdin.flush()
        self.port = int(process.stdout.readline())

    def kill(self) -> None:
        """End it as `kill -9` does: connections break, nothing is answered any more."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()

    def reset(self) -> None:
        """Bring it back to how it was when new: running, healthy, without rows, nothing asked, nothing open."""
        self.start()
        self.heal()
        self.release()
        self.wait_open(0)
        self.set_rows({})
        self._steer("forget")

    # ── how it behaves ───────────────────────────────────────────────────────────────────────────────────

    def set_rows(self, rows: Table) -> None:
        """Replace the table; a key that is not in it has no rows."""
        self._rows = dict(rows)
        self._steer("rows", rows=_by_text(rows))

    def slow(self, seconds: float, times: int | None = None) -> None:
        """Answer after so long, or when released."""
        self._disturb("wait", times, seconds=seconds)

    def hang(self, times: int | None = None) -> None:
        """Do not answer until `release`; after half a minute answer all the same, so that no test hangs for good."""
        self._disturb("wait", times, seconds=30)

    def fail(self, status: int = 503, *, retry_after: int | str | None = None, times: int | None = None) -> None:
        """Answer with an error's status."""
        self._disturb("fail", times, status=status, retry_after=retry_after)

    def short(self, times: int | None = None) -> None:
        """Answer with one list, or one key's last row, too few."""
        self._disturb("short", times)

    def tear(self, times: int | None = None) -> None:
        """Break the connection in the middle of the body."""
        self._disturb("tear", times)

    def heal(self) -> None:
        """Behave from now on; what hangs goes on hanging."""
        self._steer("heal")

    def release(self) -> None:
        """Let all that hangs or is slow answer now."""
        self._steer("release")

    # ── what came ────────────────────────────────────────────────────────────────────────────────────────

    def requests(self) -> list[Request]:
        """Return the requests in the order of their coming."""
        return [Request(**request) for request in self._steer("requests")]

    def open(self) -> int:
        """Return how many requests are neither answered nor given up by their client."""
        return self._steer("open")

    def most_open(self) -> int:
        """Return how many requests were open at a time, at most."""
        return self._steer("most_open")

    def wait_open(self, number: int, seconds: float = 10) -> None:
        """Wait until exactly so many requests are open; raises TimeoutError."""
        self._steer("wait", what="open", number=number, seconds=seconds)

    def wait_came(self, number: int, seconds: float = 10) -> None:
        """Wait until so many requests have come, or more; raises TimeoutError."""
        self._steer("wait", what="came", number=number, seconds=seconds)

    def _disturb(self, kind: str, times: int | None, **how: Any) -> None:
        self._steer("disturb", kind=kind, times=times, how=how)

    def _steer(self, command: str, **arguments: Any) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", f"/steer/{command}", json.dumps(arguments))
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "late" in answer:
            raise TimeoutError(answer["late"])
        return answer["is"]


def _by_text(rows: Table) -> dict[str, Any]:
    return {str(key): list(some) for key, some in rows.items()}


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Trouble:
    """What becomes of the next ``times`` requests."""

    kind: str = "none"
    times: int | None = None
    how: dict[str, Any] = field(default_factory=dict)


@dataclass
class State:
    """What all requests share; a change wakes those who wait for one."""

    rows: dict[str, Any]
    troubles: list[Trouble] = field(default_factory=list)
    came: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    held: set[socket.socket] = field(default_factory=set)
    releases: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def enter(self, method: str, path: str, keys: list[Any]) -> tuple[Trouble, int]:
        """Note a request; return what is to become of it, and how many releases came before it."""
        with self.changed:
            self.came.append({"method": method, "path": path, "keys": keys, "at": time.monotonic()})
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            self.changed.notify_all()
            return self._next_trouble(), self.releases

    def leave(self) -> None:
        """Note that a request is over."""
        with self.changed:
            self.open -= 1
            self.changed.notify_all()

    def _next_trouble(self) -> Trouble:
        if not self.troubles:
            return Trouble()
        first = self.troubles[0]
        if first.times is not None:
            first.times -= 1
            if not first.times:
                self.troubles.pop(0)
        return first

    def hold(self, client: socket.socket, seconds: float, releases: int) -> bool:
        """Wait for the time to pass or for the next release; return whether the client is still there."""
        here, there = socket.socketpair()
        with here, there:
            with self.changed:
                self.held.add(there)
                if releases != self.releases:
                    there.send(b"!")
            ready, _, _ = select.select([client, here], [], [], seconds)
            with self.changed:
                self.held.discard(there)
        return client not in ready

    def steer(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do what `Service` asks."""
        with self.changed:
            return {"is": getattr(self, f"_{command}")(**arguments)}

    def wait(self, what: str, number: int, seconds: float) -> dict[str, Any]:
        """Wait until so many requests are open, or came."""

        def enough() -> bool:
            return self.open == number if what == "open" else len(self.came) >= number

        with self.changed:
            if self.changed.wait_for(enough, seconds):
                return {"is": None}
            return {"late": f"after {seconds:g} s {self.open} requests open, {len(self.came)} came, not {number}"}

    def _rows(self, rows: dict[str, Any]) -> None:
        self.rows = rows

    def _disturb(self, **trouble: Any) -> None:
        self.troubles.append(Trouble(**trouble))

    def _heal(self) -> None:
        self.troubles.clear()

    def _release(self) -> None:
        self.releases += 1
        for held in self.held:
            held.send(b"!")

    def _forget(self) -> None:
        self.came.clear()
        self.most_open = self.open

    def _requests(self) -> list[dict[str, Any]]:
        return self.came

    def _open(self) -> int:
        return self.open

    def _most_open(self) -> int:
        return self.most_open


class Handler(BaseHTTPRequestHandler):
    """One connection, kept alive."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    state: State
    releases = 0

    def do_GET(self) -> None:
        """Answer with the rows of one key."""
        key = unquote(self.path.removeprefix("/rows/"))
        self._serve([key], lambda: self.state.rows.get(key, []))

    def do_POST(self) -> None:
        """Answer with the rows of many keys, or do as one is told."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        command = self.path.removeprefix("/steer/")
        if command == "wait":
            self._send(self.state.wait(**body))
        elif command != self.path:
            self._send(self.state.steer(command, body))
        else:
            self._serve(body, lambda: [self.state.rows.get(str(key), []) for key in body])

    def _serve(self, keys: list[Any], rows: Any) -> None:
        trouble, self.releases = self.state.enter(self.command, self.path, keys)
        try:
            getattr(self, f"_{trouble.kind}")(rows, **trouble.how)
        finally:
            # What was written leaves after this: whoever has an answer finds it counted.
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
        """Say nothing: requests are noted elsewhere."""


class Server(ThreadingHTTPServer):
    """Takes a burst of connections, and dies at once."""

    request_queue_size = 1024
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Pass over connections that their clients broke."""


def main() -> None:
    """Serve until the input ends."""
    setting = json.loads(sys.stdin.readline())
    Handler.state = State(setting["rows"])
    server = Server(("127.0.0.1", setting["port"]), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
