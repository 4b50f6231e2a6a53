"""The `sql` connector: rows by key from a table or view of a SQL database, SQLite for now.

request ─► one query for all keys of a call: the keys lie in a temporary table, the database walks its index ─► Arrow
"""

from __future__ import annotations

import decimal
import functools
import itertools
import math
import operator
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import Connector, LookupRequest, hide_userinfo, worth_a_retry
from lookupcache.errors import ConnectorError, OptionError, SchemaError, SourceError, nearest
from lookupcache.expr import Call, Column, Expr, Literal, python_value
from lookupcache.schema import type_name

SCAN_ROWS = 50_000
"""Rows in a batch of `SqlConnector.scan`."""

_SAMPLE_ROWS = 100
_WHOLE_IN_A_DOUBLE = 2**53
_LONGEST_SHOWN = 40
_EXACT = decimal.Context(prec=100)
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_IOERR}
_TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3}(\d{3})?)?$"

Values: TypeAlias = Sequence[Any]


class SqlConnector(Connector):
    """Looks rows up in a table or view of a SQLite database, which it opens read-only.

    Values are taken as SQLite's users store them, and nothing else fits a column of the type:

    | type | stored as |
    |---|---|
    | TINYINT to BIGINT | INTEGER, or a REAL without fraction |
    | FLOAT, DOUBLE | REAL, or an INTEGER that it holds exactly; SQLite has no NaN |
    | BOOLEAN | 0 and 1 |
    | STRING, BINARY | TEXT, BLOB |
    | DECIMAL | INTEGER, REAL, or TEXT with all digits of the scale or without trailing zeros |
    | DATE | TEXT ``YYYY-MM-DD`` |
    | TIMESTAMP, TIMESTAMP_NTZ | TEXT ``YYYY-MM-DD HH:MM:SS`` with 0, 3 or 6 digits of a second; UTC |

    A value that is stored otherwise raises SourceError where it is read; as a key it is not found.
    ``url`` is a path, not escaped; a relative one starts where the driver runs.

    >>> SqlConnector(pa.schema([("id", pa.int64())]), {"url": "sqlite:////data/shop.db", "table": "customers"})
    SqlConnector({'url': 'sqlite:////data/shop.db', 'table': 'customers'})
    """

    options: ClassVar[Mapping[str, str]] = {
        "url": "The database, as in 'sqlite:///relative.db' or 'sqlite:////absolute/path.db'.",
        "table": "The name of a table or view.",
    }
    required = ("url", "table")
    batch_max_size = 10_000

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self.path = _sqlite_path(options["url"])
        self.table = options["table"]
        for field in schema:
            _storage_of(field)
        self._connection: sqlite3.Connection | None = None
        self._text_order = "BINARY"
        self._indexes: list[tuple[str, ...]] = []
        self._sampled: set[tuple[str, ...]] = set()

    def open(self) -> None:
        """Connect; raises ConnectorError or SchemaError for a file, table or column that is not there."""
        if not self.path.is_file():
            raise ConnectorError(f"Option 'url': there is no database file {str(self.path)!r}.")
        try:
            self._connection = sqlite3.connect(f"file:{urllib.parse.quote(str(self.path))}?mode=ro", uri=True)
            self._prepare(self._connection)
        except sqlite3.Error as error:
            self.close()
            if self.retryable(error):
                raise
            raise ConnectorError(f"Option 'url': {str(self.path)!r} cannot be read: {error}.") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def accept(self, filters: Sequence[Expr]) -> Sequence[Expr]:
        """Return the filters that SQLite evaluates with Spark's meaning.

        These are ``IS NULL`` of any column, and comparisons of integers with integers, doubles with doubles, strings
        with strings and booleans for equality, joined by AND, OR and NOT.
        """
        return [conjunct for conjunct in filters if _predicate(conjunct, "BINARY") is not None]

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, by one query."""
        self._sample(request)
        keys = keys.sort_by([(name, "ascending") for name in request.key_columns])
        query = self._query(request, keyed=True)
        rows = self._fetch(query, self._spelled(request, keys))
        table, [numbers] = self._table(request, query, rows, extra=1)
        return _under_their_own_key(table, keys, numbers)

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield the whole table, constants and accepted filters applied."""
        query = self._query(request, keyed=False)
        with closing(self._connected().execute(query.text, query.parameters)) as cursor, _decoding(request):
            while rows := cursor.fetchmany(SCAN_ROWS):
                table, _ = self._table(request, query, rows, extra=0)
                yield from table.to_batches()

    def retryable(self, error: Exception) -> bool:
        """Return whether the database was busy, locked or unreadable for the moment."""
        if isinstance(error, sqlite3.Error):
            return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _PASSING
        return worth_a_retry(error)

    def identity(self) -> Mapping[str, Any]:
        """Return the options, with the path of the database in full."""
        return {**self.settings, "url": f"sqlite:///{self.path}"}

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ConnectorError("The sql connector is used before open().")
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA temp_store = MEMORY")
        [encoding] = connection.execute("PRAGMA encoding").fetchone()
        if encoding != "UTF-8":
            # BINARY compares bytes as they are stored, which orders UTF-16 otherwise than Spark does.
            connection.create_collation("code_points", lambda a, b: (a > b) - (a < b))
            self._text_order = "code_points"
        self._check_names(connection)
        self._indexes = _indexes(connection, self.table)

    def _check_names(self, connection: sqlite3.Connection) -> None:
        found = [name for [name] in connection.execute("SELECT name FROM pragma_table_xinfo(?, 'main')", [self.table])]
        if not found:
            tables = connection.execute("SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view')")
            hint = nearest(self.table, [name for [name] in tables], what="tables and views")
            raise ConnectorError(f"Option 'table': the database has no table or view {self.table!r}.", hint=hint)
        known = {name.lower() for name in found}
        for name in self.schema.names:
            if name.lower() not in known:
                hint = nearest(name, found, what="columns")
                raise SchemaError(f"Table {self.table!r} has no column {name!r} in the database.", hint=hint)

    def _fetch(self, query: _Query, spelled: Sequence[Values]) -> list[Any]:
        connection, marks = self._connected(), ", ".join("?" * len(spelled))
        with connection, _decoding(query.request):
            connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {query.keys} ({', '.join(query.key_names)})")
            connection.execute(f"DELETE FROM temp.{query.keys}")
            connection.executemany(f"INSERT INTO temp.{query.keys} VALUES ({marks})", zip(*spelled, strict=True))
            return connection.execute(query.text, query.parameters).fetchall()

    def _sample(self, request: LookupRequest) -> None:
        """Read some key values once: keys of another type than the schema's would only ever miss."""
        if request.key_columns in self._sampled:
            return
        columns = ", ".join(_column(name) for name in request.key_columns)
        text = f"SELECT {columns} FROM main.{_quote(self.table)} AS t LIMIT {_SAMPLE_ROWS}"
        with _decoding(request):
            rows = self._connected().execute(text).fetchall()
        self._decoded(request, request.key_columns, _columns(rows, len(request.key_columns)))
        self._sampled.add(request.key_columns)

    # ── the query ────────────────────────────────────────────────────────────────────────────────────────

    def _query(self, request: LookupRequest, *, keyed: bool) -> _Query:
        storages = [_storage_of(self.schema.field(name)) for name in request.key_columns]
        starts = np.cumsum([0, *(storage.width for storage in storages)])
        names = [f"k{number}" for number in range(starts[-1])] if keyed else []
        keys = f"lookup_keys_{len(names)}"
        matches = [
            storage.equal(_column(name), [f"k.{key}" for key in names[start:]][: storage.width])
            for name, storage, start in zip(request.key_columns, storages, starts, strict=False)
            if keyed
        ]
        conditions = [*self._constants(request), *self._filters(request)]
        guarded = {column.name: column for condition in conditions for column in condition.guarded}
        selected = [_column(name) for name in request.fields] + ["k.rowid"] * keyed
        selected += [
            f"CASE WHEN {_fits(column)} THEN NULL ELSE {_column(column.name)} END" for column in guarded.values()
        ]
        where = " AND ".join(condition.text for condition in conditions) or "TRUE"
        joined = f"temp.{keys} AS k CROSS JOIN " if keyed else ""
        return _Query(
            request=request,
            text=f"SELECT {', '.join(selected)} FROM {joined}main.{_quote(self.table)} AS t"
            + (f" ON {' AND '.join(matches)}" if matches else "")
            + f" WHERE {where}",
            parameters=[value for condition in conditions for value in condition.parameters],
            keys=keys,
            key_names=names,
            guarded=tuple(guarded),
        )

    def _constants(self, request: LookupRequest) -> Iterator[_Fragment]:
        for name, value in request.constants.items():
            field = self.schema.field(name)
            storage = _storage_of(field)
            values = [column[0] for column in storage.spell(pa.array([value], field.type))]
            equal = storage.equal(_column(name), ["?"] * len(values))
            # IS TRUE hides the constant from the planner, lest it walk an index of that column alone.
            yield _Fragment(equal if self._index_helps(request, name) else f"({equal}) IS TRUE", tuple(values))

    def _index_helps(self, request: LookupRequest, constant: str) -> bool:
        """Return whether an index starts with this constant and a key column, perhaps among other such columns."""
        keys = {name.lower() for name in request.key_columns}
        usable = keys | {name.lower() for name in request.constants}
        for index in self._indexes:
            start = set(itertools.takewhile(usable.__contains__, index))
            if constant.lower() in start and start & keys:
                return True
        return False

    def _filters(self, request: LookupRequest) -> Iterator[_Fragment]:
        """Yield the filters; a row with a value that does not fit its column passes, and is an error later."""
        for conjunct in request.filters:
            fragment = _predicate(conjunct, self._text_order)
            assert fragment is not None, "only accepted filters are pushed"
            misfits = [f" OR NOT {_fits(column)}" for column in dict.fromkeys(fragment.guarded)]
            yield _Fragment(f"({fragment.text}{''.join(misfits)})", fragment.parameters, fragment.guarded)

    def _spelled(self, request: LookupRequest, keys: pa.RecordBatch) -> list[Values]:
        fields = [self.schema.field(name) for name in request.key_columns]
        return [values for field in fields for values in _storage_of(field).spell(keys.column(field.name))]

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
                    raise self._misfit(request, name, value)
        arrays = self._decoded(request, request.fields, columns[:width])
        return pa.table(arrays, names=list(request.fields)), columns[width : width + extra]

    def _decoded(self, request: LookupRequest, names: Sequence[str], columns: Sequence[Values]) -> list[pa.Array]:
        return [self._array(request, name, values) for name, values in zip(names, columns, strict=True)]

    def _array(self, request: LookupRequest, name: str, values: Values) -> pa.Array:
        field = self.schema.field(name)
        storage = _storage_of(field)
        try:
            return storage.read(values, field.type)
        except _MISFITS as error:
            raise self._misfit(request, name, next(_misfits(storage, values, field.type))) from error

    def _misfit(self, request: LookupRequest, name: str, value: Any) -> SourceError:
        type_ = type_name(self.schema.field(name).type).upper()
        return SourceError(
            f"Table {request.table!r}, column {name!r}: the database holds {_shortened(value)}, which is no {type_}.",
            hint="Give the column another type in the table's schema, or look up through a view that casts it.",
        )


