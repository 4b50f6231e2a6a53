"""`GuardedStore`: a store that may fail at any time: whatever it does, its user goes on.

Every failure is counted; after some in a row the store is left alone for a while (its own circuit breaker).
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from lookupcache.errors import LookupAdvice, LookupRefusedError
from lookupcache.metrics import Counters
from lookupcache.resilience.breaker import Breaker
from lookupcache.store.claims import CLAIM_SECONDS, HeldClaims
from lookupcache.store.contract import CALL_BYTES, CLAIMED, OTHERS, Reading, Store, StoreFullError

_FAILURES = 3
_DELAY_SECONDS = 10.0
_claim_numbers = itertools.count()

Clock = Callable[[], float]
T = TypeVar("T")


@cache
def process_token(process: int) -> bytes:
    """Return the name of this process in claims.

    One for all its stores: two joins of one task that waited for each other's claims would wait for themselves.
    """
    return os.urandom(16)


@dataclass(frozen=True)
class Claimed:
    """What became of an attempt to claim names: per name, whether to request it here, and whether it is claimed here.

    Without the store, every name is requested, and none is claimed, so that its answer is not stored.
    """

    to_request: list[bool]
    is_claimed: list[bool]
    reading: Reading | None
    token: bytes = b""
    """Whose the claims are, for `put` and `release`."""


class GuardedStore:
    """A store whose failures are counted instead of raised.

    Args:
        store: The store.
        counters: Where failures are counted, as ``store_failures``.
        what: What uses the store, for a warning.
        hide: Removes secrets from a text.
        most: The longest that a call may take, in seconds; claims are not renewed for longer.
        clock: The time in seconds, for the circuit breaker.
    """

    def __init__(
        self,
        store: Store,
        counters: Counters,
        what: str,
        hide: Callable[[str], str],
        most: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self.counters = counters
        self._store = store
        self._what = what
        self._hide = hide
        self._breaker = Breaker(_FAILURES, _DELAY_SECONDS, clock)
        self._name = b""
        self._process = 0
        self._claims = HeldClaims(lambda names: self._store.renew(names, self._new_token(), CLAIM_SECONDS), most)
        self._has_warned = False

    def _new_token(self) -> bytes:
        """Return a token of this process for one attempt to claim."""
        if self._process != os.getpid():
            self._name, self._process = process_token(os.getpid()), os.getpid()
        return self._name + next(_claim_numbers).to_bytes(CALL_BYTES, "little")

    def get(self, names: Sequence[bytes]) -> Reading | None:
        """Return the entries of names, None without the store."""
        return self._try(lambda: self._store.get(names))

    def claim(self, names: Sequence[bytes]) -> Claimed:
        """Claim names, and read their entries after that: who had a claim has written before it ended."""
        token = self._new_token()
        found = self._try(lambda: self._store.claim(names, token, CLAIM_SECONDS))
        if found is None:
            return Claimed([True] * len(names), [False] * len(names), None)
        states, reading = found
        mine = [state == CLAIMED for state in states]
        self._claims.add([name for name, is_mine in zip(names, mine, strict=True) if is_mine], token)
        return Claimed([state != OTHERS for state in states], mine, reading, token)

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> None:
        """Write entries that were claimed with a token, and end the claims."""
        written = self._try(lambda: self._store.put(names, entries, seconds, token))
        self._claims.remove(names, token)
        self.counters.add("store_unstored", len(names) - (written or 0))

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        """End claims that were made with a token."""
        if names:
            self._claims.remove(names, token)
            self._try(lambda: self._store.release(names, token))

    def invalidate(self, names: Sequence[bytes]) -> bool:
        """Remove entries; return whether the store was there."""
        return self._try(lambda: self._store.invalidate(names) or True) is not None

    def clear(self, identity: str) -> bool:
        """Remove all entries of an identity; return whether the store was there."""
        return self._try(lambda: self._store.clear(identity)) is not None

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str] | None:
        """Return what describes an identity, after it was written if there was nothing; None without the store."""
        return self._try(lambda: self._store.describe(identity, about))

    def flush(self) -> None:
        """Write what was only collected."""
        if not self._store.is_flushed:
            self._try(self._store.flush)

    def reset_after_fork(self) -> None:
        """Forget the calls of the parent process."""
        self._breaker.reset_after_fork()

    def close(self) -> None:
        """End the claims, and disconnect."""
        for token, names in self._claims.by_token().items():
            self.release(names, token)
        with suppress(Exception):
            self._store.close()

    def _try(self, work: Callable[[], T]) -> T | None:
        """Return what a command of the store returns; None, counted, if it fails or is not made."""
        try:
            permit = self._breaker.acquire()
        except LookupRefusedError:
            return None
        try:
            done = work()
        except StoreFullError:
            self._breaker.record_success(permit)
            self._count_failure("takes no entries for now")
        except Exception as error:
            self._breaker.record_failure(permit)
            self._count_failure(f"fails: {type(error).__name__}: {self._hide(str(error))}")
        except BaseException:
            self._breaker.release(permit)
            raise
        else:
            self._breaker.record_success(permit)
            return done
        return None

    def _count_failure(self, reason: str) -> None:
        self.counters.add("store_failures")
        if not self._has_warned:
            self._has_warned = True
            fact = f"{self._what}: lookups go on without 'lookup.cache.store', which {reason.rstrip('.')}."
            warnings.warn(fact, LookupAdvice, stacklevel=2)
