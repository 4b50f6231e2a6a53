"""Operators have the operands that Spark's own parser gives them, in texts without a single needless parenthesis."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from needs import is_before, needs_sqlglot
from pyspark.errors import ParseException
from pyspark.sql import types as T  # noqa: N812
from recorded import assert_recorded
from scale import SEED, scale_up
from sqlglot import exp

from lookupcache import PlanError, expr
from lookupcache.planner import clauses
from lookupcache.planner.clauses import WORD_CALLS, columns_in, conjuncts, tokens
from lookupcache.planner.grammar import (
    _KEYWORDS,
    Parenthesised,
    add_brackets,
    equality,
    is_plain_equality,
    operands_of,
    read,
)
from lookupcache.planner.naming import LeftColumn, VisibleColumns
from lookupcache.planner.output import split_alias
from lookupcache.planner.translate import translate
from lookupcache.schema import quote
from lookupcache.spark.forms.join_context import left_column

OPERANDS = [
    "a", "b", "o.c", "`d e`.f", "1", "-1", "1.5e-3", ".5", "-2L", "'x'", "'it''s'", '"y"', "r'z'", "X'61'", "TRUE",
    "FALSE", "NULL", "DATE '2020-01-01'", "a::INT", "-1::STRING", "a::DECIMAL(3, 1)", "a[0]", "a[b = c]",
    "f(a = b IS NULL, c)",
    "coalesce(a)", "CAST(a = b IN (c) AS STRING)", "CASE WHEN a = b IS NULL THEN c AND d END", "INTERVAL '1' DAY",
    "CASE a WHEN b = c THEN d ELSE e OR f END", "INTERVAL 2 HOURS 3 MINUTES", "(a)", "(a OR b AND c)", "(a, b)",
    "exists(a, x -> x = b IS NULL AND c)", "aggregate(a, 0, (x, y) -> x + y * 2)", "extract(YEAR FROM a)", "a.b.c",
    "trim(BOTH 'x' FROM a)", "a COLLATE UTF8_LCASE", "named_struct('a', 1).a", "count(DISTINCT a)",
    "count(*)", "current_date", "position('a' IN b)", "substring(a FROM 1 FOR 2)", "if(a, b, c)", "cast", "date",
    "CAST(a AS ARRAY<STRUCT<b: INT, c: MAP<INT, ARRAY<INT>>>>)", "a :: ARRAY<ARRAY<INT>>", "f(x => 1)", "transform",
]  # fmt: skip
BETWEEN_TWO = [
    "=", "==", "<>", "!=", "<", "<=", "!>", ">", ">=", "!<", "<=>", "+", "-", "*", "/", "%", "DIV", "||", "&", "|", "^",
    "<<", ">>", ">>>", "AND", "OR", "AND", "OR", "and", "oR", "LIKE", "NOT LIKE", "ILIKE", "RLIKE", "NOT RLIKE",
    "REGEXP", "IS DISTINCT FROM", "IS NOT DISTINCT FROM",
]  # fmt: skip
BEFORE = ["NOT ", "! ", "!", "- ", "+", "~", "not "]
BEHIND = [
    " IS NULL", " IS NOT NULL", " IS TRUE", " IS NOT FALSE", " IS UNKNOWN", " IN (a = b, 1)", " NOT IN (a OR b)",
    " LIKE ANY ('a', b)", " LIKE 'a' ESCAPE '/'",
]  # fmt: skip


def loose(dice: random.Random) -> str:
    """Draw operands and operators in a row; Spark takes about one in two."""
    text = dice.choice(BEFORE) * (dice.random() < 0.2) + dice.choice(OPERANDS)
    for _ in range(dice.randrange(1, 6)):
        kind = dice.random()
        if kind < 0.15:
            text += dice.choice(BEHIND)
        elif kind < 0.25:
            text += f" {dice.choice(['', 'NOT '])}BETWEEN {dice.choice(OPERANDS)} AND {dice.choice(OPERANDS)}"
        else:
            before = dice.choice(BEFORE) * (dice.random() < 0.15)
            text += f" {dice.choice(BETWEEN_TWO)} {before}{dice.choice(OPERANDS)}"
    return text


def parsed(parser: Any, text: str) -> Any:
    """Return what Spark reads; None where it refuses the text, or takes ``a = NOT b`` for a column NOT, called b."""
    try:
        found = parser.parseExpression(text)
    except ParseException:
        return None
    return None if found.getClass().getSimpleName() == "Alias" else found


def parts(node: Any) -> list[Any]:
    """Return what AND joins, as Spark reads it."""
    if node.getClass().getSimpleName() != "And":
        return [node]
    return [*parts(node.left()), *parts(node.right())]


def add_parentheses(text: str) -> Parenthesised | None:
    """Return a text with parentheses around each operator that is an operand; None if its syntax is unknown."""
    node = read(text)
    return None if node is None else add_brackets(text, list(operands_of(node)), [])


@pytest.fixture(scope="module")
def parser(spark: Any) -> Any:
    return spark._jsparkSession.sessionState().sqlParser()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.nightly(keep_one_in=4)
@pytest.mark.parametrize("seed", range(4))
def test_operators_have_the_operands_that_spark_gives_them(parser: Any, seed: int) -> None:
    dice, known, unknown = random.Random(seed), 0, []
    for _ in range(500):
        text = loose(dice)
        ours, theirs = add_parentheses(text), parsed(parser, text)
        assert ours is None or theirs is not None, f"Spark refuses {text}"
        if ours is not None:
            assert theirs.equals(parsed(parser, ours.text)), f"{text} is not {ours.text}"
            known += 1
        elif theirs is not None:
            unknown.append(text)
        if theirs is not None:
            found, wanted = [parsed(parser, part) for part in conjuncts(text)], parts(theirs)
            assert len(found) == len(wanted), text
            assert all(a.equals(b) for a, b in zip(found, wanted, strict=True)), text
    assert known > 150
    assert len(unknown) < known / 20, unknown


@pytest.mark.parametrize(("text", "sides"), [
    ("a = b", ("a", "b")), ("((a) == (b))", ("a", "b")), ("a = b + 1", ("a", "b + 1")), ("TRUE = a", ("TRUE", "a")),
    ("NOT (a <> b)", ("a", "b")), ("NOT a != b", ("a", "b")), ("! (NOT (a = b))", ("a", "b")), ("a IN (b)", ("a", "b")),
    ("(a = b) IS TRUE", ("a", "b")), ("a = b IS TRUE", ("a", "b")), ("(a = b) = TRUE", ("a", "b")),
    ("TRUE = (a = b)", ("a", "b")), ("(a = b) <=> TRUE", ("a", "b")), ("(a <> b) = FALSE", ("a", "b")),
    ("(a <> b) IS FALSE", ("a", "b")), ("NOT ((a = b) IS NOT TRUE)", ("a", "b")), ("NOT (a NOT IN (b))", ("a", "b")),
    ("a BETWEEN b AND b", ("a", "b")), ("NOT (a NOT BETWEEN b AND b)", ("a", "b")),
    ("(a = b) IS NOT DISTINCT FROM TRUE", ("a", "b")), ("a = b:c", ("a", "b:c")),
    ("a = b = TRUE", ("a", "b")), ("a = b == true", ("a", "b")), ("(a <> b) != TRUE", ("a", "b")),
    ("a = b <> FALSE", ("a", "b")), ("a = b = TRUE = TRUE", ("a", "b")), ("NOT ((a = b) = FALSE)", ("a", "b")),
    ("NOT ((a <> b) IS NOT FALSE)", ("a", "b")),
    ("NOT (a = b <> TRUE)", ("a", "b")), ("a <> b = FALSE", ("a", "b")), ("(a = b = FALSE) = FALSE", ("a", "b")),
])  # fmt: skip
def test_a_condition_equivalent_to_an_equality_is_one(text: str, sides: tuple[str, str]) -> None:
    assert equality(text) == sides


@pytest.mark.parametrize("text", [
    "a <=> b", "NOT (a = b)", "a <> b", "a = b IS NULL", "(a = b) IS NOT FALSE", "NOT ((a <> b) IS TRUE)",
    "a IN (b, c)",
    "a BETWEEN b AND c", "a = b = c", "a = b OR c", "a < b", "NOT (a <=> b)",
    "(a = b) = c IS NULL", "f(a = b)", "a NOT IN (b)", "a LIKE b", "TRUE <> (a <> b) = TRUE = c",
    "NOT ((a <> b) <=> TRUE)", "(a <> b) IS DISTINCT FROM TRUE", "a = b <> TRUE", "NOT (a = b = TRUE)",
])  # fmt: skip
def test_other_conditions_are_no_equality(text: str) -> None:
    assert equality(text) is None


@pytest.mark.parametrize("name", ["a", "a b", "a`b", "a.b", "a,b", "a:b", "a<b", "a>b", "a(b", "a)b", "--", "/*", "é"])
def test_a_member_of_a_struct_comes_before_a_column_of_its_name(name: str) -> None:
    of_spark = T.StructType().add("first", T.DecimalType(3, 1)).add(name, T.IntegerType())
    types = {"s": of_spark, "many": T.ArrayType(of_spark), name: T.IntegerType()}
    left = [left_column(T.StructField(column, type_)) for column, type_ in types.items()]
    scope = VisibleColumns(left, "c", pa.schema([("k", pa.int32()), ("u", pa.struct([(name, pa.int32())]))]))
    quoted = quote(name)
    assert scope.read(f"c.k = s.{quoted}").sql == f"r.`k` = l.`s`.{quoted}"
    assert scope.read(f"c.k = many.{quoted}[0]").sql == f"r.`k` = l.`many`.{quoted}[0]"
    assert scope.read(f"u.{quoted} = 1").sql == f"r.`u`.{quoted} = 1"
    assert scope.read(f"c.k = o.{quoted}").sql == f"r.`k` = l.{quoted}"


@pytest.mark.extended
def test_a_long_chain_makes_no_deep_tree() -> None:
    for operator in (" OR ", " AND ", " + ", " || ", " = "):
        found = read(operator.join(["a"] * 5_000))
        assert found is not None
        assert len(found.parts) == 5_000


@pytest.mark.parametrize("name", ["true", "false", "null", "not", "select", "TRUE", "end", "case", "from", "in", "and"])
def test_a_keyword_after_a_dot_is_a_name(name: str) -> None:
    scope = VisibleColumns([LeftColumn(name, "int"), LeftColumn("id", "int")], "c", pa.schema([("k", pa.int32())]))
    assert scope.read(f"c.k = o.{name} + 1 AND o.{name} > 2").sql == f"r.`k` = l.`{name}` + 1 AND l.`{name}` > 2"
    assert scope.read(f"(o.id + o.{name}) * 2 = c.k").sql == f"(l.`id` + l.`{name}`) * 2 = r.`k`"
    assert scope.read(f"c.k = o.`{name}` + 1").sql == f"r.`k` = l.`{name}` + 1"


RESERVED = {"AND", "AS", "BETWEEN", "CASE", "ELSE", "FALSE", "FROM", "ILIKE", "LIKE", "NOT", "NULL", "ON", "OR",
            "REGEXP", "RLIKE", "THEN", "TRUE", "USING", "WHEN", "WHERE"}  # fmt: skip
if is_before("sqlglot", "30.27"):
    RESERVED.add("IN")  # An unquoted column of this name was not read: a PlanError says so.
WORDS = [word.lower() for word in sorted(_KEYWORDS) if word.isidentifier() and word not in RESERVED]


def test_a_keyword_that_spark_does_not_reserve_is_a_name() -> None:
    scope = VisibleColumns([LeftColumn(word, "int") for word in WORDS], "c", pa.schema([("k", pa.int32())]))
    for word in WORDS:
        assert scope.read(f"{word} + 1 > c.k").sql == f"l.`{word}` + 1 > r.`k`"
        assert scope.read(f"c.k * {word}").sql == f"r.`k` * l.`{word}`"


FUNCTIONS = sorted({*exp.FUNCTION_BY_NAME, "LIST", "ARRAY"} - RESERVED)
USES = ("{} = r.`k`[0]", "{}[0] = r.`k`", "r.`k` = {}.f", "{}[0][1].f IS NULL", "array(1, {})[0] = r.`k`", "-{} = 1",
        "{}::int = 1", "CASE WHEN {} THEN {} ELSE {} END = r.`k`", "{} IN (1, {})", "NOT {}",
        "transform(r.`a`, x -> {})")  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "`{}`", "o.{}", "o.`{}`"])
def test_a_column_may_have_the_name_of_a_keyword_or_function(form: str) -> None:
    uses = " AND ".join(USES)
    right = pa.schema([("k", pa.list_(pa.int32())), ("a", pa.list_(pa.int32()))])
    names = sorted({*WORDS, *map(str.lower, FUNCTIONS)})
    for word in {"list", "array", *random.Random(SEED).sample(names, min(len(names), scale_up(60)))}:
        scope = VisibleColumns([LeftColumn(word, "struct<f:int>")], "c", right)
        text = uses.replace("r.`k`", "c.k").replace("r.`a`", "a").replace("{}", form.format(word))
        assert scope.read(text).sql == uses.replace("{}", f"l.`{word}`")


def test_each_keyword_may_be_an_alias() -> None:
    scope = VisibleColumns([], "c", pa.schema([("k", pa.int32())]))
    for word in [*WORDS, *map(str.lower, RESERVED)]:
        assert split_alias(scope.read(text := f"c.k + 1 AS {word}"), text) == ("c.k + 1", word)
        assert scope.read(f"struct(c.k AS {word}, 1)").sql == f"struct(r.`k` AS {word}, 1)"


@pytest.mark.parametrize("text", [
    "timestampdiff(MINUTE, c.k, 1)", "extract(year FROM c.k)", "trim(BOTH 'x' FROM c.k)", "CAST(c.k AS date)",
    "c.k:r.`k`::int", "parse_json(c.k) : l . `k` = 1",
    "c.k > INTERVAL 1 DAY", "c.k > INTERVAL '1-2' YEAR TO MONTH", "date '2020-01-01' > c.k", "c.k::date",
    "map('a', c.k)", "overlay(c.k PLACING 'x' FROM 1)", "if(c.k > 1, true, null)",
    "transform(array(c.k), (date, set) -> date + set)", "c.k:k.`k`[0]::int = 1",
    pytest.param(
        "CAST(c.k AS STRING COLLATE k)",
        marks=needs_sqlglot("30.8", "sqlglot reads a collation in a type since 30.8"),
    ),
    "struct(parse_json(c.k):k, 1)", "CAST(c.k AS ARRAY<STRUCT<a: STRING COLLATE k>>)",
    "CAST(c.k AS VOID)", "c.k::void", "CAST(c.k AS MAP<INT, STRUCT<>>) <> c.k",
    "c.k::STRUCT<> IS NULL OR c.k <> 1", "struct(c.k = 1, 2 = c.k)", "`struct`(c.k = 1)",
    "STRUCT(CAST(c.k AS INT) = c.k, c.k:a::int)",
])  # fmt: skip
def test_a_keyword_with_a_meaning_is_no_name(text: str) -> None:
    sql = VisibleColumns([], "c", pa.schema([("k", pa.int32())])).read(text).sql
    assert sql == text.replace("c.k", "r.`k`")
    assert columns_in(sql) == [("r", "k")] * text.count("c.k")


@pytest.mark.parametrize("column", ["left", "right"])
@pytest.mark.parametrize("word", sorted(WORD_CALLS))
def test_a_column_comes_before_the_function_of_its_name(word: str, column: str) -> None:
    sides = {"left": [LeftColumn(word, "int")], "right": []}
    scope = VisibleColumns(
        sides[column], "c", pa.schema([("k", pa.int32()), *[(word, pa.int32())] * (column == "right")])
    )
    assert scope.read(f"{word} > c.k").sql == f"{column[0]}.`{word}` > r.`k`"
    assert VisibleColumns([], "c", pa.schema([("k", pa.int32())])).read(f"{word} > c.k").sql == f"{word} > r.`k`"


@pytest.mark.parametrize("text", ["+c.k", "+ c.k", "(+c.k)", "++c.k", "+(c.k)"])
def test_a_plus_before_a_column_is_no_plain_column(text: str) -> None:
    fragment = VisibleColumns([], "c", pa.schema([("k", pa.string())])).read(text)
    column = expr.Column("right", "k", pa.string())
    assert fragment.column is None
    assert fragment.sql == text.replace("c.k", "r.`k`")
    assert (
        translate(VisibleColumns([], "c", pa.schema([("k", pa.string())])).read(f"{text} > 'x'"), lambda *_: column)
        is None
    )


def test_a_condition_that_begins_as_a_statement_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Its text is not logged."""
    with pytest.raises(PlanError, match="begins as a statement, with set"):
        VisibleColumns([], "c", pa.schema([("k", pa.int32())])).read("set > 'secret' ?")
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "depths"),
    [
        ("CASE WHEN a THEN b END AND x", "01111000"),
        ("f(CASE CASE a WHEN 1 THEN 2 END END, end) AND y", "00123333321" + "11000"),
        ("end = a AND (b)", "0000010"),
        ("x.case = 1 AND z", "0000000"),
        ("'CASE' = `end` AND z", "00000"),
    ],
)
def test_only_a_case_is_closed_by_its_end(text: str, depths: str) -> None:
    assert "".join(str(token.depth) for token in tokens(text)) == depths


