"""Where servers are, and how to connect: URL and options ─► `Address` ─► a client, which connects when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from lookupcache.connector import hide_address
from lookupcache.errors import OptionError
from lookupcache.redis.clients import Cluster, RedisServer
from lookupcache.redis.replies import limit_time
from lookupcache.source_options import seconds
from lookupcache.tls import TlsOptions

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
                f"Option 'url' is {hide_address(url)!r}, which is not the address of a Redis server: {error}.",
                hint=f"Write it as in {', '.join(SCHEMES)}.",
            ) from None

    def with_timeout(
        self, seconds: float, for_reply: Callable[[], float], has_accepted: Callable[[], object]
    ) -> Address:
        """Return this address for clients that wait at most so long to connect, and for each reply.

        A request or reply that takes longer must have `LEAST_BYTES_PER_SECOND`. A socket's timeout counts anew with
        each received byte, but is for all sent bytes together.

        In ``seconds``, a server has to accept a connection, and one of a cluster also the login. Then ``has_accepted``
        is called. ``for_reply`` returns how long its next reply may take.
        """

        def pace(connection: Any) -> None:
            has_accepted()
            limit_time(connection, for_reply)

        def connect(connection: Any) -> None:
            pace(connection)
            connection.on_connect()  # The parser takes the socket as it is then.

        limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "redis_connect_func": connect}
        # A cluster's client logs in before it calls the function.
        own = {"redis_connect_func": pace} if self.kind == "cluster" else {}
        return replace(
            self, settings={**self.settings, **limits, **own}, sentinel_settings={**self.sentinel_settings, **limits}
        )

    def new_client(self) -> RedisServer | Cluster:
        """Return a client for `Connector.lookup`; it connects with the first command."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.cluster import ClusterNode, RedisCluster
        from redis.retry import Retry
        from redis.sentinel import Sentinel

        settings = {**self._with_timed_login(), "retry": Retry(NoBackoff(), 0)}
        if self.kind == "cluster":
            return Cluster(RedisCluster(startup_nodes=[ClusterNode(*node) for node in self.nodes], **settings))
        if self.kind == "sentinel":
            known = {**self.sentinel_settings, "retry": settings["retry"]}
            sentinel = Sentinel(self.nodes, sentinel_kwargs=known, **settings)
            return RedisServer(sentinel.master_for(self.service), sentinel.sentinels)
        return RedisServer(Redis(**self._node, **settings))

    def _with_timed_login(self) -> dict[str, Any]:
        """Return the settings of clients that wait for a login as long as to connect, but for replies without an end.

        redis-py's own limit for connecting ends when the server has accepted, which one that hangs may still do.
        """
        if self.settings["socket_timeout"] is not None:
            return dict(self.settings)

        def log_in(connection: Any) -> None:
            if self.kind != "cluster":  # Its client logs in before it calls the function.
                connection.on_connect()
            connection._sock.settimeout(None)
            # Both parsers of redis-py keep it, and set it again when they look for a reply without waiting.
            parser = connection._parser
            for one in (parser, getattr(parser, "_buffer", None)):
                for name in ("socket_timeout", "_socket_timeout"):
                    if hasattr(one, name):
                        setattr(one, name, None)

        seconds = self.settings["socket_connect_timeout"]
        return {**self.settings, "socket_timeout": seconds, "redis_connect_func": log_in}

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
        if hosts or not parts.path.startswith("/") or not parts.path.strip("/"):
            raise ValueError("a socket's absolute path follows three slashes, as in 'unix:///run/redis.sock'")
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
