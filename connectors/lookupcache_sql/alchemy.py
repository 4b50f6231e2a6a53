"""Any database with a dialect of SQLAlchemy, which builds statements, quotes names, binds keys and describes columns.

URL ─► engine ─► reflected columns ─► a connection of its pool: SELECT … WHERE key IN (…), a few for many keys ─► Arrow
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from lookupcache.connector import LookupRequest, hide_address, without_far_dates
from lookupcache.errors import ConnectorError, OptionError, WrongRowsError, nearest, text_of
from lookupcache.expr import Expr
from lookupcache.source_options import AnswerLimit, seconds
from lookupcache_sql.alchemy_columns import (
    MYSQL,
    AlchemyDialect,
    Element,
    Type,
    base_type,
    condition_of,
    read_column,
    spark_type,
)
from lookupcache_sql.database import (
    Database,
    UnreachableError,
    column_names,
    inferred_schema,
    query_error,
    unknown_table,
)
from lookupcache_sql.filters import accepts_filter
from lookupcache_sql.query import MYSQL as MYSQL_GRAMMAR
from lookupcache_sql.query import POSTGRES, SQLITE, Grammar
from lookupcache_sql.server import (
    POSTGRES_SESSION,
    STATEMENT_TIMEOUT,
    DatabaseServer,
    connect_seconds,
    refused,
    statement_timeout,
    unreachable,
)

Row: TypeAlias = tuple[Any, ...]

_ROWS_AT_ONCE = 1_000
"""Rows between two looks at the size of an answer."""

_GRAMMARS = {**dict.fromkeys(MYSQL, MYSQL_GRAMMAR), "postgresql": POSTGRES, "duckdb": POSTGRES}

_SESSIONS: Mapping[str, Sequence[str]] = {
    "postgresql": (*POSTGRES_SESSION, "SET TIME ZONE 'UTC'"),
    **dict.fromkeys(MYSQL, ("SET SESSION TRANSACTION READ ONLY", "SET time_zone = '+00:00'")),
    "sqlite": ("PRAGMA query_only = 1",),
    "duckdb": ("SET TimeZone = 'UTC'",),
}  # fmt: skip
"""The first statements of a session: it only reads, timestamps are in UTC, and no setting of a role changes values."""

_UTF8 = {"client_encoding": "utf8"}
_STRICT = {"init_command": "SET sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
           "sql_select_limit = 18446744073709551615"}  # fmt: skip
_FIRST: Mapping[str, Mapping[str, str]] = {"psycopg": _UTF8, "psycopg2": _UTF8, "pymysql": _STRICT, "mysqldb": _STRICT}
"""Arguments of drivers: settings that hold before SQLAlchemy asks the database for others."""

_CONNECT_TIMEOUT = {
    "psycopg": "connect_timeout", "psycopg2": "connect_timeout", "pg8000": "timeout", "pymysql": "connect_timeout",
    "mysqldb": "connect_timeout", "mysqlconnector": "connection_timeout", "pymssql": "login_timeout",
    "pyodbc": "timeout", "oracledb": "tcp_connect_timeout",
}  # fmt: skip
"""The argument of a driver that limits the seconds to connect."""

_SPARE = 100
"""Parameters of a statement that are left for constants and filters."""

_MOST_IN_LIST = {"oracle": 1_000, "firebird": 1_500, "snowflake": 16_384, "bigquery": 10_000}
_MOST_ROW_VALUES = dict.fromkeys(("postgresql", "redshift"), 1_000)
"""Keys of several columns, where a list of them becomes an expression that is nested as deep as it is long."""
_WITHOUT_ROW_VALUES = ("mssql", "firebird")
_FINITE = (*MYSQL, "mssql")
"""Where a number is neither infinite nor NaN."""
_NAN_EQUALS_ITSELF = ("postgresql", "duckdb")
_WITHOUT_NUL = ("postgresql", "cockroachdb", "redshift")
_INDEXED = ("postgresql", *MYSQL, "sqlite", "mssql", "oracle", "cockroachdb")
"""Databases in which a key without index is slow; others scan columns, or their dialects do not list indexes."""

PROVEN = ("postgresql", *MYSQL, "sqlite", "duckdb")
"""The dialects whose filters the tests compare with Spark's."""

