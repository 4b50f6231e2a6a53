"""A user-defined table function as a lookup table: its arguments are the key, its rows the answer.

A lookup's key consists of simple, non-null values, but a function's argument may be null, or a struct. So an argument
is converted to key columns, `Argument`, from which the worker rebuilds it before it calls the function.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lookupcache.errors import PlanError, SchemaError, SourceError
from lookupcache.functions.adapter import Arguments, adapter_of, is_async
from lookupcache.functions.answers import BatchShape
from lookupcache.functions.rows import RowShape
from lookupcache.schema import as_schema, quote, shown_type, type_name
from lookupcache.table import LookupTable

_OF_PYTHON: dict[Any, pa.DataType] = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary(), date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"), Decimal: pa.decimal128(38, 18),
}  # fmt: skip
_PLACEHOLDERS = {
    "string": "''", "binary": "X''", "boolean": "false", "date": "DATE'1970-01-01'",
    "timestamp": "timestamp_micros(0)", "timestamp_ntz": "TIMESTAMP_NTZ'1970-01-01 00:00:00'",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TableFunction:
    """A function that returns rows for arguments, and its name in SQL.

    ``function`` is sync, async or an async generator, for one call at a time. With ``batch``, it takes a list of
    argument tuples (of bare values for one argument) and returns a list of lists of rows. A row is a tuple, a dict, a
    named tuple, a dataclass or, where there is one column, a value. ``returns`` are its columns; None leaves them to
    the function's own annotation.
    """

    name: str
    function: Callable[..., Any]
    returns: pa.Schema | None = None
    batch: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        function: Callable[..., Any],
        *,
        returns: str | pa.Schema | Any | None = None,
        batch: bool | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> TableFunction:
        """Create a table function; missing settings are read from the function's attributes of the same names.

        Instead of a function, it may be an object with ``__call__``, or a class of such objects.

        >>> def split(text: str) -> list[tuple[str, int]]: ...
        >>> TableFunction.of("split", split).columns().types
        [DataType(string), DataType(int64)]
        """
        columns = getattr(function, "returns", None) if returns is None else returns
        is_batch = getattr(function, "batch", False) if batch is None else batch
        own = {**getattr(function, "options", {}), **(options or {})}
        return cls(
            name=name,
            function=function,
            returns=None if columns is None else as_schema(columns),
            batch=bool(is_batch),
            options=own,
        )

    def columns(self, names: Sequence[str] = ()) -> pa.Schema:
        """Return the columns of its rows, under these names if there are any; raises SchemaError, PlanError."""
        schema = annotated_schema(self.name, self.function, batch=self.batch) if self.returns is None else self.returns
        if names and len(names) != len(schema):
            raise PlanError(
                f"Function {self.name!r} returns {len(schema)} columns; the alias names {len(names)}.",
                hint=f"They are {', '.join(schema.names)}.",
            )
        return pa.schema([f.with_name(name) for f, name in zip(schema, names or schema.names, strict=True)])

    def table(self, alias: str, names: Sequence[str], arguments: Sequence[Argument]) -> LookupTable:
        """Return the lookup table for a call of the function."""
        returned = self.columns(names)
        keys = [column for argument in arguments for column in argument.columns]
        key = pa.schema([(column.name, column.type) for column in keys] or [(NO_ARGUMENT, pa.int32())])
        calls = FunctionCalls(
            self.name, tuple(a.form for a in arguments), len(key), tuple(self.columns().names), self.batch
        )
        return LookupTable.from_function(
            alias,
            pa.schema([*key, *returned]),
            key=key.names,
            function=(AsyncKeyFunction if is_async(self.function) else KeyFunction)(self.function, calls),
            batch=self.batch,
            options=self.options,
        )


NO_ARGUMENT = "__no_argument"
"""The key column of a call without arguments, which is always 1."""


def annotated_schema(name: str, function: Callable[..., Any], *, batch: bool = False) -> pa.Schema:
    """Return the columns in the annotation of a function's result.

    >>> class Word(typing.NamedTuple):
    ...     word: str
    ...     length: int
    >>> def words(text: str) -> list[Word]: ...
    >>> annotated_schema("words", words).names
    ['word', 'length']
    """
    called: Any = function if inspect.isroutine(function) else type(function).__call__
    called = function.__call__ if isinstance(function, type) else called
    try:
        result = typing.get_type_hints(called).get("return")
    except NameError:
        result = None
    row = _item(_item(result) if batch else result)
    fields = _fields(row)
    types = {column: _OF_PYTHON.get(_without_none(kind)) for column, kind in fields.items()}
    if not types or None in types.values():
        raise SchemaError(
            f"The result columns of function {name!r} are unknown.",
            hint="Annotate its result, as in `-> list[tuple[str, int]]`, or give its columns, as in "
            "register_function(…, returns='word STRING, length BIGINT').",
        )
    return pa.schema(list(types.items()))


def _item(kind: Any) -> Any:
    arguments = typing.get_args(kind)
    return arguments[0] if arguments else None


def _without_none(kind: Any) -> Any:
    kinds = [one for one in typing.get_args(kind) if one is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in typing.get_args(kind) else kind


def _fields(row: Any) -> dict[str, Any]:
    if typing.get_origin(row) is tuple:
        return {f"c{number}": kind for number, kind in enumerate(typing.get_args(row), start=1)}
    if dataclasses.is_dataclass(row) or hasattr(row, "_fields") or typing.is_typeddict(row):
        return typing.get_type_hints(row)
    return {} if row is None else {"c1": row}


# ── arguments as key columns ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class KeyColumn:
    """A key column of a call: its name, its type, and its SQL, which is never null."""

    name: str
    type: pa.DataType
    sql: str


@dataclass(frozen=True)
class Form:
    """How an argument is built from key values: the position of the value, or a struct's fields and the position of its
    null flag."""

    value: int = -1
    fields: tuple[tuple[str, Form], ...] = ()
    null: int = -1

    def __call__(self, key: Sequence[Any]) -> Any:
        if self.null >= 0 and key[self.null]:
            return None
        return key[self.value] if self.value >= 0 else {name: form(key) for name, form in self.fields}


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its key columns, and how it is built from them."""

    columns: tuple[KeyColumn, ...]
    form: Form


