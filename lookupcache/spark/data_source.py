"""`spark.read.format("lookupcache")`: a lookup table read like any other, through Spark's API for data sources.

options ─► LookupTable ─► filters that the connector accepts ─► one task scans the source ─► Arrow batches

`connectors/pyspark_lookupcache` is where Spark finds it: it imports every installed module whose name starts like
that. So nothing is imported here that `lookupcache` needs only for joins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.connector import Connector, connector_class
from lookupcache.errors import OptionError, UnsupportedVersionError
from lookupcache.expr import Call, Column, Expr, literal
from lookupcache.jdbc import from_jdbc
from lookupcache.schema import type_name
from lookupcache.spark.forms.join_context import spark_type
from lookupcache.table import LookupTable
from lookupcache.worker.full_scan import TableScan
from lookupcache.worker.task import send_errors

try:
    from pyspark.sql import datasource as ds
except ImportError as error:
    raise UnsupportedVersionError(
        "Spark reads the format 'lookupcache' through its Python data sources, which it has since Spark 4.0.",
        hint="Join with lookup_join; or read the table in full with LookupSession.sql('SELECT * FROM …').",
    ) from error

_PUSH_FILTERS = "push-filters"
_OPTIONS = "options"
_FIELD = "field."
_MOST_ALTERNATIVES = 100
"""A longer list of values is left to Spark."""


class TableSource(ds.DataSource):
    """A lookup table as a data source of Spark; its options are those of `LookupTable`.

    Without a schema, it is read from the source. With one, only its columns are read. With the option ``push-filters``,
    filters are applied by the source where the connector can do so with Spark's meaning, and Spark applies the others.
    It requires ``spark.sql.python.filterPushdown.enabled``: a data source cannot find out whether that is set.
    Spark passes the names of options in lower case. Those of columns and of the connector are found again. Others that
    may have upper case letters, such as ``query.pageSize``, are members of the JSON object in the option ``options``.

    >>> import os, sqlite3, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "shop.db")
    >>> with sqlite3.connect(path) as shop:
    ...     _ = shop.execute("CREATE TABLE customers AS SELECT 1 AS id, 'Ann' AS name, 'Turku' AS town")
    >>> reader = spark.read.format("lookupcache").schema("id BIGINT, name STRING")
    >>> reader.options(connector="sql", url=f"sqlite:///{path}", table="customers").load().collect()
    [Row(id=1, name='Ann')]
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lookupcache"

    def schema(self) -> T.StructType:
        """Return the columns that the source reports; called where the reader has no schema."""
        columns = self._table(None).schema
        return T.StructType([T.StructField(f.name, spark_type(f.type), f.nullable) for f in columns])

    def reader(self, schema: T.StructType) -> TableReader:
        """Return the reader of these columns; raises ConnectorError for a source without scan."""
        reader = FilteringReader if self._pushes_filters else TableReader
        return reader(self._table(schema))

    def writer(self, schema: T.StructType, overwrite: bool) -> ds.DataSourceWriter:
        """Raise OptionError: sources are only read."""
        raise OptionError("The format 'lookupcache' only reads.", hint="Write with the format of the source itself.")

    def _table(self, schema: T.StructType | None) -> LookupTable:
        columns = [] if schema is None else schema.fieldNames()
        options = _with_own_names(self.options, columns)
        return LookupTable(str(options.get("table", "lookupcache")), schema, options)

    @property
    def _pushes_filters(self) -> bool:
        value = str(self.options.get(_PUSH_FILTERS, "false"))
        if value.lower() not in ("true", "false"):
            raise OptionError(f"Option {_PUSH_FILTERS!r} is {value!r}.", hint="Set it to 'true' or 'false'.")
        if value.lower() == "true" and not hasattr(ds.DataSourceReader, "pushFilters"):
            raise OptionError(
                f"Option {_PUSH_FILTERS!r} needs Spark 4.1 or later, which offers filters to data sources.",
                hint="Leave it out: Spark applies the filters.",
            )
        return value.lower() == "true"


