"""Compares the cost of a hit of `cached` with functools and cachetools: `python -m bench.hit [--against CHECKOUT]`.

Each hit is timed separately, and the cost of the clock subtracted: p50 and p99 in nanoseconds. With ``--against``,
another checkout is measured in separate processes, alternately with this one, and ratios are shown of the medians over
the rounds.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cachetools
import click
import numpy as np

HITS = 50_000

Times = dict[str, tuple[float, float]]


def measure() -> Times:
    """Return p50 and p99 of a hit by kind, for the lookupcache that is imported here."""
    from lookupcache import LookupConfig, cached

    lru = LookupConfig(cache="LRU", max_rows=1_000)
    ttl = LookupConfig(cache="LRU", max_rows=1_000, expire_after_write="1 h", refresh_after_write="30 min")

    class Shop:
        @cached(lru)
        def rows(self, key: Any) -> list[Any]:
            return [key]

        @functools.lru_cache(1_000)  # noqa: B019
        def rows_of_functools(self, key: Any) -> list[Any]:
            return [key]

    def rows_of(key: Any) -> list[Any]:
        return [key]

    shop = Shop()
    hits = {
        "functools.lru_cache": functools.lru_cache(1_000)(rows_of),
        "cachetools.cached": cachetools.cached(cachetools.LRUCache(1_000))(rows_of),
        "cached": cached(lru)(rows_of),
        "cached, ages": cached(ttl)(rows_of),
        "cached method": lambda key: shop.rows(key),
        "functools method": lambda key: shop.rows_of_functools(key),
    }
    batch = cached(lru, batch=True)(lambda keys: [[key] for key in keys])
    keys = list(range(100))
    found = {name: _percentiles(hit, 7) for name, hit in hits.items()}
    found["cached, a text"] = _percentiles(hits["cached"], "key")
    found["cached, a float"] = _percentiles(hits["cached"], 7.5)
    found["cached, batch of 100"] = _percentiles(batch, keys)
    found["cached async"] = asyncio.run(_async_percentiles(cached(lru)(_later), 7))
    return found


async def _later(key: Any) -> list[Any]:
    return [key]


def _percentiles(hit: Callable[[Any], Any], key: Any) -> tuple[float, float]:
    hit(key)
    clock, taken = time.perf_counter_ns, np.empty(HITS)
    for n in range(HITS):
        started = clock()
        hit(key)
        taken[n] = clock() - started
    return _summary(taken)


async def _async_percentiles(hit: Callable[[Any], Any], key: Any) -> tuple[float, float]:
    await hit(key)
    clock, taken = time.perf_counter_ns, np.empty(HITS)
    for n in range(HITS):
        started = clock()
        await hit(key)
        taken[n] = clock() - started
    return _summary(taken)


def _summary(taken: Any) -> tuple[float, float]:
    clock = time.perf_counter_ns
    own = statistics.median([-clock() + clock() for _ in range(10_000)])
    p50, p99 = np.percentile(taken - own, [50, 99])
    return float(p50), float(p99)


def _measured_in(checkout: Path) -> Times:
    path = os.pathsep.join([str(checkout), str(checkout / "connectors")])
    output = subprocess.run(
        [sys.executable, __file__, "--json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    found: Times = json.loads(output.stdout)
    return found


@click.command()
@click.option("--against", type=click.Path(path_type=Path), help="another checkout, to compare with")
@click.option("--rounds", default=5)
@click.option("--json", "as_json", is_flag=True, help="measure once, in this process")
def main(against: Path | None, rounds: int, as_json: bool) -> None:
    """Measure hits, and print a table."""
    if as_json:
        click.echo(json.dumps(measure()))
        return
    checkouts = [Path(__file__).parent.parent, *([against] if against else [])]
    results: list[list[Times]] = [[] for _ in checkouts]
    for _ in range(rounds):
        for times, checkout in zip(results, checkouts, strict=True):
            times.append(_measured_in(checkout))
    for name in results[0][0]:
        here, *there = [
            [statistics.median(times[name][at] for times in rounds_) for at in (0, 1)] for rounds_ in results
        ]
        line = f"{name:24} p50 {here[0]:6.0f} ns  p99 {here[1]:6.0f} ns"
        if there:
            p50, p99 = there[0]
            line += f"   against {p50:6.0f} {p99:6.0f}: {here[0] / p50:.2f} × {here[1] / p99:.2f} ×"
        click.echo(line)


if __name__ == "__main__":
    main()