def test_a_nested_chain_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(clauses, "tokens", lambda sql: calls.append(sql) or tokens(sql))
    text = "(" * 500 + "a > 0" + "".join(f" AND ( a <> {number} ))" for number in range(500))
    assert conjuncts(text) == ["a > 0", *(f"a <> {number}" for number in range(500))]
    assert clauses.unwrap("(" * 500 + "(a, b)" + " )" * 500) == "(a, b)"
    assert len(calls) == 2


@pytest.mark.parametrize(("text", "found"), [
    ("(a AND b) AND (c", ["a", "b", "(c"]), ("a AND b) AND c", ["a AND b) AND c"]), ("(a, b) AND (c)", ["(a, b)", "c"]),
    ("(a OR b AND c) AND (d)", ["a OR b AND c", "d"]), ("(a) + (b) AND c", ["(a) + (b)", "c"]), ("a AND ", ["a", ""]),
    ("((CASE a WHEN b AND c THEN d END AND (e)))", ["CASE a WHEN b AND c THEN d END", "e"]),
    ("(a BETWEEN b AND c AND d[e AND f])", ["a BETWEEN b AND c", "d[e AND f]"]),
])  # fmt: skip
def test_conjuncts_are_split_at_and(text: str, found: list[str]) -> None:
    assert conjuncts(text) == found


