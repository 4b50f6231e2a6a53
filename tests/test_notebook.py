"""What notebooks and terminals show of objects."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lookupcache import LookupJoin, LookupTable, hit_rate
from lookupcache.metrics import LookupMetrics


class Cells(HTMLParser):
    """Collects the texts of table cells, and that each element that is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        """An element without content is not open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open or "caption" in self.open:
            self.texts.append(data.strip())


def squared(n: int) -> list[tuple[int, int]]:
    return [(n, n * n)]


def people(**options: str) -> LookupTable:
    return LookupTable("people", "id BIGINT, name STRING", {"connector": "sql", "url": "sqlite:///a.db", "table": "p",
                       **options})  # fmt: skip


def test_metrics_show_what_is_not_zero_by_tier():
    metrics = LookupMetrics(rows=10, hits=6, misses=2, host_hits=1, calls=2, source_counts={"tokens <1k": 7})
    assert (
        repr(metrics)
        == "LookupMetrics(rows=10, hits=6, misses=2, calls=2, host_hits=1, source_counts={'tokens <1k': 7})"
    )
    shown = Cells(metrics._repr_html_()).texts
    assert shown == ["Lookup metrics", "Join", "rows", "10", "hits", "6", "misses", "2", "hit rate", "75.0%",
                     "Host's cache", "host hits", "1", "Source", "calls", "2", "tokens <1k", "7"]  # fmt: skip
    assert Cells(LookupMetrics()._repr_html_()).texts == ["Lookup metrics", "Join", "Nothing has been counted yet."]
    shared = LookupMetrics(rows=1, cached_keys=1, source_seconds=0.0042)
    assert Cells(shared._repr_html_()).texts[3:] == ["1", "Cached", "cached keys", "1",
                                                     "Source", "source seconds", "0.0042 s"]  # fmt: skip


def test_a_table_shows_columns_and_options_without_secrets():
    html = people(url="postgresql://ann:s3cret-4711@host/db", **{"lookup.cache": "LRU"})._repr_html_()
    shown = Cells(html).texts
    assert shown[:7] == ["Lookup table people", "Columns", "id", "bigint", "name", "string", "Options"]
    assert shown[shown.index("lookup.cache") + 1] == "LRU"
    assert "s3cret" not in html


def test_a_prediction_shows_its_advice_and_its_curve():
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="pip install 'lookupcache[plot]'")
    from matplotlib.figure import Figure

    found = hit_rate(pa.table({"id": np.arange(5_000) % 100}), batch=1)
    assert repr(found) == "<Prediction: 5,000 requests for 100 keys; a cache of 100 rows has 98.0% hits>"
    html = found._repr_html_()
    assert html.count("<svg") == 1
    assert Cells(html.partition("<svg")[0]).texts[0] == "5,000 requests for 100 keys"
    before = pyplot.get_fignums()
    axes = found.plot(title="visits")
    assert [*before, axes.figure.number] == pyplot.get_fignums(), "a notebook shows the figures of pyplot"
    pyplot.close(axes.figure)
    assert axes.get_title() == "visits"
    assert [line.get_label() for line in axes.get_lines()] == ["LRU, plain", "100 rows"]
    small = hit_rate(pa.table({"id": [1, 2, 1]})).plot(Figure().subplots())
    assert [line.get_xdata()[-1] for line in small.get_lines()] == [10_000] * 3, "curves reach the advised size"
    legend = axes.get_legend()
    axes.figure.canvas.draw()
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1, "the legend is beside the curves"


@pytest.mark.spark
def test_a_join_shows_its_plan_and_its_rows(spark, capsys):
    squares = LookupTable.from_function(
        "s", "n BIGINT, square BIGINT", key=["n"], function=squared, options={"lookup.cache": "LRU"}
    )
    join = LookupJoin(spark.range(3), squares, on="id = s.n AND square < 4", select=["id", "s.square"])
    assert repr(join).startswith("<LookupJoin: inner, table s, connector function;")
    shown = Cells(join._repr_html_()).texts
    assert shown[:2] == ["Lookup join: inner, table s, connector function", "Condition"]
    assert shown[shown.index("field key") + 1]
    assert {"id = s.n", "square < 4", "cached columns", "strategy", "LRU", "worker"} <= set(shown)
    plan = join.compile()
    assert repr(plan) == "<CompiledPlan: 2 nodes; explain() shows them>"
    shown = Cells(plan._repr_html_()).texts
    assert shown[0].startswith("Plan ")
    assert {"before the cache: square < 4", "left side: node 1"} <= set(shown)
    join.show(1, vertical=True)
    assert "square" in capsys.readouterr().out
