"""The demo, on real flights, small."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lookupcache.demo import flights

pytestmark = pytest.mark.spark


def test_all_flights_are_there() -> None:
    table = flights.read_flights()
    assert table.num_rows == 336_776
    assert table.schema == flights.FLIGHTS
    assert table.column("tailnum").null_count == 2_512


def test_the_parts_hold_each_row_once(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = flights.read_flights(1000)
    paths = flights.write_parts(table, tmp_path / "parts", 7)
    assert sum(pq.read_table(path).num_rows for path in paths) == 1000
    assert pq.read_table(paths[6]).slice(142).equals(table.slice(999))


@pytest.mark.parametrize(("stream", "cache"), [(True, "LRU"), (False, "LRU"), (False, "ALL"), (True, "TTL")])
@pytest.mark.nightly
def test_the_result_is_that_of_sparks_own_join(spark: Any, stream: bool, cache: str) -> None:
    from lookupcache.demo.run import Demo, run

    printed = io.StringIO()
    age = {"lookup.cache.expire-after-write": "10 min"} if cache == "TTL" else {}
    demo = Demo(rows=4000, stream=stream, options={"lookup.cache": cache, **age})
    outcome = run(demo, Console(file=printed, width=120), spark)
    assert outcome.wrong == 0
    assert outcome.rows > 100
    assert "identical to Spark's own join" in printed.getvalue()
    planes, airports, weather = outcome.joins
    assert planes.metrics.rows == 4000
    assert planes.without_calc.bytes > planes.with_calc.bytes
    assert 0 < airports.with_calc.rows < airports.without_calc.rows
    assert weather.keys < weather.metrics.rows


@pytest.mark.extended
def test_a_difference_is_found(spark: Any) -> None:
    from lookupcache.demo.run import difference

    ours = spark.createDataFrame([(1, "a"), (1, "a"), (2, None)], "n INT, s STRING")
    theirs = spark.createDataFrame([(1, "a"), (2, None), (3, "c")], "n INT, s STRING")
    assert difference(ours, theirs) == 2
    assert difference(ours, ours) == 0


@pytest.mark.extended
def test_the_command_sets_up_its_own_session() -> None:
    command = [sys.executable, "-W", "error", "-m", "lookupcache", "demo", "--rows", "500", "--max-rows", "100"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "✓" in result.stdout
    assert result.stderr == ""
