"""Names of Redis keys: `KeyTemplate` writes a row's key columns into a name, and reads them from it.

"w:{origin}:{hour}"   origin, hour ─► names ─► b"w:JFK:5" …
                      names ─► those that the template could have written ─► origin, hour
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.errors import OptionError, nearest
from lookupcache.schema import shown_type
from lookupcache_redis.values import MISFITS, read_text

_PLAIN = r"^[A-Za-z0-9_.~-]*$"
_GLOB = frozenset(b"*?[]\\^")
_ESCAPES = frozenset(b"%0123456789ABCDEF")
_ZONED = "Z"


@dataclass(frozen=True)
class KeyTemplate:
    """The template of a Redis key's name with key columns.

    ``fields`` are the columns in order, ``literals`` the texts before the first, between them and after the last. A
    value's text ends where the next literal begins, so distinct keys have distinct names. A value that contains the
    next literal has no name, unless ``escaped``. Then values are written as in a URL, ``:`` as ``%3A``. In a value that
    still contains the next literal, the literal's characters are escaped too, ``-`` as ``%2D``.

    >>> template = KeyTemplate.parse("w:{origin}:{hour}", pa.schema([("origin", pa.string()), ("hour", pa.int32())]))
    >>> template.names({"origin": pa.array(["JFK", "a:b"]), "hour": pa.array([5, 6], pa.int32())})
    [b'w:JFK:5', None]
    >>> template.read([b"w:JFK:5", b"w:JFK:05", b"other"]).to_pylist()
    [{'origin': 'JFK', 'hour': 5}]
    >>> escaped = KeyTemplate.parse("w-{origin}-{hour}", pa.schema(template.fields), escaped=True)
    >>> escaped.names({"origin": pa.array(["a:b", "a-b"]), "hour": pa.array([5, 6], pa.int32())})
    [b'w-a%3Ab-5', b'w-a%2Db-6']
    """

    text: str
    fields: tuple[pa.Field, ...]
    literals: tuple[bytes, ...]
    escaped: bool

    @classmethod
    def parse(cls, text: str, schema: pa.Schema, *, escaped: bool = False) -> KeyTemplate:
        """Parse a template such as ``customer:{id}``; ``{{`` and ``}}`` stand for braces.

        Raises OptionError if it names a column twice, or one that the schema lacks, or if the end of a value would be
        ambiguous.
        """
        literals, names = _parse_template(text)
        for name in names:
            if name not in schema.names:
                hint = nearest(name, schema.names, what="columns")
                raise OptionError(f"Option 'key' is {text!r}; the table has no column {name!r}.", hint=hint)
        if not names or len(set(names)) < len(names):
            raise OptionError(
                f"Option 'key' is {text!r}, which names {'a column twice' if names else 'no column'}.",
                hint="Write each key column once, in braces, as in 'customer:{id}'.",
            )
        template = cls(text, tuple(schema.field(name) for name in names), literals, escaped)
        template._check()
        return template

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(field.name for field in self.fields)

    @property
    def prefix(self) -> bytes:
        """The prefix of every name."""
        return self.literals[0]

    def names(self, values: Mapping[str, pa.Array]) -> list[bytes | None]:
        """Return the name of each key, from columns without nulls; None for a key that no name can represent."""
        parts: list[Any] = [_binary(self.prefix)]
        sound = None
        for number, (field, literal) in enumerate(zip(self.fields, self.literals[1:], strict=True)):
            texts = self._texts(values[field.name], number)
            parts += [texts, _binary(literal)]
            if number < len(self.fields) - 1:
                here = _ends_before(texts, literal)
                sound = here if sound is None else pc.and_(sound, here)
        joined = pc.binary_join_element_wise(*parts, _binary(b""))
        return (joined if sound is None else pc.if_else(sound, joined, pa.scalar(None, pa.binary()))).to_pylist()

    def pattern(self, constants: Mapping[str, Any]) -> bytes:
        """Return the glob pattern of all names, or of those with these values of some columns."""
        parts = [_escape_glob(self.prefix)]
        for number, (field, literal) in enumerate(zip(self.fields, self.literals[1:], strict=True)):
            known = field.name in constants
            [text] = self._texts(pa.array([constants[field.name]], field.type), number) if known else [None]
            parts += [b"*" if text is None else _escape_glob(text.as_py()), _escape_glob(literal)]
        return b"".join(parts)

    def read(self, names: Sequence[bytes]) -> pa.RecordBatch:
        """Return the key columns of those names that `names` would write; ``names`` are distinct."""
        split = [texts for texts in map(self._split, names) if texts is not None]
        columns = list(zip(*split, strict=True)) or [()] * len(self.fields)
        arrays = [self._read(texts, field.type) for texts, field in zip(columns, self.fields, strict=True)]
        read = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.fields))
        return read.filter(pa.array(self._writes(read, columns), pa.bool_()))

    # ── values and their texts ───────────────────────────────────────────────────────────────────────────

    def _texts(self, values: pa.Array, number: int) -> pa.Array:
        """Return the texts of the values of a field, by its number."""
        texts = _text_of(self.fields[number].type)(values)
        if not self.escaped:
            return texts
        if pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py() is False:
            texts = _by_python(_escape)(texts)
        return texts if number == len(self.fields) - 1 else _without(texts, self.literals[number + 1])

    def _read(self, texts: Sequence[bytes], type_: pa.DataType) -> pa.Array:
        """Return the values of texts, null for a text that is not a value."""
        plain = [unquote_to_bytes(text) for text in texts] if self.escaped else texts
        try:
            return read_text(plain, type_)
        except MISFITS:
            return pa.array([_value_or_none(text, type_) for text in plain], type_)

    def _writes(self, read: pa.RecordBatch, columns: Sequence[Sequence[bytes]]) -> list[bool]:
        """Return which rows have exactly these canonical texts: that of 7 is 7, never 07."""
        written = [self._texts(column, number).to_pylist() for number, column in enumerate(read.columns)]
        rows = zip(zip(*written, strict=True), zip(*columns, strict=True), strict=True)
        return [ours == theirs for ours, theirs in rows]

    def _split(self, name: bytes) -> tuple[bytes, ...] | None:
        """Return the texts in a name, or None if it does not match the template."""
        end = len(name) - len(self.literals[-1])
        start = len(self.prefix)
        if end < start or not (name.startswith(self.prefix) and name.endswith(self.literals[-1])):
            return None
        texts = []
        for literal in self.literals[1:-1]:
            stop = name.find(literal, start, end)
            if stop < 0:
                return None
            texts.append(name[start:stop])
            start = stop + len(literal)
        return (*texts, name[start:end])

    def _check(self) -> None:
        for field in self.fields:
            if not any(is_type(field.type) for is_type in _WRITERS):
                raise OptionError(
                    f"Option 'key' is {self.text!r}; {field.name!r} is {shown_type(field.type)}, "
                    "which has no text that could be part of a key.",
                    hint="Use columns of simple types.",
                )
        for field, literal in zip(self.fields[:-1], self.literals[1:-1], strict=True):
            # A string may contain any character, so each value is checked instead.
            used = _ESCAPES if self.escaped else _bytes_used(field.type)
            if not literal or frozenset(literal) <= (used or frozenset()):
                raise OptionError(
                    f"Option 'key' is {self.text!r}: a name would not show where {field.name!r} "
                    f"({shown_type(field.type)}) ends.",
                    hint="Put a separator behind it that its values cannot hold, as in 'w:{origin}:{hour}'.",
                )


def _parse_template(text: str) -> tuple[tuple[bytes, ...], list[str]]:
    """Return the literals of a template and the column names between them."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise OptionError(f"Option 'key' is {text!r}: {error}.", hint="A brace itself is '{{' or '}}'.") from error
    literals, names = [b""], []
    for literal, name, spec, conversion in parts:
        literals[-1] += literal.encode()
        if name is None:
            continue
        if spec or conversion or not name:
            raise OptionError(
                f"Option 'key' is {text!r}, which holds more in braces than the name of a column.",
                hint="Write it as in 'customer:{id}'.",
            )
        names.append(name)
        literals.append(b"")
    return tuple(literals), names


