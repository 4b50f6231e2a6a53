"""Conditions in, plans out: golden files, the stages of conjuncts, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lookupcache import expr
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.errors import PlanError, SchemaError
from lookupcache.plan import LookupPlan
from lookupcache.planner import LeftColumn, join_type, plan_join, substitute
from lookupcache.planner.depth import LEVELS
from lookupcache.planner.explain import explain
from lookupcache.planner.settings import Settings
from lookupcache.table import LookupTable

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
TYPES = {
    "l.`age` + 1": "int",
    "l.`age` + 10": "int",
    "upper(l.`name`)": "string",
    "l.`addr`.zip": "int",
    "l.`addr`.city": "string",
}
VALUES = {"current_timezone()": "UTC", "unix_micros(CAST('2020-01-01' AS TIMESTAMP_LTZ))": 1577836800000000}
LEFT = [
    LeftColumn("id", "bigint"), LeftColumn("age", "int"), LeftColumn("name", "string"), LeftColumn("rate", "float"),
    LeftColumn("addr", "struct<city:string,zip:int>"), LeftColumn("at", "timestamp"), LeftColumn("void", "void"),
]  # fmt: skip
RIGHT = (
    "id BIGINT, age INT, label STRING, salary DOUBLE, day DATE, ts TIMESTAMP, price DECIMAL(10,2), tags ARRAY<STRING>"
)


class Known:
    """An analyst that knows a few answers, and fails for all others."""

    def types(self, expressions: Sequence[str]) -> list[str]:
        return [TYPES[sql] for sql in expressions]

    def names(self, expressions: Sequence[str]) -> list[list[str]]:
        return [[f"name of {sql}"] for sql in expressions]

    def star(self, qualifier: str) -> list[str] | None:
        return {"`part`": ["age", "name"]}.get(qualifier)

    def others(self, qualifier: Sequence[str], name: str) -> list[str] | None:
        return ["part", "shop.part"] if tuple(qualifier) == ("d",) else None

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        return [VALUES[sql] for sql in expressions]


class Accepting(Connector):
    """A source that filters by comparisons of age."""

    def lookup(self, request: Any, keys: Any) -> pa.Table:
        raise AssertionError

    def accept(self, filters: Sequence[expr.Expr]) -> Sequence[expr.Expr]:
        return [f for f in filters if {column.name for column in expr.columns_of(f)} == {"age"}]


def table(schema: str = RIGHT, name: str = "c", **options: str) -> LookupTable:
    return LookupTable(name, schema, {"connector": f"{__name__}:Accepting", **options})


def plan(on: Any, how: str = "inner", **rest: Any) -> LookupPlan:
    default = ["o.id"] if how in ("semi", "anti") else ["o.id", "c.label"]
    rest = {"select": default, "analyst": Known()} | rest
    return plan_join(rest.pop("left", LEFT), rest.pop("table", table()), on=on, how=how, **rest)


def stages(found: LookupPlan) -> dict[str, str]:
    return {conjunct.text: f"{conjunct.stage}/{conjunct.evaluator}" for conjunct in found.conjuncts}


@pytest.mark.parametrize(
    ("on", "how", "select", "names"),
    [
        (["age", "id"], "inner", None, "age id name id2 label"),
        (["age", "ID"], "left", ["*"], "age id name id2 label"),
        (["age"], "semi", None, "age id name id2"),
        (["age"], "anti", ["o.*"], "age id name id2"),
        (["age", "id"], "inner", ["* EXCEPT (NAME, id2)"], "age id label"),
        (["age", "id"], "left", ["o.* EXCEPT (name)", "c.* EXCEPT (c.id, age)"], "age id id2 label"),
    ],
)
def test_columns_joined_by_a_list_come_first_and_once(on, how, select, names):
    left = [LeftColumn(name, "bigint") for name in ("id", "name", "id2", "age")]
    right = table("ID BIGINT, age BIGINT, label STRING")
    found = plan(on, how, select=select, left=left, table=right)
    assert [column.name for column in found.output] == names.split()


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_bare_name_after_a_semi_or_anti_join_is_of_the_left_side(how: str) -> None:
    """The table's columns are gone by then; ON sees both."""
    found = plan("o.id = c.id", how, where="id > 1 AND left.id < 9", select=["id", "id + 1 AS next"])
    assert [column.sql for column in found.output] == ["l.`id`", "l.`id` + 1"]
    assert found.left_filter == ("l.`id` > 1", "l.`id` < 9")
    assert plan("o.id = c.id WHERE id > 1", how).left_filter == ("l.`id` > 1",)
    for on in ("id = c.id", "o.id = c.id AND id > 1"):
        with pytest.raises(SchemaError, match="'id' is ambiguous"):
            plan(on, how, select=["id"])
    for more in ({"select": ["label"]}, {"select": ["c.id"]}, {"where": "salary > 1"}, {"where": "c.id > 1"}):
        with pytest.raises(PlanError, match=f"of which the {how} join returns no columns"):
            plan("o.id = c.id", how, **more)


@pytest.mark.parametrize(
    ("how", "select", "sql"),
    [
        ("left", "struct(c.*) AS one", "struct(named_struct('n', r.`n`).`n`, named_struct('u', r.`u`).`u`) AS one"),
        ("left", "hash(*, 2 * c.n)", "hash(l.`k`, l.`s`, r.`n`, r.`u`, 2 * r.`n`)"),
        ("inner", "struct(c.* EXCEPT (u), 1 AS w)", "struct(named_struct('n', r.`n`).`n`, 1 AS w)"),
        ("semi", "hash(*)", "hash(l.`k`, l.`s`)"),
        ("inner", "coalesce(c.* EXCEPT (u), o.* EXCEPT (o.s))", "coalesce(r.`n`, l.`k`)"),
    ],
)
def test_a_star_in_a_call_is_the_columns_of_its_relation(how: str, select: str, sql: str) -> None:
    left = [LeftColumn("k", "bigint"), LeftColumn("s", "struct<a:int>")]
    found = plan("k = n", how, select=[select], left=left, table=table("n BIGINT, u STRUCT<a: INT>"))
    assert found.output[0].sql == sql.removesuffix(" AS one")


