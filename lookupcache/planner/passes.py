"""From a condition to a LookupPlan: each conjunct is assigned to a step of the join.

    read ─► field keys ─► constant keys ─► Spark's residual ─► calc ─► residual ─► output

Each pass assigns its conjuncts of the `Draft` and leaves the others to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import pyarrow as pa

from lookupcache import expr
from lookupcache.connector import request_of
from lookupcache.errors import PlanError, about, nearest
from lookupcache.expr import can_fail
from lookupcache.plan import ConstantKey, Evaluator, FieldKey, How, LookupPlan, Matches, PlacedConjunct, Stage
from lookupcache.planner.as_of import AsOf, as_of_conditions, implied_bounds, read_moment, refuse_without_history
from lookupcache.planner.clauses import split_where, tokens, without_comments
from lookupcache.planner.coercion import (
    is_collated,
    is_key_type,
    is_zone_dependent,
    key_sql,
    key_type,
    mismatch,
    sql_type,
)
from lookupcache.planner.condition import BoundCondition, Equality, read_condition, too_deep
from lookupcache.planner.constant_keys import (
    NONDETERMINISTIC,
    constant_value,
    is_settled,
    literal_sql,
    moment,
    refuse_chance,
)
from lookupcache.planner.depth import deep_recursion
from lookupcache.planner.grammar import equality, null_safe_sides
from lookupcache.planner.naming import Fragment, LeftColumn, Reference, VisibleColumns
from lookupcache.planner.output import Result, expand_stars, result_of
from lookupcache.planner.settings import ANSI, MOMENT_AS_STRING, Analyst, Settings
from lookupcache.planner.translate import may_fail, translate
from lookupcache.redaction import hide_address
from lookupcache.schema import type_name
from lookupcache.table import LookupTable


@dataclass(eq=False)
class StagedConjunct:
    """A conjunct, and the stage that evaluates it once that is decided."""

    fragment: Fragment
    equality: Equality | None = None
    stage: Stage | None = None
    evaluator: Evaluator = "spark"
    value: expr.Literal | None = None
    translated: expr.Expr | None = None
    shown: str | None = None

    def put(self, stage: Stage, evaluator: Evaluator) -> None:
        """Assign the conjunct."""
        self.stage, self.evaluator = stage, evaluator

    @property
    def conjunct(self) -> PlacedConjunct:
        """The conjunct as part of the plan."""
        assert self.stage is not None
        return PlacedConjunct(text=self.shown or self.fragment.text, stage=self.stage, evaluator=self.evaluator)


@dataclass(eq=False)
class Draft:
    """A plan in the making."""

    scope: VisibleColumns
    table: LookupTable
    how: How
    analyst: Analyst
    conjuncts: list[StagedConjunct]
    matches: Matches = "all"
    latest: str | None = None
    using: tuple[str, ...] = ()
    keys: list[FieldKey] = field(default_factory=list)
    constants: list[ConstantKey] = field(default_factory=list)
    never: bool = False
    pre_filter: list[str] = field(default_factory=list)
    left_filter: list[str] = field(default_factory=list)
    pushed: list[expr.Expr] = field(default_factory=list)
    calc: list[expr.Expr] = field(default_factory=list)
    residual: list[expr.Expr] = field(default_factory=list)
    residual_sql: list[str] = field(default_factory=list)
    spark_residual: list[str] = field(default_factory=list)
    filter_after: list[str] = field(default_factory=list)

    @property
    def ansi(self) -> bool:
        """Whether the session is in ANSI mode."""
        return self.scope.settings.on(ANSI)

    def open(self) -> list[StagedConjunct]:
        """Return the conjuncts that are not assigned yet."""
        return [one for one in self.conjuncts if one.stage is None]

    def right_type(self, column: str) -> pa.DataType:
        """Return the Arrow type of a column of the lookup table."""
        return self.table.schema.field(column).type

    def is_constant(self, equal: Equality) -> bool:
        """Return whether a column must equal one fixed value."""
        return (
            not equal.other.sides
            and is_settled(equal.other, self.right_type(equal.column))
            and not self.scope.settings.calls_user_function(equal.other.functions)
        )

    def translate(self, fragment: Fragment) -> expr.Expr | None:
        """Return the expression that a worker evaluates, or None if only Spark can."""
        own = partial(moment, self.analyst)
        return translate(fragment, self.scope.typed, moment=own, settings=self.scope.settings)

    def is_text(self, reference: Reference) -> bool:
        """Return whether a left column has strings."""
        return self.scope.of_left(reference.name).type == "string"


def plan_join(
    left: Sequence[LeftColumn],
    table: LookupTable,
    *,
    on: str | Sequence[str] | BoundCondition,
    how: str = "inner",
    where: str | BoundCondition | None = None,
    select: Sequence[str] | None = None,
    matches: Matches = "all",
    as_of: AsOf | None = None,
    analyst: Analyst,
    settings: Settings | None = None,
    name_of: Callable[[int], str | None] = lambda _: None,
) -> LookupPlan:
    """Plan the join of a left side with a lookup table.

    Raises PlanError and SchemaError for a join that cannot be planned as written.

    Args:
        left: The columns of the left side.
        table: The lookup table.
        on: A bound condition, SQL text, which may end in a WHERE, or the name or names of columns that both sides
            have.
        how: The join type, by any of Spark's names.
        where: A bound condition, or SQL text, that filters the result.
        select: The columns of the result; by default those of both sides.
        matches: How many rows of the table a left row is joined with.
        as_of: The time of a left row, over the left side: it is joined with the rows that were valid then.
        analyst: Asks Spark for types of expressions over the left side, values of constants, and names of selected
            expressions.
        settings: The session's settings.
        name_of: Returns the name of a selected column that has no alias, by its number in ``select``; None where the
            name is that of its text.

    >>> squares = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"], function=lambda n: [(n, n * n)])
    >>> plan = plan_join([LeftColumn("id", "bigint")], squares, on="id = s.n AND s.square > 10", analyst=None)
    >>> [(conjunct.text, conjunct.stage) for conjunct in plan.conjuncts]
    [('id = s.n', 'field key'), ('s.square > 10', 'calc')]
    """
    _check_matches(matches, how)
    settings = settings or Settings()
    scope = VisibleColumns(left, table.name, table.schema, settings=settings, star=lambda name: analyst.star(name))
    on = settings.readable(on) if isinstance(on, str) else on
    where = without_comments(settings.readable(where)) if isinstance(where, str) else where

    def run_passes() -> LookupPlan:
        draft = Draft(scope, table, join_type(how), analyst, [], matches)
        moment = None if as_of is None else _read_as_of(draft, as_of)
        _read(draft, on, where)
        if moment is not None:
            _add_as_of(draft, *moment)
        for step in (_pre_filter, _field_keys, _constant_keys, _spark_residual, _calc, _residual):
            step(draft)
        found = result_of(draft.scope, draft.how, select, draft.using, table.config, analyst, name_of)
        return _finish(draft, found)

    try:
        plan = deep_recursion(run_passes)
    except RecursionError:
        raise too_deep(_texts(on, where), select or ()) from None
    if plan.config.cache != "ALL":
        table.connector.check(request_of(plan))
    return plan


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


_HOW: dict[str, How] = {"leftouter": "left", "leftsemi": "semi", "leftanti": "anti"}
_ALL_ROWS = (
    "A lookup sees only rows that are looked up. To keep all left rows, write how='left'; to have all rows of the "
    "table, read it with spark.read.format('lookupcache'), and use DataFrame.join."
)
_OTHER_JOINS = {
    "right": ("right outer", _ALL_ROWS),
    "full": ("full outer", _ALL_ROWS),
    "cross": (
        "cross",
        "A lookup needs a key. Read the full table with spark.read.format('lookupcache'), and use DataFrame.crossJoin.",
    ),
}


def _check_matches(matches: str, how: str) -> None:
    if matches not in get_args(Matches):
        raise PlanError(
            f"There is no matches={matches!r}.", hint=nearest(str(matches), get_args(Matches), what="values")
        )
    if matches != "all" and join_type(how) != "left":
        raise PlanError(
            f"matches={matches!r} is for left joins, and this join is {how!r}.",
            hint="Write how='left'; where left rows without a match are not wanted, filter them out after the join.",
        )


def join_type(how: str) -> How:
    """Return the plan's name of a join type for any of Spark's names.

    >>> join_type("left_outer"), join_type("LEFTSEMI")
    ('left', 'semi')
    """
    word = how.lower().replace("_", "").replace(" ", "")
    word = _HOW.get(word, word)
    if word in get_args(How):
        return word  # type: ignore[return-value]
    other = word.removesuffix("outer") or "full"
    if other in _OTHER_JOINS:
        name, hint = _OTHER_JOINS[other]
        raise PlanError(f"A lookup join cannot be a {name} join, which how={how!r} asks for.", hint=hint)
    raise PlanError(f"There is no join type {how!r}.", hint=nearest(how, get_args(How), what="join types"))


def _read(draft: Draft, on: str | Sequence[str] | BoundCondition, where: str | BoundCondition | None) -> None:
    # An empty text would leave out no row, as that of a variable without a value: it is refused.
    wheres = [where] if where or isinstance(where, str) else []
    if isinstance(on, str):
        on, also = split_where(without_comments(on))
        wheres = wheres if also is None else [also, *wheres]
        on = on if (name := _column_name(draft.scope, on)) is None else [name]
    if isinstance(on, str | BoundCondition):
        draft.conjuncts = _read_conjuncts(draft.scope, on, "on")
    else:
        draft.conjuncts = _using(draft, on)
    for conjunct in draft.conjuncts:
        with about(conjunct.fragment.text):
            refuse_chance(conjunct.fragment, repr(conjunct.fragment.text))
    for condition in wheres:
        _read_where(draft, condition)


def _column_name(scope: VisibleColumns, text: str) -> str | None:
    """Return the name of a column if a condition is nothing else: as in Spark, it then names a key of both sides."""
    found = list(tokens(text))
    name = found[0].name if len(found) == 1 and found[0].kind in ("word", "quoted") else text
    return name if scope.has_left(name) or scope.has_right(name) else None


def _read_as_of(draft: Draft, as_of: AsOf) -> tuple[Fragment, str]:
    """Return the time of an as-of join and its type, and set the version of which the greatest is joined.

    A semi or anti join needs none: if any version matches, the greatest does.
    """
    refuse_without_history(draft.table)
    moment = read_moment(draft.scope, as_of)
    [type_] = _left_types(draft, [moment])
    version = draft.table.config.as_of_version
    if version is not None and draft.how in ("inner", "left"):
        draft.latest = draft.scope.of_right(version)
    return moment, type_


def _add_as_of(draft: Draft, moment: Fragment, type_: str) -> None:
    """Add the conditions of an as-of join, and those on the table alone that follow, if they are filters of workers."""
    config, written = draft.table.config, [conjunct.fragment for conjunct in draft.conjuncts]
    conditions = as_of_conditions(draft.scope, config, moment, type_)
    draft.conjuncts += [StagedConjunct(one.fragment, shown=one.shown) for one in conditions]
    bounds = implied_bounds(draft.scope, config, moment, type_, written)
    draft.conjuncts += [
        StagedConjunct(one.fragment, shown=one.shown) for one in bounds if _is_worth_it(draft, one.fragment)
    ]


def _is_worth_it(draft: Draft, bound: Fragment) -> bool:
    """Return whether a bound is a plain filter; in a pipeline, Spark may refuse to return a timestamp's type."""
    try:
        return _is_plain(draft.translate(bound))
    except PlanError:
        return False


