"""`LookupPlan`: what a lookup join does, as plain data.

The planner creates it on the driver, `explain` displays it, and the worker executes it. It contains no connection, no
connector option and no secret; it can be serialized as JSON and as a pickle without loss.

SQL text in a plan is Spark SQL. It writes every left column as ``l.`name``` and every column of the lookup table as
``r.`name```, so that it can be parsed without either schema.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

import pyarrow as pa

from lookupcache import expr
from lookupcache.config import LookupConfig
from lookupcache.lazy import cached_property
from lookupcache.schema import nullable_fields, to_ddl

How = OneOf["inner", "left", "semi", "anti"]
Matches = OneOf["all", "first", "single"]
Stage = OneOf["field key", "constant key", "pre-filter", "calc", "residual", "filter after"]
Evaluator = OneOf["source", "worker", "spark"]

LETTER_COLUMNS = ("lookup_table", "lookup_error", "lookup_failed_at")
"""Columns of a dead letter in addition to those of the left side."""


OWN_PREFIX = "lookup_"
"""What the names of columns and variables inside a join's job begin with; no lambda variable of a user's may."""


def own_name(side: str, number: int, name: str) -> str:
    """Return a column's name inside the job: the letter of its side, its number, and what SQL takes of its own name.

    Spark's errors while a job runs show it.

    >>> own_name("r", 2, "unit price"), own_name("l", 0, "é")
    ('lookup_r2_unit_price', 'lookup_l0')
    """
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII)[:40].strip("_")
    return f"{OWN_PREFIX}{side}{number}{plain and '_'}{plain}"


@dataclass(frozen=True, kw_only=True)
class FieldKey:
    """A column of the lookup table that must equal an expression over the left side.

    ``sql`` computes the key in the type of ``column``; it is null where no value of that type can be equal.
    """

    column: str
    sql: str


@dataclass(frozen=True, kw_only=True)
class ConstantKey:
    """A column of the lookup table that must equal one value, the same for all left rows."""

    column: str
    value: expr.Literal


@dataclass(frozen=True, kw_only=True)
class Output:
    """A column of the result: its name and the SQL that computes it."""

    name: str
    sql: str


@dataclass(frozen=True, kw_only=True)
class PlacedConjunct:
    """One conjunct of the condition as it was written, the stage that it became, and who evaluates it."""

    text: str
    stage: Stage
    evaluator: Evaluator


@dataclass(frozen=True, kw_only=True)
class LookupPlan:
    """One lookup join.

    - ``table``, ``connector``: names; ``source``: a hash of the connector's class and options.
    - ``code_unknown``: why no other application has the same ``source``; None if it may.
    - ``schema``: the columns of the lookup table; ``columns``: those of them that are cached besides the keys.
    - ``keys``, ``constants``: the equalities by which rows are looked up.
    - ``never``: no left row can match, because a constant key is null or has no counterpart in its column's type.
    - ``pre_filter``: conjuncts over left columns only; a row that fails them is not looked up.
    - ``pushed``: filters that the source applies; ``calc``: filters on the rows it returns; both before the cache.
    - ``residual``: conjuncts that the worker evaluates after the cache; ``residual_sql``: the same for Spark, for the
      forms in which Spark performs the join. ``spark_residual``: conjuncts that only Spark can evaluate, and with them
      those that can fail.
    - ``left_filter``, ``filter_after``: filters from WHERE, before the lookup and after the join.
    - ``left_columns``: columns of the left side that pass through the worker: those that the other fields need, or all
      where ``config`` enables dead letters.
    - ``output``: the columns of the result; the age and error columns that ``config`` names follow them.
    - ``latest``: the column of the version of an as-of join: of a left row's matches, those with the greatest version
      are joined, after all conditions but those of WHERE; ``matches`` counts these.
    - ``matches``: with how many rows of the table a left row is joined: all that match, the first, or a single one (a
      second is an error).
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
    conjuncts: tuple[PlacedConjunct, ...] = ()
    latest: str | None = None
    matches: Matches = "all"
    code_unknown: str | None = None
    config: LookupConfig = LookupConfig()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the lookup table that keys are passed for."""
        return tuple(key.column for key in self.keys)

    @property
    def columns_schema(self) -> pa.Schema:
        """The types of ``columns``, all nullable."""
        return nullable_fields(self.schema, self.columns)

    @property
    def lists_matches(self) -> bool:
        """Whether a left row's matches are needed in one place once Spark has evaluated its conditions."""
        return bool(self.spark_residual) and (self.how != "inner" or self.latest is not None)

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the cache: joins share a cache only if everything that determines its content is equal.

        32 hexadecimal digits of the SHA-256 of canonical JSON. It travels with the plan, so that no task computes it.
        """
        data, fields = _in_one_order(self.to_json()), "connector source schema constants pushed calc columns config"
        identity = {name: data[name] for name in fields.split() if name in data}
        return digest(identity | {"key_columns": list(self.key_columns)})

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data; fields with their default value are omitted."""
        data: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                data[field.name] = _to_json(value)
        return data


def digest(data: Any, *, secret: bool = False) -> str:
    """Return a hash of JSON data, as 32 hexadecimal digits; with ``secret``, one by which secrets are tried slowly."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    return _slow_digest(canonical) if secret else hashlib.sha256(canonical).hexdigest()[:32]


@functools.lru_cache(maxsize=64)
def _slow_digest(data: bytes) -> str:
    """Return a hash that takes tens of milliseconds and 8 MiB; the salt is the same on all hosts."""
    return hashlib.scrypt(data, salt=b"lookupcache", n=1 << 13, r=8, p=1, dklen=16).hex()


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, pa.Schema):
        return to_ddl(value)
    if isinstance(value, LookupConfig):
        return value.to_json()
    if isinstance(value, expr.Column | expr.Literal | expr.Call):
        return expr.to_json(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def content_of(plan: LookupPlan, source: str | None = None) -> list[Any]:
    """Return what determines the rows of a plan's keys, without limits, to be digested.

    So jobs whose options differ only in how they cache and call share entries; the reader's age limits hold.
    ``source`` is the identity of the source where ``plan.source`` is not: functions, and options that are references.
    Another version of lookupcache may read a source in another way, as when a wrong value is mended.
    """
    from lookupcache import __version__  # Most workers do without.

    data = _in_one_order(dataclasses.replace(plan, how="left", config=type(plan.config)()).to_json())
    content = {name: data.get(name) for name in ("connector", "source", "constants", "pushed", "calc")}
    content["source"] = source or plan.source
    return [__version__, content, schema_of(plan), plan.config.on_miss_max_attempts > 0]


def _in_one_order(data: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON data of a plan whatever the order in which its filters and constants were written."""
    return data | {name: sorted(data[name], key=json.dumps) for name in ("constants", "pushed", "calc") if name in data}


def schema_of(plan: LookupPlan) -> str:
    """Return the columns of a plan's entries as text: those of the key, then those of the rows."""
    keys, rows = (
        to_ddl(nullable_fields(plan.schema, names)) if names else "" for names in (plan.key_columns, plan.columns)
    )
    return f"{keys} -> {rows}"
