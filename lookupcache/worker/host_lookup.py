"""`HostCacheLookup`: a cache of part of a source that all workers of a host share.

missing keys ─► host.locate ──found──► entries over the mapped rows, or copies of them; with their true age
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

import numpy as np

from lookupcache.cache.column_cache import Lease
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes, KeyBatch, Mask, Positions
from lookupcache.cache.limits import Limits, own_limits
from lookupcache.executor.call_group import CallGroup
from lookupcache.host import Found, HostCache
from lookupcache.host.admission import Admission, distinct_entries
from lookupcache.host.segment import Segment, Times
from lookupcache.worker.answers import Fetched
from lookupcache.worker.calls import Calls
from lookupcache.worker.partial_cache import Clock, PartialCacheLookup, PendingKeys, Request
from lookupcache.worker.source import Source

CLAIM_SECONDS = 5.0
"""How long a claim lasts that is not renewed, unless a third of ``lookup.timeout`` is shorter: time is left to call."""

_POLL_SECONDS = 0.002
_PATIENT_AGAIN_SECONDS = 60.0
_REPORT_SECONDS = 1.0


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
class _FoundPart:
    """Keys of a batch that a segment has; ``code`` is for each position which of the distinct ones it has."""

    segment: Segment
    positions: Positions
    code: Positions
    first: Positions
    """A position of each distinct entry in the segment, which are ``found``."""
    found: Entries
    admits: Mask | None = None
    entries: Entries = field(default_factory=lambda: np.empty(0, np.int32))
    """The entry in the own cache of each of ``found``."""


class HostCacheLookup(PartialCacheLookup):
    """Finds missing keys in the cache of the host before it requests them, and publishes what it has requested.

    Whatever fails on the host, lookups go on as if its cache were empty.
    """

    def __init__(self, source: Source, host: HostCache, clock: Clock | None = None) -> None:
        self.host = host
        # Keys are hashed once, for the own cache and for the segments of the host.
        source.hash_seed = host.seed
        super().__init__(source, host.clock if clock is None else clock)
        self._awaited: dict[int, AwaitedKeys] = {}
        self._ended: list[Request] = []
        self._since: dict[int, tuple[int, float]] = {}
        self._seen = self._found_at = host.position
        self._claim_seconds = min(CLAIM_SECONDS, source.plan.config.timeout / 3)
        self._renewed = -math.inf
        self._impatient_until = -math.inf
        self._listening_since = math.inf if source.reports_changes else -math.inf
        self._reported = (-math.inf, 0)
        self._admission = Admission()
        self._admits_all = False

    def _limits(self) -> Limits:
        return own_limits(Limits.of(self.source.plan.config, "host"))

    # ── finding ──────────────────────────────────────────────────────────────────────────────────────────

    def prefetch(self, keys: KeyBatch) -> PendingKeys:
        """Request missing keys that a later `open` will need, and keep those of the host in the own cache for it."""
        self._admits_all = True
        try:
            return super().prefetch(keys)
        finally:
            self._admits_all = False

    def _fetch_missing(self, keys: KeyBatch, entries: Entries, rows: Positions, now: float) -> int:
        missing = _take(keys, rows)
        found, requested = self._use_found(missing, now)
        entries[rows] = found
        if (found >= 0).all():
            return requested
        rest = np.flatnonzero(found < 0)
        return requested + super()._fetch_missing(keys, entries, rows[rest], now)

    def _use_found(self, keys: KeyBatch, now: float) -> tuple[Entries, int]:
        """Return the entries of keys that the host has, -1 for others; and how many keys batches wait for.

        A key that is found for the first time has an entry over the mapped rows, for this batch alone. One that was
        found before, or is due for a refresh, is put into the own cache.
        """
        parts = self.host.locate(keys, after=self._listening_since)
        self._found_at = found_at = self.host.position
        batch: list[_FoundPart] = []
        for segment, positions, found in parts:
            distinct = distinct_entries(found)
            first = positions.take(distinct.first)
            part = _FoundPart(segment, positions, distinct.code, first, found.take(distinct.first))
            part.admits = self._admits(segment, part.found, keys.hashes.take(first))
            part.entries = self._lend(segment, part.found, part.admits, now)
            batch.append(part)
        self.host.count_hits(sum(len(part.found) for part in batch))
        requested = self._admit_parts(keys, batch, now)
        # Other keys may have been looked up in the meantime.
        self._found_at = found_at
        entries = np.full(len(keys), -1, dtype=np.int32)
        for part in batch:
            entries[part.positions] = part.entries.take(part.code)
        return entries, requested

    def _admits(self, segment: Segment, found: Entries, words: Hashes) -> Mask | None:
        """Return which of the host's entries to put into the own cache; None for none."""
        if self._admits_all or not self.cache.may_lend(segment.rows):
            return np.ones(len(found), dtype=np.bool_)
        admits, limits = self._admission.remember(words), self.cache.limits
        if limits.needs_write_times:
            now = self.host.clock()
            due = now - segment.written.take(found) >= limits.refresh_seconds
            admits |= due | (segment.deadline.take(found) < now)
        return admits if admits.any() else None

    def _lend(self, segment: Segment, found: Entries, admits: Mask | None, now: float) -> Entries:
        """Return entries over rows as they lie in a segment, and -1 for those that are admitted."""
        if admits is not None:
            entries = np.full(len(found), -1, dtype=np.int32)
            if not admits.all():
                entries[~admits] = self._lend(segment, found[~admits], None, now)
            return entries
        times: tuple[Times | float, Times | float] = (0.0, 0.0)
        if self.cache.limits.expire or self.cache.limits.needs_write_times:
            shift = now - self.host.clock()
            times = segment.written.take(found) + shift, segment.deadline.take(found) + shift
        return self.cache.lend(segment.columns, segment.rows, *segment.rows_of(found), *times)

    def _admit_parts(self, keys: KeyBatch, batch: list[_FoundPart], now: float) -> int:
        """Put entries of the host into the own cache; return how many keys batches wait for."""
        parts = [(part, np.flatnonzero(part.admits)) for part in batch if part.admits is not None]
        if not parts:
            return 0
        found = self.host.gather([(part.segment, part.first[rows], part.found[rows]) for part, rows in parts])
        new, requested = self._admit(keys.take(found.positions), found, now)
        for part, rows in parts:
            part.entries[rows], new = new[: len(rows)], new[len(rows) :]
        return requested

    def _admit(self, keys: KeyBatch, found: Found, now: float) -> tuple[Entries, int]:
        """Put what was found of distinct keys into the own cache; also returns how many keys batches wait for."""
        new = self.cache.reserve(keys, self._next_number(), now)
        self._fill(new, found, now)
        return new, self._renew_old(keys, new, found, now)

    def _fetch_new(self, keys: KeyBatch, now: float) -> tuple[Entries, int]:
        """Claim distinct keys that the host does not have; request those that no other worker has claimed."""
        entries, rest, requested = np.full(len(keys), -1, dtype=np.int32), np.arange(len(keys)), 0
        mine = self._claim(keys)
        if self.host.has_news_since(self._found_at):
            # Whoever had claimed a key has published it before that claim was released, so before it was claimed here.
            left, more = self._take_found(keys, rest, entries, now)
            requested += more
            rest, mine = left, self._claims_left(keys, rest, mine, left)
        if mine.any():
            entries[rest[mine]] = self._request_claimed(keys.take(rest[mine]), now)
        if not mine.all():
            entries[rest[~mine]] = self._await_new(keys.take(rest[~mine]), now)
        return entries, requested + int(np.count_nonzero(mine))

    def _take_found(self, keys: KeyBatch, rows: Positions, entries: Entries, now: float) -> tuple[Positions, int]:
        """Put what the host has of some of the keys into the own cache; return the other rows.

        Entries that are due for a refresh, or too old unless the source fails, are requested again: also returns how
        many keys batches wait for.
        """
        found = self.host.find(_take(keys, rows), after=self._listening_since)
        self._found_at = found_at = self.host.position
        if not len(found.positions):
            return rows, 0
        rest = np.ones(len(rows), dtype=np.bool_)
        rest[found.positions] = False
        taken = rows[found.positions]
        entries[taken], requested = self._admit(keys.take(taken), found, now)
        # Other keys have been looked up in the meantime.
        self._found_at = found_at
        return rows[rest], requested

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
        due = ~expired & (at - found.written >= limits.refresh_seconds)
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
        rest = self._replace_found(keys, entries, np.arange(len(keys)), after, now)
        if not rest.size:
            return 0
        mine = self._claim(keys.take(rest), wait=wait)
        if self.host.has_news_since(self._found_at):
            left = self._replace_found(keys, entries, rest, after, now)
            rest, mine = left, self._claims_left(keys, rest, mine, left)
        if mine.any():
            with self._releasing(keys.take(rest[mine])):
                self._request_again(keys.take(rest[mine]), entries[rest[mine]], wait=wait)
        if wait and not mine.all():
            number = self._next_number()
            self.cache.request_again(entries[rest[~mine]], number, wait=True)
            self._await(number, keys.take(rest[~mine]), entries[rest[~mine]])
        return int(np.count_nonzero(mine))

    def _replace_found(self, keys: KeyBatch, entries: Entries, rows: Positions, after: float, now: float) -> Positions:
        """Write the host's fresh entries of some of the keys over old ones; return the other rows."""
        found = self.host.find(keys.take(rows), after=after, fresh=True)
        self._found_at = self.host.position
        if len(found.positions):
            self._fill(entries[rows[found.positions]], found, now)
        rest = np.ones(len(rows), dtype=np.bool_)
        rest[found.positions] = False
        return rows[rest]

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, keys: KeyBatch, *, wait: bool = True) -> Mask:
        """Claim keys; return which of them to request here."""
        mine = self.host.claim(keys, self._claim_seconds)
        if wait and not mine.all() and time.monotonic() < self._impatient_until:
            return np.ones(len(keys), dtype=np.bool_)
        return mine

    def _claims_left(self, keys: KeyBatch, rest: Positions, mine: Mask, left: Positions) -> Mask:
        """Release the claims of keys that have been found; return which of those that are ``left`` are claimed."""
        is_left = np.isin(rest, left)
        if (found := rest[mine & ~is_left]).size:
            self.host.release(keys.take(found))
        return mine[is_left]

    def _request_claimed(self, keys: KeyBatch, now: float) -> Entries:
        with self._releasing(keys):
            return self._request_new(keys, now)

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
        try:
            super()._send(number, calls, lease, background=background, until=until, deadline=deadline)
            if number in self._requests and self._requests[number].group.is_queued:
                # Soon, so that those who wait for these keys know it.
                self._renewed = -math.inf
        finally:
            self._release_ended()

    def _end_request(self, request: Request) -> list[PendingKeys]:
        # The claims end later, when the rows have been published.
        self._ended.append(request)
        return super()._end_request(request)

    def _complete_group(self, group: CallGroup) -> None:
        try:
            super()._complete_group(group)
        finally:
            self._release_ended()

    def _release_ended(self) -> None:
        ended, self._ended = self._ended, []
        for request in ended:
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
            keys = request.keys if len(rows) == len(request.keys) else request.keys.take(rows)
            self.host.publish(keys, fetched.rows, fetched.counts[rows], written, since)

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
        started = time.perf_counter()
        try:
            timeout = _POLL_SECONDS if self._awaited else self._claim_seconds / 3
            self._complete_groups(self.source.executor.take_completed(wait=True, room=room, timeout=timeout))
            self._renew_claims()
            self._check_awaited()
        finally:
            self.counters.spend("source_seconds", started)

    def _check_awaited(self) -> None:
        if not self._awaited:
            return
        now = self.clock()
        for one in list(self._awaited.values()):
            if self.host.has_news_since(one.found_at):
                rows, entries = np.arange(len(one.keys)), one.lease.entries
                one.keep(self._replace_found(one.keys, entries, rows, self._listening_since, now))
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
        free = np.ones(len(one.keys), dtype=np.bool_) if over else states.claimants == 0
        if not free.any():
            return
        rows = np.flatnonzero(free)
        mine = np.ones(len(rows), dtype=np.bool_)
        if not over:
            mine = self.host.claim(one.keys.take(rows), self._claim_seconds)
            if self.host.has_news_since(one.found_at):
                # They may have been published in the meantime: look first, at the next check.
                self.host.release(one.keys.take(rows[mine]))
                return
        rows = rows[mine]
        if not rows.size:
            return
        if (over and not one.is_queued) or states.has_lapsed[rows].any():
            # A claimant that lives does not renew its claims, perhaps because Spark blocks it: wait for none for now.
            # Not so where its calls wait for a slot: it renews them, and others would only wait for that slot as well.
            self._impatient_until = time.monotonic() + _PATIENT_AGAIN_SECONDS
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
        one.keep(np.setdiff1d(np.arange(len(one.keys)), rows))

    def _end_awaited(self, one: AwaitedKeys) -> None:
        del self._awaited[one.number]
        self.cache.release(one.lease)
        for pending in self._open:
            pending.waits.discard(one.number)

    def abandon(self, batches: Iterable[PendingKeys]) -> None:
        """Give up open batches, and cancel the calls that no other batch waits for."""
        super().abandon(batches)
        self._release_ended()
        needed = {number for pending in self._open for number in pending.waits}
        for one in [one for one in self._awaited.values() if one.number not in needed]:
            self._end_awaited(one)
            self.cache.fail(one.lease.entries, self.clock())

    # ── invalidation, recency ────────────────────────────────────────────────────────────────────────────

    def _invalidate(self) -> None:
        """Remove what the source reports as changed here and on the host, and what other workers have reported."""
        if self.source.reports_changes:
            changed = self.source.changed()
            self._remove_changed(changed)
            if changed is None or len(changed):
                self.host.invalidate(changed)
        if self.host.has_news or self.host.position != self._seen:
            for keys in self.host.invalidations_since(self._seen):
                self._remove_changed(keys)
            self._seen = self.host.position

    def close(self, pending: PendingKeys) -> None:
        """End a batch: its entry numbers are no longer valid, and the cache's limits are enforced."""
        super().close(pending)
        reported, mark = self._reported
        if time.monotonic() - reported >= _REPORT_SECONDS:
            used, mark = self.cache.used_since(mark)
            if reported > -math.inf:
                self.host.touch(used)
            self._reported = (time.monotonic(), mark)

    def disconnect(self) -> None:
        """Close what is open: the source's connection, and the files of the host's cache."""
        super().disconnect()
        self.host.close()


def _take(keys: KeyBatch, rows: Positions) -> KeyBatch:
    """Return the keys of these rows; if they are all rows in order, without a copy."""
    is_all = len(rows) == len(keys) and bool((np.diff(rows) == 1).all())
    return keys if is_all else keys.take(rows)