@dataclass(frozen=True)
class _Query:
    """A query's text and parameters; ``guarded`` are the columns whose misfits it returns, last."""

    request: LookupRequest
    text: str
    parameters: list[Any]
    keys: str
    key_names: list[str]
    guarded: tuple[str, ...]


@dataclass(frozen=True)
class _Fragment:
    """A piece of SQL with its parameters, and the columns whose values must fit for it to mean what Spark means."""

    text: str
    parameters: tuple[Any, ...] = ()
    guarded: tuple[Column, ...] = ()


# ── how SQLite stores a type ─────────────────────────────────────────────────────────────────────────────────

_MISFITS = (TypeError, ValueError, OverflowError, ArithmeticError, pa.ArrowException)


@dataclass(frozen=True)
class _Storage:
    """How SQLite holds the values of a type.

    ``classes`` are the Python classes that may come; ``decode`` makes them Arrow or raises one of `_MISFITS`;
    ``spell`` gives of each value its ``width`` spellings, any of which may stand in the database (None for none).
    """

    classes: frozenset[type]
    decode: Callable[[Values, pa.DataType], pa.Array]
    spell: Callable[[pa.Array], list[Values]]
    width: int = 1
    ranged: bool = False

    def read(self, values: Values, type_: pa.DataType) -> pa.Array:
        if not set(map(type, values)) <= self.classes:
            raise TypeError
        return self.decode(values, type_)

    def equal(self, column: str, marks: Sequence[str]) -> str:
        if self.ranged:
            return f"{column} BETWEEN {marks[0]} AND {marks[1]}"
        return f"{column} = {marks[0]}" if len(marks) == 1 else f"{column} IN ({', '.join(marks)})"