_REFUSED = re.compile(
    "authentication|access denied|password|login|not permitted|permission denied|does not exist|unknown database"
    "|unable to open database|invalid username|certificate|no pg_hba|definition of service|service file"
    "|invalid URI query parameter|invalid connection option",
    re.IGNORECASE,
)
_TEMPORARY = ("OperationalError", "InterfaceError")
"""The classes of errors, which PEP 249 names, that a retry may cure: lost connections, deadlocks, timeouts."""


@contextlib.contextmanager
def _driver_installed() -> Iterator[None]:
    """Say how to install a driver that is missing."""
    try:
        yield
    except ImportError as error:
        raise ConnectorError(
            f"Option 'url': its driver {error.name!r} is not installed.", hint=f"pip install {error.name}"
        ) from None


class AlchemyDatabase(Database):
    """A user of an engine, whose pool has the connections; each call takes one.

    Copies share the engine and the table's description. The last that is closed closes the connections, and the next
    one describes the table again.
    """

    driver = "sqlalchemy"
    grammar = POSTGRES

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self._url = _address(settings)
        self._dialect = self._url.get_backend_name()
        host, port, database, password = self._url.host, self._url.port, self._url.database, self._url.password
        self._server = DatabaseServer(host or "", port or 0, database or "", password=str(password or ""))
        self._engine: sa.Engine
        self._used: sa.Connection | None = None
        self._connected_to: Callable[[], object]
        self._types: dict[str, Type] = {}
        self._users: set[AlchemyDatabase] = set()
        self._changing, self._interrupting = threading.Lock(), threading.Lock()

    @classmethod
    def opener(
        cls, schema: pa.Schema, settings: Mapping[str, str], most: int, connected: Callable[[], object]
    ) -> Callable[[], Database]:
        whole = cls(schema, settings)
        whole._connected_to = connected
        whole._engine = whole._make_engine(most)

        def another() -> Database:
            with whole._changing:
                if not whole._users:
                    whole.connect()
                one = copy.copy(whole)
                one._interrupting = threading.Lock()
                whole._users.add(one)
            return one

        return another

    @classmethod
    def grammar_of(cls, settings: Mapping[str, str]) -> Grammar:
        return _GRAMMARS.get(_address(settings).get_backend_name(), SQLITE)

    @classmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        url = _address(settings)
        dialect = url.get_dialect()
        if getattr(dialect, "is_async", False):
            raise OptionError(
                f"Option 'url': {url.drivername!r} is a driver for coroutines.",
                hint="Name another driver of the database; 'lookup.async' works with all.",
            )
        with _driver_installed():
            dialect.import_dbapi()
        try:
            dialect().create_connect_args(url)
        except sa.exc.ArgumentError as error:
            raise OptionError(f"Option 'url': {error}.", hint="Correct its hosts and parameters.") from None
        _check_options(settings, url, dialect)

    @classmethod
    def environment(cls, settings: Mapping[str, str]) -> Mapping[str, Any] | None:
        # Most workers do without.
        from lookupcache.environment import certificate, libpq_settings, login, real_sockets, time_zone

        url = _address(settings)
        names_user = {} if url.username else {"login": login()}
        query = {name: value if isinstance(value, str) else ",".join(value) for name, value in url.query.items()}
        if url.drivername.endswith(("+psycopg", "+psycopg2")):
            if "service" in query or "PGSERVICE" in os.environ:
                return None
            sockets = real_sockets(query.get("host") or url.host or "", query.get("port") or str(url.port or ""))
            return {**libpq_settings(query.get("sslcert")), "servers": sockets, **names_user}
        if url.drivername.endswith("+pymysql"):
            socket_path, path = query.get("unix_socket"), query.get("ssl_cert")
            found: dict[str, Any] = {"socket": os.path.realpath(socket_path)} if socket_path else {}
            found |= {"certificate": certificate(path)} if path else {}
            return None if {"read_default_file", "read_default_group"} & query.keys() else {**found, **names_user}
        if url.get_backend_name() == "sqlite":
            return {"file": os.path.realpath(str(url.database)), "zone": time_zone()}
        return None  # The variables and settings files of other drivers are not known.

    @classmethod
    def accepts(cls, conjunct: Expr, settings: Mapping[str, str]) -> bool:
        return _address(settings).get_backend_name() in PROVEN and accepts_filter(conjunct, AlchemyDialect)

    @classmethod
    def retryable(cls, error: Exception) -> bool | None:
        names = [kind.__name__ for kind in type(error).__mro__]
        return any(name in names for name in _TEMPORARY) if {"Error", "DatabaseError"} & {*names} else None

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    def connect(self) -> None:
        if self._dialect == "sqlite" and not os.path.exists(str(self._url.database)):
            raise refused(self._server, "there is no such file")  # SQLite would create it.
        try:
            with self._connected() as connection:
                self.read(self._describe(connection))
        except BaseException:
            self._engine.dispose()
            raise

    def read(self, types: dict[str, Type]) -> None:
        """Read columns that have these types in the database."""
        self._types, self._from = types, self._relation(types)
        self._names = column_names(self.schema, list(types), self.source)
        named = ((field, self._names[field.name]) for field in self.schema)
        self._columns = {
            field.name: read_column(field, self._from.c[name], types[name], self._dialect) for field, name in named
        }

    def statements(self, request: LookupRequest, rows: Sequence[Row]) -> Iterator[tuple[sa.Select[Any], Sequence[Row]]]:
        """Yield statements for keys, each with those that it is for: as many as the database takes."""
        fitting = (self._url.get_dialect().insertmanyvalues_max_parameters - _SPARE) // len(request.key_columns)
        limits = (_MOST_IN_LIST, _MOST_ROW_VALUES if len(request.key_columns) > 1 else {})
        size = max(1, min(fitting, *(limit.get(self._dialect, fitting) for limit in limits)))
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            yield self._select(request).where(self._among(request.key_columns, some)), some

    def _make_engine(self, most: int) -> sa.Engine:
        # Calls in excess are those that were cancelled and do not end; nothing waits for them.
        with _driver_installed():
            engine = sa.create_engine(
                self._url, poolclass=QueuePool, pool_size=most, max_overflow=-1, hide_parameters=True,
                query_cache_size=0,  # A cache would keep a statement per number of keys that OR combines.
                connect_args=_arguments(self.settings, self._url),
            )  # fmt: skip
        sa.event.listen(engine, "connect", self._begin_session)
        sa.event.listen(engine, "handle_error", self._handle_error)
        return engine

    def _begin_session(self, connection: Any, _: Any) -> None:
        try:
            self._connected_to()
        except BaseException:
            _close(connection)
            raise
        settings = list(self._session(self._engine.dialect))
        with contextlib.closing(connection.cursor()) as cursor:
            for setting in settings:
                cursor.execute(setting)
        if settings and self._dialect != "duckdb":  # Outside of a transaction, that is an error of some drivers.
            connection.commit()

    def _session(self, dialect: sa.Dialect) -> Iterator[str]:
        yield from _SESSIONS.get(self._dialect, ())
        # A URL of MySQL may lead to MariaDB.
        name = "mariadb" if getattr(dialect, "is_mariadb", False) else self._dialect
        yield from statement_timeout(self.settings, name)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        """Take a connection from the pool, and give it back; raises the driver's own errors.

        Those of SQLAlchemy repeat the statement, with a mark for each key.
        """
        try:
            with self._engine.connect() as self._used:
                try:
                    yield self._used
                finally:
                    with self._interrupting:  # Another call that takes the connection must not be interrupted.
                        self._used = None
        except sa.exc.DBAPIError as error:
            raise _driver_error(error) from None

    def _handle_error(self, context: sa.ExceptionContext) -> Exception | None:
        """Return the error for a connection that is lost, or was not made; any that an error came from is closed."""
        error = context.sqlalchemy_exception
        if not isinstance(error, sa.exc.DBAPIError):
            return None
        if context.connection is None:
            reason = self._reason(error)
            is_final = _REFUSED.search(reason)
            return refused(self._server, reason) if is_final else unreachable(self._server, reason)
        context.invalidate_pool_on_disconnect = is_lost = context.is_disconnect
        context.is_disconnect = True
        _close(getattr(context.execution_context, "cursor", None))
        return UnreachableError(f"Option 'url': the connection was lost: {self._reason(error)}.") if is_lost else None

    def close(self) -> None:
        with self._changing, contextlib.suppress(Exception):
            self._users.discard(self)
            if not self._users:
                self._engine.dispose()

    def interrupt(self) -> None:
        """Cancel the query, if the driver can from another thread; in MariaDB and MySQL over a second connection."""
        with self._interrupting, contextlib.suppress(Exception):
            if self._used is None:
                return
            driver: Any = self._used.connection.driver_connection
            name = next((name for name in ("cancel_safe", "cancel", "interrupt") if hasattr(driver, name)), None)
            if name is not None:
                getattr(driver, name)()
            elif self._dialect in MYSQL:
                with self._engine.connect() as other:
                    other.exec_driver_sql(f"KILL {driver.thread_id():d}")

    # ── the table ────────────────────────────────────────────────────────────────────────────────────────

    def columns(self) -> pa.Schema:
        return inferred_schema(self._types.items(), lambda name, type_: spark_type(name, type_, self._dialect))

    def without_index(self, key_columns: Sequence[str]) -> bool:
        table, namespace = self.source.table, self.source.namespace
        if table is None or self._dialect not in _INDEXED:
            return False
        with self._connected() as connection:
            inspector = sa.inspect(connection)
            columns: list[Any] = [inspector.get_pk_constraint(table, schema=namespace)["constrained_columns"]]
            columns += [index["column_names"] for index in inspector.get_indexes(table, schema=namespace)]
            columns += [one["column_names"] for one in inspector.get_unique_constraints(table, schema=namespace)]
            is_table = table in inspector.get_table_names(schema=namespace)
        own = {self._names[name] for name in key_columns}
        return is_table and not own.intersection(name for names in columns for name in names[:1])

    def _describe(self, connection: sa.Connection) -> dict[str, Type]:
        """Return the types of the relation's columns; those of a query are unknown, so its values decide."""
        table = self.source.table
        try:
            if types := {} if table is None else self._reflected(connection, table):
                return types
            anything: sa.Select[Any] = (
                sa.select(sa.literal_column("*")).select_from(self._relation([])).where(sa.false())
            )
            return dict.fromkeys(connection.execute(anything).keys(), sa.types.NullType())
        except sa.exc.DBAPIError as error:
            reason = self._reason(error)
            raise (query_error(reason) if table is None else ConnectorError(f"Option 'table': {reason}.")) from None

    def _reflected(self, connection: sa.Connection, table: str) -> dict[str, Type]:
        """Return the columns that the dialect describes; none if it cannot."""
        namespace, inspector = self.source.namespace, sa.inspect(connection)
        try:
            columns = inspector.get_columns(table, schema=namespace)
            types = {column["name"]: base_type(column["type"]) for column in columns}
            return self._with_collations(connection, types) if self._dialect in MYSQL else types
        except sa.exc.NoSuchTableError:
            known = [*inspector.get_table_names(schema=namespace), *inspector.get_view_names(schema=namespace)]
            raise unknown_table(table, namespace, known) from None
        except (sa.exc.DBAPIError, NotImplementedError):
            connection.rollback()
            return {}

    def _with_collations(self, connection: sa.Connection, types: Mapping[str, Type]) -> dict[str, Type]:
        """Return the types of MariaDB or MySQL with details that SHOW CREATE TABLE lacks or writes in another way."""
        query = sa.text(
            "SELECT column_name, character_set_name, collation_name FROM information_schema.columns "
            "WHERE table_schema = coalesce(:namespace, database()) AND table_name = :name"
        )
        named = {name.replace("``", "`"): type_ for name, type_ in types.items()}
        found = connection.execute(query, {"namespace": self.source.namespace, "name": self.source.table})
        for name, charset, collation in found:
            if isinstance(named.get(name), sa.types.String):
                vars(named[name]).update(charset=charset, collation=collation)
        return named

    def _relation(self, names: Iterable[str]) -> sa.FromClause:
        columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in names]
        if self.source.query is None:
            assert self.source.table is not None
            return sa.table(self.source.table, *columns, schema=self.source.namespace)
        # A colon would begin the name of a parameter; a comment may end the query.
        return sa.text(self.source.query.replace(":", r"\:") + "\n").columns(*columns).subquery("t")

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        self.limit = AnswerLimit(request.table, self.most_bytes)
        keys, wrong = without_far_dates(request, keys, request.key_columns)
        values = zip(*(keys.column(name).to_pylist() for name in request.key_columns), strict=True)
        rows = [row for row in values if all(map(self._is_sendable, row))]
        parts = [self._table(request, [()] * len(request.fields))]
        for statement, some in self.statements(request, rows):
            found = self._tables(request, statement)
            # With keys of two statements, the database may find a row that is equal to one of each by its collation.
            parts += found if len(some) == len(rows) else (_only(table, request.key_columns, some) for table in found)
        if wrong:
            raise WrongRowsError.of(pa.concat_tables(parts), wrong)
        return pa.concat_tables(parts)

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        self.limit = AnswerLimit(request.table, float("inf"))
        for table in self._tables(request, self._select(request)):
            yield from table.to_batches()

    def _select(self, request: LookupRequest) -> sa.Select[Any]:
        conditions: list[Element] = [condition_of(conjunct, self._columns) for conjunct in request.filters]
        for name, value in request.constants.items():
            conditions.append(_equal(self._columns[name].compared, value) if self._is_sendable(value) else sa.false())
        selected = [self._columns[name].selected for name in request.fields]
        return sa.select(*selected).select_from(self._from).where(*conditions)

    def _among(self, names: Sequence[str], rows: Sequence[Row]) -> Element:
        """Return the condition that a row has one of these keys."""
        columns = [self._columns[name].compared for name in names]
        may_differ = self._dialect not in _NAN_EQUALS_ITSELF
        has_nan = may_differ and any(value != value for row in rows for value in row)
        if len(columns) == 1 and not has_nan:
            return columns[0].in_([value for (value,) in rows])
        is_plain = not has_nan and not any(isinstance(column.type, sa.types.TypeDecorator) for column in columns)
        if is_plain and self._dialect not in _WITHOUT_ROW_VALUES:
            return sa.tuple_(*columns).in_(rows)
        return sa.or_(*(sa.and_(*map(_equal, columns, row)) for row in rows))

    def _is_sendable(self, value: Any) -> bool:
        """Return whether the database can represent a key, and so may have it."""
        if isinstance(value, float) and not math.isfinite(value):
            # SQLite has infinity, but takes NaN for NULL, which equals nothing.
            return self._dialect not in _FINITE and not (self._dialect == "sqlite" and math.isnan(value))
        return not (isinstance(value, str) and "\0" in value and self._dialect in _WITHOUT_NUL)

    def _tables(self, request: LookupRequest, statement: sa.Select[Any]) -> Iterator[pa.Table]:
        with self._connected() as connection:
            result = connection.execute(statement, execution_options={"yield_per": _ROWS_AT_ONCE})
            try:
                for rows in result.partitions():
                    table = self._table(request, list(zip(*rows, strict=True)))
                    self.limit.add(table.nbytes)
                    yield table
            except BaseException:  # A driver would read the rest of the answer, or take it for the next one.
                _give_up(connection, result)
                raise

    def _table(self, request: LookupRequest, columns: Sequence[Row]) -> pa.Table:
        names = request.fields
        read = [self._columns[name].decode(request.table, column) for name, column in zip(names, columns, strict=True)]
        return pa.table(read, names=list(names))

    def _reason(self, error: sa.exc.DBAPIError) -> str:
        reason = " ".join(text_of(_driver_error(error)).split()).rstrip(".")
        return self._server.without_password(reason)


