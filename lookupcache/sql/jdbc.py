"""Flink's JDBC connector as the connector `sql`: the same database, table and login."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from lookupcache.errors import OptionError

_DATABASES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mariadb", "sqlite": "sqlite"}
_OPTIONS = {"table-name": "table", "username": "user"}
_OF_OTHERS = ("driver", "scan.", "sink.", "connection.max-retry-timeout", "compatible-mode", "properties.")
"""Options of scans, writers and the driver, which say nothing about a lookup."""


def from_jdbc(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a lookup table, those of the connector ``jdbc`` as those of ``sql``.

    Raises OptionError for a database that ``sql`` does not know.

    >>> from_jdbc({"connector": "jdbc", "url": "jdbc:mysql://db:3306/shop?useSSL=false", "table-name": "c",
    ...     "driver": "com.mysql.cj.jdbc.Driver", "username": "reader"})
    {'connector': 'sql', 'url': 'mysql://db:3306/shop', 'table': 'c', 'user': 'reader'}
    """
    if options.get("connector") != "jdbc":
        return dict(options)
    url, parameters = _url(options.get("url", ""))
    kept = {key: value for key, value in options.items() if not key.startswith(_OF_OTHERS)}
    renamed = {_OPTIONS.get(key, key): value for key, value in kept.items()}
    return {**parameters, **renamed, "connector": "sql", "url": url}


def _url(text: str) -> tuple[str, dict[str, str]]:
    """Return the URL of a database in place of JDBC's, and the options that are parameters of that."""
    if not text.startswith("jdbc:"):
        return text, {}  # a reference, or a URL of ours
    address, _, query = text.removeprefix("jdbc:").partition("?")
    kind, _, place = address.partition(":")
    if kind not in _DATABASES:
        raise OptionError(
            f"Connector 'jdbc' has the URL of {kind!r}, which connector 'sql' does not know.",
            hint=f"It reads {', '.join(sorted(_DATABASES))}. Other databases can be read by a connector of your own.",
        )
    given = {"user": "user", "password": "password", "currentSchema": "schema"}
    found = {given[name]: value for name, value in parse_qsl(query) if name in given}
    return (f"sqlite:///{place}" if kind == "sqlite" else f"{kind}:{place}"), found
