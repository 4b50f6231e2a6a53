"""The names of Flink's JDBC connector and of Spark's JDBC source: each works, is ignored with advice, or has a cure."""

from __future__ import annotations

import sqlite3
import warnings
from contextlib import closing
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache import LookupSession, LookupTable, jdbc_url, lookup_join
from lookupcache.cli.trial import first_row
from lookupcache.errors import LookupAdvice, LookupCacheError, OptionError
from lookupcache.jdbc import changed_options, from_jdbc
from lookupcache.jdbc_url import from_jdbc_url

SECRET = "Zq7vK9huNter4x81"
SCHEMA = "id BIGINT, name STRING, age INT, status BOOLEAN"
ROWS = [(1, "ann", 30, True), (2, "bob", None, False), (3, "cem", 41, None)]

# What each name means: options of ours, 'ignored' with advice, or 'refused' with a cure.
FLINK = {
    "connector": ("jdbc", {"connector": "sql"}),
    "url": ("jdbc:postgresql://db/shop", {"url": "postgresql://db/shop"}),
    "table-name": ("users", {"table": "users"}),
    "driver": ("org.postgresql.Driver", "ignored"),
    "compatible-mode": ("mysql", "ignored"),
    "username": ("ann", {"user": "ann"}),
    "password": (SECRET, {"password": SECRET}),
    "connection.max-retry-timeout": ("60s", "ignored"),
    "filter.handling.policy": ("always", "ignored"),
    "properties.currentSchema": ("crm", {"url": "postgresql://db/shop?options=-csearch_path%3Dcrm"}),
    "scan.partition.column": ("id", "ignored"),
    "scan.partition.num": ("4", "ignored"),
    "scan.partition.lower-bound": ("1", "ignored"),
    "scan.partition.upper-bound": ("9", "ignored"),
    "scan.fetch-size": ("100", "ignored"),
    "scan.auto-commit": ("false", "ignored"),
    "scan.parallelism": ("2", "ignored"),
    "sink.buffer-flush.max-rows": ("100", "ignored"),
    "sink.buffer-flush.interval": ("1s", "ignored"),
    "sink.max-retries": ("3", "ignored"),
    "sink.parallelism": ("2", "ignored"),
    "lookup.cache": ("PARTIAL", {"lookup.cache": "LRU"}),
    "lookup.max-retries": ("5", {"lookup.max-retries": 5}),
    "lookup.partial-cache.max-rows": ("500", {"lookup.cache": "LRU", "lookup.cache.max-rows": 500}),
    "lookup.partial-cache.expire-after-write": ("10 min", {"lookup.cache.expire-after-write": 600.0}),
    "lookup.partial-cache.expire-after-access": ("1h", {"lookup.cache.expire-after-access": 3600.0}),
    "lookup.partial-cache.cache-missing-key": ("false", {"lookup.cache.missing-key": False}),
    "lookup.partial-cache.caching-missing-key": ("false", {"lookup.cache.missing-key": False}),
    "lookup.full-cache.reload-strategy": ("PERIODIC", {"lookup.cache.reload-interval": 60.0}),
    "lookup.full-cache.periodic-reload.interval": ("1 min", {"lookup.cache.reload-interval": 60.0}),
    "lookup.full-cache.periodic-reload.schedule-mode": ("FIXED_RATE", {"lookup.cache.reload-mode": "fixed-rate"}),
    "lookup.full-cache.timed-reload.iso-time": ("10:15Z", {"lookup.cache.reload-at": "10:15:00+00:00"}),
    "lookup.full-cache.timed-reload.interval-in-days": ("1", {"lookup.cache.reload-at": "10:15:00+00:00"}),
    "lookup.cache.max-rows": ("500", {"lookup.cache": "LRU", "lookup.cache.max-rows": 500}),
    "lookup.cache.ttl": ("10s", {"lookup.cache.expire-after-write": 10.0}),
    "lookup.cache.caching-missing-key": ("false", {"lookup.cache.missing-key": False}),
}
SPARK = {
    "url": ("jdbc:postgresql://db/shop", {"url": "postgresql://db/shop"}),
    "dbtable": ("crm.users", {"schema": "crm", "table": "users"}),
    "query": ("SELECT 1 AS id", {"query": "SELECT 1 AS id"}),
    "user": ("ann", {"user": "ann"}),
    "password": (SECRET, {"password": SECRET}),
    "queryTimeout": (30, {"statement.timeout": "30"}),
    **dict.fromkeys(
        ["driver", "partitionColumn", "lowerBound", "upperBound", "numPartitions", "fetchsize", "truncate",
         "cascadeTruncate", "createTableOptions", "createTableColumnTypes", "batchsize", "isolationLevel",
         "pushDownPredicate", "pushDownAggregate", "pushDownLimit", "pushDownOffset", "pushDownTableSample",
         "pushDownJoin", "tableComment", "preferTimestampNTZ", "preferTimestampNanos", "hint"], ("1", "ignored")
    ),
    **dict.fromkeys(
        ["customSchema", "sessionInitStatement", "prepareQuery", "keytab", "principal", "refreshKrb5Config",
         "connectionProvider"], (SECRET, "refused")
    ),
}  # fmt: skip
BASE = {"url": "jdbc:postgresql://db/shop", "table-name": "t"}
CONTEXT = {
    "query": {"url": BASE["url"]}, "dbtable": {"url": BASE["url"]},
    **{name: {**BASE, "lookup.cache": "PARTIAL"} for name in FLINK if name.startswith("lookup.partial-cache.")},
    **{name: {**BASE, "lookup.cache": "FULL", "lookup.full-cache.periodic-reload.interval": "1 min"}
       for name in FLINK if name.startswith("lookup.full-cache.")},
    **{name: {**BASE, "lookup.cache": "FULL", "lookup.full-cache.timed-reload.iso-time": "10:15Z"}
       for name in FLINK if name.startswith("lookup.full-cache.timed")},
    "lookup.cache.ttl": {**BASE, "lookup.cache.max-rows": "9"},
}  # fmt: skip


