"""`LookupTable`: a named lookup source with its schema and options."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from lookupcache.config import LookupConfig, split_options
from lookupcache.connector import PROCESS, Connector, build_connector, digest_of, offers, this_process
from lookupcache.error_text import clear_locals
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, SchemaError
from lookupcache.functions.adapter import named_object
from lookupcache.functions.connector import FunctionConnector
from lookupcache.jdbc import changed_options, from_jdbc
from lookupcache.latest.load import LoadPhase
from lookupcache.latest.source import StreamSource
from lookupcache.lazy import cached_property
from lookupcache.notebook import as_html
from lookupcache.plan import digest
from lookupcache.schema import as_schema, to_ddl
from lookupcache.source_options import is_shipped, replace_options

if TYPE_CHECKING:
    from lookupcache.functions.identity import CodeIdentity


class LookupTable:
    """A table in another system, and how rows are looked up in it.

    All arguments are checked here, before any job starts; a connection is made only to infer a schema. Raises
    OptionError, SchemaError or ConnectorError for invalid arguments.

    Args:
        name: Qualifies the table's columns in conditions.
        schema: DDL text, a pyarrow.Schema or a StructType; None infers it from the source, if the connector can.
        options: ``connector`` (a registered name or ``module:Class``), the connector's own options and the ``lookup.*``
            options. Those of Flink's JDBC connector and of Spark's JDBC source mean options of the connector ``sql``.

    >>> LookupTable("c", "id BIGINT, name STRING", {"connector": "sql", "url": "sqlite:///s.db", "table": "c"})
    LookupTable('c', '`id` bigint, `name` string', {'connector': 'sql', 'url': 'sqlite:///s.db', 'table': 'c'})
    """

    def __init__(self, name: str, schema: str | pa.Schema | Any | None, options: Mapping[str, Any]) -> None:
        self.name = _checked_name(name)
        self.options = from_jdbc(_checked_options(options), name)
        self._function: FunctionConnector | None = None
        self._stream: StreamSource | None = None
        self.schema = as_schema(self._infer_schema() if schema is None else schema)
        _ = self.config, self.connector

    @classmethod
    def from_function(
        cls,
        name: str,
        schema: str | pa.Schema | Any,
        *,
        key: Sequence[str],
        function: Callable[..., Any],
        batch: bool = False,
        example: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> LookupTable:
        """Create a lookup table from a function, sync or async.

        Args:
            name: Qualifies the table's columns in conditions.
            schema: DDL text, a pyarrow.Schema or a StructType.
            key: The columns whose values are passed to the function, or the name of one.
            function: ``function(*key)`` returns a row, an iterable of rows, or None. A row is a dict, a named tuple, a
                dataclass, a tuple in the schema's order, or a value where one column is wanted. It may leave out the
                key.
            batch: If true, ``function(keys)`` takes a list of key tuples (plain values for a ``key`` of one column). It
                returns one such answer per key, in the same order.
            example: A key that has a row, as a value or a tuple of values. The function is called for it at once, in
                this process, as a worker would: raises SourceError if its row does not fit the schema.
            options: The ``lookup.*`` options.

        >>> squares = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"],
        ...                                     function=lambda n: n * n, example=3)
        >>> squares.connector_name
        'function'
        """
        table = cls.__new__(cls)
        table.name = _checked_name(name)
        table.schema = as_schema(schema)
        table.options = _checked_options(options or {})
        table._function = FunctionConnector(table.schema, key=_names("key", key), function=function, batch=batch)
        table._stream = None
        _ = table.config, table.connector
        if example is not None:
            table._function.try_example(name, example)
        return table

    @classmethod
    def from_toml(cls, path: str | Path) -> LookupTable:
        """Create the lookup table that a TOML file defines, as ``lookupcache check`` reads it.

        The file has a ``name`` (by default its own, without the suffix), a ``schema`` as DDL text (by default inferred)
        and the section ``[options]``. Raises OptionError for a file that is no such definition, OSError for one that
        cannot be read, and the errors of `LookupTable`.

        >>> from tempfile import TemporaryDirectory
        >>> lines = ['schema = "id BIGINT"', '[options]', 'connector = "sql"', 'url = "sqlite:///s.db"', 'table = "c"']
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "customers.toml")
        ...     _ = file.write_text(chr(10).join([*lines, 'lookup.cache = "LRU"']))
        ...     table = LookupTable.from_toml(file)
        >>> table.name, table.config.cache
        ('customers', 'LRU')
        """
        from lookupcache.table_file import TableFile  # Few processes need it.

        definition = TableFile.read(Path(path))
        return cls(definition.name, definition.schema, definition.options)

    @classmethod
    def from_stream(
        cls,
        name: str,
        rows: Any,
        *,
        key: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        ttl: str | float | None = None,
        delete_when: str | None = None,
        buckets: int | None = None,
        load: LoadPhase | None = None,
        left_order_by: str | Sequence[str] | None = None,
        operator: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> LookupTable:
        """Create a lookup table whose rows are the latest values of a stream, for joins with another stream.

        Args:
            name: Qualifies the table's columns in conditions.
            rows: The stream as a DataFrame; in a batch query, a batch.
            key: The columns of which each combination has one latest row, or the name of one; none for one row in all.
            order_by: Columns whose greatest values make a row the latest of its key, or the name of one. By default the
                row that arrived last is. A batch needs it.
            ttl: How long a value is used after it arrived, such as ``"1 h"``; by default, until the next one.
            delete_when: SQL over the columns; a row for which it is true deletes the value of its key.
            buckets: Into how many parts the values are split in the state; by default 32, without a key 8.
            load: Until when left rows wait for the table to be loaded; by default, they do not wait.
            left_order_by: The left column for each of ``order_by``: a left row finds the rows of its micro-batch whose
                order is not above its own. By default, it finds all of them.
            operator: ``transformWithState`` where the result is united or joined with that of another such join. By
                default, it is taken where one side has a state already.
            options: ``lookup.age-column`` and ``lookup.metrics``.

        >>> from lookupcache import lookup_join
        >>> rates = spark.createDataFrame([("EUR", 1.2, 1), ("EUR", 1.3, 2)], "ccy STRING, rate DOUBLE, at INT")
        >>> table = LookupTable.from_stream("r", rates, key=["ccy"], order_by="at")
        >>> orders = spark.createDataFrame([(10, "EUR")], "amount INT, ccy STRING")
        >>> lookup_join(orders, table, on="left.ccy = r.ccy", how="left", select=["amount", "rate"]).collect()
        [Row(amount=10, rate=1.3)]
        """
        table = cls.__new__(cls)
        table.name = _checked_name(name)
        table.schema = as_schema(rows.schema)
        table.options = _checked_options(options or {})
        table._function = None
        table._stream = StreamSource(
            rows,
            table.schema,
            key=_names("key", key),
            order_by=_names("order_by", order_by),
            ttl=ttl,
            delete_when=delete_when,
            buckets=buckets,
            load=load,
            left_order_by=_names("left_order_by", left_order_by),
            operator=operator,
        )
        _ = table.config, table.connector
        return table

    def with_options(self, options: Mapping[str, Any]) -> LookupTable:
        """Return the same table with some options replaced."""
        changes = changed_options(self.options, _checked_options(options), self.name)
        return self._copy_with(options=replace_options(self.options, changes, self.connector.renamed))

    def in_session(self, setting: Callable[[str], str | None]) -> LookupTable:
        """Return the same table with the options that its connector takes from a session, unless they are set.

        ``setting`` returns the value of a setting of the session.
        """
        taken = {
            option: setting(name)
            for option, name in self.connector.session_options.items()
            if option not in self.connector.settings
        }
        return self.with_options(taken) if taken else self

    def with_config(self, config: LookupConfig) -> LookupTable:
        """Return the same table with exactly these ``lookup.*`` options."""
        return self._copy_with(options=split_options(self.options)[1] | config.to_json())

    def with_schema(self, schema: str | pa.Schema | Any) -> LookupTable:
        """Return the same table with other columns."""
        columns, function = as_schema(schema), self._function
        if self._stream is not None:
            raise SchemaError(
                f"Table {self.name!r} has the columns of its stream.", hint="Change those with select or withColumn."
            )
        if function is not None:
            function = FunctionConnector(columns, key=function.key, function=function.function, batch=function.batch)
        return self._copy_with(schema=columns, _function=function)

    def with_stream(self, **changes: Any) -> LookupTable:
        """Return the same table of latest values with some arguments of `from_stream` replaced."""
        assert self._stream is not None
        return self._copy_with(_stream=self._stream.with_changes(**changes))

    @property
    def stream(self) -> StreamSource | None:
        """The stream of a table that has its latest values."""
        return self._stream

    @property
    def function(self) -> FunctionConnector | None:
        """The function of a table that was made of one, and how it is called."""
        return self._function

    def _copy_with(self, **attributes: Any) -> LookupTable:
        changed = object.__new__(LookupTable)
        kept = {name: value for name, value in self.__dict__.items() if name not in ("config", "connector")}
        changed.__dict__.update(kept | attributes)
        _ = changed.config, changed.connector
        return changed

    def renamed(self, name: str) -> LookupTable:
        """Return the same table under another name, such as an alias in SQL."""
        changed = object.__new__(LookupTable)
        changed.__dict__.update(self.__dict__)
        changed.name = _checked_name(name)
        return changed

    @property
    def connector_name(self) -> str:
        """The value of the option 'connector', or 'function' or 'stream' for a table made from one."""
        if self._stream is not None:
            return "stream"
        return "function" if self._function is not None else str(self.options.get("connector", ""))

    @cached_property
    def config(self) -> LookupConfig:
        """The ``lookup.*`` options."""
        return LookupConfig.from_options(split_options(self.options)[0])

    @cached_property
    def connector(self) -> Connector:
        """The connector, built but not opened."""
        built = self._build_connector()
        if self.config.cache == "ALL" and not offers(built, "scan"):
            raise ConnectorError(
                f"'lookup.cache' = 'ALL' reads the full table, which connector {self.connector_name!r} cannot do.",
                hint="Use LRU or TTL, or implement Connector.scan.",
            )
        built.runs_async(self.config.async_)
        return built

    def _infer_schema(self) -> pa.Schema:
        """Return the schema that the source reports; secrets are removed from its driver's errors."""
        self.schema = pa.schema([])
        connector = self._build_connector()
        if not offers(connector, "infer_schema"):
            raise SchemaError(
                f"Table {self.name!r} has no schema, and connector {self.connector_name!r} cannot infer it.",
                hint="Pass it as in CREATE TABLE: 'id BIGINT, name STRING'.",
            )
        connector.resolve()
        try:
            return connector.infer_schema()
        except LookupCacheError as error:
            clear_locals(error)
            raise
        except Exception as error:
            clear_locals(error)
            text = connector.hide(str(error))
            raise ConnectorError(f"Table {self.name!r}: the schema cannot be read from the source: {text}") from None

    def _build_connector(self) -> Connector:
        own = split_options(self.options)[1]
        if self._stream is not None:
            if own:
                raise OptionError(f"A stream has no option {next(iter(own))!r}.", hint="Use only 'lookup.*' options.")
            self._stream.check_config(self.config)
            return self._stream
        if self._function is not None:
            if own:
                raise OptionError(f"A function has no option {next(iter(own))!r}.", hint="Use only 'lookup.*' options.")
            return self._function
        name = own.pop("connector", "")
        if not name:
            raise OptionError(
                f"Table {self.name!r} has no option 'connector'.",
                hint="Set it, as in {'connector': 'sql', 'url': …}.",
            )
        return build_connector(name, self.schema, own)

    @property
    def source(self) -> str:
        """A hash of the connector's class, of what `Connector.identity` returns, and of the code or its version."""
        return self.identify()[0]

    @property
    def code_unknown(self) -> str | None:
        """Why no other application shares the rows: what of the code has no stable text; None if they do."""
        return self.identify()[1]

    def identify(self) -> tuple[str, str | None]:
        """Return `source` and `code_unknown`, anew for each join: values that the code reads may have changed.

        Where the code has no identity, each application has an identity of its own, and shares rows with no other.
        """
        kind, code = type(self.connector), self.config.version
        found = self._identify_code() if code is None else None
        if code is not None and not is_shipped(kind):
            code += to_ddl(self.schema)  # It may answer by all columns; no version stands for them.
        if found is not None:
            code = found.digest or self._digest_in_process()
            if self.config.cache_path is not None or self.config.store is not None:
                self.connector.code_variables = found.variables
                self.connector.code_texts = PROCESS, found.texts
        identity = [kind.__module__, kind.__qualname__, dict(self.connector.identity()), code]
        source = digest_of(self.connector, "identity", identity)
        return source, None if found is None else found.unknown

    def _identify_code(self) -> CodeIdentity | None:
        """Return the identity of a function, or of a connector that does not come with lookupcache."""
        from lookupcache.functions.identity import identity_of_code, identity_of_connector  # Few processes need it.

        connector = self.connector
        if isinstance(connector, FunctionConnector):
            return identity_of_code(connector.function)
        return identity_of_connector(connector)

    def _digest_in_process(self) -> str:
        """Return what differs where another function or object may be meant, in this process only."""
        from lookupcache.functions.source_text import text_of_module  # Few processes need it.

        connector, pickled = self.connector, b""
        if isinstance(connector, FunctionConnector):
            pickled, module = connector.pickled, named_object(connector.function).__module__
        else:
            module = type(connector).__module__
            with suppress(Exception):  # Whatever its attributes raise; then it cannot be sent to workers either.
                pickled = cloudpickle.dumps(connector)
        # The pickle of what is in a module is its name only, and the module may be loaded again.
        text = text_of_module(str(module))
        return digest([this_process(), hashlib.sha256(pickled).hexdigest(), text and text.digest])

    def __repr__(self) -> str:
        if "connector" not in self.__dict__:
            # A debugger or a traceback with local variables also shows a table whose arguments were refused.
            return f"<LookupTable {self.name!r}, not built>"
        shown = self.connector.show_options(self.options)
        return f"LookupTable({self.name!r}, {to_ddl(self.schema)!r}, {shown})"

    def _repr_html_(self) -> str:
        columns = [(field.name, to_ddl(pa.schema([field])).rpartition("` ")[2]) for field in self.schema]
        options = [(name, str(value)) for name, value in self.connector.show_options(self.options).items()]
        return as_html(f"Lookup table {self.name}", {"Columns": columns, "Options": options})


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise SchemaError(
            f"The name of a lookup table is a text, not {name!r}.",
            hint="It qualifies its columns: name.column.",
        )
    return name


def _checked_options(options: Any) -> dict[str, Any]:
    """Return a copy of the options; raises OptionError, without their values, if they are not by name."""
    hint = "Give a dict of texts, such as {'connector': 'sql', 'url': 'sqlite:///shop.db', 'table': 'people'}."
    if not isinstance(options, Mapping):
        raise OptionError(f"The options of a lookup table are a dict, not {type(options).__name__}.", hint=hint)
    if wrong := [name for name in options if not isinstance(name, str)]:
        raise OptionError(f"The name of an option is a text, not {type(wrong[0]).__name__}.", hint=hint)
    return dict(options)


def _names(argument: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of columns that an argument gives: one, several, or none."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    names = tuple(value) if isinstance(value, Iterable) else (value,)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise SchemaError(
            f"{argument!r} takes names of columns, not {type(wrong[0]).__name__}.",
            hint=f"Write one as a text, several as a list: {argument}=['id', 'day'].",
        )
    return names