def _with_own_names(given: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a table's options from those of a data source, which Spark has written in lower case.

    Raises OptionError for one whose name may have been another before.

    >>> given = {"connector": "http", "field.lastname": "$.n", "options": '{"query.pageSize": "9"}'}
    >>> _with_own_names(given, ["lastName"])
    {'connector': 'http', 'field.lastName': '$.n', 'query.pageSize': '9'}
    """
    exact = _exact_options(given.get(_OPTIONS))
    plain = from_jdbc(
        {name: value for name, value in given.items() if name not in (_OPTIONS, _PUSH_FILTERS)}, "lookupcache"
    )
    name = {**plain, **exact}.get("connector")
    kind = connector_class(str(name)) if name else Connector
    known = {one.lower(): one for one in [*(kind.options or {}), *(_FIELD + column for column in columns)]}
    for name in plain:
        if name.startswith(tuple(kind.exact_names)):
            raise OptionError(
                f"Option {name!r}: Spark passes names of options in lower case, and this one may have had others.",
                hint=f'Write it into the option {_OPTIONS!r}, as JSON: {{"{name}": "…"}}.',
            )
    found = {known.get(name, name): value for name, value in plain.items()}
    for name in exact:
        if name in found:
            raise OptionError(f"Option {name!r} is set twice.", hint=f"Leave it out, or out of {_OPTIONS!r}.")
    return {**found, **exact}


def _exact_options(text: Any) -> dict[str, Any]:
    """Return the members of the option `options`; raises OptionError, without its text, which may have secrets."""
    try:
        found = {} if text is None else json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or any(isinstance(value, list | dict) for value in found.values()):
        raise OptionError(
            f"Option {_OPTIONS!r} is no JSON object of names and values.", hint='As in {"query.pageSize": "100"}.'
        )
    return found


class TableReader(ds.DataSourceReader):
    """Reads a lookup table in one task, which makes one scan."""

    def __init__(self, table: LookupTable) -> None:
        self.table = table
        self.scan = TableScan.of(table)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in the worker."""
        return send_errors(self.scan.batches())


class FilteringReader(TableReader):
    """Reads the rows that pass the filters which the connector accepts.

    A separate class, since Spark refuses one that accepts filters where its session does not offer them.
    """

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802 - Spark's name
        """Offer the connector what Spark offers; return the filters that Spark is to apply."""
        offered = [(one, _translate(one, self.table.schema)) for one in filters]
        accepted = self.table.connector.accept([found for _, found in offered if found is not None])
        self.scan = TableScan.of(self.table, accepted)
        return [one for one, found in offered if found is None or found not in accepted]


def _translate(filter_: ds.Filter, columns: pa.Schema) -> Expr | None:
    """Return a filter of Spark as an expression; None where Spark has to apply it."""
    kind = type(filter_).__name__
    if kind == "Not":
        inner = _translate(getattr(filter_, "child"), columns)  # noqa: B009 - see _TRANSLATIONS
        return None if inner is None else Call("not", (inner,))
    translate = _TRANSLATIONS.get(kind)
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    if translate is None or len(path) != 1 or path[0] not in columns.names:
        return None
    column = Column("right", path[0], columns.field(path[0]).type)
    return translate(column, getattr(filter_, "value", None))


def _comparison(operator: str) -> Callable[[Column, Any], Expr | None]:
    def translate(column: Column, value: Any) -> Expr | None:
        return Call(operator, (column, literal(value, column.type))) if _is_exact(value, column.type) else None

    return translate


def _alternatives(column: Column, values: Any) -> Expr | None:
    found = [_comparison("=")(column, value) for value in values]
    if not 0 < len(found) <= _MOST_ALTERNATIVES or None in found:
        return None
    while len(found) > 1:
        pairs = [found[at : at + 2] for at in range(0, len(found), 2)]
        found = [pair[0] if len(pair) == 1 else Call("or", tuple(pair)) for pair in pairs]  # type: ignore[arg-type]
    return found[0]


def _is_exact(value: Any, type_: pa.DataType) -> bool:
    """Return whether a value that Spark offers for a column is a literal of the column's type.

    A timestamp is offered in the time zone of Python's process, so Spark compares it itself.
    """
    expected = _PYTHON_TYPES.get(type_name(type_).partition("(")[0])
    return expected is not None and type(value) is expected


_PYTHON_TYPES: dict[str, type] = {
    "boolean": bool, "tinyint": int, "smallint": int, "int": int, "bigint": int, "float": float, "double": float,
    "string": str, "binary": bytes, "date": date, "decimal": Decimal,
}  # fmt: skip

_TRANSLATIONS: dict[str, Callable[[Column, Any], Expr | None]] = {
    "EqualTo": _comparison("="),
    "EqualNullSafe": _comparison("<=>"),
    "LessThan": _comparison("<"),
    "LessThanOrEqual": _comparison("<="),
    "GreaterThan": _comparison(">"),
    "GreaterThanOrEqual": _comparison(">="),
    "In": _alternatives,
    "IsNull": lambda column, _: Call("is null", (column,)),
    "IsNotNull": lambda column, _: Call("not", (Call("is null", (column,)),)),
    "StringStartsWith": _comparison("starts with"),
    "StringEndsWith": _comparison("ends with"),
    "StringContains": _comparison("contains"),
}
"""By the name of the filter's class: Spark 4.0 has none of them, and reads without filters."""
