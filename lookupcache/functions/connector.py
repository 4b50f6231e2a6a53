"""A plain function as a connector: sync or async, one key at a time or many."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import chain
from operator import attrgetter
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import distinct_rows, encode, from_numpy, normalized
from lookupcache.connector import Connector, LookupRequest, missing_argument_error
from lookupcache.errors import (
    ConnectorError,
    LookupCacheError,
    LookupRuntimeError,
    OptionError,
    SchemaError,
    SourceError,
    WrongRowsError,
    text_of,
)
from lookupcache.executor.call_group import run_async
from lookupcache.functions.adapter import Arguments, adapter_of, name_of, named_object
from lookupcache.functions.answers import BatchShape
from lookupcache.functions.rows import RowShape
from lookupcache.schema import nullable_fields, shown_type

KeyAnswer = list[Any] | LookupRuntimeError
"""The rows of one key, or the error of a key that the function cannot be given."""


class FunctionConnector(Connector):
    """Calls a function for the rows of its keys: a sync or async function, or an async generator of rows.

    The function is pickled by value if its module cannot be imported by the workers. It may be an object with
    ``__call__``, or a class that each worker instantiates once, without arguments. Its methods ``open`` and ``close``,
    async only if the function is, are called before the first lookup and when the worker closes it.

    With ``batch``, it takes a list of keys. An exception in place of a key's list of rows then means that the lookup of
    that key failed with it; it is not retried.
    """

    thread_safe = True

    def __init__(self, schema: pa.Schema, *, key: tuple[str, ...], function: Callable[..., Any], batch: bool) -> None:
        super().__init__(schema, {})
        unknown = [column for column in key if column not in schema.names]
        if unknown or not key:
            raise SchemaError(
                f"Key column {unknown[0]!r} is not in the schema." if unknown else "A function needs a key column.",
                hint=f"The schema's columns are {', '.join(schema.names)}.",
            )
        if len(set(key)) < len(key):
            raise SchemaError(f"The function's key has a column twice: {', '.join(key)}.", hint="Name each once.")
        self.key = key
        self.function = function
        self.batch = batch
        self._sent: bytes | None = None
        """The function as it was pickled elsewhere. A worker may be unable to pickle it, as one with a broadcast."""
        # A function of SQL is in an object that gives it its keys.
        called = getattr(function, "table_function", function)
        self.name: str = named_object(called).__qualname__
        self.full_name = name_of(called)
        self._subject = f"Function {self.name!r}"
        self._shape = RowShape(self._subject, tuple(schema.names), key)
        self._adapter: Any = adapter_of(function, self._call_arguments)
        self.is_async: bool = self._adapter.is_async

    def open(self) -> Any:
        """Create the object, if the function is a class, and open it; to be awaited if the function is async."""
        return self._adapter.open()

    def close(self) -> Any:
        return self._adapter.close()

    def runs_async(self, wanted: bool | None) -> bool:
        """Return whether the function is async; raises OptionError if ``lookup.async`` forbids that."""
        if self.is_async and wanted is False:
            raise OptionError("'lookup.async' = 'false' does not fit an async function.", hint="Leave the option out.")
        return self.is_async

    def identity(self) -> Mapping[str, Any]:
        """Return the function's full name, and how it is called: the order of its key and columns decides its rows."""
        columns = self.schema.names
        return {"function": self.full_name, "key": list(self.key), "columns": columns, "batch": self.batch}

    @property
    def pickled(self) -> bytes:
        """The function as workers get it; raises ConnectorError if it cannot be pickled."""
        if self._sent is not None:
            return self._sent
        try:
            return cloudpickle.dumps(self.function)
        except Exception as error:
            raise ConnectorError(
                f"{self._subject} cannot be pickled: {error}.",
                hint="Workers get a pickled copy: define it in a module, or create what cannot be pickled in 'open'.",
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        made_of = (self.schema, self.key, self.pickled, self.batch)
        return _unpickle, made_of, {"code_variables": self.code_variables, "code_texts": self.code_texts}

    def check(self, request: LookupRequest) -> None:
        given = {*request.key_columns, *request.constants}
        if missing := [name for name in self.key if name not in given]:
            raise missing_argument_error(request.table, missing[0], self.key)

    def try_example(self, table: str, example: Any) -> None:
        """Call the function for a key, as a worker does; raises SourceError if it has no row there, or a wrong one.

        The example is the value of the key column, or a tuple with one for each key column.
        """
        keys = self._example_keys(example)
        columns = tuple(name for name in self.schema.names if name not in self.key)
        request = LookupRequest(table=table, key_columns=self.key, columns=columns)
        copy: FunctionConnector = pickle.loads(cloudpickle.dumps(self))  # Opening it must not change the user's object.
        from lookupcache.opening import opened  # Workers do without it.

        with opened(copy, asynchronous=copy.is_async):
            try:
                rows = run_async(copy.lookup_async(request, keys)) if copy.is_async else copy.lookup(request, keys)
            except LookupCacheError:
                raise
            except Exception as error:
                raise SourceError(
                    f"{self._subject} failed for the example {example!r}: {type(error).__name__}: {text_of(error)}.",
                    hint=f"It is called with {'a list of keys of ' if self.batch else ''}{', '.join(self.key)}.",
                ) from error
        if keys.to_pylist()[0] not in rows.select(list(self.key)).to_pylist():
            raise SourceError(
                f"{self._subject} returned no row of the example {example!r}.",
                hint="Give a key that has a row, so that its columns can be compared with the schema.",
            )

    def _example_keys(self, example: Any) -> pa.RecordBatch:
        values = example if len(self.key) > 1 else (example,)
        if not isinstance(values, tuple) or len(values) != len(self.key):
            raise OptionError(
                f"The example {example!r} is no key of {', '.join(self.key)}.",
                hint="Give a tuple with a value of each.",
            )
        arrays = []
        for name, value in zip(self.key, values, strict=True):
            type_ = self.schema.field(name).type
            try:
                arrays.append(pa.array([value], type_))
                _refuse_loss(arrays[-1], [value])
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise OptionError(
                    f"Key column {name!r}: the example {value!r} is no {shown_type(type_)}: {error}.",
                    hint=f"Give a value as the function gets it, or declare {name!r} with another type.",
                ) from error
        return pa.RecordBatch.from_arrays(arrays, names=list(self.key))

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Call the function once per key, or once with all keys."""
        arguments, call_of = self.arguments(request, keys)
        if self.batch:
            given = _without_errors(arguments)
            answers = self._in_order(request, self._adapter.call(list(given)) if given else [], arguments, given)
        else:
            answers = list(map(self.rows, arguments))
        return self.table(request, arguments, answers, call_of)

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Await the function once per key, all at the same time, or once with all keys."""
        arguments, call_of = self.arguments(request, keys)
        if self.batch:
            given = _without_errors(arguments)
            answered = await self._adapter.call(list(given)) if given else []
            return self.table(request, arguments, self._in_order(request, answered, arguments, given), call_of)
        import asyncio  # Here, since sync functions do without, and it takes long to import.

        return self.table(request, arguments, await asyncio.gather(*map(self.rows_async, arguments)), call_of)

    def rows(self, key: Any) -> KeyAnswer:
        """Call the function for one key; an error in place of a key is its own answer."""
        if isinstance(key, LookupRuntimeError):
            return key
        return self._shape.rows(self._adapter.call([key]), self.values_of(key))

    async def rows_async(self, key: Any) -> KeyAnswer:
        """Await the function for one key; an error in place of a key is its own answer."""
        if isinstance(key, LookupRuntimeError):
            return key
        return self._shape.rows(await self._adapter.call([key]), self.values_of(key))

    def _in_order(
        self, request: LookupRequest, answers: Any, arguments: Sequence[Any], given: Sequence[Any]
    ) -> list[Any]:
        """Return the answer for each key, of a function that was given those keys that are no errors."""
        # A dict is an error: it may contain columns.
        shape = BatchShape(f"The function of table {request.table!r}", "list of rows", "lists", by_key=False)
        answers = shape.in_order(answers, given)
        if len(given) == len(arguments):
            return answers
        of_given = iter(answers)
        return [key if isinstance(key, LookupRuntimeError) else next(of_given) for key in arguments]

    def _call_arguments(self, keys: Sequence[Any]) -> Arguments:
        return ((keys,) if self.batch else self.values_of(keys[0])), {}

    def values_of(self, key: Any) -> tuple[Any, ...]:
        """Return the values of a key, which is a bare value if it is one column."""
        return key if len(self.key) > 1 else (key,)

    def arguments(self, request: LookupRequest, keys: pa.RecordBatch) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """Return the distinct keys of the function, and for each key of the join the position of the function's.

        The join may have more key columns than the function. In place of a key that Python cannot hold is the error
        of its lookup. Raises PlanError for a join without all of the function's.
        """
        self.check(request)
        columns = {name: keys.column(name) for name in self.key if name in request.key_columns}
        both = [*columns.values()] or [pa.repeat(0, keys.num_rows)]
        # Not by Python's equality, in which NaN differs from itself.
        distinct = distinct_rows([normalized(column, column.type) for column in both])
        first = from_numpy(distinct.first)
        values = [
            _python_values(columns[name].take(first), name, request)
            if name in columns
            else [request.constants[name]] * len(first)
            for name in self.key
        ]
        if len(values) == 1:
            return values[0], distinct.code
        keys = list(zip(*values, strict=True))
        has_errors = any(isinstance(value, LookupRuntimeError) for column in values for value in column)
        return [_error_in(key) or key for key in keys] if has_errors else keys, distinct.code

    def table(
        self,
        request: LookupRequest,
        arguments: Sequence[Any],
        answers: Sequence[Any],
        call_of: npt.NDArray[np.int64] | None = None,
    ) -> pa.Table:
        """Return the rows of some of the function's keys as Arrow; raises WrongRowsError if some have invalid rows.

        The error gives positions among the function's keys, or with ``call_of`` among the join's.
        """
        # An iterator can be read only once, and the rows of a call with wrong ones are read several times.
        answers = [
            list(answer) if isinstance(answer, Iterator) and not isinstance(answer, io.IOBase) else answer
            for answer in answers
        ]
        reader = _RowReader(self, request, arguments, answers)
        tables = reader.tables(0, len(answers))
        table = tables[0] if len(tables) == 1 else pa.concat_tables([reader.fields.empty_table(), *tables])
        table = reader.own_rows(table)
        if self.batch and reader.is_misplaced:
            raise SourceError(
                f"The function of table {request.table!r} returned a row of one key in the list of another.",
                hint="Return one list of rows per key, in the order of the keys.",
            )
        if reader.wrong:
            raise WrongRowsError.of(table, reader.wrong if call_of is None else _of_join_keys(reader.wrong, call_of))
        return table


class _RowReader:
    """Converts the answers of a call to Arrow: all together, or if that fails, those whose rows are valid.

    ``requested`` gives for each row, in parts, whose answer it is in; ``wrong`` the error of each other key by its
    position. ``is_misplaced`` says that a row was in the list of another key than its own.
    """

    def __init__(
        self, connector: FunctionConnector, request: LookupRequest, arguments: Sequence[Any], answers: Sequence[Any]
    ) -> None:
        self.request = request
        self.key = connector.key
        subject = f"The function of table {request.table!r}"
        self.shape = RowShape(subject, tuple(connector.schema.names), connector.key)
        names = dict.fromkeys((*request.fields, *request.constants))
        self.fields = nullable_fields(connector.schema, names)
        no_key = (None,) * len(self.key)
        self.keys = [no_key if isinstance(one, LookupRuntimeError) else connector.values_of(one) for one in arguments]
        types = [connector.schema.field(name).type for name in self.key]
        columns = zip(*self.keys, strict=True) if self.keys else [()] * len(types)
        self.key_columns = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
        self.answers = answers
        self.requested: list[npt.NDArray[np.int64]] = []
        self.wrong: dict[int, BaseException] = {}
        self.is_misplaced = False

    def tables(self, start: int, end: int) -> list[pa.Table]:
        """Return the rows of some keys, divided in halves if the rows of one of them are wrong."""
        try:
            return [self._table(start, end)]
        except Exception as error:
            if isinstance(error, LookupCacheError) and not isinstance(error, LookupRuntimeError):
                raise
            if end - start == 1:
                failed = self.answers[start]
                self.wrong[start] = failed if isinstance(failed, BaseException) else error
                return []
        middle = (start + end) // 2
        return [*self.tables(start, middle), *self.tables(middle, end)]

    def _table(self, start: int, end: int) -> pa.Table:
        keys = self.keys[start:end]
        answers = [self.shape.rows(answer, key) for answer, key in zip(self.answers[start:end], keys, strict=True)]
        columns = self._columns(keys, answers)
        table = pa.table({field.name: _column(self.request, field, columns[field.name]) for field in self.fields})
        self.requested.append(np.repeat(np.arange(start, end), list(map(len, answers))))
        return table

    def own_rows(self, table: pa.Table) -> pa.Table:
        """Return those of all rows that are not of another requested key than their own: it would be lost or wrong.

        A row with a key that was not requested is harmless.
        """
        found = self._key_numbers(table)
        own = (found < 0) | (found == np.concatenate([np.empty(0, np.int64), *self.requested]))
        if own.all():
            return table
        self.is_misplaced = True
        return table.filter(from_numpy(own))

    def _key_numbers(self, table: pa.Table) -> npt.NDArray[np.int64]:
        """Return for each row which of the function's keys it has, -1 for none of them.

        As Spark compares them, after the conversion to the schema's types: 0.1 in Python is not the FLOAT that is its
        key, but becomes it.
        """
        both = [
            pa.chunked_array([keys, *table.column(name).chunks], keys.type)
            for name, keys in zip(self.key, self.key_columns, strict=True)
        ]
        codes = encode([normalized(column, column.type) for column in both])
        of_keys, of_rows = np.split(codes, [len(self.keys)])
        # The last entry is that of code -1: a row with a null, or an error in place of a key.
        numbers = np.full(int(codes.max(initial=-1)) + 2, -1)
        numbers[of_keys] = np.arange(len(self.keys))
        numbers[-1] = -1
        return numbers[of_rows]

    def _columns(
        self, keys: Sequence[tuple[Any, ...]], answers: Sequence[Sequence[Any]]
    ) -> Mapping[str, Sequence[Any]]:
        """Convert rows to columns; if all are plain tuples or dicts, the usual case, without checking each."""
        rows = list(chain.from_iterable(answers))
        kinds = set(map(type, rows))
        if kinds == {tuple} and set(map(len, rows)) == {len(self.shape.columns)}:
            return dict(zip(self.shape.columns, zip(*rows, strict=True), strict=True))
        of_rows = [key for key, answer in zip(keys, answers, strict=True) for _ in answer]
        if kinds == {dict} and all(row.keys() == rows[0].keys() for row in rows):
            self.shape.row(of_rows[0], rows[0])  # It refuses unknown names.
            of_key = dict(zip(self.shape.key, zip(*of_rows, strict=True), strict=True))
            nulls = [None] * len(rows)
            return {
                name: [row[name] for row in rows] if name in rows[0] else of_key.get(name, nulls)
                for name in self.shape.columns
            }
        dicts = [self.shape.row(key, row) for key, row in zip(of_rows, rows, strict=True)]
        return {name: [row.get(name) for row in dicts] for name in self.shape.columns}


def _python_values(column: pa.Array, name: str, request: LookupRequest) -> list[Any]:
    """Return the values of a key column; in place of one that Python cannot hold, the error of its lookup."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_python_value(value, name, request) for value in column]


def _python_value(value: pa.Scalar, name: str, request: LookupRequest) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return LookupRuntimeError(
            f"The function of table {request.table!r} cannot be given a key's {name!r}: Python's dates have the years "
            "1 to 9999 only.",
            hint="Filter such rows out before the join, or pass the function a number or a text.",
        )


def _error_in(key: Sequence[Any]) -> LookupRuntimeError | None:
    return next((value for value in key if isinstance(value, LookupRuntimeError)), None)


def _without_errors(keys: Sequence[Any]) -> list[Any]:
    return [key for key in keys if not isinstance(key, LookupRuntimeError)]


def _of_join_keys(wrong: Mapping[int, BaseException], call_of: npt.NDArray[np.int64]) -> dict[int, BaseException]:
    """Return the errors by position among the join's keys, of which several may have the same key of the function."""
    return {position: wrong[number] for position, number in enumerate(call_of.tolist()) if number in wrong}


def _column(request: LookupRequest, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        array = pa.array(values, field.type)
        _refuse_loss(array, values)
        return array
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SourceError(
            f"Table {request.table!r}, column {field.name!r}: the function's values are not {shown_type(field.type)}: "
            f"{error}.",
            hint=f"Return such values, or declare {field.name!r} with another type.",
        ) from error


def _refuse_loss(array: pa.Array, values: Sequence[Any]) -> None:
    """Raise ValueError if Arrow silently dropped a fraction, a time of day, a time zone or a field.

    FLOATs are rounded as Spark does, but a number that is too large is not to be infinite.
    """
    type_ = array.type
    infinite = _count_infinite(array)
    if infinite and infinite > _count_infinite(pa.array(values, _with_doubles(type_))):
        raise ValueError("a number that is too large would become infinite")
    if pa.types.is_timestamp(type_) or _is_checked_within(type_):
        _refuse_loss_within(type_, values)
    elif (pa.types.is_integer(type_) or pa.types.is_date(type_)) and not _are_exact(type_, values):
        for kept, value in zip(array.to_pylist(), values, strict=True):
            if kept is not None and kept != (value.as_py() if isinstance(value, pa.Scalar) else value):
                raise ValueError(f"{value!r} would become {kept!r}")


def _count_infinite(array: pa.Array) -> int:
    """Return how many FLOATs, or numbers in their place, are infinite, also in nested values."""
    type_ = array.type
    if pa.types.is_floating(type_):
        return pc.sum(pc.is_inf(array)).as_py() or 0
    if pa.types.is_struct(type_):
        return sum(map(_count_infinite, array.flatten()))
    if pa.types.is_map(type_):
        return _count_infinite(array.keys) + _count_infinite(array.items)
    return _count_infinite(array.flatten()) if pa.types.is_nested(type_) else 0


def _with_doubles(type_: pa.DataType) -> pa.DataType:
    """Return a type with DOUBLE instead of each FLOAT."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _with_doubles(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_with_doubles(type_.key_type), _with_doubles(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_with_doubles(type_.value_type))
    return pa.float64() if pa.types.is_float32(type_) else type_


def _is_checked_within(type_: pa.DataType) -> bool:
    """Return whether a type is nested and contains types whose values Arrow may change."""
    if pa.types.is_struct(type_) or pa.types.is_list(type_):
        return True
    inner = [type_.field(number).type for number in range(type_.num_fields)]
    kinds = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, _is_checked_within)
    return any(kind(one) for one in inner for kind in kinds)


def _refuse_loss_within(type_: pa.DataType, values: Sequence[Any]) -> None:
    """Raise ValueError if Arrow would change one of the values, or a nested value.

    Nested values are checked by column, if possible without Python code for each value.
    """
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        given = [_members(names, value) for value in values if value is not None and not isinstance(value, pa.Scalar)]
        if unknown := set(chain.from_iterable(given)).difference(names):
            raise ValueError(f"a struct has no field {next(iter(unknown))!r}")
        for field in type_:
            _refuse_loss_within(field.type, [value.get(field.name) for value in given])
    elif pa.types.is_map(type_):
        maps = (value.items() if isinstance(value, Mapping) else value for value in values if value is not None)
        pairs = list(chain.from_iterable(maps))
        keys, items = zip(*pairs, strict=True) if pairs else ((), ())
        _refuse_loss_within(type_.key_type, keys)
        _refuse_loss_within(type_.item_type, items)
    elif pa.types.is_nested(type_):
        if texts := [value for value in values if isinstance(value, str | bytes | bytearray)]:
            raise ValueError(f"{texts[0]!r} is no list")
        _refuse_loss_within(type_.value_type, list(chain.from_iterable(value for value in values if value is not None)))
    elif not _are_exact(type_, values):
        for value in values:
            if value is not None and _is_lossy(type_, value):
                raise ValueError(f"{value!r} would become another value")


def _members(names: Sequence[str], value: Any) -> Mapping[str, Any]:
    """Return a struct's members by name; Arrow takes those of a tuple by position, and other sequences as pairs."""
    if isinstance(value, Mapping):
        return value
    return dict(zip(names, value, strict=True) if isinstance(value, tuple) else value)


def _are_exact(type_: pa.DataType, values: Sequence[Any]) -> bool:
    """Return whether the values' Python types guarantee that Arrow changes none of them."""
    kinds = set(map(type, values)) - {type(None)}
    if pa.types.is_integer(type_):
        return kinds <= {int, bool}
    if pa.types.is_date(type_):
        return kinds <= {date}
    if not pa.types.is_timestamp(type_):
        return True
    if not kinds <= {datetime}:
        return False
    return type_.tz is not None or set(map(type, map(attrgetter("tzinfo"), filter(None, values)))) <= {type(None)}


def _is_lossy(type_: pa.DataType, value: Any) -> bool:
    if pa.types.is_integer(type_):
        return bool(int(value) != value)
    if pa.types.is_date(type_):
        return isinstance(value, datetime | int | float | np.number)
    if pa.types.is_timestamp(type_):
        return isinstance(value, int | float | np.number) or (
            type_.tz is None and getattr(value, "tzinfo", None) is not None
        )
    return False


def _unpickle(schema: pa.Schema, key: tuple[str, ...], function: bytes, batch: bool) -> FunctionConnector:
    connector = FunctionConnector(schema, key=key, function=cloudpickle.loads(function), batch=batch)
    connector._sent = function
    return connector
