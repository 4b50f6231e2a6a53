"""`HeldClaims`: the claims of this process, renewed by a thread until they end.

A claim lapses by itself soon after its process has died; while the process lives, a call may take as long as it may.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from lookupcache.background import Background
from lookupcache.flow.waiting import CLAIM_SECONDS


class HeldClaims:
    """The names that are claimed; a thread calls ``renew``, which prolongs claims, and ends with the last claim.

    No claim is renewed for longer than ``most`` seconds, the longest that a call may take. A worker that has no more
    rows to join may never look at an answer, and a call that hangs is abandoned. A forked process has no claims of its
    parent.
    """

    def __init__(self, renew: Callable[[Sequence[bytes]], None], most: float, seconds: float = CLAIM_SECONDS) -> None:
        self._renew = renew
        self._most = most
        self._interval = seconds / 3
        self._reset()

    def _reset(self) -> None:
        self._names: dict[bytes, tuple[float, bytes]] = {}
        self._background = Background(self._renew_all, "lookupcache-claims")

    def add(self, names: Iterable[bytes], token: bytes, most: float | None = None) -> None:
        """Note claims; ``most`` is for them alone."""
        if not self._background.is_own:
            self._reset()
        with self._background.changed:
            self._names.update(dict.fromkeys(names, (time.monotonic() + (most or self._most), token)))
            if self._names:
                # Where no thread can be started, as when the interpreter exits, claims lapse.
                with suppress(RuntimeError):
                    self._background.wake(self._interval)

    def remove(self, names: Iterable[bytes], token: bytes) -> list[bytes]:
        """Forget claims of a token that have ended; return which of the names were held."""
        if not self._background.is_own:
            return []
        with self._background.changed:
            held = [name for name in names if self._names.get(name, (0.0, None))[1] == token]
            for name in held:
                del self._names[name]
        return held

    def close(self) -> None:
        """Forget all claims, which lapse, and let the thread end at once; the next claim starts another."""
        if self._background.is_own:
            with self._background.changed:
                self._names = {}
                self._background.close(drop=True)

    @property
    def is_open(self) -> bool:
        """Whether a thread renews claims, or waits for some."""
        return self._background.is_own and self._background.has_thread and not self._background.is_closing

    def by_token(self) -> dict[bytes, list[bytes]]:
        """Return the names that are claimed, by the token of their claims."""
        if not self._background.is_own:
            return {}
        found = defaultdict(list)
        with self._background.changed:
            for name, (_, token) in self._names.items():
                found[token].append(name)
        return found

    def _renew_all(self) -> float | None:
        """Renew all claims; a claim that has lapsed is not renewed, which the store decides."""
        with self._background.changed:
            now = time.monotonic()
            self._names = {name: held for name, held in self._names.items() if held[0] > now}
            names = list(self._names)
        if names:
            with suppress(Exception):
                self._renew(names)
        return self._interval if names else None
