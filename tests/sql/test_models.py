"""Flink's models: ML_PREDICT is a lookup in a service of language models, with all that a lookup has."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from model_service import KEY, ModelService, vector_of
from sql_world import rows_of

from lookupcache import LookupCacheError, LookupSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def service():
    made = ModelService()
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def session(spark, service):
    """Return a session with two models, and a view of texts, one of them twice, and one null."""
    service.reset()
    service.set_rows({text: [json.dumps({"mood": mood})] for text, mood in (("a", "good"), ("b", "bad"))})
    own = LookupSession(spark.newSession())
    rows = [(1, "a"), (2, "b"), (3, "a"), (4, None)]
    own.spark.createDataFrame(rows, "id INT, text STRING").coalesce(1).createOrReplaceTempView("t")
    own.sql(f"""
        CREATE MODEL moods INPUT (review STRING) OUTPUT (mood STRING NOT NULL) COMMENT 'a model'
        WITH ('provider' = 'openai', 'endpoint' = '{service.url}/v1/chat/completions', 'model' = 'm',
              'api-key' = '{KEY}', 'error-handling-strategy' = 'FAILOVER', 'retry-num' = '1', 'lookup.cache' = 'LRU')
    """)
    own.sql(f"""
        CREATE TEMPORARY MODEL IF NOT EXISTS vectors INPUT (`text` STRING) OUTPUT (v ARRAY<DOUBLE>)
        WITH ('provider' = 'openai', 'endpoint' = '{service.url}/v1/embeddings', 'model' = 'm', 'api-key' = '{KEY}')
    """)
    return own


PREDICTED = {(1, "a", "good"): 1, (2, "b", "bad"): 1, (3, "a", "good"): 1, (4, None, None): 1}


@pytest.mark.parametrize(
    "call",
    [
        "ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text))",
        "TABLE(ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text))) AS p",
        "ML_PREDICT((SELECT * FROM t), MODEL moods, DESCRIPTOR(`text`), MAP['async', 'true', 'timeout', '100s'])",
        "ML_PREDICT(INPUT => TABLE t, MODEL => MODEL moods, ARGS => DESCRIPTOR(text), "
        "CONFIG => MAP['max-concurrent-operations', '3', 'output-mode', 'ordered'])",
    ],
)
def test_a_model_predicts(session, service, call):
    assert rows_of(session.sql(f"SELECT * FROM {call}")) == PREDICTED
    assert len(service.bodies()) <= 2  # each text once, and not again where an earlier test left it in the cache
    [plan] = session.plans(f"SELECT * FROM {call}")
    assert (plan.connector, plan.how) == ("openai", "left")


LATERALS = [
    ("*", "t, LATERAL TABLE(ML_PREDICT('moods', text))"),
    ("t.*, p.*", "t CROSS JOIN LATERAL TABLE(ML_PREDICT('moods', t.text, MAP['async', 'true'])) p(answer)"),
    ("t.id, text, answer", "t LEFT JOIN LATERAL TABLE(ML_PREDICT('`db`.`moods`', lower(text))) AS p(answer) ON TRUE"),
]


@pytest.mark.parametrize(("items", "relation"), LATERALS)
def test_a_model_predicts_in_a_lateral_join(session, items, relation):
    found = session.sql(f"SELECT {items} FROM {relation} WHERE id > 0")
    assert rows_of(found) == PREDICTED
    assert found.columns == ["id", "text", "answer" if "answer" in relation else "mood"]


LATERAL = "LATERAL TABLE(ML_PREDICT('moods', t.text))"
SHAPES = (
    "SELECT DISTINCT * FROM t, {m}", "SELECT ALL * FROM t, {m}", "SELECT * EXCEPT (id) FROM t, {m}",
    "SELECT m.* EXCEPT (mood), t.* EXCEPT (text) FROM t, {m}", "SELECT to_json(struct(*)) FROM t, {m}",
    "SELECT to_json(struct(t.*, m.*)), struct(m.*) FROM t, {m}", "SELECT hash(*), concat_ws('-', m.*) FROM t, {m}",
    "SELECT count(*), count(m.mood) FROM t, {m}", "SELECT *, * FROM t, {m}", "SELECT *, m.* FROM t CROSS JOIN {m}",
    "SELECT * FROM (SELECT * FROM t, {m}) AS q WHERE q.mood = 'good'", "SELECT * FROM t JOIN {m} ON TRUE",
    "SELECT t.id, m.mood FROM t LEFT JOIN {m} ON (TRUE)", "SELECT t.id, m.mood FROM t LEFT JOIN {m} ON m.mood = 'bad'",
    "SELECT id, mood FROM t, {m} EXCEPT SELECT 1, 'good'",
    "SELECT id, rank() OVER w FROM t, {m} WINDOW w AS (ORDER BY mood)",
    "SELECT mood, count(*) FROM t, {m} GROUP BY mood", "SELECT id, mood FROM t, {m} CLUSTER BY id",
    "SELECT (SELECT max(m.mood) FROM t, {m}) AS most",
    "SELECT t.id FROM t WHERE id IN (SELECT t.id FROM t, {m} WHERE m.mood = 'bad')",
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_lateral_prediction_has_the_columns_of_the_model_only(session, shape):
    spark = session.spark
    spark.createDataFrame([("a", "good"), ("b", "bad")], "review STRING, mood STRING").createOrReplaceTempView("said")
    theirs = "LEFT JOIN LATERAL (SELECT mood FROM said WHERE review = t.text) AS m"
    oracle = shape.replace(", {m}", f" {theirs}").replace("CROSS JOIN {m}", theirs)
    oracle = re.sub(r"(LEFT )?JOIN \{m\}", theirs, oracle)
    expected = spark.sql(oracle)
    for alias in ("", " AS m", " m(mood)") if "m." not in shape else (" AS m",):
        found = session.sql(shape.replace("{m}", LATERAL + alias))
        assert found.columns == expected.columns
        assert rows_of(found) == rows_of(expected)


def test_two_lateral_predictions_have_columns_of_their_own(session):
    second = "LATERAL TABLE(ML_PREDICT('vectors', m.mood)) AS n(v)"
    found = session.sql(f"SELECT * FROM t, {LATERAL} AS m, {second} WHERE id = 2")
    assert found.columns == ["id", "text", "mood", "v"]
    assert list(map(tuple, found.collect())) == [(2, "b", "bad", vector_of("bad"))]
    assert session.sql(f"SELECT n.*, m.* FROM t, {LATERAL} AS m, {second}").columns == ["v", "mood"]


def test_a_condition_of_a_lateral_prediction_belongs_into_where(session):
    with pytest.raises(LookupCacheError, match=r"ON TRUE(?s:.*)Write the condition in WHERE") as raised:
        session.sql(f"SELECT id FROM t JOIN {LATERAL} AS m ON m.mood = 'bad'")
    assert raised.value.position.marked == "m.mood = 'bad'"


def test_a_lateral_prediction_is_compiled(session, service, tmp_path):
    (tmp_path / "key").write_text(KEY)
    create = "CREATE OR REPLACE MODEL kept INPUT (review STRING) OUTPUT (mood STRING) WITH ('provider' = 'openai', "
    session.sql("CREATE TABLE IF NOT EXISTS predicted (id INT, mood STRING) USING parquet")
    session.sql("TRUNCATE TABLE predicted")
    options = f"'endpoint' = '{service.url}/v1/chat/completions', 'model' = 'm', 'api-key' = '{{}}')"
    insert = (
        "INSERT INTO predicted SELECT t.id, m.answer FROM t, LATERAL TABLE(ML_PREDICT('kept', t.text)) AS m(answer)"
    )
    session.sql(create + options.format(KEY))
    with pytest.raises(LookupCacheError, match="Table 'kept' has a secret in option 'api-key'"):
        session.compile_plan_sql(insert)
    session.sql(create + options.format(f"file:{tmp_path}/key"))
    session.compile_plan_sql(insert).execute()
    assert rows_of(session.spark.table("predicted")) == {(1, "good"): 1, (2, "bad"): 1, (3, "good"): 1, (4, None): 1}
    session.sql("DROP TABLE predicted")


def test_the_statements_of_the_guide_run(session, service):
    guide = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    [text] = re.findall(r"```sql\n(.*?)```", guide, re.DOTALL)
    session.spark.table("t").withColumnRenamed("text", "review").createOrReplaceTempView("reviews")
    text = text.replace("https://api.openai.com", service.url).replace("env:OPENAI_API_KEY", KEY)
    found = session.run(text.replace("CREATE MODEL", "CREATE OR REPLACE MODEL"))[-2:]
    assert [rows_of(one) for one in found] == [Counter([(1, "good"), (2, "bad"), (3, "good"), (4, None)])] * 2


def test_predictions_of_several_models_are_combined(session):
    found = session.sql(
        "WITH p AS (SELECT id, text, mood FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text)) WHERE mood = 'good') "
        "SELECT id, mood, v FROM ML_PREDICT(TABLE p, MODEL vectors, DESCRIPTOR(text)) ORDER BY id"
    )
    assert list(map(tuple, found.collect())) == [(1, "good", vector_of("a")), (3, "good", vector_of("a"))]


@pytest.mark.parametrize(
    ("sql", "cure"),
    [
        ("SELECT * FROM ML_PREDICT(TABLE t, MODEL none, DESCRIPTOR(text))", "CREATE MODEL"),
        ("SELECT * FROM ML_PREDICT(TABLE t, MODEL moods)", "DESCRIPTOR"),
        ("SELECT * FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text, id))", "DESCRIPTOR"),
        ("SELECT * FROM t, LATERAL TABLE(ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text)))", "FROM t, LATERAL"),
        ("SELECT * FROM t, LATERAL TABLE(ML_PREDICT('none', text))", "CREATE MODEL"),
        ("SELECT * FROM t, LATERAL TABLE(ML_PREDICT('moods', text, id))", "DESCRIPTOR"),
        ("CREATE MODEL x INPUT (a STRING) WITH ('provider' = 'openai')", "OUTPUT"),
        ("CREATE MODEL x INPUT (a STRING) OUTPUT (b STRING) WITH ('provider' = 'other')", "'provider' = 'openai'"),
        ("CREATE MODEL x INPUT (a STRING) OUTPUT (b STRING) WITH ('provider' = 'openai')", "/embeddings"),
        ("CREATE MODEL moods INPUT (a STRING) OUTPUT (b STRING) WITH ('provider' = 'openai')", "OR REPLACE"),
        ("SELECT * FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text), MAP['asink', 'true'])", "'async'"),
        (
            "CREATE MODEL x INPUT (a STRUCT<b: INT>) OUTPUT (b STRING) WITH ('provider' = 'openai', 'model' = 'm', "
            "'endpoint' = 'https://h/v1/embeddings')",
            "to_json",
        ),
    ],
)
def test_an_invalid_model_is_refused_with_the_cure(session, sql, cure):
    with pytest.raises(LookupCacheError) as raised:
        session.sql(sql)
    assert cure in raised.value.hint
    assert raised.value.position is not None


WRONG = {
    "an input of another type": (
        "* FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(id))",
        "DESCRIPTOR(id)",
        "Cast it in a query",
    ),
    "an input that is no column": (
        "* FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(txt))",
        "DESCRIPTOR(txt)",
        "txt",
    ),
    "a relation": ("* FROM ML_PREDICT(TABLE nope, MODEL moods, DESCRIPTOR(text))", "nope", "nope"),
    "a query": ("* FROM ML_PREDICT((SELECT nope FROM t), MODEL moods, DESCRIPTOR(text))", "nope", "nope"),
    "an ambiguous input": (
        "* FROM ML_PREDICT((SELECT text, id AS text FROM t), MODEL moods, DESCRIPTOR(text))",
        "DESCRIPTOR(text)",
        "input.text",
    ),
    "the first of two models": (
        "a.id FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(id)) AS a "
        "JOIN ML_PREDICT(TABLE t, MODEL vectors, DESCRIPTOR(text)) AS b ON a.id = b.id",
        "DESCRIPTOR(id)",
        "moods.review",
    ),
    "an item": ("mood, nope FROM TABLE(ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text)))", "nope", "'mood'"),
    "behind it": ("* FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text)) AS p WHERE p.nope = 1", "nope", "'mood'"),
    "on another line": (
        "*\nFROM ML_PREDICT(TABLE t, MODEL moods,\n  DESCRIPTOR(text)) AS p\nWHERE 1 = p.nope",
        "nope",
        "'mood'",
    ),
    "the type of an argument": (
        "* FROM t, LATERAL TABLE(ML_PREDICT('moods', t.id)) AS m",
        "t.id",
        "input 'review' is STRING",
    ),
    "an argument that is no column": ("* FROM t, LATERAL TABLE(ML_PREDICT('moods', t.nope)) AS m", "nope", "'t'"),
    "an item beside LATERAL": ("m.nope FROM t, LATERAL TABLE(ML_PREDICT('moods', text)) AS m", "nope", "'m'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_show_the_statement_as_written(session, case):
    text, marked, named = WRONG[case]
    with pytest.raises(LookupCacheError) as raised:
        session.sql(f"SELECT {text}")
    assert raised.value.position.text in f"SELECT {text}".splitlines()
    assert raised.value.position.marked.startswith(marked)
    assert named in str(raised.value)
    assert "lookup_" not in str(raised.value)


def test_a_prediction_of_predictions(session):
    inner = "ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text))"
    text = f"SELECT id, mood, v FROM ML_PREDICT((SELECT * FROM {inner}), MODEL vectors, DESCRIPTOR(text)) WHERE id = 1"
    assert list(map(tuple, session.sql(text).collect())) == [(1, "good", vector_of("a"))]
    with pytest.raises(LookupCacheError, match="'nope'") as raised:
        session.sql(text.replace("SELECT *", "SELECT nope"))
    assert raised.value.position.text == text.replace("SELECT *", "SELECT nope")
    assert raised.value.position.marked == "nope"


def test_a_model_is_dropped_and_no_table(session):
    assert [row.tableName for row in session.sql("SHOW TABLES").collect()] == ["t"]
    session.sql("DROP MODEL moods")
    session.sql("DROP MODEL IF EXISTS moods")
    with pytest.raises(LookupCacheError, match="There is no model 'moods'"):
        session.sql("SELECT * FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text))")
