"""The files connector on real files: Parquet as pyarrow and Spark write it, and Delta."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from connector_calls import looked_up
from lookupcache_files.connector import FilesConnector, write_snapshot

from lookupcache.connector import LookupRequest, build_connector
from lookupcache.errors import ConnectorError, LookupFailedError, OptionError, SourceError
from lookupcache.expr import Call, Column, Literal, keep, literal
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable
from lookupcache.testing import ConnectorSuite

CUSTOMERS = "id BIGINT, name STRING, country STRING"
ROWS = pa.table({"id": [1, 2, 3, 4], "name": ["ann", "bob", "cy", None], "country": ["NL", "DE", "NL", "NL"]})
ID, NAME = Column("right", "id", pa.int64()), Column("right", "name", pa.string())


@pytest.fixture
def customers(tmp_path):
    """A folder with one file in two row groups."""
    pq.write_table(ROWS, tmp_path / "part-0.parquet", row_group_size=2)
    return tmp_path


def files(path, schema=CUSTOMERS, **options):
    connector = FilesConnector(parse_ddl(schema), {"path": str(path), **options})
    connector.open()
    return connector


def request(columns=("name", "country"), **rest):
    return LookupRequest(table="t", key_columns=("id",), columns=tuple(columns), **rest)


def scanned(connector, wanted=None):
    batches = list(connector.scan(wanted or request()))
    return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=repr)


def spoil(path, row_group, column):
    """Overwrite where the values of a column lie, so that nobody can read them."""
    chunk = pq.ParquetFile(path).metadata.row_group(row_group).column(column)
    start = min(filter(None, [chunk.dictionary_page_offset, chunk.data_page_offset]))
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(b"\xff" * chunk.total_compressed_size)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_and_a_file(customers):
    expected = [(1, "ann", "NL"), (2, "bob", "DE"), (3, "cy", "NL"), (4, None, "NL")]
    assert scanned(files(customers)) == expected
    assert scanned(files(customers / "part-0.parquet")) == expected


def test_all_rows_cached_by_a_worker(customers):
    table = LookupTable("c", CUSTOMERS, {"connector": "files", "path": str(customers), "lookup.cache": "ALL"})
    assert looked_up(table, [3, 9, 1], "name") == [(3, "cy"), (9, None), (1, "ann")]


def test_rows_by_key(customers):
    table = LookupTable("c", CUSTOMERS, {"connector": "files", "path": str(customers), "lookup.cache": "LRU"})
    assert looked_up(table, [3, 9, 1], "name") == [(3, "cy"), (9, None), (1, "ann")]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("type_", "value", "other"),
    [
        ("BOOLEAN", True, False), ("DOUBLE", 2.5, math.nan), ("BINARY", b"\xff", b""),
        ("DECIMAL(38,2)", Decimal("1.10"), Decimal(2)), ("STRING", "a\0", ""), ("DATE", dt.date(1, 1, 1), dt.date.max),
        ("TIMESTAMP_NTZ", dt.datetime(2024, 5, 1), dt.datetime(1, 1, 1)), ("TINYINT", -128, 127),
    ],
)  # fmt: skip
def test_rows_by_a_key_of_any_type_are_among_those_returned(tmp_path, type_, value, other):
    schema = parse_ddl(f"id {type_}")
    pq.write_table(pa.table([pa.array([value, None], schema.types[0])], schema=schema), tmp_path / "f.parquet")
    keys = pa.RecordBatch.from_arrays([pa.array([value, other], schema.types[0])], schema=schema)
    assert {"id": value} in files(tmp_path, f"id {type_}").lookup(request([]), keys).to_pylist()


def test_constants_and_filters_are_applied(customers):
    older = Call(">", (ID, literal(1, pa.int64())))
    wanted = request(["name"], constants={"country": "NL"}, filters=(older,))
    assert scanned(files(customers), wanted) == [(3, "cy"), (4, None)]


def test_columns_that_are_not_requested_are_not_read(customers):
    spoil(customers / "part-0.parquet", 0, 2)
    spoil(customers / "part-0.parquet", 1, 2)
    assert scanned(files(customers), request(["name"]))[0] == (1, "ann")
    with pytest.raises((OSError, pa.ArrowException)):
        scanned(files(customers))


@pytest.mark.parametrize(
    "condition",
    [
        Call("<=", (ID, literal(2, pa.int64()))),
        Call(">", (literal(3, pa.int64()), ID)),
        Call("<", (NAME, literal("c", pa.string()))),
        Call("and", (Call("=", (ID, literal(1, pa.int64()))), Call("=", (ID, ID)))),
        Call("or", (Call("=", (ID, literal(1, pa.int64()))), Call("<=>", (ID, literal(2, pa.int64()))))),
    ],
)  # fmt: skip
def test_row_groups_without_matching_rows_are_not_read(customers, condition):
    for column in range(3):
        spoil(customers / "part-0.parquet", 1, column)
    expected = keep(ROWS.slice(0, 2).cast(parse_ddl(CUSTOMERS)), [condition]).num_rows
    assert len(scanned(files(customers), request(filters=(condition,)))) == expected


def test_row_groups_without_a_key_are_not_read(customers):
    for column in range(3):
        spoil(customers / "part-0.parquet", 0, column)
    found = files(customers).lookup(request(["name"]), pa.record_batch({"id": [3, 9]}))
    assert found.to_pylist() == [{"id": 3, "name": "cy"}]


def test_a_nan_is_above_all_numbers_whatever_the_statistics_say(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "x": [1.0, math.nan]}), tmp_path / "f.parquet")
    above = Call(">", (Column("right", "x", pa.float64()), literal(5.0, pa.float64())))
    assert scanned(files(tmp_path, "id BIGINT, x DOUBLE"), request([], filters=(above,))) == [(2,)]


@pytest.mark.parametrize(
    "condition",
    [
        Call("is null", (NAME,)),
        Call("not", (Call("is null", (NAME,)),)),
        Call("not", (Call("=", (NAME, literal("ann", pa.string()))),)),
        Call("or", (Call("=", (ID, literal(1, pa.int64()))), Call("starts with", (NAME, literal("c", pa.string()))))),
        Call("=", (NAME, Literal(None, pa.string()))),
        Call("<=>", (NAME, Literal(None, pa.string()))),
        Literal(True, pa.bool_()),
        Call("=", (Call("+", (ID, literal(1, pa.int64())), pa.int64()), literal(3, pa.int64()))),
    ],
)  # fmt: skip
def test_other_filters_mean_the_same(customers, condition):
    expected = keep(ROWS, [condition]).select(["id"]).to_pylist()
    assert [{"id": row} for [row] in scanned(files(customers), request([], filters=(condition,)))] == expected


# ── types and columns ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stored", "declared", "fits"),
    [
        (pa.int32(), "BIGINT", True), (pa.uint32(), "BIGINT", True), (pa.uint64(), "BIGINT", False),
        (pa.int64(), "INT", False), (pa.uint8(), "TINYINT", False), (pa.float32(), "DOUBLE", True),
        (pa.float64(), "FLOAT", False), (pa.int32(), "DOUBLE", True), (pa.string(), "INT", False),
        (pa.int64(), "DOUBLE", False), (pa.uint64(), "DECIMAL(20,0)", True), (pa.int64(), "DECIMAL(20,2)", False),
        (pa.string_view(), "STRING", True), (pa.binary(3), "BINARY", True),
        (pa.list_(pa.int8(), 2), "ARRAY<INT>", True),
        (pa.int32(), "STRING", False), (pa.large_string(), "STRING", True), (pa.string(), "BINARY", False),
        (pa.dictionary(pa.int32(), pa.string()), "STRING", True), (pa.decimal128(4, 2), "DECIMAL(10,2)", True),
        (pa.decimal128(10, 2), "DECIMAL(10,4)", False), (pa.decimal128(4, 2), "DOUBLE", False),
        (pa.timestamp("ms", "Europe/Paris"), "TIMESTAMP", True), (pa.timestamp("us"), "TIMESTAMP", True),
        (pa.timestamp("us"), "TIMESTAMP_NTZ", True), (pa.timestamp("us", "UTC"), "TIMESTAMP_NTZ", False),
        (pa.date32(), "DATE", True), (pa.timestamp("us"), "DATE", False), (pa.null(), "DATE", True),
        (pa.list_(pa.int16()), "ARRAY<INT>", True), (pa.list_(pa.string()), "ARRAY<INT>", False),
        (pa.struct([("a", pa.int16())]), "STRUCT<a: INT>", True),
        (pa.struct([("b", pa.int32())]), "STRUCT<a: INT>", False),
        (pa.map_(pa.string(), pa.int16()), "MAP<STRING, INT>", True), (pa.bool_(), "INT", False),
    ],
)  # fmt: skip
def test_which_stored_types_fit(tmp_path, stored, declared, fits):
    pq.write_table(pa.table({"id": [1], "x": pa.array([None], stored)}), tmp_path / "f.parquet")
    connector = files(tmp_path, f"id BIGINT, x {declared}")
    if fits:
        assert scanned(connector, request(["x"])) == [(1, None)]
    else:
        with pytest.raises(SourceError, match=r"column 'x': the file has .* which may not fit"):
            scanned(connector, request(["x"]))


def test_names_in_another_case(customers):
    connector = files(customers, "ID BIGINT, Name STRING")
    wanted = LookupRequest(table="t", key_columns=("ID",), columns=("Name",), filters=())
    assert scanned(connector, wanted)[0] == (1, "ann")


def test_a_column_that_is_not_there(customers):
    table = LookupTable(
        "c", "id BIGINT, nme STRING", {"connector": "files", "path": str(customers), "lookup.cache": "ALL"}
    )
    with pytest.raises(SourceError, match=r"has no column 'nme'(?s:.*)'name'"):
        looked_up(table, [1], "nme")


def test_a_column_that_only_some_files_have(customers):
    pq.write_table(pa.table({"id": [5], "vip": [True]}), customers / "part-1.parquet")
    assert scanned(files(customers, "id BIGINT, vip BOOLEAN"), request(["vip"]))[-1] == (5, True)


def test_a_file_with_two_spellings_of_a_column(tmp_path):
    pq.write_table(pa.table({"id": [1], "Name": ["a"], "NAME": ["b"]}), tmp_path / "f.parquet")
    assert scanned(files(tmp_path, "id BIGINT, NAME STRING"), request(["NAME"])) == [(1, "b")]
    with pytest.raises(SourceError, match=r"f\.parquet' has more than one column 'name': 'Name' and 'NAME'"):
        scanned(files(tmp_path, "id BIGINT, name STRING"), request(["name"]))


def test_a_value_that_its_type_does_not_hold(tmp_path):
    rows = {"id": [1], "t": pa.array([1], pa.timestamp("ns"))}
    pq.write_table(pa.table(rows), tmp_path / "f.parquet")
    with pytest.raises(SourceError, match=r"f\.parquet', column 't': a value is no TIMESTAMP_NTZ: (?s:.*)Hint"):
        scanned(files(tmp_path, "id BIGINT, t TIMESTAMP_NTZ"), request(["t"]))


@pytest.mark.parametrize(("folder", "type_"), [("d=x", "DATE"), ("d=1.555", "DECIMAL(4,2)"), ("D=", "INT")])
def test_a_folder_name_that_does_not_fit_its_columns_type(tmp_path, folder, type_):
    (tmp_path / folder).mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / folder / "f.parquet")
    with pytest.raises(SourceError, match=rf"Folder '{folder}' is no .*column 'd'(?s:.*)Hint"):
        scanned(files(tmp_path, f"id BIGINT, d {type_}"), request(["d"]))


def test_folders_whose_names_are_values(tmp_path):
    for country, number in (("NL", "01"), ("it%27s a %2F", "1"), ("__HIVE_DEFAULT_PARTITION__", "x")):
        folder = tmp_path / f"country={country}" / f"number={number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), folder / "f.parquet")
    connector = files(tmp_path, "id BIGINT, country STRING, number STRING")
    found = scanned(connector, request(["country", "number"]))
    assert found == [(1, "it's a /", "1"), (1, "NL", "01"), (1, None, "x")]
    assert scanned(connector, request(["number"], constants={"country": "NL"})) == [(1, "01")]


# ── where the files are ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
def test_each_load_lists_the_files_again(customers):
    options = {"connector": "files", "path": str(customers), "lookup.cache": "ALL"}
    table = LookupTable("c", CUSTOMERS, {**options, "lookup.cache.reload-interval": "1 ms"})

    def write_more():
        if not (customers / "part-1.parquet").exists():
            pq.write_table(pa.table({"id": [9], "name": ["zoe"], "country": ["NL"]}), customers / "part-1.parquet")
        time.sleep(0.02)  # Rows are read while the table is loaded again.

    assert looked_up(table, [9], "name", times=50, between=write_more) == [(9, "zoe")]


def test_the_last_complete_snapshot_is_read(customers, tmp_path):
    for name, complete in (("1", True), ("2", True), ("3", False)):
        (tmp_path / "all" / name).mkdir(parents=True)
        pq.write_table(pa.table({"id": [int(name)]}), tmp_path / "all" / name / "f.parquet")
        if complete:
            (tmp_path / "all" / name / "_SUCCESS").touch()
    assert scanned(files(tmp_path / "all", "id BIGINT", snapshots="true"), request([])) == [(2,)]


@pytest.mark.parametrize("snapshots", ["false", "true"])
def test_files_that_are_not_there(tmp_path, snapshots):
    (tmp_path / "1").mkdir()
    own = {"connector": "files", "lookup.cache": "ALL", "lookup.max-retries": "0", "snapshots": snapshots}
    for path in (tmp_path, tmp_path / "nowhere"):
        table = LookupTable("c", CUSTOMERS, {**own, "path": str(path)})
        with pytest.raises(LookupFailedError, match="FileNotFoundError"):
            looked_up(table, [1], "name")


def test_an_invalid_parquet_file(customers):
    (customers / "readme.txt").write_text("not Parquet")
    table = LookupTable("c", CUSTOMERS, {"connector": "files", "path": str(customers), "lookup.cache": "ALL"})
    with pytest.raises(LookupFailedError, match=r"readme\.txt"):
        looked_up(table, [1], "name")


def test_a_file_system_of_fsspec():
    import fsspec

    with fsspec.open("memory://shop/customers/f.parquet", "wb") as file:
        pq.write_table(ROWS, file)
    assert len(scanned(files("memory://shop/customers"))) == 4


def test_a_relative_path_starts_where_the_driver_runs(customers, monkeypatch):
    monkeypatch.chdir(customers.parent)
    connector = FilesConnector(parse_ddl(CUSTOMERS), {"path": customers.name})
    monkeypatch.chdir("/")
    assert len(scanned(pickle.loads(pickle.dumps(connector)))) == 4


# ── Delta ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def delta(tmp_path):
    """A Delta table of two versions."""
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "d", ROWS.slice(0, 1), partition_by=["country"])
    write_deltalake(tmp_path / "d", ROWS.slice(2, 2), mode="append")
    return tmp_path / "d"


def test_a_delta_table(delta):
    assert scanned(files(delta, format="delta")) == [(1, "ann", "NL"), (3, "cy", "NL"), (4, None, "NL")]
    assert scanned(files(delta, format="delta", version="0")) == [(1, "ann", "NL")]


def test_a_delta_table_is_filtered_too(delta):
    wanted = request(["name"], constants={"country": "NL"}, filters=(Call(">", (ID, literal(3, pa.int64()))),))
    assert scanned(files(delta, format="delta"), wanted) == [(4, None)]


def test_an_invalid_delta_table(customers):
    own = {"connector": "files", "path": str(customers), "format": "delta", "lookup.cache": "ALL"}
    table = LookupTable("c", CUSTOMERS, {**own, "lookup.max-retries": "0"})
    with pytest.raises(LookupFailedError, match="TableNotFoundError"):
        looked_up(table, [1], "name")


def test_without_deltalake(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConnectorError, match=r"pip install 'lookupcache\[delta\]'"):
        files("x", format="delta")


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "needs option 'path'"),
        ({"path": "x", "format": "parqet"}, r"'format' is 'parqet'(?s:.*)'parquet'"),
        ({"path": "file:///x"}, "starts with 'file://'"),
        ({"path": "x", "snapshots": "yes"}, "'snapshots' is 'yes'"),
        ({"path": "x", "format": "delta", "snapshots": "true"}, "'snapshots' is for 'format' = 'parquet'"),
        ({"path": "x", "version": "1"}, "'version' is for 'format' = 'delta'"),
        ({"path": "x", "format": "delta", "version": "-1"}, "'version' is '-1'"),
        ({"path": "x", "storage": "1"}, "no option 'storage'"),
        ({"path": "x", "url": "1"}, "no option 'url'"),
    ],
)
def test_options_that_are_wrong(options, named):
    with pytest.raises(OptionError, match=named):
        build_connector("files", parse_ddl(CUSTOMERS), options)


def test_credentials_of_a_file_system_are_never_shown():
    own = {"connector": "files", "path": "s3://u:hunter2@b/x", "storage.access_key": "hunter2", "storage.region": "eu"}
    table = LookupTable("c", CUSTOMERS, {**own, "lookup.cache": "ALL"})
    assert "hunter2" not in repr(table) + repr(table.connector)
    assert {"hunter2", "eu"} <= set(table.connector.secret_values())


# ── the kit ──────────────────────────────────────────────────────────────────────────────────────────────────


class TestFiles(ConnectorSuite):
    connector = "files"
    can_scan = True
    pushes_filters = True

    @pytest.fixture
    def load(self, tmp_path):
        def load(rows, key):
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
            pq.write_table(rows, path, row_group_size=3)
            return {"path": str(path)}

        return load


# ── Spark ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("stored", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_parquet_written_by_spark_is_read_unchanged(spark, tmp_path, stored):
    ddl = (
        "id BIGINT, t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, m DECIMAL(38,18), b BINARY, f FLOAT, "
        "a ARRAY<INT>, s STRUCT<x: STRING>, p MAP<STRING, DOUBLE>"
    )
    moment = dt.datetime(9999, 12, 30, 1, 2, 3, 4000)
    rows = [(1, moment.replace(tzinfo=dt.UTC), moment, dt.date(1, 1, 3), Decimal("1.000000000000000001"), b"\xff", 0.5,
             [1, None], ("x",), {"k": -0.0}), (2, *[None] * 9)]  # fmt: skip
    spark.conf.set("spark.sql.parquet.outputTimestampType", stored)
    written = spark.createDataFrame(rows, ddl).repartition("id")
    written.write.parquet(f"{tmp_path}/t", partitionBy="id")
    spark.conf.unset("spark.sql.parquet.outputTimestampType")
    table = LookupTable("t", ddl, {"connector": "files", "path": f"{tmp_path}/t", "lookup.cache": "ALL"})
    from lookupcache import lookup_join

    joined = lookup_join(spark.range(1, 3).withColumnRenamed("id", "k"), table, "k = t.id", select=["t.*"])
    assert joined.collect() == written.collect()


DRIFTS = {
    "BIGINT": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "INT": [pa.int8(), pa.int16(), pa.int32()],
    "DOUBLE": [pa.float32(), pa.float64(), pa.int16(), pa.int32()],
    "DECIMAL(20,4)": [pa.decimal128(4, 2), pa.decimal128(10, 4), pa.decimal128(20, 4), pa.int32()],
    "STRING": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()),
               pa.dictionary(pa.int8(), pa.string())],
    "BINARY": [pa.binary(), pa.large_binary(), pa.binary(2)],
    "TIMESTAMP": [pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Paris")],
    "TIMESTAMP_NTZ": [pa.timestamp("us"), pa.timestamp("ms")],
    "ARRAY<BIGINT>": [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int8())],
}  # fmt: skip
SAMPLES = {"STRING": ["ab", "", "ß"], "BINARY": [b"ab", b"\0\xff"], "ARRAY<BIGINT>": [[1, None], []],
           "TIMESTAMP": [dt.datetime(2024, 5, 1, tzinfo=dt.UTC)],
           "TIMESTAMP_NTZ": [dt.datetime(2024, 5, 1)]}  # fmt: skip
# Spark takes a folder d=1.5 for 0.15 where d is DECIMAL(6,2), and writes none such itself.
FOLDERS = {
    "STRING": ["NL", "01", "a%20b", "it%27s", "%C3%9F", "ß", "%zz", "%2", "a+b", "a=b"],
    "INT": ["1", "-2", "+3", "007", "１"], "BIGINT": ["30000000000"], "SMALLINT": ["-0"], "TINYINT": ["127"],
    "DECIMAL(6,2)": ["1.50", "-3.00", "+.25"],
    "DATE": ["2024-02-29", "2024-2-3", "2024-05", "2024", "2024-05-01 12:00:00", "0001-01-01"],
    "DOUBLE": ["0.5", "1e3", "NaN", "-Infinity", "1d", "+.5", " 7", "-0.0"], "FLOAT": ["0.1", "16777217.1", "5."],
    "BOOLEAN": ["true", "FALSE"], "BINARY": ["ab", "%FF", "ß"],
    "TIMESTAMP": ["2024-05-01 12%3A00%3A00", "2024-05-01 12:00:00.1234567", "2024-05-01T12:00:00Z", "2024-5-1",
                  "2024-05", "2024", "2024-05-01 12", "2024-05-01 12:30", "2024-05-01 12:00:00+02:00", "1900-01-01",
                  "2024-05-01 12:00:00 UTC-3", "2024-05-01 12:00:00+1", "2024-05-01 12:00:00 Asia%2FTokyo",
                  "2024-03-31 02:30:00", "2024-10-27 02:30:00", "0001-01-01 00:00:00", "9999-12-31 23:59:59",
                  "1883-11-18 12:01:00"],
    "TIMESTAMP_NTZ": ["2024-05-01 12%3A00%3A00.5", "2024-05-01T12:00:00Z", "2024-05-01", "2024-03-31 02:30:00"],
}  # fmt: skip
ZONES = ["UTC", "Europe/Vienna", "America/New_York", "+05:30", "GMT-3"]


def drifting(path, draw):
    """Write a folder of files in which columns differ in spelling and type, or lack; return the table's schema."""
    columns = {f"c{number}": draw.choice(list(DRIFTS)) for number in range(draw.randint(1, 3))}
    folders = {f"f{number}": draw.choice(list(FOLDERS)) for number in range(draw.randint(0, 2))}
    folder_names = {name: draw.choice([name, name.upper()]) for name in folders}
    for number in range(draw.randint(2, 4)):
        spelled = [draw.choice([name, name.upper()]) for name in columns if draw.random() < 0.85 or not number]
        stored = {name: draw.choice(DRIFTS[columns[name.lower()]]) for name in draw.sample(spelled, len(spelled))}
        rows = {draw.choice(["id", "ID", "Id"]): pa.array([number * 2, number * 2 + 1], draw.choice(DRIFTS["BIGINT"]))}
        for name, type_ in stored.items():
            values = [draw.choice([None, *SAMPLES.get(columns[name.lower()], [0, 1, -3])]) for _ in range(2)]
            rows[name] = pa.array(values, type_)
        names = [f"{folder_names[name]}={draw.choice([*FOLDERS[type_], '__HIVE_DEFAULT_PARTITION__'])}"
                 for name, type_ in folders.items()]  # fmt: skip
        folder = path.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows), folder / f"{number}.parquet", store_schema=draw.random() < 0.8)
    return ", ".join(f"{name} {type_}" for name, type_ in {"id": "BIGINT", **columns, **folders}.items())


