"""Advice: the smallest cache that reaches a target, its cost, and the options for it."""

from __future__ import annotations

from dataclasses import dataclass

from lookupcache.config.lookup_config import LRU_MAX_HOST_BYTES, LRU_MAX_ROWS
from lookupcache.hitrate.curve import Curve
from lookupcache.hitrate.deployment import Deployment, Scope
from lookupcache.hitrate.width import Width

_WORTH_A_CHANGE = 0.005
_POINT = 0.01
"""How much less than the best hit ratio the advised size may have."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A cache size, the reason for it, and its effects.

    ``rows`` is the size of one worker's cache, or of the one that the workers share (``scope``). ``half`` and ``twice``
    are the hit ratios of half and twice as many rows, ``best`` that of an unlimited cache. ``without`` is, about,
    the part of rows that cause no request without a cache, since a batch requests a key once. ``is_default`` says that
    the default size is at least as large, so that no size has to be set. ``calls`` is the number of keys requested from
    the source per second, ``in_flight`` the average number of calls in flight; None if unknown. ``options`` are a
    table's options.
    """

    rows: int
    why: str
    ratio: float
    half: float
    twice: float
    best: float
    without: float
    is_default: bool
    workers: int
    scope: Scope
    calls: float | None
    in_flight: float | None
    bytes_per_worker: float | None
    bytes_in_all: float | None
    options: dict[str, str]

    def lines(self) -> list[str]:
        """Return the options as lines to paste into a Python dict.

        >>> import numpy as np
        >>> choose_size(Curve.of(np.array([1, 20_000, 20_000, 30_000])), Deployment(), target=0.7).lines()
        ['"lookup.cache": "LRU",', '"lookup.cache.max-rows": "20000",']
        """
        return [f'"{key}": "{value}",' for key, value in self.options.items()]

    def texts(self) -> list[str]:
        """Return the size and its effects as sentences.

        >>> import numpy as np
        >>> for text in choose_size(Curve.of(np.array([1, 20_000, 20_000, 30_000])), Deployment(), target=0.7).texts():
        ...     print(text)
        20,000 rows: 75.00% of rows hit (the smallest that reaches 70.0%).
        Half of it has 25.00%, twice as much 100.00%.
        A million rows request 250,000 keys; without a cache it would be 1,000,000.
        """
        where = ""
        if self.workers > 1:
            each = f" in each of {self.workers} workers, {self.rows * self.workers:,} in all"
            where = each if self.scope == "worker" else f" in the cache that {self.workers} workers share"
        left, otherwise = (1 - self.ratio) * 1e6, (1 - self.without) * 1e6
        texts = [
            f"{self.rows:,} rows{where}: {self.ratio:.2%} of rows hit ({self.why}).",
            f"Half of it has {self.half:.2%}, twice as much {self.twice:.2%}.",
            f"A million rows request {left:,.0f} keys; without a cache it would be {otherwise:,.0f}.",
        ]
        if self.best - self.without < _POINT:
            texts.append("So a cache of any size spares hardly a request: few keys come again after their batch.")
        if self.calls is not None:
            busy = "" if self.in_flight is None else f", {self.in_flight:,.3g} of them in flight at any time"
            texts.append(f"The source receives requests for {self.calls:,.4g} keys a second{busy}.")
        if self.bytes_in_all is not None:
            each = "" if self.bytes_per_worker is None else f"{_bytes(self.bytes_per_worker)} per worker, "
            texts.append(f"That is {each}{_bytes(self.bytes_in_all)} in all.")
        return [*texts, "The default size suffices."] if self.is_default else texts


