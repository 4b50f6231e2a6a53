"""`LostClaims`: claims that may be in the store although it did not answer; a thread ends them when it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from lookupcache.background import Background

_AGAIN_SECONDS = 1.0

Release = Callable[[Sequence[bytes], bytes], None]


class LostClaims:
    """Claims whose process requests the keys itself, since the store did not answer in time.

    The store may still execute the command. Until such a claim lapses, other processes would wait for rows that nobody
    writes. A forked process has no claims of its parent.

    Args:
        release: Ends the claims that a token has; raises an error if the store does not answer.
        most: How long to try, in seconds.
    """

    def __init__(self, release: Release, most: float) -> None:
        self._release = release
        self._most = most
        self._reset()

    def _reset(self) -> None:
        self._claims: list[tuple[float, Sequence[bytes], bytes]] = []
        self._background = Background(self._release_all, "lookupcache-lost-claims")

    def add(self, names: Sequence[bytes], token: bytes) -> None:
        """End claims soon, and try again until the store answers."""
        if not names:
            return
        if not self._background.is_own:
            self._reset()
        with self._background.changed:
            self._claims.append((time.monotonic() + self._most, names, token))
            with suppress(RuntimeError):  # Where no thread can be started, claims lapse.
                self._background.wake()

    def close(self) -> None:
        """Leave all claims, which lapse, and wait a second for the thread; the next `add` starts another."""
        if self._background.is_own:
            with self._background.changed:
                self._claims = []
                self._background.close(1.0, drop=True)

    def _release_all(self) -> float | None:
        with self._background.changed:
            now = time.monotonic()
            self._claims = [claim for claim in self._claims if claim[0] > now]
            claims = list(self._claims)
        for claim in claims:
            _, names, token = claim
            try:
                self._release(names, token)
            except Exception:
                return _AGAIN_SECONDS
            with self._background.changed, suppress(ValueError):
                self._claims.remove(claim)
        return None