NAMES = [(f"{whose}: {name}", name, *case) for whose, names in (("Flink", FLINK), ("Spark", SPARK))
         for name, case in names.items()]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "meaning"), [pytest.param(*case, id=id) for id, *case in NAMES])
def test_each_foreign_name_works_or_has_advice_or_a_cure(name, value, meaning):
    base = CONTEXT.get(name, BASE)
    if meaning == "refused":
        with pytest.raises(OptionError, match=f"'{name}'(?s:.*)Hint: ") as raised:
            LookupTable("c", SCHEMA, {**base, name: value})
        assert SECRET not in str(raised.value)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = LookupTable("c", SCHEMA, {**base, name: value})
    advice = [str(one.message) for one in caught if one.category is LookupAdvice]
    if meaning == "ignored":
        assert len(advice) == 1
        assert f"'{name}'" in advice[0]
        assert "\n" not in advice[0]
        assert table.options == LookupTable("c", SCHEMA, base).options
        return
    assert not advice
    assert table.connector_name == "sql"
    assert SECRET not in repr(table)
    found = table.options | table.config.to_json()
    assert {key: str(found[key]) for key in meaning} == {key: str(value) for key, value in meaning.items()}


@pytest.mark.spark
def test_these_are_the_names_of_sparks_source(spark):
    package = spark._jvm.org.apache.spark.sql.execution.datasources.jdbc
    module = getattr(getattr(package, "JDBCOptions$"), "MODULE$")
    getters = {method.getName() for method in module.getClass().getMethods() if method.getName().startswith("JDBC_")}
    assert len(getters) > 20
    assert {getattr(module, name)() for name in getters} <= {*SPARK}