def _storage_of(field: pa.Field) -> _Storage:
    for is_type, storage in _STORAGES.items():
        if is_type(field.type):
            return storage
    raise SchemaError(
        f"Column {field.name!r}: the sql connector reads no {type_name(field.type).upper()} from SQLite.",
        hint="Declare it STRING, and parse it after the join.",
    )


def _as_is(column: pa.Array) -> list[Values]:
    return [column.to_pylist()]


def _read_integers(values: Values, type_: pa.DataType) -> pa.Array:
    if float in map(type, values) and any(isinstance(value, float) and not value.is_integer() for value in values):
        raise ValueError
    return pa.array(values, type_)


def _float_bounds(column: pa.Array) -> list[Values]:
    """Return the least and the greatest double that is this float once rounded."""
    floats = column.to_numpy(zero_copy_only=False)
    bounds = []
    for towards in (-np.inf, np.inf):
        with np.errstate(all="ignore"):
            halfway = (floats.astype(np.float64) + np.nextafter(floats, np.float32(towards)).astype(np.float64)) / 2
            inside = halfway.astype(np.float32) == floats
        bounds.append(np.where(inside, halfway, np.nextafter(halfway, -towards)).tolist())
    return bounds


def _read_floats(values: Values, type_: pa.DataType) -> pa.Array:
    doubles = pa.array(values, pa.float64())
    floats = doubles.cast(type_)
    if pc.any(pc.and_(pc.is_finite(doubles), pc.is_inf(floats))).as_py():
        raise OverflowError
    return floats