def choose_size(
    curve: Curve,
    deployment: Deployment,
    *,
    target: float | None = None,
    rate: float | None = None,
    cost: float | None = None,
    width: Width | None = None,
    eviction: str = "lru",
    gain: float = 0.0,
) -> Advice:
    """Choose a size on a deployment's curve: the smallest that reaches the target, else the best within a point.

    No size is smaller than a batch, whose keys the cache should hold at once. ``target`` is a part of the rows, between
    0 and 1; ``rate`` is in rows per second, ``cost`` in seconds per call. ``gain`` is by how much the hit ratio of the
    policy ``eviction`` exceeds that of LRU.
    """
    reached = None if target is None else curve.smallest(target)
    near = curve.smallest(curve.best - _POINT) or 1
    least = near if reached is None else reached
    rows = max(least, deployment.batch)
    # The smallest size counts the keys that are in a batch twice: a curve from samples has no smaller size.
    without = float(curve.ratio([1])[0]) if deployment.batch > 1 else 0.0
    ratio, half, twice = (min(float(one) + gain, curve.best) for one in curve.ratio([rows, rows // 2, 2 * rows]))
    calls = None if rate is None else rate * (1 - ratio)
    weight = None if width is None else rows * width.calc / _mean_rows(width.rows)
    is_shared = deployment.scope == "host" and deployment.workers > 1
    is_default = rows <= default_rows(deployment, width)
    return Advice(
        rows=rows,
        why=_why(target, reached, curve.best) if rows == least else _why_a_batch(least, target, reached, curve.best),
        ratio=ratio,
        half=half,
        twice=twice,
        best=curve.best,
        without=without,
        is_default=is_default,
        workers=deployment.workers,
        scope=deployment.scope,
        calls=calls,
        in_flight=None if calls is None or cost is None else calls * cost,
        bytes_per_worker=None if weight is None or is_shared else weight,
        bytes_in_all=None if weight is None else weight * (1 if is_shared else deployment.workers),
        options=_options(None if is_default else rows, deployment, eviction),
    )


def default_rows(deployment: Deployment, width: Width | None) -> int:
    """Return how many rows the default LRU cache holds, at least.

    The workers of a host share bytes, which are rows only where the width of a row is known.

    >>> default_rows(Deployment(scope="host"), None), default_rows(Deployment(scope="host"), Width(200, 50))
    (10000, 5368709)
    """
    if deployment.scope == "worker" or width is None:
        return LRU_MAX_ROWS
    return max(rows_that_fit(LRU_MAX_HOST_BYTES, width, calc=True), LRU_MAX_ROWS)


def winner(ratios: dict[str, float]) -> tuple[str, float]:
    """Return the policy with the most hits, and its advantage over LRU; LRU if the advantage is small.

    >>> winner({"lru": 0.5, "s3-fifo": 0.53}), winner({"lru": 0.5, "s3-fifo": 0.503})
    (('s3-fifo', 0.03), ('lru', 0.0))
    """
    best = max(ratios, key=lambda name: ratios[name])
    gain = round(ratios[best] - ratios["lru"], 12)
    return (best, gain) if gain >= _WORTH_A_CHANGE else ("lru", 0.0)


def rows_that_fit(limit: float, width: Width, *, calc: bool) -> int:
    """Return how many rows fit into a cache of this many bytes.

    >>> rows_that_fit(1000, Width(200, 50), calc=True), rows_that_fit(1000, Width(200, 50), calc=False)
    (20, 5)
    """
    per_key, rows = (width.calc, width.rows) if calc else (width.whole, width.whole_rows)
    return max(int(limit / per_key * _mean_rows(rows)), 1)


def _mean_rows(rows: tuple[int, ...]) -> float:
    return sum(max(count, 1) for count in rows) / len(rows)


def _why(target: float | None, reached: int | None, best: float) -> str:
    if reached is not None and target is not None:
        return f"the smallest that reaches {target:.1%}"
    within = f"the smallest within one point of an unlimited cache, which has {best:.1%}"
    return within if target is None else f"no size reaches {target:.1%}; {within}"


def _why_a_batch(least: int, target: float | None, reached: int | None, best: float) -> str:
    return f"so that all keys of a batch stay; {least:,} would be {_why(target, reached, best)}"


def _options(rows: int | None, deployment: Deployment, eviction: str) -> dict[str, str]:
    options = {"lookup.cache": "LRU"}
    if rows is not None:
        options["lookup.cache.max-rows"] = str(rows)
    if eviction != "lru":
        options["lookup.cache.eviction"] = eviction
    if not deployment.remember_misses:
        options["lookup.cache.missing-key"] = "false"
    if deployment.workers > 1 and deployment.scope == "worker":
        options["lookup.cache.scope"] = "worker"
    if deployment.workers > 1 and deployment.spread == "key":
        options["lookup.shuffle"] = "true"
    return options


def _bytes(count: float) -> str:
    """Return a size for people, as in '1.5 MB'.

    >>> _bytes(918697.1)
    '897.2 kB'
    """
    for unit in ("B", "kB", "MB"):
        if count < 1024:
            return f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GB"
