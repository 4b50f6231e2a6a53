"""`StoreCall`: one call's keys in a store, for `fetch`: the rows of a plan, and the values of a function.

keys ─► names ─► find or claim ──found──► rows, with their true age
                    │ claimed here └─claimed by another─► looked for again, until it has an entry or its claim has ended
                    ▼
                 request ─► entry ─► claim ends
"""

from __future__ import annotations

import math
import time
from typing import Any, TypeVar

import numpy as np

from lookupcache.cache.keys import Mask, Positions
from lookupcache.flow.flow import NO_KEYS, TierCall
from lookupcache.flow.waiting import FULL_LOOK_SECONDS, STORE_PAUSES, Pauses
from lookupcache.store.contract import Reading
from lookupcache.store.row_store import Known, RowStore

V = TypeVar("V")

_SAMPLE = 16
"""How many of the keys that others request are looked for again and again; all of them are only now and then."""


class StoreCall(TierCall[V]):
    """One call's keys in a store; ``known`` is what the store has, by the positions of the keys.

    With ``waits_for_refreshes``, it does not use old rows that another process fetches again. Keys at the positions
    ``alone`` are requested, but not shared.
    """

    waits = "store_waits"
    is_put_at_once = False
    """Whether rows are stored before `put` returns; otherwise a thread does it soon."""
    reads_first = False
    """Whether keys are first only read, where most of those of the last call had an entry."""

    def __init__(self, store: RowStore, keys: Any, *, waits_for_refreshes: bool, alone: Positions = NO_KEYS) -> None:
        super().__init__(len(keys), store.clock, Pauses(*STORE_PAUSES), alone)
        self.known: list[tuple[Positions, Known]] = []
        self._store = store
        self._keys = keys
        self._names = store.names(keys)
        self._waits_for_refreshes = waits_for_refreshes
        self._token_of = np.full(len(keys), -1)
        self._tokens: list[bytes] = []
        self._damaged: set[int] = set()
        self._looks = 0
        self._next_full_look = -math.inf

    def look(self, is_over: bool) -> Positions:
        """Find keys, and claim the others, in one round trip where possible."""
        self._looks += 1
        is_first = self._looks == 1
        if is_first:
            self._store.describe()
        elif not is_over and not self._may_have_ended():
            return NO_KEYS
        self._next_full_look = time.monotonic() + FULL_LOOK_SECONDS
        # A script returns entries more slowly than MGET: it is for keys of which most have none.
        if is_first and self.reads_first and self._store.finds_most:
            before = self._store.clock()
            is_found = self._read(self.left, self._store.guarded.get(self._names_at(self.left)), before)
            requested, others, unusable = NO_KEYS, NO_KEYS, self.left[~is_found]
        else:
            requested, others, unusable = self._claim(self.left, only_missing=True)
        if is_first:
            found = sum(len(positions) for positions, _ in self.known)
            self._store.finds_most = 2 * found > len(self.left)
        if unusable.size:
            more, others_of_used, _ = self._claim(unusable, only_missing=False)
            requested, others = _union(requested, more), _union(others, others_of_used)
        if is_over:
            requested, others = _union(requested, others), NO_KEYS
        self.left = others
        return requested

    def _may_have_ended(self) -> bool:
        """Return whether to look for all keys: some of many have entries now, or it is long since that was done.

        A process writes the keys of a call together; to look for all takes the server as long as to claim them.
        """
        if len(self.left) <= _SAMPLE or time.monotonic() >= self._next_full_look:
            return True
        # Others each time: the calls of a few keys, too, are seen soon.
        few = np.arange(_SAMPLE) * len(self.left) // _SAMPLE + self._looks
        reading = self._store.guarded.get(self._names_at(self.left[few % len(self.left)]))
        # Without the store, there is nothing to wait for.
        return reading is None or any(entry is not None for entry in reading.entries)

    def _claim(self, positions: Positions, *, only_missing: bool) -> tuple[Positions, Positions, Positions]:
        """Claim keys, or take them; return those to request, those of others, and those whose entry cannot be used.

        One that is due for a refresh, and that another process has claimed, is used unless the call waits for it.
        """
        names, before = self._names_at(positions), self._store.clock()
        guarded = self._store.guarded
        claimed = guarded.claim_missing(names) if only_missing else guarded.claim(names)
        to_request, mine = np.array(claimed.to_request, np.bool_), np.array(claimed.is_claimed, np.bool_)
        is_used = ~to_request & (not only_missing and not self._waits_for_refreshes)
        is_found, has_entry = (
            self._read(positions, claimed.reading, before, is_used),
            np.array(claimed.has_entry, np.bool_),
        )
        self._store.guarded.release([names[row] for row in np.flatnonzero(is_found & mine).tolist()], claimed.token)
        self._token_of[positions[mine & ~is_found]] = len(self._tokens)
        self._tokens.append(claimed.token)
        is_others = ~to_request & ~is_found & ~has_entry
        return positions[to_request & ~is_found], positions[is_others], positions[has_entry & ~is_found]

    def _read(self, positions: Positions, reading: Reading | None, before: float, is_used: Mask | None = None) -> Mask:
        """Take the entries of keys that may be used; return which keys that are."""
        known = self._store.known(self.keys_at(positions), reading, before, is_used)
        if len(known.positions):
            self.known.append((positions[known.positions], known))
        # A damaged entry is read again when its key is claimed.
        damaged = set(positions[known.damaged].tolist()) - self._damaged
        self._store.counters.add("store_dropped", len(damaged))
        self._damaged |= damaged
        is_found = np.zeros(len(positions), np.bool_)
        is_found[known.positions] = True
        return is_found

    def put(self, positions: Positions, rows: Any, counts: Positions, kept: Mask) -> None:
        """Store the rows of keys that are ``kept`` and claimed here, and end the claims of all."""
        tokens = np.where(kept, self._token_of[positions], -1)
        for number in np.unique(tokens[tokens >= 0]).tolist():
            rows_of = np.flatnonzero(tokens == number)
            stored = positions[rows_of]
            self._store.put(
                self.keys_at(stored), self._names_at(stored), self._store.take(rows, counts, rows_of), counts[rows_of],
                self._tokens[number], at_once=self.is_put_at_once,
            )  # fmt: skip
            self._token_of[stored] = -1
        # Afterwards: rows are dated when they are put, and the store may be slow.
        self._release(positions)

    @property
    def has_claims(self) -> bool:
        return bool((self._token_of >= 0).any())

    def release(self) -> None:
        """End all claims; another thread may be storing rows just now."""
        self._release(np.arange(len(self._names)))

    def _release(self, positions: Positions) -> None:
        tokens = self._token_of[positions]
        self._token_of[positions] = -1
        for number in np.unique(tokens[tokens >= 0]).tolist():
            self._store.guarded.release(self._names_at(positions[tokens == number]), self._tokens[number])

    def keys_at(self, positions: Positions) -> Any:
        return self._keys if len(positions) == len(self._keys) else self._keys.take(positions)

    def _names_at(self, positions: Positions) -> list[bytes]:
        if len(positions) == len(self._names):
            return self._names
        return [self._names[position] for position in positions.tolist()]


def _union(some: Positions, others: Positions) -> Positions:
    return np.sort(np.concatenate([some, others]))
