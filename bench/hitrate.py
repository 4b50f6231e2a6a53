"""How well hit rates are predicted, and how fast: `python -m bench.hitrate`.

For the key traces, for Zipf keys and for the demo's flights: the exact curve, the sampled one and how far it is off,
what S3-FIFO would do, and the time that each takes; against the facts stored with the traces, and Che's
approximation. Then the same hit rates measured: a lookup join on Spark with 1, 2 and 4 workers, rows at random and by
key, against the prediction. With ``--long``, requests that are sampled on the executors.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.session import session
from lookupcache.demo.flights import read_flights
from lookupcache.hitrate import Prediction, hit_rate
from lookupcache.hitrate.deployment import Deployment, exact_curve, survey_requests
from lookupcache.hitrate.keys import Requests, read_requests
from lookupcache.hitrate.plot import plot_into
from lookupcache.hitrate.prediction import POLICIES
from lookupcache.hitrate.replay import replay
from lookupcache.hitrate.report import draw_curves
from lookupcache.hitrate.shards import LEAST_KEYS
from lookupcache.spark.join import LookupJoin
from lookupcache.table import LookupTable

ROOT = Path(__file__).parent.parent
TRACES = ("flights_tailnum_100k", "web12_product_pages")
ALPHAS = (0.8, 0.99, 1.1)
ZIPF_KEYS = 1_000_000
BATCH = 10_000
POINT = 0.01
ONE_FILE_ONE_TASK = {
    "spark.sql.files.openCostInBytes": str(1 << 27),
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}


@dataclass
class Work:
    """Requests, with what is known of them."""

    name: str
    requests: Requests
    facts: dict[str, Any] = field(default_factory=dict)
    alpha: float | None = None


def data_folder() -> Path:
    """Return where the traces are: next to the checkout, or the tests' copies."""
    beside = ROOT.parent / "shared" / "data"
    return beside if beside.exists() else ROOT / "tests" / "data"


def zipf(alpha: float, count: int) -> Requests:
    """Return requests for a million keys, the n-th as often as n to the power of -alpha says."""
    places = np.cumsum(np.arange(1, ZIPF_KEYS + 1) ** -alpha)
    drawn_ = np.searchsorted(places / places[-1], np.random.default_rng(7).random(count))
    return Requests(np.random.default_rng(1).permutation(ZIPF_KEYS).astype(np.uint64)[drawn_])


def works(count: int) -> Iterator[Work]:
    """Yield all that is predicted."""
    for name in TRACES:
        facts = json.loads((data_folder() / f"{name}.json").read_text())
        yield Work(name, read_requests(data_folder() / f"{name}.parquet"), facts)
    yield Work("demo flights, tailnum", read_requests(read_flights().select(["tailnum"])))
    for alpha in ALPHAS:
        yield Work(f"zipf {alpha}", zipf(alpha, count), alpha=alpha)


def che(alpha: float, size: int) -> float:
    """Return what Che's approximation says of a warm LRU cache."""
    chance = np.arange(1, ZIPF_KEYS + 1) ** -alpha
    chance /= chance.sum()
    low, high = 0.0, 1e12
    for _ in range(200):
        age = (low + high) / 2
        low, high = (age, high) if (1 - np.exp(-chance * age)).sum() < size else (low, age)
    return float((chance * (1 - np.exp(-chance * age))).sum())


# ── predicted ────────────────────────────────────────────────────────────────────────────────────────────


def predict(work: Work) -> tuple[Prediction, dict[str, Any]]:
    """Return the prediction, and how fast and how far from the facts it is."""
    words = work.requests.words
    started = time.perf_counter()
    found = hit_rate(pa.table({"key": words.view(np.int64)}), policies=["lru"], ttls=[1_000], workers=2, target=0.5)
    whole = time.perf_counter() - started
    started = time.perf_counter()
    curve = exact_curve(Requests(words), Deployment())
    exact = time.perf_counter() - started
    figures = {
        "requests": len(words),
        "keys": work.requests.keys,
        "exact seconds": round(exact, 2),
        "all columns and ages, seconds": round(whole, 2),
    }
    figures |= measure_sampling(work, curve, found.sizes) | against_facts(work, curve) | against_che(work)
    return found, figures