URLS = {
    "jdbc:postgresql:shop": ("postgresql://localhost/shop", {}),
    "jdbc:postgresql://db:5433/shop?user=ann&password=p%40w%2B1+x": (
        "postgresql://db:5433/shop", {"user": "ann", "password": "p@w+1 x"}),
    "jdbc:postgresql://db/shop?ssl&sslrootcert=/ca.pem": (
        "postgresql://db/shop", {"tls.mode": "verify-full", "tls.ca": "/ca.pem"}),
    "jdbc:postgresql://db/shop?sslmode=require&ssl=true": ("postgresql://db/shop", {"tls.mode": "require"}),
    "jdbc:postgresql://db/shop?options=-c%20jit=off&currentSchema=My%20Crm,b": (
        r"postgresql://db/shop?options=-c%20jit%3Doff%20-csearch_path%3DMy%5C%20Crm%2Cb", {}),
    "jdbc:postgresql://db/shop?connectTimeout=5&socketTimeout=0": ("postgresql://db/shop", {"connect.timeout": "5"}),
    "jdbc:mysql:///shop?useSSL=false&serverTimezone=UTC&zeroDateTimeBehavior=EXCEPTION&characterEncoding=UTF-8": (
        "mysql://localhost/shop", {"tls.mode": "disable"}),
    "jdbc:mysql://db/shop?useSSL=true&sslMode=VERIFY_IDENTITY&connectTimeout=1500&socketTimeout=30000": (
        "mysql://db/shop", {"tls.mode": "verify-full", "connect.timeout": "1.5", "statement.timeout": "30"}),
    "jdbc:mariadb://db:3307/shop?useSsl=true&password=a+b%3D": (
        "mariadb://db:3307/shop", {"tls.mode": "verify-full", "password": "a+b="}),
    "jdbc:mariadb://db/shop?sslMode=trust": ("mariadb://db/shop", {"tls.mode": "require"}),
    "jdbc:sqlite:shop.db": ("sqlite:///shop.db", {}),
    "jdbc:sqlite:file:/data/shop.db?mode=ro&cache=shared": ("sqlite:////data/shop.db", {}),
    "jdbc:duckdb:/data/shop.db": ("duckdb:////data/shop.db", {}),
}  # fmt: skip


@pytest.mark.parametrize(("url", "expected"), URLS.items())
def test_a_jdbc_url_is_one_of_ours_and_options(url, expected):
    assert from_jdbc_url(url) == (*expected, [])


REFUSED_URLS = {
    "jdbc:mysql://db/d?zeroDateTimeBehavior=CONVERT_TO_NULL": r"'zeroDateTimeBehavior'(?s:.*)NULLIF",
    "jdbc:mysql://db/d?serverTimezone=Europe/Vienna": r"'serverTimezone'(?s:.*)TIMESTAMP_NTZ",
    "jdbc:mysql://db/d?characterEncoding=latin1": r"'characterEncoding'(?s:.*)UTF-8",
    "jdbc:mysql://db/d?sessionVariables=sql_mode=ANSI": r"'sessionVariables'(?s:.*)for the user",
    "jdbc:mysql://db/d?trustStorePassword=x": r"'trustStorePassword'(?s:.*)'tls.ca'",
    "jdbc:mysql://db/d?useSLL=false": "'useSLL'(?s:.*)Did you mean 'useSSL'",
    "jdbc:postgresql://db/d?sslkey=/k.pk8": r"'sslkey'(?s:.*)'tls.key'",
    "jdbc:postgresql://db/d?sslmode=sometimes": r"'sslmode'(?s:.*)'tls.mode'",
    "jdbc:postgresql://a,b/d": "several servers(?s:.*)Name one",
    "jdbc:mysql:loadbalance://a/d": "form(?s:.*)mysql://user@host",
    "jdbc:sqlserver://db:1433;databaseName=d;password=x": r"'sqlserver'(?s:.*)mssql\+pymssql://user@host:1433/database",
    "jdbc:oracle:thin:ann/x@//db:1521/d": r"'oracle'(?s:.*)oracle\+oracledb://",
    "jdbc:snowflake://account.snowflakecomputing.com": "snowflake://user@account",
    "jdbc:h2:mem:d": r"only Java reads(?s:.*)format\('jdbc'\)",
    f"jdbc:{SECRET}@db/d": "not known here(?s:.*)postgresql, mysql, mariadb, sqlite, duckdb",
}


