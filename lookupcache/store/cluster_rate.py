"""`StoredRate`: a rate that holds for all workers of all hosts, counted in a Redis server.

    calls ─► queue ─► a thread asks the server for all of them at once ─► permits
                            │ it does not answer
                            ▼
                        the share of this executor

A permit is given at most `HORIZON_SECONDS` ahead. So a killed worker takes at most the times of one second with it. No
more are given out twice if the server was away or its clock was set.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache

from lookupcache.background import Background
from lookupcache.config import LookupConfig
from lookupcache.errors import OptionError
from lookupcache.metrics import Counters
from lookupcache.redaction import hidden, hide_address, url_secrets
from lookupcache.resilience.policy import Permit
from lookupcache.resilience.rate_limit import RateLimit, executor_name
from lookupcache.resilience.runtime import Runtime
from lookupcache.store.answer_time import most_seconds
from lookupcache.store.guard import Guard
from lookupcache.store.locations import OPTION, url_of
from lookupcache.store.redis_rate import RedisRate

HORIZON_SECONDS = 1.0

_FIRST_POLL_SECONDS = 0.005


@dataclass(eq=False)
class _PermitRequest:
    """A call that waits for a permit until a time, by `time.monotonic`; ``is_late`` after the first refusal."""

    until: float
    future: Future[Permit] = field(default_factory=Future)
    is_late: bool = False


class _Queue:
    """Calls that wait, served in order by a thread that lives as long as there is something to do.

    ``serve`` is called in the thread with the waiting calls. It completes the futures of some, and returns after how
    many seconds to call it again, None if only for a new call.
    """

    def __init__(self, serve: Callable[[Sequence[_PermitRequest]], float | None], name: str) -> None:
        self._serve = serve
        self._name = name
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget what waits in the parent process, and its thread."""
        self._waiting: deque[_PermitRequest] = deque()
        self._background = Background(self._serve_waiting, self._name)

    def close(self, seconds: float) -> None:
        """Let the thread serve once more and end, and wait for that; the next call starts another.

        While calls wait, as those of other threads, it goes on.
        """
        background = self._background
        with background.changed:
            if background.has_thread:
                background.wake()
                background.close()
            background.changed.wait_for(lambda: not background.has_thread or self._has_waiting, seconds)

    def add(self, until: float) -> Future[Permit]:
        """Let a call wait."""
        waiting = _PermitRequest(until)
        with self._background.changed:
            self._background.wake()
            self._waiting.append(waiting)
        return waiting.future

    @property
    def _has_waiting(self) -> bool:
        return any(not one.future.done() for one in self._waiting)

    def _serve_waiting(self) -> float | None:
        with self._background.changed:
            self._waiting = deque(one for one in self._waiting if not one.future.done())
            waiting = list(self._waiting)
        try:
            seconds = self._serve(waiting)
        except BaseException as error:
            # No call may wait for a thread that has failed.
            for one in waiting:
                _complete(one.future, error=error)
            return None
        return seconds if self._has_waiting else None


