"""`spark.read.format("lookupcache")`: the rows and types of the source, with filters applied there or by Spark."""

import sqlite3
from datetime import date

import pytest
from needs import needs_spark
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from lookupcache import Connector, LookupTable
from lookupcache.errors import OptionError, UnsupportedVersionError

source = pytest.importorskip(
    "lookupcache.spark.data_source", reason="Python data sources came with Spark 4.0", exc_type=UnsupportedVersionError
)
ds, FilteringReader, TableSource = source.ds, source.FilteringReader, source.TableSource
offers_filters = needs_spark("4.1", "data sources are offered filters since Spark 4.1")

ROWS = [
    (1, "ann", 0.5, b"\x00", date(2020, 1, 1), True),
    (2, "Bob", float("-inf"), b"", date(1969, 12, 31), False),
    (3, None, None, None, None, None),
    (4, "", -0.0, b"\xff", date(2020, 1, 2), True),
    (5, "b_b%", 1e300, b"ab", date(2020, 1, 1), False),
    (6, "ann ", 0.0, b"a", date(9999, 12, 31), None),
]
SCHEMA = "id BIGINT, name STRING, size DOUBLE, code BINARY, day DATE, active BOOLEAN"
VALUES = {
    "id": [1, 3, 9], "name": ["ann", "", "b", "%"], "size": [0.0, -0.0, 0.5, float("nan")],
    "code": [b"\xff", b"a", b""],
    "day": [date(2020, 1, 1), date(1970, 1, 1)], "active": [True, False],
}  # fmt: skip


def all_filters():
    comparisons = (
        ds.EqualTo, ds.EqualNullSafe, ds.LessThan, ds.LessThanOrEqual, ds.GreaterThan, ds.GreaterThanOrEqual,
    )  # fmt: skip
    filters = [
        *(kind((name,), value) for name, values in VALUES.items() for value in values for kind in comparisons),
        *(ds.In((name,), tuple(values)) for name, values in VALUES.items()),
        *(kind((name,)) for name in VALUES for kind in (ds.IsNull, ds.IsNotNull)),
        *(kind(("name",), part) for part in ("b", "%", "", " ") for kind in
          (ds.StringStartsWith, ds.StringEndsWith, ds.StringContains)),
    ]  # fmt: skip
    return filters + [ds.Not(one) for one in filters]


class ByKeyOnly(Connector):
    """A source that cannot be scanned."""

    def lookup(self, request, keys):
        raise NotImplementedError


class Scanned(ByKeyOnly):
    """A source with an option in two cases."""

    options = {"maxRows": "A number."}  # noqa: RUF012

    def scan(self, request):
        raise NotImplementedError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "shop.db"
    with sqlite3.connect(path) as shop:
        shop.execute("CREATE TABLE customers (id INTEGER, name TEXT, size REAL, code BLOB, day TEXT, active INTEGER)")
        shop.executemany("INSERT INTO customers VALUES (?, ?, ?, ?, ?, ?)", ROWS)
    return path


def reader(spark, path, **options):
    return spark.read.format("lookupcache").options(connector="sql", url=f"sqlite:///{path}", **options)


@pytest.mark.extended
@offers_filters
def test_the_rows_that_pass_a_pushed_filter_are_sparks_own(spark, path):
    """Every kind of filter over every type, as Spark offers them; Spark evaluates all of them in one job."""
    table = LookupTable("customers", SCHEMA, {"connector": "sql", "url": f"sqlite:///{path}", "table": "customers"})
    filters = all_filters()
    own = spark.createDataFrame([(*row[:3], row[3] and bytearray(row[3]), *row[4:]) for row in ROWS], SCHEMA)
    chosen = own.select("id", *(condition(one).alias(str(at)) for at, one in enumerate(filters))).collect()
    pushed = 0
    for at, one in enumerate(filters):
        reader = FilteringReader(table)
        left = list(reader.pushFilters([one]))
        assert left in ([], [one])
        if not left:
            ids = [number for batch in reader.read(None) for number in batch.column("id").to_pylist()]
            assert sorted(ids) == [row["id"] for row in chosen if row[str(at)]], one
            pushed += 1
    assert pushed > 100


def condition(one):
    """Return what a filter of Spark's API means."""
    if isinstance(one, ds.Not):
        return ~condition(one.child)
    column = F.col(one.attribute[0])
    if isinstance(one, ds.IsNull | ds.IsNotNull):
        return column.isNull() if isinstance(one, ds.IsNull) else column.isNotNull()
    value = one.value
    if isinstance(one, ds.In):
        return column.isin([bytearray(item) if isinstance(item, bytes) else item for item in value])
    other = F.lit(bytearray(value) if isinstance(value, bytes) else value)
    return {
        ds.EqualTo: lambda: column == other, ds.EqualNullSafe: lambda: column.eqNullSafe(other),
        ds.LessThan: lambda: column < other, ds.LessThanOrEqual: lambda: column <= other,
        ds.GreaterThan: lambda: column > other, ds.GreaterThanOrEqual: lambda: column >= other,
        ds.StringStartsWith: lambda: column.startswith(value), ds.StringEndsWith: lambda: column.endswith(value),
        ds.StringContains: lambda: column.contains(value),
    }[type(one)]()  # fmt: skip


