"""Queries behind FOR SYSTEM_TIME AS OF, drawn from valid and invalid parts: what Spark refuses is refused too."""

from __future__ import annotations

import random

import pytest
from drawn_world import different, make_worlds, result_of
from scale import SEED, scale_up
from sql_statements import NOW, PERIODS

from lookupcache import LookupCacheError, PlanError

pytestmark = pytest.mark.spark

ITEMS = ("id, k", "id, name AS k", "*", "id, k, name,", "id, nope AS k", "id, upper(name) AS k", "id, s.f AS k",
         "cust.*", "id, label AS k", "id, k, struct(id, c).c AS j")  # fmt: skip
FILTERS = ("", "", "WHERE k > 1", "WHERE name", "WHERE k > 1 ,", "WHERE nope = 1", "WHERE name LIKE",
           "WHERE c > 'a' AND", "WHERE nofunc(k)", "WHERE upper(label) > 'A'", "WHERE (k) IS NOT NULL",
           "WHERE explode(array(k)) > 1", "WHERE k = = 1", "WHERE sum(k) > 1", "WHERE cust.id < 9")  # fmt: skip
ENDS = ("", "", "", "ORDER BY id", "ORDER BY nope", "ORDER BY 9", "ORDER BY 1", "ORDER BY id,", "SORT BY nope",
        "SORT BY k", "CLUSTER BY id", "DISTRIBUTE BY nope")  # fmt: skip
SOURCES = ("cust", "cust", "(SELECT * FROM cust) AS cust", "known AS cust", "(SELECT *, 1 AS one FROM cust) AS cust")
OUTER = f"WITH known AS (SELECT * FROM cust) SELECT o.id, q.k FROM o LEFT JOIN ({{}}) {NOW} AS q ON o.k = q.id"


def drawn(seed):
    draw = random.Random(seed)
    parts = draw.choice(ITEMS), "FROM", draw.choice(SOURCES), draw.choice(FILTERS), draw.choice(ENDS)
    return OUTER.format(" ".join(["SELECT", *(part for part in parts if part)]))


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


@pytest.mark.parametrize("part", range(scale_up(2)))
def test_what_spark_refuses_is_refused(worlds, part):
    session, theirs = worlds
    pairs, wrong = {}, {}
    for seed in range(SEED + part * 40, SEED + (part + 1) * 40):
        text = drawn(seed)
        ours = result_of(session, text.replace(NOW, PERIODS[0]), None)
        expected = result_of(theirs, text.replace(NOW, ""), None)
        if isinstance(expected, str) != isinstance(ours, str):
            wrong[text] = ours, expected
        elif not isinstance(expected, str):
            pairs[text] = ours, expected, None
    assert wrong == {}
    assert len(pairs) > 2
    assert different(dict(enumerate(pairs.values()))) == {}


@pytest.mark.parametrize(("end", "marked"), {
    "WHERE name": "name", "ORDER BY nope": "nope", "WHERE k > 1 AND nofunc(k)": "nofunc(k)", "SORT BY 1, nope": "nope",
}.items())  # fmt: skip
def test_sparks_error_has_its_position(worlds, end, marked):
    session, _ = worlds
    text = OUTER.format(f"SELECT id, k FROM cust {end}").replace(NOW, PERIODS[0])
    with pytest.raises(LookupCacheError) as raised:
        session.sql(text)
    assert marked in raised.value.position.marked


@pytest.mark.parametrize(("items", "why"), {
    "id, s.*": "fields of a struct", "* EXCEPT (s.f)": "fields of a struct",
    "id, to_json(struct(*)) AS k": "a star within",
}.items())  # fmt: skip
def test_a_star_of_a_struct_is_refused(worlds, items, why):
    session, _ = worlds
    with pytest.raises(PlanError, match=f"{why}.*write the"):
        session.sql(OUTER.format(f"SELECT {items} FROM cust").replace("q.k", "q.id").replace(NOW, PERIODS[0]))
