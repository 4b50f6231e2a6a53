"""The demo, on real flights and few customers."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from lookupcache.cli.commands import main
from lookupcache.demo import flights
from lookupcache.demo.comparison import Comparison, Way, as_svg, difference

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
    demo = Demo(4000, stream, {"lookup.cache": cache, **age}, customers=20_000)
    outcome = run(demo, Console(file=printed, width=120), spark)
    assert outcome.wrong == 0
    assert outcome.comparisons[1].result > 100
    assert "identical to Spark's own join" in printed.getvalue()
    planes, airports, weather = outcome.joins
    assert planes.metrics.rows == 4000
    assert planes.width.whole > planes.width.calc
    assert 0 < sum(airports.width.rows) < sum(airports.width.whole_rows)
    assert weather.keys < weather.metrics.rows


@pytest.mark.extended
def test_the_demo_looks_up_only_the_customers_of_its_orders(spark: Any, tmp_path: Path) -> None:
    """Spark's own join reads all customers."""
    from lookupcache.demo.customers import BUYERS, ORDERS, Customers

    shown: list[str] = []

    @contextmanager
    def step(text: str) -> Iterator[None]:
        yield shown.append(text)

    found = Customers(spark, tmp_path, 4 * BUYERS).compare(step)
    assert (found.result, found.wrong, len(shown)) == (ORDERS, 0, 6)
    assert found.lookup.rows == BUYERS
    assert found.copy
    assert found.spark.rows == found.copy.rows == 4 * BUYERS


@pytest.mark.extended
def test_a_difference_is_found(spark: Any) -> None:
    ours = spark.createDataFrame([(1, "a"), (1, "a"), (2, None)], "n INT, s STRING")
    theirs = spark.createDataFrame([(1, "a"), (2, None), (3, "c")], "n INT, s STRING")
    assert difference(ours, theirs) == 2
    assert difference(ours, ours) == 0


@pytest.mark.extended
def test_the_command_sets_up_its_own_session(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    small = ["--rows", "500", "--max-rows", "100", "--customers", "5000", "--picture", str(picture)]
    command = [sys.executable, "-W", "error", "-m", "lookupcache", "demo", *small]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "✓" in result.stdout
    assert result.stderr == ""
    printed = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert [line for line in lines_of(picture.read_text()) if line not in printed] == []


# ── the README's picture ─────────────────────────────────────────────────────────────────────────────────────

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "demo.svg"


def lines_of(picture: str) -> list[str]:
    """Return the printed lines, with single spaces."""
    texts = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    return [" ".join((text.text or "").split()) for text in texts]


def drawn_in(picture: str) -> list[Comparison]:
    """Return the comparisons that a picture shows."""
    figures = ElementTree.fromstring(picture).findtext("{http://www.w3.org/2000/svg}metadata")
    ways = ("lookup", "spark", "copy")
    return [
        Comparison(**{name: Way(**value) if name in ways and value else value for name, value in one.items()})
        for one in json.loads(figures or "")
    ]


def test_the_picture_is_drawn_by_the_code_as_it_is() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    assert as_svg(drawn_in(picture)) == picture


@pytest.mark.nightly
def test_the_picture_shows_what_the_demo_does(spark: Any) -> None:
    from lookupcache.demo.run import Demo, run

    found = run(Demo(options={"lookup.cache": "LRU"}), Console(file=io.StringIO()), spark).comparisons
    for ours, shown in zip(found, drawn_in(PICTURE.read_text(encoding="utf-8")), strict=True):
        assert (ours.title, ours.result, ours.wrong) == (shown.title, shown.result, shown.wrong)
        assert [way and way.rows for way in _ways(ours)] == [way and way.rows for way in _ways(shown)]
        # Calls depend on which worker is first, and on the number of cores.
        assert shown.lookup.calls / 4 <= ours.lookup.calls <= 4 * shown.lookup.calls


def _ways(one: Comparison) -> list[Way | None]:
    return [one.lookup, one.spark, one.copy]


def test_a_picture_says_when_rows_differ() -> None:
    [one, *_] = drawn_in(PICTURE.read_text(encoding="utf-8"))
    assert lines_of(as_svg([replace(one, wrong=3)]))[-1].endswith("3 rows differ from Spark's own join.")


def test_a_picture_in_no_folder_is_refused_before_the_demo_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--picture", str(tmp_path / "none" / "demo.svg")])
    assert (result.exit_code, "There is no folder" in result.output) == (1, True)
