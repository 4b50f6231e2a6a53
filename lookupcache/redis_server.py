"""Connections to Redis: one server, the master that sentinels report, or a cluster; sync and async.

The `redis` connector and the store (`lookupcache.store`) use the same clients.

url, options ─► Address (on the driver, nothing connected) ─► Server · Cluster · AsyncServer · AsyncCluster
Command (one for many keys) ─► one round trip ─► a reply per key, or its error
"""

from __future__ import annotations

import importlib.util
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from lookupcache.connector import hide_userinfo, is_retryable
from lookupcache.errors import ConnectorError, OptionError
from lookupcache.source_options import AnswerLimit, seconds
from lookupcache.tls import TlsOptions

if TYPE_CHECKING:
    import redis
    import redis.asyncio

CONNECT_SECONDS = 10.0
"""How long a server may take to accept a connection, by default."""

TLS_MODES = ("verify-full", "verify-ca", "require")
"""What ``rediss://`` supports: it is always encrypted."""

_FORMER_TLS_MODES = {"full": "verify-full", "none": "require"}
"""Values of the option ``tls.mode`` when its name was ``tls.verify``."""

SCHEMES = (
    "redis://user:password@host:6379/0", "rediss://… for TLS", "unix:///path/to.sock",
    "redis+sentinel://host:26379,host:26379/service/0", "redis+cluster://host:6379,host:6379",
)  # fmt: skip
_TEMPORARY = ("BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "UNBLOCKED", "NOREPLICAS")


@dataclass(frozen=True)
class KeyCommand:
    """A command for many keys with further arguments ``fields``; with ``together``, it is sent once for all keys."""

    command: bytes
    keys: list[bytes]
    fields: tuple[bytes, ...] = ()
    together: bool = False

    def pack(self) -> bytes:
        """Return the encoded commands; redis-py's own encoding takes longer than the round trip."""
        if self.together:
            return pack([self.command, *self.keys])
        head = b"*%d\r\n%b" % (len(self.fields) + 2, _bulk(self.command))
        tail = b"".join(map(_bulk, self.fields))
        return b"".join([b"%b$%d\r\n%b\r\n%b" % (head, len(key), key, tail) for key in self.keys])

    def commands(self) -> Iterator[tuple[str | bytes, ...]]:
        """Yield one command per key, for a cluster, whose keys are on several servers."""
        command = "GET" if self.together else self.command.decode()
        return ((command, key, *self.fields) for key in self.keys)


def pack(command: Sequence[bytes]) -> bytes:
    """Return an encoded command.

    >>> pack([b"GET", b"a"])
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\na\\r\\n'
    """
    # Without a step of the interpreter per word: a command may have thousands.
    parts = [b"\r\n"] * (3 * len(command))
    parts[0::3] = map(_HEADS.__getitem__, map(len, command))
    parts[1::3] = command
    return b"*%d\r\n%b" % (len(command), b"".join(parts))


class _Heads(dict[int, bytes]):
    """What is before a word of so many bytes; kept for those that are usual."""

    def __missing__(self, size: int) -> bytes:
        head = b"$%d\r\n" % size
        return self.setdefault(size, head) if size <= _MOST_HEADS else head


_MOST_HEADS = 4_096
_HEADS = _Heads()


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


# ── address ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Address:
    """The servers and settings of a connection: ``kind`` is ``server``, ``sentinel`` or ``cluster``."""

    kind: str
    nodes: tuple[tuple[str, int], ...]
    service: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Address:
        """Read the option ``url`` and those for users, passwords and TLS; raises OptionError.

        >>> Address.of({"url": "redis+sentinel://a,b:26380/main/2"}).nodes
        (('a', 26379), ('b', 26380))
        """
        url = options["url"]
        try:
            return _address(url, options)
        except OptionError:
            raise
        except ValueError as error:
            raise OptionError(
                f"Option 'url' is {hide_userinfo(url)!r}, which is not the address of a Redis server: {error}.",
                hint=f"Write it as in {', '.join(SCHEMES)}.",
            ) from None

    def with_timeout(self, seconds: float) -> Address:
        """Return this address for clients that wait at most so long for each reply, and to connect.

        A request or reply that takes longer must have `LEAST_BYTES_PER_SECOND`: the time of a socket counts anew with
        each byte that is received, and is that for all bytes that are sent.
        """

        def pace(connection: Any) -> None:
            _pace(connection, seconds)

        def connect(connection: Any) -> None:
            connection.on_connect()
            _pace(connection, seconds)

        limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "redis_connect_func": connect}
        # A cluster's client logs in before it calls the function.
        own = {"redis_connect_func": pace} if self.kind == "cluster" else {}
        return replace(
            self, settings={**self.settings, **limits, **own}, sentinel_settings={**self.sentinel_settings, **limits}
        )

    def new_client(self) -> Server | Cluster:
        """Return a client for `Connector.lookup`; it connects with the first command."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.cluster import ClusterNode, RedisCluster
        from redis.retry import Retry
        from redis.sentinel import Sentinel

        settings = {**self.settings, "retry": Retry(NoBackoff(), 0)}
        if self.kind == "cluster":
            return Cluster(RedisCluster(startup_nodes=[ClusterNode(*node) for node in self.nodes], **settings))
        if self.kind == "sentinel":
            known = {**self.sentinel_settings, "retry": settings["retry"]}
            sentinel = Sentinel(self.nodes, sentinel_kwargs=known, **settings)
            return Server(sentinel.master_for(self.service), sentinel.sentinels)
        return Server(Redis(**self._node, **settings))

    def new_async_client(self) -> AsyncServer | AsyncCluster:
        """Return a client for `Connector.lookup_async`; it connects with the first command."""
        from redis.asyncio import Redis
        from redis.asyncio.cluster import ClusterNode, RedisCluster
        from redis.asyncio.retry import Retry
        from redis.asyncio.sentinel import Sentinel
        from redis.backoff import NoBackoff

        settings = {**self.settings, "retry": Retry(NoBackoff(), 0)}
        if self.kind == "cluster":
            return AsyncCluster(RedisCluster(startup_nodes=[ClusterNode(*node) for node in self.nodes], **settings))
        if self.kind == "sentinel":
            known = {**self.sentinel_settings, "retry": settings["retry"]}
            sentinel = Sentinel(self.nodes, sentinel_kwargs=known, **settings)
            return AsyncServer(sentinel.master_for(self.service), sentinel.sentinels)
        return AsyncServer(Redis(**self._node, **settings))

    @property
    def _node(self) -> dict[str, Any]:
        [(host, port)] = self.nodes
        return {"host": host, "port": port} if port else {"unix_socket_path": host}


def _address(url: str, options: Mapping[str, str]) -> Address:
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    kinds = ("",) if scheme == "unix" else ("", "sentinel", "cluster")
    if scheme not in ("redis", "rediss", "unix") or kind not in kinds:
        raise ValueError("its scheme is unknown")
    parts = urlsplit(url)
    if scheme != "unix" and "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError("a '/', '?' or '#' in its user or password is not written as '%2F', '%3F' or '%23'")
    user, _, hosts = parts.netloc.rpartition("@")
    path = [unquote(part) for part in parts.path.split("/")[1:] if part]
    settings = _settings(user, dict(parse_qsl(parts.query, keep_blank_values=True)), options, tls=scheme == "rediss")
    if scheme == "unix":
        if not parts.path.strip("/"):
            raise ValueError("it has no path")
        return Address("server", ((unquote(parts.path), 0),), "", settings)
    nodes = tuple(_node(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    if not kind and len(nodes) > 1:
        raise ValueError("it names several servers but neither sentinels nor a cluster")
    service = ""
    if kind == "sentinel":
        if not path:
            raise ValueError("it has no service name")
        service, *path = path
    if len(path) > (kind != "cluster") or not all(part.isdecimal() for part in path):
        raise ValueError("its path is not the number of a database")
    settings |= {"db": int(path[0])} if path else {}
    return Address(kind or "server", nodes, service, settings, _sentinel_settings(settings, options))


def _node(text: str, port: int) -> tuple[str, int]:
    node = urlsplit(f"//{text}")
    if not node.hostname:
        raise ValueError("it has no host")
    try:
        given = node.port
    except ValueError:
        # Python's error quotes what stands there, which may be a part of a password.
        raise ValueError("the port of a server is no number, or out of range") from None
    return node.hostname, port if given is None else given


def _settings(user: str, query: dict[str, str], options: Mapping[str, str], *, tls: bool) -> dict[str, Any]:
    name, _, password = user.partition(":")
    timeout = seconds(options, "connect.timeout") or CONNECT_SECONDS
    settings: dict[str, Any] = {"protocol": 2, "socket_timeout": None, "socket_connect_timeout": timeout}
    settings |= {"username": unquote(name) or None, "password": unquote(password) or None} | _login(options, "")
    database = query.pop("db", None)
    if query:
        raise ValueError(f"a setting {next(iter(query))!r} is not supported; TLS is set by options")
    settings |= {} if database is None else {"db": int(database)}
    unused = [key for key in options if key.startswith("tls.")]
    if unused and not tls:
        raise OptionError(
            f"Option {unused[0]!r} is set, but 'url' does not start with 'rediss://'.",
            hint="Write 'rediss://' for a connection with TLS, or leave the option out.",
        )
    return settings | (_tls(options) if tls else {})


def _login(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return redis-py's settings for the user and the password, if options set them."""
    names = {"username": f"{prefix}user", "password": f"{prefix}password"}
    return {setting: options[option] for setting, option in names.items() if options.get(option)}


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    tls = TlsOptions.of(options, modes=TLS_MODES, former_modes=_FORMER_TLS_MODES)
    named = {
        "ssl_ca_data" if tls.has_ca_text else "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.certificate,
        "ssl_keyfile": tls.key,
        "ssl_password": tls.key_password,
    }
    checked = {
        "ssl_cert_reqs": "none" if tls.mode == "require" else "required",
        "ssl_check_hostname": tls.mode == "verify-full",
    }
    return {"ssl": True, **{name: value for name, value in named.items() if value}, **checked}


