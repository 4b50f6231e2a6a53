"""Many sets of rows for one drawn join: one job joins all of them, and each is compared as a join of its own.

Planning a join and starting its jobs takes most of the time of a drawn case, its few rows nearly none. So the rows of
many sets lie in the same two tables, with the number of their set, and the condition keeps the sets apart: by one more
key, or by a comparison that the worker or Spark evaluates after the lookup, so that joins by a single key are drawn as
well. The first set is the case's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from cases import VALUES, Case, Side, alike, in_sqlite, shared_values

LEFT_SET, RIGHT_SET = "g", "h"
"""The columns with the number of a row's set."""
MOST_LEFT, MOST_RIGHT = 12, 8
APART = (
    f"o.{LEFT_SET} = t.{RIGHT_SET}",
    f"o.{LEFT_SET} <= t.{RIGHT_SET} AND o.{LEFT_SET} >= t.{RIGHT_SET}",
    f"o.{LEFT_SET} % 1000 = t.{RIGHT_SET} % 1000",
)
"""Conditions that keep the sets apart: a key, a residual for the worker, one for Spark."""


def with_sets(case: Case, count: int, draw: random.Random) -> Case:
    """Return a case whose rows are those of ``count`` sets, the first of them the case's own."""
    sets = [(case.left.rows, case.right.rows), *(_rows(case, draw) for _ in range(count - 1))]
    is_using = not isinstance(case.on, str)
    right_set = LEFT_SET if is_using else RIGHT_SET
    return replace(
        case,
        left=_numbered(case.left, LEFT_SET, [left for left, _ in sets]),
        right=_numbered(case.right, right_set, [right for _, right in sets]),
        on=(*case.on, LEFT_SET) if is_using else _kept_apart(case.on, draw),
        select=case.select if is_using else _with_set(case.select),
        sets=count,
    )


def only_set(case: Case, number: int) -> Case:
    """Return a case with many sets without the rows of all others."""
    left, right = (
        replace(side, rows=tuple(row for row in side.rows if row[-1] == number)) for side in (case.left, case.right)
    )
    return replace(case, left=left, right=right, sets=1)


def fewer_rows(case: Case, is_wrong: Callable[[Case], bool]) -> Case:
    """Return a case without the rows that it needs not to be wrong."""
    for side in ("left", "right"):
        for number in reversed(range(len(getattr(case, side).rows))):
            now: Side = getattr(case, side)
            smaller = replace(case, **{side: replace(now, rows=now.rows[:number] + now.rows[number + 1 :])})
            case = smaller if is_wrong(smaller) else case
    return case


def _kept_apart(on: str, draw: random.Random) -> str:
    parts = [f"({on})" if " OR " in on.upper() else on, draw.choice(APART)]
    draw.shuffle(parts)
    return " AND ".join(parts)


def _with_set(select: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the columns of a result with the set of each row, unless it reads no column at all."""
    if select is None or not any("." in item or item in ("s", "n", "upper(S)") for item in select):
        return select
    return (*select, f"o.{LEFT_SET}")


def _numbered(side: Side, name: str, sets: list[tuple[tuple, ...]]) -> Side:
    rows = tuple((*row, number) for number, rows in enumerate(sets) for row in rows)
    return Side((*side.columns, (name, "int")), rows)


def _rows(case: Case, draw: random.Random) -> tuple[tuple[tuple, ...], tuple[tuple, ...]]:
    """Draw the rows of both sides: each column mostly has the same few values on both."""
    lefts, rights = [], []
    for (_, left), (_, right) in zip(case.left.columns, case.right.columns, strict=True):
        shared = shared_values(left, right)
        few = draw.choices(shared, k=draw.randint(1, 2)) if shared else []
        lefts.append((left, few))
        rights.append((right, [value for value in VALUES[right] if any(alike(one, value) for one in few)]))
    found = _side(lefts, MOST_LEFT, draw), _side(rights, MOST_RIGHT, draw)
    if case.source != "sql":
        return found
    return found[0], tuple(tuple(map(in_sqlite, row)) for row in found[1])


def _side(columns: list[tuple[str, list]], most: int, draw: random.Random) -> tuple[tuple, ...]:
    count = draw.randint(draw.choice([most // 2, most // 2, 0]), most)
    return tuple(tuple(_value(type_, few, draw) for type_, few in columns) for _ in range(count))


def _value(type_: str, few: list, draw: random.Random):
    if few and draw.random() < 0.9:
        return draw.choice(few)
    values = VALUES[type_]
    number = draw.randrange(len(values) + 1)
    return None if number == len(values) else values[number]