def _read_booleans(values: Values, type_: pa.DataType) -> pa.Array:
    if not set(values) <= {0, 1, None}:
        raise ValueError
    return pa.array([None if value is None else value == 1 for value in values], type_)


def _spell_decimals(column: pa.Array) -> list[Values]:
    return list(zip(*map(_decimal_spellings, column.to_pylist()), strict=True)) or [(), (), ()]


def _decimal_spellings(value: Decimal) -> tuple[str, str, int | float | None]:
    text = format(value, "f")
    short = text.rstrip("0").rstrip(".") if "." in text else text
    return text, short, _number(value)


def _number(value: Decimal) -> int | float | None:
    """Return the number as SQLite would hold it, or None if it cannot."""
    if value == value.to_integral_value() and -(2**63) <= value < 2**63:
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else None


def _read_decimals(values: Values, type_: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else _decimal(value, type_.scale) for value in values], type_)


def _decimal(value: int | float | str, scale: int) -> Decimal:
    number = Decimal(repr(value) if isinstance(value, float) else value)
    exact = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if exact != number or (isinstance(value, str) and value not in _decimal_spellings(exact)):
        raise ValueError
    return exact


def _read_dates(values: Values, type_: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).cast(type_)


def _read_times(values: Values, type_: pa.DataType) -> pa.Array:
    texts = pa.array(values, pa.string())
    if pc.all(pc.match_substring_regex(texts, _TIME)).as_py() is False:
        raise ValueError
    return texts.cast(pa.timestamp("us")).cast(type_)


