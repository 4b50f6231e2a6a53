"""A model of a join with the latest values of a stream, a row at a time: what each order must get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Rate = tuple[str | None, int | None, int | None]
"""Currency, rate, and when."""


@dataclass
class Model:
    """Orders and rates of micro-batches: with or without a key, ``order_by``, an age limit, deletes (where the rate is
    null), and a condition that the rate is above ``least``.
    """

    keyed: bool
    ordered: bool
    ttl: int | None
    deletes: bool
    least: int | None
    latest: dict[Any, tuple[tuple[int, int], Rate, int]] = field(default_factory=dict)
    before: dict[Any, tuple[tuple[int, int], Rate, int]] = field(default_factory=dict)
    arrived: list[Rate] = field(default_factory=list)

    def fold(self, now: int, partitions: Sequence[Sequence[Rate]]) -> bool:
        """Take the rates of a micro-batch; return whether which is the latest can be told."""
        self.latest = {key: one for key, one in self.latest.items() if self.ttl is None or now - one[2] < self.ttl}
        clear = self.ordered or self._is_clear(partitions)
        self.before, self.arrived = dict(self.latest), [row for rows in partitions for row in rows]
        for row in self.arrived:
            key = row[0] if self.keyed else 1
            if key is not None and not (self.ordered and key in self.latest and self.latest[key][0] > order_of(row[2])):
                self.latest[key] = order_of(row[2]), row, now
        if not self.ordered:
            self.latest = {key: one for key, one in self.latest.items() if self._is_alive(one[1])}
        return clear

    def _is_clear(self, partitions: Sequence[Sequence[Rate]]) -> bool:
        last: dict[Any, set[Any]] = {}
        for rows in partitions:
            mine = {row[0] if self.keyed else 1: (self._is_alive(row), self._is_alive(row) and row[1]) for row in rows}
            for key, value in mine.items():
                last.setdefault(key, set()).add(repr(value))
        return all(len(values) < 2 for key, values in last.items() if key is not None)

    def _is_alive(self, row: Rate) -> bool:
        if self.least is not None and not (row[1] is not None and row[1] > self.least):
            return False
        return not (self.deletes and row[1] is None)

    def rate_of(self, ccy: str | None) -> tuple[int | None, bool]:
        """Return the rate of an order and whether there is one."""
        one = self.latest.get(ccy if self.keyed else 1)
        return (one[1][1], True) if one is not None and self._is_alive(one[1]) else (None, False)

    def rate_at(self, ccy: str | None, at: int | None) -> tuple[int | None, bool]:
        """Return the rate of an order that comes after those rates of its micro-batch that are not above ``at``."""
        then = Model(self.keyed, self.ordered, None, self.deletes, self.least, dict(self.before))
        then.fold(0, [[row for row in self.arrived if order_of(row[2]) <= order_of(at)]])
        return then.rate_of(ccy)


def order_of(at: int | None) -> tuple[int, int]:
    """Return what orders a row; a null is before all values."""
    return (0, 0) if at is None else (1, at)


@dataclass
class LoadModel:
    """A load phase: it ends at an event time, or when that has not advanced for a time."""

    until: int
    idle: int | None
    progress: int = -1
    advanced: int | None = None
    loaded: bool = False

    def advance(self, now: int, events: Sequence[int]) -> None:
        """Take a micro-batch with the event times of its rates."""
        first = self.advanced is None
        if first or max(events, default=-1) > self.progress:
            self.advanced, self.progress = now, max(events, default=-1)
        assert self.advanced is not None
        idle = self.idle is not None and now >= self.advanced + self.idle
        self.loaded = self.loaded or self.progress >= self.until or idle