@pytest.mark.parametrize(("url", "words"), REFUSED_URLS.items())
def test_names_without_a_counterpart_are_refused_with_a_cure(url, words):
    for secret in (url, url.replace("=x", f"={SECRET}").replace("/x@", f"/{SECRET}@")):
        with pytest.raises(OptionError, match=words) as raised:
            LookupTable("c", SCHEMA, {"connector": "jdbc", "url": secret, "table-name": "t"})
        assert SECRET.lower() not in str(raised.value).lower()


TABLES = {
    ("postgresql", "dbtable", 'Crm."Users"'): {"schema": "crm", "table": "Users"},
    ("postgresql", "table-name", "Users"): {"table": "Users"},
    ("postgresql", "dbtable", "(SELECT id FROM t) AS q"): {"query": "SELECT * FROM (SELECT id FROM t) AS q"},
    ("postgresql", "dbtable", "env:TABLE"): {"table": "env:TABLE"},
    ("mysql", "dbtable", "shop.`a.b`"): {"table": "a.b"},
    ("sqlite", "dbtable", "main.Users"): {"schema": "main", "table": "Users"},
    ("sqlite", "table-name", "all users"): {"table": "all users"},
}


@pytest.mark.parametrize(("case", "expected"), TABLES.items())
def test_a_table_has_the_name_that_it_has_in_flink_or_spark(case, expected):
    kind, name, value = case
    found = LookupTable("c", SCHEMA, {"url": f"jdbc:{kind}://db/shop", name: value}).options
    assert {key: text for key, text in found.items() if key in ("table", "schema", "query")} == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**BASE, "dbtable": "other"}, "'table-name' and 'dbtable' are the same option"),
        (
            {**BASE, "url": "jdbc:mysql://db/shop", "table-name": "other.users"},
            "'table-name'(?s:.*)Write that database",
        ),
        ({**BASE, "url": f"{BASE['url']}?password={SECRET}", "password": "other"}, "'password' differs"),
        ({**BASE, "url": f"{BASE['url']}?password={SECRET}&password=x"}, "'password' of the JDBC URL is given twice"),
        ({**BASE, "url": f"{BASE['url']}?sslmode=verify-full", "sslmode": "disable"}, "'sslmode' is given twice"),
        ({**BASE, "url": f"{BASE['url']}?sslmode=verify-full", "tls.mode": "disable"}, "'tls.mode' differs"),
        ({**BASE, "password": SECRET, "Password": "x"}, "'password' and 'Password' are the same option"),
        ({"url": BASE["url"], "dbtable": " "}, "neither 'table' nor 'query'"),
        ({**BASE, "properties.no": "x"}, "'properties.no'"),
        ({**BASE, "no": "x"}, r"no option 'no'(?s:.*)the nearest are '[\w.]+', '[\w.]+', '[\w.]+'\.$"),
    ],
)
def test_options_that_contradict_or_are_unknown_are_refused(options, words):
    with pytest.raises(LookupCacheError, match=words) as raised:
        LookupTable("c", SCHEMA, options)
    assert SECRET not in str(raised.value)


def test_the_source_is_that_of_the_same_options_in_our_words():
    theirs = {"url": f"jdbc:postgresql://db/shop?user=ann&password={SECRET}&ssl=true", "dbtable": "t"}
    ours = {"connector": "sql", "url": "postgresql://db/shop", "user": "ann", "password": SECRET,
            "tls.mode": "verify-full", "table": "t"}  # fmt: skip
    one, other = LookupTable("c", SCHEMA, theirs), LookupTable("c", SCHEMA, ours)
    assert one.source == other.source
    assert one.options == other.options
    assert SECRET in one.connector.secret_values()
    assert SECRET not in repr(one)


def test_a_value_of_a_url_is_no_reference():
    connector = LookupTable("c", SCHEMA, {**BASE, "url": "jdbc:postgresql://db/shop?password=env:NO"}).connector
    connector.resolve()
    assert connector.settings["password"] == "env:NO"


def test_an_option_of_a_driver_may_be_a_reference(monkeypatch):
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    connector = LookupTable("c", SCHEMA, {**BASE, "properties.password": "env:SHOP_PASSWORD"}).connector
    connector.resolve()
    assert connector.settings["password"] == SECRET


