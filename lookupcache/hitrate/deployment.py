"""The effects of a deployment: batches, several workers, rows per key, keys without rows."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Hashes
from lookupcache.errors import OptionError
from lookupcache.hitrate.curve import Curve, total
from lookupcache.hitrate.keys import Requests
from lookupcache.hitrate.replay import in_turns, missing_keys
from lookupcache.hitrate.reuse import NEVER, Numbers, distances, previous
from lookupcache.hitrate.shards import Chosen, Sample, SampledKeys, estimate

Spread = Literal["random", "key"]
Scope = Literal["worker", "host"]

_ROWS_LOOKED_AT = 200_000
_MOST_BATCHES = 2_000
_MIX = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How a lookup join runs.

    A ``batch`` of rows looks up each of its keys once, and entries are evicted after it. Each of ``workers``
    has its own cache; rows are assigned to them at ``random`` or by ``key``, as with ``lookup.shuffle``. ``rows`` are
    numbers of rows that keys have, each as often as it occurs, 0 for a key that the source does not know. It weighs
    one where ``remember_misses``, and is otherwise requested in every batch. Sizes are rows of one worker's cache, or
    with ``scope`` host of the cache that they share.
    """

    batch: int = 1
    workers: int = 1
    spread: Spread = "random"
    rows: tuple[int, ...] = (1,)
    remember_misses: bool = True
    scope: Scope = "worker"

    def __post_init__(self) -> None:
        for name in ("batch", "workers"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}.", hint="It takes a whole number, 1 or more.")
        for name, known in (("spread", get_args(Spread)), ("scope", get_args(Scope))):
            if getattr(self, name) not in known:
                raise OptionError(f"{name} is {getattr(self, name)!r}.", hint=f"It takes {' or '.join(known)}.")

    @property
    def mean_weight(self) -> float:
        """The average weight of a key."""
        return float(np.mean(np.maximum(self.rows, int(self.remember_misses))))

    def with_rows(self, per_key: int, missing: float) -> Deployment:
        """Return this deployment with this many rows per key, and a fraction of keys without rows."""
        if not 0 <= missing <= 1 or per_key < 1:
            raise OptionError(
                f"{per_key} rows per key, and a part of {missing:g} of the keys without rows: that cannot be.",
                hint="rows_per_key is 1 or more, missing a part from 0 to 1, as 10% or 0.1.",
            )
        none = round(1000 * missing)
        return replace(self, rows=(per_key,) if not none else (0,) * none + (per_key,) * (1000 - none))

    def rows_of(self, words: Hashes) -> Numbers:
        """Return the number of rows of each key, drawn by its word."""
        return np.array(self.rows, dtype=np.int64)[(mix(words) % np.uint64(len(self.rows))).astype(np.int64)]

    def workers_of(self, words: Hashes) -> npt.NDArray[np.int16]:
        """Return the worker of each row."""
        if self.spread == "random":
            return np.random.default_rng(0).integers(0, self.workers, len(words), dtype=np.int16)
        return ((mix(words) >> np.uint64(20)) % np.uint64(self.workers)).astype(np.int16)