@pytest.mark.parametrize("query", [
    "SELECT 1", "SELECT 'a'", "SELECT `a`", "select a", "SELECT NOT a", "SELECT -1", "SELECT * FROM t",
    "SELECT EXISTS (a)", "FROM `t`", "VALUES 1", "VALUES (1)", "TABLE t", "WITH a AS (b) c",
])  # fmt: skip
def test_the_parentheses_of_a_query_belong_to_it(query: str) -> None:
    assert clauses.unwrap(f"((({query})))") == f"({query})"


@pytest.mark.parametrize("text", [
    "select", "table = 1", "select.a", "values IN (1)", "from IS NULL", "`select` - 1", "with < 1", "values[0]",
    "selects 1", "'SELECT' = a",
])  # fmt: skip
def test_parentheses_around_a_column_like_a_query_are_removed(text: str) -> None:
    assert clauses.unwrap(f"((({text})))") == text


@pytest.mark.parametrize("text", ["a = ?", "a =", "a = = b"])
def test_a_condition_that_cannot_be_read_is_left_unchanged(text: str) -> None:
    assert read(text) is None
    assert is_plain_equality(text)


def test_texts_are_read_as_they_were_when_spark_agreed() -> None:
    """The same texts are compared with Spark's parser above; this needs no Spark, so that changes are found early."""
    dice = random.Random(0)
    read_now = [(text, with_parentheses(text)) for text in (loose(dice) for _ in range(400))]
    assert_recorded("loose_texts.txt", [f"{text}\t{found}" for text, found in read_now])
    assert sum(found != "None" for _, found in read_now) > 150


