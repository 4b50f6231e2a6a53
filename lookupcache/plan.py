"""`LookupPlan`: what a lookup join does, as pure data.

The planner writes it on the driver, `explain` shows it, the worker obeys it. It holds no connection, no
option of the connector and no secret; it goes through JSON and pickle unchanged.

SQL text in a plan is Spark SQL in which every left column is spelled ``l.`name``` and every column of the
lookup table ``r.`name```, so that it can be read back without knowing either schema.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

import pyarrow as pa

from lookupcache import expr
from lookupcache.config import LookupConfig
from lookupcache.schema import parse_ddl, to_ddl

How = OneOf["inner", "left", "semi", "anti"]
Matches = OneOf["all", "first", "single"]
Place = OneOf["field key", "constant key", "pre-filter", "calc", "residual", "filter after"]
Evaluator = OneOf["source", "worker", "spark"]

LETTER_COLUMNS = ("lookup_table", "lookup_error", "lookup_failed_at")
"""What a dead letter holds besides the columns of the left side."""


@dataclass(frozen=True, kw_only=True)
class FieldKey:
    """A column of the lookup table that must equal an expression over the left side.

    ``sql`` gives the key in the type of ``column``, null where no value of that type can be equal.
    """

    column: str
    sql: str


@dataclass(frozen=True, kw_only=True)
class ConstantKey:
    """A column of the lookup table that must equal one value for the whole join."""

    column: str
    value: expr.Literal


@dataclass(frozen=True, kw_only=True)
class Output:
    """A column of the result: its name and the SQL that gives it."""

    name: str
    sql: str


@dataclass(frozen=True, kw_only=True)
class Conjunct:
    """One conjunct of the condition as it was written, and where it went."""

    text: str
    place: Place
    evaluator: Evaluator


@dataclass(frozen=True, kw_only=True)
class LookupPlan:
    """One lookup join.

    ``never`` says that no left row can match (a constant key is null, or has no counterpart in its column's
    type). ``pre_filter`` are conjuncts over left columns only: a row that fails them is not looked up.
    ``pushed`` are applied by the source, ``calc`` to the rows it returns, both before the cache.
    ``columns`` are those of the lookup table that are cached. ``residual`` is evaluated by the worker after
    the cache, ``spark_residual`` by Spark; ``residual_sql`` is what Spark evaluates in place of ``residual`` where it
    makes the join itself. ``left_filter`` and ``filter_after`` come from WHERE: rows dropped
    before the lookup, and after the join. ``source`` is a hash of the connector's class and options.
    ``left_columns`` are those that go through the worker: what the rest needs, or all where ``config`` asks for
    dead letters. ``matches`` says how many rows of the table a left row is given: all that match, the first, or
    a single one, where a second is an error. Behind ``output`` the result has the columns for age and error that
    ``config`` names.
    """

    table: str
    connector: str
    source: str
    schema: pa.Schema
    how: How
    keys: tuple[FieldKey, ...]
    constants: tuple[ConstantKey, ...] = ()
    never: bool = False
    pre_filter: tuple[str, ...] = ()
    pushed: tuple[expr.Expr, ...] = ()
    calc: tuple[expr.Expr, ...] = ()
    columns: tuple[str, ...] = ()
    residual: tuple[expr.Expr, ...] = ()
    residual_sql: tuple[str, ...] = ()
    spark_residual: tuple[str, ...] = ()
    left_filter: tuple[str, ...] = ()
    filter_after: tuple[str, ...] = ()
    left_columns: tuple[str, ...] = ()
    output: tuple[Output, ...] = ()
    conjuncts: tuple[Conjunct, ...] = ()
    matches: Matches = "all"
    config: LookupConfig = LookupConfig()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the lookup table that keys are given for."""
        return tuple(key.column for key in self.keys)

    @property
    def fingerprint(self) -> str:
        """The cache's identity: joins share a cache only where all that decides what lies in it is the same.

        32 hexadecimal digits of the SHA-256 of canonical JSON.
        """
        data = self.to_json()
        decides = ("connector", "source", "schema", "key_columns", "constants", "pushed", "calc", "columns", "config")
        identity = {name: data[name] for name in decides if name in data} | {"key_columns": list(self.key_columns)}
        return digest(identity)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data; fields that hold their default are left out."""
        shown: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                shown[field.name] = _json(value)
        return shown

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LookupPlan:
        """Read what `to_json` wrote."""
        return cls(**{name: _READERS.get(name, _as_is)(value) for name, value in data.items()})


def digest(data: Any) -> str:
    """Return 32 hexadecimal digits that stand for this JSON data."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if isinstance(value, pa.Schema):
        return to_ddl(value)
    if isinstance(value, LookupConfig):
        return value.to_json()
    if isinstance(value, expr.Column | expr.Literal | expr.Call):
        return expr.to_json(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _as_is(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _expressions(items: list[Any]) -> tuple[expr.Expr, ...]:
    return tuple(expr.from_json(item) for item in items)


def _constant(data: Mapping[str, Any]) -> ConstantKey:
    value = expr.from_json(data["value"])
    assert isinstance(value, expr.Literal)
    return ConstantKey(column=data["column"], value=value)


_READERS: dict[str, Any] = {
    "schema": parse_ddl,
    "keys": lambda items: tuple(FieldKey(**item) for item in items),
    "constants": lambda items: tuple(_constant(item) for item in items),
    "pushed": _expressions,
    "calc": _expressions,
    "residual": _expressions,
    "output": lambda items: tuple(Output(**item) for item in items),
    "conjuncts": lambda items: tuple(Conjunct(**item) for item in items),
    "config": LookupConfig.from_options,
}
