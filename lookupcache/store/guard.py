"""`GuardedStore`: a store that may fail at any time, while lookups go on.

Every failure is counted; after some in a row the store is left alone for a while (its own circuit breaker).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from lookupcache.errors import LookupAdvice, LookupRefusedError
from lookupcache.flow.held_claims import HeldClaims
from lookupcache.flow.waiting import CLAIM_SECONDS
from lookupcache.metrics import Counters
from lookupcache.resilience.breaker import Breaker
from lookupcache.store.contract import CALL_BYTES, CLAIMED, DELAY_SECONDS, OWN, THERE, Reading, Store, StoreFullError
from lookupcache.store.writer import Writer, flush_names

_FAILURES = 3
_claim_numbers = itertools.count()

Clock = Callable[[], float]
Claim = Callable[[Sequence[bytes], bytes, float], tuple[list[int], Reading]]
T = TypeVar("T")


@cache
def process_token(process: int) -> bytes:
    """Return the name of this process in claims.

    One for all its stores: two joins of one task that waited for each other's claims would wait for themselves.
    """
    return os.urandom(16)


@dataclass(frozen=True)
class Claimed:
    """The result of claiming names: for each, whether to request it here, and whether it is claimed here.

    Without the store, every name is requested, and none is claimed, so that its answer is not stored.
    """

    to_request: list[bool]
    is_claimed: list[bool]
    reading: Reading | None
    token: bytes = b""
    """Whose the claims are, for `put` and `release`."""
    has_entry: list[bool] = field(default_factory=list)
    """Which names were not claimed because they have an entry."""


class Guard:
    """Calls a server that may fail: failures are counted instead of raised, and after some it is left alone.

    A server that takes no entries is no failure: the caller counts what could not be stored. Failures are counted as
    ``count``. A warning begins with ``what``, the user of the server; ``hide`` removes secrets from it.
    """

    def __init__(
        self, counters: Counters, count: str, what: str, hide: Callable[[str], str], clock: Clock = time.monotonic
    ) -> None:
        self._counters = counters
        self._count = count
        self._what = what
        self._hide = hide
        self._breaker = Breaker(_FAILURES, DELAY_SECONDS, clock)
        self._has_warned = False
        self.is_full = False
        """Whether the last command was refused because the server takes no new entries."""

    def reset_after_fork(self) -> None:
        """Forget the calls of the parent process."""
        self._breaker.reset_after_fork()

    def call(self, work: Callable[[], T]) -> T | None:
        """Return what a command returns; None, counted, if it fails or is not made."""
        if sys.is_finalizing():
            return None  # As where a coroutine is dropped at exit: no thread runs, and nothing can be imported.
        try:
            permit = self._breaker.acquire()
        except LookupRefusedError:
            return None
        try:
            done = work()
        except StoreFullError:
            self._breaker.record_success(permit)
            self.is_full = True
            self._warn_once("takes no entries for now")
        except Exception as error:
            self._breaker.record_failure(permit)
            self._counters.add(self._count)
            self._warn_once(f"fails: {type(error).__name__}: {self._hide(str(error))}")
        except BaseException:
            self._breaker.release(permit)
            raise
        else:
            self._breaker.record_success(permit)
            self.is_full = False
            return done
        return None

    def _warn_once(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            fact = f"{self._what} {reason.rstrip('.')}."
            warnings.warn(fact, LookupAdvice, stacklevel=2)


class GuardedStore:
    """A store whose failures are counted instead of raised.

    Claims are renewed for ``most`` seconds, the longest that a call may take. The store may take ``timeout`` seconds to
    answer. The other arguments are those of `Guard`.
    """

    def __init__(
        self, store: Store, counters: Counters, what: str, hide: Callable[[str], str], most: float, timeout: float
    ) -> None:
        self.counters = counters
        self._store = store
        what = f"{what}: lookups go on without 'lookup.cache.store', which"
        self._guard = Guard(counters, "store_failures", what, hide)
        self._try = self._guard.call
        self._timeout = timeout
        self._writer = Writer()
        self._name = b""
        self._process = 0
        self._first_valid = 0
        self._claims = HeldClaims(self._renew, most, release=store.release)

    def _renew(self, names: Sequence[bytes]) -> None:
        self._store.renew(names, self._new_token(), CLAIM_SECONDS)

    def _new_token(self) -> bytes:
        """Return a token of this process for one attempt to claim."""
        if self._process != os.getpid():
            self._name, self._process = process_token(os.getpid()), os.getpid()
        return self._name + next(_claim_numbers).to_bytes(CALL_BYTES, "little")

    def get(self, names: Sequence[bytes]) -> Reading | None:
        """Return the entries of names, None without the store."""
        flush_names(names, self._timeout)
        return self._try(lambda: self._store.get(names))

    def claim(self, names: Sequence[bytes]) -> Claimed:
        """Claim names, then read their entries: a process writes its rows before its claim ends."""
        claimed = self._claim(self._store.claim, names)
        if claimed.reading is None and self._guard.is_full:
            self.counters.add("store_unstored", len(names))
        return claimed

    def claim_missing(self, names: Sequence[bytes]) -> Claimed:
        """Read the entries of names, and claim those that have none."""
        claimed = self._claim(self._store.claim_missing, names)
        if claimed.reading is not None or not self._guard.is_full:
            return claimed
        # Nothing can be claimed, but it can be read.
        reading = self.get(names)
        entries = [None] * len(names) if reading is None else reading.entries
        there = [entry is not None for entry in entries]
        self.counters.add("store_unstored", there.count(False))
        return Claimed([not one for one in there], [False] * len(names), reading, has_entry=there)

    def _claim(self, claim: Claim, names: Sequence[bytes]) -> Claimed:
        flush_names(names, self._timeout)
        token = self._new_token()
        was_full = self._guard.is_full
        found = self._try(lambda: self._claim_or_lose(claim, names, token, [] if was_full else names))
        if found is None:
            return Claimed([True] * len(names), [False] * len(names), None, has_entry=[False] * len(names))
        states, reading = found
        mine = [state == CLAIMED for state in states]
        self._claims.add([name for name, is_mine in zip(names, mine, strict=True) if is_mine], token)
        return Claimed(
            [state in (CLAIMED, OWN) for state in states], mine, reading, token, [state == THERE for state in states]
        )

    def _claim_or_lose(
        self, claim: Claim, names: Sequence[bytes], token: bytes, new: Sequence[bytes]
    ) -> tuple[list[int], Reading]:
        """Return what claiming returns; end the ``new`` claims if it fails: the server may execute it later."""
        try:
            return self._release_if_full(lambda: claim(names, token, CLAIM_SECONDS), new, token)
        except TimeoutError:  # Where no server was reached, there is no claim.
            self._claims.lose(new, token)
            raise

    def put_later(
        self, names: Sequence[bytes], seconds: Sequence[float], token: bytes, nbytes: int,
        make: Callable[[], Sequence[bytes]],
    ) -> None:  # fmt: skip
        """Write entries soon, and end the claims then.

        The names were claimed with the token, and expire some ``seconds`` after they are written. Until then, their
        values take ``nbytes`` of memory; ``make`` returns the entries, in another thread.
        """

        def write() -> None:
            try:
                entries = make()
            except BaseException:
                self.counters.add("store_unstored", len(names))
                self.release(names, token)
                raise
            self.put(names, entries, seconds, token)

        self._writer.add(names, nbytes, write)

    def write_now(self) -> None:
        """Write what `put_later` was given without further waiting: the lookup has nothing else to do."""
        self._writer.hurry()

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> None:
        """Write entries that were claimed with a token, and end the claims."""
        if int.from_bytes(token[-CALL_BYTES:], "little") < self._first_valid:
            self.counters.add("store_unstored", len(names))
            self.release(names, token)
            return
        written = self._try(
            lambda: self._release_if_full(lambda: self._store.put(names, entries, seconds, token), names, token)
        )
        self._claims.remove(names, token)
        if written is None:
            self._claims.lose(names, token)
        self.counters.add("store_unstored", len(names) - (written or 0))

    def _release_if_full(self, work: Callable[[], T], names: Sequence[bytes], token: bytes) -> T:
        """Return what a command returns; end claims if the server takes no entries: others would wait until they lapse.

        It may have become full after the first of several commands, so some may be there.
        """
        try:
            return work()
        except StoreFullError:
            if names:
                with suppress(Exception):
                    self._store.release(names, token)
            raise

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        """End claims that were made with a token."""
        if names:
            self._claims.remove(names, token)
            if self._try(lambda: self._store.release(names, token) or True) is None:
                self._claims.lose(names, token)

    def invalidate(self, names: Sequence[bytes]) -> bool:
        """Remove entries; return whether the store was there."""
        return self._try(lambda: self._store.invalidate(names) or True) is not None

    def void_claims(self) -> None:
        """Write nothing that is claimed until now: it may be from before a change which the store has not heard."""
        self._first_valid = next(_claim_numbers)

    def clear(self, identity: str) -> bool:
        """Remove all entries of an identity; return whether the store was there."""
        return self._try(lambda: self._store.clear(identity)) is not None

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str] | None:
        """Return what describes an identity, after it was written if there was nothing; None without the store."""
        return self._try(lambda: self._store.describe(identity, about))

    def flush(self) -> None:
        """Write what is not yet written; wait for it as long as the store may take for two requests."""
        self._writer.flush(2 * self._timeout)
        if not self._store.is_flushed:
            self._try(self._store.flush)

    def reset_after_fork(self) -> None:
        """Forget the calls of the parent process."""
        self._guard.reset_after_fork()

    def close(self) -> None:
        """Write what is left, end the claims, and disconnect."""
        self.flush()
        for token, names in self._claims.by_token().items():
            self.release(names, token)
        self._writer.close()
        self._claims.close(1.0)
        with suppress(Exception):
            self._store.close()
