"""Structs in statements: which columns a star in one means, and which names its fields take, drawn and as Spark's."""

from __future__ import annotations

import random

import pytest
from drawn_world import different, make_worlds, result_of
from scale import SEED, scale_up
from sql_statements import NOW, PERIODS

pytestmark = pytest.mark.spark

AT_ONCE = 20
COLUMNS = ("o.id", "o.k", "o.name", "v", "c.name", "c.K", "c.c", "label", "o.s.name", "O.V", "c.label")
STARS = ("*", "o.*", "c.*", "C.*", "o.s.*", "c.* EXCEPT (name)", "* EXCEPT (v)")
NAMES = ("", "", " AS x", " x", " AS `x y`", " `x y`", " end")
PLACES = (
    "SELECT o.id, {value} AS j {joins}",
    "SELECT o.id, {value} {joins} WHERE o.k IS NOT NULL",
    "SELECT o.id, c.name {joins} WHERE {value} LIKE '%name%' OR c.k = 3",
    "SELECT o.id {joins} AND {value} LIKE '%name%'",
    "SELECT c.k, max({value}) AS j {joins} GROUP BY c.k",
    "SELECT o.k {joins} GROUP BY o.k HAVING max({value}) LIKE '%name%'",
    "SELECT o.id, c.c {joins} ORDER BY {value}, c.c",
    "SELECT j FROM (SELECT {value} AS j, o.id {joins}) AS q WHERE q.id < 4",
)
JOINS = (
    f"FROM o JOIN cust {NOW} AS c ON o.k = c.id",
    f"FROM o LEFT JOIN cust {NOW} AS c ON o.k = c.id",
    f"FROM o JOIN many {NOW} AS m ON o.k = m.id JOIN cust {NOW} AS c ON o.k = c.id",
    f"FROM o JOIN t AS k USING (k) JOIN cust {NOW} AS c ON o.k = c.id",
)
SURELY_READ = "stands in an expression that is not supported here|only Spark reads"
"""What a statement is refused with whose text the parser cannot read."""


def struct(draw, depth=0):
    items = [draw.choice(COLUMNS) + draw.choice(NAMES) for _ in range(draw.randint(1, 2))]
    items += [draw.choice(STARS)] * draw.choice([0, 1, 1])
    items += [f"upper(c.name){draw.choice(NAMES)}"] * draw.randint(0, 1)
    if depth < 2 and draw.random() < 0.3:
        items.append(struct(draw, depth + 1) + draw.choice(NAMES))
    draw.shuffle(items)
    brackets = draw.choice(["struct", "STRUCT ", ""]) if len(items) > 1 else "struct"
    return f"{brackets}({', '.join(items)})"


def statement(seed):
    draw = random.Random(seed)
    call = draw.choice(["to_json", "typeof", "to_json", "typeof", "IDENTIFIER('to_json')", "IDENTIFIER('typeof')"])
    return draw.choice(PLACES).format(value=f"{call}({struct(draw)})", joins=draw.choice(JOINS))


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


def compare(worlds, texts):
    """Compare statements with Spark's; return the wrong ones and how many both refuse, ours refuses, and are equal."""
    session, theirs = worlds
    pairs, wrong, both, refused = {}, {}, 0, []
    for text in texts:
        plain = text.replace(NOW, "")
        ours, expected = result_of(session, text.replace(NOW, PERIODS[0]), None), result_of(theirs, plain, None)
        if isinstance(ours, str):
            both += isinstance(expected, str)
            refused += [] if isinstance(expected, str) else [(text, ours)]
        elif isinstance(expected, str):
            wrong[text] = f"Spark refuses: {expected}"
        elif ours.dtypes != expected.dtypes:
            wrong[text] = f"{ours.dtypes} in place of {expected.dtypes}"
        else:
            pairs[text] = ours, expected, None
    found = different(dict(enumerate(pairs.values())))
    return wrong | {list(pairs)[number]: why for number, why in found.items()}, both, refused, len(pairs)


@pytest.mark.parametrize("part", range(scale_up(3)))
def test_stars_and_names_in_structs_are_those_of_spark(worlds, part):
    texts = list(dict.fromkeys(statement(SEED + part * AT_ONCE + number) for number in range(AT_ONCE)))
    wrong, both, refused, equal = compare(worlds, texts)
    assert wrong == {}
    unknown = [one for one in refused if not any(fact in one[1] for fact in SURELY_READ.split("|"))]
    assert unknown == []
    assert all("lookup_" not in error for _, error in refused)
    assert equal > 0.3 * len(texts), (both, refused)
