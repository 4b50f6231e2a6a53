"""Plans: pure data that goes through JSON and pickle, and the identity of their caches."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lookupcache
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.expr import Call, Column, Literal, literal
from lookupcache.plan import ConstantKey, FieldKey, LookupPlan, Output, PlacedConjunct, content_of, digest
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable

AGE = Column("right", "age", pa.int32())
ADULT = Call(">", (AGE, Literal(18, pa.int32())))
PLAN = LookupPlan(
    table="c",
    connector="sql",
    source="0" * 32,
    schema=parse_ddl("id BIGINT NOT NULL, name STRING, age INT, `odd name` ARRAY<DOUBLE>"),
    how="left",
    keys=(FieldKey(column="id", sql="l.`customer`"),),
    constants=(ConstantKey(column="name", value=literal("ann", pa.string())),),
    pushed=(ADULT,),
    calc=(Call("is null", (AGE,)),),
    columns=("name", "age"),
    config=LookupConfig(cache="LRU", max_rows=100),
)

TEXTS = st.text(max_size=5)
NAMES = st.sampled_from(PLAN.schema.names)
LITERALS = st.one_of(
    st.builds(literal, st.none() | st.integers(-(2**63), 2**63 - 1), st.just(pa.int64())),
    st.builds(literal, st.floats(), st.just(pa.float64())),
    st.builds(literal, st.binary(max_size=3), st.just(pa.binary())),
    st.builds(literal, st.text(max_size=3), st.just(pa.string())),
    st.builds(literal, st.decimals(1 - 10**36, 10**36 - 1, places=2), st.just(pa.decimal128(38, 2))),
    st.builds(literal, st.dates(), st.just(pa.date32())),
    st.builds(literal, st.datetimes(), st.just(pa.timestamp("us"))),
)
COLUMNS = st.builds(Column, st.sampled_from(["left", "right"]), TEXTS, st.sampled_from([pa.int64(), pa.string()]))
EXPRESSIONS = st.recursive(
    LITERALS | COLUMNS,
    lambda inner: (
        st.builds(Call, st.sampled_from(["=", "and", "+"]), st.tuples(inner, inner))
        | st.builds(Call, st.just("cast"), st.tuples(inner), st.just(pa.decimal128(4, 2)))
    ),
    max_leaves=4,
)


def tuples(strategy):
    return st.lists(strategy, max_size=3).map(tuple)


PLANS = st.builds(
    LookupPlan,
    table=TEXTS,
    connector=TEXTS,
    source=TEXTS,
    schema=st.just(PLAN.schema),
    how=st.sampled_from(["inner", "left", "semi", "anti"]),
    keys=tuples(st.builds(FieldKey, column=NAMES, sql=TEXTS)),
    constants=tuples(st.builds(ConstantKey, column=NAMES, value=LITERALS)),
    never=st.booleans(),
    pre_filter=tuples(TEXTS),
    pushed=tuples(EXPRESSIONS),
    calc=tuples(EXPRESSIONS),
    columns=tuples(NAMES),
    residual=tuples(EXPRESSIONS),
    spark_residual=tuples(TEXTS),
    latest=st.none() | NAMES,
    left_filter=tuples(TEXTS),
    filter_after=tuples(TEXTS),
    left_columns=tuples(TEXTS),
    output=tuples(st.builds(Output, name=TEXTS, sql=TEXTS)),
    conjuncts=tuples(
        st.builds(
            PlacedConjunct,
            text=TEXTS,
            stage=st.sampled_from(["calc", "residual"]),
            evaluator=st.sampled_from(["source", "worker", "spark"]),
        )
    ),
    config=st.builds(
        LookupConfig, cache=st.just("TTL"), expire_after_write=st.floats(0, 1e6), timeout=st.floats(0, 1e6)
    ),
)


@given(PLANS)
def test_a_plan_goes_through_pickle_unchanged(plan):
    data = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.to_json() == data
    assert again.fingerprint == plan.fingerprint


def test_the_json_leaves_defaults_out():
    small = LookupPlan(table="c", connector="sql", source="x", schema=parse_ddl("id INT"), how="inner", keys=())
    assert small.to_json() == {
        "table": "c",
        "connector": "sql",
        "source": "x",
        "schema": "`id` int",
        "how": "inner",
        "keys": [],
    }


DECIDES = {
    "the connector": {"connector": "redis"},
    "its options": {"source": "1" * 32},
    "the schema": {"schema": parse_ddl("id BIGINT NOT NULL, name STRING, age BIGINT")},
    "the key columns": {"keys": (FieldKey(column="age", sql="l.`customer`"),)},
    "the value of a constant": {"constants": (ConstantKey(column="name", value=literal("bob", pa.string())),)},
    "the type of a constant": {"constants": (ConstantKey(column="name", value=literal("ann", pa.binary())),)},
    "the column of a constant": {"constants": (ConstantKey(column="age", value=literal("ann", pa.string())),)},
    "no constant": {"constants": ()},
    "the pushed filter": {"pushed": (Call(">", (AGE, Literal(19, pa.int32()))),)},
    "where a filter is applied": {"pushed": (), "calc": (*PLAN.calc, ADULT)},
    "calc": {"calc": ()},
    "the columns": {"columns": ("name",)},
    "the cache": {"config": LookupConfig(cache="LRU", max_rows=101)},
}
DECIDES_NOT = {
    "the table's alias": {"table": "d"},
    "how": {"how": "inner"},
    "the left side": {"keys": (FieldKey(column="id", sql="l.`other` + 1"),), "left_columns": ("x",)},
    "what comes before the lookup": {"pre_filter": ("l.`x` > 1",), "left_filter": ("l.`x` > 1",)},
    "what comes after": {"residual": (ADULT,), "spark_residual": ("TRUE",), "filter_after": ("TRUE",)},
    "the result": {"output": (Output(name="x", sql="l.`x`"),)},
    "what explain shows": {"conjuncts": (PlacedConjunct(text="x", stage="calc", evaluator="spark"),)},
}


@pytest.mark.parametrize("change", DECIDES.values(), ids=DECIDES)
def test_parts_of_a_plan_that_decide_cached_rows_are_in_identity(change):
    assert replace(PLAN, **change).fingerprint != PLAN.fingerprint


@pytest.mark.parametrize("change", DECIDES_NOT.values(), ids=DECIDES_NOT)
def test_other_parts_of_a_plan_are_not_in_its_identity(change):
    assert replace(PLAN, **change).fingerprint == PLAN.fingerprint


def test_rows_of_another_version_of_lookupcache_are_not_shared(monkeypatch):
    before = content_of(PLAN)
    monkeypatch.setattr(lookupcache, "__version__", "0.0.1", raising=False)
    assert content_of(PLAN) != before


def test_a_fingerprint_is_the_same_in_every_process():
    assert digest({"b": [1, None, "é"], "a": 0.5}) == digest({"a": 0.5, "b": [1, None, "é"]})
    assert digest(["lookupcache"]) == "22e65f116afff9aaf2018d77138dc5db"


class Shop(Connector):
    def lookup(self, request, keys):
        raise NotImplementedError


def test_no_secret_of_the_source_is_in_a_plan():
    options = {"connector": f"{__name__}:Shop", "password": "hunter2", "url": "db://ann:hunter2@h/d"}
    plan = replace(PLAN, source=LookupTable("t", "id BIGINT", options).source)
    assert "hunter2" not in json.dumps(plan.to_json()) + repr(plan)
    other = LookupTable("t", "id BIGINT", options | {"password": "another"})
    assert replace(plan, source=other.source).fingerprint != plan.fingerprint