def _sentinel_settings(settings: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    own = {key: value for key, value in settings.items() if key.startswith(("socket_", "ssl"))}
    timeout = settings["socket_connect_timeout"]
    return {**own, "protocol": 2, "socket_timeout": timeout, **_login(options, "sentinel.")}


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────


class Server:
    """One server, over redis-py's connection pool; ``sentinels`` are the clients that report its address."""

    def __init__(self, client: redis.Redis, sentinels: Sequence[redis.Redis] = ()) -> None:
        self._client = client
        self._sentinels = sentinels

    def execute(self, key_command: KeyCommand, limit: AnswerLimit | None = None) -> list[Any]:
        """Return the reply for each key, which may be an error; raises the error of a lost connection.

        With a limit, reading stops with its error as soon as the replies have more bytes.
        """
        replies = self._exchange(key_command.pack(), 1 if key_command.together else len(key_command.keys), limit)
        return _flat(key_command, replies)

    def run(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Send commands in one round trip; return the reply for each, which may be an error."""
        return self._exchange(b"".join(map(pack, commands)), len(commands))

    def _exchange(self, packed: bytes, count: int, limit: AnswerLimit | None = None) -> list[Any]:
        """Send encoded commands, and return their replies; raises the error of a lost connection."""
        from redis.exceptions import MovedError, ResponseError

        pool = self._client.connection_pool
        connection = pool.get_connection()
        replies = []
        try:
            connection.send_packed_command([packed])
            with _limited(connection, limit):
                for _ in range(count):
                    try:
                        replies.append(connection.read_response())
                    except MovedError as error:
                        raise _of_a_cluster() from error
                    except ResponseError as error:
                        replies.append(error)
        except BaseException:
            # Unread replies would be taken as those of the next command.
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        return replies

    def check(self) -> None:
        """Connect, log in and check that a Redis server answers."""
        from redis.exceptions import NoPermissionError

        with suppress(NoPermissionError):
            self._client.ping()

    def connect(self) -> None:
        """Connect, for the next command; a server that refuses PING, as one does that cannot save its data, answers."""
        from redis.exceptions import ResponseError

        with suppress(ResponseError):
            self._client.ping()

    def scan(self, pattern: bytes, kind: str, count: int) -> Iterator[bytes]:
        """Yield the names of keys of a type, possibly with duplicates.

        All over one connection, so that a lost one fails the scan: a cursor is not valid on another server.
        """
        from redis import Redis

        with Redis(connection_pool=self._client.connection_pool, single_connection_client=True) as client:
            yield from client.scan_iter(pattern, count, _type=kind)

    def connect_tracking(self, prefix: bytes, seconds: float) -> Any:
        """Return a new connection on which the server reports changed keys; reads on it time out after ``seconds``."""
        pool = self._client.connection_pool
        settings = {**pool.connection_kwargs, "protocol": 3, "socket_timeout": seconds}
        connection = pool.connection_class(**settings)
        try:
            connection.connect()
            # Without a handler, redis-py drops such messages.
            connection._parser.set_invalidation_push_handler(_keep)
            connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", *(["PREFIX", prefix] if prefix else []))
            connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def close(self) -> None:
        """Disconnect."""
        for client in (self._client, *self._sentinels):
            client.connection_pool.disconnect()


class Cluster:
    """The servers of a cluster; each gets the commands for the keys of its slots, in parallel."""

    def __init__(self, client: redis.RedisCluster) -> None:
        self._client = client

    def execute(self, key_command: KeyCommand, limit: AnswerLimit | None = None) -> list[Any]:
        """Return the reply for each key, which may be an error; a limit is compared with the replies of all servers."""
        pipeline = self._client.pipeline()
        for command in key_command.commands():
            pipeline.execute_command(*command)
        return _within(limit, pipeline.execute(raise_on_error=False))

    def run(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Send commands of one key each to their servers; return the reply for each, which may be an error."""
        pipeline = self._client.pipeline()
        for name, *arguments in commands:
            pipeline.execute_command(name.decode(), *arguments)
        return pipeline.execute(raise_on_error=False)

    def time(self) -> tuple[int, int]:
        """Return the clock of one of the servers, as TIME does."""
        return self._client.time(target_nodes=self._client.RANDOM)

    def check(self) -> None:
        """Check that a server answers."""
        self._client.ping(target_nodes=self._client.RANDOM)

    def connect(self) -> None:
        """Connect to all servers that have keys, for the next commands; raises an error if none of them answers."""
        from redis.exceptions import RedisError, ResponseError

        errors: list[Exception] = []
        nodes = self._client.get_primaries()
        for node in nodes:
            try:
                self._client.ping(target_nodes=node)
            except ResponseError:
                pass
            except (RedisError, OSError) as error:
                errors.append(error)
        if errors and len(errors) == len(nodes):
            raise errors[0]

    def scan(self, pattern: bytes, kind: str, count: int) -> Iterator[bytes]:
        """Yield the names of keys of a type on all servers, possibly with duplicates."""
        return self._client.scan_iter(pattern, count, _type=kind, target_nodes=self._client.PRIMARIES)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


class AsyncServer:
    """`Server` for an event loop."""

    def __init__(self, client: redis.asyncio.Redis, sentinels: Sequence[redis.asyncio.Redis] = ()) -> None:
        self._client = client
        self._sentinels = sentinels

    async def execute(self, key_command: KeyCommand, limit: AnswerLimit | None = None) -> list[Any]:
        """Return the reply for each key, which may be an error; raises the error of a lost connection."""
        from redis.exceptions import MovedError, ResponseError

        pool = self._client.connection_pool
        connection = await pool.get_connection()
        replies = []
        try:
            await connection.send_packed_command([key_command.pack()])
            with _limited(connection, limit):
                for _ in range(1 if key_command.together else len(key_command.keys)):
                    try:
                        replies.append(await connection.read_response())
                    except MovedError as error:
                        raise _of_a_cluster() from error
                    except ResponseError as error:
                        replies.append(error)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
        return _flat(key_command, replies)

    async def check(self) -> None:
        """Connect, log in and check that a Redis server answers."""
        from redis.exceptions import NoPermissionError

        with suppress(NoPermissionError):
            await self._client.ping()

    async def close(self) -> None:
        """Disconnect."""
        for client in (self._client, *self._sentinels):
            await client.connection_pool.disconnect()


class AsyncCluster:
    """`Cluster` for an event loop."""

    def __init__(self, client: redis.asyncio.RedisCluster) -> None:
        self._client = client

    async def execute(self, key_command: KeyCommand, limit: AnswerLimit | None = None) -> list[Any]:
        """Return the reply for each key, which may be an error; a limit is compared with the replies of all servers."""
        pipeline = self._client.pipeline()
        for command in key_command.commands():
            pipeline.execute_command(*command)
        return _within(limit, await pipeline.execute(raise_on_error=False))

    async def check(self) -> None:
        """Check that a server answers."""
        await self._client.initialize()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()


# ── the size of replies ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _limited(connection: Any, limit: AnswerLimit | None) -> Iterator[None]:
    """Count what is read from a connection: a reply is complete in memory before redis-py returns it."""
    if limit is None:
        yield
        return
    reading, name = _reader_of(connection)
    source = getattr(reading, name)
    setattr(reading, name, _Counted(source, limit))
    try:
        yield
    finally:
        if isinstance(getattr(reading, name, None), _Counted):
            setattr(reading, name, source)


def _reader_of(connection: Any) -> tuple[Any, str]:
    """Return what reads from a connection, and the name of its attribute for the socket or the stream."""
    reading: Any = connection._parser
    name = "_stream" if hasattr(reading, "_stream") else "_sock"
    if hasattr(getattr(reading, "_buffer", None), name):
        # Without hiredis, the parser for threads reads from a buffer, which has the socket.
        reading = reading._buffer
    return reading, name


class _Counted:
    """A socket, or the stream of an event loop, whose bytes a limit counts."""

    def __init__(self, source: Any, limit: AnswerLimit) -> None:
        self._source = source
        self._limit = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def recv_into(self, buffer: Any) -> int:
        size: int = self._source.recv_into(buffer)
        self._limit.add(size)
        return size

    def recv(self, most: int) -> bytes:
        data: bytes = self._source.recv(most)
        self._limit.add(len(data))
        return data

    async def read(self, most: int) -> bytes:
        data: bytes = await self._source.read(most)
        self._limit.add(len(data))
        return data

    async def readline(self) -> bytes:
        data: bytes = await self._source.readline()
        self._limit.add(len(data))
        return data

    async def readexactly(self, count: int) -> bytes:
        # Before, since all of it is kept in memory.
        self._limit.add(count)
        data: bytes = await self._source.readexactly(count)
        return data


LEAST_BYTES_PER_SECOND = 4 << 20
"""How fast a request or reply must be that takes longer than the timeout of its client."""

_PIECE_BYTES = 256 << 10


def _pace(connection: Any, seconds: float) -> None:
    """Let requests and replies on a connection end with TimeoutError if they take longer than they may."""
    reading, name = _reader_of(connection)
    connection._sock = _Paced(connection._sock, seconds)
    setattr(reading, name, connection._sock)


class _Paced:
    """A socket that raises TimeoutError if a request, or the replies to it, take longer than their bytes may."""

    def __init__(self, source: Any, seconds: float) -> None:
        self._source = source
        self._seconds = seconds
        self._start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def _start(self) -> None:
        self._until = time.monotonic() + self._seconds

    def sendall(self, data: Any) -> None:
        self._start()
        left = memoryview(data)
        while len(left):
            # Not all at once: the time of the socket would be that for all of it.
            left = left[self._counted(self._source.send(left[:_PIECE_BYTES])) :]
        self._start()

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        return self._counted(self._source.recv_into(buffer, size, flags))

    def recv(self, most: int, flags: int = 0) -> bytes:
        data: bytes = self._source.recv(most, flags)
        self._counted(len(data))
        return data

    def _counted(self, size: int) -> int:
        self._until += size / LEAST_BYTES_PER_SECOND
        # No bytes: the server has closed the connection, maybe while it was idle, which the client finds out by itself.
        if size and time.monotonic() > self._until:
            raise TimeoutError("it takes too long")
        return size


def _within(limit: AnswerLimit | None, replies: list[Any]) -> list[Any]:
    """Return replies that a limit allows."""
    if limit is not None:
        limit.add(sum(map(_size, replies)))
    return replies


def _size(reply: Any) -> int:
    if isinstance(reply, dict):
        return sum(map(_size, reply)) + sum(map(_size, reply.values()))
    if isinstance(reply, list):
        return sum(map(_size, reply))
    return len(reply) if isinstance(reply, bytes | str) else 1


def _keep(message: Any) -> Any:
    return message


def _of_a_cluster() -> ConnectorError:
    hint = "Write 'redis+cluster://' for a cluster."
    return ConnectorError("Option 'url': the server is part of a cluster.", hint=hint)


def _flat(key_command: KeyCommand, replies: list[Any]) -> list[Any]:
    """Return a reply per key; raises an error that is the reply for all of them."""
    if not key_command.together:
        return replies
    [reply] = replies
    if isinstance(reply, Exception):
        raise reply
    return list(reply)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────


def check_driver() -> None:
    """Raise ConnectorError if redis-py is not installed."""
    if importlib.util.find_spec("redis") is None:
        raise ConnectorError("Connector 'redis' needs the package 'redis'.", hint="pip install 'lookupcache[redis]'")


def is_temporary(error: Exception) -> bool:
    """Return whether the same call may succeed later: the connection was lost or late, or the server busy."""
    from redis import exceptions as known

    if isinstance(error, known.AuthenticationError | known.AuthorizationError | known.NoPermissionError):
        return False
    if isinstance(error, known.ConnectionError | known.TimeoutError):
        return _refusal_of_tls(error) is None
    if isinstance(error, known.ReadOnlyError | known.AskError | known.TryAgainError | known.ClusterError):
        return True
    if isinstance(error, known.ResponseError):
        return str(error).startswith(_TEMPORARY)
    if isinstance(error, known.RedisClusterException):
        return "not enabled" not in str(error)
    return not isinstance(error, known.RedisError) and is_retryable(error)


def connect_error(error: Exception, url: str) -> Exception:
    """Return the error to raise for a failed connection attempt: a ConnectorError if it is not temporary."""
    from redis import exceptions as known

    if is_temporary(error):
        return error
    where = f"Option 'url' ({hide_userinfo(url)!r})"
    if isinstance(error, known.AuthenticationError | known.AuthorizationError):
        hint = "Set the options 'user' and 'password'; 'env:NAME' and 'file:PATH' keep them out of the code."
        return ConnectorError(f"{where}: the server rejects the login: {str(error).rstrip('.')}.", hint=hint)
    if (reason := _refusal_of_tls(error)) is not None:
        hint = "Name the authority that signed the server's certificate in option 'tls.ca'."
        return ConnectorError(f"{where}: the server's certificate is not trusted: {reason}.", hint=hint)
    if isinstance(error, known.RedisClusterException):
        return ConnectorError(
            f"{where}: the server is not part of a cluster.", hint="Write 'redis://' for a single server."
        )
    if isinstance(error, known.InvalidResponse):
        return ConnectorError(f"{where}: the server does not speak the Redis protocol.", hint="Correct the URL.")
    if isinstance(error, known.ResponseError):
        hint = "Correct the URL, or let the server allow it."
        return ConnectorError(f"{where}: the server rejects a command: {error}.", hint=hint)
    return error


def _refusal_of_tls(error: BaseException | None) -> str | None:
    """Return why a certificate was not trusted, if that is the cause of the error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return str(error).partition("CERTIFICATE_VERIFY_FAILED]")[2].strip(" .:") or "it cannot be verified"
        error = error.__cause__ or error.__context__
    return None
