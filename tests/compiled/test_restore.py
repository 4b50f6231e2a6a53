"""Plans of this and of earlier versions, compiled again and run: equal byte for byte, and the rows as Spark's own."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from plan_world import (
    ARCHIVE,
    FORMS,
    comparable,
    compile_statements,
    join,
    left_side,
    make_session,
    newest,
    update,
)
from sql_world import VIEWS

from lookupcache import CompiledPlan, LookupJoin, PlanReference
from lookupcache.compiled.nodes import LookupNode
from lookupcache.planner import passes
from lookupcache.sql.plan_statements import restore

pytestmark = pytest.mark.spark
ARCHIVED = sorted(path for path in ARCHIVE.glob("*/*.json"))


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    own = spark.newSession()
    yield make_session(own, tmp_path_factory.mktemp("shop"))
    own.sql("DROP TABLE people_sink")
    for view in VIEWS:
        own.catalog.dropTempView(view)


@pytest.fixture(scope="module")
def texts(session):
    return compile_statements(session)


@pytest.fixture
def no_planner(monkeypatch):
    """Fail where anything is planned: a restored plan is not."""

    def refuse(*_args, **_options):
        raise AssertionError("a restored plan was planned again")

    monkeypatch.setattr(passes, "plan_join", refuse)
    monkeypatch.setattr("lookupcache.spark.join.plan_join", refuse)
    monkeypatch.setattr("lookupcache.spark.join.choose", refuse)


def restored(session, path):
    found = restore(session._context, session.load_plan(PlanReference.from_file(path)))
    found.check()
    return found


NAMES = ("fields", "functions", "identifiers", *(f"join_{form}" for form in FORMS))


@pytest.mark.extended
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_compiled_as_before(texts, name):
    update(name, texts[name])
    assert comparable(texts[name]) == comparable(newest(name))


@pytest.mark.extended
def test_two_compilations_are_equal(session, texts):
    again = compile_statements(session)
    assert again["functions"] == texts["functions"]
    assert again["join_worker"] == texts["join_worker"]


@pytest.mark.extended
@pytest.mark.parametrize("path", [p for p in ARCHIVED if p.stem == "fields"], ids=lambda path: path.parent.name)
@pytest.mark.usefixtures("no_planner")
def test_archived_options_are_those_of_the_joins(session, path):
    plan = restored(session, path)
    for number, node in plan.document.numbered_nodes:
        if isinstance(node, LookupNode):
            config, given = plan.joins[number].plan.config.to_json(), dict(node.configuration)
            if path_of_cache := given.get("lookup.cache.path"):
                given["lookup.cache.path"] = os.path.abspath(path_of_cache)
            assert {key: config[key] for key in given} == given
    assert len(plan.joins) == 11


@pytest.mark.extended
@pytest.mark.parametrize("path", [p for p in ARCHIVED if p.stem in ("functions", "identifiers")], ids=str)
@pytest.mark.usefixtures("no_planner")
def test_an_archived_statement_runs(session, path):
    session.sql("TRUNCATE TABLE people_sink")
    session.sql(f"EXECUTE PLAN '{path}'")
    expected = {
        "functions": [(10, "ann"), (12, "ann"), (11, "rob"), (2, "y"), (3, "z"), (7, "x")],
        "identifiers": [(11, "bob"), (10, "ann"), (13, None), (15, None), (14, "cem")],
    }[path.stem]
    assert Counter(map(tuple, session.spark.table("people_sink").collect())) == Counter(expected)


@pytest.mark.extended
@pytest.mark.parametrize("path", [p for p in ARCHIVED if p.stem.startswith("join_")], ids=lambda path: path.stem)
def test_an_archived_join_gives_the_rows_of_the_join(session, path, request):
    form = path.stem.partition("_")[2]
    expected = join(session.spark, form).df
    request.getfixturevalue("no_planner")
    plan = CompiledPlan.of(PlanReference.from_file(path))
    found = LookupJoin.from_plan(left_side(session.spark), plan)
    assert found.choice.form == form
    assert Counter(found.df.collect()) == Counter(expected.collect())
