"""What of a statement is shown: never a secret, whatever the statement, and of queries all else."""

from __future__ import annotations

import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.sql.redaction import Span, find_secrets, mask_piece


def mask_secrets(text):
    return mask_piece(text, find_secrets(text), Span(0, len(text)))


SECRET = "Zq7vK9sesame0123"
DEFINITION = f"CREATE TABLE c (id INT) WITH ('connector'='http', 'url'='http://h/{{id}}', 'token'='{SECRET}')"
STATEMENTS = [
    DEFINITION,
    f"({DEFINITION}",
    DEFINITION.replace("EAT", "`EAT").replace("'token'", "'token'`"),
    f"EXECUTE STATEMENT SET BEGIN {DEFINITION}; END",
    f"EXECUTE STATEMENT SET BEGIN INSERT INTO x SELECT 1; {DEFINITION}; END",
    f"SELECT * FROM c WITH ('token'='{SECRET}')",
    f"SELECT * FROM c WITH ('header.X-Key'='{SECRET}')",
    f"SELECT * FROM c OPTIONS('token'='{SECRET}')",
    f"SELECT * FROM f('token' => '{SECRET}')",
    f"SELECT * FROM f(token => '{SECRET}')",
    f"SELECT * FROM c WHERE api_key = '{SECRET}'",
    f"SELECT * FROM f('{{\"token\": \"{SECRET}\"}}')",
    f"SELECT * FROM f('user=ann;password={SECRET}')",
    f"SELECT * FROM csv.`http://ann:{SECRET}@h/x`",
    f"SELECT * FROM f('http://{SECRET}@h/x')",
    f"SELECT * FROM f('http://h/x?sig={SECRET}')",
    f"SET 'token' = '{SECRET}'",
    f"SET '{SECRET} = 1' = '1'",
    f"SELECT /*+ OPTIONS('a'='b', {SECRET}('c'='d')) */ * FROM c",
    f"SET spark.hadoop.fs.s3a.secret.key={SECRET}",
    f"SET spark.hadoop.fs.azure.account.key.a.net = {SECRET}==",
    f"CREATE SECRET x (TYPE s3, KEY '{SECRET}')",
    f"CREATE USER ann IDENTIFIED BY '{SECRET}'",
    f"ADD JAR 'http://u:{SECRET}@h/x.jar'",
    f"ADD JAR http://u:{SECRET}@h/x.jar",
    f"COPY INTO x FROM 'y' WITH (CREDENTIAL '{SECRET}')",
]  # fmt: skip


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_secret_is_starred_in_any_statement(statement):
    for text in (statement, f"EXPLAIN {statement}", statement.replace("'", '"')):
        shown = mask_secrets(text)
        assert "***" in shown
        assert SECRET not in shown


def edited(text, edits):
    """Return a text with letters put in or left out, the secret spared."""
    for index, letter in edits:
        at = index % len(text)
        start = text.index(SECRET)
        if not start <= at < start + len(SECRET):
            text = text[:at] + letter + text[at + (not letter) :]
    return text


EDITS = st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["", *"'\"`(),=;-/* \n\\"])), min_size=1, max_size=2)


@pytest.mark.extended
@settings(max_examples=examples(500), deadline=None)
@given(EDITS)
def test_a_secret_is_starred_in_a_broken_definition(edits):
    for before in ("", "EXPLAIN ", "EXECUTE STATEMENT SET BEGIN "):
        text = edited(before + DEFINITION, edits)
        assert SECRET not in mask_secrets(text), text


READABLE = [
    "SELECT o.id, c.name FROM orders AS o JOIN c FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.token_id = c.id",
    "SELECT * FROM a WHERE x = 'abc' AND key = 'k1' AND t.token = o.token AND code IN ('a', 'b')",
    "(SELECT 'a' AS b) UNION (SELECT 'c')",
    "WITH RECURSIVE t AS (SELECT 'a' AS b), u (x) AS (SELECT 'b') SELECT * FROM t, u",
    "SELECT CAST(a AS TIMESTAMP WITH LOCAL TIME ZONE), url FROM f('https://h:8080/x/ann@home?page=1')",
    "SELECT `a (b)`, with (1) FROM x WHERE a = 'un",
    "INSERT INTO x VALUES ('a', 'b')",
    "EXECUTE STATEMENT SET BEGIN INSERT INTO x SELECT 'a'; INSERT INTO y SELECT 'b'; END;",
    "CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 'a' AS b FROM c WHERE c.x = 'y'",
    "SET spark.sql.shuffle.partitions=8",
    "SHOW TABLES LIKE 'g*'",
    "SELECT * FROM f(max_tokens => '50') WHERE tokens_per_minute = '9'",
]  # fmt: skip


@pytest.mark.parametrize("statement", READABLE)
def test_without_a_secret_all_is_shown(statement):
    assert mask_secrets(statement) == statement


@pytest.mark.parametrize(
    "text", ["token" * 2_000, "token " * 2_000, "token='" * 2_000, "://a:" * 2_000, "'a'=" * 1_000]
)
def test_a_secret_in_a_long_text_is_starred(text):
    assert SECRET not in mask_secrets(f"SELECT {text} x, token = '{SECRET}")


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("SET 'table.exec.state.ttl' = '1 d'", "SET 'table.exec.state.ttl' = '***'"),
        ("SELECT /*+ STATE_TTL('o'='1d'), X('y'='z') */ 1", "SELECT /*+ STATE_TTL('o'='***'), X('y'='***') */ 1"),
        ("SELECT 1 FROM o /*+ OPTIONS('scan.startup.mode'='earliest') */",
         "SELECT 1 FROM o /*+ OPTIONS('scan.startup.mode'='earliest') */"),
    ],
)  # fmt: skip
def test_names_of_settings_and_hints_are_shown(statement, shown):
    assert mask_secrets(statement) == shown