def argument(sql: str, type_: pa.DataType, name: str, *, nullable: bool, first: int = 0) -> Argument:
    """Return the argument for an expression.

    The names of its key columns begin with ``name``; the first of them has the position ``first``.

    Raises PlanError for a type that a key cannot have.

    >>> [column.sql for column in argument("b", pa.string(), "arg1", nullable=True).columns]
    ['isnull(b)', "coalesce(b, '')"]
    """
    flag = (KeyColumn(f"{name} is null", pa.bool_(), f"isnull({sql})"),) if nullable else ()
    null = first if nullable else -1
    if pa.types.is_struct(type_):
        columns, fields = list(flag), []
        for part in type_:
            inner = argument(
                f"{sql}.{quote(part.name)}", part.type, f"{name}.{part.name}", nullable=True, first=first + len(columns)
            )
            columns += inner.columns
            fields.append((part.name, inner.form))
        return Argument(tuple(columns), Form(fields=tuple(fields), null=null))
    if pa.types.is_nested(type_):
        raise PlanError(
            f"{name[0].upper()}{name[1:]} is {shown_type(type_)}, which a lookup key cannot be.",
            hint="Pass it as text, as in to_json(…), and read it in the function.",
        )
    value = f"coalesce({sql}, {_placeholder(type_)})" if nullable else sql
    return Argument((*flag, KeyColumn(name, type_, value)), Form(value=first + len(flag), null=null))


def _placeholder(type_: pa.DataType) -> str:
    name = type_name(type_)
    return _PLACEHOLDERS.get(name, f"CAST(0 AS {name.upper()})")


# ── calls in the worker ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class FunctionCalls:
    """Converts keys to the arguments of a function, and its answers to rows with their key.

    ``width`` is the number of key columns; a key of one column is its bare value.
    """

    name: str
    forms: tuple[Form, ...]
    width: int
    columns: tuple[str, ...]
    batch: bool

    def arguments(self, keys: Sequence[Any]) -> Arguments:
        """Return the arguments of the call for a key, or with ``batch`` of the call for all keys."""
        calls = [tuple(form(key if self.width > 1 else (key,)) for form in self.forms) for key in keys]
        if not self.batch:
            return calls[0], {}
        return ([call[0] for call in calls] if len(self.forms) == 1 else calls,), {}

    def rows_of_keys(self, keys: Sequence[Any], answer: Any) -> list[Any]:
        """Return a list of rows per key; wrong rows are replaced by the error, which fails only this key."""
        shape = BatchShape(f"Function {self.name!r}", "list of rows", "lists", by_key=False)
        return [self._rows_or_error(*pair) for pair in zip(keys, shape.in_order(answer, keys), strict=True)]

    def rows(self, key: Any, answer: Iterable[Any] | None) -> list[tuple[Any, ...]]:
        """Return a call's rows, each after the values of its key."""
        values = tuple(key) if self.width > 1 else (key,)
        shape = RowShape(f"Function {self.name!r}", self.columns)
        rows = (shape.row((), row) for row in shape.rows(answer))
        return [(*values, *(row.get(name) for name in self.columns)) for row in rows]

    def _rows_or_error(self, key: Any, answer: Any) -> list[tuple[Any, ...]] | Exception:
        if isinstance(answer, Exception):
            return answer
        try:
            return self.rows(key, answer)
        except SourceError as error:
            return error


class KeyFunction:
    """A table function as a function of keys: of one key's values or, with ``batch``, of a list of keys."""

    def __init__(self, function: Callable[..., Any], calls: FunctionCalls) -> None:
        self.table_function = function
        self.calls = calls
        self._adapter: Any = adapter_of(function, calls.arguments)

    def open(self) -> Any:
        return self._adapter.open()

    def close(self) -> Any:
        return self._adapter.close()

    def __call__(self, *key: Any) -> Any:
        keys = self._keys(key)
        return self._rows(keys, self._adapter.call(keys))

    def _keys(self, key: Any) -> Any:
        if self.calls.batch:
            return key[0]
        return [key if self.calls.width > 1 else key[0]]

    def _rows(self, keys: Sequence[Any], answer: Any) -> Any:
        return self.calls.rows_of_keys(keys, answer) if self.calls.batch else self.calls.rows(keys[0], answer)


class AsyncKeyFunction(KeyFunction):
    """The same as `KeyFunction` for an async function or an async generator."""

    async def __call__(self, *key: Any) -> Any:
        keys = self._keys(key)
        return self._rows(keys, await self._adapter.call(keys))