def _escape_glob(text: bytes) -> bytes:
    return b"".join(b"\\" + bytes([byte]) if byte in _GLOB else bytes([byte]) for byte in text)


def _value_or_none(text: bytes, type_: pa.DataType) -> Any:
    try:
        return read_text([text], type_)[0].as_py()
    except MISFITS:
        return None


# ── the one text of a value ──────────────────────────────────────────────────────────────────────────────────


def _text_of(type_: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return next(write for is_type, write in _WRITERS.items() if is_type(type_))


def _cast(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.binary())


def _by_python(write: Callable[[Any], str]) -> Callable[[pa.Array], pa.Array]:
    def write_values(values: pa.Array) -> pa.Array:
        return pa.array([None if v is None else write(v).encode() for v in values.to_pylist()], pa.binary())

    return write_values


def _write_moments(values: pa.Array) -> pa.Array:
    """Write timestamps in ISO 8601: ``2013-01-01T05:00:00``, with six digits of a fraction or none, and Z for UTC."""
    texts = values.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.replace_substring(pc.replace_substring_regex(texts, r"\.000000$", ""), " ", "T")
    parts = (_ZONED if values.type.tz else "", "")
    return pc.binary_join_element_wise(texts, *(pa.scalar(part, pa.string()) for part in parts)).cast(pa.binary())


def _write_decimal(value: Decimal) -> str:
    return format(value, "f")


def _escape(text: bytes) -> str:
    return quote_from_bytes(text, safe="")


def _binary(value: bytes) -> pa.Scalar:
    # With its type: to find one, pyarrow imports pandas.
    return pa.scalar(value, pa.binary())


def _ends_before(texts: pa.Array, literal: bytes) -> pa.Array:
    """Return for each text whether it does not contain the literal after it, nor overlaps with it."""
    found = pc.find_substring(pc.binary_join_element_wise(texts, _binary(literal), _binary(b"")), literal)
    return pc.equal(found, pc.binary_length(texts))


def _without(texts: pa.Array, literal: bytes) -> pa.Array:
    """Return escaped texts; in those that contain the literal after them, its characters are escaped too.

    The literal has a character that no escape contains, so such a text neither contains it nor overlaps with it.
    """
    clear = _ends_before(texts, literal)
    if pc.all(clear).as_py() is not False:
        return texts
    own = {byte: b"%%%02X" % byte for byte in frozenset(literal) - _ESCAPES}

    def escape_literal(text: bytes) -> str:
        return b"".join(own.get(byte, bytes([byte])) for byte in text).decode()

    return pc.if_else(clear, texts, _by_python(escape_literal)(texts))


_WRITERS: dict[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]] = {
    pa.types.is_integer: _cast,
    pa.types.is_boolean: _cast,
    pa.types.is_string: lambda values: values.cast(pa.binary()),
    pa.types.is_binary: lambda values: values,
    pa.types.is_date32: _cast,
    pa.types.is_timestamp: _write_moments,
    pa.types.is_decimal: _by_python(_write_decimal),
    pa.types.is_float64: _by_python(lambda value: repr(value + 0.0)),
    pa.types.is_float32: _by_python(lambda value: repr(float(str(np.float32(value))) + 0.0)),
}


_DIGITS = string.digits + "-"


def _bytes_used(type_: pa.DataType) -> frozenset[int] | None:
    """Return the bytes that the texts of a type may contain; None for any."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return None
    return frozenset(next((text for is_type, text in _ALPHABETS.items() if is_type(type_)), _DIGITS).encode())


_ALPHABETS: dict[Callable[[pa.DataType], bool], str] = {
    pa.types.is_boolean: "truefals",
    pa.types.is_floating: _DIGITS + "+.einfa",
    pa.types.is_decimal: _DIGITS + ".",
    pa.types.is_timestamp: _DIGITS + ".:TZ",
}
