"""`HeldClaims`: the claims of this process, which a thread renews until they end.

A claim lapses by itself soon after its process has died; while the process lives, a call may take as long as it may.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from lookupcache.background import Background
from lookupcache.flow.waiting import CLAIM_SECONDS

_AGAIN_SECONDS = 1.0
"""How long after a failed attempt to end lost claims the next one begins."""

Release = Callable[[Sequence[bytes], Any], object]


class HeldClaims:
    """The names that are claimed, each with the token of its claim. A thread works on them, and ends with the last.

    No claim is renewed for longer than ``most`` seconds, the longest that a call may take. A worker that has no more
    rows to join may never look at an answer, and a call that hangs is abandoned. A claim that is not renewed lasts
    ``seconds``. A forked process has no claims of its parent. ``release`` ends the claims of a token, and raises an
    error if the store does not answer.
    """

    def __init__(
        self, renew: Callable[[Sequence[bytes]], None], most: float, seconds: float = CLAIM_SECONDS,
        release: Release | None = None,
    ) -> None:  # fmt: skip
        self._renew = renew
        self._release = release
        self._most = most
        self._interval = seconds / 3
        self._reset()

    def _reset(self) -> None:
        self._names: dict[bytes, tuple[float, Any]] = {}
        self._lost: list[tuple[float, Sequence[bytes], Any]] = []
        self._background = Background(self._work, "lookupcache-claims")

    def add(self, names: Iterable[bytes], token: Any, most: float | None = None) -> None:
        """Note claims; ``most`` is for them alone."""
        if not self._background.is_own:
            self._reset()
        with self._background.changed:
            self._names.update(dict.fromkeys(names, (time.monotonic() + (most or self._most), token)))
            if self._names:
                # Where no thread can be started, as when the interpreter exits, claims lapse.
                with suppress(RuntimeError):
                    self._background.wake(self._interval)

    def lose(self, names: Sequence[bytes], token: Any) -> None:
        """End claims soon, and try again until the store answers.

        The store may still execute a command that it has not answered. Until such a claim lapses, other processes would
        wait for rows that no process writes.
        """
        if names:
            if not self._background.is_own:
                self._reset()
            with self._background.changed:
                self._lost.append((time.monotonic() + self._most, names, token))
                with suppress(RuntimeError):
                    self._background.wake()

    def remove(self, names: Iterable[bytes], token: Any) -> list[bytes]:
        """Forget claims of a token that have ended; return which of the names were held."""
        if not self._background.is_own:
            return []
        with self._background.changed:
            held = [name for name in names if self._names.get(name, (0.0, None))[1] == token]
            for name in held:
                del self._names[name]
        return held

    def close(self, seconds: float = 0.0) -> None:
        """Forget all claims, which lapse; wait ``seconds`` at most for the thread. The next claim starts another."""
        if self._background.is_own:
            with self._background.changed:
                self._names, self._lost = {}, []
                self._background.close(seconds, drop=True)

    def by_token(self) -> dict[Any, list[bytes]]:
        """Return the names that are claimed, by the token of their claims."""
        if not self._background.is_own:
            return {}
        found = defaultdict(list)
        with self._background.changed:
            for name, (_, token) in self._names.items():
                found[token].append(name)
        return found

    def _work(self) -> float | None:
        """Renew claims, and end lost ones; a claim that has lapsed is not renewed, which the store decides."""
        with self._background.changed:
            now = time.monotonic()
            self._names = {name: held for name, held in self._names.items() if held[0] > now}
            self._lost = [claim for claim in self._lost if claim[0] > now]
            names, lost = list(self._names), list(self._lost)
        if names:
            with suppress(Exception):
                self._renew(names)
        again = self._interval if names else None
        for claim in lost:
            try:
                if self._release is not None:
                    self._release(*claim[1:])
            except Exception:
                return min(_AGAIN_SECONDS, again or _AGAIN_SECONDS)
            with self._background.changed, suppress(ValueError):
                self._lost.remove(claim)
        return again
