"""Columns as SQL text: the same from classic and Connect, and what no text can say is refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from needs import is_before
from pyspark.sql import types as T  # noqa: N812
from test_coercion import settings

from lookupcache.errors import PlanError
from lookupcache.expr import python_value
from lookupcache.planner.column import column_sql, named_column_sql
from lookupcache.planner.literals import read_literal
from lookupcache.planner.naming import LeftColumn, VisibleColumns
from lookupcache.planner.settings import Settings
from lookupcache.schema import parse_ddl
from lookupcache.versions import is_spark_3


def written(F: Any, df: Any) -> list[tuple[Any, str]]:  # noqa: N803 - as Spark programs call it
    """Return Columns, and the text that each should become."""
    c, is_connect = F.col, "connect" in type(df).__module__
    return [
        ((c("a") == c("c.id")) & (c("c.x") > 1000.5), "(`a` = `c`.`id`) AND (`c`.`x` > 1000.5D)"),
        (c("c.name") == F.lit("o'x\\y"), r"`c`.`name` = 'o\'x\\y'"),
        (c("c.d") == F.lit(date(2020, 1, 1)), "`c`.`d` = DATE '2020-01-01'"),
        (c("c.x").isin(1, 2), "`c`.`x` IN (1, 2)"),
        (c("c.x").isin([]), "FALSE"),
        (c("a").isNull() | c("a").isNotNull(), "(`a` IS NULL) OR (`a` IS NOT NULL)"),
        (F.upper("c.name") == "A", "upper(`c`.`name`) = 'A'"),
        (c("c.w") == F.lit(Decimal("-1.20")), f"`c`.`w` = {'CAST(-1.20 AS DECIMAL(10,2))' if is_connect else '-1.20'}"),
        (c("c.w") == F.lit(Decimal("120")), f"`c`.`w` = {'CAST(120 AS DECIMAL(10,0))' if is_connect else '120BD'}"),
        (c("s")["q"] == 1, "`s`['q'] = 1"),
        (c("arr").getItem(0) == 1, "`arr`[0] = 1"),
        (c("c.name").like("a%"), "`c`.`name` LIKE 'a%'"),
        (c("c.name").rlike(r"x\d"), r"`c`.`name` RLIKE 'x\\d'"),
        (c("c.name").startswith("a"), "startswith(`c`.`name`, 'a')"),
        (F.expr("c.x > 3 + 4"), "`c`.`x` > (3 + 4)" if is_spark_3() else "c.x > 3 + 4"),
        (F.expr("c.x > 3 -- 4"), "`c`.`x` > 3" if is_spark_3() else "c.x > 3"),
        (c("a").cast("int") == 1, "CAST(`a` AS INT) = 1"),
        *([] if is_spark_3() else [(c("a").try_cast("int") == 1, "TRY_CAST(`a` AS INT) = 1")]),
        (c("c.x").between(1, 2), "(`c`.`x` >= 1) AND (`c`.`x` <= 2)"),
        (~c("c.x").eqNullSafe(1), "NOT (`c`.`x` <=> 1)"),
        (F.when(c("a") > 1, 2).otherwise(3) == 4, "CASE WHEN `a` > 1 THEN 2 ELSE 3 END = 4"),
        (c("`a b`.`x.y`") == F.lit(b"ab"), "`a b`.`x.y` = X'6162'"),
        (c("a") == F.lit(3000000000), "`a` = 3000000000"),
        (-c("a") == c("c.x"), "negative(`a`) = `c`.`x`"),
        ((c("a") - 1) / 2 == c("c.x"), "((`a` - 1) / 2) = `c`.`x`"),
        (F.lit(None) == c("c.x"), "NULL = `c`.`x`"),
        (F.lit(float("nan")) == c("c.x"), "CAST('NaN' AS DOUBLE) = `c`.`x`"),
        (df["id"] == c("c.id"), "`left`.`id` = `c`.`id`"),
        (c("a").alias("b") == 1, "`a` = 1"),
        (
            F.call_function("struct", c("s")["q"], (c("a") + 1).alias("b")),
            "`struct`(`s`['q'], named_struct('b', (`a` + 1)).`b`)",
        ),
        (c("a").bitwiseAND(3) == 1, "(`a` & 3) = 1"),
        (c("a") != 1, "NOT (`a` = 1)"),
        (F.lit(True), "TRUE"),
        (c("c.d") - c("c.d") > F.lit(-timedelta(1, 2)), "(`c`.`d` - `c`.`d`) > INTERVAL '-1 0:00:02' DAY TO SECOND"),
    ]


@pytest.mark.spark
def test_a_column_becomes_text(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    for column, text in written(F, spark.range(1)):
        assert column_sql(column) == text


def meant(F: Any, spark: Any) -> tuple[Any, list[Any]]:  # noqa: N803
    """Return a DataFrame, and Columns over it whose texts mean the same."""
    arr, s = F.array(F.lit(1), F.lit(2)), F.struct(F.lit(1).alias("q"))
    m, sts = F.create_map(F.lit("k"), F.lit(1)), F.array(s)
    df = spark.range(3).select(F.col("id").alias("a"), arr.alias("arr"), s.alias("s"), m.alias("m"), sts.alias("sts"))
    zone = datetime(2020, 1, 1, 3, 4, 5, 678)
    columns = [
        F.lit(zone), F.lit(date(2020, 1, 1)), F.lit(-1.5), F.lit(Decimal("-1.20")), F.lit(-(2**31)), F.lit(2**40),
        F.lit("o'x\\y\n\"`"), F.lit(bytearray(b"\x00'")), F.col("a") + 1, F.exists("arr", lambda x: x > F.col("a")),
        F.aggregate("arr", F.lit(0), lambda total, x: total + x), F.col("s")["q"], F.lit(float("inf")),
        F.when(F.col("a") > 1, "x"), F.date_trunc("day", F.lit(zone)), F.call_function("upper", F.lit("x")),
        F.lit(datetime(1500, 1, 1, 3)), F.lit(datetime(1850, 1, 1)), F.lit(date(1500, 1, 1)),
        F.lit(timedelta(days=-1, microseconds=7)), F.lit(timedelta(hours=30)), F.expr("a + 1 -- 2"),
        F.col("s").cast(T.StructType().add("a,b", T.IntegerType())), F.col("s").cast("struct<`a b`:bigint>"),
    ]  # fmt: skip
    extracted = [F.col("m")["k"], F.col("m").getItem("k"), F.col("sts").q, F.col("s")["q"], F.expr("m.k"), F.col("m.k")]
    fields = [*extracted, *(one.alias("b") for one in extracted), F.lit(None)["q"], F.col("s.q").cast("int")]
    # Classic Spark 3.5 names the fields when the Column is made.
    structs = [F.struct(*extracted), *map(F.struct, fields), F.arrays_zip("arr", F.col("sts").q)]
    return df, columns if is_spark_3() else [*columns, *structs]


def assert_alike(F: Any, df: Any, columns: list[Any]) -> tuple[list[str], list[str]]:  # noqa: N803
    """Compare Columns and their texts by type and value; return the names of both."""
    pairs = df.select(*columns, *(F.expr(column_sql(column)) for column in columns))
    half = len(columns)
    assert [f.dataType for f in pairs.schema[:half]] == [f.dataType for f in pairs.schema[half:]]
    for row in pairs.collect():
        assert tuple(row)[:half] == tuple(row)[half:]
    return pairs.columns[:half], pairs.columns[half:]


@pytest.mark.spark
def test_the_text_means_what_the_column_meant(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    assert_alike(F, *meant(F, spark))


NUMBERS = [
    -1.5, 0.1, 1e300, 5e-324, -0.0, 7, -(2**63),
    *map(Decimal, ["-1.20", "5", "-5", "0", "0.00", "1E+3", "-0.05", "1.05", "123456789012.5", "1E-12", "9" * 38]),
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("exponents", ["true", "false"])
def test_a_number_has_the_type_the_value_and_the_name_of_its_column(spark: Any, exponents: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    is_old = is_before("sqlglot", "30.27")  # It does not read the type of 5BD.
    with settings(spark, spark__sql__legacy__exponentLiteralAsDecimal__enabled=exponents):
        of_columns, of_texts = assert_alike(F, spark.range(1), list(map(F.lit, NUMBERS)))
    assert of_columns == of_texts
    for number in NUMBERS:
        text = column_sql(F.lit(number))
        found = read_literal(VisibleColumns([], "c", parse_ddl("k INT")).read(text).tree, text)
        assert (None if found is None else python_value(found)) == (None if is_old and "BD" in text else number)


@pytest.mark.spark
def test_the_text_can_be_planned(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    left = [LeftColumn("a", "int"), LeftColumn("s", "struct<q:int>"), LeftColumn("arr", "array<int>")]
    left += [LeftColumn("id", "bigint"), LeftColumn("x.y", "binary")]
    right = parse_ddl("id BIGINT, x INT, name STRING, d DATE, w DECIMAL(10,2)")
    scope = VisibleColumns(left, "c", right)
    for column, text in written(F, spark.range(1)):
        assert column_sql(column) == text
        assert scope.read(text).sql


@pytest.mark.extended
@pytest.mark.spark
def test_a_long_chain_of_columns_is_one_without_brackets(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col("a") == 0
    for number in range(1, 400):
        column = column | (F.col("a") == number)
    assert column_sql(column) == " OR ".join(f"(`a` = {number})" for number in range(400))
    assert column_sql(F.col("a") - 1 - (F.col("b") - 2) - 3 == 4) == "(`a` - 1 - (`b` - 2) - 3) = 4"


@pytest.mark.spark
def test_a_column_without_sql_text_is_refused(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    plus = F.udf(lambda x: x + 1, "int")
    for column in [plus("a") == F.col("c.id"), F.col("a").over(__import__("pyspark").sql.Window.partitionBy("a")) == 1]:
        with pytest.raises(PlanError, match="Write the condition as SQL text") as refused:
            column_sql(column)
        assert "Unresolved" not in str(refused.value)
    for column in (F.col("s").withField("q", F.lit(1)), F.upper(F.col("s").dropFields("q")["r"])):
        with pytest.raises(PlanError, match="withField or dropFields"):
            column_sql(column)
    named = F.col("a").alias("b", metadata={"c": 1})
    for column in (named, F.struct(named)):
        with pytest.raises(PlanError, match="the alias 'b' and metadata") as refused:
            named_column_sql(column)


@pytest.mark.spark
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_an_empty_in_list_has_sparks_result(spark: Any, ansi: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    with settings(spark, spark__sql__ansi__enabled=ansi):
        column = F.col("a").isin([])
        text = column_sql(column, null_in_nothing=Settings(lambda name: spark.conf.get(name, None)).null_in_nothing)
        for row in spark.sql("SELECT 1 AS a UNION ALL SELECT NULL").select(column, F.expr(text)).collect():
            assert row[0] == row[1]
