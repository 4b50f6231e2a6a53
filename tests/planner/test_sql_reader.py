"""What stands between the joins of a chain: what a worker computes of it, and what is left to Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lookupcache import expr
from lookupcache.planner.naming import LeftColumn
from lookupcache.planner.settings import ANSI, ESCAPED_STRINGS, Settings
from lookupcache.planner.sql_reader import SqlReader, is_repeatable
from lookupcache.schema import parse_ddl, type_name

LEFT = pa.table({
    "id": pa.array([1, 2**40, None], pa.int64()), "age": pa.array([10, None, -3], pa.int32()),
    "name": pa.array(["a", None, ""]), "rate": pa.array([0.5, None, -1.5], pa.float32()),
    "p": pa.array([Decimal("1.50"), None, Decimal("-0.25")], pa.decimal128(5, 2)),
    "yes": pa.array([True, None, False]), "at": pa.array([7, None, 9], pa.timestamp("us", "UTC")),
})  # fmt: skip
RIGHT = pa.table(
    {"ID": pa.array([5, 6, None], pa.int32()), "label": ["x", "y", None], "price": [1.5, None, 1e300]},
    parse_ddl("ID INT, label STRING, price DOUBLE"),
)
COLUMNS = [
    *(LeftColumn(name, type_name(LEFT.schema.field(name).type)) for name in LEFT.column_names),
    LeftColumn("s", "struct<a:int>"), LeftColumn("span", "interval day to second"),
]  # fmt: skip


class Answers:
    """Spark, which is asked for moments only."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def types(self, expressions: Sequence[str]) -> list[str]:
        self.asked += expressions
        return ["timestamp"]

    def names(self, expressions: Sequence[str]) -> list[list[str]]:
        raise AssertionError

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        return [8]


def reader(**settings: str) -> SqlReader:
    names = {"ansi": ANSI, "escaped": ESCAPED_STRINGS}
    return SqlReader(COLUMNS, RIGHT.schema, Answers(), Settings({names[n]: v for n, v in settings.items()}.get))


def computed(sql: str, of: SqlReader | None = None) -> list[Any] | None:
    """Return what a worker computes for each row, or None for what is Spark's."""
    node = (of or reader()).expression(sql)
    if node is None:
        return None
    found = expr.evaluate(node, lambda column: (LEFT if column.side == "left" else RIGHT).column(column.name))
    return [found.as_py()] * 3 if isinstance(found, pa.Scalar) else found.to_pylist()


COMPUTED: dict[str, list[Any]] = {
    "l.`id`": [1, 2**40, None], "r.`ID`": [5, 6, None], "7": [7, 7, 7], "'7'": ["7", "7", "7"],
    "l.`age` + 1": [11, None, -2], "l.`age` * 2 - r.`ID`": [15, None, None], "l.`id` > r.`ID`": [False, True, None],
    "CAST(l.`age` AS BIGINT)": [10, None, -3], "CAST(l.`age` AS INT)": [10, None, -3],
    "CAST(l.`age` AS DOUBLE)": [10.0, None, -3.0], "CAST(l.`id` AS FLOAT)": [1.0, float(2**40), None],
    "CAST(l.`rate` AS DOUBLE)": [0.5, None, -1.5],
    "CAST(l.`age` AS DECIMAL(12,2))": [Decimal("10.00"), None, Decimal("-3.00")],
    "CAST(l.`p` AS DECIMAL(6,3))": [Decimal("1.500"), None, Decimal("-0.250")],
    "TRY_CAST(l.`id` AS INT)": [1, None, None], "TRY_CAST(l.`age` AS BIGINT)": [10, None, -3],
    "TRY_CAST(l.`age` AS SMALLINT)": [10, None, -3], "CAST('2' AS DECIMAL(3,1))": [Decimal("2.0")] * 3,
    "coalesce(l.`age`, 0)": [10, 0, -3], "coalesce(l.`age`, r.`ID`, 3)": [10, 6, -3],
    "coalesce(NULL, l.`age`)": [10, None, -3], "coalesce(l.`age` + 1, r.`ID`)": [11, 6, -2],
    "concat(l.`name`, '-', r.`label`)": ["a-x", None, None], "concat(l.`name`)": ["a", None, ""],
    "CASE WHEN l.`age` > 0 THEN 'old' ELSE 'new' END": ["old", "new", "new"],
    "CASE WHEN l.`age` > 0 THEN l.`name` END": ["a", None, None],
    "CASE WHEN l.`age` > 99 THEN 1 WHEN l.`age` > 0 THEN 2 WHEN l.`yes` IS NULL THEN 3 ELSE 4 END": [2, 3, 4],
    "CASE WHEN l.`age` > 0 THEN NULL WHEN l.`age` < 0 THEN 5 END": [None, None, 5],
    "CASE WHEN l.`age` + 1 > 0 THEN 1 ELSE 2 END": [1, 2, 2],
    "if(l.`yes`, l.`age`, r.`ID`)": [10, 6, None], "if(l.`yes`, NULL, 'no')": [None, "no", "no"],
    "l.`at` > TIMESTAMP'2020-01-01 00:00:00'": [False, None, True],
}  # fmt: skip