def with_parentheses(text: str) -> str:
    found = add_parentheses(text)
    return str(found and found.text)


@pytest.mark.parametrize(("text", "found"), [
    ("a & b >> c", "a & (b >> c)"), ("a >> b = c", "(a >> b) = c"), ("a >>> b = c >> d", "(a >>> b) = (c >> d)"),
    ("a::INT < b AND c", "(a::INT < b) AND c"), ("a << b | c ^ d & e", "(a << b) | (c ^ (d & e))"),
    ("CASE WHEN a = b THEN c = d END = e AND f", "(CASE WHEN a = b THEN c = d END = e) AND f"),
    ("CASE a WHEN b = c THEN d ELSE e = f END = g AND h", "(CASE a WHEN b = c THEN d ELSE e = f END = g) AND h"),
    ("a::INTERVAL DAY TO SECOND = b AND c", "(a::INTERVAL DAY TO SECOND = b) AND c"),
    ("a::ARRAY<INT> < b AND c", "(a::ARRAY<INT> < b) AND c"), ("a::MAP<INT, ARRAY<INT>> IS NULL = b", "None"),
    ("a::DECIMAL(3, 1) + b * c", "a::DECIMAL(3, 1) + (b * c)"), ("INTERVAL '1' DAY TO SECOND = b OR c",
    "(INTERVAL '1' DAY TO SECOND = b) OR c"), ("INTERVAL -2 HOURS = b OR c", "(INTERVAL -2 HOURS = b) OR c"),
    ("interval = b OR c", "(interval = b) OR c"), ("a[b = c] = d AND e", "(a[b = c] = d) AND e"),
    ("'a' 'b' = c OR d", "('a' 'b' = c) OR d"), ("-1 + a * b", "-1 + (a * b)"), ("-a * b", "(-a) * b"),
    ("a || b || c = d", "(a || b || c) = d"), ("a IN (b = c, d) OR e", "(a IN ((b = c), d)) OR e"),
])  # fmt: skip
def test_operands_in_texts_of_every_kind(text: str, found: str) -> None:
    assert with_parentheses(text) == found


