"""What changed per second between scrapes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from lookupcache.monitoring.scrape import Sample
from lookupcache.monitoring.totals import Series

TIERS = ("worker", "host", "store")


@dataclass(frozen=True)
class View:
    """A series as it is now, and what changed of it in the last seconds; ``seconds`` is 0 after a single scrape."""

    series: Series
    now: Sample
    change: Sample
    seconds: float

    def count(self, name: str) -> float:
        """Return a count of now; ``name`` without prefix."""
        return self.now.get(f"lookupcache_{name}", 0.0)

    def rate(self, name: str) -> float | None:
        """Return what a count grew by per second; None after a single scrape."""
        return self._recent(name) / self.seconds if self.seconds else None

    @property
    def is_active(self) -> bool:
        """Whether rows were looked up in the last seconds."""
        return bool(self.seconds and self._recent("rows_total"))

    @property
    def hit_rate(self) -> float | None:
        """Row hits ÷ (hits + misses), of the last seconds, or of all if nothing happened in them."""
        hits, misses = self._latest("hit_rows_total"), self._latest("misses_total")
        return hits / (hits + misses) if hits + misses else None

    def tier(self, name: str) -> float | None:
        """Return the share of the distinct keys that a cache answered."""
        keys = self._latest("keys_total")
        return self._latest(f"hits_total:{name}") / keys if keys else None

    @property
    def seconds_per_call(self) -> float | None:
        """Time spent waiting for the source ÷ calls."""
        calls = self._latest("source_calls_total")
        return self._latest("source_seconds_total") / calls if calls else None

    @property
    def fill(self) -> float | None:
        """The used part of the caches, by the limit that is reached first; None without a limit."""
        caches = self.count("caches")
        parts = [
            self.count(f"cached_{unit}") / (self.count(f"cache_limit_{unit}") * caches)
            for unit in ("rows", "bytes")
            if caches and self.count(f"cache_limit_{unit}")
        ]
        return max(parts, default=None)

    def age(self, now: float) -> float | None:
        """Return the seconds since a worker reported."""
        reported = self.count("last_report_timestamp_seconds")
        return max(now - reported, 0.0) if reported else None

    def _recent(self, name: str) -> float:
        return self.change.get(f"lookupcache_{name}", 0.0)

    def _latest(self, name: str) -> float:
        return self._recent(name) if self.is_active else self.count(name)


@dataclass
class Rates:
    """The scrapes of the last ``window`` seconds.

    Counts arrive when a task or a micro-batch has ended, so that a rate over a second would be 0 or enormous.
    """

    window: float = 15.0
    _scrapes: deque[tuple[float, Mapping[Series, Sample]]] = field(default_factory=deque)

    def add(self, time: float, scraped: Mapping[Series, Sample]) -> list[View]:
        """Add a scrape made at a time in seconds; return its series, those with most rows first."""
        self._scrapes.append((time, scraped))
        while len(self._scrapes) > 2 and time - self._scrapes[1][0] >= self.window:
            self._scrapes.popleft()
        started, before = self._scrapes[0]
        views = [
            View(series, now, _change(before.get(series, {}), now), time - started) for series, now in scraped.items()
        ]
        return sorted(views, key=lambda one: (-(one.rate("rows_total") or 0), -one.count("rows_total"), one.series))


def _change(before: Sample, now: Sample) -> Sample:
    """Return the growth of counts; a count that decreased belongs to a program that was started again."""
    return {
        name: value - (before.get(name, 0.0) if before.get(name, 0.0) <= value else 0.0) for name, value in now.items()
    }
