"""`HeldClaims`: the claims of this process in a store, renewed by a thread until they end.

A claim lapses by itself soon after its process has died; while the process lives, a call may take as long as it may.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from lookupcache.thread_start import start_thread

CLAIM_SECONDS = 5.0
"""How long a claim lasts that is not renewed."""

_LINGER_SECONDS = 1.0
"""How long the thread waits for new claims: to start one for each batch takes longer than to claim."""


class HeldClaims:
    """The names that are claimed; a thread calls ``renew``, which prolongs claims, and ends with the last claim.

    No claim is renewed for longer than ``most`` seconds, the longest that a call may take: a worker that has no more
    rows to join may never look at an answer. A forked process has no claims of its parent.
    """

    def __init__(self, renew: Callable[[Sequence[bytes]], None], most: float, seconds: float = CLAIM_SECONDS) -> None:
        self._renew = renew
        self._most = most
        self._interval = seconds / 3
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._names: dict[bytes, tuple[float, bytes]] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_closing = False
        self._has_thread = False

    def add(self, names: Iterable[bytes], token: bytes) -> None:
        """Note claims."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            self._names.update(dict.fromkeys(names, (time.monotonic() + self._most, token)))
            self._is_closing = False
            self._changed.notify()
            if not self._has_thread and self._names:
                # Where none can be started, as when the interpreter exits, claims lapse.
                with suppress(RuntimeError):
                    start_thread(threading.Thread(target=self._run, name="lookupcache-claims", daemon=True))
                    self._has_thread = True

    def remove(self, names: Iterable[bytes], token: bytes) -> None:
        """Forget claims of a token that have ended."""
        if self._process == os.getpid():
            with self._lock:
                for name in names:
                    if self._names.get(name, (0.0, b""))[1] == token:
                        del self._names[name]

    def close(self) -> None:
        """Let the thread end at once; claims that are left lapse, and the next one starts another thread."""
        if self._process == os.getpid():
            with self._changed:
                self._is_closing = True
                self._changed.notify()

    def by_token(self) -> dict[bytes, list[bytes]]:
        """Return the names that are claimed, by the token of their claims."""
        if self._process != os.getpid():
            return {}
        found = defaultdict(list)
        with self._lock:
            for name, (_, token) in self._names.items():
                found[token].append(name)
        return found

    def _run(self) -> None:
        """Renew all claims again and again; a claim that has lapsed is not renewed, which the store decides."""
        while True:
            with self._changed:
                if not self._names:
                    self._changed.wait_for(lambda: self._names or self._is_closing, _LINGER_SECONDS)
                if not self._names:
                    self._has_thread = False
                    return
                if self._changed.wait_for(lambda: self._is_closing, self._interval):
                    self._has_thread = False
                    return
                now = time.monotonic()
                self._names = {name: held for name, held in self._names.items() if held[0] > now}
                names = list(self._names)
            if names:
                with suppress(Exception):
                    self._renew(names)