def _is_plain(bound: expr.Expr | None) -> bool:
    """Return whether a bound compares a column with a value of its own type."""
    if isinstance(bound, expr.Call) and bound.op == "or":
        return _is_plain(bound.args[0])
    return isinstance(bound, expr.Call) and [type(part) for part in bound.args] == [expr.Column, expr.Literal]


def _read_conjuncts(scope: VisibleColumns, condition: str | BoundCondition, what: str) -> list[StagedConjunct]:
    if not condition or (isinstance(condition, str) and not condition.strip()):
        of_key = 'Name the key, as in on="o.customer_id = c.id".'
        hint = of_key if what == "on" else "Write a condition, or pass None for no filter."
        raise PlanError(f"The join's {what!r} is empty.", hint=hint)
    bound = read_condition(scope, condition) if isinstance(condition, str) else condition
    return [StagedConjunct(part.fragment, part.equality) for part in bound.conjuncts]


def _texts(*conditions: str | Sequence[str] | BoundCondition | None) -> Iterator[str]:
    """Yield the texts of conditions."""
    for one in conditions:
        if isinstance(one, BoundCondition):
            yield from (part.fragment.text for part in one.conjuncts)
        elif one is not None:
            yield from [one] if isinstance(one, str) else one


def _using(draft: Draft, names: Sequence[str]) -> list[StagedConjunct]:
    if not names:
        raise PlanError("The join's 'on' is an empty list.", hint="Name the key columns, as in on=['id'].")
    if odd := [name for name in names if not isinstance(name, str)]:
        raise PlanError(f"The join's 'on' has {odd[0]!r}, which is no name.", hint="Give names only, or Columns only.")
    pairs = [draft.scope.pair(name) for name in names]
    by_column: dict[str, tuple[Fragment, Fragment]] = {}
    for name, pair in zip(names, pairs, strict=True):
        if by_column.setdefault(draft.scope.of_right(name), pair) is not pair:
            raise PlanError(f"The join's 'on' names column {name!r} twice.", hint="Name it once.")
    draft.using = tuple(by_column)
    draft.scope = draft.scope.merging(names)
    return [StagedConjunct(whole, Equality(column, left)) for column, (left, whole) in by_column.items()]