def test_a_star_in_where_is_the_columns_of_the_result() -> None:
    left, where = [LeftColumn("k", "bigint"), LeftColumn("v", "int")], "hash(*) > 0 AND k IN (c.*)"
    assert plan("k = n", "semi", select=["k"], left=left, table=table("n BIGINT"), where="hash(*) > 0").left_filter == (
        "hash(l.`k`, l.`v`) > 0",
    )
    found = plan("k = n", "left", select=["k"], left=left, table=table("n BIGINT"), where=where)
    assert found.filter_after == ("hash(l.`k`, l.`v`, r.`n`) > 0", "l.`k` IN (r.`n`)")


@pytest.mark.parametrize("names", [["k", "k"], ["k", "v", "K"]])
def test_a_list_in_on_names_a_column_once(names: list[str]) -> None:
    left = [LeftColumn("k", "bigint"), LeftColumn("v", "int")]
    with pytest.raises(PlanError, match=f"'on' names column '{names[-1]}' twice"):
        plan(names, left=left, table=table("k BIGINT, v INT"))


# ── golden files ─────────────────────────────────────────────────────────────────────────────────────────


def read_golden(path: Path) -> dict[str, str]:
    """Return the parts of a golden file: each begins with a line ``-- name``."""
    parts: dict[str, str] = {}
    for part in path.read_text().split("\n-- ")[0:]:
        name, _, text = part.removeprefix("-- ").partition("\n")
        parts[name.strip()] = text.strip()
    return parts


def planned(parts: dict[str, str]) -> LookupPlan:
    left = [LeftColumn(*line.strip().split(" ", 1)) for line in parts["left"].splitlines()]
    options = dict(line.split(" = ", 1) for line in parts.get("options", "").splitlines())
    on = parts["on"].split(", ") if parts.get("using") == "yes" else parts["on"]
    return plan_join(
        left,
        table(parts["table"].replace("\n", " "), **options),
        on=on,
        how=parts.get("how", "inner"),
        where=parts.get("where"),
        select=parts["select"].splitlines() if "select" in parts else None,
        analyst=Known(),
    )


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    parts = read_golden(path)
    found = planned(parts)
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in found.to_json().items()]
    results = {"explain": _anonymous(explain(found)), "plan": _anonymous("\n".join(lines))}
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN"):
        path.write_text("\n\n".join(f"-- {name}\n{text}" for name, text in (parts | results).items()) + "\n")
    assert read_golden(path) == parts | results
    assert pickle.loads(pickle.dumps(found)) == found


def _anonymous(text: str) -> str:
    """Leave out hashes, which depend on where the connector's class lies."""
    return re.sub(r"[0-9a-f]{32}", "…", text)


def test_there_are_golden_files() -> None:
    assert len(GOLDEN) >= 10


# ── stages ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.parametrize(("on", "expected"), [
    ("o.id = c.id", "field key/source"),
    ("c.id = o.id", "field key/source"),
    ("(o.id) == (c.id)", "field key/source"),
    ("o.age + 1 = c.age", "field key/source"),
    ("current_date() = c.day", "field key/source"),
    ("c.age = 10", "constant key/source"),
    ("10 = c.age", "constant key/source"),
    ("c.age IS NULL", "calc/source"),
    ("c.age > 18", "calc/source"),
    ("c.label LIKE 'a%'", "calc/worker"),
    ("c.salary > -1.5D", "calc/worker"),
    ("c.age = c.id", "calc/worker"),
    ("c.age <=> 10", "calc/source"),
    ("sqrt(c.salary) > 2", "residual/spark"),
    ("c.ts < current_timestamp()", "residual/spark"),
    ("mystery(c.age)", "residual/spark"),
    ("o.age = c.age + 10", "residual/worker"),
    ("o.age < c.age OR c.age = 3", "residual/worker"),
    ("o.age <=> c.age", "residual/worker"),
    ("o.name = c.tags[0]", "residual/spark"),
    ("o.age > 3", "pre-filter/spark"),
    ("1 = 0", "pre-filter/spark"),
    ("NULL", "pre-filter/spark"),
    ("exists(array(1, 2), x -> x > o.age)", "pre-filter/spark"),
])  # fmt: skip
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_each_conjunct_has_its_stage(on: str, expected: str, how: str) -> None:
    TYPES["current_date()"] = "date"
    found = plan(f"o.at = c.ts AND ({on})", how)
    assert list(stages(found).values()) == ["field key/source", expected]
    assert found.fingerprint == pickle.loads(pickle.dumps(found)).fingerprint


@pytest.mark.parametrize(("on", "expected"), [
    ("sqrt(c.salary) > 2 AND c.age + 1 > 0", ["residual/spark", "residual/spark"]),
    ("c.age + 1 > 0 AND sqrt(c.salary) > 2", ["residual/spark", "residual/spark"]),
    ("sqrt(c.salary) > o.age AND c.age > 1 AND c.age * 2 > o.age", ["residual/spark", "calc/source", "residual/spark"]),
    ("sqrt(c.salary) > 2 AND c.salary + 1 > o.age", ["residual/spark", "residual/worker"]),
    ("c.salary > 2 AND c.age + 1 > 0 AND c.age * 2 > o.age", ["calc/worker", "calc/source", "residual/worker"]),
])  # fmt: skip
def test_what_can_fail_is_evaluated_behind_the_conjuncts_of_spark(on: str, expected: list[str]) -> None:
    assert list(stages(plan(f"o.id = c.id AND {on}")).values())[1:] == expected


@pytest.mark.parametrize(("on", "stage"), [
    ("o.age + 1 > 3", "residual/worker"), ("10 / o.age > 1", "residual/spark"), ("-o.age < 1", "residual/spark"),
    ("CAST(o.name AS INT) > 0", "residual/spark"), ("o.name > 5", "residual/spark"),
    ("5 IN (o.name)", "residual/spark"), ("date(o.name) = '2020-01-01'", "residual/spark"),
    ("int(o.rate) > 1", "residual/spark"),
    ("o.age / 2 > 1", "pre-filter/spark"), ("o.rate * 2 > 1", "pre-filter/spark"), ("o.age > -1", "pre-filter/spark"),
    ("upper(o.name) = '5'", "pre-filter/spark"), ("CAST(o.at AS DATE) > '2020-01-01'", "pre-filter/spark"),
    ("o.at > current_timestamp() - INTERVAL 1 DAY", "pre-filter/spark"), ("1 / 0 > 1", "pre-filter/spark"),
])  # fmt: skip
def test_what_may_fail_is_evaluated_for_matches_alone_where_sparks_join_does_so(on: str, stage: str) -> None:
    for how in ("inner", "left", "semi", "anti"):
        expected = stage if how in ("left", "anti") else "pre-filter/spark"
        assert list(stages(plan(f"o.id = c.id AND {on}", how)).values()) == ["field key/source", expected]
    found = plan(f"o.id = c.id AND {on}", "left", settings=settings(ansi=False))
    assert list(stages(found).values())[1] == "pre-filter/spark"


