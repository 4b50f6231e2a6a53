"""SQLite, through Python's own driver: keys are a JSON array or a temporary table, looked up by index."""

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
import sqlite3
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import LookupRequest
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, SchemaError, SourceError
from lookupcache.expr import Column, Expr, Literal, python_value
from lookupcache.schema import TIMESTAMP, parse_type
from lookupcache.source_options import AnswerLimit, seconds
from lookupcache_sql.database import (
    MISFITS,
    SCAN_ROWS,
    column_names,
    inferred_schema,
    misfit,
    read_fitting,
    shorten,
    unknown_table,
)
from lookupcache_sql.file import FileDatabase, path_of, real_path
from lookupcache_sql.filters import accepts_filter, filter_text
from lookupcache_sql.query import SQLITE
from lookupcache_sql.sqlite_filters import SqliteDialect, Utf16Dialect, column_text, compared_columns, fits
from lookupcache_sql.sqlite_values import Values, storage_of

_ROWS_AT_ONCE = 256
"""Rows between two looks at the size of an answer, at most."""
_LEAST_LENGTH = 16 << 20
"""The least limit of a list of keys in bytes, which SQLite limits like a value."""
_WHOLE, _LISTED, _JOINED = "whole", "listed", "joined"
"""The rows that a query reads: all, those of a list of keys, or those of a table of keys."""

_STEPS_BETWEEN_LOOKS = 10_000
_PASSING = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip


