"""JSON as rows of typed columns: a value becomes exactly what the column's type says, or is refused.

document ─► `Path` ─► rows ─► `Path` of each column ─► values ─► `json_array`
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import datetime as dt
import decimal
import functools
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_STEP = re.compile(r"\.([^.\[\]*'\"\s]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]|(\.\*|\[\*\])")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d(?::\d\d(?::\d\d(?:[.,](\d+))?)?)?)(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECODER = json.JSONDecoder(parse_float=Decimal)
_EXACT = decimal.Context(prec=100)
_MOST_DIGITS = 40
_MOST_HIDDEN = 10_000


class Misfit(ValueError):
    """A JSON ``value`` that is no value of the column's type; the text shows it."""

    def __init__(self, value: Any) -> None:
        super().__init__(shortened(value))
        self.value = value


class Absent:
    """What stands for a member that an object does not have."""


ABSENT: Final = Absent()


# ── paths ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Path:
    """A way from a JSON document to values in it, the plain part of JSONPath (RFC 9535).

    ``$`` is the document, ``.name`` or ``['name']`` a member, ``[2]`` an item from 0, ``[*]`` every one of them.
    Slices, filters and ``..`` are not understood. Raises ValueError.

    >>> path = Path.parse("$.data['the items'][*].id")
    >>> path.nodes({"data": {"the items": [{"id": 1}, {}, {"id": 2}]}})
    [1, 2]
    """

    text: str
    steps: tuple[str | int | None, ...]

    @classmethod
    def parse(cls, text: str) -> Path:
        """Read a path; the ``$`` may be left out before a name."""
        rest = text[1:] if text.startswith("$") else f".{text}"
        steps, at = list[str | int | None](), 0
        while at < len(rest):
            step = _STEP.match(rest, at)
            if step is None:
                raise ValueError(f"{text!r} is no path such as '$.data.items'")
            steps.append(_step(step))
            at = step.end()
        return cls(text, tuple(steps))

    @property
    def name(self) -> str:
        """The members on the way with dots between, as services name fields."""
        return ".".join(str(step) for step in self.steps if step is not None)

    def nodes(self, document: Any) -> list[Any]:
        """Return every value that the path leads to."""
        found = [document]
        for step in self.steps:
            found = [inner for node in found for inner in _members(node, step)]
        return found

    def find(self, document: Any) -> Any:
        """Return the first value, or `ABSENT`."""
        return next(iter(self.nodes(document)), ABSENT)

    def start_in(self, document: Any) -> bool:
        """Return whether the first step leads anywhere."""
        return Path(self.text, self.steps[:1]).find(document) is not ABSENT

    def start(self) -> Path:
        """Return the path up to where it branches."""
        steps = self.steps[: self.steps.index(None)] if None in self.steps else self.steps
        return Path(self.text, steps)