def test_spark_evaluates_what_reads_the_table_alone_before_what_can_fail() -> None:
    found = plan("o.id = c.id AND c.age * 2 > o.age AND sqrt(c.salary) > o.age AND c.age + 1 > 0 AND sqrt(c.age) > 2")
    table = ("r.`age` + 1 > 0", "sqrt(r.`age`) > 2")
    assert found.spark_residual == (*table, "r.`age` * 2 > l.`age`", "sqrt(r.`salary`) > l.`age`")


def test_a_constant_with_a_collation_hides_no_other_constant() -> None:
    TYPES["upper('x') COLLATE UTF8_LCASE"] = "string collate UTF8_LCASE"
    found = plan("o.id = c.id AND c.label = upper('x') COLLATE UTF8_LCASE AND c.age = 7")
    assert stages(found)["c.age = 7"] == "constant key/source"
    assert [key.column for key in found.constants] == ["age"]


def test_the_first_expression_for_a_column_is_its_key() -> None:
    found = plan("o.id = c.id AND o.age = c.id AND c.id = o.id AND c.id = 7")
    assert list(stages(found).values()) == ["field key/source", "residual/worker", "field key/source", "calc/worker"]
    assert [key.sql for key in found.keys] == ["l.`id`"]


def test_a_second_constant_filters() -> None:
    found = plan("o.id = c.id AND c.age = 10 AND c.age = 11 AND c.age = 10")
    assert [c.stage for c in found.conjuncts] == ["field key", "constant key", "calc", "constant key"]


def test_constants_alone_give_a_key() -> None:
    found = plan("c.age = 10 AND c.label = 'it is' AND c.salary = 3")
    assert [key.sql for key in found.keys] == ["CAST(10 AS INT)"]
    assert [constant.column for constant in found.constants] == ["label", "salary"]


@pytest.mark.parametrize(("on", "value"), [
    ("c.age = 10", 10), ("c.age = 10.0", 10), ("c.id = 3000000000", 3000000000), ("c.salary = 10", 10.0),
    ("c.salary = 0.1", 0.1), ("c.price = 5", "5.00"), ("c.price = 1.5", "1.50"), ("c.label = 'x'", "x"),
    ("c.day = '2020-02-29'", "2020-02-29"), ("c.day = DATE'2020-02-29'", "2020-02-29"),
    ("c.ts = '2020-01-01'", 1577836800000000),
])  # fmt: skip
def test_a_constant_has_the_columns_type(on: str, value: object) -> None:
    [constant] = plan(f"o.at = c.ts AND {on}" if "c.ts" not in on else f"o.id = c.id AND {on}").constants
    assert constant.value.value == value


@pytest.mark.parametrize("on", ["c.age = NULL", "c.age = 10.5", "c.age = 3000000000", "c.price = 1.555"])
def test_a_constant_without_counterpart_matches_nothing(on: str) -> None:
    assert plan(f"o.id = c.id AND {on}", "left").never


def test_a_key_without_type_matches_nothing() -> None:
    assert plan("o.void = c.id").keys[0].sql == "CAST(l.`void` AS BIGINT)"


def test_only_what_is_needed_is_cached() -> None:
    found = plan("o.id = c.id AND c.salary > 10 AND c.age < o.age", select=["o.name", "c.price * 2 AS twice"])
    assert found.columns == ("age", "price")
    assert found.left_columns == ("age", "name")
    assert plan("o.id = c.id", "semi").columns == ()


def test_where_filters_the_left_side_first_and_the_rest_after() -> None:
    found = plan("o.id = c.id", "left", where="o.age > 1 AND c.salary > 2 AND rand() < 0.5")
    assert found.left_filter == ("l.`age` > 1",)
    assert found.filter_after == ("r.`salary` > 2", "rand() < 0.5")
    assert found.columns == ("label", "salary")


def test_where_joins_the_condition_of_an_inner_join() -> None:
    assert stages(plan("o.id = c.id WHERE c.age > 2 AND o.age > 1", where="c.label = 'x'")) == {
        "o.id = c.id": "field key/source",
        "c.age > 2": "calc/source",
        "o.age > 1": "pre-filter/spark",
        "c.label = 'x'": "constant key/source",
    }


def test_names_join_by_name_and_stand_once_in_the_result() -> None:
    found = plan(["ID"], "left", select=None, left=LEFT[:1], table=table("id BIGINT, x INT"))
    assert [(o.name, o.sql) for o in found.output] == [("id", "l.`id`"), ("x", "r.`x`")]
    assert stages(found) == {"id = c.id": "field key/source"}


@pytest.mark.parametrize("left", ["timestamp_ntz", "date", "timestamp"])
def test_moments_are_keys(left: str) -> None:
    found = plan("o.m = c.ts", left=[LeftColumn("id", "bigint"), LeftColumn("m", left)])
    assert found.keys[0].sql == ("l.`m`" if left == "timestamp" else "CAST(l.`m` AS TIMESTAMP_LTZ)")


