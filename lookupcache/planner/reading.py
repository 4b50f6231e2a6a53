"""A plan's SQL read again, as expressions that a worker evaluates: what stands between the joins of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lookupcache import expr
from lookupcache.errors import PlanError, SchemaError
from lookupcache.planner.analyst import Analyst
from lookupcache.planner.clauses import functions
from lookupcache.planner.constants import NONDETERMINISTIC, moment
from lookupcache.planner.naming import LeftColumn, Scope
from lookupcache.planner.settings import ANSI, Settings
from lookupcache.planner.translate import translate_value
from lookupcache.schema import parse_type


@dataclass(frozen=True, eq=False)
class SqlReader:
    """Reads SQL in which left columns are written as ``l.`name``` and those of the lookup table as ``r.`name```."""

    left: Sequence[LeftColumn]
    right: pa.Schema
    analyst: Analyst
    settings: Settings

    def expression(self, sql: str) -> expr.Expr | None:
        """Return what a worker evaluates with exactly Spark's meaning, or None where only Spark can."""
        types = {column.name: column.type for column in self.left}

        def column(side: expr.Side, name: str) -> expr.Column | None:
            try:
                type_ = parse_type(types[name]) if side == "left" else self.right.field(name).type
            except SchemaError:
                return None
            return expr.Column(side, name, type_)

        try:
            # A plan writes each name as its schema does.
            fragment = Scope(self.left, "r", self.right, case_sensitive=True, settings=self.settings).read(sql)
        except (PlanError, SchemaError):
            return None
        return translate_value(
            fragment,
            column,
            ansi=self.settings.on(ANSI),
            moment=lambda text, type_: moment(self.analyst, text, type_),
            settings=self.settings,
        )


def is_deterministic(sql: str) -> bool:
    """Return whether an expression calls no function whose value changes from call to call.

    >>> is_deterministic("l.`a` + 1"), is_deterministic("rand() > l.`a`")
    (True, False)
    """
    return not functions(sql) & NONDETERMINISTIC
