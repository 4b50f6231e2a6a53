"""JSON text: reading it without losing digits, and writing values of every Spark type."""

from __future__ import annotations

import base64
import codecs
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The numbers that JSON has no literal for, by the names that Python reads and writes."""
_DECODER = json.JSONDecoder(parse_float=Decimal)
_MOST_HIDDEN = 10_000


def parse_json(body: bytes | str) -> Any:
    """Parse a document, with non-integer numbers as Decimals; raises ValueError."""
    try:
        return _DECODER.decode(body if isinstance(body, str) else body.removeprefix(codecs.BOM_UTF8).decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ArithmeticError:
        # Decimal refuses exponents of about twenty digits and more.
        raise ValueError("it has a number whose exponent is too large") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        # Python rejects very long integers; its error is not shown, since it advises to change a process-wide limit.
        raise ValueError("it has a number with too many digits") from None


def json_text(value: Any) -> str:
    """Return a value as JSON: Decimals with all digits, moments as ISO 8601, bytes as base64, NaN by its name.

    >>> json_text({"a": [Decimal("1.10"), dt.date(2024, 5, 1), None, math.nan]})
    '{"a":[1.10,"2024-05-01",null,"NaN"]}'
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(str(name))}:{json_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, Decimal):
        return str(value)
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return json.dumps(plain_text(value), ensure_ascii=False)


def plain_text(value: Any) -> str:
    """Return a value as text for a URL, or for the inside of a JSON string.

    >>> plain_text(dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)), plain_text(True), plain_text(Decimal("1E+2"))
    ('2024-05-01T12:00:00Z', 'true', '100')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, it in NOT_FINITE.items() if it == value or value != value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def shorten(value: Any, most: int = 40, hide: Callable[[str], str] = str) -> str:
    """Return a value as text for an error; ``hide`` removes secrets before the text is truncated.

    >>> shorten({"key": "s3cret"}, 14, lambda text: text.replace("s3cret", "***"))
    '{"key":"***"}'
    """
    try:
        text = value if isinstance(value, str) and most > 40 else json_text(value)
    except RecursionError:
        return "a value that is nested too deeply"
    text = hide(text[:_MOST_HIDDEN])
    return text if len(text) <= most else f"{text[:most]}…"
