"""Literals in conditions, typed as Spark types them."""

from __future__ import annotations

import datetime
import math
import re
import struct
from decimal import Decimal, InvalidOperation

import pyarrow as pa
from sqlglot import exp

from lookupcache.expr import Literal, literal, python_value

INTEGER_RANGES = {pa.int8(): 2**7, pa.int16(): 2**15, pa.int32(): 2**31, pa.int64(): 2**63}
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST_DIGITS = 1_000
"""The maximum length of a number that is read here: Python refuses more than 4,300 digits."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DOUBTFUL = re.compile(r"""(?<!\\)(?:\\\\)*\\[^'"\\]""")
"""An escape that is more than a quoted quote or backslash."""
_CASTS = {
    exp.DataType.Type.TINYINT: pa.int8(), exp.DataType.Type.SMALLINT: pa.int16(), exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(), exp.DataType.Type.DOUBLE: pa.float64(), exp.DataType.Type.FLOAT: pa.float32(),
    exp.DataType.Type.DATE: pa.date32(), exp.DataType.Type.TEXT: pa.string(),
}  # fmt: skip


def read_literal(node: exp.Expr, text: str) -> Literal | None:
    """Return the literal of a node, or None if only Spark can determine its value.

    ``text`` is the node's source text: if it has an escape, the two parsers may differ.

    >>> import sqlglot
    >>> read_literal(sqlglot.parse_one("-10.50", read="spark"), "-10.50")
    Literal(value='-10.50', type=Decimal128Type(decimal128(4, 2)))
    >>> read_literal(sqlglot.parse_one("DATE'2013-01-01'", read="spark"), "")
    Literal(value='2013-01-01', type=DataType(date32[day]))
    """
    node = node.unnest()
    if isinstance(node, exp.Null):
        return Literal(None, pa.null())
    if isinstance(node, exp.Boolean):
        return Literal(bool(node.this), pa.bool_())
    if isinstance(node, exp.HexString):
        return _binary(str(node.this))
    if isinstance(node, exp.Literal) and node.is_string:
        return None if "\\" in text and _DOUBTFUL.search(text) else Literal(node.name, pa.string())
    if isinstance(node, exp.Literal):
        return _number(node.name)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number("-" + node.this.name)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Cast) and isinstance(node.this.this, exp.Literal):
        return _negative(_read_typed_literal(node.this, text))
    if isinstance(node, exp.Cast):
        return _read_typed_literal(node, text)
    return None


def _number(text: str) -> Literal | None:
    found = _NUMBER.fullmatch(text.lstrip("-"))
    if found is None or len(text) > _MOST_DIGITS:
        return None
    if found[2]:
        return literal(float(text), pa.float64()) if math.isfinite(float(text)) else None
    if text.lstrip("-").isdigit():
        for type_ in (pa.int32(), pa.int64()):
            if -INTEGER_RANGES[type_] <= int(text) < INTEGER_RANGES[type_]:
                return Literal(int(text), type_)
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits), scale)
    return literal(value, pa.decimal128(precision, scale)) if precision <= 38 else None


def _negative(node: Literal | None) -> Literal | None:
    """Return a number with a suffix after a minus, such as ``-1.5D``."""
    value = None if node is None else python_value(node)
    if node is None or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, Decimal):
        return literal(value.copy_negate() if value else value, node.type)
    return literal(-value, node.type)


def _binary(digits: str) -> Literal:
    return literal(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)), pa.binary())


def _read_typed_literal(node: exp.Cast, text: str) -> Literal | None:
    """Read ``DATE '…'``, ``10L``, ``CAST('…' AS DATE)`` and similar literals."""
    type_ = _decimal(node.to) if node.to.this == exp.DataType.Type.DECIMAL else _CASTS.get(node.to.this)
    inner = read_literal(node.this, text)
    if inner is None or type_ is None or (node.to.expressions and not pa.types.is_decimal(type_)):
        return None
    if node.to.args.get("collate"):  # It equals other strings too.
        return None
    return convert(inner, type_)


def _decimal(kind: exp.DataType) -> pa.DataType | None:
    numbers = [int(parameter.name) for parameter in kind.expressions]
    return pa.decimal128(*numbers) if len(numbers) == 2 and 0 < numbers[0] <= 38 >= numbers[1] else None


def convert(node: Literal, type_: pa.DataType) -> Literal | None:
    """Return the literal in another type if its value is exact there; None if it is not, or if that is unknown.

    >>> convert(Literal(10, pa.int32()), pa.int8()), convert(literal(Decimal("1.5"), pa.decimal128(2, 1)), pa.int32())
    (Literal(value=10, type=DataType(int8)), None)
    """
    if node.type == type_:
        return node
    if node.value is None:
        return Literal(None, type_)
    if pa.types.is_string(node.type):
        return _from_string(str(node.value), type_)
    value = python_value(node)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if pa.types.is_floating(type_):
        return _floating(value, type_)
    return None if isinstance(value, float) else _exact_number(Decimal(value), type_)


def _from_string(text: str, type_: pa.DataType) -> Literal | None:
    if pa.types.is_date(type_) and _DATE.fullmatch(text) and text.isascii():
        try:
            return literal(datetime.date.fromisoformat(text), type_)
        except ValueError:
            return None
    if pa.types.is_decimal(type_) and _NUMBER.fullmatch(text.lstrip("-")) and text.isascii():
        return _exact_number(Decimal(text), type_)
    return None


def _exact_number(value: Decimal, type_: pa.DataType) -> Literal | None:
    if type_ in INTEGER_RANGES:
        fits = value == int(value) and -INTEGER_RANGES[type_] <= value < INTEGER_RANGES[type_]
        return Literal(int(value), type_) if fits else None
    if not pa.types.is_decimal(type_):
        return None
    whole, _, fraction = format(value.copy_abs(), "f").partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if len(whole) > type_.precision - type_.scale or len(fraction) > type_.scale:
        return None
    sign = "-" if value < 0 else ""
    digits = f"{sign}{whole or '0'}" + (f".{fraction.ljust(type_.scale, '0')}" if type_.scale else "")
    try:
        return literal(Decimal(digits), type_)
    except InvalidOperation:
        return None


def _floating(value: int | float | Decimal, type_: pa.DataType) -> Literal | None:
    number = float(value)
    if type_ == pa.float64():
        return literal(number, type_)
    try:
        narrow: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return None
    return (
        literal(narrow, type_) if narrow == number and (isinstance(value, float) or Decimal(narrow) == value) else None
    )
