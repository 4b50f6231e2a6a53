"""The address of a database server and the login, as the options set them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from lookupcache.connector import hide_userinfo
from lookupcache.errors import OptionError
from lookupcache.tls import TlsOptions


@dataclass(frozen=True)
class Server:
    """A server and a database on it; its text contains no secret.

    The host may be the path of a Unix socket.
    """

    host: str
    port: int
    database: str
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str], port: int) -> Server:
        """Read the options; raises OptionError for a URL without server or database."""
        url, unquote = settings["url"], urllib.parse.unquote
        try:
            parts = urllib.parse.urlsplit(url)
            query = dict(urllib.parse.parse_qsl(parts.query))
            host = query.get("unix_socket") or query.get("host") or _host(parts.netloc)
            given = parts.port or int(query.get("port") or 0)
        except ValueError:
            host, given = "", 0
        if not host or not parts.path.strip("/"):
            raise OptionError(
                f"Option 'url' is {hide_userinfo(url)!r}, which does not name a server and a database.",
                hint="As in 'postgresql://user@host:5432/database'; set the password by the option 'password'.",
            )
        return cls(
            host, given or port, unquote(parts.path[1:]),
            settings.get("user") or unquote(parts.username or ""),
            settings.get("password") or unquote(parts.password or ""),
        )  # fmt: skip

    def without_password(self, text: str) -> str:
        """Return a driver's text without the password."""
        for secret in (self.password, urllib.parse.quote(self.password, safe="")):
            text = text.replace(secret, "***") if secret else text
        return hide_userinfo(text)

    def __str__(self) -> str:
        place = f"the socket {self.host!r}" if self.is_socket else f"{self.host}:{self.port}"
        return f"database {self.database!r} on {place}"

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

    By default, drivers encrypt if the server does. Whoever names an authority expects that it is checked.
    """
    return TlsOptions.of(settings, default="verify-full" if settings.get("tls.ca") else "prefer")


def verification_advice(settings: Mapping[str, str]) -> str | None:
    """Return the advice to verify the server, where it is another machine and no option says how."""
    server = Server.of(settings, 0)
    chosen = settings.get("tls.mode") or settings.get("tls.ca") or "sslmode=" in settings["url"]
    if chosen or server.is_socket or server.host in _LOCAL or server.host.startswith("127."):
        return None
    return (
        f"The identity of {server.host} is not verified, and without TLS nothing is encrypted: set 'tls.mode' = "
        "'verify-full', or 'prefer' if the network is trusted."
    )


_LOCAL = ("localhost", "::1")
