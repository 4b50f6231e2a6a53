"""Exported metrics: names and values, the endpoint, `lookupcache top`, and the dashboard."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
from dataclasses import fields
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from time_limit import LIMIT

from lookupcache.cli import top
from lookupcache.cli.commands import main
from lookupcache.cli.top import frames, render
from lookupcache.errors import LookupCacheError
from lookupcache.metrics import LookupMetrics
from lookupcache.monitoring.exposition import metrics_of
from lookupcache.monitoring.families import FAMILIES
from lookupcache.monitoring.rates import Rates
from lookupcache.monitoring.scrape import EndpointError, metrics_url, samples
from lookupcache.monitoring.server import MetricsServer
from lookupcache.monitoring.totals import Series, Totals

ROOT = Path(__file__).parents[2]
ORDERS = Series("orders", "0123456789ab")


class Collected:
    """A collector of fixed totals."""

    def __init__(self, totals) -> None:
        self.totals = totals

    def describe(self):
        return []

    def collect(self):
        return metrics_of(self.totals, {})


def text_of(totals) -> str:
    registry = CollectorRegistry()
    registry.register(Collected(totals))
    return generate_latest(registry).decode()


def totals(**counts) -> Totals:
    return Totals(metrics=LookupMetrics(**counts), workers=2, caches=2, limit_rows=100, reported=1.0)


# ── names and values ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.parametrize("name", [field.name for field in fields(LookupMetrics)])
def test_every_count_of_a_join_is_exported(name: str) -> None:
    value = {"tokens": 7.0} if name == "source_counts" else 7
    counts = {name: value, "keys": 7} if name == "keys" else {name: value}
    some, none = (samples(text_of({ORDERS: totals(**one)}))[ORDERS] for one in (counts, {}))
    changed = {key for key in some if some[key] != none.get(key, 0)}
    assert changed
    assert 7 in {some[key] for key in changed}


def test_names_have_the_units_and_suffixes_that_prometheus_wants() -> None:
    names = [family.samples_name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"lookupcache_[a-z_]+[a-z]", family.name)
        assert family.samples_name.endswith("_total") == (family.kind == "counter")
    exposed = set(re.findall(r"^# TYPE (\S+)", text_of({ORDERS: totals()}), re.MULTILINE))
    assert exposed == set(names)


@pytest.mark.parametrize("name", ['a"b\\c\nd', "größe, {x}=1", "\x1b[31mred", "", "\udc80", "x" * 10_000], ids=repr)
def test_any_name_of_a_table_can_be_exported_and_read_again(name: str) -> None:
    [(series, sample)] = samples(text_of({Series(name, "j", "q"): totals(rows=3)})).items()
    is_plain = len(name) <= 200 and "\udc80" not in name
    assert series.table == name if is_plain else re.fullmatch(r"(\?|x{191})…[0-9a-f]{8}", series.table)
    assert sample["lookupcache_rows_total"] == 3
    text = shown(render(Rates().add(0.0, {series: sample})))
    assert name[:3].isprintable() or "?" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "names", [("x" * 300 + "a", "x" * 300 + "b"), ("\udc80", "\udc81")], ids=["long", "surrogates"]
)
def test_two_names_are_two_series_also_where_they_are_shortened(names) -> None:
    sample = samples(text_of({Series(name, "j", name): totals(rows=number) for number, name in enumerate(names)}))
    assert [one["lookupcache_rows_total"] for one in sample.values()] == [0, 1]


def test_a_connector_that_makes_up_names_adds_no_end_of_series() -> None:
    counts = {f"page {number}": 1.0 for number in range(1_000)}
    sample = samples(text_of({ORDERS: totals(source_counts=counts)}))[ORDERS]
    own = {name: value for name, value in sample.items() if "connector_counts" in name}
    assert (len(own), sum(own.values())) == (33, 1_000)


def test_only_gauges_decrease_when_a_task_runs_again() -> None:
    highest: dict = {}
    own = {"tokens": 5}
    before = totals(rows=10, keys=9, misses=2, host_hits=1, cached_rows=9, source_counts=own)
    now = totals(rows=8, keys=10, misses=6, host_hits=2, cached_rows=2)
    seen = [
        {(sample.name, sample.labels.get("tier")): sample.value for one in metrics for sample in one.samples}
        for metrics in (metrics_of({ORDERS: one}, highest) for one in (before, now))
    ]
    assert all(
        seen[1][name] >= value for name, value in seen[0].items() if name[0].endswith("_total") and name in seen[1]
    )
    worker, host = (seen[1]["lookupcache_hits_total", tier] for tier in ("worker", "host"))
    assert (worker, host, seen[1]["lookupcache_cached_rows", None]) == (6, 2, 2)


METRIC = re.compile(r"\blookupcache_[a-z_]+")


def test_the_dashboard_and_the_page_name_metrics_that_exist() -> None:
    board = json.loads((ROOT / "lookupcache" / "monitoring" / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    used = set(METRIC.findall(" ".join([*expressions, json.dumps(board["templating"])])))
    exported = {family.samples_name for family in FAMILIES}
    assert used - exported == set()
    assert exported - used == {"lookupcache_joins", "lookupcache_workers"}
    page = (ROOT / "docs" / "operating.md").read_text()
    assert set(METRIC.findall(page)) - exported == set()
    assert all(expression.count("(") == expression.count(")") for expression in expressions)


def test_the_dashboard_is_printed() -> None:
    printed = CliRunner().invoke(main, ["dashboard"], catch_exceptions=False).output
    assert json.loads(printed)["title"] == "lookupcache"


# ── the endpoint ─────────────────────────────────────────────────────────────────────────────────────────


def serve(render=lambda: ("text/plain", b""), **options) -> MetricsServer:
    stop = {"is_over": lambda: False, "when_closed": lambda: None}
    return MetricsServer("127.0.0.1", 0, render, **{**stop, **options})


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lookupcache-metrics")]


def get(url: str, path: str = "/metrics") -> tuple[int, bytes]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=LIMIT)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_closing_frees_thread_and_port_despite_a_silent_client() -> None:
    server = serve()
    address = (urlsplit(server.url).hostname, urlsplit(server.url).port)
    with socket.create_connection(address) as silent:
        silent.sendall(b"GET /metr")
        assert get(server.url)[0] == 200
        server.close()
        server.close()
    assert own_threads() == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_it_closes_itself_when_its_session_is_over() -> None:
    over, closed = threading.Event(), threading.Event()
    server = serve(is_over=over.is_set, when_closed=closed.set)
    over.set()
    assert closed.wait(LIMIT)
    server.close()
    assert own_threads() == []


def test_an_error_is_an_answer_without_its_text() -> None:
    def fail():
        raise ValueError("password=secret")

    server = serve(fail)
    status, body = get(server.url)
    missing = get(server.url, "/other")[0]
    server.close()
    assert (status, missing) == (500, 404)
    assert b"ValueError" in body
    assert b"secret" not in body


# ── top ──────────────────────────────────────────────────────────────────────────────────────────────────


def shown(frame, width: int = 250) -> str:
    written = io.StringIO()
    Console(width=width, file=written).print(frame)
    return written.getvalue()


def test_top_prints_a_table_once(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    counts = totals(
        rows=1_500_000, keys=100, hits=900, misses=100, host_hits=30, requested_keys=100, calls=4, source_seconds=0.2,
        errors=2, timeouts=1, cached_rows=50, cached_bytes=2_000,
    )  # fmt: skip
    server = serve(lambda: ("text/plain", text_of({ORDERS: counts}).encode()))
    result = CliRunner().invoke(main, ["top", server.url, "--once"], catch_exceptions=False)
    server.close()
    [head, line] = result.output.splitlines()
    assert head.split()[:4] == ["table", "rows/s", "rows", "hit"]
    assert " ".join(line.split()[:-1]) == "orders 012345 - 1.5M 90% 0/30/0% - 50 3 0 0 0 0 50 2kB 25%"


def test_counts_that_are_nan_or_infinite_are_ignored() -> None:
    text = text_of({ORDERS: totals(rows=3, keys=5, host_hits=1)}).replace(" 5.0", " NaN").replace(" 3.0", " +Inf")
    assert "orders" in shown(render(Rates().add(0.0, samples(text))))


def test_each_scrape_is_a_table_where_the_output_is_no_terminal(monkeypatch) -> None:
    waited = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(waited, "over"):
            raise KeyboardInterrupt

    # Not time.sleep itself: threads of other tests call it too.
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=sleep, time=time.time, monotonic=time.monotonic))
    server = serve(lambda: ("text/plain", text_of({ORDERS: totals(rows=3)}).encode()))
    result = CliRunner().invoke(main, ["top", server.url], catch_exceptions=False)
    server.close()
    assert result.output.count("orders 012345") == 3


@pytest.mark.parametrize("seconds", ["0", "nan", "inf", "1e300"])
def test_seconds_that_no_program_can_wait(seconds: str) -> None:
    result = CliRunner().invoke(main, ["top", "--every", seconds])
    assert (result.exit_code, "'--every'" in result.output) == (2, True)


def test_the_user_and_password_of_an_address_are_sent_as_a_login() -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.headers["Authorization"], self.headers["Host"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        host = f"127.0.0.1:{server.server_port}"
        result = CliRunner().invoke(main, ["top", f"http://ann:p%40w@{host}/metrics", "--once"], catch_exceptions=False)
        thread.join()
    assert result.output.strip() == "No lookups yet."
    assert asked == [("Basic YW5uOnBAdw==", host)]


def test_rates_are_of_the_last_seconds() -> None:
    texts = [text_of({ORDERS: totals(rows=rows)}) for rows in (100, 100, 400)]
    clock = iter(float(second) for second in range(10))
    made = frames("http://x/metrics", lambda: (250, 50), read=lambda url: texts.pop(0), monotonic=lambda: next(clock))
    lines = [shown(next(made)).splitlines()[1].split()[2] for _ in range(3)]
    assert lines == ["-", "0", "150"]


def test_a_program_that_was_started_again_counts_from_zero() -> None:
    rates = Rates()
    rates.add(0.0, samples(text_of({ORDERS: totals(rows=1_000)})))
    [view] = rates.add(2.0, samples(text_of({ORDERS: totals(rows=10)})))
    assert view.rate("rows_total") == 5


def test_an_endpoint_that_goes_away_leaves_the_last_table() -> None:
    def read(url: str) -> str:
        if texts:
            return texts.pop()
        raise EndpointError("Nothing answers at x: refused.")

    texts = [text_of({ORDERS: totals(rows=100)})]
    made = frames("http://x/metrics", lambda: (250, 50), read=read, monotonic=iter([0.0, 7.0]).__next__)
    next(made)
    text = shown(next(made))
    assert "orders" in text
    assert "No answer for 7 s: Nothing answers at x: refused." in text


@pytest.mark.extended
def test_of_hundreds_of_lines_those_with_most_rows_are_shown() -> None:
    many = {Series(f"t{number:03}", "j"): totals(rows=number) for number in range(300)}
    text = shown(render(Rates().add(0.0, samples(text_of(many))), height=13))
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["t299", "t298", "t297"]
    assert "and 290 more" in text


@pytest.mark.parametrize("width", [50, 60, 80, 120, 250])
def test_a_narrow_terminal_shows_fewer_but_whole_columns(width: int) -> None:
    [view] = Rates().add(0.0, samples(text_of({ORDERS: totals(rows=999_999, errors=3)})))
    head, line = shown(render([view], width=width), width).splitlines()
    assert max(len(head), len(line.rstrip())) <= width
    assert "…" not in head + line
    assert {"table", "rows/s", "hit", "errors", "age"} <= set(head.split())
    assert line.startswith("orders 012345 ")


@pytest.mark.parametrize(
    ("url", "fact"),
    [
        ("http://127.0.0.1:1/metrics", "Nothing answers at http://127.0.0.1:1/metrics: "),
        ("127.0.0.1:1", "Nothing answers at http://127.0.0.1:1/metrics: "),
        ("file:///etc/passwd", "is no HTTP address"),
        ("http://", "is no HTTP address"),
        ("http://h:99999/x", "is no HTTP address"),
    ],
)
def test_an_address_that_does_not_answer_is_an_error_with_a_hint(url: str, fact: str) -> None:
    result = CliRunner().invoke(main, ["top", url, "--once"])
    assert result.exit_code == 1
    assert fact in result.output
    assert "Hint: " in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("body", [b"<html>{}</html>", b"a{b 1", b'lookupcache_rows_total{table="x" 1'])
def test_an_answer_that_is_not_of_prometheus_is_an_error(body: bytes) -> None:
    server = serve(lambda: ("text/html", body))
    result = CliRunner().invoke(main, ["top", server.url, "--once"])
    server.close()
    assert result.exit_code == 1
    assert "is not the text format of Prometheus" in result.output


def test_an_endpoint_of_this_machine_is_read_without_a_proxy(monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server = serve()
    result = CliRunner().invoke(main, ["top", server.url, "--once"])
    server.close()
    assert result.output.strip() == "No lookups yet."


def test_top_reports_no_lookups_and_refuses_other_pages() -> None:
    server = serve()
    nothing = CliRunner().invoke(main, ["top", server.url, "--once"])
    other = CliRunner().invoke(main, ["top", server.url.replace("metrics", "other"), "--once"])
    server.close()
    assert nothing.output.strip() == "No lookups yet."
    assert "answers with HTTP status 404" in other.output


def test_a_password_in_an_address_is_not_shown() -> None:
    for url in ("http://u:hunter2@127.0.0.1:1/metrics", "ftp://u:hunter2@h/"):
        result = CliRunner().invoke(main, ["top", url, "--once"])
        assert result.exit_code == 1
        assert "hunter2" not in result.output
    with pytest.raises(LookupCacheError) as error:
        metrics_url("http://u:hunter2@h:port/")
    assert "hunter2" not in str(error.value)