KINDS = [
    "struct(a.*) = b OR c", "count(a.b.*) > 1 OR c", "f(a.*, b = c) = d OR e", "f(a.*, b = c * d) OR e",
    "a LIKE 'b' ESCAPE '/' OR c = d",
    "a LIKE ANY ('x', b) OR c = d", "a NOT LIKE ALL ('x') OR c = d", "a LIKE SOME ('x', 'y') OR c = d",
    "a COLLATE UTF8_BINARY = b AND c", "a.b[0].c = d OR e", "a::INTERVAL YEAR = b OR c",
    "a::STRUCT<b: INT> IS NULL OR c = d", "a::DECIMAL = b OR c", "CAST(a AS INT)::STRING = b OR c",
    "try_cast(a AS INT) = b OR c", "CAST(a = b AS STRING) = c OR d", "INTERVAL 1 YEAR 2 MONTHS = b OR c",
    "INTERVAL 1 YEAR -2 MONTHS = b OR c", "- INTERVAL 1 DAY = b OR c", "INTERVAL +1 DAY = b OR c",
    "INTERVAL '1-2' YEAR TO MONTH = b OR c", "INTERVAL(a) = b OR c", "INTERVAL 1 days + b * c", "+a * b", "~a & b",
    "- -1 = b OR c", "-(1) * b = c OR d", "- 1 + b = c", "-1 = b OR c", "+1 * b", "NOT NOT a = b OR c",
    "! a = b AND c", "NOT a IN (b) OR c = d", "NOT a AND b OR c", "a !> b = c", "a !< b AND c", "a <=> b = c",
    "a IS DISTINCT FROM b + 1 OR d = e", "a IS NOT DISTINCT FROM b OR c = d", "a IS NOT UNKNOWN OR b = c",
    "a BETWEEN 1 AND 2 AND b = c OR d", "a NOT BETWEEN b + 1 AND c * 2 OR d = e", "a BETWEEN b = c AND d OR e",
    "f(x => a = b) = c OR d", "(x, y) IN ((a, b)) OR c = d", "(x) IN (a) OR c = d", "(x = y) = z OR c",
    "exists(a, x -> x = b OR c) = d OR e", "aggregate(a, 0, (x, y) -> x + y * 2) = b OR c",
    "CASE WHEN a THEN b WHEN c = d THEN e ELSE f = g END = h OR i", "CASE a = b WHEN c THEN d END + e * f",
    "CASE WHEN a = b OR c THEN d = e END IS NULL OR f = g", "DATE'2020-01-01' = a OR b", "X'61' = a OR b",
    "r'a' = b OR c", "trim(BOTH 'x' FROM a) = b OR c", "extract(YEAR FROM a) = b OR c", "position('a' IN b) = c OR d",
    "a DIV b * c = d OR e", "a || b + c", "a + b || c", "a << b >> c", "a >>> b << c", "a | b & c ^ d", "a % b - c",
    "f(DISTINCT a = b) = c OR d", "f(ALL a = b, c) = d OR e", "f() = a OR b", "a REGEXP 'x' OR b = c",
    "a NOT RLIKE b || c OR d = e", "a ILIKE 'x' AND b = c", "a AS (b, c)", "a.b.c = d OR e", "a[0][1] + b * c",
    "f(a)[b + c * d] = e OR g", "f(a).b = c OR d", "(a).b = c OR d", "a::INT::STRING = b OR c", "`a b` = c OR d",
    "transform(a, x -> x * 2 + 1)[0] = b OR c", "a == b OR c", "a <> b != c", "a < b = c > d", "a <= b >= c",
    "a AND b OR c AND d", "a OR b AND c OR d", "(a OR b) AND c", "NOT (a OR b) AND c",
    "timestampdiff(MINUTE, a, b) = c OR d", "if(a = b, c, d) = e OR f", "TRUE = a OR b", "NULL IS NULL OR a = b", "*",
    "count(*) = a OR b", "current_date = a OR b", "a IN (SELECT b FROM c) OR d = e",
    "EXISTS (SELECT a FROM b) OR c = d", "a NOT IN (WITH b AS (SELECT 1) SELECT 2) OR c = d",
]  # fmt: skip
"""Texts of each kind of syntax; `loose` draws some of it."""

