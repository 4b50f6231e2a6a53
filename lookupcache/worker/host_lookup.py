"""`HostCacheLookup`: a cache of part of a source that all workers of a host share.

keys ─► host.locate ──found──► joined from the mapped rows; copied only if they are due for a refresh
          │ missing
          ▼
        RowsSearch: claims ──mine──► calls ─► fill ─► host.publish ─► release
          └──────────another's──► awaited ─► poll: the next look
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lookupcache.arrays import count_distinct
from lookupcache.cache import ColumnCache
from lookupcache.cache.age import Age
from lookupcache.cache.entry_columns import AnyEntries, Readable
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch, Positions
from lookupcache.cache.limits import Limits, own_limits
from lookupcache.flow.flow import NO_KEYS, Wait
from lookupcache.flow.waiting import HOST_POLL_SECONDS, PATIENT_AGAIN_SECONDS, host_claim_seconds
from lookupcache.host import Found, HostCache
from lookupcache.host.host_search import HostSearch
from lookupcache.host.mapped_rows import BatchRows, SegmentRows
from lookupcache.host.segments import Part, others
from lookupcache.worker.answers import Fetched
from lookupcache.worker.partial_cache import PartialCacheLookup, PendingKeys, SourceRequest
from lookupcache.worker.source import Source


class RowsSearch(HostSearch):
    """A worker's search for distinct keys on its host, with their entries in its own cache, -1 for none so far.

    ``seen`` is the host's position when the keys were looked for in vain, or None. With ``is_refresh``, no batch waits
    for them, so those that others fetch are left to them.
    """

    def __init__(
        self, lookup: HostCacheLookup, keys: KeyBatch, entries: Entries, *, seen: int | None = None,
        is_refresh: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(lookup.host, keys, lookup.claim_seconds, seen=seen)
        # Not yet of the cache: nothing changes the numbers of entries until the keys are awaited.
        self.lease = Lease(entries)
        self.wait = Wait(self, lookup.counters, lookup.source.plan.config.timeout)
        self._lookup = lookup
        self._is_refresh = is_refresh
        self._least = self.host.clock() - lookup.cache.limits.refresh_seconds if is_refresh else -math.inf
        self._is_impatient = not is_refresh and time.monotonic() < lookup.impatient_until

    def look(self, is_over: bool) -> Positions:
        self._after = max(self._least, self._lookup.listening_since)
        requested = super().look(is_over or self._is_impatient)
        if self._is_refresh:
            self.left = NO_KEYS
        if self.has_lapsed or (is_over and requested.size and self.is_source_asked):
            # A claimant that lives does not renew its claims, perhaps because Spark blocks it: wait for none for now.
            # Not so where its calls wait for a slot: others would only wait for that slot as well.
            self._lookup.impatient_until = time.monotonic() + PATIENT_AGAIN_SECONDS
        return requested

    def _take(self, positions: Positions, found: Found, now: float) -> Positions:
        self._lookup.copy(self.keys, self.lease.entries, positions, found)
        self._lookup.cache.unlist(self.lease.entries[positions])
        return positions

    def entries_left(self) -> Entries:
        """Return the entries of the keys that are left, -1 for the others."""
        entries = np.full_like(self.lease.entries, -1)
        entries[self.left] = self.lease.entries[self.left]
        return entries


@dataclass(eq=False)
class HostPending(PendingKeys):
    """An open batch of keys, some of which mapped segments of the host have: they have no entry in the own cache."""

    parts: list[Part] = field(default_factory=list)
    mapped: int = 0
    """How many different keys that are."""

    def resolve(self) -> tuple[Readable, AnyEntries]:
        if not self.parts:
            return super().resolve()
        own = self.lease.entries
        if len(self.parts) == 1:
            [(segment, positions, entries)] = self.parts
            # Nearly always all keys are in one segment, or all but those that the source does not have.
            if len(positions) == len(own):
                return SegmentRows(segment), entries
            if own.max(initial=-1) < 0:
                entries, found = np.full(len(own), -1, dtype=np.int64), entries
                entries[positions] = found
                return SegmentRows(segment), entries
        assert isinstance(self.stored, ColumnCache)
        return BatchRows(self.stored, own, self.parts), np.arange(len(own), dtype=np.int32)


class HostCacheLookup(PartialCacheLookup):
    """Finds missing keys in the cache of the host before it requests them, and publishes what it has requested.

    Whatever fails on the host, lookups go on as if its cache were empty.
    """

    def __init__(self, source: Source, host: HostCache) -> None:
        self.host = host
        # Keys are hashed once, for the own cache and for the segments of the host.
        source.hash_seed = host.seed
        super().__init__(source, host.clock)
        self._age = Age(self.cache.limits)
        self._awaited: dict[int, RowsSearch] = {}
        self._since: dict[int, tuple[int, float]] = {}
        self._seen = self._found_at = host.position
        self._renewed = -math.inf
        timeout = source.plan.config.timeout
        self.claim_seconds = host_claim_seconds(timeout, source.blocked_seconds)
        self._renewal_seconds = host_claim_seconds(timeout) / 3
        self.impatient_until = -math.inf
        self.listening_since = math.inf if source.reports_changes else -math.inf

    def _limits(self) -> Limits:
        return own_limits(Limits.of(self.source.plan.config, "host"))

    # ── finding ──────────────────────────────────────────────────────────────────────────────────────────

    def _new_pending(self, lease: Lease) -> PendingKeys:
        return HostPending(lease, self.cache)

    def _touch(self, pending: PendingKeys) -> int:
        assert isinstance(pending, HostPending)
        is_own = sum(len(positions) for _, positions, _ in pending.parts) < len(pending.lease.entries)
        return pending.mapped + (super()._touch(pending) if is_own else 0)

    def _find_missing(self, keys: KeyBatch, pending: PendingKeys, rows: Positions, now: float) -> int:
        """Use what the host has of keys where it lies, but for what is due for a refresh; request the others."""
        assert isinstance(pending, HostPending)
        missing = _take(keys, rows)
        parts = self.host.locate(missing, after=self.listening_since)
        self._found_at = self.host.position
        due: list[Part] = []
        if self.cache.limits.needs_write_times:
            parts, due = self._split_due(parts)
        pending.mapped = sum(count_distinct(entries, len(segment)) for segment, _, entries in parts)
        self.host.count_hits(pending.mapped)
        rest = others(len(missing), parts)
        is_all = len(rows) == len(keys)
        pending.parts = [(one, at if is_all else rows.take(at), entries) for one, at, entries in parts]
        requested = 0
        if rest.size and due:
            pending.lease.entries[rows], requested = self._copy_due(missing, due, now)
            rest = rest[pending.lease.entries[rows[rest]] < 0]
        if rest.size and self._open:
            rest = self._find_prefetched_rows(missing, pending, rows, rest)
        return requested + (super()._find_missing(keys, pending, rows[rest], now) if rest.size else 0)

    def _split_due(self, parts: list[Part]) -> tuple[list[Part], list[Part]]:
        """Return the entries to use as they are, and those that are to be fetched again."""
        now = self.host.clock()
        good: list[Part] = []
        due: list[Part] = []
        for segment, positions, entries in parts:
            is_due = self._age.is_old(segment.written.take(entries), segment.deadline.take(entries), now)
            for mask, into in ((~is_due, good), (is_due, due)):
                if mask.any():
                    into.append((segment, positions[mask], entries[mask]))
        return good, due

    def _copy_due(self, keys: KeyBatch, parts: list[Part], now: float) -> tuple[Entries, int]:
        """Put entries of the host into the own cache, to be fetched again; return the entry of each key, -1 for none.

        Also returns how many keys batches wait for.
        """
        found = np.concatenate([positions for _, positions, _ in parts])
        distinct = keys.take(found).distinct()
        rows = found[distinct.first]
        self.host.count_hits(len(rows))
        first = np.zeros(len(keys), dtype=np.bool_)
        first[rows] = True
        kept = [(segment, at[first[at]], numbers[first[at]]) for segment, at, numbers in parts]
        copied = self.host.gather([part for part in kept if len(part[1])])
        entries = np.full(len(keys), -1, dtype=np.int32)
        self.copy(keys, entries, copied.positions, copied)
        requested = self._renew_old(keys, entries, copied, now)
        self.cache.unlist(entries[copied.positions])
        entries[found] = entries[rows[distinct.code]]
        return entries, requested

    def _find_prefetched_rows(
        self, keys: KeyBatch, pending: HostPending, rows: Positions, rest: Positions
    ) -> Positions:
        """Use rows that prefetched batches have found on the host, which may have evicted them; return the others."""
        for one, prefetched in self._prefetched():
            assert isinstance(one, HostPending)
            for segment, at, entries in one.parts:
                known = prefetched.entries_of(keys.take(rest), at, entries).astype(np.int64)
                known[~self.host.is_fresh(segment, known)] = -1
                found = np.flatnonzero(known >= 0)
                if found.size:
                    pending.parts.append((segment, rows[rest[found]], known[found]))
                    pending.mapped += count_distinct(known[found])
                    rest = rest[known < 0]
        return rest

    def copy(self, keys: KeyBatch, entries: Entries, positions: Positions, found: Found) -> None:
        """Write rows of the host into the entries of keys at positions, or into new ones; their times are the same."""
        new = positions[entries[positions] < 0]
        if new.size:
            entries[new] = self.cache.reserve(keys.take(new), self._next_number(), self.clock())
        self.cache.fill(entries[positions], found.rows, found.counts, found.written, found.deadline)

    def _renew_old(self, keys: KeyBatch, entries: Entries, found: Found, now: float) -> int:
        """Fetch copied entries again that are due for a refresh or expired; return how many keys batches wait for."""
        at = self.host.clock()
        expired = found.deadline < at
        due = ~expired & self._age.is_due(found.written, at)
        requested = 0
        if expired.any():
            rows = found.positions[expired]
            requested = self._fetch_again(keys.take(rows), entries[rows], now, wait=True)
        if due.any():
            rows = found.positions[due]
            self.counters["refreshes"] += self._fetch_again(keys.take(rows), entries[rows], now, wait=False)
        return requested

    def _fetch_new(self, keys: KeyBatch, now: float) -> tuple[Entries, int]:
        """Claim distinct keys that the host does not have; request those that no other worker has claimed."""
        entries = np.full(len(keys), -1, dtype=np.int32)
        search = RowsSearch(self, keys, entries, seen=self._found_at)
        mine = search.wait.step()
        if mine.size:
            with search.giving_back(mine):
                entries[mine] = self._request_new(keys.take(mine), now)
        if search.left.size:
            number = self._next_number()
            entries[search.left] = self.cache.reserve(keys.take(search.left), number, now)
            self._await(number, search)
        return entries, len(mine)

    def _fetch_again(self, keys: KeyBatch, entries: Entries, now: float, *, wait: bool) -> int:
        """Take a newer version from the host, or else request the keys unless another worker does."""
        search = RowsSearch(self, keys, entries, is_refresh=not wait)
        mine = search.wait.step()
        if mine.size:
            with search.giving_back(mine):
                self._request_again(keys.take(mine), entries[mine], wait=wait)
        if search.left.size:
            number = self._next_number()
            self.cache.request_again(entries[search.left], number, wait=True)
            self._await(number, search)
        return len(mine)

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, number: int, *arguments: Any, **options: Any) -> None:
        # For a call that waits for more keys, the earlier time counts.
        self._since.setdefault(number, (self.host.position, self.host.clock()))
        super()._send(number, *arguments, **options)
        if number in self._requests and self._requests[number].group.is_queued:
            # Soon, so that workers that wait for these keys know it.
            self._renewed = -math.inf

    def _release(self, request: SourceRequest) -> None:
        self._since.pop(request.number, None)
        self.host.release(request.keys)

    def _renew_claims(self) -> None:
        if self._requests and time.monotonic() - self._renewed >= self._renewal_seconds:
            for request in self._requests.values():
                self.host.renew(request.keys, self.claim_seconds, is_queued=request.group.is_queued)
            self._renewed = time.monotonic()

    # ── storing ──────────────────────────────────────────────────────────────────────────────────────────

    def _publish_fetched(self, request: SourceRequest, fetched: Fetched) -> None:
        since, started = self._since.get(request.number, (-1, -math.inf))
        written = self.host.clock()
        if self.source.reports_changes:
            # The rows may have been read before the source began to report changes to other workers.
            written = started
            if fetched.failed.sum() < len(fetched.counts):
                self.listening_since = min(self.listening_since, self.host.clock())
        kept = ~fetched.failed
        if not self.cache.limits.misses:
            kept &= fetched.counts > 0
        rows = np.flatnonzero(kept)
        if rows.size:
            # What a store had is as old as it was there.
            times = written if fetched.written is None else np.minimum(fetched.written[rows], written)
            keys = request.keys if len(rows) == len(request.keys) else request.keys.take(rows)
            if self.host.publish(keys, fetched.rows, fetched.counts[rows], times, since):
                self.cache.unlist(request.lease.entries[rows])

    # ── waiting for others ───────────────────────────────────────────────────────────────────────────────

    def _await(self, number: int, search: RowsSearch) -> None:
        search.wait.has_begun = True
        search.lease = self.cache.lease(search.entries_left())
        self._awaited[number] = search

    def poll(self) -> None:
        super().poll()
        self._renew_claims()
        self._check_awaited()

    def wait(self, *, room: bool = False) -> None:
        """Wait for a call group, or for a moment; store results, also those of other workers."""
        with self.counters.timed("source_seconds"):
            timeout = HOST_POLL_SECONDS if self._awaited else self._renewal_seconds
            self._complete_groups(self.source.executor.take_completed(wait=True, room=room, timeout=timeout))
            self._renew_claims()
            self._check_awaited()

    def _check_awaited(self) -> None:
        for number, search in list(self._awaited.items()):
            mine = search.wait.step()
            if mine.size:
                with search.giving_back(mine):
                    self._request_awaited(number, search, mine)
            if search.left.size:
                search.lease.entries = search.entries_left()
            else:
                self._end_awaited(number)

    def _request_awaited(self, awaited: int, search: RowsSearch, rows: Positions) -> None:
        """Request some of the keys that were awaited, in a call of another number."""
        keys, entries, number = search.keys.take(rows), search.lease.entries[rows], self._next_number()
        calls = self.source.split(keys)
        self.cache.hand_over(entries, number)
        for pending in self._open:
            if awaited in pending.waits:
                pending.waits.add(number)
        self._send(number, calls, self.cache.lease(entries), deadline=search.wait.deadline)
        self.counters["misses"] += len(rows)
        self.counters["hits"] -= len(rows)

    def _end_awaited(self, number: int) -> Entries:
        """Wait no more for keys; return the entries of those that are left."""
        search = self._awaited.pop(number)
        self.cache.release(search.lease)
        for pending in self._open:
            pending.waits.discard(number)
        return search.lease.entries[search.left]

    def abandon(self, batches: Iterable[PendingKeys]) -> None:
        super().abandon(batches)
        needed = {number for pending in self._open for number in pending.waits}
        for number in [number for number in self._awaited if number not in needed]:
            self.cache.fail(self._end_awaited(number), self.clock())

    # ── invalidation ────────────────────────────────────────────────────────────────────────────

    def _invalidate(self) -> None:
        """Remove what the source reports as changed here and on the host, and what other workers have reported."""
        if self.source.reports_changes:
            changed = self.source.changed()
            self._remove_changed(changed)
            if changed is None or len(changed):
                self.host.invalidate(changed)
        if self.host.is_changed or self.host.position != self._seen:
            for keys in self.host.invalidations_since(self._seen):
                self._remove_changed(keys)
            self._seen = self.host.position

    def content(self) -> tuple[int, int, int]:
        """Return the rows, bytes and keys of the own cache, and this worker's share of those on the host."""
        own, shared = super().content(), self.host.share()
        return own[0] + shared[0], own[1] + shared[1], own[2] + shared[2]

    def disconnect(self) -> None:
        super().disconnect()
        self.host.close()


def _take(keys: KeyBatch, rows: Positions) -> KeyBatch:
    """Return the keys of these rows; if they are all rows in order, without a copy."""
    is_all = len(rows) == len(keys) and bool((np.diff(rows) == 1).all())
    return keys if is_all else keys.take(rows)
