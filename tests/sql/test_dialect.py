"""The private methods of sqlglot that the dialect wraps: a new version of sqlglot may drop or bypass one."""

from __future__ import annotations

import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from lookupcache.ddl import SparkParser
from lookupcache.planner.naming import LeftColumn, VisibleColumns
from lookupcache.sql.dialect import LookupSql, parse, span_of
from lookupcache.sql.text import Statement

WRAPPED = sorted(name for name in vars(LookupSql.Parser) if name.startswith(("_parse_", "_warn_")))


@pytest.mark.parametrize("name", WRAPPED)
def test_sqlglot_has_each_method_that_is_wrapped(name):
    assert callable(getattr(SparkParser, name, None)), f"sqlglot {sqlglot.__version__} has no {name}"


SELECT = (
    "WITH w AS (SELECT 1 AS one) SELECT /*+ LOOKUP('table'='c') */ *, upper(o.name) AS u, v:a.b FROM o "
    "LEFT JOIN c FOR SYSTEM_TIME AS OF o.p ON (o.id = c.id) LATERAL VIEW explode(l) AS e WHERE o.id > :least OR o.a"
)
SPANS = {
    exp.Hint: "/*+ LOOKUP('table'='c') */",
    exp.Star: "*",
    exp.Alias: "upper(o.name) AS u",
    exp.JSONExtract: "v:a.b",
    exp.From: "FROM o",
    exp.Join: "LEFT JOIN c FOR SYSTEM_TIME AS OF o.p ON (o.id = c.id)",
    exp.Version: "FOR SYSTEM_TIME AS OF o.p",
    exp.Paren: "(o.id = c.id)",
    exp.Lateral: "LATERAL VIEW explode(l) AS e",
    exp.Where: "WHERE o.id > :least OR o.a",
    exp.Or: "o.id > :least OR o.a",
    exp.Placeholder: ":least",
    exp.With: "WITH w AS (SELECT 1 AS one)",
    exp.CTE: "w AS (SELECT 1 AS one)",
}


@pytest.mark.parametrize("kind", SPANS, ids=lambda kind: kind.__name__)
def test_the_span_of_a_node_is_that_of_its_text(kind):
    span = span_of(parse(Statement.of(SELECT)).find(kind))
    assert SELECT[span.start : span.end] == SPANS[kind]


@pytest.mark.parametrize("word", sorted(token.name.lower() for token in SparkParser.NO_PAREN_FUNCTIONS))
def test_a_function_without_parentheses_is_read_as_a_name(word):
    """A column of that name comes first in Spark, so the lookup has to fetch it."""
    [column] = parse(Statement.of(f"SELECT {word} FROM o")).selects
    assert isinstance(column, exp.Column)
    assert (column.name, column.table) == (word, "")


TYPES = [
    "BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT", "REAL", "DOUBLE",
    "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "STRING", "BINARY", "DECIMAL", "DEC", "NUMERIC",
    "DECIMAL(5)", "DEC(5,2)", "CHAR(3)", "CHARACTER(3)", "VARCHAR(3)", "VOID", "INTERVAL", "INTERVAL MONTH",
    "INTERVAL DAY TO SECOND", "VARIANT", "ARRAY<VOID>", "MAP<STRING,VOID>", "STRUCT<a:INT,b:VOID>", "STRUCT<void:VOID>",
    "ARRAY<ARRAY<VOID>>", "STRUCT<a VOID COMMENT 'x', void INT>",
]  # fmt: skip


@pytest.mark.parametrize("type_", TYPES)
def test_each_type_of_spark_is_read(type_):
    """In a statement and in a condition, wherever a type may stand."""
    scope = VisibleColumns([LeftColumn("v", "int")], "t", pa.schema([("w", pa.int32())]))
    for text in (f"CAST(o.v AS {type_})", f"try_cast(o.v AS {type_})", f"o.v::{type_}"):
        first, second = parse(Statement.of(f"SELECT {text} AS x, t.w FROM o")).selects
        names = [(name.table, name.name) for one in (first, second) for name in one.find_all(exp.Column)]
        assert (first.alias, names) == ("x", [("o", "v"), ("t", "w")])
        condition = scope.read(f"({text}) IS NULL AND t.w = 1")
        assert condition.sql == f"({text.replace('o.v', 'l.`v`')}) IS NULL AND r.`w` = 1"


@pytest.mark.parametrize("word", ["void", "date", "int", "variant"])
def test_a_word_for_a_type_may_be_a_name(word):
    text = f"SELECT {word}, {word}.{word}, {word} + 1 AS {word}, -{word} {word}, {word}(1) FROM {word} AS {word}"
    tree = parse(Statement.of(text))
    names = [(column.table, column.name) for column in tree.find_all(exp.Column)]
    assert names == [("", word), (word, word), ("", word), ("", word)]
    assert [one.alias for one in tree.selects] == ["", "", word, word, ""]


@pytest.mark.parametrize("word", ["select", "from", "where", "lateral", "end", "in"])
def test_any_keyword_is_a_name_behind_as(word):
    """Spark reserves none there, by default."""
    [item] = parse(Statement.of(f"SELECT a AS {word} FROM o")).selects
    assert item.alias == word