def measure_sampling(work: Work, curve: Any, sizes: list[int]) -> dict[str, Any]:
    """Return how far a sampled curve is off at these sizes, where enough keys can be sampled."""
    rate = 2 * LEAST_KEYS / work.requests.keys
    if rate >= 0.5:
        return {}
    started = time.perf_counter()
    survey = survey_requests(work.requests.words, Deployment(), rate)
    ratios = survey.curve(sizes).ratio(sizes)
    seconds = time.perf_counter() - started
    off = np.abs(ratios - curve.ratio(sizes))
    return {
        "sampled keys": survey.keys,
        "sampled seconds": round(seconds, 2),
        "sampled mean error": round(float(off.mean()), 5),
        "sampled largest error": round(float(off.max()), 5),
    }


def against_facts(work: Work, curve: Any) -> dict[str, Any]:
    """Return by how much the curve and the other policies differ from the facts."""
    if not work.facts:
        return {}
    facts = work.facts["LRU_curve_exact"]
    off = max(abs(float(curve.ratio([int(size)])[0]) - ratio) for size, ratio in facts.items())
    figures: dict[str, Any] = {"LRU off the facts": round(off, 7)}
    for row in work.facts["policy_table"].values():
        if row["size"] >= 100:
            ratio = replay(work.requests.ids, "s3-fifo", row["size"], 1) / len(work.requests)
            figures[f"s3-fifo, {row['size']} rows"] = [round(ratio, 4), row["S3FIFO"]]
    return figures


def against_che(work: Work) -> dict[str, Any]:
    """Return the warm curve of Zipf keys next to Che's approximation: at 1 % and 10 % of the keys."""
    if work.alpha is None:
        return {}
    warm = exact_curve(work.requests, Deployment(), warm=True)
    return {
        f"warm, {size:,} rows": [round(float(warm.ratio([size])[0]), 4), round(che(work.alpha, size), 4)]
        for size in (10_000, 100_000)
    }


# ── measured ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Measured:
    """What was predicted and what a join on Spark counted."""

    work: str
    workers: int
    spread: str
    eviction: str
    rows: int
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """By how much."""
        return self.measured - self.predicted


def predict_ratio(requests: Requests, deployment: Deployment, eviction: str, size: int) -> float:
    """Predict the part of rows that hit."""
    if eviction == "lru":
        return float(exact_curve(requests, deployment).ratio([size])[0])
    worker = deployment.workers_of(requests.words)
    hits = [
        replay(Requests(requests.words[worker == number]).ids, eviction, size, deployment.batch)
        for number in range(deployment.workers)
    ]
    return sum(hits) / len(requests)


def measure(spark: Any, folder: Path, work: Work, deployment: Deployment, eviction: str, size: int, run: int) -> float:
    """Join the requests on Spark and return the part of rows that hit."""
    ids, worker = work.requests.ids, np.zeros(len(work.requests), dtype=np.int16)
    if deployment.spread == "random":
        worker = deployment.workers_of(work.requests.words)
    parts = []
    for number in range(int(worker.max()) + 1):
        path = folder / f"{run}-{number}.parquet"
        pq.write_table(pa.table({"id": ids[worker == number].astype(np.int64) * 7 + 13}), path)
        parts.append(str(path))
    options = {"connector": "bench.source:Customers", "keys": str(work.requests.keys + run)}
    options |= {"lookup.cache": "LRU", "lookup.cache.max-rows": str(size), "lookup.cache.eviction": eviction}
    options |= {"lookup.shuffle": str(deployment.spread == "key").lower()}
    table = LookupTable("c", "id BIGINT, age INT", options)
    left = spark.read.parquet(*parts)
    assert left.rdd.getNumPartitions() == len(parts), "each worker has its own file"
    join = LookupJoin(left, table, "l.id = c.id", "left", ["c.age"])
    join.df.write.format("noop").mode("overwrite").save()
    counts = join.metrics()
    return counts.hits / counts.rows


def measure_all(chosen: list[Work], console: Console) -> list[Measured]:
    """Measure with 1, 2 and 4 workers, each in a separate Spark with as many cores."""
    found = []
    for workers in (1, 2, 4):
        spark = session(workers, {**ONE_FILE_ONE_TASK, "spark.sql.shuffle.partitions": str(workers)})
        with tempfile.TemporaryDirectory() as folder:
            cases = list(_cases(chosen, workers))
            for run, (work, deployment, eviction, size) in enumerate(
                track(cases, f"{workers} workers", console=console)
            ):
                predicted = predict_ratio(work.requests, deployment, eviction, size)
                ratio = measure(spark, Path(folder), work, deployment, eviction, size, run)
                found.append(Measured(work.name, workers, deployment.spread, eviction, size, predicted, ratio))
        spark.stop()
    return found


