"""Reads a plan's SQL as expressions that a worker evaluates: filters and columns between the joins of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import pyarrow as pa

from lookupcache import expr
from lookupcache.errors import PlanError, SchemaError
from lookupcache.planner.clauses import functions, tokens
from lookupcache.planner.constant_keys import SETTLED_FUNCTIONS, moment
from lookupcache.planner.naming import LeftColumn, VisibleColumns
from lookupcache.planner.settings import Analyst, Settings
from lookupcache.planner.translate import translate


@dataclass(frozen=True, eq=False)
class SqlReader:
    """Reads SQL in which left columns are written as ``l.`name``` and those of the lookup table as ``r.`name```."""

    left: Sequence[LeftColumn]
    right: pa.Schema
    analyst: Analyst
    settings: Settings
    _known: dict[str, expr.Expr | None] = field(default_factory=dict, repr=False)

    @cached_property
    def _scope(self) -> VisibleColumns:
        # A plan writes each name as its schema does.
        qualified = {"`l`": [column.name for column in self.left]}
        return VisibleColumns(
            self.left, "r", self.right, case_sensitive=True, settings=self.settings, star=qualified.get
        )

    def expression(self, sql: str) -> expr.Expr | None:
        """Return an expression that a worker evaluates exactly as Spark, or None where only Spark can.

        Each join that is added to a chain reads the expressions of all joins before it again.
        """
        if sql not in self._known:
            self._known[sql] = self._expression(sql)
        return self._known[sql]

    def _expression(self, sql: str) -> expr.Expr | None:
        try:
            fragment = self._scope.read(sql)
        except (PlanError, SchemaError, RecursionError):  # A worker could not evaluate such deep nesting either.
            return None
        own = partial(moment, self.analyst)
        return translate(fragment, self._scope.typed, moment=own, settings=self.settings, is_condition=False)


_ROW_FUNCTIONS = SETTLED_FUNCTIONS | frozenset({
    "acos", "ascii", "asin", "atan", "atan2", "between", "bin", "bit_length", "btrim", "cbrt", "ceil", "ceiling",
    "char", "character_length", "chr", "contains", "conv", "cos", "cosh", "cot", "crc32", "date_diff",
    "date_format", "date_trunc", "dateadd", "datediff", "day", "dayofmonth", "dayofweek", "dayofyear", "decimal",
    "degrees", "div", "element_at", "endswith", "exp", "extract", "floor", "format_string", "from_unixtime",
    "get_json_object", "greatest", "hash", "hour", "iff", "initcap", "instr", "isnan", "isnotnull", "isnull",
    "last_day", "lcase", "least", "left", "length", "levenshtein", "ln", "locate", "log", "log10", "log2", "ltrim",
    "minute", "mod", "month", "months_between", "nanvl", "named_struct", "nvl2", "octet_length",
    "overlay", "pmod", "position", "positive", "printf", "quarter", "radians", "regexp_extract", "regexp_replace",
    "repeat", "right", "rint", "round", "rtrim", "second", "sha", "shiftleft", "shiftright", "sign", "signum",
    "sin", "sinh", "soundex", "space", "split_part", "startswith", "struct", "substring_index", "tan", "tanh",
    "to_char", "to_number", "to_unix_timestamp", "translate", "trunc", "try_add", "try_divide", "try_multiply",
    "try_subtract", "try_to_number", "try_to_timestamp", "typeof", "ucase", "unix_date", "unix_micros",
    "unix_millis", "unix_seconds", "varchar", "weekday", "weekofyear", "xxhash64",
})  # fmt: skip
"""Spark's own functions with one value per row, and the same each time; types with parameters look like calls."""


def is_repeatable(sql: str, settings: Settings | None = None) -> bool:
    """Return whether an expression certainly has one value per row, and the same each time.

    An unknown function may be a user's own that changes from call to call, an aggregate, or a generator, which changes
    the number of rows. ``settings`` are the session's.

    >>> is_repeatable("l.`a` + upper(l.`b`)"), is_repeatable("`rand`() > l.`a`"), is_repeatable("session.upper(l.`b`)")
    (True, False, False)
    """
    found = list(tokens(sql))
    qualified = any(
        dot.text == "." and bracket.text == "(" for dot, _, bracket in zip(found, found[1:], found[2:], strict=False)
    )
    names = functions(sql)
    return not qualified and names <= _ROW_FUNCTIONS and not (settings or Settings()).calls_user_function(names)