@pytest.mark.extended
@pytest.mark.spark
def test_files_that_differ_are_read_as_spark_reads_them(spark, tmp_path):
    refused = []
    for number in range(40):
        draw = random.Random(f"folder {number}")
        path = tmp_path / f"{number}"
        ddl, zone = drifting(path, draw), draw.choice(ZONES)
        spark.conf.set("spark.sql.session.timeZone", zone)
        expected = spark.read.schema(ddl).parquet(str(path)).orderBy("id")
        names = expected.columns[1:]
        try:
            theirs = [tuple(row) for row in expected.toArrow().cast(parse_ddl(ddl)).to_pandas().itertuples(index=False)]
        except Exception as error:
            refused.append(f"{number}: {str(error)[:200]}")
            continue
        ours = pa.Table.from_batches(
            files(path, ddl, **{"time-zone": zone}).scan(request(names)), parse_ddl(ddl)
        ).sort_by("id")
        assert repr([tuple(row) for row in ours.to_pandas().itertuples(index=False)]) == repr(theirs), number
    assert len(refused) < 4, refused


@pytest.mark.extended
@pytest.mark.spark
def test_snapshots_of_a_spark_table(spark, tmp_path):
    for names in (["ann"], ["bob"]):
        write_snapshot(spark.createDataFrame([(1, name) for name in names], "id BIGINT, name STRING"), f"{tmp_path}/s/")
    assert scanned(files(tmp_path / "s", snapshots="true"), request(["name"])) == [(1, "bob")]


@pytest.mark.spark
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("part", range(3))
def test_every_join_is_sparks_own(spark, tmp_path, part):
    from test_properties import Judge, case_with_sets

    class FilesJudge(Judge):
        def lookup_table(self, case):
            path = self.folder / f"{next(self.numbers)}"
            path.mkdir()
            pq.write_table(case.right.table(), path / "f.parquet", row_group_size=2)
            options = {"lookup.cache": "ALL"} if not dict(case.options).get("lookup.cache") else {}
            return LookupTable(
                "t", case.right.ddl, {"connector": "files", "path": str(path), **options, **case.table_options}
            )

    first = 8_000 + 5 * part
    FilesJudge(spark, tmp_path, every_form=False).check([case_with_sets(number) for number in range(first, first + 5)])
