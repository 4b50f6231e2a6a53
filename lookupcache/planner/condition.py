"""Conditions as the planner takes them: the conjuncts as trees, in which every name is bound to a side and a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from lookupcache.errors import PlanError, about
from lookupcache.planner.clauses import common_spans, conjuncts, without_comments
from lookupcache.planner.depth import LEVELS, deep_recursion
from lookupcache.planner.grammar import equality, is_plain_equality
from lookupcache.planner.naming import Fragment, VisibleColumns
from lookupcache.planner.settings import Settings


@dataclass(frozen=True, eq=False)
class Equality:
    """A column of the lookup table that must equal an expression without columns of that table.

    ``plain`` means that it is written as an equality, and not in an equivalent form.
    """

    column: str
    other: Fragment
    plain: bool = True


@dataclass(frozen=True, eq=False)
class BoundConjunct:
    """A conjunct as a tree, and as an equality, if it is one."""

    fragment: Fragment
    equality: Equality | None = None

    @property
    def is_key(self) -> bool:
        """Whether it is an equality with an expression over the left side."""
        return self.equality is not None and bool(self.equality.other.sides)


@dataclass(frozen=True)
class BoundCondition:
    """The conjuncts of a condition; ``settings`` are those that it was read with, if they hold for the join."""

    conjuncts: tuple[BoundConjunct, ...]
    settings: Settings | None = field(default=None, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.conjuncts)


def read_condition(scope: VisibleColumns, text: str) -> BoundCondition:
    """Parse a condition and bind its names; without an equality, those that all operands of an OR have are added.

    >>> import pyarrow as pa
    >>> from lookupcache.planner.naming import LeftColumn
    >>> scope = VisibleColumns([LeftColumn("id", "bigint")], "c", pa.schema([("ID", pa.int64()), ("age", pa.int32())]))
    >>> condition = read_condition(scope, "o.id = c.id AND (age > 18 OR o.id = 1)")
    >>> [(one.fragment.sql, one.equality and one.equality.column) for one in condition.conjuncts]
    [('l.`id` = r.`ID`', 'ID'), ('r.`age` > 18 OR l.`id` = 1', None)]
    """
    parts = conjuncts(without_comments(text))
    bound = [read_conjunct(scope, part) for part in parts]
    if not any(one.is_key for one in bound):
        common = [read_conjunct(scope, part[start:end]) for part in parts for start, end in common_spans(part)]
        bound += [one for one in common if one.equality is not None]
    return BoundCondition(tuple(bound))


def read_conjunct(scope: VisibleColumns, text: str) -> BoundConjunct:
    """Parse a conjunct, a text without comments, and bind its names; errors name the conjunct."""
    with about(text):
        return _read_conjunct(scope, text)


def _read_conjunct(scope: VisibleColumns, text: str) -> BoundConjunct:
    fragment = scope.read(text)
    if isinstance(fragment.tree, exp.Alias):
        raise PlanError(
            f"{text!r} ends in a name, {fragment.tree.alias!r}, which a condition cannot have.",
            hint="Write an operator, such as AND, before it, or leave it out.",
        )
    sides = equality(text)
    if sides is None or "right" not in fragment.sides:
        return BoundConjunct(fragment)
    plain = is_plain_equality(text)
    a, b = (scope.read(side) for side in sides)
    for one, other in ((a, b), (b, a)):
        if one.column and one.column.side == "right" and "right" not in other.sides and (plain or other.sides):
            return BoundConjunct(fragment, Equality(one.column.name, other, plain))
    return BoundConjunct(fragment)


def read_nested(scope: VisibleColumns, text: str) -> BoundConjunct:
    """Return `read_conjunct` of a text that may be nested deeply; raises PlanError where it is nested too deeply."""
    try:
        return deep_recursion(lambda: read_conjunct(scope, text))
    except RecursionError:
        raise too_deep([text]) from None


def too_deep(texts: Iterable[str], others: Sequence[str] = ()) -> PlanError:
    """Return the error for an expression that is nested too deeply, which is probably the longest one."""
    longest = max([*others, *(part for text in texts for part in _parts(text))], key=len)
    return PlanError(
        f"{longest[:60]!r}… is nested too deeply to be planned: brackets, calls, CASE and NOT may be nested "
        f"about {LEVELS} times.",
        hint="Compute part of it as a column of the left side first, with withColumn, or select it after the join.",
    )


def _parts(text: str) -> list[str]:
    try:
        return conjuncts(without_comments(text))
    except RecursionError:
        return [text]
