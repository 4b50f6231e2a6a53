"""A user-defined table function as a lookup table: its arguments are the key, the rows that it gives are the answer.

A lookup's key is of plain values that are not null, a function's argument may be null, or a struct. So an argument
becomes a few key columns, `Argument`, of which the worker makes the argument again before it calls the function.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lookupcache.errors import PlanError, SchemaError, SourceError
from lookupcache.schema import as_schema, quote, type_name
from lookupcache.table import LookupTable

_OF_PYTHON: dict[Any, pa.DataType] = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary(), date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"), Decimal: pa.decimal128(38, 18),
}  # fmt: skip
_NOTHING = {
    "string": "''", "binary": "X''", "boolean": "false", "date": "DATE'1970-01-01'",
    "timestamp": "timestamp_micros(0)", "timestamp_ntz": "TIMESTAMP_NTZ'1970-01-01 00:00:00'",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TableFunction:
    """A function that gives rows for arguments, under the name that SQL calls it by.

    ``function`` is sync, async or an async generator, one call at a time or, with ``batch``, a list of argument
    tuples (of bare values where there is one argument) for a list of lists of rows. A row is a tuple, a dict, or, where
    there is one column, a value. ``returns`` are its columns; None leaves them to the function's own annotation.
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
        """Make one; what is not given is what the function's attributes ``returns``, ``batch`` and ``options`` say.

        >>> def split(text: str) -> list[tuple[str, int]]: ...
        >>> TableFunction.of("split", split).columns().types
        [DataType(string), DataType(int64)]
        """
        told = getattr(function, "returns", None) if returns is None else returns
        many = getattr(function, "batch", False) if batch is None else batch
        own = {**getattr(function, "options", {}), **(options or {})}
        return cls(
            name=name,
            function=function,
            returns=None if told is None else as_schema(told),
            batch=bool(many),
            options=own,
        )

    def columns(self, names: Sequence[str] = ()) -> pa.Schema:
        """Return the columns of its rows, under these names if there are any; raises SchemaError, PlanError."""
        schema = annotated(self.name, self.function, batch=self.batch) if self.returns is None else self.returns
        if names and len(names) != len(schema):
            raise PlanError(
                f"Function {self.name!r} gives {len(schema)} columns; the alias names {len(names)}.",
                hint=f"They are {', '.join(schema.names)}.",
            )
        return pa.schema([f.with_name(name) for f, name in zip(schema, names or schema.names, strict=True)])

    def table(self, alias: str, names: Sequence[str], arguments: Sequence[Argument]) -> LookupTable:
        """Return the lookup table that a call of it is."""
        returned = self.columns(names)
        keys = [column for argument in arguments for column in argument.columns]
        key = pa.schema([(column.name, column.type) for column in keys] or [(NO_ARGUMENT, pa.int32())])
        calls = Calls(self.name, self.function, tuple(a.form for a in arguments), len(key), tuple(self.columns().names))
        kind = {(False, False): OneByOne, (False, True): Many, (True, False): OneByOneLater, (True, True): ManyLater}
        return LookupTable.from_function(
            alias,
            pa.schema([*key, *returned]),
            key=key.names,
            function=kind[is_async(self.function), self.batch](calls),
            batch=self.batch,
            options=self.options,
        )


NO_ARGUMENT = "__no_argument"
"""The key column of a call without arguments, which is always 1."""


