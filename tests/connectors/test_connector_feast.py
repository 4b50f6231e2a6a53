"""The feast connector: Feast's own library with SQLite and with a real Redis as online store."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import shutil
import warnings
from typing import ClassVar

import pyarrow as pa
import pytest
from features import NOW, Repository, Value, feast
from features import feast_types as types
from lookupcache_feast.repository import open_store, secrets_of
from servers import RedisServer

from lookupcache.connector import LookupRequest, build_connector
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, PlanError, SchemaError, SourceError
from lookupcache.schema import parse_ddl, to_ddl
from lookupcache.table import LookupTable
from lookupcache.testing import ConnectorSuite
from lookupcache.testing.join import LocalJoin, Wanted

# Feast, dask and pydantic warn about each other.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning", "ignore:On demand:RuntimeWarning"
)

DRIVERS = "driver_id BIGINT, trips BIGINT, rating FLOAT"


@pytest.fixture(scope="module")
def server(redis_server):
    return redis_server


@pytest.fixture
def repository(tmp_path):
    """Return a repository with SQLite, and the views `stats` and `profile` of drivers 1, 2, 3 and 4."""
    made = Repository(tmp_path)
    yield made
    made.close()


@pytest.fixture
def drivers(repository):
    features = {"driver_id": types.Int64, "trips": types.Int64, "rating": types.Float32}
    stats = repository.view("stats", ["driver_id"], features, ttl=dt.timedelta(days=1))
    profile = repository.view(
        "profile", ["driver_id"], {"driver_id": types.Int64, "name": types.String, "rating": types.Float32}
    )
    repository.store.apply(feast.FeatureService(name="drivers", features=[stats, profile]))
    rows = pa.table({"driver_id": [1, 2, 3], "trips": [5, 6, None], "rating": pa.array([0.5, None, 2.0], pa.float32())})
    times = pa.array([NOW - dt.timedelta(hours=1)] * 2 + [NOW - dt.timedelta(days=30)])
    write_parquet(rows.append_column("event_timestamp", times), repository, "stats")
    rows = pa.table({"driver_id": [1, 4], "name": ["Ann", "Dee"], "rating": pa.array([1.0, 4.0], pa.float32())})
    write_parquet(rows.append_column("event_timestamp", times[:2]), repository, "profile")
    repository.store.materialize(NOW - dt.timedelta(days=60), NOW + dt.timedelta(minutes=1))
    return repository


def write_parquet(rows, repository, view):
    import pyarrow.parquet as pq

    pq.write_table(rows, repository.folder / f"{view}.parquet")


@pytest.fixture
def connect(repository):
    """Return a function that opens a connector; all are closed in the end."""
    opened = []

    def connector(schema=DRIVERS, **options):
        opened.append(build_connector("feast", parse_ddl(schema), {"repo": str(repository.folder), **options}))
        opened[-1].resolve()
        opened[-1].open()
        return opened[-1]

    yield connector
    for one in opened:
        one.close()


def rows_of(connector, keys, *columns, key="driver_id"):
    request = LookupRequest(table="t", key_columns=(key,), columns=columns)
    table = connector.lookup(request, pa.record_batch({key: pa.array(keys, connector.schema.field(key).type)}))
    assert table.column_names == list(request.fields)
    return [tuple(row.values()) for row in table.to_pylist()]


# ── the suite of all connectors ──────────────────────────────────────────────────────────────────────────────


class FeastSuite(ConnectorSuite):
    connector = "feast"
    unique_keys = True
    unsupported: ClassVar = {
        **dict.fromkeys(["tinyint", "smallint", "decimal", "date", "timestamp_ntz"], "Feast has no such type"),
        # Arrays, structs, maps and timestamps in whole seconds have tests of their own.
        **dict.fromkeys(["array", "map", "struct", "timestamp"], "not all values"),
    }
    unsupported_keys: ClassVar = dict.fromkeys(["boolean", "float", "double"], "Feast has no such keys")
    test_a_type_that_it_cannot_hold_is_refused = None

    @pytest.fixture
    def own(self, tmp_path):
        made = Repository(tmp_path)
        yield made
        made.close()

    @pytest.fixture
    def load(self, own):
        return own.load


class TestRedis(FeastSuite):
    @pytest.fixture
    def own(self, tmp_path, server):
        with server.client() as client:
            client.flushall()
        made = Repository(tmp_path, f"127.0.0.1:{server.port}")
        yield made
        made.close()

    @pytest.fixture
    def load(self, own):
        def load(rows, key):
            own.loaded = (rows, key)
            text = own.text.replace("registry.db", str(own.folder / "registry.db"))
            return {"config": text, "view": own.load(rows, key)["view"]}

        return load

    @pytest.fixture
    def restart(self, own, server):
        def start():
            server.start()
            own.write(own.store.get_feature_view(f"v{own.views}"), *own.loaded)

        return server.kill, start


class TestSqlite(FeastSuite):
    # What does not depend on the online store is tested with Redis, which is configured by text.
    test_constants = test_secrets_by_reference = test_secrets_are_not_shown = None
    test_ten_thousand_keys_in_a_call = test_hostile_texts = test_many_calls_at_a_time = test_filters = None


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("type_", ["TINYINT", "SMALLINT", "DECIMAL(10,2)", "DATE", "TIMESTAMP_NTZ", "ARRAY<DATE>"])
def test_a_type_that_no_feature_has_is_refused(type_):
    with pytest.raises(SchemaError, match=r"Column 'odd' is .*, which no feature is"):
        build_connector("feast", parse_ddl(f"id BIGINT, odd {type_}"), {"config": "a: b", "view": "v"})


def test_values_of_nested_types(repository, connect):
    fields = {"id": types.Int64, "tags": types.Array(types.String), "seen": types.UnixTimestamp,
              "scores": types.Array(types.Float32), "some": types.Set(types.Int64), "more": types.Json,
              "of": types.Map, "at": types.Struct({"x": types.Int64, "y": types.String})}  # fmt: skip
    view = repository.view("nested", ["id"], fields)
    import pandas as pd

    values = {"id": 1, "tags": ["a", "b"], "seen": NOW, "scores": [0.5, 1.0], "some": {3, 1}, "more": '{"a": [1]}',
              "of": {"k": "v"}, "at": {"x": 1, "y": "z"}, "event_timestamp": NOW}  # fmt: skip
    repository.store.write_to_online_store(view.name, pd.DataFrame([values]))
    table = LookupTable("n", None, {"connector": "feast", "repo": str(repository.folder), "view": "nested"})
    assert to_ddl(table.schema) == (
        "`id` bigint, `tags` array<string>, `seen` timestamp, `scores` array<float>, `some` array<bigint>, "
        "`more` string, `of` map<string,string>, `at` struct<`x`:bigint,`y`:string>"
    )
    [row] = rows_of(connect(to_ddl(table.schema), view="nested"), [1], *table.schema.names[1:], key="id")
    assert row == (1, ["a", "b"], NOW, [0.5, 1.0], [1, 3], '{"a": [1]}', [("k", "v")], {"x": 1, "y": "z"})


def other_values():
    """Return values of other types than the registry has, which Arrow or Python would convert or refuse."""
    return {
        "n": [Value(double_val=1.5), Value(double_list_val={"val": [1.5]}), Value(unix_timestamp_val=7)],
        "many": [Value(double_list_val={"val": [1.5]})],
        "small": [Value(double_val=0.1)],
        "name": [Value(bytes_val=b"a")],
        "data": [Value(string_val="a")],
        "seen": [Value(int64_val=5), Value(unix_timestamp_val=10**15)],
    }


def test_a_value_of_another_type_is_an_error_and_a_null_is_null(repository, connect):
    fields = {"id": types.Int64, "n": types.Int64, "many": types.Array(types.Int64), "small": types.Float32,
              "name": types.String, "data": types.Bytes, "seen": types.UnixTimestamp}  # fmt: skip
    view = repository.view("changed", ["id"], fields)
    cells = [(name, value) for name, values in other_values().items() for value in values]
    cells.append(("n", Value(null_val=0)))
    repository.put(view, "id", {number: {name: value} for number, (name, value) in enumerate(cells)})
    schema = "id BIGINT, n BIGINT, many ARRAY<BIGINT>, small FLOAT, name STRING, data BINARY, seen TIMESTAMP"
    changed = connect(schema + ", n__status STRING", view="changed")
    for number, (name, _) in enumerate(cells[:-1]):
        with pytest.raises(SourceError, match=f"Feature '{name}' has a value that is no"):
            rows_of(changed, [number], name, key="id")
    null = len(cells) - 1
    assert rows_of(changed, [null], "n", "n__status", key="id") == [(null, None, "NULL_VALUE")]


# ── rows, timestamps and statuses ────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
def test_materialized_features_with_times_and_statuses(drivers, connect):
    table = LookupTable("t", None, {"connector": "feast", "repo": str(drivers.folder), "view": "stats",
                                    "metadata": "true"})  # fmt: skip
    assert table.schema.names == [
        "driver_id", "trips", "trips__ts", "trips__status", "rating", "rating__ts", "rating__status",
    ]  # fmt: skip
    stats = connect(to_ddl(table.schema), view="stats")
    recent, old = NOW - dt.timedelta(hours=1), NOW - dt.timedelta(days=30)
    assert rows_of(stats, [3, 9, 1, 2], *table.schema.names[1:]) == [
        (3, None, old, "NULL_VALUE", 2.0, old, "OUTSIDE_MAX_AGE"),
        (1, 5, recent, "PRESENT", 0.5, recent, "PRESENT"),
        (2, 6, recent, "PRESENT", None, recent, "NULL_VALUE"),
    ]
    fresh = connect(DRIVERS + ", rating__status STRING", view="stats", **{"outside-max-age": "null"})
    assert rows_of(fresh, [1, 3], "rating", "rating__status") == [(1, 0.5, "PRESENT"), (3, None, "OUTSIDE_MAX_AGE")]


@pytest.mark.extended
def test_a_service_has_a_row_if_one_of_its_views_has(drivers, connect):
    schema = "driver_id BIGINT, trips BIGINT, name STRING, name__status STRING, profile__rating FLOAT"
    service = connect(schema, service="drivers")
    columns = ("trips", "name", "name__status", "profile__rating")
    expected = [(1, 5, "Ann", "PRESENT", 1.0), (2, 6, None, "NOT_FOUND", None), (4, None, "Dee", "PRESENT", 4.0)]
    assert rows_of(service, [1, 2, 4, 9], *columns) == expected
    # Which rows there are does not depend on the columns that a query reads.
    for column in (*columns, None):
        read = [column] if column else []
        assert [row[0] for row in rows_of(service, [1, 2, 4, 9], *read)] == [1, 2, 4]


@pytest.mark.extended
def test_a_feature_that_was_added_later_is_not_found_in_old_rows(drivers, connect):
    fields = {"driver_id": types.Int64, "trips": types.Int64, "rating": types.Float32, "km": types.Int64}
    drivers.view("stats", ["driver_id"], fields, ttl=dt.timedelta(days=1))
    stats = connect(DRIVERS + ", km BIGINT, km__status STRING", view="stats")
    assert rows_of(stats, [1, 9], "km", "km__status") == [(1, None, "NOT_FOUND")]


@pytest.mark.extended
def test_a_call_is_one_request_for_the_features_that_are_read(drivers, connect, monkeypatch):
    stats, requested = connect(view="stats"), []
    answer = stats._store.get_online_features

    def recording(**request):
        requested.append(request)
        return answer(**request)

    monkeypatch.setattr(stats._store, "get_online_features", recording)
    rows_of(stats, list(range(1_000)), "rating")
    [request] = requested
    assert request["features"] == ["stats:rating"]
    assert len(request["entity_rows"]["driver_id"]) == 1_000


def test_a_key_of_two_entities(repository, connect):
    view = repository.view("pairs", ["shop", "item"], {"shop": types.String, "item": types.Int64, "price": types.Int64})
    repository.write(view, pa.table({"shop": ["a", "a", "b"], "item": [1, 2, 1], "price": [10, 20, 30]}),
                     ["shop", "item"])  # fmt: skip
    pairs = connect("shop STRING, item BIGINT, price BIGINT", view="pairs")
    keys = pa.record_batch({"item": [1, 2, 3]})
    request = LookupRequest(table="t", key_columns=("item",), columns=("price",), constants={"shop": "a"})
    assert pairs.lookup(request, keys).to_pylist() == [{"item": 1, "price": 10}, {"item": 2, "price": 20}]
    with pytest.raises(PlanError, match="looked up by 'shop', which the join does not have"):
        pairs.lookup(LookupRequest(table="t", key_columns=("item",), columns=("price",)), keys)


@pytest.mark.extended
def test_a_constant_entity_and_a_feature_as_key_are_one_request(drivers):
    table = LookupTable("t", DRIVERS, {"connector": "feast", "repo": str(drivers.folder), "view": "stats"})
    wanted = Wanted(key=("trips",), constants={"driver_id": 1}, columns=("rating",))
    with LocalJoin(table, wanted) as join:
        assert join.rows([(5,), (6,), (7,)]) == [(0.5,)]


def test_a_key_with_microseconds_does_not_match_the_whole_second(repository, connect):
    view = repository.view("times", ["at"], {"at": types.UnixTimestamp, "n": types.Int64})
    repository.put(view, "at", {int(NOW.timestamp()): {"n": Value(int64_val=1)}})
    times = connect("at TIMESTAMP, n BIGINT", view="times")
    assert rows_of(times, [NOW + dt.timedelta(microseconds=1), NOW], "n", key="at") == [(NOW, 1)]


def test_only_a_key_beyond_pythons_years_fails(repository):
    view = repository.view("far", ["at"], {"at": types.UnixTimestamp, "n": types.Int64})
    repository.put(view, "at", {0: {"n": Value(int64_val=7)}})
    own = {"connector": "feast", "repo": str(repository.folder), "view": "far"}
    table = LookupTable("t", "at TIMESTAMP, n BIGINT", {**own, "lookup.on-error": "null", "lookup.error-column": "why"})
    for moments, expected in (([0, 2**60], [7, None]), ([2**60, -(2**60)], [None, None])):
        keys = pa.record_batch({"at": pa.array(moments).cast(pa.timestamp("us", "UTC"))})
        with LocalJoin(table, Wanted(key=("at",), columns=("n",))) as join:
            found = join.join(keys)
        assert found.column("n").to_pylist() == expected
        assert [why and why["code"] for why in found.column("why").to_pylist()] == [
            None if value else "LOOKUP_ERROR" for value in expected
        ]


# ── definitions that do not fit, and a store that fails ──────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        (
            {"view": "stat"},
            DRIVERS,
            "which the registry does not have.\n\nHint: Did you mean 'stats'",
        ),
        ({"service": "x"}, DRIVERS, "'service' is 'x', which the registry does not have"),
        ({"view": "stats"}, "driver_id BIGINT, tripps BIGINT", "Column 'tripps' is neither a join key nor a feature"),
        ({"view": "stats"}, "driver_id BIGINT, driver_id__ts TIMESTAMP", "'driver_id__ts' is neither a join key nor"),
        ({"view": "stats"}, "driver_id BIGINT, trips STRING", "'trips' is STRING; the feature store has BIGINT"),
        ({"view": "stats"}, "driver_id INT, trips BIGINT", "'driver_id' is INT; the feature store has BIGINT"),
        ({"service": "renamed"}, DRIVERS, "renames view 'stats'"),
        ({"service": "computed"}, DRIVERS, "has 'twice', which computes features on demand"),
    ],
)
def test_definitions_that_do_not_fit(drivers, connect, options, schema, text):
    stats = drivers.store.get_feature_view("stats")

    @feast.on_demand_feature_view.on_demand_feature_view(
        sources=[stats], schema=[feast.Field(name="t2", dtype=types.Int64)], mode="pandas"
    )
    def twice(rows):
        return rows[["trips"]].rename(columns={"trips": "t2"}) * 2

    renamed = feast.FeatureService(name="renamed", features=[stats.with_name("other")])
    drivers.store.apply([twice, renamed, feast.FeatureService(name="computed", features=[stats, twice])])
    with pytest.raises((OptionError, SchemaError)) as caught:
        connect(schema, **options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"view": "v"}, "needs option 'repo' or 'config'"),
        ({"config": "a: b"}, "one of the options 'view' and 'service'"),
        ({"config": "a: b", "view": "v", "service": "s"}, "one of the options 'view' and 'service'"),
        ({"repo": "/no/such", "view": "v"}, "Option 'repo' is '/no/such', where feature_store.yaml cannot be read"),
        ({"config": "a: b", "view": "v", "outside-max-age": "drop"}, "Option 'outside-max-age' is 'drop'"),
    ],
)
def test_options_that_do_not_go_together(options, text):
    with pytest.raises(OptionError, match=text):
        build_connector("feast", parse_ddl(DRIVERS), options)


@pytest.mark.extended
def test_an_online_store_that_is_lost_is_an_error(drivers, connect):
    stats = connect(view="stats")
    os.remove(drivers.folder / "online.db")
    with pytest.raises(Exception, match="no such table") as caught:
        rows_of(stats, [1], "trips")
    assert stats.retryable(caught.value)


@pytest.mark.extended
def test_a_registry_that_is_lost_is_an_error_and_is_not_created(drivers, connect):
    os.remove(drivers.folder / "registry.db")
    with pytest.raises(ConnectorError, match=r"The registry 'registry\.db' of feature_store\.yaml is not a file"):
        connect(view="stats")
    assert not (drivers.folder / "registry.db").exists()


# ── the configuration as text ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
def test_a_worker_needs_no_feature_store_yaml(drivers, monkeypatch):
    folder = drivers.folder
    text = drivers.text.replace("registry.db", "${REGISTRY}").replace("online.db", str(folder / "online.db"))
    (folder / "feature_store.yaml").write_text(text)
    from_repo = build_connector("feast", parse_ddl(DRIVERS), {"repo": str(folder), "view": "stats"})
    monkeypatch.setenv("SHOP_FEAST", text)
    by_variable = build_connector("feast", parse_ddl(DRIVERS), {"config": "env:SHOP_FEAST", "view": "stats"})
    (folder / "feature_store.yaml").unlink()
    monkeypatch.setenv("REGISTRY", str(folder / "registry.db"))
    for connector in (from_repo, by_variable):
        copied = pickle.loads(pickle.dumps(connector))
        copied.resolve()
        copied.open()
        assert rows_of(copied, [1], "trips") == [(1, 5)]
        copied.close()
    assert from_repo.identity() != build_connector(
        "feast", parse_ddl(DRIVERS), {"config": text, "view": "stats"}).identity()  # fmt: skip


@pytest.mark.extended
def test_features_written_to_redis_are_found_by_its_password(server, tmp_path):
    protected = RedisServer("--requirepass", "s3cret-4711").start()
    try:
        made = Repository(tmp_path, f"127.0.0.1:{protected.port},password=s3cret-4711")
        view = made.view("v", ["id"], {"id": types.Int64, "n": types.Int64})
        import pandas as pd

        made.store.write_to_online_store(view.name, pd.DataFrame({"id": [1], "n": [2], "event_timestamp": [NOW]}))
        made.close()
        connector = build_connector("feast", parse_ddl("id BIGINT, n BIGINT"), {"repo": str(tmp_path), "view": "v"})
        connector.open()
        assert rows_of(connector, [1, 2], "n", key="id") == [(1, 2)]
        connector.close()
        assert "s3cret-4711" in connector.secret_values()
        assert "s3cret" not in repr(connector)
        shutil.copytree(tmp_path, tmp_path / "wrong")
        wrong = tmp_path / "wrong" / "feature_store.yaml"
        wrong.write_text(made.text.replace("s3cret-4711", "hunter2-4x"))
        options = {"repo": str(wrong.parent), "view": "v", "lookup.max-retries": "0"}
        refused = LookupTable("t", "id BIGINT, n BIGINT", {"connector": "feast", **options}).connector
        refused.open()
        with pytest.raises(Exception, match=r"(?i)password|auth"):
            rows_of(refused, [1], "n", key="id")
        refused.close()
    finally:
        protected.close()


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "just text s3cret-4711",
        "online_store: {type: redis, password: s3cret-4711}",
        "project: shop\nregistry: r\nprovider: local\nonline_store: s3cret-4711",
    ],
)
def test_a_wrong_configuration_is_not_shown(text):
    with pytest.raises(LookupCacheError) as caught:
        open_store(text, None)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_secrets_of_a_configuration(monkeypatch):
    monkeypatch.setenv("REDIS_PASSWORD", "from-the-environment")
    text = """