def test_options_that_contradict_a_referenced_url_are_refused(monkeypatch):
    monkeypatch.setenv("SHOP_URL", f"jdbc:postgresql://db/shop?user=ann&password={SECRET}&sslmode=verify-full")
    options = {**BASE, "connector": "jdbc", "url": "env:SHOP_URL"}
    for name, value in {"username": "bob", "password": "x", "tls.mode": "disable"}.items():
        connector = LookupTable("c", SCHEMA, {**options, name: value}).connector
        with pytest.raises(OptionError, match=f"'{name.removesuffix('name')}' differs"):
            connector.resolve()


def test_a_reference_may_lead_to_a_jdbc_url(monkeypatch):
    options = {"connector": "jdbc", "url": "env:SHOP_URL", "table-name": "t"}
    environments = []
    for user in ("ann", "bob", "ann"):
        monkeypatch.setenv("SHOP_URL", f"jdbc:mariadb://db/shop?user={user}&password={SECRET}&cachePrepStmts=true")
        connector = LookupTable("c", SCHEMA, options).connector
        connector.resolve()
        assert connector.settings["url"] == "mariadb://db/shop"
        assert connector.settings["user"] == user
        assert SECRET in connector.secret_values()
        assert SECRET not in repr(connector)
        environments.append(connector.environment())
    assert environments[0] == environments[2] != environments[1]
    assert SECRET not in str(environments)


WORDS = st.sampled_from(["1", "true", "PARTIAL", "10 min", "UTC", "users", "a.b", f"env:{SECRET}", SECRET])
SERVERS = st.sampled_from(
    ["postgresql:", "postgresql://db/", "mysql://db/", "mariadb://ann:x@db/", "sqlite:/", "oracle:thin:"]
)
PARAMETERS = [name for rules in (*jdbc_url._PARAMETERS.values(), *jdbc_url._IGNORED.values()) for name in rules]
PAIRS = st.lists(st.tuples(st.sampled_from([*PARAMETERS, "no"]), WORDS).map("=".join), max_size=2).map("&".join)
URL = st.builds("jdbc:{}{}?{}".format, SERVERS, st.sampled_from(["shop", "shop.db", ""]), PAIRS)
NAMED = st.sampled_from([name for name in (*FLINK, *SPARK, *PARAMETERS) if name != "url"])


def meaning_of(options):
    try:
        return from_jdbc(options, "c")
    except OptionError as error:
        return str(error)


@settings(max_examples=examples(300))
@given(URL, st.dictionaries(NAMED, WORDS, max_size=3))
def test_drawn_options_have_one_meaning_or_a_safe_error(url, options):
    meaning = meaning_of({"table-name": "t", **options, "connector": "jdbc", "url": url})
    assert isinstance(meaning, dict) or SECRET not in meaning
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Options of ours mean themselves, and give no advice.
        assert isinstance(meaning, str) or from_jdbc(meaning, "c") == meaning


SPECIAL = st.text("?&;/#@:=%+, x", max_size=3)
LOGINS = st.sampled_from(["//ann:{}@db/shop", "//db/shop?user=ann&password={}", "//db/shop?password={}&user=ann"])


@settings(max_examples=examples(300))
@given(st.sampled_from(["postgresql", "mysql", "mariadb"]), LOGINS, SPECIAL, SPECIAL)
def test_a_password_that_is_not_encoded_is_never_shown(kind, login, before, after):
    """The rest of it may stand where a host, a database or a parameter's name does."""
    url = f"jdbc:{kind}:{login.format(before + SECRET + after)}"
    try:
        with warnings.catch_warnings(record=True) as caught:
            table = LookupTable("c", SCHEMA, {"connector": "jdbc", "url": url, "table-name": "t"})
        shown = [repr(table), repr(table.connector), *(str(one.message) for one in caught)]
    except LookupCacheError as error:
        shown = [str(error)]
    assert SECRET not in "".join(shown)


