"""Draws the dashboard over a real stream that a real Prometheus has watched: `python -m bench.dashboard`.

A stream looks up its rows in two tables: functions that take 20 milliseconds per call. After a third of the time, one
of them fails for a while: its rows are marked. The picture has the panels of `lookupcache dashboard` with the values of
their queries.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import numpy as np

from bench.session import session
from lookupcache import LookupTable, export_metrics, lookup_join

ROOT = Path(__file__).resolve().parent.parent
ROWS = ("Lookups", "Source", "Failures", "Caches")
"""The rows of the dashboard that are drawn."""
VARIABLES = {"$job": ".*", "$instance": ".*", "$table": ".*", "$__rate_interval": "8s"}
STEP = 1
UNITS = {
    "rowsps": "rows/s",
    "percentunit": "share",
    "ops": "per s",
    "Bps": "bytes/s",
    "s": "s",
    "short": "",
    "bytes": "",
}
FAILS = "LOOKUPCACHE_BENCH_FAILS"


def customer(keys: list[int]) -> list[tuple[int, str]]:
    """Return the rows of customers."""
    time.sleep(0.02)
    return [(key, f"customer {key}") for key in keys]


def article(keys: list[int]) -> list[tuple[int, float]]:
    """Return the rows of articles; fails while the file that the environment names is there."""
    time.sleep(0.02)
    if Path(os.environ[FAILS]).exists():
        raise ConnectionError("the service is down")
    return [(key, key / 100) for key in keys]


def enriched(spark: Any) -> Any:
    """Return the stream with the columns of both tables."""
    options = {"lookup.cache": "LRU", "lookup.cache.max-rows": "3000", "lookup.cache.expire-after-write": "20 s"}
    customers = LookupTable.from_function(
        "customers", "id BIGINT, name STRING", key="id", function=customer, batch=True, options=options
    )
    marks = {
        "lookup.on-error": "null",
        "lookup.error-column": "problem",
        "lookup.max-retries": "1",
        "lookup.retry.delay": "50 ms",
    }
    articles = LookupTable.from_function(
        "articles", "id BIGINT, price DOUBLE", key="id", function=article, batch=True, options={**options, **marks}
    )
    rows = spark.readStream.format("rate").option("rowsPerSecond", 2_000).option("numPartitions", 2).load()
    share = "(xxhash64(value) & 1048575) / 1048576D"
    orders = rows.selectExpr(
        f"CAST(5000 * pow({share}, 3) AS BIGINT) AS customer", f"CAST(9000 * pow({share}, 2) AS BIGINT) AS article"
    )
    joined = lookup_join(orders, customers, "customer = customers.id", "left", ["customer", "article", "name"])
    return lookup_join(joined, articles, "article = articles.id", "left", ["customer", "name", "price"])


def evaluate(url: str, expression: str, start: float, end: float) -> list[tuple[dict[str, str], list[Any], list[Any]]]:
    """Return labels, seconds and values of each series of an expression, from one time to another."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    query = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": STEP})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=60) as answer:
        found = json.load(answer)["data"]["result"]
    return [
        (one["metric"], [at - start for at, _ in one["values"]], [float(value) for _, value in one["values"]])
        for one in found
    ]


def draw(url: str, start: float, end: float, picture: Path) -> None:
    """Draw the panels with the values of their queries into a file."""
    from matplotlib.figure import Figure

    panels, row = [], ""
    for panel in json.loads(files("lookupcache.monitoring").joinpath("grafana.json").read_text())["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        if panel["type"] != "row" and row in ROWS and (lines := list(lines_of(panel, url, start, end))):
            panels.append((row, panel, lines))
    figure = Figure(figsize=(14, 2.5 * -(-len(panels) // 3)), layout="constrained")
    for axes, (row, panel, lines) in zip(figure.subplots(-(-len(panels) // 3), 3).flat, panels, strict=False):
        for name, seconds, values in lines:
            axes.plot(seconds, values, label=name, linewidth=1.2)
        axes.set_title(f"{row}: {panel['title']}", fontsize=10, loc="left")
        axes.set(ylabel=UNITS.get(panel["fieldConfig"]["defaults"].get("unit", ""), ""), xlim=(0, end - start))
        axes.set_ylim(0, 1.25 * max(np.nanmax(values) for _, _, values in lines))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper right", ncols=2)
    for axes in figure.axes[len(panels) :]:
        axes.remove()
    figure.savefig(picture, dpi=80)


def lines_of(panel: dict[str, Any], url: str, start: float, end: float) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield name, seconds and values of each line of a panel that is not 0 all the time."""
    for target in panel["targets"]:
        for labels, seconds, values in evaluate(url, target["expr"], start, end):
            name = target["legendFormat"]
            for label, value in labels.items():
                name = name.replace("{{" + label + "}}", value)
            if np.nanmax(values) > 0:
                yield name, seconds, values


@click.command()
@click.option("--seconds", default=90, show_default=True, help="How long the stream runs.")
@click.option("--picture", default=ROOT / "docs" / "images" / "dashboard.png", type=click.Path(path_type=Path))
def main(seconds: int, picture: Path) -> None:
    """Run the stream, and draw the dashboard."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from servers import free_port

    program = shutil.which("prometheus")
    if program is None:
        raise click.ClickException("There is no program `prometheus`: install the package of that name.")
    folder = Path(tempfile.mkdtemp(prefix="dashboard-"))
    fails = folder / "fails"
    os.environ[FAILS] = str(fails)
    spark = session(2, {})
    with export_metrics(port=0) as exporter:
        target = {"job_name": "orders", "static_configs": [{"targets": [urlsplit(exporter.url).netloc]}]}
        settings = {"global": {"scrape_interval": f"{STEP}s"}, "scrape_configs": [target]}
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
        options["web.listen-address"] = f"127.0.0.1:{free_port()}"
        line = [program, *(f"--{name}={value}" for name, value in options.items())]
        with (folder / "log").open("w") as log, subprocess.Popen(line, stdout=log, stderr=log) as process:
            try:
                query = enriched(spark).writeStream.format("noop").trigger(processingTime="1 second").start()
                while not query.recentProgress:
                    time.sleep(0.1)
                start = time.time()
                time.sleep(seconds / 3)
                fails.touch()
                time.sleep(seconds / 6)
                fails.unlink()
                time.sleep(seconds / 2)
                draw(f"http://{options['web.listen-address']}", start, time.time(), picture)
                query.stop()
            finally:
                process.send_signal(signal.SIGKILL)
    spark.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
