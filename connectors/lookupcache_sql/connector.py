"""The `sql` connector: rows by key from a table, view or query of a SQL database.

request ─► a connection of the `Pool` ─► one query for all keys of a call, by the `Database` of the URL ─► Arrow
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache.connector import (
    Connector,
    LookupRequest,
    changed_while_read,
    hide_address,
    is_reference,
    is_retryable,
    without_credentials,
)
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, nearest
from lookupcache.expr import Expr
from lookupcache.source_options import MAX_BYTES, path_from, seconds, whole_number, working_directory
from lookupcache.tls import TLS_OPTIONS
from lookupcache_sql.database import Database, TableOrQuery, UnreachableError
from lookupcache_sql.pool import Pool

_DATABASES = {
    "sqlite": "sqlite:SqliteDatabase",
    "postgresql": "postgres:PostgresDatabase",
    "postgres": "postgres:PostgresDatabase",
    "mariadb": "mysql:MysqlDatabase",
    "mysql": "mysql:MysqlDatabase",
    "duckdb": "duckdb:DuckDatabase",
}
"""The class of each scheme, by its module: a worker imports the one that it uses."""

_OTHERS = "alchemy:AlchemyDatabase"
"""The class of other schemes, and of those that name a driver, as in ``mssql+pymssql``."""

_FILES = ("sqlite", "duckdb")
_CONNECTIONS = 8


class SqlConnector(Connector):
    """Looks rows up in a table, a view or a query of a SQL database, which it only reads.

    SQLite allows any value in any column. These representations are read, and no others:

    | type | stored as |
    |---|---|
    | TINYINT to BIGINT | INTEGER, or a REAL without fraction |
    | FLOAT, DOUBLE | REAL, or an INTEGER that it holds exactly; SQLite has no NaN |
    | BOOLEAN | 0 and 1 |
    | STRING, BINARY | TEXT, BLOB |
    | DECIMAL | INTEGER, REAL, or TEXT with all digits of the scale or without trailing zeros |
    | DATE | TEXT ``YYYY-MM-DD`` |
    | TIMESTAMP, TIMESTAMP_NTZ | TEXT ``YYYY-MM-DD HH:MM:SS`` with 0, 3 or 6 digits of a second; UTC |

    A value with another representation raises SourceError when it is read. As a key it is not found, and where no row's
    key fits its type, each lookup raises SourceError. Without a schema, NUMERIC and DECIMAL are DOUBLE.
    The path of a file is not escaped in ``url``; a relative path starts in the driver's working directory. If a file of
    SQLite or DuckDB is replaced by renaming another, the next call reads the new one. If it is removed, calls read the
    old one until there is another.

    >>> SqlConnector(pa.schema([("id", pa.int64())]), {"url": "sqlite:////data/shop.db", "table": "customers"})
    SqlConnector({'url': 'sqlite:////data/shop.db', 'table': 'customers'})
    """

    options: ClassVar[Mapping[str, str]] = {
        "url": "The database, by a driver of the connector: 'sqlite:///relative.db', 'duckdb:////absolute/path.db', "
        "'postgresql://user@host:5432/database' or 'mariadb://user@host:3306/database'; by a Unix socket, "
        "'postgresql://user@/database?host=/run/postgresql' or 'mariadb://user@/database?unix_socket=/run/mysqld.sock';"
        " or by a dialect of SQLAlchemy, with its driver: 'mssql+pymssql://user@host:1433/database'.",
        "table": "The name of a table or view.",
        "schema": "The schema that the table is in, if not the user's default.",
        "query": "Instead of a table, one SELECT whose result is the table; semicolons and comments may end it.",
        "user": "The user to log in as, if it is not in the URL.",
        "password": "The password, if it is not in the URL; 'env:NAME' or 'file:PATH' keep it out of the code.",
        "tls.mode": "Encryption: 'disable', 'prefer' (if the server does), 'require' (any certificate), 'verify-ca' "
        "(any host name) or 'verify-full'. The default is 'verify-full'; for localhost, loopback addresses and sockets "
        "without tls.ca it is 'prefer'. PostgreSQL's sslmode in the URL counts where the option is not set.",
        **TLS_OPTIONS,
        "connect.timeout": "Seconds to connect; 10 by default.",
        "statement.timeout": "Seconds that a query may take; by default the database's own setting.",
        "max-bytes": f"The maximum number of bytes that the database may return for a call; by default {MAX_BYTES}.",
        "pool.size": f"With 'lookup.async', the maximum number of connections of a worker; {_CONNECTIONS} by default.",
    }
    renamed: ClassVar[Mapping[str, str]] = {"tls": "tls.mode"}
    required = ("url",)
    drivers: ClassVar[Mapping[str, str]] = {
        "adbc_driver_postgresql": "lookupcache[postgres]",
        "pymysql": "lookupcache[mysql]",
        "duckdb": "lookupcache[duckdb]",
        "sqlalchemy": "lookupcache[sqlalchemy]",
    }
    batch_max_size = 10_000

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        options = self.settings
        self._folder = working_directory()
        self._pool: Pool | None = None
        self._pinned: Mapping[str, Any] | None = None
        self._ignored: Sequence[str] = ()
        TableOrQuery.of(options)
        _ = self._most, seconds(options, "connect.timeout"), seconds(options, "statement.timeout")
        whole_number(options, "max-bytes", MAX_BYTES)
        if not is_reference(options["url"]):
            kind = self._kind()
            TableOrQuery.of(options, kind.grammar_of(options))
            kind.check(self._absolute_settings(), schema)

    @property
    def _most(self) -> int:
        return whole_number(self.settings, "pool.size", _CONNECTIONS)

    def resolve(self) -> None:
        """Replace references by their values; a URL may then be JDBC's, and have a login and other options."""
        super().resolve()
        if self.settings["url"].lower().startswith("jdbc:"):
            from lookupcache.jdbc_url import from_jdbc_url, refuse_contradictions  # Most workers do without.

            url, options, self._ignored = from_jdbc_url(self.settings["url"])
            refuse_contradictions(options, self.settings)
            self.settings = {**options, **self.settings, "url": url}

    def pin(self) -> None:
        """Replace the path of a file or a Unix socket by where its links lead now."""
        settings = self._absolute_settings()
        if settings is self.settings:
            from lookupcache_sql.server import with_real_sockets  # Files do without.

            self.settings = {**settings, "url": with_real_sockets(settings["url"])}
        else:
            head, separator, path = settings["url"].partition(":///")
            path, *query = path.split("?", 1) if "+" in head else [path]  # A URL of SQLAlchemy.
            self.settings = {**settings, "url": f"{head}{separator}{'?'.join([os.path.realpath(path), *query])}"}
        self._pinned = None
        with contextlib.suppress(LookupCacheError, OSError):  # If it cannot be read, nothing is shared.
            self._pinned = self.environment()

    def open(self) -> None:
        """Connect; raises ConnectorError or SchemaError if the database, table or a column does not exist."""
        self._pool = Pool(self._opener(), self._most)
        try:
            self._pool.warm()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def accept(self, filters: Sequence[Expr]) -> Sequence[Expr]:
        """Return the filters that the database evaluates with Spark's semantics; none if the URL is a reference."""
        if is_reference(self.settings["url"]):
            return []
        kind = self._kind()
        return [conjunct for conjunct in filters if kind.accepts(conjunct, self.settings)]

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, by one query."""
        return self._open_pool().run(lambda database: database.lookup(request, keys))

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Do the same as `lookup`, over one of the pool's connections, each with its own thread."""
        return await self._open_pool().run_async(lambda database: database.lookup(request, keys))

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield the full table, with constants and accepted filters applied."""
        return self._open_pool().stream(lambda database: database.scan(request))

    def infer_schema(self) -> pa.Schema:
        """Connect and return the columns of the table as the database describes them."""
        database = self._opener()()
        try:
            return database.columns()
        finally:
            database.close()

    def advice(self, request: LookupRequest) -> list[str]:
        """Return the advice to create an index that starts with a key column, and to leave out ignored options."""
        keys, advice = request.key_columns, list[str]()
        if self._ignored:
            advice.append(f"The JDBC URL has parameters that say nothing about lookups: {', '.join(self._ignored)}.")
        if self._open_pool().run(lambda database: database.without_index(keys)):
            advice.append(
                f"In {TableOrQuery.of(self.settings)} no index starts with a key column ({', '.join(keys)}): each call "
                "reads the full table."
            )
        return advice

    def retryable(self, error: Exception) -> bool:
        """Return whether the same call may succeed later: the database was busy, unreachable or too slow."""
        if isinstance(error, UnreachableError):
            return True
        retryable = None if is_reference(self.settings["url"]) else self._kind().retryable(error)
        return is_retryable(error) if retryable is None else retryable

    def identity(self) -> Mapping[str, Any]:
        """Return the options, with the absolute path of a file."""
        return self.settings if is_reference(self.settings["url"]) else self._absolute_settings()

    def environment(self) -> Mapping[str, Any] | None:
        """Return the values behind references, and the settings that the database's driver reads in this process."""
        read = self._kind().environment(self._absolute_settings())
        given = self.settings if self._given is None else self._given
        in_url = without_credentials({name: value for name, value in self.settings.items() if name not in given})
        return None if read is None else {**(super().environment() or {}), **in_url, **read}

    def needed_drivers(self) -> Mapping[str, str]:
        """Return the driver of the URL's database; all of them where the URL is a reference."""
        if is_reference(self.settings["url"]):
            return self.drivers
        driver = self._kind().driver
        return {} if driver is None else {driver: self.drivers[driver]}

    # ── the database ─────────────────────────────────────────────────────────────────────────────────────

    def _kind(self) -> type[Database]:
        """Return the class for the URL's database; raises OptionError, or ConnectorError if its driver is missing."""
        scheme = self.settings["url"].partition(":")[0].lower()
        path = _DATABASES.get(scheme, _OTHERS)
        if path == _OTHERS and importlib.util.find_spec("sqlalchemy") is None:
            hint = f"{nearest(scheme, _DATABASES, what='schemes')} Others need pip install 'lookupcache[sqlalchemy]'."
            fact = f"Option 'url' is {hide_address(self.settings['url'])!r}, which is not a known database"
            raise OptionError(f"{fact} without SQLAlchemy.", hint=hint)
        module, name = path.split(":")
        kind: type[Database] = getattr(importlib.import_module(f"lookupcache_sql.{module}"), name)
        if kind.driver is not None and importlib.util.find_spec(kind.driver) is None:
            raise ConnectorError(
                f"Option 'url': its driver {kind.driver!r} is not installed.",
                hint=f"pip install '{self.drivers[kind.driver]}'",
            )
        return kind

    def _absolute_settings(self) -> Mapping[str, str]:
        """Return the settings with the absolute path of a file."""
        head, separator, path = self.settings["url"].partition(":///")
        scheme = head.partition(":")[0].partition("+")[0].lower()
        if scheme not in _FILES or not separator or path in ("", ":memory:"):
            return self.settings
        return {**self.settings, "url": f"{head}:///{path_from(self._folder, path, 'url')}"}

    def _opener(self) -> Callable[[], Database]:
        return self._kind().opener(self.schema, self._absolute_settings(), self._most, self._refuse_another)

    def _refuse_another(self) -> None:
        """Raise ConnectorError if a connection may lead elsewhere than the first, as after a link was changed."""
        if self._pinned is not None and self.environment() != self._pinned:
            raise changed_while_read()

    def _open_pool(self) -> Pool:
        if self._pool is None:
            raise ConnectorError("The sql connector is used before open().")
        return self._pool