def _spell_times(column: pa.Array) -> list[Values]:
    """Return the texts without fraction, with three and with six digits; None where digits would be lost."""
    moments = column.cast(pa.timestamp("us"))
    texts = moments.cast(pa.string())
    finest = pc.not_equal(pc.microsecond(moments), 0)
    fraction = pc.or_(finest, pc.not_equal(pc.millisecond(moments), 0))
    none = pa.scalar(None, pa.string())
    whole = pc.if_else(fraction, none, pc.utf8_slice_codeunits(texts, 0, -7))
    thousandths = pc.if_else(finest, none, pc.utf8_slice_codeunits(texts, 0, -3))
    return [whole.to_pylist(), thousandths.to_pylist(), texts.to_pylist()]


def _spell_dates(column: pa.Array) -> list[Values]:
    return _as_is(column.cast(pa.string()))


_NUMBERS = frozenset[type]({int, float, type(None)})
_TEXTS = frozenset[type]({str, type(None)})
_STORAGES: dict[Callable[[pa.DataType], bool], _Storage] = {
    pa.types.is_integer: _Storage(_NUMBERS, _read_integers, _as_is),
    pa.types.is_float32: _Storage(_NUMBERS, _read_floats, _float_bounds, width=2, ranged=True),
    pa.types.is_float64: _Storage(_NUMBERS, pa.array, _as_is),
    pa.types.is_boolean: _Storage(frozenset[type]({int, type(None)}), _read_booleans, _as_is),
    pa.types.is_string: _Storage(_TEXTS, pa.array, _as_is),
    pa.types.is_binary: _Storage(frozenset[type]({bytes, type(None)}), pa.array, _as_is),
    pa.types.is_decimal: _Storage(_NUMBERS | _TEXTS, _read_decimals, _spell_decimals, width=3),
    pa.types.is_date32: _Storage(_TEXTS, _read_dates, _spell_dates),
    pa.types.is_timestamp: _Storage(_TEXTS, _read_times, _spell_times, width=3),
}


def _misfits(storage: _Storage, values: Values, type_: pa.DataType) -> Iterator[Any]:
    for value in values:
        try:
            storage.read([value], type_)
        except _MISFITS:
            yield value


