"""What the options say of a database server: where it is, who logs in, and how the connection is kept private."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from lookupcache.connector import hide_userinfo
from lookupcache.errors import OptionError, nearest

TLS_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True)
class Server:
    """A server and a database on it; its text says no more than may be shown."""

    host: str
    port: int
    database: str
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str], port: int) -> Server:
        """Read the options; raises OptionError for a URL that names no server."""
        url = settings["url"]
        try:
            parts = urllib.parse.urlsplit(url)
            host, given = parts.hostname or "", parts.port
        except ValueError:
            host, given = "", None
        if not host or not parts.path.strip("/"):
            raise OptionError(
                f"Option 'url' is {hide_userinfo(url)!r}, which names no server and database.",
                hint="As in 'postgresql://user@host:5432/database'; a password goes into the option 'password'.",
            )
        unquote = urllib.parse.unquote
        return cls(
            host, given or port, unquote(parts.path[1:]),
            settings.get("user") or unquote(parts.username or ""),
            settings.get("password") or unquote(parts.password or ""),
        )  # fmt: skip

    def cleaned(self, text: str) -> str:
        """Return a driver's text without the password."""
        for secret in (self.password, urllib.parse.quote(self.password, safe="")):
            text = text.replace(secret, "***") if secret else text
        return hide_userinfo(text)

    def __str__(self) -> str:
        return f"database {self.database!r} on {self.host}:{self.port}"


def tls_mode(settings: Mapping[str, str]) -> str:
    """Return how private a connection must be; raises OptionError."""
    mode = settings.get("tls") or "prefer"
    if mode not in TLS_MODES:
        raise OptionError(f"Option 'tls' is {mode!r}.", hint=nearest(mode, TLS_MODES, what="values"))
    return mode
