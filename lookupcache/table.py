"""`LookupTable`: a named lookup source with its schema and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from lookupcache.config import LookupConfig, split_options
from lookupcache.connector import Connector, build_connector, hide_userinfo, is_secret, offers
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, SchemaError
from lookupcache.function import FunctionConnector
from lookupcache.plan import digest
from lookupcache.redaction import hidden
from lookupcache.schema import as_schema, to_ddl


class LookupTable:
    """A table that lives in another system, and how to look rows up in it.

    ``name`` qualifies the table's columns in conditions. ``schema`` is DDL text, a pyarrow.Schema or a
    StructType; None asks the source, where its connector can tell. ``options`` holds ``connector`` (a registered
    name or ``module:Class``), the connector's own options and the ``lookup.*`` ones. Raises OptionError, SchemaError
    or ConnectorError for what is wrong with them, here and now, before any job; it connects only to ask for a schema.

    >>> LookupTable("c", "id BIGINT, name STRING", {"connector": "sql", "url": "sqlite:///s.db", "table": "c"})
    LookupTable('c', '`id` bigint, `name` string', {'connector': 'sql', 'url': 'sqlite:///s.db', 'table': 'c'})
    """

    def __init__(self, name: str, schema: str | pa.Schema | Any | None, options: Mapping[str, Any]) -> None:
        self.name = name
        self.options = dict(options)
        self._function: FunctionConnector | None = None
        self.schema = as_schema(self._inferred() if schema is None else schema)
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
        options: Mapping[str, Any] | None = None,
    ) -> LookupTable:
        """Make a lookup table of a function, sync or async.

        One key at a time, ``function(*key)`` returns an iterable of rows; with ``batch=True``,
        ``function(keys)`` takes a list of key tuples (of bare values where ``key`` is one column) and returns
        one list of rows per key, in the same order. A row is a dict, or a tuple in the schema's order.

        >>> squares = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"],
        ...                                     function=lambda n: [{"n": n, "square": n * n}])
        >>> squares.connector_name
        'function'
        """
        table = cls.__new__(cls)
        table.name = name
        table.schema = as_schema(schema)
        table.options = dict(options or {})
        table._function = FunctionConnector(table.schema, key=tuple(key), function=function, batch=batch)
        _ = table.config, table.connector
        return table

    def with_options(self, options: Mapping[str, Any]) -> LookupTable:
        """Return the same table with some options replaced."""
        changed = object.__new__(LookupTable)
        changed.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("config", "connector")})
        changed.options = self.options | dict(options)
        _ = changed.config, changed.connector
        return changed

    def renamed(self, name: str) -> LookupTable:
        """Return the same table under another name, as an alias in SQL gives it."""
        changed = object.__new__(LookupTable)
        changed.__dict__.update(self.__dict__)
        changed.name = name
        return changed

    @property
    def connector_name(self) -> str:
        """The option 'connector', or 'function'."""
        return "function" if self._function is not None else str(self.options.get("connector", ""))

    @cached_property
    def config(self) -> LookupConfig:
        """The ``lookup.*`` options."""
        return LookupConfig.from_options(split_options(self.options)[0])

    @cached_property
    def connector(self) -> Connector:
        """The connector, built but not opened."""
        built = self._built()
        if self.config.cache == "ALL" and not offers(built, "scan"):
            raise ConnectorError(
                f"'lookup.cache' = 'ALL' reads the whole table, which connector {self.connector_name!r} cannot do.",
                hint="Use LRU or TTL, or write Connector.scan.",
            )
        built.runs_async(self.config.async_)
        return built

    def _inferred(self) -> pa.Schema:
        """Return the schema that the source tells; what its driver raises is shown without secrets."""
        self.schema = pa.schema([])
        connector = self._built()
        if not offers(connector, "infer_schema"):
            raise SchemaError(
                f"Table {self.name!r} has no schema, and connector {self.connector_name!r} cannot tell it.",
                hint="Write it as in CREATE TABLE: 'id BIGINT, name STRING'.",
            )
        connector.resolve()
        try:
            return connector.infer_schema()
        except LookupCacheError:
            raise
        except Exception as error:
            text = hidden(str(error), connector.secret_values())
            raise ConnectorError(f"Table {self.name!r}: the source cannot tell its columns: {text}") from None

    def _built(self) -> Connector:
        own = split_options(self.options)[1]
        if self._function is not None:
            if own:
                raise OptionError(
                    f"A function takes no option {next(iter(own))!r}.", hint="Use the 'lookup.*' options."
                )
            return self._function
        name = own.pop("connector", "")
        if not name:
            raise OptionError(
                f"Table {self.name!r} has no option 'connector'.",
                hint="Name one, as in {'connector': 'sql', 'url': …}.",
            )
        return build_connector(name, self.schema, own)

    @property
    def source(self) -> str:
        """A hash of the connector's class and of what its options identify."""
        kind = type(self.connector)
        return digest([kind.__module__, kind.__qualname__, dict(self.connector.identity())])

    def __repr__(self) -> str:
        secrets = self.connector.secrets
        shown = {k: "***" if is_secret(k, secrets) else hide_userinfo(str(v)) for k, v in self.options.items()}
        return f"LookupTable({self.name!r}, {to_ddl(self.schema)!r}, {shown})"