def test_joins_with_other_constants_or_filters_share_no_cache() -> None:
    conditions = ["o.id = c.id", "o.id = c.id AND c.age = 1", "o.id = c.id AND c.age = 2", "o.id = c.id AND c.age > 1",
                  "o.id = c.id AND c.salary > 1", "o.id = c.id AND c.salary > 2"]  # fmt: skip
    assert len({plan(on).fingerprint for on in conditions}) == len(conditions)
    assert plan("o.id = c.id").fingerprint == plan("o.age = c.id AND o.age > 3", "left").fingerprint


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("text", "sql"), [
    ("o.id", "l.`id`"), ("C.LABEL", "r.`label`"), ("label", "r.`label`"), ("name", "l.`name`"),
    ("addr.zip", "l.`addr`.zip"),
    ("o.addr.zip", "l.`addr`.zip"), ("db.o.addr.zip", "l.`addr`.zip"), ("`o`.`name`", "l.`name`"), ("AT", "l.`at`"),
    ("exists(c.tags, x -> x = o.name AND name = x)", "exists(r.`tags`, x -> x = l.`name` AND l.`name` = x)"),
    ("c.label = 'c.label'", "r.`label` = 'c.label'"), ("current_date", "current_date"), ("c.tags[0]", "r.`tags`[0]"),
    ("transform(c.tags, (id, age) -> id)", "transform(r.`tags`, (id, age) -> id)"),
    ("x.y.z.addr.city", "l.`addr`.city"),
])  # fmt: skip
def test_names_find_their_column(text: str, sql: str) -> None:
    found = plan("o.id = c.id", select=[f"{text} AS v"])
    assert found.output[0].sql == sql


@pytest.mark.parametrize(("case_sensitive", "v"), [(True, "l.`v`"), (False, "v")])
def test_a_name_is_a_lambda_variables_by_the_sessions_rule(case_sensitive: bool, v: str) -> None:
    left, select = [*LEFT, LeftColumn("v", "string")], ["exists(c.tags, V -> V > v AND V > 'a') AS found"]
    found = plan("o.id = c.id", left=left, select=select, settings=settings(case=case_sensitive))
    assert found.output[0].sql == f"exists(r.`tags`, V -> V > {v} AND V > 'a')"


def test_a_struct_named_as_the_table_yields_to_it() -> None:
    left = [LeftColumn("c", "struct<id:int,only:int>"), LeftColumn("id", "bigint")]
    found = plan("o.id = c.id AND c.only = 3", left=left)
    assert found.pre_filter == ("l.`c`.only = 3",)
    assert found.keys[0].column == "id"


def test_a_column_named_session_has_fields() -> None:
    left = [LeftColumn("session", "struct<id:int,w:int>"), LeftColumn("id", "bigint"), LeftColumn("w", "int")]
    assert plan("o.id = c.id AND session.w = 3", left=left).pre_filter == ("l.`session`.w = 3",)


def test_case_distinguishes_names_if_the_session_says_so() -> None:
    left = [LeftColumn("ID", "bigint"), LeftColumn("id", "int")]
    assert plan("o.ID = c.id", left=left, settings=settings(case=True)).keys[0].sql == "l.`ID`"
    with pytest.raises(SchemaError, match="2 columns named 'ID'"):
        plan("o.ID = c.id", left=left)


def test_a_column_that_stands_twice_hurts_only_where_it_is_used() -> None:
    left = [LeftColumn("id", "bigint"), LeftColumn("x", "int"), LeftColumn("x", "int")]
    assert plan("o.id = c.id", left=left).left_columns == ("id",)
    with pytest.raises(SchemaError, match="2 columns named 'x'"):
        plan("o.id = c.id", left=left, select=None)