def _read_where(draft: Draft, condition: str | BoundCondition) -> None:
    """Add the WHERE of an inner join to its ON; of other joins, apply conjuncts over the left side first.

    Where each left row is joined with its latest version, ON chooses among the versions, and WHERE filters the result.
    """
    if isinstance(condition, str):
        condition = expand_stars(draft.scope, draft.how, condition, draft.using)
    for conjunct in _read_conjuncts(draft.scope.in_result(draft.how), condition, "where"):
        fragment = conjunct.fragment
        chance = bool(fragment.functions & NONDETERMINISTIC)
        if draft.how in ("semi", "anti") and "right" in fragment.sides:
            raise PlanError(
                f"{fragment.text!r} in WHERE reads {draft.table.name!r}, "
                f"of which the {draft.how} join returns no columns.",
                hint="Move it to the join's ON.",
            )
        if draft.how == "inner" and not chance and not (draft.latest and "right" in fragment.sides):
            draft.conjuncts.append(conjunct)
            continue
        if "right" in fragment.sides or chance:
            draft.filter_after.append(fragment.sql)
            conjunct.put("filter after", "spark")
        else:
            draft.left_filter.append(fragment.sql)
            conjunct.put("pre-filter", "spark")
        draft.conjuncts.append(conjunct)


# ── the passes ───────────────────────────────────────────────────────────────────────────────────────────


