"""`Store`: the interface of a store, whether a server or a folder. Names and entries are opaque bytes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """The entries of some names, None for those that are not there, and the store's clock when they were read.

    ``dropped`` counts what was found to be unreadable, apart from the entries.
    """

    now: float
    entries: list[bytes | None]
    dropped: int = 0


@dataclass(frozen=True)
class StoreContent:
    """The content of a store under one identity: ``about`` describes it, ``entries`` and ``nbytes`` are counted."""

    identity: str
    about: dict[str, str]
    entries: int
    nbytes: int


OTHERS, CLAIMED, OWN, THERE = range(4)

CALL_BYTES = 8
"""A token is the name of a process, followed by this many bytes that number its attempts to claim.

So a process knows its own claims. Rows that it was fetching when a key was invalidated are not taken for rows of a
later claim.
"""


DELAY_SECONDS = 10.0
"""How long a server is left alone that has failed several times in a row."""


class StoreFullError(Exception):
    """A store takes no new entries or claims for now, but can be read."""


class Store(ABC):
    """Entries by name, which expire, and claims on names, which lapse; names begin with `identity_prefix`.

    All methods raise what the server's client raises, and `StoreFullError`; the caller goes on without the store. They
    may be called by several threads. Times are in seconds, by the store's own clock.
    """

    @abstractmethod
    def get(self, names: Sequence[bytes]) -> Reading:
        """Return the entries of names."""

    @abstractmethod
    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names that are free; return the state of each, and the entries read after that.

        `CLAIMED`: claimed now, or before with this token; `OWN`: another token of this process has the claim;
        `OTHERS`: another process has it.
        """

    def claim_missing(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names that are free and have no entry; otherwise as `claim`.

        `THERE`: there is an entry. A store that can do it in one round trip overrides this.
        """
        found = self.get(names)
        missing = [number for number, entry in enumerate(found.entries) if entry is None]
        if not missing:
            return [THERE] * len(names), found
        some, again = self.claim([names[number] for number in missing], token, seconds)
        states = [THERE] * len(names)
        for number, state, entry in zip(missing, some, again.entries, strict=True):
            states[number], found.entries[number] = state, entry
        # By the later time: others may have written in between, and no entry may seem to be of the future.
        return states, Reading(again.now, found.entries, found.dropped + again.dropped)

    @abstractmethod
    def renew(self, names: Sequence[bytes], token: bytes, seconds: float) -> None:
        """Prolong the claims that the token's process still has."""

    @abstractmethod
    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        """Write entries, and end their claims; return how many were written.

        A name whose claim the token has no longer is not written: its entry may have been invalidated. ``seconds`` says
        when each expires, from now; infinity is never.
        """

    @abstractmethod
    def release(self, names: Sequence[bytes], token: bytes) -> None:
        """End the claims that the token still has."""

    @abstractmethod
    def invalidate(self, names: Sequence[bytes]) -> None:
        """Remove names, and the claims on them, so that rows that are being fetched for them are not written."""

    @abstractmethod
    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        """Return the description of an identity; without one, write ``about``, and return it."""

    @abstractmethod
    def contents(self) -> list[StoreContent]:
        """Return the content of the store, by identity."""

    @abstractmethod
    def clear(self, identity: str | None = None) -> int:
        """Remove all entries and claims of an identity, or of all; return how many entries there were."""

    def flush(self) -> None:
        """Write entries that `put` has only collected; most stores write at once."""
        return

    @property
    def is_flushed(self) -> bool:
        """Whether `flush` has nothing to do."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


def read_about(text: bytes | None) -> dict[str, str] | None:
    """Return the description of an identity from JSON; None if it cannot be read.

    >>> read_about(b'{"table": "t"}'), read_about(b"[]"), read_about(None)
    ({'table': 't'}, None, None)
    """
    try:
        found = json.loads(text or b"")
    except ValueError:
        return None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None


PREFIX = "lookupcache:1:"
"""The prefix of every name in a store; the number is the version of the names."""


def identity_prefix(identity: str) -> str:
    """Return the prefix of an identity's names."""
    return f"{PREFIX}{identity}:"