def exact_curve(requests: Requests, deployment: Deployment, *, warm: bool = False) -> Curve:
    """Return the hits of an LRU cache at every size; ``warm``: those of the second half of the requests only.

    >>> requests = Requests(np.array([1, 2, 1, 1, 2], np.uint64))
    >>> exact_curve(requests, Deployment()).ratio([1, 2]).tolist()
    [0.2, 0.6]
    >>> exact_curve(requests, Deployment(batch=5)).ratio([1]).tolist()
    [0.6]
    """
    needed = needed_sizes(requests, deployment)
    return Curve.of(needed[len(needed) // 2 :] if warm else needed)


def needed_sizes(requests: Requests, deployment: Deployment) -> Numbers:
    """Return the smallest size, in rows per worker, from which each request is a hit."""
    ids, words = requests.ids.astype(np.int64), requests.words
    order, batches = np.arange(len(ids)), None
    if deployment.workers > 1:
        worker = deployment.workers_of(words)
        order = np.argsort(worker, kind="stable")
        ids = (ids + worker.astype(np.int64) * requests.keys)[order]
    if deployment.batch > 1:
        batches = _batches(deployment, len(ids), None if deployment.workers == 1 else worker[order])
    rows = None if deployment.rows == (1,) else deployment.rows_of(words)[order]
    needed = np.empty(len(ids), dtype=np.int64)
    needed[order] = _find_needed_sizes(ids, rows, batches, deployment.remember_misses)
    return needed


def _find_needed_sizes(
    ids: Numbers, rows: Numbers | None, batches: npt.NDArray[np.integer] | None, remember_misses: bool
) -> Numbers:
    if rows is None:
        return distances(previous(ids), None, batches)
    needed = distances(previous(ids), np.maximum(rows, int(remember_misses)), batches)
    if not remember_misses:
        needed[(rows == 0) & ((needed > 0) | (batches is None))] = NEVER
    return needed


def _batches(deployment: Deployment, count: int, worker: npt.NDArray[np.int16] | None) -> npt.NDArray[np.int32]:
    """Return the number of each row's batch; no batch has rows of two workers."""
    number = np.arange(count)
    if worker is None:
        return (number // deployment.batch).astype(np.int32)
    counts = np.bincount(worker, minlength=deployment.workers)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    before = np.cumsum(-(-counts // deployment.batch)) - -(-counts // deployment.batch)
    return ((number - begins) // deployment.batch + np.repeat(before, counts)).astype(np.int32)


def shared_curve(requests: Requests, deployment: Deployment, sizes: list[int]) -> Curve:
    """Return the hits of the workers of a host, which share a cache, at some sizes.

    >>> requests = Requests(np.array([1, 2, 1, 2, 3, 1], np.uint64))
    >>> shared_curve(requests, Deployment(workers=2, scope="host"), [3]).ratio([3]).tolist()
    [0.5]
    """
    ids, worker = requests.ids, deployment.workers_of(requests.words)
    if not deployment.remember_misses and 0 in deployment.rows:
        known = deployment.rows_of(requests.words) > 0
        ids, worker = ids[known], worker[known]
    entry_counts = [max(round(size / deployment.mean_weight), 1) for size in sizes]
    # Single requests are replayed many at a time, too, if there are many: each batch takes as long as many requests.
    batch = max(deployment.batch, len(ids) // _MOST_BATCHES)
    turn = np.empty(len(ids), np.int64)
    for number in np.unique(worker):
        own = np.flatnonzero(worker == number)
        turn[own] = np.arange(len(own)) // batch
    batches = in_turns(ids, worker, turn)
    missed = {count: sum(map(len, missing_keys(batches, "lru", count, requests.keys))) for count in set(entry_counts)}
    hits = np.array([len(ids) - missed[count] for count in entry_counts], dtype=np.float64)
    return Curve(np.array(sizes, dtype=np.int64), hits, float(len(requests)))


class Survey:
    """A sample of the keys under one deployment, for each worker; its size does not depend on the input's."""

    def __init__(self, deployment: Deployment, hot: Hashes, rate: float) -> None:
        choice = SampledKeys(rate, hot, deployment.batch)
        self.deployment = deployment
        self.caches = deployment.workers if deployment.scope == "worker" else 1
        self.samples = [Sample(choice) for _ in range(self.caches)]
        self.forgotten = 0

    def add(self, words: Hashes) -> None:
        """Add the requests that follow."""
        requested = words
        if not self.deployment.remember_misses and 0 in self.deployment.rows:
            requested = words[self.deployment.rows_of(words) > 0]
            self.forgotten += len(words) - len(requested)
        if self.caches == 1:
            self.samples[0].add(requested)
            return
        worker = self.deployment.workers_of(requested)
        for number, sample in enumerate(self.samples):
            sample.add(requested[worker == number])

    def concat_with(self, other: Survey) -> Survey:
        """Return the survey of these requests and, after them, the others."""
        survey = copy(self)
        survey.samples = [one.concat_with(two) for one, two in zip(self.samples, other.samples, strict=True)]
        survey.forgotten = self.forgotten + other.forgotten
        return survey

    @property
    def keys(self) -> int:
        """The number of sampled keys of all workers together."""
        return sum(sample.keys for sample in self.samples)

    def curve(self, sizes: list[int]) -> Curve:
        """Estimate the hits at some sizes, in rows per worker."""
        entry_counts = [max(round(size / self.deployment.mean_weight), 1) for size in sizes]
        is_shared = self.deployment.scope == "host" and self.deployment.workers > 1
        hits_of = self._shared_hits if is_shared else None
        curves = [estimate(sample, entry_counts, hits_of) for sample in self.samples if sample.requests]
        curve = curves[0] if len(curves) == 1 else total(curves)
        ratio, error = curve.ratio(entry_counts), curve.error_at(entry_counts)
        requests = curve.requests + self.forgotten
        part = curve.requests / requests
        return Curve(np.array(sizes, dtype=np.int64), ratio * curve.requests, requests, error * part)

    def _shared_hits(self, chosen: Chosen) -> Callable[[int], Numbers]:
        """Return the function that gives the hits of each sampled key at a size of the host's cache, in keys.

        Keys are replayed through caches that are smaller by as much as the sample is.
        """
        [sample], deployment = self.samples, self.deployment
        worker = deployment.workers_of(np.concatenate(sample.words))
        batch = max(deployment.batch, sample.requests // _MOST_BATCHES)
        batches = in_turns(chosen.ids, worker, chosen.positions // (batch * deployment.workers))
        requested = np.bincount(chosen.ids, minlength=chosen.keys)

        def hits(size: int) -> Numbers:
            own = max(round((size - len(sample.choice.hot)) * sample.choice.rate), 1)
            missing = np.concatenate([*missing_keys(batches, "lru", own, chosen.keys)])
            return requested - np.bincount(missing, minlength=chosen.keys)

        return hits


def survey_requests(words: Hashes, deployment: Deployment, rate: float) -> Survey:
    """Survey requests in memory."""
    hot = SampledKeys.of(words[:: max(len(words) // _ROWS_LOOKED_AT, 1)], rate).hot
    survey = Survey(deployment, hot, rate)
    for start in range(0, len(words), 1 << 18):
        survey.add(words[start : start + (1 << 18)])
    return survey


def mix(words: Hashes) -> Hashes:
    """Return words in which each bit depends on all bits, by another function than the one that selects samples."""
    words = (words ^ (words >> np.uint64(32))) * _MIX
    words = (words ^ (words >> np.uint64(32))) * _MIX
    return words ^ (words >> np.uint64(32))
