"""Rows of a JSON document as an Arrow table with the requested columns.

document ─► `rows_at` ─► rows ─► `RowReader` ─► table
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lookupcache.connector import LookupRequest
from lookupcache.errors import SourceError, nearest
from lookupcache.formats.json_path import ABSENT, Path, members
from lookupcache.formats.json_text import shorten
from lookupcache.formats.json_values import MismatchError, array_maker
from lookupcache.schema import shown_type

Rows = list[Any]
Wrong = Callable[[str, str | None], SourceError]
"""Makes an error of a defect of an answer, and of a hint."""
Hide = Callable[[str], str]
"""Takes the secrets out of a text, before it is cut."""


def rows_at(path: Path, document: Any, lenient: bool, wrong: Wrong, hide: Hide) -> Rows:
    """Return the rows that a path leads to: those of a list, a single object, or none for null.

    Behind a wildcard, null and an empty object have no rows, and if ``lenient``, an object without the rest of the
    path. Another value without it is an error, such as one of the service.
    """
    if not path.steps:
        nodes = [document]
    elif path.start().find(document) is ABSENT:
        found_text = f"; it has {shorten(document, 100, hide)}" if isinstance(document, dict) else ""
        raise wrong(f"has nothing at {path.text!r}{found_text}", "Correct option 'rows'.")
    else:
        start = path.start()
        nodes = start.nodes(document)
        for step in path.steps[len(start.steps) :]:
            for node in nodes:
                _check_step(path, node, step, lenient, wrong, hide)
            nodes = [inner for node in nodes for inner in members(node, step)]
    return [row for node in nodes if node is not None for row in (node if isinstance(node, list) else [node])]


def _check_step(path: Path, node: Any, step: str | int | None, lenient: bool, wrong: Wrong, hide: Hide) -> None:
    is_object = isinstance(node, dict)
    if node is None or node == [] or node == {} or next(members(node, step), ABSENT) is not ABSENT:
        return
    if is_object and (step is None or lenient):
        return
    hint = "Correct option 'rows'; or the service reports an error like this."
    if is_object:
        hint = f"{hint} If it has no rows, set 'missing-field' = 'null'."
    raise wrong(f"has an entry that does not lead to rows at {path.text!r}: {shorten(node, 100, hide)}", hint)


class RowReader:
    """Reads rows for one request of a join: the field of each column is at its path in a row.

    A missing field is null if ``lenient``, otherwise an error.
    """

    def __init__(
        self,
        request: LookupRequest,
        schema: pa.Schema,
        paths: Mapping[str, Path],
        lenient: bool,
        wrong: Wrong,
        hide: Hide,
    ) -> None:
        self.request = request
        self.schema = pa.schema([schema.field(name) for name in request.fields])
        self.empty = self.schema.empty_table()
        self._columns = [_Column(field.name, field.type, paths[field.name]) for field in self.schema]
        self._paths = paths
        self._lenient = lenient
        self._wrong = wrong
        self._hide = hide

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields of the requested columns, as the service names them."""
        return tuple(column.path.name for column in self._columns)

    def table(
        self, rows: Rows, given: Mapping[str, pa.Array] | None = None, origin: Sequence[int] | None = None
    ) -> pa.Table:
        """Return the rows, to which columns that are ``given`` are added if they do not repeat them.

        ``origin`` is the position of each row's value in these columns, by default the first for all. Raises
        SourceError for a row or a value that does not fit.
        """
        given = given or {}
        values = [column.values(rows) for column in self._columns]
        arrays = [
            self._array(column, rows, found, given.get(column.name), origin)
            for column, found in zip(self._columns, values, strict=True)
        ]
        if any(ABSENT in found for found in values):
            self._check(rows, values, given)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _check(self, rows: Rows, values: Sequence[list[Any]], given: Mapping[str, pa.Array]) -> None:
        """Raise SourceError for a value that is not a row, such as an error of the service.

        A row is an object with a field of the table, or without any field.
        """
        has_others = any(name not in given for name in self._paths)
        for row, *found in zip(rows, *values, strict=True):
            if any(value is not ABSENT for value in found) or row == {}:
                continue
            has_any = any(path.start_in(row) for path in self._paths.values())
            if not (has_any or (isinstance(row, dict) and not has_others)):
                hint = "Correct option 'rows' or 'field.…'; or the service reports an error like this."
                raise self._wrong(f"has a row without the table's fields: {shorten(row, 100, self._hide)}", hint)

    def _array(
        self, column: _Column, rows: Rows, values: list[Any], given: pa.Array | None, origin: Sequence[int] | None
    ) -> pa.Array:
        if ABSENT in values:
            if given is not None and all(value is ABSENT for value in values):
                return given.take(pa.array([0] * len(rows) if origin is None else origin, pa.int64()))
            if column.name in self.request.key_columns or not self._lenient:
                raise self._without_field(column.name, column.path, rows[values.index(ABSENT)])
            values = [None if value is ABSENT else value for value in values]
        try:
            return column.make(values)
        except MismatchError as misfit:
            raise self._wrong(
                f"holds {shorten(misfit.value, hide=self._hide)} for column {column.name!r}, "
                f"which is no {shown_type(column.type)}",
                "Give the column another type in the table's schema, or another field with 'field.…'.",
            ) from None

    def _without_field(self, name: str, path: Path, row: Any) -> SourceError:
        hint = f"Name the right one with 'field.{name}', or say that it may be missing: 'missing-field' = 'null'."
        if isinstance(row, dict) and path.name not in row:
            hint = f"{nearest(path.name, row, what='fields')} {hint}"
        return self._wrong(f"has a row without {path.text!r}, which is column {name!r}", hint)


class _Column:
    """A column, the path to its value in a row, and the function that makes an array of values."""

    def __init__(self, name: str, type_: pa.DataType, path: Path) -> None:
        self.name = name
        self.type = type_
        self.path = path
        self.make = array_maker(type_)
        self._step: Any = path.steps[0] if len(path.steps) == 1 else None

    def values(self, rows: Rows) -> list[Any]:
        """Return the value of each row, or `ABSENT`."""
        if self._step is not None:
            try:
                return [row[self._step] for row in rows]
            except (KeyError, TypeError, IndexError):
                pass
        return [self.path.find(row) for row in rows]