@pytest.mark.extended
@offers_filters
@pytest.mark.nightly(keep_one_in=2)
@pytest.mark.parametrize("pushed", [True, False])
def test_filters_are_pushed_where_the_session_allows_it(spark, path, pushed):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushed).lower())
    try:
        df = reader(spark, path, table="customers", **{"push-filters": pushed}).schema(SCHEMA).load()
        df = df.where("id in (1, 2) and name is not null and upper(name) = 'ANN'")
        assert [row.id for row in df.collect()] == [1]
        plan = df._jdf.queryExecution().executedPlan().toString()
        filters = [line for line in plan.splitlines() if " Filter " in line]
        assert "upper(name" in filters[0]
        assert ("id#" in filters[0]) is not pushed, plan
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_spark_that_offers_no_filters_reads_without_them(path, monkeypatch):
    monkeypatch.delattr(ds.DataSourceReader, "pushFilters", raising=False)
    options = {"connector": "sql", "url": f"sqlite:///{path}", "table": "customers"}
    schema = TableSource(options).schema()
    (batch,) = TableSource(options).reader(schema).read(None)
    assert batch.num_rows == len(ROWS)
    with pytest.raises(OptionError, match=r"needs Spark 4\.1"):
        TableSource({**options, "push-filters": "true"}).reader(schema)


def with_names(**options):
    """Return the table of options whose names are as a reader passes them."""
    columns = T.StructType([T.StructField("id", T.LongType()), T.StructField("lastName", T.StringType())])
    return TableSource(ds.CaseInsensitiveDict(options)).reader(columns).table


HTTP = {"connector": "http", "url": "http://h/{id}", "scan.url": "http://h/all"}


def test_option_names_that_spark_lowercased_are_restored():
    table = with_names(**HTTP, **{"field.lastName": "$.n", "options": '{"query.pageSize": 9, "field.id": "$.i"}'})
    assert {
        "field.lastName": "$.n",
        "query.pageSize": "9",
        "field.id": "$.i",
    }.items() <= table.connector.settings.items()
    assert with_names(connector="test_data_source:Scanned", maxRows="3").connector.settings == {"maxRows": "3"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"query.countryCode": "AT"}, "'query.countrycode': Spark passes names of options in lower case"),
        ({"options": '{"url": "http://other"}'}, "Option 'url' is set twice"),
        ({"options": "password"}, "'options' is no JSON object"),
        ({"options": '["password"]'}, "'options' is no JSON object"),
        ({"options": '{"query.a": {"b": "password"}}'}, "'options' is no JSON object"),
    ],
)
def test_names_that_cannot_be_found_again_are_refused(options, text):
    with pytest.raises(OptionError, match=text) as refused:
        with_names(**HTTP, **options)
    assert "password" not in str(refused.value)


@pytest.mark.extended
def test_without_a_schema_the_source_is_asked(spark, path):
    df = reader(spark, path, table="customers").load()
    assert [field.simpleString() for field in df.schema] == [
        "id:bigint", "name:string", "size:double", "code:binary", "day:string", "active:bigint"
    ]  # fmt: skip
    assert df.count() == len(ROWS)


def test_only_the_columns_of_the_schema_are_read(spark, path):
    assert reader(spark, path, table="customers").schema("name STRING").load().columns == ["name"]


def test_no_secret_of_the_options_is_in_a_plan_or_error(spark):
    options = {
        "connector": "sql",
        "url": "postgresql://ann:hunter2@127.0.0.1:1/x",
        "table": "t",
        "lookup.max-retries": 0,
    }
    df = spark.read.format("lookupcache").schema("id BIGINT").options(**options).load()
    with pytest.raises(PySparkException) as raised:
        df.collect()
    explained = spark._jvm.PythonSQLUtils.explainString(df._jdf.queryExecution(), "extended")
    assert "cannot be reached" in str(raised.value)
    assert "hunter2" not in str(raised.value) + explained


@pytest.mark.extended
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"connector": "sql", "url": "sqlite:////nowhere.db", "table": "t", "tabel": "x"}, "has no option 'tabel'"),
        ({"connector": "test_data_source:ByKeyOnly"}, "cannot be read in full"),
        ({"connector": "sql", "push-filters": "maybe"}, "Option 'push-filters' is 'maybe'"),
        ({}, "has no option 'connector'"),
    ],
)
def test_an_unreadable_source_names_the_reason(spark, options, text):
    with pytest.raises(PySparkException, match=text):
        spark.read.format("lookupcache").schema("id BIGINT, v STRING").options(**options).load().collect()
    with pytest.raises(PySparkException, match="only reads"):
        spark.range(1).write.format("lookupcache").mode("append").save()
