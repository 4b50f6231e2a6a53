"""SQL in, lookup plans and Spark SQL out, and rows: golden files, against Spark's own joins of the same rows."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from needs import is_before, needs_spark
from plan_world import ARCHIVE, comparable, newest, update
from sql_world import VIEWS, make_world, read_once, rows_of, sparks_own, union_all

from lookupcache import LookupJoin, PlanReference
from lookupcache.compiled.document import read as read_plan
from lookupcache.compiled.document import write
from lookupcache.compiled.settings import settings_of
from lookupcache.sql.compiled import Compiler
from lookupcache.sql.plan_statements import restore

pytestmark = pytest.mark.spark

GOLDEN = {path.stem: path for path in sorted((Path(__file__).parent / "golden").glob("*.txt"))}
if is_before("pyspark", "4.0"):
    # Spark 3.5 refuses a correlated sub-query with LIMIT, and one that may find several rows; it has no * EXCEPT.
    for name in ("scalar_limit", "with_of_its_own", "scalars", "star"):
        del GOLDEN[name]
archives = needs_spark("4.0", "the compiled plan of all golden queries has one that Spark 3.5 refuses")


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    yield make_world(spark, tmp_path_factory.mktemp("shop"))
    for view in VIEWS:
        spark.catalog.dropTempView(view)


@pytest.fixture(scope="module")
def queries(session):
    """Return the golden queries, each planned once."""
    return {name: session.query(read(path)["sql"]) for name, path in GOLDEN.items()}


@pytest.fixture(scope="module")
def both(request, session, queries):
    """Return for each golden query of this lane its result and that of Spark's own join, lazily."""
    own_tests = [one for one in request.session.items if one.path == request.path and one.name.startswith(RESULT)]
    chosen = sorted({*RUN_AGAIN, *(one.callspec.params["name"] for one in own_tests)})
    own = {name: session.spark.sql(sparks_own(read(GOLDEN[name])["sql"])) for name in chosen}
    return {name: (queries[name].df(), frame) for name, frame in own.items()}


RESULT = "test_a_result_is_sparks_own"
RUN_AGAIN = ("five_lookups", "scalars")
"""Queries whose archived plans are run too; the others have the texts and joins of those that are run."""


@pytest.fixture(scope="module")
def rows(both):
    """Return the rows of all of them, read in one job."""
    marked = [
        df.toDF(*(f"c{n}" for n in range(len(df.columns)))).selectExpr(
            f"'{name}' AS name", f"{side} AS side", "to_json(struct(*)) AS row"
        )
        for name, pair in both.items()
        for side, df in enumerate(pair)
    ]
    found = {name: (Counter(), Counter()) for name in both}
    for row in read_once(union_all(marked)):
        found[row.name][row.side][row.row] += 1
    return found


def read(path: Path) -> dict[str, str]:
    """Return the parts of a golden file: each begins with a line ``-- name``."""
    parts = (
        part.partition("\n") for part in re.split(r"^-- (?=sql$|lookups$|spark sql$)", path.read_text(), flags=re.M)
    )
    return {name.strip(): text.strip() for name, _, text in parts if name}


def anonymous(text: str) -> str:
    """Leave out hashes, which depend on where the data lies."""
    return re.sub(r"[0-9a-f]{32}", "…", text)


@pytest.mark.extended
@pytest.mark.parametrize("name", GOLDEN)
def test_golden(queries, name):
    parts = read(GOLDEN[name])
    query = queries[name]
    lookups = anonymous("\n\n".join(join.explain() for join in query.joins))
    found = {"lookups": lookups or "none", "spark sql": query.spark_sql.strip()}
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN"):
        text = "\n\n".join(f"-- {part}\n{text}" for part, text in {**parts, **found}.items())
        GOLDEN[name].write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
    expected = read(GOLDEN[name])
    for part, text in found.items():
        assert [line.rstrip() for line in text.splitlines()] == expected[part].splitlines()


@pytest.mark.extended
@archives
def test_golden_queries_are_compiled_as_before(session, queries):
    compiler = Compiler(session._context, "SCHEMA")
    for query in queries.values():
        compiler.add_insert(query, None)
    archived = read_plan(newest("golden")) if newest("golden") else compiler.document()
    # Other tests may run in another time zone.
    text = write(replace(compiler.document(), settings=archived.settings))
    update("golden", text)
    assert comparable(text) == comparable(newest("golden"))