def _cases(chosen: list[Work], workers: int) -> Iterator[tuple[Work, Deployment, str, int]]:
    for work in chosen:
        size = max(work.requests.keys // 10, 1)
        for spread in ("random", "key") if workers > 1 else ("random",):
            deployment = Deployment(batch=BATCH, workers=workers, spread=spread)  # type: ignore[arg-type]
            for eviction in ("lru",) if (workers, spread) in ((2, "random"), (2, "key"), (4, "random")) else POLICIES:
                yield work, deployment, eviction, size


def measure_long(rows: int, console: Console) -> dict[str, Any]:
    """Sample ``rows`` requests on the executors; only the sample comes to the driver."""
    spark = session(2, {})
    power = "CAST(pow(1e6, rand(5)) AS BIGINT)"
    df = spark.range(rows, numPartitions=16).selectExpr(f"{power} * 1000003 AS id")
    started = time.perf_counter()
    found = hit_rate(df, ["id"], sample=0.02, target=0.8)
    figures = {"requests": found.requests, "seconds": round(time.perf_counter() - started, 1), "notes": found.notes}
    figures |= {"sampled keys": found.columns[0].sampled_keys, "at 10,000 rows": round(found.ratio(10_000), 4)}
    console.print(figures)
    spark.stop()
    return figures


# ── shown ────────────────────────────────────────────────────────────────────────────────────────────────


def show(figures: dict[str, dict[str, Any]], measured: list[Measured], console: Console) -> None:
    """Print what was predicted, and measured."""
    for name, values in figures.items():
        console.print(f"[bold]{name}[/]", ", ".join(f"{what}: {value}" for what, value in values.items()))
    table = Table(title=f"Rows that hit, predicted and measured on Spark, batches of {BATCH:,}")
    for column in ("keys", "workers", "rows come", "eviction", "cache", "predicted", "measured", "off, points"):
        table.add_column(column)
    for one in measured:
        style = "red" if abs(one.off) > POINT else ""
        shown = (f"{one.rows:,}", f"{one.predicted:.2%}", f"{one.measured:.2%}", f"{100 * one.off:+.2f}")
        table.add_row(one.work, str(one.workers), f"by {one.spread}", one.eviction, *shown, style=style)
    console.print(table)
    if measured:
        worst = max(abs(one.off) for one in measured)
        console.print(f"Largest difference: {100 * worst:.2f} points (wanted: 1 at most)")


def plot(found: dict[str, Prediction], measured: list[Measured], path: Path) -> None:
    """Draw the curves of each, and what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, every = plt.subplots(2, -(-len(found) // 2), figsize=(18, 10), layout="constrained")
    for (name, prediction), axes in zip(found.items(), every.flat, strict=False):
        plot_into(prediction, axes, name)
        for workers, mark in ((1, "o"), (2, "s"), (4, "^")):
            points = [one for one in measured if one.work == name and one.workers == workers and one.eviction == "lru"]
            label = f"measured, {workers} workers"
            axes.plot([one.rows for one in points], [100 * one.measured for one in points], mark, label=label)
        axes.legend(loc="upper left", fontsize=7)
    figure.savefig(path, dpi=110)


@click.command()
@click.option("--requests", default=5_000_000, show_default=True, help="Zipf requests that are predicted.")
@click.option("--measured", default=400_000, show_default=True, help="Zipf requests that are measured on Spark.")
@click.option("--no-spark", is_flag=True, help="Only predict.")
@click.option("--long", "long_rows", type=int, help="Number of requests to sample on the executors, too.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(requests: int, measured: int, no_spark: bool, long_rows: int | None, out: Path) -> None:
    """Predict, measure, print tables and curves, write hitrate.json and hitrate.png."""
    console = Console()
    console.width = max(console.width, 110)
    found, figures = {}, {}
    for work in works(requests):
        found[work.name], figures[work.name] = predict(work)
        console.print(f"[bold]{work.name}[/]", *draw_curves(found[work.name]), sep="\n", highlight=False)
    results = [] if no_spark else measure_all(list(works(measured)), console)
    long = {} if long_rows is None else measure_long(long_rows, console)
    out.mkdir(parents=True, exist_ok=True)
    values = {"predicted": figures, "measured": [vars(one) for one in results], "long": long}
    (out / "hitrate.json").write_text(json.dumps(values, indent=1))
    plot(found, results, out / "hitrate.png")
    show(figures, results, console)
    console.print(f"Wrote {out / 'hitrate.json'} and {out / 'hitrate.png'}.")


if __name__ == "__main__":
    main()
