"""`Rows`: the commands for the rows of keys, and the replies as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lookupcache.connector import LookupRequest, is_secret
from lookupcache.errors import PlanError, SourceError
from lookupcache.formats.json_text import parse_json
from lookupcache.formats.json_values import json_array
from lookupcache.redis.commands import KeyCommand
from lookupcache.schema import shown_type
from lookupcache_redis.keys import KeyTemplate
from lookupcache_redis.values import MISFITS, read_text

TYPES = ("hash", "string", "json")
"""What a Redis key may hold."""

_LONGEST_SHOWN = 60

Send = Callable[[KeyCommand], list[Any]]
"""Sends a command, and returns the reply for each key."""


@dataclass(frozen=True)
class _Found:
    """The rows that exist: the positions of their names in the request, the names, and the values by column."""

    numbers: Sequence[int]
    names: list[bytes]
    columns: Sequence[Sequence[Any]]


class Rows:
    """Makes the commands for rows of Redis keys and reads the replies; ``kind`` is one of `TYPES`."""

    def __init__(self, schema: pa.Schema, template: KeyTemplate, kind: str) -> None:
        self.schema = schema
        self.template = template
        self.kind = kind
        self._stored = "hash" if kind == "hash" else "string"

    def of_keys(self, send: Send, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return the rows of a lookup's keys."""
        columns = self._key_columns(request, keys)
        names = self.template.names(_columns(columns))
        # Other key columns are not part of a name: keys that differ only in those have the same row, fetched once.
        first: dict[bytes, int] = {}
        for number, name in enumerate(names):
            if name is not None:
                first.setdefault(name, number)
        if len(first) < len(names):
            columns = columns.take(pa.array(list(first.values()), pa.int64()))
        return self._table(send, request, columns, list(first))

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join that lacks a column of the key template."""
        for name in self.template.columns:
            if name not in request.key_columns and name not in request.constants:
                raise PlanError(
                    f"Table {request.table!r}: its Redis keys are {self.template.text!r}; the join has no {name!r}.",
                    hint=f"Join on all of {', '.join(self.template.columns)}, or use 'lookup.cache' = 'ALL'.",
                )

    def of_names(self, send: Send, request: LookupRequest, columns: pa.RecordBatch) -> pa.Table:
        """Return the rows of distinct names, from the key columns that the names contain."""
        names = [name for name in self.template.names(_columns(columns)) if name is not None]
        return self._table(send, request, columns, names)

    def _key_columns(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.RecordBatch:
        columns = _columns(keys)
        self.check(request)
        for name in self.template.columns:
            if name in columns:
                continue
            constant = pa.scalar(request.constants[name], self.schema.field(name).type)
            columns[name] = pa.repeat(constant, keys.num_rows)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self.template.columns], schema=pa.schema(self.template.fields)
        )

    def _table(self, send: Send, request: LookupRequest, keys: pa.RecordBatch, names: list[bytes]) -> pa.Table:
        wanted = [name for name in request.fields if name not in self.template.columns]
        found = self._find_rows(send, request, names, wanted)
        if len(found.numbers) < len(names):
            keys = keys.take(pa.array(found.numbers, pa.int64()))
        arrays = _columns(keys)
        for name, values in zip(wanted, found.columns, strict=True):
            arrays[name] = self._array(request, name, found.names, values)
        return pa.table({name: arrays[name] for name in request.fields})

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def _find_rows(self, send: Send, request: LookupRequest, names: list[bytes], wanted: list[str]) -> _Found:
        if not names:
            return _Found([], [], [() for _ in wanted])
        if not wanted:
            return self._existing(send, request, names)
        if self.kind == "hash":
            return self._hashes(send, request, names, wanted)
        return self._strings(send, request, names, wanted)

    def _existing(self, send: Send, request: LookupRequest, names: list[bytes]) -> _Found:
        kinds = [_word(reply) for reply in self._check_replies(request, names, send(KeyCommand(b"TYPE", names)))]
        for name, kind in zip(names, kinds, strict=True):
            if kind not in (self._stored, "none"):
                raise self._wrong_type(request, name, f"a {kind}")
        return _take_rows(names, [number for number, kind in enumerate(kinds) if kind != "none"], [])

    def _hashes(self, send: Send, request: LookupRequest, names: list[bytes], wanted: list[str]) -> _Found:
        fields = tuple(name.encode() for name in wanted)
        rows = self._check_replies(request, names, send(KeyCommand(b"HMGET", names, fields)))
        empty = [number for number, row in enumerate(rows) if row.count(None) == len(row)]
        if not empty:
            return _Found(range(len(names)), names, list(zip(*rows, strict=True)))
        # Also where a column is NOT NULL: otherwise the requested columns would decide which keys have a row.
        gone = set(self._missing(send, request, names, rows, empty, fields))
        there = [number for number in range(len(names)) if number not in gone]
        return _take_rows(names, there, list(zip(*rows, strict=True)))

    def _missing(
        self,
        send: Send,
        request: LookupRequest,
        names: list[bytes],
        rows: list[Any],
        empty: list[int],
        fields: Sequence[bytes],
    ) -> list[int]:
        """Distinguish hashes without any of the fields from keys that do not exist; return the latter.

        A full hash (HGETALL) shows both at one time; EXISTS after HMGET could see another state.
        """
        some = [names[number] for number in empty]
        hashes = self._check_replies(request, some, send(KeyCommand(b"HGETALL", some)))
        missing = []
        for number, content in zip(empty, map(_pairs, hashes), strict=True):
            rows[number] = [content.get(name) for name in fields]
            if not content:
                missing.append(number)
        return missing

    def _strings(self, send: Send, request: LookupRequest, names: list[bytes], wanted: list[str]) -> _Found:
        texts = self._check_replies(request, names, send(KeyCommand(b"MGET", names, together=True)))
        there = [number for number, text in enumerate(texts) if text is not None]
        if len(there) < len(names):
            # MGET returns nothing for a key of another type, as for one that does not exist.
            missing = [name for name, text in zip(names, texts, strict=True) if text is None]
            if any(send(KeyCommand(b"EXISTS", missing, together=True))):
                self._existing(send, request, missing)
        found = _take_rows(names, there, [texts])
        if self.kind == "string":
            return found
        return _Found(found.numbers, found.names, self._members(request, found.names, found.columns[0], wanted))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def _members(
        self, request: LookupRequest, names: list[bytes], texts: Iterable[bytes], wanted: list[str]
    ) -> list[Sequence[Any]]:
        """Return the members of JSON objects, by column."""
        objects = []
        for name, text in zip(names, texts, strict=True):
            try:
                objects.append(_object(parse_json(text)))
            except MISFITS:
                raise self._misfit(request, name, "its value is no JSON object") from None
        return [[members.get(name) for members in objects] for name in wanted]

    def _array(self, request: LookupRequest, column: str, names: list[bytes], values: Sequence[Any]) -> pa.Array:
        type_ = self.schema.field(column).type
        read: Callable[[Any, pa.DataType], pa.Array] = json_array if self.kind == "json" else read_text
        try:
            return read(values, type_)
        except MISFITS:
            number = next(number for number, value in enumerate(values) if not _fits(read, value, type_))
        part = {"hash": f"field {column!r}", "json": f"member {column!r}", "string": "its value"}[self.kind]
        raise self._misfit(request, names[number], f"{part} is no {shown_type(type_)}")

    # ── what is wrong ────────────────────────────────────────────────────────────────────────────────────

    def _check_replies(self, request: LookupRequest, names: list[bytes], replies: list[Any]) -> list[Any]:
        """Return the replies; raises an error if one of them is an error."""
        failed = next((number for number, reply in enumerate(replies) if isinstance(reply, Exception)), None)
        if failed is None:
            return replies
        error = replies[failed]
        if str(error).startswith("WRONGTYPE"):
            raise self._wrong_type(request, names[failed], "something else")
        raise error

    def _wrong_type(self, request: LookupRequest, name: bytes, kind: str) -> SourceError:
        return SourceError(
            f"Table {request.table!r}: {self._key_text(name)} holds {kind}, not a {self._stored}.",
            hint="Correct the option 'type', or 'key'.",
        )

    def _misfit(self, request: LookupRequest, name: bytes, what: str) -> SourceError:
        return SourceError(
            f"Table {request.table!r}, {self._key_text(name)}: {what}.",
            hint="Correct the table's schema, or the program that writes to Redis.",
        )

    def _key_text(self, name: bytes) -> str:
        """Return a Redis key for an error text, unless its name may itself be a secret."""
        if any(is_secret(column) for column in self.template.columns):
            return f"a key {self.template.text!r}"
        text = name.decode(errors="backslashreplace")
        return f"key {text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + '…'!r}"


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _take_rows(names: list[bytes], numbers: Sequence[int], columns: Sequence[Sequence[Any]]) -> _Found:
    """Return some of the names, with their values."""
    if len(numbers) == len(names):
        return _Found(numbers, names, columns)
    return _Found(numbers, [names[n] for n in numbers], [[column[n] for n in numbers] for column in columns])


def _word(reply: bytes | str) -> str:
    return reply.decode() if isinstance(reply, bytes) else reply


def _pairs(reply: Any) -> Mapping[bytes, bytes]:
    """Return the fields and values of a hash: a cluster's client returns a dict, others a flat list."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _object(parsed: Any) -> dict[str, Any]:
    if type(parsed) is not dict:
        raise TypeError
    return parsed


def _fits(read: Callable[[Any, pa.DataType], pa.Array], value: Any, type_: pa.DataType) -> bool:
    try:
        read([value], type_)
    except MISFITS:
        return False
    return True