def _pre_filter(draft: Draft) -> None:
    """Assign conjuncts without a column of the lookup table to the filter before the lookup."""
    for conjunct in draft.open():
        if "right" not in conjunct.fragment.sides and not _is_for_matches(draft, conjunct.fragment):
            draft.pre_filter.append(conjunct.fragment.sql)
            conjunct.put("pre-filter", "spark")


def _is_for_matches(draft: Draft, fragment: Fragment) -> bool:
    """Return whether a condition over the left side may fail, and Spark's join evaluates it for matches only."""
    if draft.how in ("inner", "semi") or not draft.ansi or not may_fail(fragment, draft.is_text):
        return False
    translated = draft.translate(fragment)
    return bool(fragment.sides) and (translated is None or can_fail(translated))


def _field_keys(draft: Draft) -> None:
    """Assign field keys: for each column of the table, the first expression that must equal it is its key."""
    possible = [
        (conjunct, equal)
        for conjunct in draft.open()
        if (equal := conjunct.equality) and not draft.is_constant(equal) and _is_key_column(draft, equal.column)
    ]
    types = _left_types(draft, [equal.other for _, equal in possible])
    found: dict[str, str] = {}
    for (conjunct, equal), type_ in zip(possible, types, strict=True):
        if equal.column not in found:
            with about(conjunct.fragment.text):
                key = _key(draft, equal, type_)
            if key is None:
                continue
            draft.keys.append(FieldKey(column=equal.column, sql=key))
            found[equal.column] = equal.other.sql
        if found[equal.column] == equal.other.sql:
            conjunct.put("field key", "source")


