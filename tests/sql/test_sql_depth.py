"""Expressions that are nested deeply, or are long chains, in all places: they have Spark's rows, or a clear error."""

from __future__ import annotations

import pytest
from drawn_world import make_worlds, result_of
from sql_statements import NOW, PERIODS

from lookupcache import LookupCacheError

pytestmark = pytest.mark.spark

SHAPES = {
    "brackets": "({})", "call": "coalesce({}, 'x')", "case": "CASE WHEN {} > 'a' THEN 'b' END", "chain": "{} || 'x'",
    "field": "named_struct('a', {}).a",
}  # fmt: skip
PLACES = {
    "item": f"SELECT {{}} AS j FROM o LEFT JOIN cust {NOW} AS c ON o.k = c.id",
    "on": f"SELECT o.id, c.k FROM o LEFT JOIN cust {NOW} AS c ON o.k = c.id AND {{}} > 'a'",
    "where": f"SELECT o.id FROM o JOIN cust {NOW} AS c ON o.k = c.id WHERE {{}} > 'a'",
    "scalar": "SELECT o.id, (SELECT {} FROM cust AS c WHERE c.id = o.k) AS j FROM o",
    "derived": f"SELECT o.id, c.j FROM o JOIN (SELECT id, {{}} AS j FROM cust AS c) {NOW} AS c ON o.k = c.id",
}
LEVELS = (50, 120)
TOO_DEEP = 3000


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


def nested(shape, levels):
    text = "c.name"
    before, after = SHAPES[shape].split("{}")
    levels = {"chain": 4 * levels, "field": min(levels, 20)}.get(shape, levels)  # Spark's analyzer has a limit of 100.
    return before * levels + text + after * levels


@pytest.mark.extended(keep_one_in=7)
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_deep_expressions_have_sparks_rows(worlds, shape, place, levels):
    session, theirs = worlds
    text = PLACES[place].format(nested(shape, levels))
    ours = result_of(session, text.replace(NOW, PERIODS[0]), None)
    expected = result_of(theirs, text.replace(NOW, ""), None)
    if isinstance(expected, str):  # Spark's parser has a limit too
        assert isinstance(ours, str)
        return
    assert not isinstance(ours, str), ours
    assert ours.dtypes == expected.dtypes
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, expected.collect()))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", ["brackets", "call"])
def test_nesting_has_a_limit_that_an_error_names(worlds, shape, place):
    session, _ = worlds
    with pytest.raises(LookupCacheError, match="nested too deeply") as raised:
        session.sql(PLACES[place].format(nested(shape, TOO_DEEP)).replace(NOW, PERIODS[0]))
    assert raised.value.position is not None
