"""Values that are texts, in the names of folders such as ``country=AT`` and in Delta's log, read as Spark reads them.

>>> folder_columns(["year=2024", "number=01"], pa.schema([("number", pa.int32())]), None)
{'number': <pyarrow.Int32Scalar: 1>}
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.errors import SourceError
from lookupcache.schema import shown_type

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DAY = re.compile(r"\+?0{0,2}(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[ T].*)?)?)?", re.ASCII)
_MOMENT = re.compile(
    r"\+?0{0,2}(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[ T](\d\d?)(?::(\d\d?)(?::(\d\d?)(?:\.(\d*))?(.*))?)?)?)?)?", re.ASCII
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?:([+-])(\d\d?)(?::?(\d\d))?(?::?(\d\d))?)?|Z", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1)
_FARTHEST = dt.timedelta(hours=18)


def folder_columns(folders: Iterable[str], declared: pa.Schema, zone: str | None) -> dict[str, pa.Scalar]:
    """Return the ``declared`` columns that are in names of folders, with their values; raises SourceError.

    Timestamps whose text has no time zone are in ``zone``, None if it is not known.
    """
    known = {field.name.lower(): field for field in declared}
    found: dict[str, pa.Scalar] = {}
    for folder in folders:
        name, equals, text = folder.partition("=")
        field = known.get(_unescaped(name).lower())
        if equals and field is not None:
            found[field.name] = _value(folder, None if text == _NULL_FOLDER else text, field, zone)
    return found


def _value(folder: str, text: str | None, field: pa.Field, zone: str | None) -> pa.Scalar:
    try:
        return pa.scalar(None if text is None else _READERS[field.type.id](text, field.type, zone), field.type)
    except (KeyError, pa.ArrowException, ArithmeticError, ValueError) as error:
        raise SourceError(
            f"Folder {folder!r} is no {shown_type(field.type)}, as which column {field.name!r} is declared.",
            hint="Correct the type in the table's schema.",
        ) from error


def instant(text: str, zone: str | None) -> int:
    """Return the instant of a timestamp's text, as Spark casts it, in microseconds since 1970.

    A text that names no time zone is in ``zone``. Raises ValueError for a text that is no timestamp, SourceError
    without a time zone.

    >>> instant("1970-01-01 03:00:00", "+02:00") == 3_600_000_000
    True
    """
    moment, own = _moment(text)
    if own is None and zone is None:
        raise SourceError(
            f"The time zone of timestamp {text!r} in a partition is not known.",
            hint="Set the option 'time-zone' of the table, such as 'Europe/Vienna' or '+02:00'. "
            "A join uses the session's time zone; spark.read has none to use.",
        )
    # Of two offsets, and in a gap, Java takes the one before the change, as Python does for fold 0.
    offset = moment.replace(tzinfo=own or _zone(str(zone))).utcoffset()
    return (moment - _EPOCH - (offset or dt.timedelta())) // dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class Instants:
    """Instants that were read in the wrong time zone, and the right instant for each."""

    read: pa.Array
    right: pa.Array

    @classmethod
    def of(cls, right: Mapping[int, int]) -> Instants:
        """Return them from the right instant of each that was read."""
        type_ = pa.timestamp("us", "UTC")
        return cls(pa.array(right.keys(), type_), pa.array(right.values(), type_))

    def replace_in(self, column: pa.Array) -> pa.Array:
        """Return a column with the right instants; raises SourceError for one that is not among those read."""
        found = self.right.take(pc.index_in(column.cast(self.read.type), self.read))
        if found.null_count != column.null_count:
            raise SourceError("A file has a timestamp that is not among the partitions of its table.")
        return found


def _moment(text: str) -> tuple[dt.datetime, dt.tzinfo | None]:
    """Return the date and time of a text, and the time zone that it names."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no timestamp")
    *day, hour, minute, second, fraction, zone = found.groups()
    date = dt.date(*(int(number or 1) for number in day))
    time = dt.time(int(hour or 0), int(minute or 0), int(second or 0), int(f"{fraction or ''}000000"[:6]))
    return dt.datetime.combine(date, time), _zone(zone.strip()) if zone else None


@functools.cache
def _zone(name: str) -> dt.tzinfo:
    """Return a time zone by its name in Spark; raises SourceError."""
    import zoneinfo  # Workers without such timestamps do without.

    found = _OFFSET.fullmatch(name)
    try:
        if found is None or not name:
            return zoneinfo.ZoneInfo(name)
        sign, *parts = found.groups()
        hours, minutes, seconds = (int(part or 0) for part in parts)
        offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if minutes < 60 and seconds < 60 and offset <= _FARTHEST:
            return dt.timezone(-offset if sign == "-" else offset)
    except (ValueError, KeyError, OSError):
        pass
    raise SourceError(
        f"There is no time zone {name!r}.",
        hint="Set the option 'time-zone', or the session's time zone, as in 'Europe/Vienna' or '+02:00'.",
    )


def _unescaped(text: str) -> str:
    """Undo Spark's escaping of a folder's name: a character for each two digits, also beyond ASCII."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _integer(text: str, _type: pa.DataType, _zone: str | None) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def _floating(text: str, type_: pa.DataType, _zone: str | None) -> Any:
    number = text.strip()
    number = number[:-1] if number[-1:] in tuple("dDfF") else number
    if not _NUMBER.fullmatch(number) and number.lstrip("+-") not in ("NaN", "Infinity"):
        raise ValueError(f"{text!r} is no number")
    # Arrow rounds a FLOAT once; Python's float would round it a first time.
    return pa.scalar(number.removeprefix("+"), pa.string()).cast(type_).as_py()


def _decimal(text: str, _type: pa.DataType, _zone: str | None) -> Decimal:
    # For DECIMAL(6,2), Spark takes 1.5 for 0.15: here it is the number that is written there.
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return Decimal(text)


def _boolean(text: str, _type: pa.DataType, _zone: str | None) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _date(text: str, _type: pa.DataType, _zone: str | None) -> dt.date:
    found = _DAY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no date")
    return dt.date(*(int(number or 1) for number in found.groups()))


def _timestamp(text: str, type_: pa.DataType, zone: str | None) -> dt.datetime | int:
    plain = _unescaped(text)
    return _moment(plain)[0] if type_.tz is None else instant(plain, zone)


_READERS: dict[int, Callable[[str, pa.DataType, str | None], Any]] = {
    **{type_.id: _integer for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{type_.id: _floating for type_ in (pa.float32(), pa.float64())},
    pa.decimal128(1).id: _decimal,
    pa.bool_().id: _boolean,
    pa.date32().id: _date,
    pa.timestamp("us").id: _timestamp,
    pa.string().id: lambda text, _type, _zone: _unescaped(text),
    # Spark leaves these escaped.
    pa.binary().id: lambda text, _type, _zone: text.encode(),
}