def _is_key_column(draft: Draft, column: str) -> bool:
    return is_key_type(type_name(draft.right_type(column))) and draft.table.connector.may_be_key(column)


def _left_types(draft: Draft, fragments: Sequence[Fragment]) -> list[str]:
    """Return the types of the expressions; Spark resolves those that are not plain columns in one request."""
    unknown = [fragment.sql for fragment in fragments if not fragment.column]
    answers = dict(zip(unknown, draft.analyst.types(unknown) if unknown else [], strict=True))
    return [
        draft.scope.of_left(fragment.column.name).type if fragment.column else answers[fragment.sql]
        for fragment in fragments
    ]


def _key(draft: Draft, equal: Equality, left: str) -> str | None:
    """Return the SQL of the key, or None if it is compared by a collation, or in another form by types of no key."""
    type_ = draft.right_type(equal.column)
    right = type_name(type_)
    as_moment = draft.ansi or not draft.scope.settings.on(MOMENT_AS_STRING)
    if left == "string" and not equal.other.sides and pa.types.is_temporal(type_) and as_moment:
        return f"CAST({equal.other.sql} AS {sql_type(right)})"
    zone = str(draft.analyst.fold(["current_timezone()"])[0]) if is_zone_dependent(left, right) else ""
    common = key_type(left, right, zone=zone, ansi=draft.ansi)
    if common is None and (is_collated(left) or not equal.plain):
        return None
    if common is None:
        raise mismatch(equal.other.text, left, f"{draft.table.name}.{equal.column}", right)
    return key_sql(equal.other.sql, left, right, common)


def _constant_keys(draft: Draft) -> None:
    """Assign constant keys: columns that must equal one value. Without any field key, the first becomes one."""
    keyed = {key.column for key in draft.keys}
    constants: dict[str, expr.Literal] = {}
    for conjunct in draft.open():
        equal = conjunct.equality
        if equal is None or not draft.is_constant(equal) or not _is_key_column(draft, equal.column):
            continue
        with about(conjunct.fragment.text):
            named, type_ = f"{draft.table.name}.{equal.column}", draft.right_type(equal.column)
            value = constant_value(draft.analyst, equal.other, named, type_, draft.scope.settings)
        if value is None:
            continue
        conjunct.value = value
        draft.never |= conjunct.value.value is None
        if equal.column not in keyed and constants.setdefault(equal.column, conjunct.value) == conjunct.value:
            conjunct.put("constant key", "source")
    draft.constants = [ConstantKey(column=column, value=value) for column, value in constants.items()]
    if not draft.keys and (draft.constants or draft.table.connector.needs_key):
        _promote(draft)