def test_substitute_leaves_strings_and_fields_alone() -> None:
    sql = "l.`a``b`.`l` = r.`x` AND 'l.`a`' <> s.l.`x`"
    assert substitute(sql, lambda side, name: f"<{side}:{name}>") == "<l:a`b>.`l` = <r:x> AND 'l.`a`' <> s.l.`x`"


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("on", "rest", "message"), [
    ("age = c.age", {}, "Column 'age' is ambiguous: the left side has 'age', and table 'c' has 'age'"),
    ("o.idd = c.id", {}, "Did you mean 'id'"),
    ("o.id = c.idd", {}, "Table 'c' has no column 'idd'"),
    ("o.id = salry", {}, "There is no column 'salry'"),
    ("o.name = c.id", {}, "o.name is STRING and c.id is BIGINT.*\\n\\nHint: .*CAST\\(o.name AS BIGINT\\) = c.id"),
    ("o.id = c.salary", {}, "o.id is BIGINT and c.salary is DOUBLE"),
    ("o.id = c.id AND c.age = '10'", {}, "'10' is STRING and c.age is INT"),
    ("o.id = c.id AND c.id = 1.5D", {}, "1.5D is DOUBLE and c.id is BIGINT"),
    ("o.age < c.age", {}, "has no key for table 'c'"),
    ("o.tags = c.tags", {"left": [*LEFT, LeftColumn("tags", "array<string>")]}, "has no key for table"),
    ("o.id = c.id AND hash(array(case, c.age)) > 1", {}, "a column named case or end in backticks"),
    ("", {}, "'on' is empty"),
    ("  ", {}, "'on' is empty"),
    ("o.id = c.id", {"where": ""}, "'where' is empty"),
    ("o.id = c.id", {"where": " -- c.age = 1"}, "'where' is empty"),
    ("o.id = c.id WHERE ", {}, "'where' is empty"),
    ("o.id = c.id WHERE /* c.age = 1 */", {"where": "c.age = 1"}, "'where' is empty"),
    ([], {}, "empty list"),
    (["idd"], {}, "no column 'idd'"),
    (["salary"], {}, "left side has no column 'salary'"),
    (["name"], {}, "Table 'c' has no column 'name'"),
    ("o.id = c.id AND c.age > session.age", {}, "'session.age' is a session variable"),
    ("System.Session.id = c.id", {}, "'System.Session.id' is a session variable"),
    ("o.id = c.id AND rand() > 0.5", {}, "rand\\(\\), whose value changes"),
    ("o.id = c.id AND `Rand`() > 0.5", {}, "rand\\(\\), whose value changes"),
    ("o.id = c.id AND c.label = uuid()", {}, "uuid\\(\\)"),
    ("o.id = (SELECT max(id) FROM x)", {}, "sub-query"),
    ("o.id IN (SELECT id FROM x)", {}, "sub-query"),
    ("max(o.id) = c.id", {}, "aggregate or window"),
    ("row_number() OVER (ORDER BY o.id) = c.id", {}, "aggregate or window"),
    ("o.id = = c.id", {}, "can be read"),
    ("o.id = c.id", {"how": "right"}, "cannot be a right outer join, which how='right' asks for"),
    ("o.id = c.id", {"how": "full_outer"}, "cannot be a full outer join"),
    ("o.id = c.id", {"how": "outer"}, "full outer join, which how='outer' asks for.*\\n\\nHint: .*how='left'"),
    ("o.id = c.id", {"matches": "frist"}, "Did you mean 'first'"),
    ("o.id = c.id", {"matches": "first"}, "for left joins.*\\n\\nHint: Write how='left'"),
    ("o.id = c.id", {"how": "cross"}, "DataFrame.crossJoin"),
    ("o.id = c.id", {"how": "innr"}, "Did you mean 'inner'"),
    ("o.id = c.id", {"select": ["o.id", "c.id"]}, "two columns named 'id'.*\\n\\nHint: .*c.id AS c_id"),
    ("o.id = c.id", {"select": ["c.id", "o.id"]}, "two columns named 'id'.*\\n\\nHint: .*c.id AS c_id"),
    ("o.id = c.id", {"select": ["o.id", "left.id"]}, "two columns named 'id'.*\\n\\nHint: .*left.id AS left_id"),
    ("o.id = c.id", {"select": []}, "selects nothing"),
    ("o.id = c.id", {"select": "id"}, "Give a list"),
    ("o.id = c.id", {"select": 1}, "Give a list"),
    ("o.id = c.id", {"select": ["o.id", 1]}, "'select' has 1, which is no text"),
    ([1], {}, "'on' has 1, which is no name"),
    ("o.id = c.id", {"select": None}, "two columns named 'id'"),
    ("o.id = abs(c.id) AND c.age > 1", {}, "'o.id = abs.c.id.' is no key .*not by an expression.*\n\nHint: Add an"),
    ("o.id = c.id", {"select": ["o.id AS `a b`", "c.age AS `a b`"]}, "Hint: .*c.age AS `c_a b`"),
    ("o.id = c.id", {"select": ["o.id + 1 AS z", "z * 2 AS y"]}, "'z', the name that another .*Hint: .*, o.id . 1, or"),
    ("o.id = c.id", {"select": ["c.label AS `a b`", "o.id", "upper(`A b`)"]}, "reads 'a b', the name that another"),
    ("o.id = c.id", {"select": ["o.id", "(SELECT to_json(struct(*)) FROM (SELECT c.age, 1) q) AS j"]}, "a sub-query"),
    ("o.id = c.id", {"select": ["o.id IN (SELECT * FROM range(2)) AS b"]}, "'o.id IN .SELECT [*] FROM.* a sub-query"),
    ("o.id = c.id", {"where": "EXISTS (SELECT *, 1 FROM range(2))"}, "contains a sub-query"),
    ("o.id = d.none", {}, "no column 'none'.*'d' is not the table 'c', and so means the left side"),
    ("o.id = c.id", {"how": "semi", "select": ["c.label"]}, "of which the semi join returns no columns"),
    ("o.id = c.id", {"how": "anti", "select": ["c.*"]}, "of which the anti join returns no columns"),
    ("o.id = c.id", {"how": "semi", "where": "c.age > 1"}, "Move it to the join's ON"),
    ("o.id = c.id", {"select": ["addr.*"]}, "Name the fields"),
    ("o.id = c.id", {"select": ["o.addr.*"]}, "'o.addr.[*]' would split a struct"),
    ("o.id = c.id", {"select": ["struct(left.addr.*) AS s"]}, "Name the fields"),
    ("o.id = c.id", {"select": ["o.* EXCEPT (addr.zip)"]}, "EXCEPT .addr.zip. does not name one column"),
    ("o.id = c.id", {"select": ["* EXCEPT (id)"]}, "EXCEPT .id. does not name one column.*\n\nHint: Qualify"),
    ("o.id = c.id AND hash(*) > 0", {}, "is no column"),
    ("o.id = c.id", {"select": ["(c.*, 1)"]}, "'1' has no name beside the star"),
    ("o.id = c.id", {"select": ["hash(c.* EXCEPT (id, age, label, salary, day, ts, price, tags))"]}, "Leave it out"),
    ("IDENTIFIER('o.id') = c.id", {}, "calls IDENTIFIER.*\n\nHint: Write the name"),
    ("o.id = c.id", {"select": ["upper(identifier('c.' || 'label'))"]}, "calls IDENTIFIER"),
    ("o.id = c.id AND struct(c.*) IS NULL", {}, "is no column"),
    ("o.id = c.id", {"how": "semi", "where": "hash(c.*) > 0"}, "of which the semi join returns no columns"),
    ("o.id = c.id AND exists(c.tags, lookup_row -> lookup_row = 'x')", {}, "variable 'lookup_row'.*another name"),
    ("o.id = c.id AND aggregate(c.tags, '', (x, `LOOKUP_r0`) -> x) = ''", {}, "variable 'LOOKUP_r0'"),
    ("o.id = c.id AND count(*) > 1", {}, "aggregate or window"),
    ("o.id = c.id AND c.age c.id", {}, r"can be read: Invalid expression / Unexpected token. Line 1, Col: 8.\n\nHint"),
])  # fmt: skip
def test_a_join_that_cannot_be_planned_names_the_reason(on: Any, rest: dict[str, Any], message: str) -> None:
    with pytest.raises((PlanError, SchemaError), match=f"(?s){message}"):
        plan(on, **rest)


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Set Python's own limit: libraries that other tests use raise it for the process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.usefixtures("usual_recursion_limit")
@pytest.mark.parametrize("deep", [
    "({})", "NOT {}", "- {}", "abs({})", "CASE WHEN c.age > 0 THEN {} END", "coalesce(c.age, {})",
])  # fmt: skip
def test_nesting_has_a_limit_that_the_error_names(deep: str) -> None:
    def nested(levels: int) -> str:
        text = "c.age = 1" if "NOT" in deep else "c.age"
        for _ in range(levels):
            text = deep.format(text)
        return text if "NOT" in deep else f"{text} = 1"

    found = plan(f"o.id = c.id AND {nested(LEVELS)}")
    assert pickle.loads(pickle.dumps(found)) == found
    assert sys.getrecursionlimit() == 1000
    too_deep = nested(6 * LEVELS)
    for refused in ({"on": f"o.id = c.id AND {too_deep}"}, {"on": "o.id = c.id", "select": ["o.id", too_deep]}):
        with pytest.raises(PlanError, match=rf"nested too deeply to be planned.*about {LEVELS} times.*\n\nHint: "):
            plan(**refused)