registry: {registry_type: sql, path: "postgresql://feast:p4ssw0rd-1@db/feast"}
online_store:
  connection_string: "cache:6379,ssl=true,password=${REDIS_PASSWORD}"
  auth: [{client_secret: s3cret-2}]
  other: "cache:6379,password=s3&cret;3 4,db=1"
  blobs: "AccountName=shop;AccountKey=s3cret-5==;EndpointSuffix=core"
  parts: {password: {value: s3cret-6}, access_key: s3cret-7}
"""
    assert {
        "p4ssw0rd-1",
        "from-the-environment",
        "s3&cret;3 4",
        *(f"s3cret-{n}" for n in (2, 6, 7)),
        "s3cret-5==",
    } <= set(secrets_of(text))
    assert "true" not in set(secrets_of(text))


# ── in Spark ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly  # By day `test_guides.py` makes a join with one.
@pytest.mark.spark
def test_a_join_with_a_feature_view(spark, drivers):
    from lookupcache import lookup_join

    stats = LookupTable("s", None, {"connector": "feast", "repo": str(drivers.folder), "view": "stats",
                                    "metadata": "true", "lookup.cache": "LRU"})  # fmt: skip
    rides = spark.createDataFrame([(1, 1), (2, 3), (3, 9), (4, 1)], "ride INT, driver BIGINT")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        joined = lookup_join(rides, stats, "driver = s.driver_id AND s.rating > 0", how="left",
                             select=["ride", "trips", "s.rating__status"])  # fmt: skip
        rows = sorted(map(tuple, joined.collect()))
    assert rows == [(1, 5, "PRESENT"), (2, None, "OUTSIDE_MAX_AGE"), (3, None, None), (4, 5, "PRESENT")]