def _promote(draft: Draft) -> None:
    if not draft.constants:
        _refuse_null_safe_key(draft)
        _refuse_collated_key(draft)
        _refuse_computed_key(draft)
        raise PlanError(
            f"The join has no key for table {draft.table.name!r}: "
            "its condition has no equality with a column of the table.",
            hint=f'Add an equality, as in "o.customer_id = {draft.table.name}.{draft.table.schema.names[0]}". '
            "Columns of array, map or struct type cannot be keys.",
        )
    first = draft.constants.pop(0)
    draft.keys.append(FieldKey(column=first.column, sql=literal_sql(first.value)))


def _refuse_null_safe_key(draft: Draft) -> None:
    """Raise PlanError if the only equality with a column of the table is null-safe."""
    for conjunct in draft.open():
        sides = null_safe_sides(conjunct.fragment.text)
        if sides is not None and conjunct.fragment.sides == {"left", "right"}:
            raise PlanError(
                f"{conjunct.fragment.text!r} is no key for table {draft.table.name!r}: it is true for two nulls as "
                "well, and a lookup finds no row by a null key.",
                hint=f"Write {sides[0]} = {sides[1]}, if null need not match null. Or add another equality as the key: "
                "the null-safe one then filters the rows that are found.",
            )


def _refuse_collated_key(draft: Draft) -> None:
    """Raise PlanError if the only equality with a column of the table is compared by a collation."""
    found = [(conjunct, conjunct.equality) for conjunct in draft.open() if conjunct.equality]
    types = _left_types(draft, [equal.other for _, equal in found])
    for (conjunct, equal), type_ in zip(found, types, strict=True):
        if is_collated(type_):
            raise PlanError(
                f"{conjunct.fragment.text!r} is no key for table {draft.table.name!r}: it is compared by a collation, "
                "and a lookup finds a key by its bytes.",
                hint="Add another equality as the key: this one then filters the rows that are found. Or compare "
                f"bytes: CAST({equal.other.text} AS STRING) = {draft.table.name}.{equal.column}.",
            )
    for conjunct in draft.open():
        words = [token.text for token in tokens(conjunct.fragment.text) if token.kind == "word"]
        if "COLLATE" in words and equality(conjunct.fragment.text) and conjunct.fragment.sides == {"left", "right"}:
            raise PlanError(
                f"{conjunct.fragment.text!r} is no key for table {draft.table.name!r}: it is compared by a collation, "
                "and a lookup finds a key by its bytes.",
                hint="Add another equality as the key: this one then filters the rows that are found. Or compare "
                "bytes: leave COLLATE out.",
            )


def _refuse_computed_key(draft: Draft) -> None:
    """Raise PlanError if the only equality with the table compares an expression over its columns."""
    for conjunct in draft.open():
        sides = equality(conjunct.fragment.text)
        symbols = {token.text for side in sides or () for token in tokens(side) if token.kind == "symbol"}
        if symbols - {"."} and "right" in conjunct.fragment.sides:
            raise PlanError(
                f"{conjunct.fragment.text!r} is no key for table {draft.table.name!r}: a lookup finds rows by a column "
                "of the table, not by an expression over its columns.",
                hint="Add an equality with a column of the table as the key: this one then filters the rows that are "
                "found.",
            )