@pytest.mark.parametrize("sql", COMPUTED)
def test_a_worker_computes_what_spark_does(sql: str) -> None:
    assert computed(sql) == COMPUTED[sql]
    node = reader().expression(sql)
    assert node is not None
    values = pa.array(COMPUTED[sql], node.type)
    assert values.to_pylist() == COMPUTED[sql], "its type has these values"


@pytest.mark.parametrize("sql", [
    # It may fail, and Spark says how; or Arrow's cast is another.
    "CAST(l.`id` AS INT)", "CAST(l.`age` AS DECIMAL(9,0))", "CAST(l.`p` AS DECIMAL(5,1))",
    "CAST(l.`p` AS DECIMAL(4,2))",
    "CAST(l.`name` AS INT)", "TRY_CAST(l.`name` AS INT)", "CAST(l.`age` AS STRING)", "CAST(r.`price` AS FLOAT)",
    "CAST(r.`price` AS INT)", "CAST(l.`p` AS INT)", "CAST(l.`yes` AS INT)", "CAST(l.`name` AS INTERVAL DAY)",
    "TRY_CAST(l.`p` AS DECIMAL(4,2))",
    # Values of several types.
    "coalesce(l.`age`, l.`id`)", "coalesce(NULL, NULL)", "if(l.`yes`, l.`age`, l.`name`)",
    "CASE WHEN l.`yes` THEN 1 ELSE 'a' END", "concat(l.`name`, l.`age`)", "concat(l.`name`, NULL)",
    # Spark would not compute what may fail here.
    "coalesce(r.`ID`, l.`age` + 1)", "if(l.`yes`, l.`age` + 1, 0)", "if(l.`yes`, 0, l.`age` + 1)",
    "CASE WHEN l.`yes` THEN 1 WHEN l.`age` + 1 > 0 THEN 2 END", "l.`yes` AND l.`age` + 1 > 0",
    # A kind that a worker does not know, and texts that are none.
    "CASE l.`age` WHEN 1 THEN 2 END", "if(l.`age`, 1, 2)", "upper(l.`name`)", "l.`s`.a", "l.`span`", "l.`id` =",
    "l.`none`", "l.`Id`", "r.`id`", "count(*)",
])  # fmt: skip
def test_expressions_that_a_worker_lacks_are_left_to_spark(sql: str) -> None:
    assert computed(sql) is None


def test_settings_decide_what_a_worker_computes() -> None:
    assert computed("l.`age` + 1", reader(ansi="false")) is None
    assert computed("l.`rate` + r.`price`", reader(ansi="false")) == [2.0, None, 1e300]
    assert computed(r"concat(l.`name`, '\\')", reader(escaped="true")) is None
    assert computed(r"concat(l.`name`, '\\')", reader(escaped="false")) == ["a\\", None, "\\"]


def test_an_expression_is_read_once() -> None:
    found, sql = reader(), "l.`at` > TIMESTAMP'2020-01-01 00:00:00'"
    assert found.expression(sql) is found.expression(sql)
    assert found.expression("l.`none`") is None
    assert len(found.analyst.asked) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("levels", "is_read"), [(1, True), (49, True), (50, False), (200, False)])
def test_an_expression_that_is_too_deep_for_a_worker_is_sparks(levels: int, is_read: bool) -> None:
    """A worker's has 50 levels at most, and Python may refuse to parse the text of one with more."""
    sql = "l.`age`"
    for _ in range(levels):
        sql = f"coalesce({sql}, 1)"
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(3_000)
    try:
        assert computed(sql) == ([10, 1, -3] if is_read else None)
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize(("sql", "settled"), [
    ("upper(l.`a`) || lower('B')", True), ("l.`a` IN (1, 2) AND NOT l.`b`", True),
    ("CAST(l.`a` AS DECIMAL(3,1))", True),
    ("rand()", False), ("l.`a` > uuid()", False), ("mine(l.`a`)", False), ("explode(l.`a`)", False),
    ("sum(l.`a`)", False), ("now()", False), ("current_date", False), ("upper(mine(l.`a`))", False),
    ("schema.upper(l.`a`)", False), ("`upper`(l.`a`)", True), ("`Rand`()", False), ("l.`a`.upper", True),
    ("l.`rand`", True),
    ("(l.`a`)", True), ("l.`a` . `b`", True),
])  # fmt: skip
def test_only_functions_that_are_known_have_one_value_for_a_row(sql: str, settled: bool) -> None:
    assert is_repeatable(sql) == settled


def test_a_function_of_the_users_own_hides_sparks() -> None:
    own = Settings(user_functions=lambda: {"upper"})
    assert not is_repeatable("upper(l.`a`)", own)
    assert is_repeatable("lower(l.`a`) || l.`upper`", own)
