"""Texts of numbers as FLOAT or DOUBLE, rounded once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def read_floats(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return for each text the nearest number of the type, as Spark's CAST does.

    Raises OverflowError for a number beyond the type's range, and `pyarrow.ArrowInvalid` for a text that is no number.

    >>> read_floats(pa.array(["16777217.0000000001", "-Infinity", None]), pa.float32()).to_pylist()
    [16777218.0, -inf, None]
    """
    # Not by way of doubles: the nearest float of the nearest double is not always the nearest float of the text.
    floats = texts.cast(type_)
    infinite = texts.filter(pc.is_inf(floats))
    if pc.any(pc.match_substring_regex(infinite, "[0-9]")).as_py():
        raise OverflowError(f"beyond the range of a {type_}")
    return floats