class StoredRate:
    """The rate that a config sets for the cluster; whatever the server does, calls go on.

    All that share the rate name the same ``source``. ``what`` makes the calls, for a warning.

    Raises OptionError if the store is no Redis server.
    """

    def __init__(self, config: LookupConfig, source: str, counters: Counters, what: str) -> None:
        assert config.store is not None
        assert config.rate_limit is not None
        url = url_of(config.store)
        self._rate, self._source = config.rate_limit, source
        self._server = open_rate(url, config.store_timeout, source, most_seconds(config))
        what = f"{what}: calls keep to their share of the rate of the cluster, since 'lookup.cache.store'"
        self._guard = Guard(counters, "cluster_limit_failures", what, lambda text: hidden(text, url_secrets(url)))
        self._timeout = 2 * config.store_timeout
        self._members = 1
        self._shares: dict[int, RateLimit] = {}
        self._queue = _Queue(self._serve, "lookupcache-rate")

    async def throttle(self, within: float, runtime: Runtime) -> Permit:
        """Reserve a time for a call, at most ``within`` seconds from now."""
        future = self._queue.add(time.monotonic() + within)
        try:
            permit: Permit = await runtime.result(future)
        except BaseException:
            future.cancel()
            raise
        return permit

    def reset_after_fork(self) -> None:
        """Forget the permits of the parent process, and its connection."""
        self._guard.reset_after_fork()
        self._shares = {}
        self._queue.reset_after_fork()

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        self._queue.close(self._timeout)
        self._server.close()

    def _serve(self, waiting: Sequence[_PermitRequest]) -> float | None:
        if not waiting:
            return None
        member = member_of_executor()
        took = self._guard.call(lambda: self._server.take_times(len(waiting), self._rate, HORIZON_SECONDS, member))
        read, every = time.monotonic(), 1 / self._rate
        if took is None:
            starts, free = self._take_share(len(waiting))
            every = self._members / self._rate
        else:
            self._members = max(took.members, 1)
            starts, free = [took.first + number * every for number in range(took.granted)], took.free
        rest = _grant(waiting, starts, read)
        for number, one in enumerate(rest):
            one.is_late = True
            if read + free + number * every > one.until:
                _complete(one.future, Permit(free + number * every, is_granted=False, has_waited=True))
        # When the next time is within the horizon; not all at once, for many workers may wait for it.
        return max(free - HORIZON_SECONDS, _FIRST_POLL_SECONDS) * random.uniform(1, 1.1) if rest else None

    def _take_share(self, count: int) -> tuple[list[float], float]:
        """Return times by this executor's share of the rate, and when the next is free."""
        limit = self._share(self._members)
        starts: list[float] = []
        while len(starts) < count:
            wait = limit.reserve(HORIZON_SECONDS)
            if wait > HORIZON_SECONDS:
                return starts, wait
            starts.append(wait)
        return starts, 0.0

    def _share(self, members: int) -> RateLimit:
        if members not in self._shares:
            self._shares[members] = RateLimit.of_executor(self._rate / members, f"{self._source} in the cluster")
        return self._shares[members]


def open_rate(url: str, timeout: float, source: str, first_connect: float | None = None) -> RedisRate:
    """Return the rate of a source at a URL; nothing is connected yet. Raises OptionError for other URLs."""
    from lookupcache.config.values import is_redis_url

    if not is_redis_url(url):
        raise OptionError(
            f"Option {OPTION!r} is {hide_address(url)!r}, which cannot count the calls of all hosts.",
            hint="'lookup.rate-limit.scope' = 'cluster' needs the URL of a Redis server, as in 'redis://host:6379/0'.",
        )
    return RedisRate(url, timeout, source, first_connect)


def _grant(waiting: Sequence[_PermitRequest], starts: Sequence[float], now: float) -> list[_PermitRequest]:
    """Complete the futures of the first calls that still wait; return the calls that are left.

    A call whose time would be later than it can wait is refused, and the next one gets the time. ``starts`` says in how
    many seconds from ``now``, by `time.monotonic`, each call may start.
    """
    left, times = [], deque(starts)
    for one in waiting:
        if not times:
            left.append(one)
        elif now + times[0] > one.until:
            _complete(one.future, Permit(times[0], is_granted=False, has_waited=True))
        elif one.future.set_running_or_notify_cancel():
            seconds = max(times.popleft(), 0.0)
            one.future.set_result(Permit(seconds, True, one.is_late or seconds > 0))
    return left


def _complete(future: Future[Permit], permit: Permit | None = None, error: BaseException | None = None) -> None:
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    elif permit is not None:
        future.set_result(permit)


@cache
def _name_of_process(process: int) -> str:
    """Return a name that no other process has, also on another host."""
    return os.urandom(16).hex()


def member_of_executor() -> bytes:
    """Return the name of this executor among all executors: one for all its workers."""
    name = executor_name()
    # Outside of Spark, each process is an executor; other hosts have processes with the same numbers.
    own = _name_of_process(os.getpid()) if name.startswith("process ") else socket.gethostname()
    return f"{own} {name}".encode()
