"""Metrics for Prometheus: `export_metrics` serves the counts of this process's joins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lookupcache.errors import LookupCacheError, OptionError
from lookupcache.monitoring.server import MetricsServer
from lookupcache.spark.listener import Listening, is_stopped
from lookupcache.spark.registry import JOINS, Registry

if TYPE_CHECKING:
    from prometheus_client import Metric

    from lookupcache.monitoring.exposition import Highest

DEFAULT_PORT = 9477
# `prometheus_client` names a newer version of the format, which older servers do not know.
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class JoinCollector:
    """A collector of ``prometheus_client`` with the counts of the lookup joins of this process.

    They are read when it is scraped. For a program that exports metrics already:
    ``prometheus_client.REGISTRY.register(JoinCollector())``.
    """

    def __init__(self, registry: Registry = JOINS) -> None:
        _require_client()
        self._registry = registry
        self._highest: Highest = {}

    def describe(self) -> list[Metric]:
        """Return nothing: registering is no reason to read all counts."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from lookupcache.monitoring.exposition import metrics_of

        return metrics_of(self._registry.totals(), self._highest)


class MetricsExporter:
    """An endpoint that `export_metrics` has opened; as a context manager, it closes itself."""

    def __init__(self, addr: str, port: int, spark: SparkSession | None, registry: Registry = JOINS) -> None:
        from prometheus_client import CollectorRegistry, generate_latest

        collectors = CollectorRegistry()
        collectors.register(JoinCollector(registry))
        listening = Listening(registry)
        listening.start()
        try:
            self._server = MetricsServer(
                addr,
                port,
                lambda: (_CONTENT_TYPE, generate_latest(collectors)),
                is_over=lambda: spark is not None and is_stopped(spark),
                when_closed=listening.stop,
            )
        except (OSError, OverflowError) as error:
            listening.stop()
            raise OptionError(
                f"The metrics cannot be served at port {port} of {addr}: {getattr(error, 'strerror', None) or error}.",
                hint="Choose another port; port=0 takes a free one, which `url` of the result names.",
            ) from error

    @property
    def url(self) -> str:
        """The URL to scrape, for Prometheus and for ``lookupcache top``."""
        return self._server.url

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or its session has ended."""
        return self._server.is_closed

    def close(self) -> None:
        """Close the port, remove the listeners, and wait for the threads."""
        self._server.close()

    def __enter__(self) -> MetricsExporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def export_metrics(
    port: int = DEFAULT_PORT, addr: str = "127.0.0.1", *, spark: SparkSession | None = None
) -> MetricsExporter:
    """Serve the metrics of all lookup joins of this process over HTTP, for Prometheus and for ``lookupcache top``.

    It closes itself when its session is stopped. The counts of earlier joins are included. Counts arrive when a task
    or, for streams that are observed, a micro-batch has ended. Raises OptionError if the port cannot be used,
    LookupCacheError if ``prometheus_client`` is not installed.

    Args:
        port: The port; 0 takes a free one.
        addr: The address to bind to. The default is reached from this machine only; nothing asks for a password.
        spark: The session with which it closes; by default the active one.

    >>> with export_metrics(port=0) as exporter:
    ...     exporter.url
    'http://127.0.0.1:.../metrics'
    """
    _require_client()
    return MetricsExporter(addr, port, spark if spark is not None else SparkSession.getActiveSession())


def _require_client() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise LookupCacheError(
            "prometheus_client is not installed.", hint="pip install 'lookupcache[prometheus]'"
        ) from error
