"""Reading statements without Spark: comments, heads, names and their scopes, edits."""

from __future__ import annotations

import pytest
from sqlglot import exp

from lookupcache import StatementError
from lookupcache.planner.clauses import tokens
from lookupcache.sql.dialect import parse
from lookupcache.sql.from_clause import computed_sql, inputs_of
from lookupcache.sql.reads import columns_read
from lookupcache.sql.scope import Name, Relation, Scope, aliases, names_in
from lookupcache.sql.text import Edits, Span, Statement
from lookupcache.sql.token_reader import insert_target, query_start

O = Relation(("o",), (("id", "int"), ("s", "struct<id:int>"), ("c", "string")))  # noqa: E741
C = Relation(("c",), (("id", "bigint"), ("name", "string")))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a -- x\nAND b", "a     \nAND b"),
        ("a -- x\rAND b", "a     \rAND b"),
        ("a -- x\\\nAND b\nAND c", "a      \n     \nAND c"),
        ("a /* x /* y */ z */ b", "a                   b"),
        ("SELECT /*+ LOOKUP('table'='c') */ a /* no hint */", "SELECT /*+ LOOKUP('table'='c') */ a              "),
        ("'-- no' || r'\\' -- yes", "'-- no' || r'\\'       "),
    ],
)
def test_code_is_the_text_without_comments_and_as_long(text, code):
    found = Statement.of(text).code
    assert [letter.replace("\\", " ") for letter in found] == [letter.replace("\\", " ") for letter in code]
    assert len(found) == len(text)


def test_the_parser_is_shown_no_literal():
    statement = Statement.of("SELECT 'it\\'s FROM x', r'\\', \"q\" FROM t WHERE a = '-- b'")
    assert "FROM x" not in statement.parser_input
    assert len(statement.parser_input) == len(statement.text)
    assert [table.name for table in parse(statement).find_all(exp.Table)] == ["t"]


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (["o", "id"], ("o", "id")), (["c", "id"], ("c", "id")), (["id"], None), (["name"], ("c", "name")),
        (["c", "nope"], ("o", "c")), (["s", "id"], ("o", "s")), (["x", "id"], None), (["o", "s", "id"], ("o", "s")),
    ],
)  # fmt: skip
def test_a_name_is_bound_as_spark_binds_it(parts, found):
    bound = Scope([[O, C]], str.lower).find(parts)
    assert (bound and (bound[0].alias, bound[1])) == found


def test_the_own_table_of_a_scalar_sub_query_comes_first():
    relation, column, _ = Scope([[C], [O]], str.lower).find(["ID"])
    assert (relation, column) == (C, "id")


def names(text, fold=str.lower):
    return names_in(parse(Statement.of(text)), fold)


@pytest.mark.parametrize(("fold", "found"), [(str.lower, ["a"]), (str, ["a", "v"])])
def test_a_lambda_hides_the_names_of_its_variables(fold, found):
    assert [name.parts[0] for name in names("SELECT exists(a, V -> V > v)", fold)] == found


@pytest.mark.parametrize(("fold", "v"), [(str.lower, "v"), (str, "t.v")])
def test_a_computed_column_reads_columns_by_the_sessions_rule(fold, v):
    relation = Relation(("t",), (("a", "array<int>"), ("v", "int")), computed={"b": "exists(a, V -> V > v)"}, fold=fold)
    assert computed_sql(relation, "b", "t.{}".format) == f"(exists(t.a, V -> V > {v}))"
    assert inputs_of(relation, "b") == (["a"] if v == "v" else ["a", "v"])


def test_names_of_a_query_inside_may_mean_any_relation():
    read = columns_read(names("SELECT 1 FROM o WHERE EXISTS (SELECT * FROM t WHERE id = c.id)"), [O, C], str.lower)
    assert [(relation.alias, column) for relation, column in read] == [("o", "id"), ("c", "id")]


def test_a_star_reads_all_but_that_of_count():
    assert columns_read(names("SELECT count(*) FROM o"), [O], str.lower) == []
    assert len(columns_read(names("SELECT hash(*), count(*) FROM o"), [O, C], str.lower)) == 5
    assert len(columns_read([Name(("c",), (), exp.Star(), is_star=True)], [O, C], str.lower)) == 2


def test_aliases_are_those_of_all_joins():
    tree = parse(Statement.of("SELECT 1 FROM a x JOIN (b JOIN c y ON 1 = 1) ON 2 = 2 LATERAL VIEW explode(z) v AS e"))
    assert [name for name in aliases(tree) if name] == ["x", "b", "y", "v"]


def test_positions_of_edited_text_are_those_of_the_source():
    edits = Edits("SELECT a.x, b FROM t")
    edits.replace(Span(7, 10), "long_name")
    edits.replace(Span(12, 12), "c.")
    text = edits.text(Span(0, 20))
    assert text == "SELECT long_name, c.b FROM t"
    assert [edits.original(Span(0, 20), text.index(piece)) for piece in ("long", "b", "FROM")] == [7, 12, 14]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("INSERT INTO t SELECT 1", "SELECT"), ("INSERT INTO db.values (a, b) (SELECT 1)", "SELECT 1)"),
        ("INSERT INTO t PARTITION (p = 1) WITH w AS (SELECT 1) SELECT * FROM w", "WITH"),
        ("CREATE TEMP VIEW v (a COMMENT 'SELECT') AS FROM t SELECT a", "FROM"),
        ("CREATE TABLE t USING parquet OPTIONS ('a'='b') AS SELECT 1", "SELECT"),
        ("CACHE LAZY TABLE t AS SELECT 1", "SELECT"), ("SELECT 1", "SELECT"), ("CACHE TABLE t", None),
    ],
)  # fmt: skip
def test_a_statements_query_begins(text, start):
    found = query_start(list(tokens(text)))
    assert found == (None if start is None else text.index(start) - text[: text.index(start)].endswith("("))


def test_a_statements_table_is_known():
    assert insert_target(list(tokens("insert overwrite table a.`b` select 1"))).parts == ("a", "b")
    assert insert_target(list(tokens("INSERT OVERWRITE LOCAL DIRECTORY 'x' SELECT 1"))) is None
    assert insert_target(list(tokens("INSERT INTO IDENTIFIER(:sink) SELECT 1"))) is None


@pytest.mark.parametrize("inside", ["", "x' ", "/* a */", "/* b /* c */ "])
def test_a_comment_that_is_not_closed_is_one_token_and_refused(inside):
    statement = Statement.of(f"SELECT a /* {inside}")
    assert [token.start for token in tokens(statement.sql)] == [0, 7, 9]
    with pytest.raises(StatementError, match="a comment in it is not closed"):
        parse(statement)


@pytest.mark.parametrize("depth", range(1, 7))
def test_comments_nest_to_any_depth(depth):
    text = f"SELECT {'/* a ' * depth}b{' */' * depth} c"
    assert [token.text for token in tokens(text)] == ["SELECT", "C"]
    assert Statement.of(text).code.split() == ["SELECT", "c"]
