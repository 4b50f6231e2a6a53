"""`RowShape`: what a function may return for one key, as a list of rows, and a row as values by column.

None · a dict, named tuple, dataclass or tuple · one value, where one column is wanted · a list of such
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from lookupcache.errors import SourceError, nearest
from lookupcache.functions.answers import discard, reusable

_TEXTS = (str, bytes, bytearray, memoryview)
_VALUES = frozenset({type(None), bool, int, float, str, bytes, Decimal, date, datetime})
"""Types whose values are no rows of several columns."""


@dataclass(frozen=True)
class RowShape:
    """The columns of a function's rows; a row may leave out those of the key.

    ``subject`` is the function in errors, ``columns`` are all columns in their order, ``key`` those of the key.

    >>> shape = RowShape("Function 'f'", ("id", "name"), ("id",))
    >>> [shape.rows(answer, (1,)) for answer in (None, "ann", {"name": "ann"}, (1, "ann"), iter(["ann", "bob"]))]
    [[], ['ann'], [{'name': 'ann'}], [(1, 'ann')], ['ann', 'bob']]
    >>> shape.row((1,), "ann")
    {'id': 1, 'name': 'ann'}
    """

    subject: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The columns that a row must have."""
        return tuple(name for name in self.columns if name not in self.key)

    def rows(self, answer: Any, key: Sequence[Any] = ()) -> list[Any]:
        """Return the rows that a function returned for one key as a list; None means no rows.

        Raises SourceError for other values than a row or a list of rows, such as columns or an open file.
        """
        if type(answer) is list or answer is None:
            return list(answer or ())
        if type(answer) in (tuple, dict) and answer and self._is_plain_row(answer):
            return [answer]
        is_columns = hasattr(answer, "columns") and not (isinstance(answer, tuple) or dataclasses.is_dataclass(answer))
        to_python = getattr(answer, "to_pylist", None) or getattr(answer, "as_py", None)
        if not is_columns and to_python is not None:
            # The items of Arrow's arrays and lists are Arrow scalars, which equal no Python value.
            return self.rows(to_python(), key)
        if is_columns or isinstance(answer, BaseException | type):
            raise self._no_rows(answer)
        if (named := by_name(answer)) is not None:
            if not named:
                raise SourceError(f"{self.subject} returned an empty row for a key.", hint="Return None for no row.")
            return [answer]
        answer = reusable(answer, self.subject)
        if isinstance(answer, tuple) and answer and not all(map(_is_row, answer)):
            return self._rows_of_tuple(answer, key)
        if isinstance(answer, Iterable) and not isinstance(answer, _TEXTS):
            return list(answer)
        if len(self.wanted) == 1:
            return [answer]
        raise self._no_rows(answer)

    def _is_plain_row(self, answer: tuple[Any, ...] | dict[Any, Any]) -> bool:
        """Return whether an answer is certainly one row: a dict, or a tuple of values where several are wanted."""
        return type(answer) is dict or (len(self.wanted) != 1 and type(answer[0]) in _VALUES)

    def row(self, key: Sequence[Any], row: Any) -> dict[str, Any]:
        """Return a row's values by column, with those of its key where it leaves them out."""
        row = row.as_py() if isinstance(row, pa.Scalar) else row
        of_key = dict(zip(self.key, key, strict=True))
        if (named := by_name(row)) is not None:
            self._check_names(row, named)
            return of_key | dict(named)
        is_sequence = isinstance(row, Sequence) and not isinstance(row, _TEXTS)
        if is_sequence and len(row) == len(self.columns):
            return dict(zip(self.columns, row, strict=True))
        if is_sequence and len(row) == len(self.wanted):
            return of_key | dict(zip(self.wanted, row, strict=True))
        if not is_sequence and len(self.wanted) == 1:
            return of_key | {self.wanted[0]: row}
        of_length = f" of {len(row)} values" if is_sequence else ""
        raise SourceError(f"{self.subject} returned {type(row).__name__}{of_length} as a row.", hint=self._hint)

    def _rows_of_tuple(self, answer: tuple[Any, ...], key: Sequence[Any]) -> list[Any]:
        """Return a tuple of values as one row; with one wanted column, it could also be several rows."""
        if len(self.wanted) != 1 or len(answer) == 1:
            return [answer]
        if not self.key:
            return list(answer)
        if len(answer) == len(self.columns) and _of_key(self, answer) == tuple(key):
            return [answer]
        raise SourceError(
            f"{self.subject} returned a tuple of {len(answer)} values for a key, which may be one row or several.",
            hint=f"Return a list of the values of {self.wanted[0]!r}, or one of them alone.",
        )

    def _check_names(self, row: Any, named: Mapping[str, Any]) -> None:
        """Raise SourceError for a column that is not the table's, or that a row with fixed fields lacks."""
        if unknown := [name for name in named if name not in self.columns]:
            raise SourceError(
                f"{self.subject} returned a column {unknown[0]!r}.",
                hint=nearest(str(unknown[0]), self.columns, what="columns"),
            )
        missing = [] if isinstance(row, Mapping) else [name for name in self.wanted if name not in named]
        if missing:
            raise SourceError(
                f"{self.subject} returned a {type(row).__name__} without column {missing[0]!r}.",
                hint="Add the field, leave the column out of the schema, or return a dict, in which it is null.",
            )

    def _no_rows(self, answer: Any) -> SourceError:
        discard(answer)
        columns = ' Return to_dict("records") of a DataFrame.' if hasattr(answer, "columns") else ""
        return SourceError(
            f"{self.subject} returned {type(answer).__name__} for a key, not a row or a list of rows.",
            hint=self._hint + columns,
        )

    @property
    def _hint(self) -> str:
        of_key = f", where {', '.join(self.key)} may be left out" if self.key else ""
        value = f"a value of {self.wanted[0]!r}, " if len(self.wanted) == 1 else ""
        return f"A row is {value}a dict, a named tuple, a dataclass or a tuple of {', '.join(self.columns)}{of_key}."


def by_name(row: Any) -> Mapping[str, Any] | None:
    """Return the values of an object that has names for them; None for any other, such as a plain tuple.

    >>> by_name({"a": 1}), by_name((1, 2)), by_name("ab")
    ({'a': 1}, None, None)
    """
    if isinstance(row, Mapping):
        return row
    if isinstance(row, _TEXTS) or type(row) is tuple or isinstance(row, type):
        return None
    if dataclasses.is_dataclass(row):
        return {one.name: getattr(row, one.name) for one in dataclasses.fields(row)}
    fields = getattr(row, "_fields", None) or getattr(row, "__fields__", None)  # a named tuple; a Row of Spark
    if isinstance(fields, tuple | list) and isinstance(row, Sequence):
        return dict(zip(fields, row, strict=True))
    if not (callable(getattr(row, "keys", None)) and hasattr(row, "__getitem__")):
        return None
    # A row of a database's driver, or of pandas. The labels of other Series are numbers, and their items are rows.
    names = list(row.keys())
    return {name: row[name] for name in names} if names and all(isinstance(name, str) for name in names) else None


def _is_row(item: Any) -> bool:
    """Return whether an item of a tuple is a row, and not a value."""
    return isinstance(item, tuple | list | pa.StructScalar) or by_name(item) is not None


def _of_key(shape: RowShape, row: Sequence[Any]) -> tuple[Any, ...]:
    values = dict(zip(shape.columns, row, strict=True))
    return tuple(values[name] for name in shape.key)