@pytest.mark.extended
@pytest.mark.usefixtures("usual_recursion_limit")
@pytest.mark.parametrize(("chain", "stage"), [
    (" OR ".join(f"c.age = {number}" for number in range(500)), "calc, source"),
    (" OR ".join(f"c.age = {number} AND o.age <> {number}" for number in range(400)), "residual, worker"),
    ("NOT (" + " AND ".join(f"c.age <> {number}" for number in range(500)) + ")", "calc, source"),
    ("c.age > " + " + ".join(["o.age"] * 500), "residual, spark"),
    ("c.age IN (" + "1, " * 3000 + "1)", "residual, spark"),
    ("c.label <> " + " || ".join(["o.name"] * 500), "residual, spark"),
], ids=["OR", "OR AND", "NOT AND", "+", "IN", "||"])  # fmt: skip
def test_a_long_chain_is_not_deep(chain: str, stage: str) -> None:
    found = plan(f"o.id = c.id AND ({chain})")
    assert pickle.loads(pickle.dumps(found)) == found
    assert [f"{part.stage}, {part.evaluator}" for part in found.conjuncts[1:]] == [stage]


@pytest.mark.parametrize("on", ["o.id <=> c.id", "(c.id <=> o.id) AND c.age > 1", "o.id IS NOT DISTINCT FROM c.id"])
def test_a_null_safe_equality_alone_is_no_key(on: str) -> None:
    with pytest.raises(PlanError, match=r"is true for two nulls as well.*\n\nHint: Write (o|c).id = (o|c).id, if null"):
        plan(on)
    assert plan(f"{on} AND o.age = c.age").keys[0].column == "age"


@pytest.mark.parametrize(("word", "how"), [
    ("INNER", "inner"), ("left", "left"), ("left_outer", "left"), ("leftouter", "left"), ("left semi", "semi"),
    ("leftsemi", "semi"), ("semi", "semi"), ("left_anti", "anti"), ("leftanti", "anti"), ("anti", "anti"),
])  # fmt: skip
def test_sparks_words_for_joins(word: str, how: str) -> None:
    assert join_type(word) == how


# ── errors, age, retries on a miss ───────────────────────────────────────────────────────────────────────


LETTERS = {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": "letters"}
MARKED = {"lookup.on-error": "null", "lookup.error-column": "problem", "lookup.age-column": "age"}


def test_retries_on_a_miss_keep_filters_from_the_source() -> None:
    on = "o.id = c.id AND c.age > 18"
    assert stages(plan(on))["c.age > 18"] == "calc/source"
    found = plan(on, table=table(**{"lookup.retry.on-miss.max-attempts": "2"}))
    assert stages(found)["c.age > 18"] == "calc/worker"
    assert (len(found.pushed), len(found.calc)) == (0, 1)
    assert "retries on a miss    2, every 1 s; no filter is offered to the source" in explain(found)


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_dead_letter_contains_the_full_left_row(how: str) -> None:
    assert plan("o.id = c.id", how).left_columns == ("id",)
    assert plan("o.id = c.id", how, table=table(**LETTERS)).left_columns == tuple(column.name for column in LEFT)


@pytest.mark.parametrize(("name", "fact"), [
    ("ID", "the left side has a column 'id' already"),
    ("Lookup_Error", "dead letters have a column 'lookup_error' of their own"),
    ("lookup_table", "'lookup_table'"),
    ("lookup_failed_at", "'lookup_failed_at'"),
])  # fmt: skip
def test_a_left_row_that_no_dead_letter_can_hold_is_refused(name: str, fact: str) -> None:
    left = [LeftColumn("age", "int"), LeftColumn("id", "bigint"), LeftColumn(name, "int")]
    assert plan("o.age = c.id", left=left, select=["o.age"]).left_columns == ("age",)
    with pytest.raises(PlanError, match=f"Left column '{name}'.*{fact}(?s:.*)withColumnRenamed"):
        plan("o.age = c.id", left=left, select=["o.age"], table=table(**LETTERS))


def test_case_sensitive_sessions_keep_dead_letter_columns_apart() -> None:
    left = [LeftColumn("ID", "bigint"), LeftColumn("id", "int"), LeftColumn("LOOKUP_TABLE", "int")]
    found = plan("o.ID = c.id", left=left, select=["c.label"], table=table(**LETTERS), settings=settings(case=True))
    assert found.left_columns == ("ID", "id", "LOOKUP_TABLE")


def test_age_and_error_are_no_part_of_the_select_list() -> None:
    found = plan("o.id = c.id", "left", table=table(**MARKED))
    assert [output.name for output in found.output] == ["id", "label"]
    assert found.left_columns == ("id",)
    assert re.search(r"Result\n.*\n.*\n  age +age of the answer.*\n  problem +error of the lookup", explain(found))


@pytest.mark.parametrize(("select", "options", "named"), [
    (["o.age"], MARKED, ["'age'", "o.age", "'lookup.age-column'"]),
    (["c.label AS Problem"], MARKED, ["'Problem'", "c.label", "'lookup.error-column'"]),
    (None, MARKED, ["'age'", "'lookup.age-column'"]),
    (["o.id"], MARKED | {"lookup.age-column": "PROBLEM"}, ["'lookup.age-column'", "'lookup.error-column'"]),
])  # fmt: skip
def test_names_for_age_and_error_that_are_taken_are_refused(
    select: list[str] | None, options: dict[str, str], named: list[str]
) -> None:
    how = "semi" if select is None else "inner"
    with pytest.raises(PlanError, match="two columns named") as caught:
        plan("o.id = c.id", how, select=select, table=table(**options))
    assert [word for word in named if word not in str(caught.value)] == []


def test_case_sensitive_sessions_keep_the_age_column_apart() -> None:
    found = plan("o.id = c.id", select=["o.id AS AGE"], table=table(**MARKED), settings=settings(case=True))
    assert [output.name for output in found.output] == ["AGE"]


def test_explain_shows_no_secret() -> None:
    found = plan("o.id = c.id", table=table(password="hush", url="x://ann:hush@db"))
    assert "hush" not in explain(found) + str(found) + json.dumps(found.to_json())


def test_no_secret_of_where_dead_letters_go_is_in_a_plan() -> None:
    path = "s3://key:hush@bucket/letters?token=hush"
    table_ = table(**LETTERS | {"lookup.dead-letter.path": path})
    found = plan("o.id = c.id", table=table_)
    shown = [explain(found), repr(found), repr(table_), repr(table_.config), json.dumps(found.to_json())]
    assert [text for text in shown if "hush" in text] == []
    assert "dead letter, to s3://key:***@bucket/letters" in explain(found)
    assert table_.config.dead_letter_path == path


SHOWN: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"cache": "TTL", "max_bytes": "64 mb", "expire_after_write": "10 min", "missing_key": False, "max_retries": 0},
        ["strategy TTL", "bytes, at most 67,108,864", "expires after write 10 min", "known misses forgotten",
         "retries none"],
    ),
    ({"cache": "LRU", "expire_after_access": "5 s", "jitter": "0.25"},
     ["bytes, at most 268,435,456", "expires after access 5 s", "jitter up to 25 % off each age limit",
      "known misses kept"]),
    ({"cache": "LRU", "scope": "worker"}, ["rows, at most 10,000", "scope worker: each Python worker has its own"]),
    ({"cache": "LRU", "scope": "host", "cache_path": "/c"},
     ["scope host: all workers of a machine share one, in /c"]),
    ({"cache": "LRU", "scope": "auto"},
     ["scope host: all workers of a machine share one, in Spark's local directory "
      "(auto; each its own where that cannot be used)"]),
    ({"cache": "TTL", "expire_after_write": "1 h", "missing_key_expire_after_write": "90 s"},
     ["known misses kept for 90 s"]),
    ({"cache": "TTL", "expire_after_write": "1 h", "refresh_after_write": "5 min", "stale_if_error": "1 day"},
     ["refreshed after 5 min, old rows served meanwhile", "stale, at most 1 d, where the source fails"]),
    ({"cache": "LRU", "store": "redis://ann@h:1/0", "store_name": "geo", "store_expire_after_write": "1 d"},
     ["store redis://ann@h:1/0, as geo, for 1 d: shared by all hosts"]),
    ({"cache": "ALL", "reload_interval": "1 h", "reload_mode": "fixed-rate", "reload_allow_empty": True},
     ["reloaded every 1 h, from the start of a load", "empty reload allowed"]),
    ({"cache": "ALL", "reload_interval": "90 s"}, ["reloaded every 90 s, from the end of a load"]),
    ({"cache": "ALL", "reload_at": "03:00Z"}, ["reloaded at 03:00:00+00:00"]),
    ({"async_": True}, ["async up to 100 calls at a time, ordered"]),
    ({"async_": True, "async_capacity": 7, "output_mode": "allow-unordered"},
     ["async up to 7 calls at a time, allow-unordered"]),
    ({"async_": False}, ["async no, one call after the other"]),
    ({"async_capacity": 7}, ["async as the connector has it, up to 7 calls at a time, ordered"]),
    ({"batch_max_size": 1000, "batch_max_delay": "20 ms"}, ["keys in a call at most 1,000", "waits to fill 20 ms"]),
    ({"rate_limit": "2.5"}, ["rate limit 2.5 calls a second, per executor"]),
    ({"retry_on": "OSError, KeyError", "retry_strategy": "fixed-delay"},
     ["retried errors OSError, KeyError", "retries 3, every 100 ms"]),
    ({"on_miss_max_attempts": 3, "on_miss_delay": "2 s"},
     ["retries on a miss 3, every 2 s; no filter is offered to the source"]),
    ({"breaker_failures": 5, "breaker_delay": "1 min"}, ["breaker after 5 failures, for 1 min"]),
    ({"on_error": "null", "error_column": "problem"}, ["on error null, and the error in problem"]),
    ({"on_error": "dead-letter", "dead_letter_path": "/letters"}, ["on error dead letter, to /letters"]),
    ({"age_column": "years"}, ["years age of the answer, in seconds"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "shown"), SHOWN)