def test_changes_have_the_same_names(tmp_path):
    table = LookupTable("c", SCHEMA, {"connector": "jdbc", "url": "jdbc:sqlite:a.db", "table-name": "t"})
    assert table.with_options({"table-name": "u", "queryTimeout": 5}).options == {
        "connector": "sql", "url": "sqlite:///a.db", "table": "u", "statement.timeout": 5
    }  # fmt: skip
    assert table.with_options({"url": "jdbc:sqlite:b.db"}).options["url"] == "sqlite:///b.db"
    assert changed_options({"connector": "http"}, {"driver": "x"}, "c") == {"driver": "x"}


def test_a_table_file_has_the_same_names(tmp_path):
    path = tmp_path / "users.toml"
    path.write_text(
        f'schema = "{SCHEMA}"\n[options]\nurl = "jdbc:sqlite:{tmp_path}/shop.db"\ndbtable = "users"\nfetchsize = 9\n'
    )
    assert LookupTable.from_toml(path).options == {
        "connector": "sql", "url": f"sqlite:///{tmp_path}/shop.db", "table": "users"
    }  # fmt: skip


# ── real databases ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def database(request, tmp_path_factory):
    """Return the JDBC URL of a database with the table `users`, and its login."""
    create = "CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(9), age INT, status BOOLEAN)"
    values = "INSERT INTO users VALUES (1, 'ann', 30, true), (2, 'bob', NULL, false), (3, 'cem', 41, NULL)"
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("jdbc") / "shop.db"
        with closing(sqlite3.connect(path)) as shop, shop:
            shop.execute(create)
            shop.execute(values)
        yield f"jdbc:sqlite:{path}", {}
        return
    server = request.getfixturevalue("postgres_server" if request.param == "postgresql" else "maria_server")
    server.run("DROP TABLE IF EXISTS users", create, values)
    url = urlsplit(server.url)
    login = {"user": url.username, "password": url.password}
    yield f"jdbc:{request.param}://{url.hostname}:{url.port}{url.path}", login
    server.run("DROP TABLE users")


FLINK_TABLE = """
CREATE TABLE MyUserTable (
  id BIGINT,
  name STRING,
  age INT,
  status BOOLEAN,
  PRIMARY KEY (id) NOT ENFORCED
) WITH (
  'connector' = 'jdbc',
  'url' = '{url}',
  'table-name' = 'users',
  'driver' = 'org.example.Driver',{login}
  'connection.max-retry-timeout' = '60s',
  'scan.fetch-size' = '100',
  'scan.auto-commit' = 'true',
  'lookup.cache' = 'PARTIAL',
  'lookup.partial-cache.max-rows' = '500',
  'lookup.partial-cache.expire-after-write' = '10 min',
  'lookup.partial-cache.cache-missing-key' = 'true',
  'lookup.max-retries' = '3',
  'sink.buffer-flush.max-rows' = '100',
  'sink.parallelism' = '1'
)
"""


def rows_of(df):
    return sorted(map(tuple, df.collect()), key=str)


@pytest.fixture
def keys(spark):
    """Return the left side, and the rows of Spark's own join with the same users."""
    spark.createDataFrame(ROWS, SCHEMA).createOrReplaceTempView("own_users")
    spark.createDataFrame([(1,), (3,), (9,), (None,)], "k BIGINT").coalesce(1).createOrReplaceTempView("keys")
    yield rows_of(spark.sql("SELECT k, id, name, age, status FROM keys LEFT JOIN own_users ON k = id"))
    for view in ("own_users", "keys"):
        spark.catalog.dropTempView(view)


@pytest.mark.spark
def test_a_table_of_flinks_runs_as_it_is(spark, keys, database):
    url, login = database
    names = {"username": login.get("user"), "password": login.get("password")} if login else {}
    text = "".join(f"\n  '{name}' = '{value}'," for name, value in names.items())
    session = LookupSession(spark)
    session.sql(FLINK_TABLE.format(url=url, login=text))
    joined = session.sql(
        "SELECT k, u.id, u.name, u.age, u.status FROM keys LEFT JOIN MyUserTable FOR SYSTEM_TIME AS OF PROCTIME() AS u "
        "ON k = u.id"
    )
    assert rows_of(joined) == keys
    session.sql("CREATE TABLE others (PRIMARY KEY (id) NOT ENFORCED) WITH ('table-name' = 'no_such') LIKE MyUserTable")
    with pytest.raises(Exception, match="no table or view 'no_such'"):
        session.sql("SELECT * FROM others").collect()
    session.sql("DROP TABLE others")