def _spark_residual(draft: Draft) -> None:
    """Assign the conjuncts that Spark evaluates on each pair of rows, since a worker cannot do it exactly.

    Such a conjunct may guard one that can fail, which then goes to Spark with it. Spark's own join evaluates the
    conjuncts over the table alone first.
    """
    found = draft.open()
    for conjunct in found:
        conjunct.translated = _translated(draft, conjunct)
    residual = [conjunct for conjunct in found if conjunct.translated is None]
    failing = [conjunct for conjunct in found if conjunct.translated is not None and can_fail(conjunct.translated)]
    if residual and failing:
        table_first = sorted(found, key=lambda conjunct: "left" in conjunct.fragment.sides)
        residual = [conjunct for conjunct in table_first if conjunct in residual or conjunct in failing]
    for conjunct in residual:
        draft.spark_residual.append(conjunct.fragment.sql)
        conjunct.put("residual", "spark")


def _translated(draft: Draft, conjunct: StagedConjunct) -> expr.Expr | None:
    """Return the expression that a worker evaluates, or None if only Spark can."""
    translated = draft.translate(conjunct.fragment)
    if translated is None and conjunct.equality and conjunct.value:
        column = expr.Column("right", conjunct.equality.column, conjunct.value.type)
        return expr.Call("=", (column, conjunct.value))
    return translated


def _calc(draft: Draft) -> None:
    """Assign calc: conjuncts over the table's columns alone are applied before the cache, by the source if possible."""
    alone = [conjunct for conjunct in draft.open() if conjunct.fragment.sides == {"right"}]
    offered = [(conjunct, conjunct.translated) for conjunct in alone if conjunct.translated is not None]
    accepted = _source_filters(draft, [translated for _, translated in offered])
    for conjunct, translated in offered:
        taken = translated in accepted
        (draft.pushed if taken else draft.calc).append(translated)
        conjunct.put("calc", "source" if taken else "worker")


def _source_filters(draft: Draft, filters: list[expr.Expr]) -> list[expr.Expr]:
    """Return the filters that the source applies.

    With retries on a miss, the connector is offered no filter: a key whose rows all fail it would look like a miss.
    """
    if not filters or draft.table.config.on_miss_max_attempts:
        return []
    return list(draft.table.connector.accept(filters))


def _residual(draft: Draft) -> None:
    """Assign the rest: a worker evaluates it on each pair of rows."""
    for conjunct in draft.open():
        assert conjunct.translated is not None
        draft.residual.append(conjunct.translated)
        draft.residual_sql.append(conjunct.fragment.sql)
        conjunct.put("residual", "worker")


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────────────


def _finish(draft: Draft, result: Result) -> LookupPlan:
    late = [conjunct.fragment for conjunct in draft.conjuncts if conjunct.stage in ("residual", "filter after")]
    left = {name for fragment in late for name in fragment.names("left")} | result.left
    right = {name for fragment in late for name in fragment.names("right")} | result.right
    right |= set() if draft.latest is None else {draft.latest}
    if not right and any(conjunct.stage == "residual" for conjunct in draft.conjuncts):
        # The rows of a pair without columns would have no number.
        right = {draft.keys[0].column if draft.keys else draft.table.schema.names[0]}
    before = ("left_filter", "pre_filter", "keys", "constants", "pushed", "calc")
    after = ("residual", "residual_sql", "spark_residual")
    source, code_unknown = draft.table.identify()
    config = draft.table.config.located()
    path = config.dead_letter_path  # The worker gets it with its secrets separately.
    return LookupPlan(
        table=draft.table.name,
        connector=draft.table.connector_name,
        source=source,
        code_unknown=code_unknown,
        schema=draft.table.schema,
        how=draft.how,
        matches=draft.matches,
        latest=draft.latest,
        never=draft.never,
        columns=tuple(name for name in draft.table.schema.names if name in right),
        left_columns=tuple(column.name for column in draft.scope.left if column.name in left),
        output=result.output,
        conjuncts=tuple(one.conjunct for one in draft.conjuncts),
        config=config if path is None else replace(config, dead_letter_path=hide_address(path)),
        filter_after=tuple(draft.filter_after),
        **{name: tuple(getattr(draft, name)) for name in (*before, *after)},
    )
