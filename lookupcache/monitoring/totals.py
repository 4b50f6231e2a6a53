"""The exported counts of the joins of one table and cache, under a bounded number of names."""

from __future__ import annotations

from dataclasses import dataclass

from lookupcache.metrics import LookupMetrics

OTHER = "other"
"""The name under which joins are exported together that came after the limit was reached."""


@dataclass(frozen=True, order=True)
class Series:
    """What identifies exported counts: the table, the cache that its joins share, and the name of a stream's query."""

    table: str
    join: str
    query: str = ""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The counts of a `Series`.

    ``workers`` have reported a cache with content; ``caches`` are theirs, one each or one per host. Both are 0 where
    they are not known. The last report was made at ``reported``, in seconds since 1970. The limits are those of each
    cache; 0 is no limit. ``joins`` are those that the driver still refers to. ``failed_stages`` are the stages of Spark
    that an error of a lookup in this table has ended.
    """

    metrics: LookupMetrics
    workers: int = 0
    caches: int = 0
    reported: float = 0.0
    limit_rows: int = 0
    limit_bytes: int = 0
    joins: int = 0
    failed_stages: int = 0


class SeriesLimit:
    """Gives out at most ``most`` series; later ones are exported together, per table, and at last all together.

    What a series was replaced by stays the same, so that no exported count decreases.

    >>> limit = SeriesLimit(most=2)
    >>> [limit.apply(Series(table, join)) for table, join in [("a", "1"), ("a", "2"), ("a", "3"), ("a", "1")]]
    [Series(table='a', join='1', query=''), Series(table='a', join='2', query=''), \
Series(table='a', join='other', query=''), Series(table='a', join='1', query='')]
    """

    def __init__(self, most: int = 400) -> None:
        self.most = most
        self._own: set[Series] = set()
        self._tables: set[str] = set()

    def apply(self, series: Series) -> Series:
        """Return the series under which one is exported."""
        if series in self._own or len(self._own) < self.most:
            self._own.add(series)
            return series
        if series.table in self._tables or len(self._tables) < self.most:
            self._tables.add(series.table)
            return Series(series.table, OTHER)
        return Series(OTHER, OTHER)
