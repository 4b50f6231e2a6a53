"""Parsers for option values: durations, sizes, numbers, names, times of day.

Each parser takes text or a Python value, and raises ValueError with a description of what it accepts.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from datetime import time, timedelta
from typing import Any, Literal, get_args

from lookupcache.errors import OptionError
from lookupcache.redaction import hide_address
from lookupcache.schema import unquoted
from lookupcache.secrets import is_reference

Eviction = Literal["lru", "s3-fifo"]

_SECONDS = {
    "ms": 0.001, "milli": 0.001, "millis": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_BYTES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_TIME_OF_DAY = re.compile(r"\s*\d{2}:\d{2}(:\d{2})?\s*(Z|[+-]\d{2}:\d{2})?\s*")
_FOLDER = re.compile(r"/|(file|s3|gs|gcs|abfss?|hdfs|viewfs)://", re.IGNORECASE)
_REDIS = re.compile(r"(rediss?(\+sentinel|\+cluster)?|unix)://")
_COLUMN = r"\w+|`(?:[^`]|``)+`"
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_duration(value: Any) -> float:
    """Return seconds; accepts ``"10 min"``, ``"5ms"``, a timedelta, or a number of seconds.

    >>> parse_duration("10 min"), parse_duration("250ms"), parse_duration(timedelta(hours=1))
    (600.0, 0.25, 3600.0)
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    number, unit = _parse_quantity(value, "a duration such as '10 min', '5 s' or '100 ms'")
    if unit.lower() not in _SECONDS:
        raise ValueError("a duration such as '10 min', '5 s' or '100 ms' (units: ms, s, min, h, d)")
    return number * _SECONDS[unit.lower()]


def parse_time_limit(value: Any) -> float:
    """Return seconds, more than 0."""
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError("a duration above 0, such as '200 ms'")
    return seconds


def parse_bytes(value: Any) -> int:
    """Return bytes; accepts ``"64 mb"``, ``"1gb"``, or a number of bytes (units are powers of 1,024).

    >>> parse_bytes("64 mb")
    67108864
    """
    number, unit = _parse_quantity(str(value), "a size such as '64 mb'")
    if unit.lower() not in _BYTES:
        raise ValueError("a size such as '64 mb' (units: b, kb, mb, gb)")
    size = int(number * _BYTES[unit.lower()])
    if size < 1:
        raise ValueError("1 or more")
    return size


def parse_bool(value: Any) -> bool:
    """Return a boolean; accepts ``true`` and ``false`` in upper or lower case."""
    parsed = {"true": True, "false": False}.get(str(value).strip().lower())
    if parsed is None:
        raise ValueError("true or false")
    return parsed


def parse_count(value: Any) -> int:
    """Return a whole number that is 1 or more."""
    return _parse_whole(value, least=1)


def parse_non_negative(value: Any) -> int:
    """Return a whole number that is 0 or more."""
    return _parse_whole(value, least=0)


def parse_fraction(value: Any) -> float:
    """Return a number from 0 to 1."""
    number = _to_number(value)
    if not 0 <= number <= 1:
        raise ValueError("a number from 0 to 1")
    return number


def parse_rate(value: Any) -> float:
    """Return a number above 0."""
    number = _to_number(value)
    if not 0 < number < math.inf or isinstance(value, bool):
        raise ValueError("a number above 0, such as '50' or '0.5'")
    return number


def parse_time_of_day(value: Any) -> str:
    """Return a time of day in ISO 8601 format; accepts ``"03:00"``, ``"03:00:30Z"`` or ``"03:00+02:00"``.

    >>> parse_time_of_day(" 03:00Z")
    '03:00:00+00:00'
    """
    if isinstance(value, str) and _TIME_OF_DAY.fullmatch(value):
        with contextlib.suppress(ValueError):
            return time.fromisoformat(value.replace(" ", "")).isoformat()
    raise ValueError("a time of day such as '03:00', '03:00Z' or '03:00+02:00'")


