"""How the values of Spark's types are stored in SQLite, which allows any value in any column."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import to_numpy
from lookupcache.errors import SchemaError
from lookupcache.schema import shown_type
from lookupcache_sql.database import read_singles

_EXACT = decimal.Context(prec=100)
_TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3}(\d{3})?)?$"

Values: TypeAlias = Sequence[Any]


@dataclass(frozen=True)
class Storage:
    """How SQLite stores the values of a type.

    ``classes`` are the Python classes of stored values. ``decode`` converts them to Arrow or raises one of `MISFITS`.
    ``spell`` returns the ``width`` representations that a value may have in the database (None for none). ``ranged``
    means that any value between two representations is the key, ``same_in_json`` that JSON changes none of them.
    """

    classes: frozenset[type]
    decode: Callable[[Values, pa.DataType], pa.Array]
    spell: Callable[[pa.Array], list[Values]]
    width: int = 1
    ranged: bool = False
    same_in_json: bool = False

    def read(self, values: Values, type_: pa.DataType) -> pa.Array:
        """Return stored values as Arrow; raises one of `MISFITS`."""
        if not set(map(type, values)) <= self.classes:
            raise TypeError
        return self.decode(values, type_)

    def equal(self, column: str, marks: Sequence[str]) -> str:
        """Return the SQL that compares a column with all spellings of a value."""
        if self.ranged:
            return f"{column} BETWEEN {marks[0]} AND {marks[1]}"
        return f"{column} = {marks[0]}" if len(marks) == 1 else f"{column} IN ({', '.join(marks)})"


def storage_of(field: pa.Field) -> Storage:
    """Return how SQLite stores a column's values; raises SchemaError for an unsupported type."""
    for is_type, storage in _STORAGES.items():
        if is_type(field.type):
            return storage
    of_flink = " (in Flink ROW<…>)" if pa.types.is_struct(field.type) else ""
    raise SchemaError(
        f"Column {field.name!r}: the sql connector reads no {shown_type(field.type)}{of_flink} from SQLite.",
        hint="Declare it STRING, and parse it after the join.",
    )


def _as_is(column: pa.Array) -> list[Values]:
    return [column.to_pylist()]


def _read_integers(values: Values, type_: pa.DataType) -> pa.Array:
    if float in map(type, values) and any(isinstance(value, float) and not value.is_integer() for value in values):
        raise ValueError
    return pa.array(values, type_)


def _float_bounds(column: pa.Array) -> list[Values]:
    """Return the smallest and largest double that rounds to this float."""
    floats = to_numpy(column)
    bounds = []
    for towards in (-np.inf, np.inf):
        with np.errstate(all="ignore"):
            halfway = (floats.astype(np.float64) + np.nextafter(floats, np.float32(towards)).astype(np.float64)) / 2
            inside = halfway.astype(np.float32) == floats
        bounds.append(np.where(inside, halfway, np.nextafter(halfway, -towards)).tolist())
    return bounds


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
    """Return the number as SQLite would store it, or None if it cannot."""
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


def _read_times(values: Values, type_: pa.DataType) -> pa.Array:
    texts = pa.array(values, pa.string())
    if pc.all(pc.match_substring_regex(texts, _TIME)).as_py() is False:
        raise ValueError
    return texts.cast(pa.timestamp("us")).cast(type_)


def _spell_times(column: pa.Array) -> list[Values]:
    """Return the texts without fraction, and with three and six digits of it; None if digits would be lost."""
    moments = column.cast(pa.timestamp("us"))
    texts = moments.cast(pa.string())
    finest = pc.not_equal(pc.microsecond(moments), 0)
    fraction = pc.or_(finest, pc.not_equal(pc.millisecond(moments), 0))
    none = pa.scalar(None, pa.string())
    whole = pc.if_else(fraction, none, pc.utf8_slice_codeunits(texts, 0, -7))
    thousandths = pc.if_else(finest, none, pc.utf8_slice_codeunits(texts, 0, -3))
    return [whole.to_pylist(), thousandths.to_pylist(), texts.to_pylist()]


_NUMBERS = frozenset[type]({int, float, type(None)})
_TEXTS = frozenset[type]({str, type(None)})
_STORAGES: dict[Callable[[pa.DataType], bool], Storage] = {
    pa.types.is_integer: Storage(_NUMBERS, _read_integers, _as_is, same_in_json=True),
    pa.types.is_float32: Storage(_NUMBERS, lambda values, _: read_singles(values), _float_bounds, width=2, ranged=True),
    pa.types.is_float64: Storage(_NUMBERS, pa.array, _as_is),
    pa.types.is_boolean: Storage(frozenset[type]({int, type(None)}), _read_booleans, _as_is),
    pa.types.is_string: Storage(_TEXTS, pa.array, _as_is, same_in_json=True),
    pa.types.is_binary: Storage(frozenset[type]({bytes, type(None)}), pa.array, _as_is),
    pa.types.is_decimal: Storage(_NUMBERS | _TEXTS, _read_decimals, _spell_decimals, width=3),
    pa.types.is_date32: Storage(
        _TEXTS,
        lambda values, type_: pa.array(values, pa.string()).cast(type_),
        lambda column: _as_is(column.cast(pa.string())),
        same_in_json=True,
    ),
    pa.types.is_timestamp: Storage(_TEXTS, _read_times, _spell_times, width=3, same_in_json=True),
}
