"""`HostCacheLookup`: a cache of part of a source that all workers of a host share.

keys ─► host.locate ──found──► joined from the mapped rows; copied only if they are due for a refresh
                    │ missing
                    ▼
                host.claim ──mine──► calls ─► fill ─► host.publish ─► release
                    └────────another's──► awaited ─► poll: host.find, or claim
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lookupcache.arrays import count_distinct
from lookupcache.cache import ColumnCache
from lookupcache.cache.age import Age
from lookupcache.cache.column_cache import Lease
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch, Positions
from lookupcache.cache.limits import Limits, own_limits
from lookupcache.cache.readable import AnyEntries, Readable
from lookupcache.flow.claims import Find, claim_left
from lookupcache.flow.waiting import HOST_POLL_SECONDS, PATIENT_AGAIN_SECONDS, host_claim_seconds
from lookupcache.host import Found, HostCache
from lookupcache.host.mapped_rows import BatchRows, SegmentRows
from lookupcache.host.segments import Part, others
from lookupcache.worker.answers import Fetched
from lookupcache.worker.calls import Calls
from lookupcache.worker.partial_cache import Clock, PartialCacheLookup, PendingKeys, Request
from lookupcache.worker.source import Source


@dataclass(eq=False)
class AwaitedKeys:
    """Keys that another worker has claimed, and their entries here.

    ``until`` is a time of `time.monotonic`; ``is_queued`` says that a claimant's calls had to wait for a slot, or for
    another host, so that the source is not late.
    """

    number: int
    keys: KeyBatch
    lease: Lease
    until: float
    found_at: int
    """The position on the host when they were looked up last."""
    is_queued: bool = False

    def keep(self, rows: Positions) -> None:
        """Keep only these keys."""
        self.keys = self.keys.take(rows)
        self.lease.entries = self.lease.entries[rows]


@dataclass(eq=False)
class HostPending(PendingKeys):
    """An open batch of keys, some of which mapped segments of the host have: they have no entry in the own cache."""

    parts: list[Part] = field(default_factory=list)
    mapped: int = 0
    """How many different keys that are."""
    ahead: float = 0.0
    """How far the lookup's clock is ahead of the host's."""

    def resolve(self) -> tuple[Readable, AnyEntries]:
        """Return where the rows are stored, and the entry of each key there, -1 for none."""
        if not self.parts:
            return super().resolve()
        own = self.lease.entries
        if len(self.parts) == 1:
            [(segment, positions, entries)] = self.parts
            # Nearly always all keys are in one segment, or all but those that the source does not have.
            if len(positions) == len(own):
                return SegmentRows(segment, self.ahead), entries
            if own.max(initial=-1) < 0:
                entries, found = np.full(len(own), -1, dtype=np.int64), entries
                entries[positions] = found
                return SegmentRows(segment, self.ahead), entries
        assert isinstance(self.stored, ColumnCache)
        return BatchRows(self.stored, own, self.parts, self.ahead), np.arange(len(own), dtype=np.int32)


class HostCacheLookup(PartialCacheLookup):
    """Finds missing keys in the cache of the host before it requests them, and publishes what it has requested.

    Whatever fails on the host, lookups go on as if its cache were empty.
    """

    def __init__(self, source: Source, host: HostCache, clock: Clock | None = None) -> None:
        self.host = host
        # Keys are hashed once, for the own cache and for the segments of the host.
        source.hash_seed = host.seed
        super().__init__(source, host.clock if clock is None else clock)
        self._age = Age(self.cache.limits)
        self._awaited: dict[int, AwaitedKeys] = {}
        self._since: dict[int, tuple[int, float]] = {}
        self._seen = self._found_at = host.position
        self._claim_seconds = host_claim_seconds(source.plan.config.timeout)
        self._renewed = -math.inf
        self._impatient_until = -math.inf
        self._listening_since = math.inf if source.reports_changes else -math.inf

    def _limits(self) -> Limits:
        return own_limits(Limits.of(self.source.plan.config, "host"))

    # ── finding ──────────────────────────────────────────────────────────────────────────────────────────

    def _new_pending(self, lease: Lease) -> PendingKeys:
        return HostPending(lease, self.cache, ahead=self.clock() - self.host.clock())

    def _touch(self, pending: PendingKeys) -> int:
        assert isinstance(pending, HostPending)
        is_own = sum(len(positions) for _, positions, _ in pending.parts) < len(pending.lease.entries)
        return pending.mapped + (super()._touch(pending) if is_own else 0)

    def _find_missing(self, keys: KeyBatch, pending: PendingKeys, rows: Positions, now: float) -> int:
        """Use what the host has of keys where it lies, but for what is due for a refresh; request the others."""
        assert isinstance(pending, HostPending)
        missing = _take(keys, rows)
        parts = self.host.locate(missing, after=self._listening_since)
        self._found_at = found_at = self.host.position
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
            # Other keys may have been looked up in the meantime.
            self._found_at = found_at
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
        entries = np.full(len(keys), -1, dtype=np.int32)
        found = np.concatenate([positions for _, positions, _ in parts])
        distinct = keys.take(found).distinct()
        rows = found[distinct.first]
        self.host.count_hits(len(rows))
        first = np.zeros(len(keys), dtype=np.bool_)
        first[rows] = True
        kept = [(segment, at[first[at]], numbers[first[at]]) for segment, at, numbers in parts]
        copied = self.host.gather([part for part in kept if len(part[1])])
        new, requested = self._copy(keys.take(copied.positions), copied, now)
        entry_of = np.full(len(keys), -1, dtype=np.int32)
        entry_of[copied.positions] = new
        entries[found] = entry_of[rows[distinct.code]]
        return entries, requested

    def _copy(self, keys: KeyBatch, found: Found, now: float) -> tuple[Entries, int]:
        """Return entries with the host's rows of distinct keys, and how many keys batches wait for."""
        new = self.cache.reserve(keys, self._next_number(), now)
        self._fill(new, found, now)
        requested = self._renew_old(keys, new, found, now)
        self.cache.unlist(new)
        return new, requested

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

    def _fetch_new(self, keys: KeyBatch, now: float) -> tuple[Entries, int]:
        """Claim distinct keys that the host does not have; request those that no other worker has claimed."""
        entries, requested = np.full(len(keys), -1, dtype=np.int32), []

        def find(rows: Positions) -> Positions:
            left, more = self._take_found(keys, rows, entries, now)
            requested.append(more)
            return left

        mine, others = self._claim(keys, np.arange(len(keys)), self._found_at, find, wait=True)
        if mine.size:
            with self._releasing(keys.take(mine)):
                entries[mine] = self._request_new(keys.take(mine), now)
        if others.size:
            entries[others] = self._await_new(keys.take(others), now)
        return entries, sum(requested) + len(mine)

    def _take_found(self, keys: KeyBatch, rows: Positions, entries: Entries, now: float) -> tuple[Positions, int]:
        """Write entries with what the host has of some of the keys; return the other rows.

        Entries that are due for a refresh, or too old unless the source fails, are requested again: also returns how
        many keys batches wait for.
        """
        found = self.host.find(_take(keys, rows), after=self._listening_since)
        self._found_at = found_at = self.host.position
        if not len(found.positions):
            return rows, 0
        taken = rows[found.positions]
        entries[taken], requested = self._copy(keys.take(taken), found, now)
        # Other keys have been looked up in the meantime.
        self._found_at = found_at
        return np.delete(rows, found.positions), requested

    def _fill(self, entries: Entries, found: Found, now: float) -> None:
        """Write rows of the host, which were written and expire as long ago and as soon as they are there."""
        shift = now - self.host.clock()
        self.cache.fill(entries, found.rows, found.counts, found.written + shift, found.deadline + shift)

    def _renew_old(self, keys: KeyBatch, entries: Entries, found: Found, now: float) -> int:
        limits, at = self.cache.limits, self.host.clock()
        requested = 0
        if not limits.needs_write_times:
            return 0
        expired = found.deadline < at
        due = ~expired & self._age.is_due(found.written, at)
        if expired.any():
            rows = np.flatnonzero(expired)
            requested = self._fetch_again(keys.take(rows), entries[rows], now, wait=True)
        if due.any():
            rows = np.flatnonzero(due)
            self.counters["refreshes"] += self._fetch_again(keys.take(rows), entries[rows], now, wait=False)
        return requested

    def _fetch_again(self, keys: KeyBatch, entries: Entries, now: float, *, wait: bool) -> int:
        """Take a newer version from the host, or else request the keys unless another worker does."""
        after = self._listening_since
        if not wait:
            after = max(after, self.host.clock() - self.cache.limits.refresh_seconds)
        find = partial(self._replace_found, keys, entries, after=after, now=now)
        rest = find(np.arange(len(keys)))
        if not rest.size:
            return 0
        mine, others = self._claim(keys, rest, self._found_at, find, wait=wait)
        if mine.size:
            with self._releasing(keys.take(mine)):
                self._request_again(keys.take(mine), entries[mine], wait=wait)
        if wait and others.size:
            number = self._next_number()
            self.cache.request_again(entries[others], number, wait=True)
            self._await(number, keys.take(others), entries[others])
        return len(mine)

    def _replace_found(
        self, keys: KeyBatch, entries: Entries, rows: Positions, *, after: float, now: float
    ) -> Positions:
        """Write the host's fresh entries of some of the keys over old ones; return the other rows."""
        found = self.host.find(keys.take(rows), after=after, fresh=True)
        self._found_at = self.host.position
        if len(found.positions):
            taken = entries[rows[found.positions]]
            self._fill(taken, found, now)
            self.cache.unlist(taken)
        return np.delete(rows, found.positions)

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────

    def _claim(
        self, keys: KeyBatch, rows: Positions, seen: int, find: Find, *, wait: bool = False
    ) -> tuple[Positions, Positions]:
        """Claim keys that were looked for at a position on the host; return which to request here, and the others.

        With ``wait``, the others are to be requested too, while no other worker is waited for.
        """

        def find_news(rows: Positions) -> Positions:
            return find(rows) if self.host.has_news_since(seen) else rows

        claim = partial(self.host.claim, seconds=self._claim_seconds)
        mine, others = claim_left(keys, rows, claim, self.host.release, find_news)
        if wait and time.monotonic() < self._impatient_until:
            return np.sort(np.concatenate([mine, others])), others[:0]
        return mine, others

    @contextmanager
    def _releasing(self, keys: KeyBatch) -> Iterator[None]:
        """Release claims of keys if they cannot be requested."""
        try:
            yield
        except BaseException:
            self.host.release(keys)
            raise

    def _send(
        self,
        number: int,
        calls: Calls,
        lease: Lease,
        *,
        background: bool = False,
        until: float | None = None,
        deadline: float = math.inf,
    ) -> None:
        # For a call that waits for more keys, the earlier time counts.
        self._since.setdefault(number, (self.host.position, self.host.clock()))
        super()._send(number, calls, lease, background=background, until=until, deadline=deadline)
        if number in self._requests and self._requests[number].group.is_queued:
            # Soon, so that those who wait for these keys know it.
            self._renewed = -math.inf

    def _release(self, request: Request) -> None:
        self._since.pop(request.number, None)
        self.host.release(request.keys)

    def _renew_claims(self) -> None:
        if self._requests and time.monotonic() - self._renewed >= self._claim_seconds / 3:
            for request in self._requests.values():
                self.host.renew(request.keys, self._claim_seconds, is_queued=request.group.is_queued)
            self._renewed = time.monotonic()

    # ── storing ──────────────────────────────────────────────────────────────────────────────────────────

    def _publish_fetched(self, request: Request, fetched: Fetched) -> None:
        """Publish what a call group has fetched."""
        since, started = self._since.get(request.number, (-1, -math.inf))
        written = self.host.clock()
        if self.source.reports_changes:
            # The rows may have been read before the source began to report changes to other workers.
            written = started
            if fetched.failed.sum() < len(fetched.counts):
                self._listening_since = min(self._listening_since, self.host.clock())
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

    def _await_new(self, keys: KeyBatch, now: float) -> Entries:
        number = self._next_number()
        entries = self.cache.reserve(keys, number, now)
        self._await(number, keys, entries)
        return entries

    def _await(self, number: int, keys: KeyBatch, entries: Entries) -> None:
        self.counters["host_waits"] += len(keys)
        until = time.monotonic() + self.source.plan.config.timeout
        self._awaited[number] = AwaitedKeys(number, keys, self.cache.lease(entries), until, self._found_at)

    def poll(self) -> None:
        """Store the results of the call groups that have completed, and those of other workers."""
        super().poll()
        self._renew_claims()
        self._check_awaited()

    def wait(self, *, room: bool = False) -> None:
        """Wait for a call group, or for a moment; store results, also those of other workers."""
        with self.counters.timed("source_seconds"):
            timeout = HOST_POLL_SECONDS if self._awaited else self._claim_seconds / 3
            self._complete_groups(self.source.executor.take_completed(wait=True, room=room, timeout=timeout))
            self._renew_claims()
            self._check_awaited()

    def _check_awaited(self) -> None:
        if not self._awaited:
            return
        now = self.clock()
        for one in list(self._awaited.values()):
            if self.host.has_news_since(one.found_at):
                rows, entries, after = np.arange(len(one.keys)), one.lease.entries, self._listening_since
                one.keep(self._replace_found(one.keys, entries, rows, after=after, now=now))
                one.found_at = self._found_at
            if len(one.keys):
                self._request_unclaimed(one, now)
            if not len(one.keys):
                self._end_awaited(one)

    def _request_unclaimed(self, one: AwaitedKeys, now: float) -> None:
        """Request the keys that nobody requests any more: their claims were released, or have lapsed."""
        over = self.host.is_lost or time.monotonic() >= one.until
        states = self.host.claim_states(one.keys)
        one.is_queued |= bool(states.is_queued.any())
        mine = free = np.arange(len(one.keys)) if over else np.flatnonzero(states.claimants == 0)
        others = free[:0]
        if free.size and not over:
            find = partial(self._replace_found, one.keys, one.lease.entries, after=self._listening_since, now=now)
            mine, others = self._claim(one.keys, free, one.found_at, find)
        if mine.size:
            if (over and not one.is_queued) or states.has_lapsed[mine].any():
                # A claimant that lives does not renew its claims, perhaps because Spark blocks it: wait for none for
                # now. Not so where its calls wait for a slot: others would only wait for that slot as well.
                self._impatient_until = time.monotonic() + PATIENT_AGAIN_SECONDS
            self._request_awaited(one, mine)
        one.keep(np.setdiff1d(np.arange(len(one.keys)), np.setdiff1d(free, others)))

    def _request_awaited(self, one: AwaitedKeys, rows: Positions) -> None:
        """Request some of the keys that were awaited."""
        keys, entries, number = one.keys.take(rows), one.lease.entries[rows], self._next_number()
        with self._releasing(keys):
            calls = self.source.split(keys)
            self.cache.hand_over(entries, number)
            for pending in self._open:
                if one.number in pending.waits:
                    pending.waits.add(number)
            # One timeout for both, the wait and the call: the source has been asked for these keys all the time. Not
            # so where the claimant's calls had to wait before they were made, which says nothing about the source.
            deadline = math.inf if one.is_queued else one.until
            self._send(number, calls, self.cache.lease(entries), deadline=deadline)
        self.counters["misses"] += len(rows)
        self.counters["hits"] -= len(rows)

    def _end_awaited(self, one: AwaitedKeys) -> None:
        del self._awaited[one.number]
        self.cache.release(one.lease)
        for pending in self._open:
            pending.waits.discard(one.number)

    def abandon(self, batches: Iterable[PendingKeys]) -> None:
        """Give up open batches, and cancel the calls that no other batch waits for."""
        super().abandon(batches)
        needed = {number for pending in self._open for number in pending.waits}
        for one in [one for one in self._awaited.values() if one.number not in needed]:
            self._end_awaited(one)
            self.cache.fail(one.lease.entries, self.clock())

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
        """Close what is open: the source's connection, and the files of the host's cache."""
        super().disconnect()
        self.host.close()


def _take(keys: KeyBatch, rows: Positions) -> KeyBatch:
    """Return the keys of these rows; if they are all rows in order, without a copy."""
    is_all = len(rows) == len(keys) and bool((np.diff(rows) == 1).all())
    return keys if is_all else keys.take(rows)