@contextmanager
def _decoding(request: LookupRequest) -> Iterator[None]:
    """Turn sqlite3's complaint about text that is no UTF-8 into a SourceError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "Could not decode to UTF-8" not in str(error):
            raise
        raise SourceError(
            f"Table {request.table!r}: the database holds text that is no UTF-8: {_shortened(str(error))}.",
            hint="Give the column the type BINARY, or look up through a view that casts it to BLOB.",
        ) from error


def _indexes(connection: sqlite3.Connection, table: str) -> list[tuple[str, ...]]:
    """Return the columns of each index of the table in their order, in lower case."""
    indexed = connection.execute(
        "SELECT l.name, i.name FROM pragma_index_list(?, 'main') AS l, pragma_index_info(l.name, 'main') AS i "
        "WHERE NOT l.partial ORDER BY l.seq, i.seqno",
        [table],
    )
    groups = itertools.groupby(indexed, key=operator.itemgetter(0))
    return [tuple((column or "").lower() for _, column in group) for _, group in groups]


def _columns(rows: Sequence[Any], width: int) -> list[Values]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _under_their_own_key(table: pa.Table, keys: pa.RecordBatch, numbers: Values) -> pa.Table:
    """Drop rows that the database found by a key that is not theirs: collations may equate what Spark does not.

    Without this a row would come once for each of several keys that its column's collation holds equal.
    """
    positions = pc.subtract(pa.array(numbers, pa.int64()), 1)
    same = [pc.equal(table.column(name), keys.column(name).take(positions)) for name in keys.schema.names]
    return table.filter(functools.reduce(pc.and_, same))


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────


def _predicate(expr: Expr, text_order: str) -> _Fragment | None:
    """Return the SQL of a filter, or None where SQLite might evaluate it otherwise than Spark.

    Columns are written with a plus, so that neither their affinity nor their collation changes a comparison.
    """
    if isinstance(expr, Column):
        return _operand(expr) if _family(expr) == "boolean" else None
    if isinstance(expr, Literal):
        return None
    if expr.op == "is null" and isinstance(expr.args[0], Column):
        return _Fragment(f"{_column(expr.args[0].name)} IS NULL") if expr.args[0].side == "right" else None
    if expr.op in _COMPARISONS:
        return _comparison(expr, text_order)
    if expr.op not in ("and", "or", "not"):
        return None
    parts = [_predicate(argument, text_order) for argument in expr.args]
    if any(part is None for part in parts):
        return None
    inner = [part for part in parts if part is not None]
    if expr.op == "not":
        return replace(inner[0], text=f"(NOT {inner[0].text})")
    return _joined(f" {expr.op.upper()} ", inner)


def _comparison(expr: Call, text_order: str) -> _Fragment | None:
    families = {_family(argument) for argument in expr.args}
    operands = [_operand(argument) for argument in expr.args]
    if None in families or len(families) > 1 or None in operands:
        return None
    [family] = families
    if family == "boolean" and expr.op not in ("=", "<=>"):
        return None
    fragment = _joined(_COMPARISONS[expr.op], [operand for operand in operands if operand is not None])
    if family != "string":
        return fragment
    collation = text_order if expr.op in _ORDERS else "BINARY"
    return replace(fragment, text=f"({fragment.text[1:-1]} COLLATE {collation})")


_COMPARISONS = {"=": " = ", "<": " < ", "<=": " <= ", ">": " > ", ">=": " >= ", "<=>": " IS "}
_ORDERS = ("<", "<=", ">", ">=")


def _joined(word: str, parts: Sequence[_Fragment]) -> _Fragment:
    return _Fragment(
        f"({word.join(part.text for part in parts)})",
        tuple(value for part in parts for value in part.parameters),
        tuple(column for part in parts for column in part.guarded),
    )


def _operand(expr: Expr) -> _Fragment | None:
    if isinstance(expr, Column):
        return _Fragment(f"+{_column(expr.name)}", guarded=(expr,)) if expr.side == "right" else None
    if not isinstance(expr, Literal):
        return None
    value = python_value(expr)
    return None if isinstance(value, float) and math.isnan(value) else _Fragment("?", (value,))


def _family(expr: Expr) -> str | None:
    """Return which operands an expression may be compared with; FLOAT has none, since the database holds doubles."""
    families = {
        "integer": pa.types.is_integer(expr.type),
        "double": pa.types.is_float64(expr.type),
        "string": pa.types.is_string(expr.type),
        "boolean": pa.types.is_boolean(expr.type),
    }
    return next((family for family, is_it in families.items() if is_it), None)


def _fits(column: Column) -> str:
    """Return the SQL that says whether a value fits its column's type, just as reading it would find."""
    name = _column(column.name)
    if pa.types.is_string(column.type):
        return f"(typeof({name}) IN ('text', 'null'))"
    if pa.types.is_boolean(column.type):
        return f"({name} IS NULL OR typeof({name}) = 'integer' AND +{name} IN (0, 1))"
    if pa.types.is_float64(column.type):
        whole = f"+{name} BETWEEN {-_WHOLE_IN_A_DOUBLE} AND {_WHOLE_IN_A_DOUBLE}"
        return f"(typeof({name}) IN ('real', 'null') OR typeof({name}) = 'integer' AND {whole})"
    least = -(2 ** (column.type.bit_width - 1))
    whole = f"+{name} = CAST({name} AS INTEGER) AND +{name} BETWEEN {least} AND {-1 - least}"
    return f"({name} IS NULL OR typeof({name}) IN ('integer', 'real') AND {whole})"


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _sqlite_path(url: str) -> Path:
    scheme, separator, path = url.partition(":///")
    if separator and scheme.lower() == "sqlite" and path and path != ":memory:" and "\0" not in path:
        return Path(path).absolute()
    raise OptionError(
        f"Option 'url' is {hide_userinfo(url)!r}, which names no database file.",
        hint=SqlConnector.options["url"],
    )


def _column(name: str) -> str:
    return f"t.{_quote(name)}"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