@archives
@pytest.mark.extended
@pytest.mark.parametrize("path", sorted(ARCHIVE.glob("*/golden.json")), ids=lambda path: path.parent.name)
def test_archived_plans_give_what_spark_gives(session, both, path):
    plan = restore(session._context, session.load_plan(PlanReference.from_file(path)))
    plan.document = replace(plan.document, settings=settings_of(session.spark))
    plan.check()
    frames = dict(zip(GOLDEN, (plan.df(insert.input) for _, insert in plan.document.inserts), strict=True))
    for name in RUN_AGAIN:
        assert rows_of(frames[name]) == rows_of(both[name][1])


@pytest.mark.nightly(keep_one_in=2)
@pytest.mark.parametrize("name", GOLDEN)
def test_a_result_is_sparks_own(both, rows, name):
    ours, theirs = both[name]
    assert ours.dtypes == theirs.dtypes
    assert rows[name][0] == rows[name][1]


def test_sql_and_data_frames_have_one_plan(session, spark):
    [ours] = session.plans(read(GOLDEN["inner_with_where"])["sql"])
    customers = session._context.catalog.tables["customers"].table.renamed("c")
    theirs = LookupJoin(
        spark.table("orders"), customers, "o.customer_id = c.id", where="c.salary > 1000 AND o.total > 1",
        select=["o.order_id", "o.total", "c.country", "c.zip"],
    ).plan  # fmt: skip
    assert ours == theirs
    assert ours.fingerprint == theirs.fingerprint


def test_joins_of_other_filters_options_or_hints_share_no_cache(session):
    join = "JOIN customers{} FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer_id = c.id AND c.salary > {}"
    sql = "SELECT {} c.name FROM orders AS o " + join
    option, hint = " /*+ OPTIONS('lookup.cache.max-rows'='7') */", "/*+ LOOKUP('table'='c', 'timeout'='7 s') */"
    kinds = [("", "", 1), ("", "", 2), ("", option, 1), (hint, "", 1)]
    plans = [session.plans(sql.format(*kind))[0] for kind in kinds]
    assert len({plan.fingerprint for plan in plans}) == 4
    assert session.plans(sql.format("", "", 1))[0].fingerprint == plans[0].fingerprint


def test_spark_analyzes_only_the_last_join_of_a_python_stage(session):
    query = session.query("""SELECT c.name, p.price FROM orders AS o
        LEFT JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer_id = c.id
        LEFT JOIN prices FOR SYSTEM_TIME AS OF PROCTIME() AS p ON o.order_id = p.item""")
    query.df()
    assert ["df" in vars(join) for join in query.joins] == [False, True]
    assert query.joins[0].result.schema.fieldNames() == query.joins[0].df.columns


def test_nondeterministic_filters_stay_out_of_the_cache(session):
    sql = """SELECT c.name FROM orders AS o JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c
             ON o.customer_id = c.id AND c.zip = CAST(current_date() AS STRING)
             WHERE rand() < 2 AND unix_timestamp() > c.salary"""
    [plan] = session.plans(sql)
    assert (plan.constants, plan.pushed, plan.calc) == ((), (), ())
    assert "rand() < 2" in session.query(sql).spark_sql


@needs_spark("4.0", "Spark 3.5 reads no quoted name after a dot")
def test_names_may_stand_in_double_quotes(session, spark):
    sql = """SELECT o."order_id", c."name" AS "a b" FROM orders AS o JOIN customers FOR SYSTEM_TIME AS OF PROCTIME()
             AS c ON o."customer_id" = "c"."id" WHERE "name" <> '"' AND NOT "salary" = total IS NULL"""
    spark.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    try:
        ours, theirs = session.sql(sql), spark.sql(sparks_own(sql))
        assert ours.columns == theirs.columns == ["order_id", "a b"]
        assert Counter(ours.collect()) == Counter(theirs.collect())
    finally:
        spark.conf.unset("spark.sql.ansi.doubleQuotedIdentifiers")
