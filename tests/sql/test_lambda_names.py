"""Lambda variables in conditions of lookups: any name has Spark's rows, also those that plans give to the sides."""

from __future__ import annotations

import pytest
from drawn_world import make_worlds, result_of
from sql_statements import NOW, PERIODS

from lookupcache import PlanError

pytestmark = pytest.mark.spark

CONDITIONS = {
    "one": "exists(array(c.k, c.id), {l} -> {l} = o.id)",
    "two": "aggregate(array(c.k, o.id), 0, ({l}, {r}) -> {l} + nvl({r}, o.id)) > c.k",
    "nested": "exists(array(c.k), {l} -> exists(array({l}, o.id), {r} -> {r} < o.id + {l}) OR {l} = c.k)",
    "shadowing": "exists(array(c.k), {l} -> exists(array({l} + o.id), {l} -> {l} > 3) OR {l} > o.id)",
    "beside": "exists(array(c.k), {l} -> {l} > 1) AND exists(array(o.s), {l} -> {l}.id = c.id)",
    "table only": "exists(array(c.k, c.id), {l} -> {l} > 1)",
    "left only": "exists(array(o.s), {l} -> {l}.id > 0)",
    "fields": "exists(array(named_struct('l', o.id, 'r', c.k)), {l} -> {l}.l < {l}.r OR {l}.l = c.id)",
    "alias": "exists(array(o.s), {l} -> struct({l}.id AS l, c.k AS r).l = c.id)",
    "case": "exists(array(c.k), {l} -> CASE WHEN {l} > o.id THEN {l} END = c.k)",
    "letters": "exists(array(c.k), {l} -> exists(array(1), a -> a <= {l} AND exists(array(a), b -> b > 0)))",
}
NAMES = {"same": "lr", "other case": "LR", "quoted": ("`l`", "`R`"), "swapped": "rl", "plain": "xy"}
PLACES = (
    "SELECT o.id, c.k FROM o JOIN cust {now} AS c ON o.k = c.id AND ({})",
    "SELECT o.id, c.k FROM o LEFT JOIN cust {now} AS c ON o.k = c.id AND ({})",
    "SELECT o.id, c.k FROM o LEFT JOIN cust {now} AS c ON o.k = c.id WHERE {}",
    "SELECT o.id FROM o LEFT ANTI JOIN cust {now} AS c ON o.k = c.id AND ({})",
)


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


@pytest.mark.extended(keep_one_in=7)
@pytest.mark.parametrize("alias", ["o", "l", "r"])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_variables_of_any_name_have_sparks_rows(worlds, condition, names, alias):
    session, theirs = worlds
    for place in PLACES:
        text = place.format(condition.format(l=names[0], r=names[1]), now=NOW)
        text = text.replace("o.", f"{alias}.").replace("FROM o ", f"FROM o AS {alias} ")
        ours = result_of(session, text.replace(NOW, PERIODS[0]), None)
        expected = result_of(theirs, text.replace(NOW, ""), None)
        if isinstance(expected, str):  # a variable that hides the alias
            assert isinstance(ours, str), text
            continue
        assert not isinstance(ours, str), ours
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, expected.collect())), text


@pytest.mark.parametrize("value", ["struct(l)", "struct(o.id l)", "(o.id, l)"])
def test_a_variable_that_names_a_field_is_refused(worlds, value):
    session, _ = worlds
    condition = f"exists(array(c.k), l -> to_json({value}) > '')"
    text = f"SELECT 1 FROM o JOIN cust {PERIODS[0]} AS c ON o.k = c.id AND {condition}"
    with pytest.raises(PlanError, match="reserved there") as raised:
        session.sql(text)
    assert raised.value.position is not None
