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
        "moods.review",
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
    "an item": ("mood, nope FROM TABLE(ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text)))", "nope", "'mood'"),
    "behind it": ("* FROM ML_PREDICT(TABLE t, MODEL moods, DESCRIPTOR(text)) AS p WHERE p.nope = 1", "nope", "'mood'"),
    "on another line": (
        "*\nFROM ML_PREDICT(TABLE t, MODEL moods,\n  DESCRIPTOR(text)) AS p\nWHERE 1 = p.nope",
        "nope",
        "'mood'",
    ),
    "the type of an argument": ("* FROM t, LATERAL TABLE(ML_PREDICT('moods', t.id)) AS m", ", LATERAL", "m.review"),
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