def _give_up(connection: sa.Connection, result: sa.CursorResult[Any]) -> None:
    """Close a connection in the middle of an answer."""
    answer = getattr(result.cursor, "_result", None)
    if answer is not None:  # PyMySQL would read all of it when the cursor is closed or deleted.
        answer.unbuffered_active = False
    connection.invalidate()
    _close(result)


def _close(one: Any) -> None:
    """Close a connection, or a cursor, as psycopg demands, though its connection was closed before."""
    with contextlib.suppress(Exception):
        one.close()


def _driver_error(error: sa.exc.DBAPIError) -> Exception:
    return error.orig if isinstance(error.orig, Exception) else error


def _only(table: pa.Table, names: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    """Return the rows with one of these keys by Spark's equality."""
    keys = {tuple(map(_comparable, row)) for row in rows}
    found = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return table.filter(pa.array([tuple(map(_comparable, row)) in keys for row in found], pa.bool_()))


def _equal(column: Element, value: Any) -> Element:
    """Return that a column equals a key; some databases find that NaN differs from itself."""
    return sa.or_(column == value, column != column) if value != value else column == value


def _comparable(value: Any) -> Any:
    return "NaN" if value != value else value


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────


def _address(settings: Mapping[str, str]) -> sa.URL:
    """Return the URL with the login; raises OptionError for one that no dialect reads."""
    given = settings["url"]
    try:
        url = sa.make_url(_with_escaped_login(given))
    except (sa.exc.ArgumentError, ValueError):
        raise OptionError(
            f"Option 'url' is {hide_address(given)!r}, which is no URL of SQLAlchemy.",
            hint="As in 'mssql+pymssql://user@host:1433/database'; set the password by the option 'password'.",
        ) from None
    login = {name: settings[option] for name, option in (("username", "user"), ("password", "password"))
             if settings.get(option)}  # fmt: skip
    return _with_known_dialect(url.set(**login))  # type: ignore[arg-type]


_QUERY = re.compile(r"\?(?=[\w.-]+=)")


def _with_escaped_login(url: str) -> str:
    """Return a URL with '@' escaped in its login and its query: SQLAlchemy takes the first one for the login's end.

    Raises OptionError if it cannot be known where the login ends.

    >>> _with_escaped_login("mysql+pymysql://ann:a@b@db/shop?password=a@b")
    'mysql+pymysql://ann:a%40b@db/shop?password=a%40b'
    """
    scheme, separator, rest = url.partition("://")
    if rest.startswith("/"):  # A file, or no server: SQLAlchemy finds no login there.
        return url
    address, *query = _QUERY.split(rest, maxsplit=1)
    authority, slash, path = address.partition("/")
    is_login = ":" in address and not slash and any("@" in one for one in query)
    if "@" not in authority:  # A password may have an unescaped slash.
        authority, slash, path = address, "", ""
    login, at, host = authority.rpartition("@")
    if is_login or (":" in authority and "@" in path):
        raise OptionError(
            "Option 'url' has an '@' behind a '/' or a '?', so that it is not known where its password ends.",
            hint="Set the password by the option 'password', or write '@' in it as '%40', '/' as '%2F', '?' as '%3F'.",
        )
    escaped = [login.replace("@", "%40"), at, host, slash, path, *(f"?{one.replace('@', '%40')}" for one in query)]
    return f"{scheme}{separator}{''.join(escaped)}"


def _with_known_dialect(url: sa.URL) -> sa.URL:
    """Return the URL by which SQLAlchemy finds the dialect, which may lack its only driver's name."""
    name, _, driver = url.drivername.partition("+")
    for one in (url, url.set(drivername=name)):
        with contextlib.suppress(sa.exc.NoSuchModuleError):
            if one is url or one.get_dialect().driver == driver:
                one.get_dialect()
                return one
    near = nearest(name, {*sa.dialects.__all__, "duckdb", "mariadb"}, what="dialects")
    raise OptionError(
        f"Option 'url': SQLAlchemy has no dialect {url.drivername!r} here.",
        hint=f"{near} Of others, install the package, on the workers too.",
    )


def _check_options(settings: Mapping[str, str], url: sa.URL, dialect: type[sa.Dialect]) -> None:
    tls = next((name for name in settings if name.startswith("tls.") and settings[name]), None)
    if tls is not None:
        raise OptionError(
            f"Option {tls!r} is not supported for {url.drivername!r}: its driver has options of its own.",
            hint="Write them into the URL, as in '?sslmode=verify-full' for psycopg.",
        )
    limited = {"connect.timeout": dialect.driver in _CONNECT_TIMEOUT,
               "statement.timeout": url.get_backend_name() in STATEMENT_TIMEOUT}  # fmt: skip
    for name, is_known in limited.items():
        if seconds(settings, name) is not None and not is_known:
            raise OptionError(f"Option {name!r} is not supported for {url.drivername!r}.", hint="Use 'lookup.timeout'.")


def _arguments(settings: Mapping[str, str], url: sa.URL) -> dict[str, Any]:
    """Return the driver's arguments besides the URL."""
    if url.get_backend_name() == "duckdb":
        return {"read_only": True}
    driver = url.get_dialect().driver
    found: dict[str, Any] = dict(_FIRST.get(driver, {}))
    if driver in _CONNECT_TIMEOUT:
        found[_CONNECT_TIMEOUT[driver]] = max(1, round(connect_seconds(settings)))
    return {name: value for name, value in found.items() if name not in url.query}
