"""`lookupcache hitrate` on files and tables, and `hit_rate` on Spark, against what a join then counts."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from option_values import EVICTIONS

from lookupcache import LookupJoin, LookupTable, OptionError, SchemaError, hit_rate
from lookupcache.cli.commands import main
from lookupcache.cli.hitrate import hitrate as command
from lookupcache.hitrate.keys import read_requests

DATA = Path(__file__).parents[1] / "data"
WEB = DATA / "web12_product_pages.parquet"


def hitrate(*words: object) -> str:
    done = CliRunner().invoke(main, ["hitrate", *map(str, words)], catch_exceptions=False, terminal_width=160)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words: object) -> str:
    done = CliRunner().invoke(main, ["hitrate", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 1
    return done.stderr


@pytest.fixture
def visits(tmp_path):
    """Return a CSV file of a hundred visits a second for fifty customers, and one without a number."""
    ids = [*(n % 50 for n in range(2_000)), None]
    csv.write_csv(pa.table({"customer": ids, "at": np.arange(2_001) / 100}), tmp_path / "visits.csv")
    return tmp_path / "visits.csv"


def test_it_prints_size_calls_and_options(visits):
    printed = hitrate(visits, "-k", "customer", "-t", "at", "--batch", 1, "--target", 90, "--cost", "20ms")
    assert "2,000 requests for 50 keys in 19.99 s, 100.1 a second" in printed
    assert "1 rows have a null in their key" in printed
    assert "50 rows: 97.50% of rows hit (the smallest that reaches 90.0%)" in printed
    assert "requests for 2.501 keys a second, 0.05 of them in flight" in printed
    assert "The default size suffices." in printed
    assert '"lookup.cache": "LRU",' in printed


ODD = ["", "x", "nan", "inf", "-1", "0", "1e400", "[/]", "no/such/folder/x", "x.odd"]


@pytest.mark.parametrize("option", [one for one in command.params if one.opts[0].startswith("--")], ids=str)
def test_an_odd_option_value_is_accepted_or_named_in_an_error(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("keys.csv").write_text("id,at\n1,0\n2,1\n1,2\n")
    given = ["hitrate", "keys.csv", "-k", "id", "--lru-only"]
    # Drawing takes long: only names that no picture can have.
    for value in [""] if option.is_flag else ODD[-2:] if option.name == "plot" else ODD:
        done = CliRunner().invoke(main, [*given, option.opts[0], *([] if option.is_flag else [value])])
        assert done.exception is None or isinstance(done.exception, SystemExit), (value, done.exception)
        if done.exit_code:
            said = done.stderr.lower()
            assert option.name.rstrip("s") in said.replace("-", "_") or repr(value) in said, done.stderr


def test_rates_are_above_zero(visits):
    for value in ("0", "-1", "nan", "inf"):
        assert "It takes a number above 0" in refused(visits, "-k", "customer", "--rate", value)


def test_it_prints_json_and_draws(visits, tmp_path):
    printed = json.loads(
        hitrate(visits, "-k", "customer", "--workers", 2, "--json", "--plot", tmp_path / "curve.png", "--ttl", 100)
    )
    assert [column["title"] for column in printed["columns"]] == [
        "plain", "batches of 10,000", "2 workers, rows by key", "2 workers, rows at random",
        "2 workers, one cache",
    ]  # fmt: skip
    assert printed["ages"][0]["after_access"] == 0.975
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_it_names_the_best_policy():
    printed = hitrate(WEB, "--batch", 1, "--target", "70%", "--sizes", "1000")
    assert "Eviction: who would win" in printed
    assert '"lookup.cache.eviction": "s3-fifo",' in printed


def test_rows_of_a_table_are_weighed_with_calc_and_without(visits, tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, country TEXT, story TEXT)")
        rows = [(n, "AT" if n % 2 else "BE", "x" * 500) for n in range(40)]
        shop.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
    (tmp_path / "c.toml").write_text(
        'schema = "id BIGINT, country STRING, story STRING"\n[options]\nconnector = "sql"\ntable = "customers"\n'
        f'url = "sqlite:///{tmp_path}/shop.db"\n'
    )
    on = ("--on", "customer = c.id AND c.country = 'AT'", "--select", "c.country")
    printed = hitrate(visits, "-k", "customer", "--table", tmp_path / "c.toml", *on, "--max-bytes", "8kb", "--lru-only")
    whole, calc = (int(line.split(": ")[1].split()[0]) for line in printed.splitlines() if "max-bytes with" in line)
    assert calc > 2 * whole
    assert "per worker" in printed
    assert "1 rows a key, 60.0% of keys missing, remembered" in " ".join(printed.split())


@pytest.mark.extended
def test_a_file_is_read_without_spark(visits):
    code = "import sys; from lookupcache.cli.commands import main; main(sys.argv[1:], standalone_mode=False); "
    code += "sys.exit('pyspark' in sys.modules)"
    command = [sys.executable, "-c", code, "hitrate", str(visits), "-k", "customer", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-k", "custommer"], "no column 'custommer'(?s:.*)Did you mean 'customer'"),
        (["-k", "customer", "--sizes", "0"], "A cache of 0 rows holds nothing"),
        (["-k", "customer", "--sizes", "few"], "is not a list of sizes"),
        (["-k", "customer", "--missing", "some"], "is not a fraction"),
        (["-k", "at", "-t", "customer"], "holds nulls"),
        (["-k", "customer", "--cost", "much", "--rate", "5"], "cost is 'much'(?s:.*)It takes a duration"),
    ],
)
def test_hitrate_names_invalid_arguments(visits, words, says):
    import re

    assert re.search(says, refused(visits, *words))


# ── Spark ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spark
def test_a_spark_table_is_read_in_its_order(spark):
    spark.read.parquet(str(WEB)).createOrReplaceGlobalTempView("pages")  # for any session
    found = json.loads(hitrate("global_temp.pages", "--json", "--lru-only", "--sizes", "1376"))
    assert found["columns"][0]["ratio"] == [0.684918]
    assert "nor a Spark table" in refused("no_such_table")


@pytest.mark.extended
def test_a_dataframe_is_sampled_where_its_rows_are(spark):
    keys = np.minimum(np.random.default_rng(3).zipf(1.2, 300_000), 10**9)
    df = spark.createDataFrame(pa.table({"key": keys, "t": np.arange(300_000)})).repartitionByRange(3, "t")
    df = df.sortWithinPartitions("t")
    found = hit_rate(df, ["key"], "t", sample=0.5, sizes=[10, 1_000, 10_000], workers=2)
    exact = hit_rate(pa.table({"key": keys}), sizes=[10, 1_000, 10_000], workers=2, policies=["lru"])
    assert found.columns[0].sampled_keys >= 8_000
    assert (found.requests, found.seconds) == (300_000, 299_999)
    for ours, theirs in zip(found.columns, exact.columns, strict=True):
        assert ours.curve.ratio(found.sizes) == pytest.approx(theirs.curve.ratio(found.sizes), abs=0.02)
    with pytest.raises(OptionError, match=r"ttls are not supported(?s:.*)sample='no'"):
        hit_rate(df, ["key"], "t", sample=0.5, ttls=["1 min"])


@pytest.mark.spark
@pytest.mark.parametrize("sample", ["no", 0.5])
def test_a_dataframe_whose_times_run_backwards_is_refused(spark, sample):
    df = spark.range(10, numPartitions=2).selectExpr("id", "10 - id AS t")
    with pytest.raises(SchemaError, match="Times run backwards: 't' falls by 1 s"):
        hit_rate(df, ["id"], "t", sample=sample)


@pytest.mark.extended
@pytest.mark.spark
def test_workers_that_share_hit_as_often_as_was_predicted(spark, tmp_path):
    ids = np.random.default_rng(5).permutation(read_requests(WEB).ids.astype(np.int64)[:60_000])
    pq.write_table(pa.table({"id": ids}), tmp_path / "keys.parquet")
    table = LookupTable.from_function(
        "c", "id BIGINT, v BIGINT", key=["id"], function=_rows, batch=True,
        options={"lookup.cache": "LRU", "lookup.cache.max-rows": "8000"},
    )  # fmt: skip
    left = spark.read.parquet(str(tmp_path / "keys.parquet")).repartition(2)
    join = LookupJoin(left, table, ["id"], select=["c.v"])
    join.df.write.format("noop").mode("overwrite").save()
    found = hit_rate(tmp_path / "keys.parquet", sizes=[8_000], policies=["lru"], workers=2)
    predicted = float(found.columns[-1].curve.ratio([8_000])[0])
    assert join.metrics().hits / join.metrics().rows == pytest.approx(predicted, abs=0.01)


@pytest.mark.spark
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_join_hits_as_often_as_was_predicted(spark, tmp_path, eviction):
    requests = read_requests(WEB)
    pq.write_table(pa.table({"id": requests.ids.astype(np.int64)[:60_000]}), tmp_path / "keys.parquet")
    table = LookupTable.from_function(
        "c", "id BIGINT, v BIGINT", key=["id"], function=_rows, batch=True,
        options={
            "lookup.cache": "LRU", "lookup.cache.scope": "worker", "lookup.cache.max-rows": "500",
            "lookup.cache.eviction": eviction,
        },
    )  # fmt: skip
    join = LookupJoin(spark.read.parquet(str(tmp_path / "keys.parquet")).coalesce(1), table, ["id"], select=["c.v"])
    join.df.write.format("noop").mode("overwrite").save()
    found = hit_rate(tmp_path / "keys.parquet", sizes=[500], policies=["lru"])
    predicted = float(found.columns[-1].curve.ratio([500])[0])
    if eviction != "lru":
        from lookupcache.hitrate.replay import replay

        predicted = replay(requests.ids[:60_000], eviction, 500, 10_000) / 60_000
    assert join.metrics().hits / join.metrics().rows == pytest.approx(predicted, abs=0.01)


def _rows(keys):
    return [[(key, key)] for key in keys]
