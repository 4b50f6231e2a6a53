"""The address of a database server and the login, as the options set them."""

from __future__ import annotations

import ipaddress
import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from lookupcache.connector import hide_address, hide_userinfo
from lookupcache.errors import ConnectorError, OptionError
from lookupcache.source_options import seconds
from lookupcache.tls import TlsOptions
from lookupcache_sql.database import UnreachableError

_SHORT = 3
_TOO_MANY = re.compile("too many|connection slots|max_user_connections", re.IGNORECASE)


@dataclass(frozen=True)
class DatabaseServer:
    """A server and a database on it; its text contains no secret.

    The host may be the path of a Unix socket.
    """

    host: str
    port: int
    database: str
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str], port: int) -> DatabaseServer:
        """Read the options; raises OptionError for a URL without server or database."""
        url, unquote = settings["url"], urllib.parse.unquote
        try:
            parts = urllib.parse.urlsplit(url)
            query = url_query(url)
            host = query.get("unix_socket") or query.get("host") or _host(parts.netloc)
            given = parts.port or int(query.get("port") or 0)
        except ValueError:
            host, given = "", 0
        if not host or not parts.path.strip("/"):
            server = "one server" if "," in url else "a server"
            raise OptionError(
                f"Option 'url' is {hide_address(url)!r}, which does not name {server} and a database.",
                hint="As in 'postgresql://user@host:5432/database'; set the password by the option 'password'.",
            )
        return cls(
            host, given or port, unquote(parts.path[1:]),
            settings.get("user") or unquote(parts.username or ""),
            settings.get("password") or unquote(parts.password or ""),
        )  # fmt: skip

    def without_password(self, text: str) -> str:
        """Return a driver's text without the password; a short one is also a part of other words, which stay."""
        for secret in filter(None, (self.password, urllib.parse.quote(self.password, safe=""))):
            pattern = re.escape(secret) if len(secret) > _SHORT else rf"(?<!\w){re.escape(secret)}(?!\w)"
            text = re.sub(pattern, "***", text)
        return hide_userinfo(text)

    def __str__(self) -> str:
        place = f"{self.host}:{self.port}" if self.port else self.host
        place = f"the socket {self.host!r}" if self.is_socket else place
        return f"database {self.database!r}{f' on {place}' if place else ''}"

    @property
    def is_socket(self) -> bool:
        """Whether the host is a Unix socket."""
        return self.host.startswith(("/", "@"))


def _host(netloc: str) -> str:
    """Return the host as it is written: `urlsplit` would lower the case of a path."""
    host = netloc.rpartition("@")[2]
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return urllib.parse.unquote(host.partition(":")[0])


def tls_options(settings: Mapping[str, str]) -> TlsOptions:
    """Return the options ``tls.*``; raises OptionError.

    By default, the certificate of another machine is verified: otherwise an attacker in its place could get the
    password and choose the rows. On this machine, drivers encrypt if the server does, unless an authority is named.
    """
    is_verified = bool(settings.get("tls.ca")) or not is_on_this_machine(settings)
    return TlsOptions.of(settings, default="verify-full" if is_verified else "prefer")


def is_on_this_machine(settings: Mapping[str, str]) -> bool:
    """Return whether the server is reached by a Unix socket or a loopback address."""
    server, query = DatabaseServer.of(settings, 0), url_query(settings["url"])
    # PostgreSQL's driver connects to hostaddr, if it is set, and not to the host.
    return (server.is_socket or _is_loopback(server.host)) and _is_loopback(query.get("hostaddr", "127.0.0.1"))


def url_query(url: str) -> dict[str, str]:
    """Return the parameters of a URL, as PostgreSQL's driver reads them: for it, '#' begins no fragment.

    >>> url_query("postgresql://h/d#?sslmode=require")
    {'sslmode': 'require'}
    """
    return dict(urllib.parse.parse_qsl(url.partition("?")[2]))


def with_real_sockets(url: str) -> str:
    """Return a URL with the paths that the links of its Unix sockets lead to now.

    >>> with_real_sockets("mariadb://ann@/shop?unix_socket=/proc/../no/such.sock")
    'mariadb://ann@/shop?unix_socket=/no/such.sock'
    >>> with_real_sockets("postgresql://ann@%2Fproc%2F..%2Fno:5433/shop")
    'postgresql://ann@%2Fno:5433/shop'
    """
    for pattern in (_SOCKETS, _SOCKET_AS_HOST):
        url = pattern.sub(lambda match: match[1] + _real_hosts(match[2]), url)
    return url


def _real_hosts(hosts: str) -> str:
    given = urllib.parse.unquote(hosts).split(",")
    real = [os.path.realpath(one) if one.startswith("/") else one for one in given]
    return hosts if real == given else urllib.parse.quote(",".join(real), "/," if "/" in hosts else ",")


_SOCKETS = re.compile("([?&](?:host|unix_socket)=)((?:/|%2F)[^&]*)", re.IGNORECASE)
_SOCKET_AS_HOST = re.compile(r"^([\w.+-]+://(?:[^/?#]*@)?)(%2F[^/?#@:]*)", re.IGNORECASE)

POSTGRES_SESSION = (
    "SET default_transaction_read_only = on",
    "SET standard_conforming_strings = on",
    # Else floats within arrays and structs, which are read as JSON, may be rounded.
    "SET extra_float_digits = 3",
    # The texts of ranges and intervals, which are also keys, as PostgreSQL has them by default.
    "SET DateStyle = 'ISO'",
    "SET IntervalStyle = 'postgres'",
)
"""The first statements of a session with PostgreSQL: it only reads, and no setting of a role changes values."""

STATEMENT_TIMEOUT = {
    "postgresql": "SET statement_timeout = {milliseconds}",
    "cockroachdb": "SET statement_timeout = {milliseconds}",
    "mysql": "SET max_execution_time = {milliseconds}",
    "mariadb": "SET max_statement_time = {seconds}",
}


def statement_timeout(settings: Mapping[str, str], database: str) -> list[str]:
    """Return the statement that limits how long queries of a session may take; none without the option."""
    given = seconds(settings, "statement.timeout")
    if given is None:
        return []
    return [STATEMENT_TIMEOUT[database].format(milliseconds=max(1, round(given * 1000)), seconds=f"{given:.3f}")]


def connect_seconds(settings: Mapping[str, str]) -> float:
    """Return how long a driver may take to connect."""
    return seconds(settings, "connect.timeout") or 10


def _is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its text; other names are not resolved, since DNS can be forged."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def unreachable(server: DatabaseServer, reason: str) -> UnreachableError:
    """Return the error for a server that does not accept a connection now, but may later."""
    cure = " Each worker opens up to 'pool.size' connections." if _TOO_MANY.search(reason) else ""
    return UnreachableError(f"Option 'url': {server} cannot be reached: {reason}.{cure}")


def refused(server: DatabaseServer, reason: str, settings: Mapping[str, str] | None = None) -> ConnectorError:
    """Return the error for a server that refuses a connection, or whose certificate is refused."""
    is_about_tls = settings and _TLS.search(reason) and tls_options(settings).mode.startswith("verify-")
    hint = (
        "Set 'tls.ca' to the authority that signed the server's certificate. Those of other machines are verified by "
        "default; 'tls.mode' = 'prefer' does not, for networks that are trusted."
    )
    return ConnectorError(f"Option 'url': {server} refuses: {reason}.", hint=hint if is_about_tls else None)


_TLS = re.compile("certificate|does not support SSL|SSL error|SSL is required", re.IGNORECASE)
