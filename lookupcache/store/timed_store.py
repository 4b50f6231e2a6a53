"""`TimedStore`: a store whose calls are made by a thread, so that none of them takes longer than its timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar, cast

from lookupcache.background import Background
from lookupcache.store.contract import Store

_CLOSE_SECONDS = 5.0

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


def _in_thread(method: M) -> M:
    """Return the method that makes the same call in the thread."""

    @wraps(method, updated=())
    def call(self: TimedStore, *arguments: Any) -> Any:
        return self._call(lambda: getattr(self._store, method.__name__)(*arguments))

    return cast(M, call)


class TimedStore(Store):
    """Calls a store in a thread of its own; raises TimeoutError for a call that takes too long.

    A system call on a network file system that does not answer cannot be interrupted. Its thread goes on; until it has
    ended, other calls fail at once. A call waits for its turn, at most as long again; the time that it may take itself
    counts from then on.
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

    get = _in_thread(Store.get)
    claim = _in_thread(Store.claim)
    renew = _in_thread(Store.renew)
    put = _in_thread(Store.put)
    release = _in_thread(Store.release)
    invalidate = _in_thread(Store.invalidate)
    describe = _in_thread(Store.describe)
    contents = _in_thread(Store.contents)
    clear = _in_thread(Store.clear)

    def flush(self) -> None:
        """Write what was collected, which may take longer than other calls."""
        self._call(self._store.flush, max(self._timeout, _CLOSE_SECONDS))

    @property
    def is_flushed(self) -> bool:
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
