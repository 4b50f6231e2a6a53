"""A real Prometheus evaluates the queries of the dashboard over exported counts."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from servers import free_port, until
from time_limit import LIMIT

from lookupcache.metrics import LookupMetrics
from lookupcache.monitoring.exposition import metrics_of
from lookupcache.monitoring.server import MetricsServer
from lookupcache.monitoring.totals import Series, Totals

BOARD = json.loads(
    (Path(__file__).parents[2] / "lookupcache" / "monitoring" / "grafana.json").read_text(encoding="utf-8")
)
QUERIES = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel.get("targets", [])]
TABLES = ("orders", 'a"b\\c')
SETTINGS = {"$job": ".*", "$instance": ".*", "$table": ".*", "$__rate_interval": "1s"}
"""What Grafana puts in place of the variables if all of each are selected; the interval holds five scrapes."""

pytestmark = pytest.mark.extended


class Counts:
    """Counts of two tables that grow with every scrape: of 10 rows, 7 are hits, and so on."""

    def __init__(self) -> None:
        self.scrapes = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._highest: dict = {}

    def describe(self) -> list:
        return []

    def collect(self) -> Iterator:
        self.scrapes += 1
        counts = {field.name: self.scrapes for field in fields(LookupMetrics) if field.name != "source_counts"}
        counts |= {"rows": 10 * self.scrapes, "hits": 7 * self.scrapes, "misses": 3 * self.scrapes}
        counts |= {"keys": 8 * self.scrapes, "cached_rows": 50, "cached_bytes": 500}
        metrics = LookupMetrics(**counts, source_counts={"tokens": self.scrapes})
        totals = Totals(metrics=metrics, workers=2, caches=2, reported=time.time(), limit_rows=100, limit_bytes=1000)
        yield from metrics_of({Series(table, "0123456789ab"): totals for table in TABLES}, self._highest)

    def render(self) -> tuple[str, bytes]:
        return CONTENT_TYPE_LATEST, generate_latest(self.registry)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Prometheus that scrapes the counts five times a second; return its URL."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no program `prometheus`: install the package of that name")
    folder = tmp_path_factory.mktemp("prometheus")
    counts, port = Counts(), free_port()
    server = MetricsServer("127.0.0.1", 0, counts.render, is_over=lambda: False, when_closed=lambda: None)
    settings = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
        "scrape_configs": [
            {"job_name": "lookups", "static_configs": [{"targets": [urlsplit(server.url).netloc]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
    options["web.listen-address"] = f"127.0.0.1:{port}"
    line = [program, *(f"--{name}={value}" for name, value in options.items())]
    with (folder / "log").open("w") as log, subprocess.Popen(line, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: counts.scrapes >= 8, seconds=60)
            yield url
        finally:
            process.send_signal(signal.SIGKILL)
            server.close()


def evaluate(url: str, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the value of each series of an expression, now."""
    for name, value in SETTINGS.items():
        expression = expression.replace(name, value)
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=LIMIT) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{expression}: {error.read().decode()}") from None
    return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found["data"]["result"]}


@pytest.mark.extended
@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[f"{title} {n}" for n, (title, _) in enumerate(QUERIES)])
def test_every_query_has_a_value_for_each_table(title: str, expression: str, prometheus: str) -> None:
    values: dict = {}
    until(lambda: values.update(evaluate(prometheus, expression)) or values)
    assert {dict(labels)["table"] for labels in values} == set(TABLES)
    assert all(math.isfinite(value) and value >= 0 for value in values.values()), values


def test_ratios_are_those_of_the_counts(prometheus: str) -> None:
    values = {}
    for title, expression in QUERIES:
        until(lambda expression=expression: evaluate(prometheus, expression))
        values.setdefault(title, evaluate(prometheus, expression))
    assert list(values["Hit rate"].values()) == pytest.approx([0.7, 0.7])
    assert list(values["Fill"].values()) == pytest.approx([0.25, 0.25])
    assert list(values["Time per call"].values()) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    "variable", [one["query"]["query"] for one in BOARD["templating"]["list"] if one["name"] != "datasource"]
)
def test_the_variables_have_values(variable: str, prometheus: str) -> None:
    selector, _, label = variable.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    found = {dict(labels).get(label) for labels in evaluate(prometheus, selector)}
    assert found
    assert None not in found
