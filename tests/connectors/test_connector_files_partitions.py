"""Partition values that are texts, in folder names and Delta's log, and Delta tables whose files are not the table."""

from __future__ import annotations

import datetime as dt
import json
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_connector_files import FOLDERS, ZONES, files, request, scanned

from lookupcache.connector import LookupRequest
from lookupcache.errors import SourceError
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable

ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def in_zone(spark):
    """Return a function that sets the session's time zone, which is restored at the end."""
    before = spark.conf.get(ZONE)
    yield lambda zone: spark.conf.set(ZONE, zone)
    spark.conf.set(ZONE, before)


def write_folders(path, texts):
    """Write a folder for each text, with a row that has the text's number."""
    for number, text in enumerate(texts):
        (path / f"p={text}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), path / f"p={text}" / "f.parquet")


def values(rows):
    """Return the values of `p` as a text; timestamps in microseconds, since Python does not have all years."""
    column = rows.sort_by("id").column("p")
    return str((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


@pytest.mark.spark
@pytest.mark.parametrize("type_", FOLDERS)
def test_names_of_folders_are_read_as_spark_reads_them(spark, in_zone, tmp_path, type_):
    ddl = f"id BIGINT, p {type_}"
    write_folders(tmp_path, [*FOLDERS[type_], "__HIVE_DEFAULT_PARTITION__"])
    for zone in ZONES if type_.startswith("TIMESTAMP") else ZONES[:1]:
        in_zone(zone)
        theirs = spark.read.schema(ddl).parquet(str(tmp_path)).toArrow().cast(parse_ddl(ddl))
        ours = pa.Table.from_batches(files(tmp_path, ddl, **{"time-zone": zone}).scan(request(["p"])))
        assert values(ours) == values(theirs), zone


@pytest.mark.spark
@pytest.mark.parametrize("cache", ["ALL", "LRU"])
def test_a_join_reads_folders_in_the_time_zone_of_its_session(spark, in_zone, tmp_path, cache):
    from lookupcache import LookupJoin

    in_zone("Asia/Tokyo")
    rows = spark.sql("SELECT id, timestamp_seconds(1714521600 + id * 3600) AS t FROM range(3)")
    rows.write.partitionBy("t").parquet(f"{tmp_path}/t")
    own = {"connector": "files", "path": f"{tmp_path}/t", "lookup.cache": cache}
    table, fingerprints = LookupTable("t", "id BIGINT, t TIMESTAMP", own), set()
    for zone in ("Asia/Tokyo", "America/New_York"):
        in_zone(zone)
        theirs = spark.read.schema("id BIGINT, t TIMESTAMP").parquet(f"{tmp_path}/t")
        join = LookupJoin(theirs.select("t"), table, "left.t = t.t AND t.t > TIMESTAMP '2024-05-01 00:30:00Z'",
                          select=["t.id", "t.t"])  # fmt: skip
        right = theirs.where("t > TIMESTAMP '2024-05-01 00:30:00Z'")
        assert join.df.orderBy("id").collect() == right.orderBy("id").collect()
        fingerprints.add(join.plan.fingerprint)
    assert len(fingerprints) == 2


@pytest.mark.spark
def test_a_scan_uses_the_time_zone_of_the_session_or_the_option(spark, in_zone, tmp_path):
    from lookupcache.spark.scan import read_full_table

    write_folders(tmp_path, ["2024-05-01 12:00:00"])
    own, ddl = {"connector": "files", "path": str(tmp_path)}, "id BIGINT, p TIMESTAMP"
    in_zone("Asia/Tokyo")
    theirs = spark.read.schema(ddl).parquet(str(tmp_path)).collect()
    assert read_full_table(spark, LookupTable("t", ddl, own)).collect() == theirs
    reader = spark.read.format("lookupcache").schema(ddl).options(**own)
    with pytest.raises(Exception, match="time zone of timestamp '2024-05-01 12:00:00' in a partition is not known"):
        reader.load().collect()
    assert reader.option("time-zone", "Asia/Tokyo").load().collect() == theirs


def test_a_table_without_timestamps_is_the_same_in_every_session(tmp_path):
    table = LookupTable("t", "id BIGINT, p TIMESTAMP_NTZ", {"connector": "files", "path": str(tmp_path)})
    assert table.in_session(lambda name: "Asia/Tokyo") is table


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../UTC", "Europe", "+19:00", "+01:60", ""])
def test_a_time_zone_that_does_not_exist(tmp_path, zone):
    write_folders(tmp_path, ["2024-05-01 12:00:00"])
    with pytest.raises(SourceError, match=r"There is no time zone(?s:.*)'time-zone'"):
        scanned(files(tmp_path, "id BIGINT, p TIMESTAMP", **{"time-zone": zone}), request(["p"]))


# ── Delta ────────────────────────────────────────────────────────────────────────────────────────────────────


def write_delta(path, rows, change, **how):
    """Write a Delta table, and change each action of its log before anybody reads it."""
    from deltalake import write_deltalake

    write_deltalake(path, rows, **how)
    [log] = path.glob("_delta_log/*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return path


def mapped(fields, mode, features=None, partition=()):
    """Return the change of a log to a table with column mapping: its columns with types and physical names."""
    described = [
        {"name": name, "type": type_, "nullable": True,
         "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}}
        for number, (name, type_, physical) in enumerate(fields, 1)
    ]  # fmt: skip

    def change(action):
        action.get("add", {}).pop("stats", None)
        if "protocol" in action:
            newest = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features,
                      "writerFeatures": features}  # fmt: skip
            action["protocol"] = newest if features else {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            action["metaData"] |= {
                "configuration": {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "9"},
                "schemaString": json.dumps({"type": "struct", "fields": described}),
                "partitionColumns": list(partition),
            }

    return change


PLAIN = [("id", "long", "id"), ("name", "string", "name")]
CREATED = [("id", "long", "col-1"), ("name", "string", "col-2")]
RIGHT = [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("stored", "fields", "mode", "more"),
    [
        ({"col-1": [1, 2], "col-2": ["a", "b"]}, CREATED, "name", {}),
        ({"col-1": [1, 2], "col-2": ["a", "b"]}, CREATED, "id", {}),
        ({"col-1": [1, 2], "col-2": ["a", "b"]}, CREATED, "name", {"features": ["columnMapping"]}),
        ({"col-1": [1, 2], "col-2": ["a", "b"]}, CREATED, "name", {"partition": ["name"]}),
        ({"id": [1, 2], "title": ["a", "b"]}, [PLAIN[0], ("name", "string", "title")], "name", {}),
        ({"id": [1, 2], "name": ["old", "old"], "new": ["a", "b"]}, [PLAIN[0], ("name", "string", "new")], "name", {}),
        ({"id": [1, 2], "name": ["a", "b"]}, PLAIN, "none", {}),
    ],
    ids=["created", "by id", "reader version 3", "partitioned", "renamed", "dropped and added", "none"],
)  # fmt: skip
def test_columns_of_a_delta_table_are_those_of_its_mapping(tmp_path, stored, fields, mode, more):
    by = [physical for name, _, physical in fields if name in more.get("partition", ())]
    path = write_delta(tmp_path / "d", pa.table(stored), mapped(fields, mode, **more), partition_by=by or None)
    connector = files(path, "ID BIGINT, name STRING", format="delta")
    wanted = LookupRequest(table="t", key_columns=("ID",), columns=("name",))
    assert scanned(connector, wanted) == RIGHT
    assert connector.lookup(wanted, pa.record_batch({"ID": [2]})).to_pylist() == [{"ID": 2, "name": "b"}]
    with pytest.raises(SourceError, match="has no column 'nothing'"):
        scanned(files(path, "nothing STRING", format="delta"), LookupRequest(table="t", key_columns=("nothing",)))


def deletion_vector(rows):
    """Return an inline deletion vector: a roaring bitmap with one container, in Z85."""
    listed = struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<IQIIIHHI", 1681511377, 1, 0, 12346, 1, 0, len(rows) - 1, 16) + listed
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = [word for (word,) in struct.iter_unpack(">I", data)]
    text = "".join(digits[word // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


@pytest.mark.parametrize("reader", [1, 2, 3])
def test_rows_in_a_deletion_vector_are_not_in_a_delta_table(tmp_path, reader):
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]} if reader == 3 else {}

    def change(action):
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": reader, "minWriterVersion": 7 if features else 5, **features}
        if "add" in action:
            action["add"]["deletionVector"] = deletion_vector([0, 2])

    path = write_delta(tmp_path / "d", pa.table({"id": [1, 2, 3, 4], "name": list("abcd")}), change)
    assert scanned(files(path, "id BIGINT, name STRING", format="delta"), request(["name"])) == [(2, "b"), (4, "d")]


INSTANTS = {"2024-05-01 12:00:00": 3, "2024-05-01 12:00:00.000000": 3, "2024-05-01T12:00:00.000000Z": 12}
"""The hour in UTC of each text in Tokyo."""


@pytest.mark.parametrize("text", INSTANTS)
def test_delta_partition_timestamps_use_the_given_time_zone(tmp_path, text):
    """A zone in the text itself comes first."""

    def change(action):
        if (values := action.get("add", {}).get("partitionValues", {})) and values["t"]:
            values["t"] = text

    moments = pa.array([dt.datetime(2024, 5, 1), None], pa.timestamp("us", "UTC"))
    path = write_delta(tmp_path / "d", pa.table({"id": [1, 2], "t": moments}), change, partition_by=["t"])
    ddl = "id BIGINT, T TIMESTAMP"
    tokyo = files(path, ddl, format="delta", **{"time-zone": "Asia/Tokyo"})
    expected = dt.datetime(2024, 5, 1, INSTANTS[text], tzinfo=dt.UTC)
    assert scanned(tokyo, request(["T"])) == [(1, expected), (2, None)]
    assert scanned(tokyo, request([])) == [(1,), (2,)]
    if not text.endswith("Z"):
        with pytest.raises(SourceError, match="is not known"):
            scanned(files(path, ddl, format="delta"), request(["T"]))


def test_ambiguous_delta_partition_values_are_refused(tmp_path):
    texts = iter(["2024-05-01 12:00:00", "2024-05-01T12:00:00.000000Z"])

    def change(action):
        if "add" in action:
            action["add"]["partitionValues"]["t"] = next(texts)

    moments = pa.array([dt.datetime(2024, 5, 1), dt.datetime(2024, 5, 2)], pa.timestamp("us", "UTC"))
    path = write_delta(tmp_path / "d", pa.table({"id": [1, 2], "t": moments}), change, partition_by=["t"])
    own = {"format": "delta", "time-zone": "UTC"}
    assert len(scanned(files(path, "id BIGINT, t TIMESTAMP", **own), request(["t"]))) == 2
    with pytest.raises(SourceError, match=r"two instants in time zone 'Asia/Tokyo'(?s:.*)Hint"):
        scanned(files(path, "id BIGINT, t TIMESTAMP", **own | {"time-zone": "Asia/Tokyo"}), request(["t"]))


def test_a_binary_delta_partition_column_is_refused_when_read(tmp_path):
    rows = pa.table({"id": [1], "b": pa.array([b"\xff"])})
    path = write_delta(tmp_path / "d", rows, lambda action: None, partition_by=["b"])
    assert scanned(files(path, "id BIGINT, b BINARY", format="delta"), request([])) == [(1,)]
    with pytest.raises(SourceError, match=r"'b' of the Delta table is BINARY(?s:.*)Hint"):
        scanned(files(path, "id BIGINT, b BINARY", format="delta"), request(["b"]))