def test_explain_shows_what_is_set(options: dict[str, Any], shown: list[str]) -> None:
    config = LookupConfig(**options)
    found = LookupPlan(
        table="c", connector="sql", source="", schema=table().schema, how="inner", keys=(), config=config
    )
    lines = [re.sub(" +", " ", line).strip() for line in explain(found).splitlines()]
    assert [line for line in shown if line not in lines] == []


def test_explain_says_nothing_of_what_is_not_set() -> None:
    found = LookupPlan(table="c", connector="sql", source="", schema=table().schema, how="inner", keys=())
    names = [re.split("  +", line)[1] for line in explain(found).splitlines() if line.startswith("  ")]
    assert names == ["cached columns", "strategy", "identity", "timeout", "retries"]


ASKED_BY_KEY = [
    {"connector": "redis", "url": "redis://h", "key": "w:{origin}:{hour}"},
    {"connector": "http", "url": "http://h/{origin}/{hour}"},
    {"connector": "http", "url": "http://h/{origin}", "body": "{keys}", "key": "hour"},
]


@pytest.mark.parametrize("options", ASKED_BY_KEY, ids=["redis", "GET", "POST"])
def test_a_source_that_needs_its_full_key_refuses_a_part_of_it(options):
    table = LookupTable("w", "origin STRING, hour INT, temp DOUBLE", options)
    left = [LeftColumn("o", "string"), LeftColumn("h", "int")]
    with pytest.raises(PlanError, match=r"'w'.*the join has no 'hour'"):
        plan_join(left, table, on="o = w.origin", analyst=None)
    for on in ("o = w.origin AND h = w.hour", "h = w.hour AND w.origin = 'JFK'"):
        assert plan_join(left, table, on=on, analyst=None).keys


def test_a_full_cache_is_looked_up_by_any_part_of_the_key():
    options = {**ASKED_BY_KEY[0], "lookup.cache": "ALL"}
    table = LookupTable("w", "origin STRING, hour INT, temp DOUBLE", options)
    assert plan_join([LeftColumn("o", "string")], table, on="o = w.origin", analyst=None).key_columns == ("origin",)


def test_only_a_left_join_bounds_its_matches() -> None:
    assert plan("o.id = c.id", "left", matches="first").matches == "first"
    with pytest.raises(PlanError, match="matches='single'"):
        plan("o.id = c.id", "inner", matches="single")


def test_an_error_names_its_conjunct() -> None:
    with pytest.raises(PlanError) as raised:
        plan("o.id = c.id AND o.id = c.label")
    assert raised.value.about == "o.id = c.label"