def parse_name(value: Any) -> str:
    """Return a non-empty text without leading and trailing blanks."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a name")
    return value.strip()


def parse_column(value: Any) -> str:
    """Return the name of a column, which may be in backquotes.

    A name that a second reading would change is refused: a name in backquotes, or with blanks around it.

    >>> parse_column(" changed_at "), parse_column("valid.from"), parse_column("`valid ``from`")
    ('changed_at', 'valid.from', 'valid `from')
    """
    name = unquoted(parse_name(value))
    if not name.strip() or unquoted(name.strip()) != name:
        raise ValueError("a name without blanks around it, which may be in backquotes")
    return name


def parse_folder(value: Any) -> str:
    """Return the path of a local folder; no URL and no reference, which would name a folder ``s3:`` or ``env:X``."""
    path = parse_name(value)
    if "://" in path or is_reference(path):
        raise ValueError("the path of a local directory, such as '/var/cache/lookups'")
    return path


def parse_store(value: Any) -> str:
    """Return the location of a store: the URL of a Redis server or of a folder, a path, or a reference to one.

    A plan has the location as it is written here, so a URL with a password or a token in it is refused.

    >>> parse_store("rediss://ann@cache:6379/0"), parse_store("env:CACHE_URL"), parse_store("file:///mnt/cache")
    ('rediss://ann@cache:6379/0', 'env:CACHE_URL', 'file:///mnt/cache')
    """
    location = parse_name(value)
    if is_reference(location) and not is_folder_url(location):
        return location
    if not location.startswith("/") and hide_address(location) != location:
        raise OptionError(
            f"Option 'lookup.cache.store' is {hide_address(location)!r}, with a secret in it.",
            hint="It takes a URL without one, or 'env:NAME' or 'file:PATH', from which the workers read the URL.",
        )
    if not is_redis_url(location) and not is_folder_url(location):
        raise ValueError(
            "the URL of a Redis server such as 'redis://host:6379/0', the absolute path or the URL of a folder such as "
            "'/mnt/cache' or 's3://bucket/cache', or 'env:NAME'"
        )
    return location


def is_folder_url(text: str) -> bool:
    """Return whether a text is an absolute path, or the URL of a folder.

    >>> is_folder_url("/mnt/cache"), is_folder_url("file:///mnt/cache"), is_folder_url("file:/run/secrets/url")
    (True, True, False)
    """
    return _FOLDER.match(text) is not None


def is_redis_url(text: str) -> bool:
    """Return whether a text is the URL of a Redis server, of sentinels or of a cluster."""
    return _REDIS.match(text) is not None


def parse_identifier(value: Any) -> str:
    """Return a name of letters, digits, dots, dashes and underscores."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value):
        raise ValueError("a name of at most 64 letters, digits, dots, dashes and underscores")
    return value


def parse_class_names(value: Any) -> str:
    """Return names of classes, or ``*``, separated by a comma and a blank.

    >>> parse_class_names("TimeoutError,aiohttp.ClientError")
    'TimeoutError, aiohttp.ClientError'
    """
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else []
    if not names or not all(name == "*" or all(part.isidentifier() for part in name.split(".")) for name in names):
        raise ValueError("names of exception classes separated by commas, such as 'TimeoutError, aiohttp.ClientError'")
    return ", ".join(names)


def parse_period(value: Any) -> str:
    """Return the two columns of a period, separated by a comma and a blank; other names than words are in backquotes.

    >>> parse_period("valid_from,valid_to"), parse_period("`from`, `valid ``to```")
    ('valid_from, valid_to', '`from`, `valid ``to```')
    """
    found = re.fullmatch(rf"\s*({_COLUMN})\s*,\s*({_COLUMN})\s*", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("two columns, such as 'valid_from, valid_to'; a name that is no word is in backquotes")
    return f"{found[1]}, {found[2]}"


def one_of(choices: Any, case: Callable[[str], str]) -> Callable[[Any], Any]:
    """Return a parser for the values of a ``Literal``; ``case`` converts a text to their spelling."""
    names = get_args(choices)

    def parse(value: Any) -> Any:
        if case(str(value)) not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return case(str(value))

    return parse


def parse_eviction(value: Any) -> str:
    """Return the name of an eviction policy; the error for one of an earlier version says what to use instead.

    >>> parse_eviction("S3_FIFO")
    's3-fifo'
    """
    name = to_dashes(str(value))
    if name not in get_args(Eviction):
        instead = "; 's3-fifo' replaces 'sieve', and has more hits on most traces" if name == "sieve" else ""
        raise ValueError(f"one of {', '.join(get_args(Eviction))}{instead}")
    return name


def to_dashes(text: str) -> str:
    """Return a word in lower case with dashes.

    >>> to_dashes("FIXED_DELAY")
    'fixed-delay'
    """
    return text.lower().replace("_", "-")


def _parse_quantity(value: Any, expected: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(expected)
    return float(match[1]), match[2]


def _parse_whole(value: Any, *, least: int) -> int:
    with contextlib.suppress(ValueError):
        if (number := int(str(value))) >= least:
            return number
    raise ValueError(f"a whole number, {least} or more")


def _to_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
