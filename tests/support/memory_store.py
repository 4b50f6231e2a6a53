"""A store in memory, with a clock that the test sets; and where lookups are to use it."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Sequence
from typing import Any

from lookupcache.store import Reading, Store, StoreContent, StoreFullError
from lookupcache.store.contract import CALL_BYTES, CLAIMED, OTHERS, OWN

URL = "redis://memory"


def separate_tokens(monkeypatch: Any) -> None:
    """Let each lookup claim as if it were in a process of its own."""
    monkeypatch.setattr("lookupcache.store.guard.process_token", lambda process: secrets.token_bytes(16))


class MemoryStore(Store):
    """Does what a server does, by its ``clock``; with ``error`` it raises that, and while ``full`` it does not write.

    Entries and claims are by name, with the time when they expire.
    """

    def __init__(self) -> None:
        self.clock = 1_000_000.0
        self.entries: dict[bytes, tuple[bytes, float]] = {}
        self.claims: dict[bytes, tuple[bytes, float]] = {}
        self.abouts: dict[str, dict[str, str]] = {}
        self.error: Exception | None = None
        self.full = False
        self._lock = threading.RLock()  # claims are renewed by a thread

    @property
    def claimed(self) -> list[bytes]:
        """The names whose claims have neither ended nor lapsed."""
        return [name for name in self.claims if self._live(self.claims, name) is not None]

    def get(self, names: Sequence[bytes]) -> Reading:
        self._check()
        return Reading(self.clock, [self._live(self.entries, name) for name in names])

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        with self._lock:
            self._check(writes=True)
            holders = [self._live(self.claims, name) for name in names]
            states = [
                CLAIMED if one in (None, token) else OWN if one[:-CALL_BYTES] == token[:-CALL_BYTES] else OTHERS
                for one in holders
            ]
            for name, state in zip(names, states, strict=True):
                if state == CLAIMED:
                    self.claims[name] = (token, self.clock + seconds)
            return states, self.get(names)

    def renew(self, names: Sequence[bytes], token: bytes, seconds: float) -> None:
        with self._lock:
            for name in names:
                holder = self._live(self.claims, name)
                if holder is not None and holder[:-CALL_BYTES] == token[:-CALL_BYTES]:
                    self.claims[name] = (holder, self.clock + seconds)

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        with self._lock:
            self._check(writes=True)
            own = [number for number, name in enumerate(names) if self._live(self.claims, name) == token]
            for number in own:
                self.entries[names[number]] = (entries[number], self.clock + seconds[number])
                del self.claims[names[number]]
            return len(own)

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        with self._lock:
            self._check()
            for name in names:
                if self._live(self.claims, name) == token:
                    del self.claims[name]

    def invalidate(self, names: Sequence[bytes]) -> None:
        with self._lock:
            self._check()
            for name in names:
                self.entries.pop(name, None)
                self.claims.pop(name, None)

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        self._check()
        return self.abouts.setdefault(identity, about)

    def contents(self) -> list[StoreContent]:
        return [StoreContent(identity, about, 0, 0) for identity, about in self.abouts.items()]

    def clear(self, identity: str | None = None) -> int:
        count = len(self.entries)
        self.entries.clear()
        self.claims.clear()
        self.abouts.clear()
        return count

    def new_store(self) -> Store:
        """Return the store of a new process."""
        return self

    def spoil(self) -> None:
        """Damage every entry."""
        self.entries = {name: (b"garbage" * 8, until) for name, (_, until) in self.entries.items()}

    def close(self) -> None:
        """Do nothing."""

    def _check(self, writes: bool = False) -> None:
        if self.error is not None:
            raise self.error
        if writes and self.full:
            raise StoreFullError("OOM")

    def _live(self, kept: dict[bytes, tuple[bytes, float]], name: bytes) -> bytes | None:
        found, until = kept.get(name, (None, math.inf))
        return found if self.clock < until else None
