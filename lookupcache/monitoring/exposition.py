"""Totals as metrics of `prometheus_client`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lookupcache.monitoring.families import FAMILIES, LABELS, Family
from lookupcache.monitoring.totals import Series, Totals

_LONGEST_LABEL = 200


Highest = dict[tuple[Series, str, str], float]
"""The highest values of counters so far, by series, name and additional label."""


def metrics_of(totals: Mapping[Series, Totals], highest: Highest) -> Iterator[Metric]:
    """Yield every metric with the values of all series, of counters the highest so far.

    A task that runs again replaces the counts of its first attempt. Prometheus would take a counter that decreases for
    one that started again at 0, and add all of it once more.
    """
    for family in FAMILIES:
        metric = _empty(family)
        for series, total in totals.items():
            labels = [_label(text) for text in (series.table, series.join, series.query)]
            for name, value in family.read(total).items():
                if family.kind == "counter":
                    value = highest[series, family.name, name] = max(
                        value, highest.get((series, family.name, name), value)
                    )
                metric.add_metric([*labels, _label(name)] if family.label else labels, value)
        yield metric


def _empty(family: Family) -> CounterMetricFamily | GaugeMetricFamily:
    labels = [*LABELS, family.label] if family.label else LABELS
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(family.name, family.help, labels=labels)


def _label(text: str) -> str:
    """Return a text that can be encoded, and is short; `prometheus_client` escapes the rest.

    A text that is changed ends with a hash of the original: two series with the same labels are an error of a scrape.
    """
    shown = text[:_LONGEST_LABEL].encode("utf-8", "replace").decode()
    if shown == text:
        return text
    return f"{shown[: _LONGEST_LABEL - 9]}…{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
