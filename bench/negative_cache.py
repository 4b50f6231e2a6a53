"""Negative caching: the cost of millions of keys without rows, and how much of the cache they use.

Joins left sides of the same length with a source in memory and with SQLite: distinct keys that a table of ten rows
does not have; the ten keys that it has, repeatedly; and distinct keys of a table that has all of them.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from bench.source import SCHEMA
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner, cache_content
from lookupcache.worker.source import Source

MISSING = "missing"
TEN = "ten present"
DISTINCT = "distinct present"
FEW = 10
BATCH = 10_000

RunAlternately = Callable[[str, dict[str, Callable[[], Any]]], dict[str, list[Any]]]


@dataclass(frozen=True)
class Case:
    """A left side of ``rows`` rows against a table of ``keys`` rows."""

    name: str
    rows: int
    keys: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the left side: row numbers of the table, or for missing keys those that follow them."""
        first = self.keys if self.name == MISSING else 0
        for start in range(0, self.rows, BATCH):
            numbers = np.arange(start, min(start + BATCH, self.rows))
            numbers = numbers % FEW if self.name == TEN else first + numbers
            yield pa.record_batch({"id": numbers * 7 + 13})

    def run(self, table: LookupTable) -> dict[str, float]:
        """Join once with a new cache; return rows per second, and the maximum size of the cache."""
        plan = LookupPlan(
            table="c", connector=table.connector_name, source=table.source, schema=table.schema, how="left",
            keys=(FieldKey(column="id", sql="l.`id`"),), columns=("salary",), left_columns=("id",), config=table.config,
        )  # fmt: skip
        lookup = lookup_of(Source(plan, table.connector))
        batches, peak = list(self.batches()), {"cached_rows": 0, "cached_bytes": 0}
        found = 0
        started = time.perf_counter()
        for number, joined in enumerate(Runner(plan, Layout(("id",), (0,)), lookup).run(batches)):
            found += joined.num_rows - joined.column(1).null_count
            if number % 10 == 0:
                now = cache_content(lookup)
                peak = {name: max(size, now[name]) for name, size in peak.items()}
        seconds = time.perf_counter() - started
        lookup.source.close()
        assert found == (0 if self.name == MISSING else self.rows)
        return {"rows per second": self.rows / seconds, **peak}


def measure(rows: int, run_alternately: RunAlternately) -> dict[str, Any]:
    """Run every case against both sources; return medians and ratios."""
    cases = [Case(MISSING, rows, FEW), Case(TEN, rows, FEW), Case(DISTINCT, rows, rows)]
    with tempfile.TemporaryDirectory() as folder:
        tables = {"memory": _in_memory, "SQLite": lambda keys: _in_sqlite(Path(folder), keys)}
        found = {}
        for source, table_of in tables.items():
            runs = {case.name: partial(case.run, table_of(case.keys)) for case in cases}
            found[source] = _figures(run_alternately(f"missing keys, {source}", runs))
    return found


def _in_memory(keys: int) -> LookupTable:
    return LookupTable("c", SCHEMA, {"connector": "bench.source:Customers", "keys": keys, "lookup.cache": "LRU"})


def _in_sqlite(folder: Path, keys: int) -> LookupTable:
    """Return the table in a file, which is created if it does not exist."""
    path = folder / f"{keys}.db"
    if not path.exists():
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE c (id INTEGER PRIMARY KEY, salary REAL)")
            connection.executemany("INSERT INTO c VALUES (?, ?)", ((n * 7 + 13, n * 0.5) for n in range(keys)))
    options = {"connector": "sql", "url": f"sqlite:///{path}", "table": "c", "lookup.cache": "LRU"}
    return LookupTable("c", "id BIGINT, salary DOUBLE", options)


def _figures(taken: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    def rates(name: str) -> list[float]:
        return [run["rows per second"] for run in taken[name]]

    cases = {
        name: {
            "rows per second": statistics.median(rates(name)),
            "most cached rows": max(run["cached_rows"] for run in runs),
            "most cached bytes": max(run["cached_bytes"] for run in runs),
        }
        for name, runs in taken.items()
    }
    ratios = {
        f"{MISSING} ÷ {other}": statistics.median(
            a / b for a, b in zip(rates(MISSING), rates(other), strict=True)
        )
        for other in (TEN, DISTINCT)
    }  # fmt: skip
    return {"cases": cases, "ratios": ratios}


def table(found: dict[str, Any]) -> Table:
    """Return the results as a table."""
    shown = Table("source", "keys", title="missing keys (target: 0.5 × the speed of existing keys)")
    for column in ("rows/s", "missing ÷ these", "maximum cached rows", "maximum cached bytes"):
        shown.add_column(column, justify="right")
    for source, figures in found.items():
        for name, row in figures["cases"].items():
            ratio = figures["ratios"].get(f"{MISSING} ÷ {name}")
            sizes = [f"{row['most cached rows']:,}", f"{row['most cached bytes']:,}"]
            shown.add_row(
                source, name, f"{row['rows per second']:,.0f}", "–" if ratio is None else f"{ratio:.2f}", *sizes
            )
    return shown


def plot(found: dict[str, Any], axes: Any) -> None:
    """Plot rows per second, with a group of bars per source."""
    for number, name in enumerate((MISSING, TEN, DISTINCT)):
        bars = [figures["cases"][name]["rows per second"] for figures in found.values()]
        axes.bar(np.arange(len(bars)) + number * 0.27, bars, 0.25, label=name)
    axes.set_xticks(np.arange(len(found)) + 0.27, list(found))
    axes.set_yscale("log")
    axes.set_title("missing keys: rows per second (log)")
    axes.legend()