# ── what comes to an equality ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("on", [
    "NOT (o.id <> c.id)", "(o.id = c.id) IS TRUE", "o.id = c.id IS TRUE", "(o.id = c.id) = TRUE", "c.id IN (o.id)",
    "c.id BETWEEN o.id AND o.id", "o.id BETWEEN c.id AND c.id", "NOT NOT (o.id = c.id)", "! (o.id != c.id)",
    "(o.id <> c.id) = FALSE", "(c.id = o.id) <=> TRUE",
])  # fmt: skip
def test_a_condition_equivalent_to_an_equality_makes_a_key(on: str) -> None:
    found = plan(on)
    assert (found.key_columns, found.keys[0].sql, stages(found)) == (("id",), "l.`id`", {on: "field key/source"})


@pytest.mark.parametrize(("on", "stage"), [
    ("c.age IN ('1')", "residual/spark"), ("c.age IN (o.name)", "residual/spark"), ("c.age IN (3)", "calc/worker"),
    ("NOT (c.age <> o.name)", "residual/spark"), ("c.age BETWEEN 3 AND 3", "calc/worker"),
])  # fmt: skip
def test_another_way_to_write_an_equality_is_refused_nothing(on: str, stage: str) -> None:
    """As an equality, ``c.age = '1'`` would be an error that asks for a cast."""
    assert stages(plan(f"o.id = c.id AND {on}"))[on] in (stage, "calc/source")


# ── names and settings ───────────────────────────────────────────────────────────────────────────────────


def test_an_expression_without_a_name_gets_sparks() -> None:
    found = plan("o.id = c.id", select=["o.ID", "O.Age + c.`Age`", "upper(label) AS u", "1"])
    assert [output.name for output in found.output] == ["ID", "name of l.`Age` + r.`Age`", "u", "name of 1"]
    assert found.output[1].sql == "l.`age` + r.`age`"


def settings(**on: bool) -> Settings:
    names = {
        "escaped": "spark.sql.parser.escapedStringLiterals", "quoted": "spark.sql.ansi.doubleQuotedIdentifiers",
        "reserved": "spark.sql.ansi.enforceReservedKeywords", "ansi": "spark.sql.ansi.enabled",
        "case": "spark.sql.caseSensitive",
        "exponents": "spark.sql.legacy.exponentLiteralAsDecimal.enabled",
        "lengths": "spark.sql.preserveCharVarcharTypeInfo",
    }  # fmt: skip
    return Settings({names[name]: str(value).lower() for name, value in on.items()}.get)


@pytest.mark.parametrize(("name", "condition"), [
    ("escaped", r"c.label > 'a\\b'"), ("escaped", "c.label > r'ab'"),
    ("exponents", "c.price > 1e1"),
])  # fmt: skip
def test_a_literal_that_a_setting_changes_is_left_to_spark(name: str, condition: str) -> None:
    for on in (True, False):
        found = plan(f"o.id = c.id AND {condition}", settings=settings(**{name: on}))
        raw_or_decimal = "r'" in condition or "price" in condition
        assert stages(found)[condition] == ("residual/spark" if on or raw_or_decimal else "calc/worker")


@pytest.mark.parametrize(("name", "text"), [
    ("lengths", "CAST(a AS CHAR(3))"), ("lengths", "a::VARCHAR(3)"), ("lengths", "a::CHARACTER(3)"),
    ("exponents", "a > 1e1"), ("exponents", "1.5E-3D"), ("escaped", r"'\n'"), ("escaped", "r'a'"), ("escaped", "R'a'"),
])  # fmt: skip
def test_a_text_is_doubtful_where_a_setting_changes_it(name: str, text: str) -> None:
    assert settings(**{name: True}).doubtful(text)
    others = dict.fromkeys({"lengths", "exponents", "escaped"} - {name}, True)
    assert not settings(**{name: False}, **others).doubtful(text)
    assert not settings(**{name: True}).doubtful("a = 'b' AND e > 12.5 AND charlie")


def test_explain_shows_the_state_of_a_latest_join_not_a_cache() -> None:
    shown = explain(plan("o.id = c.id"), form=[("form", "worker")], state=[("keys", "id")])
    heads = [line for line in shown.splitlines()[1:] if line and not line.startswith(" ")]
    assert heads == ["Condition", "Form", "Lookup", "Result", "State"]
    assert "  keys              id" in shown


@pytest.mark.parametrize(("schema", "on", "value"), [
    ("id BIGINT, n TINYINT", "c.n = 127", 127), ("id BIGINT, n SMALLINT", "c.n = -32768", -32768),
    ("id BIGINT, n SMALLINT", "c.n = 32767", 32767), ("id BIGINT, n INT", "c.n = 2147483647", 2147483647),
    ("id BIGINT, n SMALLINT", "c.n = 32768", None), ("id BIGINT, n TINYINT", "c.n = -129", None),
])  # fmt: skip
def test_a_constant_is_one_that_its_column_can_have(schema: str, on: str, value: int | None) -> None:
    found = plan(f"o.id = c.id AND {on}", "left", table=table(schema), select=["c.n"])
    assert found.never if value is None else [one.value.value for one in found.constants] == [value]


def test_double_quotes_may_be_those_of_a_name() -> None:
    found = plan('o."id" = "c"."id" AND c.label > \'"\'', settings=settings(quoted=True), select=['c."age" AS "a b"'])
    assert (found.keys[0].sql, found.output[0].name, found.output[0].sql) == ("l.`id`", "a b", "r.`age`")
    assert stages(found)["c.label > '\"'"] == "calc/worker"
    assert plan('o.id = c.id AND c.label = "id"').constants[0].value.value == "id"


def test_a_reserved_word_is_no_column() -> None:
    left = [*LEFT, LeftColumn("user", "string")]
    assert plan("o.id = c.id AND user = 'x'", left=left).pre_filter == ("l.`user` = 'x'",)
    found = plan("o.id = c.id AND user = 'x' AND `user` > 'y'", left=left, settings=settings(reserved=True))
    assert found.pre_filter == ("user = 'x'", "l.`user` > 'y'")


def test_a_variable_in_a_string_is_for_spark_to_fill_in() -> None:
    on = "c.label > '${spark.app.name}'"
    assert stages(plan(f"o.id = c.id AND {on}"))[on] == "residual/spark"
