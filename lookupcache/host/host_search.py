"""`HostSearch`: keys on their way through the files of a host: found, claimed here, or requested by other processes.

keys ─► find ──found──────────────────────► rows
          │ missing: claim, look again ──mine──► to request
          └──────────another process's──► left: the next look finds them, or claims those that are free
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from lookupcache.cache.keys import KeyBatch, Mask, Positions
from lookupcache.flow.flow import NO_KEYS, TierSearch
from lookupcache.host.host_cache import Found, HostCache


class HostSearch(TierSearch):
    """A search for distinct keys on the host, until each is found or is to be requested here.

    None of the keys is null. Claims last some ``seconds``; only entries written ``after`` a time of the host's clock
    count. ``seen`` is `HostCache.position` when the keys were looked for in vain, or None. ``lock`` is held while the
    host's cache is used.
    """

    waits = "host_waits"
    is_source_asked = True
    has_lapsed = False
    """Whether a living process has not renewed its claim of a key that was to be requested last."""

    def __init__(
        self, host: HostCache, keys: KeyBatch, seconds: float, *, after: float = -math.inf, seen: int | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:  # fmt: skip
        self.host = host
        self.keys = keys
        self.left = np.arange(len(keys))
        self._seconds = seconds
        self._after = after
        self._seen = seen
        self._lock = nullcontext() if lock is None else lock
        self._has_looked = False

    def look(self, is_over: bool) -> Positions:
        """Find keys, if anything was published since the last look, and claim those that no other process requests."""
        self.left = self._find_news(self.left)
        free, lapsed = self._unclaimed() if self._has_looked else (self.left, NO_KEYS)
        self._has_looked = True
        mine = self._claim_free(free) if free.size else NO_KEYS
        if is_over:
            # Also the keys that others have claimed.
            mine, self.left = np.union1d(mine, self.left), NO_KEYS
        self.has_lapsed = lapsed.size > 0 and bool(np.isin(lapsed, mine).any())
        return mine

    @contextmanager
    def giving_back(self, mine: Positions) -> Iterator[None]:
        """End the claims of keys if they cannot be requested now."""
        try:
            yield
        except BaseException:
            self._release(self._at(mine))
            self.left = np.union1d(self.left, mine)
            raise

    def _unclaimed(self) -> tuple[Positions, Positions]:
        """Return the keys that are left and no living process has claimed, and those whose claim has lapsed."""
        with self._lock:
            states = self.host.claim_states(self._at(self.left))
        if states.is_queued.any():
            # The calls wait for a slot, or for another host, so the source is not late.
            self.is_source_asked = False
        return self.left[states.claimants == 0], self.left[states.has_lapsed]

    def _claim_free(self, positions: Positions) -> Positions:
        """Claim keys; return which to request here.

        A process publishes a key before it ends its claim. So a key that is claimed here may have been published since
        the last look, and is looked for again.
        """
        mine, before = positions[self._claim(self._at(positions))], len(self.left)
        self.left = self._find_news(self.left)
        if len(self.left) < before:
            self._release(self.keys.take(np.setdiff1d(mine, self.left)))
            mine = np.intersect1d(mine, self.left)
        self.left = np.setdiff1d(self.left, mine, assume_unique=True)
        return mine

    def _find_news(self, positions: Positions) -> Positions:
        has_news = self._seen is None or self.host.has_news_since(self._seen)
        return self._find(positions) if has_news else positions

    def _find(self, positions: Positions, *, stale: bool = False) -> Positions:
        """Take the entries that may be used, with ``stale`` also too old ones; return the other keys."""
        with self._lock:
            found = self.host.find(self._at(positions), after=self._after, fresh=not stale)
            # With the lock: another thread may note a later position, and none would look for these keys before it.
            now, self._seen = self.host.clock(), self.host.position
        if not len(found.positions):
            return positions
        taken = self._take(positions[found.positions], found, now)
        return np.setdiff1d(positions, taken, assume_unique=True)

    @abstractmethod
    def _take(self, positions: Positions, found: Found, now: float) -> Positions:
        """Take the entries found of keys, at a time of the host's clock; return the keys whose entry can be used."""

    def _claim(self, keys: KeyBatch) -> Mask:
        with self._lock:
            return self.host.claim(keys, self._seconds)

    def _release(self, keys: KeyBatch) -> None:
        with self._lock:
            self.host.release(keys)

    def _at(self, positions: Positions) -> KeyBatch:
        return self.keys if len(positions) == len(self.keys) else self.keys.take(positions)