@pytest.mark.spark
def test_options_of_sparks_source_run_as_they_are(spark, keys, database):
    url, login = database
    options = {
        "url": url, "dbtable": "(SELECT * FROM users WHERE id < 9) AS u", **login, "driver": "org.example.Driver",
        "fetchsize": 100, "numPartitions": 4, "partitionColumn": "id", "lowerBound": 1, "upperBound": 9,
        "queryTimeout": 30, "pushDownPredicate": True,
    }  # fmt: skip
    table = LookupTable("u", SCHEMA, options)
    joined = lookup_join(spark.table("keys"), table, on="left.k = u.id", how="left", select=["k", "u.*"])
    assert rows_of(joined) == keys
    read = spark.read.format("lookupcache").schema(SCHEMA).options(**{**options, "dbtable": "users"}).load()
    assert rows_of(read) == sorted(ROWS, key=str)


def test_a_reference_leads_to_a_jdbc_url_with_a_login(database, monkeypatch):
    url, login = database
    tuning = {"sqlite": "busy_timeout", "postgresql": "prepareThreshold", "mariadb": "cachePrepStmts"}
    ignored = tuning[url.split(":")[1]]
    monkeypatch.setenv("SHOP_URL", f"{url}?{urlencode({**login, ignored: '1'})}")
    table = LookupTable("u", SCHEMA, {"connector": "jdbc", "url": "env:SHOP_URL", "table-name": "users"})
    row, advice = first_row(table, {"id": "1"})
    assert row == {"id": 1, "name": "ann", "age": 30, "status": True}
    assert len(advice) == 1
    assert ignored in advice[0]


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_query_has_the_types_of_its_table(database):
    """SQLite knows no types of a query's columns."""
    url, login = database
    table, query = ({"url": url, "dbtable": source, **login} for source in ("users", "(SELECT * FROM users) AS u"))
    assert LookupTable("u", None, query).schema == LookupTable("u", None, table).schema


def test_a_schema_of_postgresql_is_found_by_its_search_path(postgres_server):
    postgres_server.run('CREATE SCHEMA "My Crm"', 'CREATE TABLE "My Crm".people AS SELECT 1::bigint AS id')
    url = urlsplit(postgres_server.url)
    given = f"user={url.username}&password={url.password}&sslmode=disable&currentSchema=public,%22My%20Crm%22"
    try:
        for source in ({"table-name": "people"}, {"query": "SELECT * FROM people"}, {"dbtable": '"My Crm".people'}):
            options = {
                "connector": "jdbc",
                "url": f"jdbc:postgresql://{url.netloc.rpartition('@')[2]}{url.path}?{given}",
            }
            assert LookupTable("p", None, {**options, **source}).schema == pa.schema([("id", pa.int64())])
    finally:
        postgres_server.run('DROP SCHEMA "My Crm" CASCADE')


def test_a_zero_date_is_an_error_unless_a_query_makes_it_null(maria_server):
    maria_server.run("CREATE TABLE visits (id BIGINT, day DATE)", "INSERT INTO visits VALUES (1, '0000-00-00')")
    url = urlsplit(maria_server.url)
    options = {"connector": "jdbc", "username": url.username, "password": url.password,
               "url": f"jdbc:mariadb://{url.hostname}:{url.port}{url.path}"}  # fmt: skip
    schema = "id BIGINT, day DATE"
    try:
        with pytest.raises(LookupCacheError, match="0000-00-00"):
            first_row(LookupTable("v", schema, {**options, "table-name": "visits"}), {"id": "1"})
        cure = {"query": "SELECT id, NULLIF(day, '0000-00-00') AS day FROM visits"}
        assert first_row(LookupTable("v", schema, {**options, **cure}), {"id": "1"})[0] == {"id": 1, "day": None}
    finally:
        maria_server.run("DROP TABLE visits")