def _step(step: re.Match[str]) -> str | int | None:
    name, item, single, double, _ = step.groups()
    if item is not None:
        return int(item)
    quoted = single if single is not None else double
    return name if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def _members(node: Any, step: Any) -> Iterator[Any]:
    if step is None:
        yield from node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    elif isinstance(node, dict if isinstance(step, str) else list):
        with contextlib.suppress(KeyError, IndexError):
            yield node[step]


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_json(body: bytes | str) -> Any:
    """Return a document, its numbers with a point as Decimals; raises ValueError."""
    try:
        return _DECODER.decode(body if isinstance(body, str) else body.removeprefix(codecs.BOM_UTF8).decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ArithmeticError:
        # Decimal refuses exponents of about twenty digits and more.
        raise ValueError("it holds a number whose exponent is too large") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        # Python refuses to read whole numbers that take long, and advises to change that for the whole process.
        raise ValueError("it holds a number of too many digits") from None


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
    """Return a value as it stands in a URL, or between the quotes of a JSON string.

    >>> plain_text(dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)), plain_text(True), plain_text(Decimal("1E+2"))
    ('2024-05-01T12:00:00Z', 'true', '100')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, it in _NOT_FINITE.items() if it == value or value != value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def shortened(value: Any, most: int = 40, hide: Callable[[str], str] = str) -> str:
    """Return a value as an error shows it; ``hide`` takes secrets out of its text before that is cut.

    >>> shortened({"key": "s3cret"}, 14, lambda text: text.replace("s3cret", "***"))
    '{"key":"***"}'
    """
    try:
        text = value if isinstance(value, str) and most > 40 else json_text(value)
    except RecursionError:
        return "a value that is nested too deeply"
    text = hide(text[:_MOST_HIDDEN])
    return text if len(text) <= most else f"{text[:most]}…"


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────


def json_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return values of a document as an array; raises `Misfit` for one that is no value of the type.

    | type | in JSON |
    |---|---|
    | TINYINT to BIGINT | a number without fraction, or its text |
    | FLOAT, DOUBLE | a number, its text, or NaN, Infinity, -Infinity, bare or as text |
    | DECIMAL | a number, or its text, that fits without rounding |
    | BOOLEAN | true, false |
    | STRING | text; an object or array becomes its JSON text |
    | BINARY | text in base64 |
    | DATE | text ``YYYY-MM-DD`` |
    | TIMESTAMP | text, ISO 8601, cut to microseconds as by Spark's CAST; without a zone it is UTC |
    | TIMESTAMP_NTZ | the same without a zone |
    | ARRAY, STRUCT, MAP | an array; an object; an object, its names the map's keys |

    >>> json_array(["2024-05-01", None], pa.date32()).to_pylist()
    [datetime.date(2024, 5, 1), None]
    """
    return array_maker(type_)(values)


def array_maker(type_: pa.DataType) -> Callable[[Sequence[Any]], pa.Array]:
    """Return what makes arrays of a type as `json_array` does, without looking at the type each time."""
    return functools.partial(_array, type_, _AS_THEY_ARE.get(type_, frozenset()), _reader(type_))


def _array(
    type_: pa.DataType, as_they_are: frozenset[type], read: Callable[[Any], Any], values: Sequence[Any]
) -> pa.Array:
    if as_they_are.issuperset(map(type, values)):
        try:
            return _doubles(values) if pa.types.is_float64(type_) else pa.array(values, type_)
        except (pa.ArrowException, ValueError, OverflowError):
            pass
    return pa.array([_read(read, value) for value in values], type_)


def _doubles(values: Sequence[Any]) -> pa.Array:
    """Return finite numbers as doubles; raises OverflowError."""
    doubles = pa.array([None if value is None else float(value) for value in values], pa.float64())
    if pc.all(pc.is_finite(doubles)).as_py() is False:
        raise OverflowError
    return doubles


_NONE = type(None)
_AS_THEY_ARE: dict[pa.DataType, frozenset[type]] = {
    **{whole: frozenset[type]({int, _NONE}) for whole in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.float64(): frozenset[type]({Decimal, int, float, _NONE}),
    pa.string(): frozenset[type]({str, _NONE}),
    pa.bool_(): frozenset[type]({bool, _NONE}),
}


def _read(read: Callable[[Any], Any], value: Any) -> Any:
    if value is None:
        return None
    try:
        return read(value)
    except Misfit:
        raise
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Misfit(value) from error


@functools.cache
def _reader(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes a Python value of a JSON value; it raises TypeError, ValueError or ArithmeticError."""
    if pa.types.is_list(type_):
        return functools.partial(_list, _reader(type_.value_type))
    if pa.types.is_struct(type_):
        return functools.partial(_struct, {member.name: _reader(member.type) for member in type_})
    if pa.types.is_map(type_):
        key = _boolean_name if pa.types.is_boolean(type_.key_type) else _reader(type_.key_type)
        return functools.partial(_map, key, _reader(type_.item_type))
    if pa.types.is_integer(type_):
        return functools.partial(_integer, 2 ** (type_.bit_width - 1))
    if pa.types.is_decimal(type_):
        return functools.partial(_decimal, type_.scale, 10 ** (type_.precision - type_.scale))
    if pa.types.is_timestamp(type_):
        return _moment if type_.tz else _moment_without_zone
    return _READERS[type_]


def _expect(value: Any, *kinds: type) -> Any:
    """Return the value if it is of one of these classes; a bool, in Python, is an int too."""
    if type(value) not in kinds:
        raise TypeError
    return value


def _integer(limit: int, value: Any) -> int:
    number = _number(value)
    if isinstance(number, float) or number.adjusted() > _MOST_DIGITS:
        raise ValueError
    whole = int(number)
    if whole != number or not -limit <= whole < limit:
        raise ValueError
    return whole


def _decimal(scale: int, limit: int, value: Any) -> Decimal:
    number = _number(value)
    if isinstance(number, float):
        raise ValueError
    exact = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if exact != number or not -limit < exact < limit:
        raise ValueError
    return exact


def _double(value: Any) -> float:
    number = _number(value)
    double = float(number)
    if math.isinf(double) and not isinstance(number, float):
        raise OverflowError
    return double


def _float(value: Any) -> float:
    double = _double(value)
    if math.isfinite(double):
        struct.pack("<f", double)
    return double


def _number(value: Any) -> Decimal | float:
    """Return a number, or a text's number; what is not finite comes as a float."""
    if _expect(value, int, Decimal, float, str) in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError
    return value if isinstance(value, float) else Decimal(value)


def _text(value: Any) -> str:
    text = json_text(value) if isinstance(value, dict | list) else _expect(value, str)
    text.encode()
    return text


def _boolean(value: Any) -> bool:
    return _expect(value, bool)


def _boolean_name(value: str) -> bool:
    return {"true": True, "false": False}[value] if value in ("true", "false") else _expect(value, bool)


def _binary(value: Any) -> bytes:
    return base64.b64decode(_expect(value, str), validate=True)


def _date(value: Any) -> dt.date:
    if not _DATE.fullmatch(_expect(value, str)):
        raise ValueError
    return dt.date.fromisoformat(value)


def _moment(value: Any) -> dt.datetime:
    moment = _datetime(value)
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


def _moment_without_zone(value: Any) -> dt.datetime:
    moment = _datetime(value)
    if moment.tzinfo is not None:
        raise ValueError
    return moment


def _datetime(value: Any) -> dt.datetime:
    match = _MOMENT.fullmatch(_expect(value, str))
    if match is None:
        raise ValueError
    day, time, fraction, zone = match.groups(default="")
    # The digits behind the sixth are cut off, not rounded, as Spark does: so no moment passes into the next second.
    return dt.datetime.fromisoformat(f"{day}T{time[:8] or '00'}{f'.{fraction[:6]:0<6}' if fraction else ''}{zone}")


def _list(read: Callable[[Any], Any], value: Any) -> list[Any]:
    return [_read(read, item) for item in _expect(value, list)]


def _struct(members: dict[str, Callable[[Any], Any]], value: Any) -> dict[str, Any]:
    _expect(value, dict)
    return {name: _read(read, value.get(name)) for name, read in members.items()}


def _map(key: Callable[[Any], Any], read: Callable[[Any], Any], value: Any) -> list[tuple[Any, Any]]:
    return [(_read(key, name), _read(read, inner)) for name, inner in _expect(value, dict).items()]


_READERS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _text,
    pa.bool_(): _boolean,
    pa.binary(): _binary,
    pa.date32(): _date,
}