def annotated(name: str, function: Callable[..., Any], *, batch: bool = False) -> pa.Schema:
    """Return the columns that the annotation of a function's result tells.

    >>> class Word(typing.NamedTuple):
    ...     word: str
    ...     length: int
    >>> def words(text: str) -> list[Word]: ...
    >>> annotated("words", words).names
    ['word', 'length']
    """
    called: Any = function if inspect.isroutine(function) else type(function).__call__
    called = function.__call__ if isinstance(function, type) else called
    try:
        told = typing.get_type_hints(called).get("return")
    except NameError:
        told = None
    row = _item(_item(told) if batch else told)
    fields = _fields(row)
    types = {column: _OF_PYTHON.get(_without_none(kind)) for column, kind in fields.items()}
    if not types or None in types.values():
        raise SchemaError(
            f"Nothing says which columns function {name!r} returns.",
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


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object or class with ``__call__``, is async or an async generator."""
    kind = function if isinstance(function, type) else type(function)
    both = (function, kind.__call__)
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in both)


# ── arguments as key columns ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class KeyColumn:
    """A key column of a call: its name, its type, and the SQL that gives it, which is never null."""

    name: str
    type: pa.DataType
    sql: str


@dataclass(frozen=True)
class Form:
    """How an argument is made of key values: the value's position, or a struct's fields; and the position of
    whether it is null, where it may be."""

    value: int = -1
    fields: tuple[tuple[str, Form], ...] = ()
    null: int = -1

    def __call__(self, key: Sequence[Any]) -> Any:
        """Return the argument."""
        if self.null >= 0 and key[self.null]:
            return None
        return key[self.value] if self.value >= 0 else {name: form(key) for name, form in self.fields}


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its key columns, and how it is made of them."""

    columns: tuple[KeyColumn, ...]
    form: Form


def argument(sql: str, type_: pa.DataType, name: str, *, nullable: bool, first: int = 0) -> Argument:
    """Return the argument that an expression is, with its key columns from position ``first`` on.

    Raises PlanError for a type that no key can be of.

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
            f"{sql} is {type_name(type_).upper()}, which no lookup key can be.",
            hint="Pass it as text, as in to_json(…), and read it in the function.",
        )
    value = f"coalesce({sql}, {_nothing(type_)})" if nullable else sql
    return Argument((*flag, KeyColumn(name, type_, value)), Form(value=first + len(flag), null=null))


def _nothing(type_: pa.DataType) -> str:
    name = type_name(type_)
    return _NOTHING.get(name, f"CAST(0 AS {name.upper()})")


# ── calls in the worker ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Calls:
    """What the ways of calling share: arguments from keys, and rows, with their key, from what a call gives."""

    name: str
    function: Any
    forms: tuple[Form, ...]
    width: int
    columns: tuple[str, ...]

    def arguments(self, key: Any) -> tuple[Any, ...]:
        """Return the arguments that a key stands for; a key of one column comes bare."""
        values = key if self.width > 1 else (key,)
        return tuple(form(values) for form in self.forms)

    def of_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the arguments of many calls, bare where there is one."""
        many = [self.arguments(key) for key in keys]
        return [arguments[0] for arguments in many] if len(self.forms) == 1 else many

    def rows(self, key: Any, answer: Iterable[Any] | None) -> list[tuple[Any, ...]]:
        """Return a call's rows behind its key."""
        values = tuple(key) if self.width > 1 else (key,)
        return [(*values, *self._row(row)) for row in answer or ()]

    def _row(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, Mapping):
            if unknown := [name for name in row if name not in self.columns]:
                raise SourceError(f"Function {self.name!r} returned a column {unknown[0]!r}.")
            return tuple(row.get(name) for name in self.columns)
        if dataclasses.is_dataclass(row):
            return tuple(getattr(row, name) for name in self.columns)
        values = tuple(row) if isinstance(row, tuple | list) else (row,)
        if len(values) != len(self.columns):
            raise SourceError(
                f"Function {self.name!r} returned a row of {len(values)} values.",
                hint=f"Its columns are {', '.join(self.columns)}.",
            )
        return values


class OneByOne:
    """Calls a function for one key at a time."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def open(self) -> Any:
        """Make the object, where the function is a class, and open it."""
        if isinstance(self.calls.function, type):
            self.calls.function = self.calls.function()
        return getattr(self.calls.function, "open", _nothing_to_do)()

    def close(self) -> Any:
        """Close the function's object."""
        return getattr(self.calls.function, "close", _nothing_to_do)()

    def __call__(self, *key: Any) -> Any:
        """Return the rows of a key."""
        bare = key if self.calls.width > 1 else key[0]
        return self.calls.rows(bare, self.calls.function(*self.calls.arguments(bare)))


class OneByOneLater(OneByOne):
    """Awaits a function for one key at a time."""

    async def __call__(self, *key: Any) -> Any:
        """Return the rows of a key."""
        bare = key if self.calls.width > 1 else key[0]
        return self.calls.rows(bare, await _collected(self.calls.function(*self.calls.arguments(bare))))


class Many(OneByOne):
    """Calls a function for many keys at once."""

    def __call__(self, keys: Any) -> Any:
        """Return the rows of each key."""
        return self._rows(keys, self.calls.function(self.calls.of_many(keys)))

    def _rows(self, keys: Sequence[Any], answers: Any) -> Any:
        """Pair answers with keys; where there are not as many, or no list of them, the connector says so."""
        if not isinstance(answers, Iterable) or isinstance(answers, Mapping | set | frozenset | str | bytes):
            return answers
        listed = list(answers)
        if len(listed) != len(keys):
            return listed
        return [self._of_key(key, answer) for key, answer in zip(keys, listed, strict=True)]

    def _of_key(self, key: Any, answer: Any) -> list[tuple[Any, ...]] | Exception:
        """Return a key's rows, or the error that is wrong with them: it concerns no other key of the call."""
        if isinstance(answer, Exception):
            return answer
        try:
            return self.calls.rows(key, answer)
        except SourceError as error:
            return error


class ManyLater(Many):
    """Awaits a function for many keys at once."""

    async def __call__(self, keys: Any) -> Any:
        """Return the rows of each key."""
        return self._rows(keys, await _collected(self.calls.function(self.calls.of_many(keys))))


async def _collected(answer: Any) -> Any:
    """Wait for a coroutine's result, or for all that an async generator yields."""
    if isinstance(answer, AsyncIterator):
        return [row async for row in answer]
    return await answer


def _nothing_to_do() -> None:
    return None
