"""Structs in statements: which columns a star in one means, and which names its fields take, drawn and as Spark's."""

from __future__ import annotations

import random

import pytest
from drawn_world import ROWS, different, make_worlds, result_of
from scale import SEED, scale_up
from sql_statements import NOW, PERIODS

from lookupcache import PlanError

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


COMPUTED = ("struct(id, k)", "struct(NAME, c, 1)", "(id, name)", "arrays_zip(array(id), array(k))", "struct(k AS x, K)",
            "struct(name x, k)", "struct((k), upper(name), (name, C))", "array(struct(name, id))[0]",
            "struct(struct(k), k)", "arrays_zip(split(name, ''), array(k))")  # fmt: skip
"""Computed columns of the table ``made``, which has those of ``cust``."""
OF_COMPUTED = (
    f"FROM o LEFT JOIN made {NOW} AS c ON o.k = c.id",
    f"FROM o JOIN many {NOW} AS m ON o.k = m.id JOIN made {NOW} AS c ON c.id = m.k",
    f"FROM o JOIN made {NOW} AS c ON o.k = c.id JOIN cust {NOW} AS d ON d.id = c.id",
)
OF_SCALARS = ("d.id", "K", "o.k", "o.name", "name", "d.name", "D.C AS x", "o.v y", "upper(d.name)", "label")
STARS_OF_SCALARS = ("d.*", "*", "D.* EXCEPT (k)", "* EXCEPT (Name)")


def scalar(draw, depth=0):
    """Return a struct over a table d and the left side o."""
    items = draw.sample(OF_SCALARS, draw.randint(1, 3)) + draw.sample(STARS_OF_SCALARS, draw.randint(0, 1))
    if depth < 2 and draw.random() < 0.3:
        items.append(scalar(draw, depth + 1))
    draw.shuffle(items)
    return f"{draw.choice(['struct', '']) if len(items) > 1 else 'struct'}({', '.join(items)})"


def scalars(seed):
    """Return a statement with two scalar sub-queries that read structs."""
    draw, items = random.Random(seed), []
    for name in ("a", "b"):
        call, value, source = draw.choice(["to_json", "typeof"]), scalar(draw), draw.choice(["cust", f"cust {NOW}"])
        inner, outer = draw.choice([(call, ""), ("", call)])
        query = f"(SELECT {inner}({value}) FROM {source} AS d WHERE d.id = o.k)"
        items.append(f"{outer}({query}) AS {name}")
    return f"SELECT o.id, {', '.join(items)} FROM o"


@pytest.fixture(scope="module")
def worlds(spark):
    session, theirs = make_worlds(spark)
    computed = {f"p{number}": sql for number, sql in enumerate(COMPUTED)}
    rows = session._context.catalog.tables["cust"].table.options["rows"]
    columns = ", ".join([ROWS["cust"][0], *(f"{name} AS {sql}" for name, sql in computed.items())])
    session.sql(f"CREATE OR REPLACE TABLE made ({columns}) WITH ('connector' = 'sources:Memory', 'rows' = '{rows}')")
    items = ", ".join(["id, k, name, c", *(f"{sql} AS {name}" for name, sql in computed.items())])
    theirs.sql(f"CREATE OR REPLACE TEMPORARY VIEW made AS SELECT {items} FROM cust")
    return session, theirs


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


@pytest.mark.extended(keep_one_in=3)
@pytest.mark.parametrize("number", range(len(COMPUTED)))
def test_structs_in_computed_columns_have_sparks_names(worlds, number):
    values = f"to_json(c.p{number})", f"typeof(p{number})", f"to_json(struct(c.p{number}, o.id))"
    texts = [
        place.format(value=values[(number + turn) % 3], joins=joins)
        for turn, joins in enumerate(OF_COMPUTED)
        for place in (PLACES[(number + turn) % len(PLACES)], PLACES[(number + turn + 3) % len(PLACES)])
    ]
    wrong, _, refused, equal = compare(worlds, [*texts, f"SELECT o.*, c.p{number} {OF_COMPUTED[0]}"])
    assert (wrong, refused, equal) == ({}, [], len(texts) + 1)


@pytest.mark.parametrize("part", range(scale_up(2)))
def test_structs_of_scalar_subqueries_have_sparks_names(worlds, part):
    texts = list(dict.fromkeys(scalars(SEED + part * AT_ONCE + number) for number in range(AT_ONCE)))
    wrong, _, refused, equal = compare(worlds, texts)
    assert (wrong, refused) == ({}, [])
    assert equal > 0.7 * len(texts)


def test_a_star_of_a_struct_is_refused_in_a_scalar_subquery(worlds):
    session, _ = worlds
    with pytest.raises(PlanError, match="This star is not supported in the value") as raised:
        session.sql("SELECT (SELECT struct(s.*) FROM many AS d WHERE d.id = o.k) FROM o")
    assert raised.value.position.marked == "s.*"
    assert "d.*" in raised.value.hint