REFUSED = [
    "a LIKE 'b' ESCAPE 1", "a LIKE 'b' ESCAPE `c`", "a LIKE 'b' ESCAPE c", "a LIKE 'b' ESCAPE", "a IN b", "a IN (b",
    "a IN (b c", "a NOT b", "a NOT IS NULL", "a IS b", "a IS NOT b", "a IS DISTINCT b", "a BETWEEN b",
    "a BETWEEN b OR c", "a = NOT b = c", "CASE a END", "CASE WHEN a END", "CASE WHEN a THEN b",
    "CASE a WHEN b ELSE c END", "CAST(a INT)", "a::", "a[b", "a[]", "(a, b", "(a b c)", "a b c", "a AS", "a AS 1",
    "a AS (b", "a AND", "OR a", "a OR OR b", "f(a,", "a.", "a + ", "+", "- = a", "= a", "a)", "a COLLATE",
    "a COLLATE 'x'", "a LIKE", "a LIKE ANY 'x'", "a = = b", "a ? b", "", "a::ARRAY<INT", "a !> ", "INTERVAL 1 DAY b c",
    "INTERVAL a = b OR c", "a ! > b", "a >> > b",
]  # fmt: skip


def test_texts_of_each_kind_are_read_as_recorded_with_spark() -> None:
    assert_recorded("kinds_of_texts.txt", [f"{text}\t{with_parentheses(text)}" for text in KINDS])


