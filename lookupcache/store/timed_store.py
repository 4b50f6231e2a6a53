"""`TimedStore`: a store whose calls are made by a thread, so that none of them takes longer than its timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from lookupcache.background import Background
from lookupcache.store.contract import Reading, Store, StoreContent

_CLOSE_SECONDS = 5.0

T = TypeVar("T")


class TimedStore(Store):
    """Calls a store in a thread of its own; raises TimeoutError for a call that takes too long.

    A system call on a network file system that does not answer cannot be interrupted. Its thread goes on; until it has
    ended, other calls fail at once. A call waits for its turn, at most as long again; the time that it may take itself
    counts from then on.

    Args:
        store: The store.
        timeout: The longest that a call may take, in seconds.
    """

    def __init__(self, store: Store, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._reset()

    def __repr__(self) -> str:
        return repr(self._store)

    def _reset(self) -> None:
        self._turn = threading.Lock()
        self._next: tuple[Future[object], Callable[[], object]] | None = None
        self._late: Future[object] | None = None
        self._background = Background(self._make_call, "lookupcache-store")

    def get(self, names: Sequence[bytes]) -> Reading:
        """Return the entries of names."""
        return self._call(lambda: self._store.get(names))

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names."""
        return self._call(lambda: self._store.claim(names, token, seconds))

    def renew(self, names: Sequence[bytes], token: bytes, seconds: float) -> None:
        """Prolong claims."""
        self._call(lambda: self._store.renew(names, token, seconds))

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        """Write entries."""
        return self._call(lambda: self._store.put(names, entries, seconds, token))

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        """End claims."""
        self._call(lambda: self._store.release(names, token))

    def invalidate(self, names: Sequence[bytes]) -> None:
        """Remove names."""
        self._call(lambda: self._store.invalidate(names))

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        """Return what describes an identity."""
        return self._call(lambda: self._store.describe(identity, about))

    def contents(self) -> list[StoreContent]:
        """Return what lies in the store."""
        return self._call(self._store.contents)

    def clear(self, identity: str | None = None) -> int:
        """Remove all of an identity, or of all."""
        return self._call(lambda: self._store.clear(identity))

    def flush(self) -> None:
        """Write what was collected, which may take longer than other calls."""
        self._call(self._store.flush, max(self._timeout, _CLOSE_SECONDS))

    @property
    def is_flushed(self) -> bool:
        """Whether nothing is collected that is not written."""
        return self._store.is_flushed

    def close(self) -> None:
        """Close the store, in the thread, which then ends; one that hangs is left alone."""
        with suppress(TimeoutError):
            self._call(self._store.close, max(self._timeout, _CLOSE_SECONDS))
        self._background.close(_CLOSE_SECONDS)

    def _call(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """Return what the store returns."""
        if not self._background.is_own:
            self._reset()  # The thread is the parent's.
        timeout = self._timeout if timeout is None else timeout
        turn = self._turn
        if not turn.acquire(timeout=timeout):
            raise TimeoutError("other calls have not ended yet")
        try:
            return self._call_now(work, timeout)
        finally:
            turn.release()

    def _call_now(self, work: Callable[[], T], timeout: float) -> T:
        done: Future[object] = Future()
        with self._background.changed:
            if self._late is not None and not self._late.done():
                raise TimeoutError("an earlier call has not ended yet")
            self._late = None
            self._background.wake()
            self._next = (done, work)
        try:
            return done.result(timeout)  # type: ignore[return-value]
        except TimeoutError:
            if done.done():
                raise
            self._late = done
            raise TimeoutError(f"it took longer than {timeout:g} s") from None

    def _make_call(self) -> None:
        with self._background.changed:
            call, self._next = self._next, None
        if call is None:
            return
        done, work = call
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
