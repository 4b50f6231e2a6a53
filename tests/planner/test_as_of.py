"""What follows for the table from comparisons of the time with constants."""

import pytest

from lookupcache.errors import PlanError, SchemaError
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.table import LookupTable

LEFT = [LeftColumn("k", "bigint"), LeftColumn("ts", "date"), LeftColumn("n", "bigint"), LeftColumn("i", "int"),
        LeftColumn("s", "struct<myId:int>")]  # fmt: skip
SCHEMA = "id BIGINT, since DATE, until DATE, v BIGINT"


def calc(on, as_of, how="left", **options):
    table = LookupTable.from_function("r", SCHEMA, key=["id"], function=lambda i: [], options=options)
    plan = plan_join(LEFT, table, on=f"k = r.id AND ({on})", how=how, as_of=as_of, select=["k"], analyst=None)
    return [part.text for part in plan.conjuncts if part.stage == "calc"]


PERIOD = {"lookup.as-of.period": "since, until"}
VERSION = {"lookup.as-of.version": "v"}
BOUNDS = {
    "n <= 7": ["r.v <= 7"], "n < 7": ["r.v < 7"], "7 > o.n": ["r.v < 7"], "n = 7": ["r.v <= 7"],
    "n BETWEEN 1 AND 9": ["r.v <= 9"], "n > 7": [], "n <= 7 OR k = 1": [], "n + 1 <= 7": [], "n <> 7": [],
    "i <= 7": [], "n <= 7.5": [],
}  # fmt: skip


@pytest.mark.parametrize("how", ["inner", "left", "anti"])
@pytest.mark.parametrize("on", BOUNDS)
def test_an_upper_bound_of_the_time_is_one_of_the_version(on, how):
    assert calc(on, "n", how, **VERSION) == BOUNDS[on]


def test_bounds_of_the_time_bound_both_ends_of_a_period():
    first, last = "CAST('2024-01-01' AS DATE)", "CAST('2024-06-01' AS DATE)"
    both = [f"r.until > {first} OR r.until IS NULL", f"r.since <= {last} OR r.since IS NULL"]
    assert calc("ts BETWEEN DATE '2024-01-01' AND DATE '2024-06-01'", "o.ts", **PERIOD) == both
    assert calc("ts > DATE '2024-01-01'", "o.ts", **PERIOD) == both[:1]


def test_values_of_other_types_bound_nothing():
    assert calc("i <= 7", "i", **VERSION) == []
    assert calc("ts <= 'today'", "ts", **PERIOD) == []


class Dates:
    """An analyst by whom all expressions are dates."""

    def types(self, expressions):
        return ["date"] * len(expressions)


def planned(as_of, **options):
    table = LookupTable.from_function("r", SCHEMA, key=["id"], function=lambda i: [], options=options)
    return plan_join(LEFT, table, on="k = r.id", as_of=as_of, select=["k"], analyst=Dates())


@pytest.mark.parametrize("word", ["current_date", "(CURRENT_DATE)", "Current_Timestamp"])
def test_a_word_that_is_no_column_is_what_spark_takes_it_for(word):
    assert planned(word, **{"lookup.as-of.version": "since"}).spark_residual == (f"r.`since` <= ({word})",)


BAD = {
    "o.ts AS t": (PERIOD, PlanError, "no single value"), "*": (PERIOD, PlanError, "no column"),
    "tss": (PERIOD, SchemaError, "no column 'tss'"), "since": (PERIOD, PlanError, "a column of the table"),
    "ts": ({"lookup.as-of.period": "since, SINCE"}, PlanError, "the same column, 'since'"),
    "s": (VERSION, PlanError, "is STRUCT<myId:INT> and r.v is BIGINT"),
    "date_add(ts, int(rand()))": (VERSION, PlanError, r"as_of calls rand\(\), whose value changes"),
}  # fmt: skip


@pytest.mark.parametrize("as_of", BAD)
def test_an_invalid_as_of_time_is_refused(as_of):
    options, kind, fact = BAD[as_of]
    with pytest.raises(kind, match=fact):
        planned(as_of, **options)
