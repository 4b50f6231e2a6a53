"""Values of Redis as Arrow columns: texts of every Spark type, and JSON.

`read_text` reads fields of hashes and plain strings, `json_array` members of JSON documents. Values that do not fit
raise one of `MISFITS`, whose text may contain the value and is never shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.formats.floats import read_floats
from lookupcache.formats.json_text import parse_json
from lookupcache.formats.json_values import json_array

MISFITS = (TypeError, ValueError, ArithmeticError, RecursionError, pa.ArrowException)
"""The errors of reading a value that does not fit its column."""

_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
_FINER = r"(\.\d{6})\d+"


def read_text(values: Sequence[bytes | None], type_: pa.DataType) -> pa.Array:
    """Return texts as values of a type, None as null; raises one of `MISFITS`.

    Numbers are decimal, booleans ``true``, ``false``, ``1`` or ``0``, dates and timestamps in ISO 8601, UTC without a
    zone and truncated to microseconds. Strings are UTF-8, binaries any bytes, and arrays, structs and
    maps JSON.

    >>> read_text([b"2013-01-01T05:00:00-05:00", None], pa.timestamp("us", "UTC")).cast(pa.string()).to_pylist()
    ['2013-01-01 10:00:00.000000Z', None]
    """
    raw = pa.array(values, pa.binary())
    if pa.types.is_binary(type_):
        return raw
    if pa.types.is_nested(type_):
        return json_array([None if value is None else parse_json(value) for value in values], type_)
    texts = raw.cast(pa.string())
    if pa.types.is_decimal(type_):
        return json_array(texts.to_pylist(), type_)  # Arrow's cast reads 1 with 45 zeros behind the point as 0.
    if pa.types.is_integer(type_) and pc.any(pc.match_substring(texts, "0x", ignore_case=True)).as_py():
        raise ValueError("hexadecimal")
    if pa.types.is_timestamp(type_):
        cut = pc.replace_substring_regex(texts, _FINER, r"\1")
        return cut.cast(type_) if type_.tz is None else _read_moments(cut, type_)
    if pa.types.is_floating(type_):
        return read_floats(texts, type_)
    return texts.cast(type_)


def _read_moments(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    zoned = pc.match_substring_regex(pc.utf8_slice_codeunits(texts, 10), _ZONE)
    if not pc.any(zoned).as_py():
        return texts.cast(pa.timestamp("us")).cast(type_)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, _text("Z"), _text(""))).cast(type_)


def _text(value: str) -> pa.Scalar:
    # With its type: to find one, pyarrow imports pandas.
    return pa.scalar(value, pa.string())