class SqliteDatabase(FileDatabase):
    """A SQLite file, opened read-only."""

    grammar = SQLITE

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self.connection: sqlite3.Connection | None = None
        self._timeout = seconds(settings, "statement.timeout")
        self._ends = math.inf
        self._relation = (
            self.source.subquery if self.source.query else f"main.{SqliteDialect.quote(str(self.source.table))}"
        )
        self._dialect: type[SqliteDialect] = SqliteDialect
        self._indexes: list[tuple[str, ...]] = []
        self._checked: set[tuple[str, ...]] = set()
        self._ready: dict[str, tuple[LookupRequest, _Query]] = {}

    @classmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        path_of(settings["url"])
        if settings.get("schema", "main") != "main":
            raise OptionError("Option 'schema': a SQLite file has no schema but 'main'.")
        for field in schema:
            storage_of(field)

    @classmethod
    def environment(cls, settings: Mapping[str, str]) -> Mapping[str, Any]:
        from lookupcache.environment import time_zone  # Most workers do without.

        # A view or query may ask for local time.
        return {"file": real_path(settings["url"]), "zone": time_zone()}

    @classmethod
    def accepts(cls, conjunct: Expr, settings: Mapping[str, str]) -> bool:
        return accepts_filter(conjunct, SqliteDialect)

    def connect(self) -> None:
        self.find_file()
        place = f"file:{urllib.parse.quote(str(self.path))}?mode=ro"
        try:
            self.connection = sqlite3.connect(place, uri=True, check_same_thread=False)
            self.connection.set_progress_handler(self._late, _STEPS_BETWEEN_LOOKS)
            longest = max(self.most_bytes, _LEAST_LENGTH)
            # SQLite's own limit cannot be raised.
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(longest, 1_000_000_000))
            self._prepare(self.connection)
        except sqlite3.Error as error:
            if self.retryable(error):
                raise
            raise ConnectorError(f"Option 'url': {str(self.path)!r} cannot be read: {error}.") from error

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def interrupt(self) -> None:
        if self.connection is not None:
            self.connection.interrupt()

    def columns(self) -> pa.Schema:
        """Return the columns in their declared types, which SQLite does not enforce."""
        return inferred_schema(self._describe_columns(), _declared_type)

    def without_index(self, key_columns: Sequence[str]) -> bool:
        [kind] = self._require_connection().execute(
            "SELECT max(type) FROM main.sqlite_master WHERE lower(name) = lower(?)", [self.source.table]
        ).fetchone()  # fmt: skip
        return kind == "table" and not {index[0] for index in self._indexes if index} & _lower(key_columns)

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        self.limit = AnswerLimit(request.table, self.most_bytes)
        try:
            self._require_keys_that_fit(request)
            return self._look_up(request, keys.sort_by([(name, "ascending") for name in request.key_columns]))
        except sqlite3.DataError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_TOOBIG:
                raise
            raise self.limit.error() from None

    def _look_up(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        spelled = self._spell_keys(request, keys)
        document = self._document(request, spelled)
        if document is not None:
            query = self._query(request, _LISTED)
            with _decoding(request):
                rows = self._read(self._execute(query.text, [document, *query.parameters]))
            return self._table(request, query, rows, extra=0)[0]
        query = self._query(request, _JOINED)
        table, [numbers] = self._table(request, query, self._fetch(query, spelled), extra=1)
        return _under_their_own_key(table, keys, numbers)

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        query = self._query(request, _WHOLE)
        with closing(self._execute(query.text, query.parameters)) as cursor, _decoding(request):
            while rows := cursor.fetchmany(SCAN_ROWS):
                table, _ = self._table(request, query, rows, extra=0)
                yield from table.to_batches()

    @classmethod
    def retryable(cls, error: Exception) -> bool | None:
        """Return whether the database was temporarily busy, locked or unreadable."""
        if isinstance(error, sqlite3.Error):
            return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _PASSING
        return None

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    def _require_connection(self) -> sqlite3.Connection:
        assert self.connection is not None
        self._ends = math.inf if self._timeout is None else time.monotonic() + self._timeout
        return self.connection

    def _late(self) -> bool:
        return time.monotonic() > self._ends

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA temp_store = MEMORY")
        [encoding] = connection.execute("PRAGMA encoding").fetchone()
        if encoding != "UTF-8":
            connection.create_collation("code_points", lambda a, b: (a > b) - (a < b))
            self._dialect = Utf16Dialect
        column_names(self.schema, [name for name, _ in self._describe_columns()], self.source)
        if self.source.table is not None:
            self._indexes = _indexes(connection, self.source.table)

    def _describe_columns(self) -> list[tuple[str, str]]:
        """Return the columns' names and declared types."""
        connection = self._require_connection()
        if self.source.query is not None:
            with self.describing(sqlite3.OperationalError):
                cursor = connection.execute(f"SELECT * FROM {self._relation} LIMIT 0")
            return [(name, "") for name, *_ in cursor.description]
        found = connection.execute("SELECT name, type FROM pragma_table_xinfo(?, 'main')", [self.source.table])
        described = [(name, type_) for name, type_ in found]
        if not described:
            tables = connection.execute("SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view')")
            raise unknown_table(str(self.source.table), None, [name for [name] in tables])
        return described

    def _execute(self, text: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        return self._require_connection().execute(text, parameters)

    def _fetch(self, query: _Query, spelled: Sequence[Values]) -> list[Any]:
        connection, marks = self._require_connection(), ", ".join("?" * len(spelled))
        with connection, _decoding(query.request):
            connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {query.keys} ({', '.join(query.key_names)})")
            connection.execute(f"DELETE FROM temp.{query.keys}")
            connection.executemany(f"INSERT INTO temp.{query.keys} VALUES ({marks})", zip(*spelled, strict=True))
            return self._read(connection.execute(query.text, query.parameters))

    def _read(self, cursor: sqlite3.Cursor) -> list[Any]:
        """Return the rows of a cursor; raises SourceError if they are too many bytes in Python's memory."""
        rows: list[Any] = []
        size = 1
        while some := cursor.fetchmany(size):
            self.limit.add(sum(map(sys.getsizeof, itertools.chain(some, *some))))
            rows += some
            # The first are few, since they may be as large as the limit.
            size = min(2 * size, _ROWS_AT_ONCE)
        return rows

    def _require_keys_that_fit(self, request: LookupRequest) -> None:
        """Raise SourceError if no row's key has the types of the schema, since then no key would ever match.

        Rows are read up to the first whose key does, so that it does not depend on where rows with odd values are.
        """
        if request.key_columns in self._checked:
            return
        columns, odd = ", ".join(column_text(name) for name in request.key_columns), None
        with closing(self._execute(f"SELECT {columns} FROM {self._relation} AS t", [])) as cursor, _decoding(request):
            for row in cursor:
                if self._fits(request, row):
                    odd = None
                    break
                odd = odd or row
        if odd is not None:
            self._decode_columns(request, request.key_columns, _columns([odd], len(odd)))
        self._checked.add(request.key_columns)

    def _fits(self, request: LookupRequest, row: Sequence[Any]) -> bool:
        try:
            for name, value in zip(request.key_columns, row, strict=True):
                field = self.schema.field(name)
                storage_of(field).read([value], field.type)
        except MISFITS:
            return False
        return True

    # ── the query ────────────────────────────────────────────────────────────────────────────────────────

    def _document(self, request: LookupRequest, spelled: Sequence[Values]) -> str | None:
        """Return the keys of one column as a JSON array; None if JSON would change them, or for several columns."""
        [first, *more] = [storage_of(self.schema.field(name)) for name in request.key_columns]
        if more or not first.same_in_json:
            return None
        document = json.dumps([value for values in spelled for value in values if value is not None])
        # NUL ends a text for SQLite.
        return None if "\\u0000" in document else document

    def _query(self, request: LookupRequest, form: str) -> _Query:
        """Return the query; it is the same for every call of a join."""
        if self._ready.get(form, (None,))[0] is not request:
            self._ready[form] = request, self._make_query(request, form)
        return self._ready[form][1]

    def _make_query(self, request: LookupRequest, form: str) -> _Query:
        storages = [storage_of(self.schema.field(name)) for name in request.key_columns]
        starts = np.cumsum([0, *(storage.width for storage in storages)])
        names = [f"k{number}" for number in range(starts[-1])] if form == _JOINED else []
        keys = f"lookup_keys_{len(names)}"
        matches = [
            storage.equal(column_text(name), [f"k.{key}" for key in names[start:]][: storage.width])
            for name, storage, start in zip(request.key_columns, storages, starts, strict=False)
            if form == _JOINED
        ]
        conditions = [*self._constants(request), *map(self._condition, request.filters)]
        guarded = {column.name: column for condition in conditions for column in condition.guarded}
        selected = [column_text(name) for name in request.fields] + ["k.rowid"] * (form == _JOINED)
        selected += [
            f"CASE WHEN {fits(column)} THEN NULL ELSE {column_text(column.name)} END" for column in guarded.values()
        ]
        # With a list, a row is returned once even if its collation equates several keys.
        listed = [f"{column_text(request.key_columns[0])} IN (SELECT value FROM json_each(?))"] * (form == _LISTED)
        where = " AND ".join([*listed, *(condition.text for condition in conditions)]) or "TRUE"
        joined = f"temp.{keys} AS k CROSS JOIN " if form == _JOINED else ""
        return _Query(
            request=request,
            text=f"SELECT {', '.join(selected)} FROM {joined}{self._relation} AS t"
            + (f" ON {' AND '.join(matches)}" if matches else "")
            + f" WHERE {where}",
            parameters=[value for condition in conditions for value in condition.parameters],
            keys=keys,
            key_names=names,
            guarded=tuple(guarded),
        )

    def _constants(self, request: LookupRequest) -> Iterator[_Condition]:
        for name, value in request.constants.items():
            field = self.schema.field(name)
            storage = storage_of(field)
            values = [column[0] for column in storage.spell(pa.array([value], field.type))]
            equal = storage.equal(column_text(name), ["?"] * len(values))
            # IS TRUE hides the constant from SQLite's planner, which might use an index of that column only.
            yield _Condition(equal if self._index_helps(request, name) else f"({equal}) IS TRUE", values)

    def _index_helps(self, request: LookupRequest, constant: str) -> bool:
        """Return whether an index starts with this constant and a key column, perhaps among other such columns."""
        keys = _lower(request.key_columns)
        usable = keys | _lower(request.constants)
        for index in self._indexes:
            start = set(itertools.takewhile(usable.__contains__, index))
            if constant.lower() in start and start & keys:
                return True
        return False

    def _condition(self, conjunct: Expr) -> _Condition:
        """Return a filter; a row with a value that does not fit its column passes, and raises an error later."""
        parameters = list[Any]()

        def mark(node: Literal) -> str:
            parameters.append(python_value(node))
            return "?"

        text = filter_text(conjunct, self._dialect, _as_value, mark)
        guarded = tuple(dict.fromkeys(compared_columns(conjunct)))
        misfits = "".join(f" OR NOT {fits(column)}" for column in guarded)
        return _Condition(f"({text}{misfits})", parameters, guarded)

    def _spell_keys(self, request: LookupRequest, keys: pa.RecordBatch) -> list[Values]:
        fields = [self.schema.field(name) for name in request.key_columns]
        return [values for field in fields for values in storage_of(field).spell(keys.column(field.name))]

    # ── the answer ───────────────────────────────────────────────────────────────────────────────────────

    def _table(
        self, request: LookupRequest, query: _Query, rows: list[Any], *, extra: int
    ) -> tuple[pa.Table, list[Values]]:
        """Return the rows' columns, and of each row the ``extra`` values that follow them."""
        width = len(request.fields)
        columns = _columns(rows, width + extra + len(query.guarded))
        for name, misfits in zip(query.guarded, columns[width + extra :], strict=True):
            for value in misfits:
                if value is not None:
                    raise misfit(request.table, self.schema.field(name), value)
        arrays = self._decode_columns(request, request.fields, columns[:width])
        return pa.table(arrays, names=list(request.fields)), columns[width : width + extra]

    def _decode_columns(
        self, request: LookupRequest, names: Sequence[str], columns: Sequence[Values]
    ) -> list[pa.Array]:
        fields = map(self.schema.field, names)
        return [self._array(request, field, values) for field, values in zip(fields, columns, strict=True)]

    def _array(self, request: LookupRequest, field: pa.Field, values: Values) -> pa.Array:
        storage = storage_of(field)
        return read_fitting(request.table, field, values, lambda some: storage.read(some, field.type))


@dataclass(frozen=True)
class _Condition:
    """SQL with its parameters, and the columns whose values must fit their types for it to have Spark's semantics."""

    text: str
    parameters: Sequence[Any]
    guarded: Sequence[Column] = ()


@dataclass(frozen=True)
class _Query:
    """A query's text and parameters; ``guarded`` are columns whose values that do not fit are returned, last."""

    request: LookupRequest
    text: str
    parameters: list[Any]
    keys: str
    key_names: list[str]
    guarded: tuple[str, ...]


def _as_value(column: Column) -> str:
    """Return a column with a plus, so that neither its affinity nor its collation changes a comparison."""
    return f"+{column_text(column.name)}"


def _declared_type(name: str, declared: str) -> pa.DataType:
    """Return the declared type of a column, by SQLite's rules if it is not one of Spark's."""
    text = declared.upper().strip()
    if text.startswith(("DECIMAL(", "NUMERIC(")):
        return _decimal(name, declared, text)
    by_name = {"BOOLEAN": pa.bool_(), "BOOL": pa.bool_(), "DATE": pa.date32(), "FLOAT": pa.float64()}
    by_name |= dict.fromkeys(("TIMESTAMP", "DATETIME"), TIMESTAMP)
    # SQLite stores the numbers of these as integers and doubles.
    by_name |= dict.fromkeys(("NUMERIC", "DECIMAL"), pa.float64())
    if text in by_name:
        return by_name[text]
    for words, type_ in _AFFINITIES.items():
        if any(word in text for word in words):
            return type_
    raise _undeclared_error(name, declared)


def _decimal(name: str, declared: str, text: str) -> pa.DataType:
    try:
        return parse_type(text.replace("NUMERIC", "DECIMAL"))
    except LookupCacheError as error:
        raise _undeclared_error(name, declared) from error


def _undeclared_error(name: str, declared: str) -> SchemaError:
    what = f"is declared {declared!r}, which is" if declared else "has"
    return SchemaError(f"Column {name!r} {what} no type of Spark's.", hint="Give the table a schema of your own.")


_AFFINITIES: dict[tuple[str, ...], pa.DataType] = {
    ("INT",): pa.int64(),
    ("CHAR", "CLOB", "TEXT"): pa.string(),
    ("BLOB",): pa.binary(),
    ("REAL", "FLOA", "DOUB"): pa.float64(),
}
"""As https://www.sqlite.org/datatype3.html finds a column's affinity, in this order."""


@contextmanager
def _decoding(request: LookupRequest) -> Iterator[None]:
    """Turn sqlite3's error about text that is not UTF-8 into a SourceError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "Could not decode to UTF-8" not in str(error):
            raise
        raise SourceError(
            f"Table {request.table!r}: the database contains text that is not UTF-8: {shorten(str(error))}.",
            hint="Give the column the type BINARY, or look up through a view that casts it to BLOB.",
        ) from error


def _indexes(connection: sqlite3.Connection, table: str) -> list[tuple[str, ...]]:
    """Return the columns of each index of the table in their order, in lower case; a row's number is one too."""
    indexed = connection.execute(
        "SELECT l.name, i.name FROM pragma_index_list(?, 'main') AS l, pragma_index_info(l.name, 'main') AS i "
        "WHERE NOT l.partial ORDER BY l.seq, i.seqno",
        [table],
    )
    groups = itertools.groupby(indexed, key=operator.itemgetter(0))
    indexes = [tuple((column or "").lower() for _, column in group) for _, group in groups]
    primary = connection.execute("SELECT name, type FROM pragma_table_info(?, 'main') WHERE pk", [table]).fetchall()
    rowid = [(name.lower(),) for name, type_ in primary if len(primary) == 1 and type_.upper() == "INTEGER"]
    return indexes + rowid


def _lower(names: Iterator[str] | Sequence[str] | Mapping[str, Any]) -> set[str]:
    return {name.lower() for name in names}


def _columns(rows: Sequence[Any], width: int) -> list[Values]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _under_their_own_key(table: pa.Table, keys: pa.RecordBatch, numbers: Values) -> pa.Table:
    """Drop rows that the database found by another key: collations may equate values that Spark does not.

    Otherwise a row would be returned once for each of the keys that its column's collation equates.
    """
    positions = pc.subtract(pa.array(numbers, pa.int64()), 1)
    same = [pc.equal(table.column(name), keys.column(name).take(positions)) for name in keys.schema.names]
    return table.filter(functools.reduce(pc.and_, same))