OPERATORS = BETWEEN_TWO[: BETWEEN_TWO.index("and")]
PAIRS = {(one, other): f"a {one} b {other} c" for one in OPERATORS for other in OPERATORS}


def test_the_precedence_of_operators_is_as_recorded_with_spark() -> None:
    found = {pair: with_parentheses(text) for pair, text in PAIRS.items()}
    lines = []
    for one in dict.fromkeys(OPERATORS):
        closer = [other for other in dict.fromkeys(OPERATORS) if found[one, other] == f"a {one} (b {other} c)"]
        lines.append(f"{one}\t{' '.join(closer)}")
    assert_recorded("closer_operators.txt", lines)
    assert {text for (one, other), text in found.items() if one == other} == {f"a {one} b {one} c" for one in OPERATORS}


@pytest.mark.parametrize("text", REFUSED)
def test_a_text_that_spark_refuses_has_no_operands(text: str) -> None:
    assert add_parentheses(text) is None


@pytest.mark.extended
@pytest.mark.spark
def test_spark_agrees_on_texts_of_each_kind(parser: Any) -> None:
    calls = ["f(" + ", ".join(PAIRS[one, other] for other in OPERATORS) + ")" for one in dict.fromkeys(OPERATORS)]
    for text in [*KINDS, *calls]:
        if "SELECT" not in text:  # Each reading of a query is another to Spark.
            assert parsed(parser, text).equals(parsed(parser, with_parentheses(text))), text
    assert [text for text in REFUSED if parsed(parser, text) is not None] == []
