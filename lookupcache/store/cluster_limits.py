"""`StoredLimits`: a rate and a capacity that hold for all workers of all hosts, counted in a Redis server.

    calls ─► queue ─► a thread asks the server for all of them at once ─► permits
                            │ it does not answer
                            ▼
                        the share of this executor, or of this worker

A permit for a time is given at most `HORIZON_SECONDS` ahead. So times that nobody uses, because a worker was killed,
and times that two sides give out, because the server was away or its clock was set, are those of one second at most.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from lookupcache.config import LookupConfig
from lookupcache.errors import LookupCacheError, OptionError
from lookupcache.metrics import Counters
from lookupcache.redaction import hidden, hide_address, url_secrets
from lookupcache.resilience.permits import Permit
from lookupcache.resilience.rate_limit import RateLimit, executor_name, file_of_executor
from lookupcache.resilience.runtime import Runtime
from lookupcache.store.guard import Guard, process_token
from lookupcache.store.locations import OPTION, url_of
from lookupcache.store.redis_limits import FORGOTTEN, RedisLimits

HORIZON_SECONDS = 1.0
LEASE_SECONDS = 5.0
"""How long a lease lasts that is not prolonged, as that of a worker that was killed."""

_LINGER_SECONDS = 1.0
_FIRST_POLL_SECONDS = 0.005
_LAST_POLL_SECONDS = 0.1
_numbers = itertools.count()


@dataclass(eq=False)
class _Waiting:
    """A call that waits for a permit until a time, by `time.monotonic`; ``is_late`` after the first refusal."""

    until: float
    future: Future[Permit] = field(default_factory=Future)
    is_late: bool = False


class _Queue:
    """Calls that wait, served in order by a thread that lives as long as there is something to do.

    ``serve`` is called in the thread with the waiting calls; it completes the futures of some, and returns after how
    many seconds to call it again, None if only for a new call.
    """

    def __init__(self, serve: Callable[[Sequence[_Waiting]], float | None], name: str) -> None:
        self._serve = serve
        self._name = name
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget what waits in the parent process, and its thread."""
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._is_due = self._is_closing = False
        self._has_thread = False

    def close(self, seconds: float) -> None:
        """Let the thread serve once more and end, and wait for that; the next call starts another.

        While calls wait, as those of other threads, it goes on.
        """
        with self._changed:
            self._is_closing = self._has_thread
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_thread or self._has_waiting, seconds)

    def add(self, until: float) -> Future[Permit]:
        """Let a call wait."""
        waiting = _Waiting(until)
        with self._changed:
            self._wake()
            self._waiting.append(waiting)
        return waiting.future

    def wake(self) -> None:
        """Call ``serve`` soon; where no thread can be started, with the next call."""
        with self._changed, suppress(RuntimeError):
            self._wake()

    @property
    def _has_waiting(self) -> bool:
        return any(not one.future.done() for one in self._waiting)

    def _wake(self) -> None:
        self._is_due = True
        self._changed.notify_all()
        if not self._has_thread:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._has_thread = True

    def _run(self) -> None:
        seconds: float | None = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_due or (self._is_closing and not self._has_waiting),
                    _LINGER_SECONDS if seconds is None else seconds,
                )
                if not self._is_due and not self._has_waiting and (seconds is None or self._is_closing):
                    self._has_thread = self._is_closing = False
                    self._changed.notify_all()
                    return
                self._is_due = False
                self._waiting = deque(one for one in self._waiting if not one.future.done())
                waiting = list(self._waiting)
            try:
                seconds = self._serve(waiting)
            except BaseException as error:
                # Nobody must wait for a thread that has failed.
                for one in waiting:
                    _complete(one.future, error=error)
                seconds = None


class StoredLimits:
    """The limits that a config sets for the cluster; whatever the server does, calls go on.

    Args:
        config: The options, which name the server.
        source: The name of the source, the same for all that share the limits.
        counters: Where waits and failures are counted.
        what: What makes the calls, for a warning.

    Raises OptionError if the store is no Redis server.
    """

    def __init__(self, config: LookupConfig, source: str, counters: Counters, what: str) -> None:
        assert config.store is not None
        url = url_of(config.store)
        self._server = open_limits(url, config.store_timeout, source)
        what = f"{what}: calls keep to their share of the limits of the cluster, since 'lookup.cache.store'"
        self._guard = Guard(counters, "cluster_limit_failures", what, lambda text: hidden(text, url_secrets(url)))
        self._counters = counters
        self._timeout = 2 * config.store_timeout
        self._rate = _Rate(config, source, self._server, self._guard) if config.rate_limit_scope == "cluster" else None
        self._slots = None if config.async_capacity_cluster is None else _Slots(config, self._server, self._guard)

    async def enter(self, within: float, runtime: Runtime) -> Permit | None:
        """Wait for a slot of the cluster's capacity, at most so many seconds; None without a capacity."""
        if self._slots is None:
            return None
        return await self._wait(self._slots.queue, within, runtime, self._slots.leave)

    def leave(self, permit: Permit) -> None:
        """Free a slot."""
        if self._slots is not None:
            self._slots.leave(permit)

    async def throttle(self, within: float, runtime: Runtime) -> Permit | None:
        """Reserve a time for a call, at most so many seconds from now; None without a rate of the cluster."""
        return None if self._rate is None else await self._wait(self._rate.queue, within, runtime, lambda permit: None)

    async def _wait(self, queue: _Queue, within: float, runtime: Runtime, leave: Callable[[Permit], None]) -> Permit:
        before = time.monotonic()
        future = queue.add(before + within)
        try:
            permit: Permit = await runtime.result(future)
        except BaseException:
            if not future.cancel():
                # It was granted to a caller that waits no longer.
                future.add_done_callback(lambda done: leave(done.result()) if done.exception() is None else None)
            raise
        if permit.has_waited:
            self._counters.add("cluster_waits")
            self._counters.add("cluster_wait_seconds", time.monotonic() - before + permit.seconds)
        return permit

    def reset_after_fork(self) -> None:
        """Forget the permits of the parent process, and its connection."""
        self._guard.reset_after_fork()
        for one in (self._rate, self._slots):
            if one is not None:
                one.reset_after_fork()

    def close(self) -> None:
        """End all permits, and disconnect; the next call connects again."""
        for one in (self._rate, self._slots):
            if one is not None:
                one.queue.close(self._timeout)
        if self._slots is not None:
            self._slots.close()
        self._server.close()


def open_limits(url: str, timeout: float, source: str) -> RedisLimits:
    """Return the limits of a source at a URL; nothing is connected yet. Raises OptionError for other URLs."""
    from lookupcache.config.values import is_redis_url

    if not is_redis_url(url):
        raise OptionError(
            f"Option {OPTION!r} is {hide_address(url)!r}, which cannot count the calls of all hosts.",
            hint="'lookup.rate-limit.scope' = 'cluster' and 'lookup.async.capacity.cluster' need the URL of a Redis "
            "server, as in 'redis://host:6379/0'.",
        )
    return RedisLimits(url, timeout, source)


class _Rate:
    """Times for calls, by the server, or while it is away by this executor's share of the rate."""

    def __init__(self, config: LookupConfig, source: str, server: RedisLimits, guard: Guard) -> None:
        assert config.rate_limit is not None
        self._rate = config.rate_limit
        self._source = source
        self._server = server
        self._guard = guard
        self._members = 0
        self._shares: dict[int, RateLimit] = {}
        self.queue = _Queue(self._serve, "lookupcache-rate")

    def reset_after_fork(self) -> None:
        self._shares = {}
        self.queue.reset_after_fork()

    def _serve(self, waiting: Sequence[_Waiting]) -> float | None:
        if not waiting:
            return None
        member = member_of_executor()
        took = self._guard.call(lambda: self._server.take_times(len(waiting), self._rate, HORIZON_SECONDS, member))
        read, every = time.monotonic(), 1 / self._rate
        if took is None:
            starts, free = self._take_share(len(waiting))
            every = max(self._known_members(), 1) / self._rate
        else:
            self._note_members(took.members)
            starts, free = [took.first + number * every for number in range(took.granted)], took.free
        rest = _grant(waiting, [(b"", read + start) for start in starts], read)
        for number, one in enumerate(rest):
            one.is_late = True
            if read + free + number * every > one.until:
                _complete(one.future, Permit(seconds=free + number * every, is_granted=False, has_waited=True))
        # When the next time is within the horizon; not all at once, for many workers may wait for it.
        return max(free - HORIZON_SECONDS, _FIRST_POLL_SECONDS) * random.uniform(1, 1.1) if rest else None

    def _take_share(self, count: int) -> tuple[list[float], float]:
        """Return times by this executor's share of the rate, and when the next is free."""
        limit = self._share(max(self._known_members(), 1))
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

    def _known_members(self) -> int:
        """Return how many executors were seen last, by this worker or by another of the executor."""
        if not self._members:
            with suppress(LookupCacheError, OSError, ValueError):
                self._members = int(self._members_file().read_text())
        return self._members

    def _note_members(self, members: int) -> None:
        if members != self._members:
            self._members = members
            if is_own_executor():
                return  # Nobody else would read the file.
            with suppress(LookupCacheError, OSError):
                path = self._members_file()
                new = path.with_name(f"{path.name}.{os.getpid()}")
                new.write_text(str(members))
                new.replace(path)

    def _members_file(self) -> Path:
        return file_of_executor(f"{self._source} in the cluster, executors")


class _Slots:
    """Leases for the calls under way, from the server, or while it is away by this worker's share of the capacity."""

    def __init__(self, config: LookupConfig, server: RedisLimits, guard: Guard) -> None:
        assert config.async_capacity_cluster is not None
        self._capacity = config.async_capacity_cluster
        # A call that hangs is abandoned after the timeout, and so is its lease.
        self._most = config.timeout + LEASE_SECONDS
        self._server = server
        self._guard = guard
        self._members = 1
        self._number = next(_numbers).to_bytes(8, "little")
        self._poll = _FIRST_POLL_SECONDS
        self.queue = _Queue(self._serve, "lookupcache-capacity")
        self._start_without_leases()

    def _start_without_leases(self) -> None:
        # Reentrant: a coroutine that is garbage collected ends its call in a thread that may hold the lock.
        self._lock = threading.RLock()
        self._held: dict[bytes, float] = {}
        self._ended: dict[bytes, float] = {}
        self._prolonged = 0.0

    def reset_after_fork(self) -> None:
        self._start_without_leases()
        self.queue.reset_after_fork()

    def leave(self, permit: Permit) -> None:
        if not permit.is_granted:
            return
        with self._lock:
            if self._held.pop(permit.name, None) is None:
                return
            self._ended[permit.name] = time.monotonic()
        self.queue.wake()

    def close(self) -> None:
        """End all leases now: nobody may look after them later."""
        with self._lock:
            ended, self._ended = [*self._ended, *self._held], {}
            self._held = {}
        if ended:
            self._exchange([], ended, [])

    def _serve(self, waiting: Sequence[_Waiting]) -> float | None:
        now = time.monotonic()
        with self._lock:
            ended, self._ended = self._ended, {}
            self._held = {name: since for name, since in self._held.items() if now - since < self._most}
            is_due = now - self._prolonged >= LEASE_SECONDS / 3
            held = list(self._held) if is_due else []
        if not (waiting or ended or held):
            return LEASE_SECONDS / 3 if self._held else None
        wanted = [self._new_name() for _ in waiting]
        granted = self._exchange(wanted, list(ended), held)
        if held and granted is not None:
            self._prolonged = now
        if granted is None:
            granted = max(min(self._capacity // self._members or 1, self._capacity) - len(self._held), 0)
            # Said again, for the server may have granted the leases, too; later they have lapsed.
            unknown = {name: at for name, at in ended.items() if now - at < LEASE_SECONDS}
            with self._lock:
                self._ended |= unknown | dict.fromkeys(wanted[granted:], now)
        names = wanted[:granted]
        with self._lock:
            self._held.update(dict.fromkeys(names, now))
        rest = _grant(waiting, [(name, 0.0) for name in names], now, self._return)
        for one in rest:
            one.is_late = True
            if one.until <= now:
                _complete(one.future, Permit(is_granted=False, has_waited=True))
        self._poll = _FIRST_POLL_SECONDS if names else min(2 * self._poll, _LAST_POLL_SECONDS)
        if rest:
            return min(self._poll * random.uniform(0.5, 1), max(min(one.until for one in rest) - now, 0.001))
        return LEASE_SECONDS / 3 if self._held or self._ended else None

    def _return(self, name: bytes) -> None:
        self.leave(Permit(name))

    def _exchange(self, wanted: Sequence[bytes], ended: Sequence[bytes], held: Sequence[bytes]) -> int | None:
        """End, prolong and take leases; return how many were granted, None while the server is away."""
        member = process_token(os.getpid()) + self._number
        take = partial(self._server.take_leases, wanted, self._capacity, LEASE_SECONDS, member, ended)
        took = self._guard.call(lambda: take(held))
        if took is not None and took[0] == FORGOTTEN:
            with self._lock:
                every, self._prolonged = list(self._held), -math.inf
            took = self._guard.call(lambda: take(every))
        if took is None:
            return None
        granted, self._members = took
        return 0 if granted == FORGOTTEN else granted

    def _new_name(self) -> bytes:
        return process_token(os.getpid()) + next(_numbers).to_bytes(8, "little")


def _grant(
    waiting: Sequence[_Waiting],
    permits: Sequence[tuple[bytes, float]],
    now: float,
    give_back: Callable[[bytes], None] = lambda name: None,
) -> list[_Waiting]:
    """Complete the futures of the first calls that still wait; return the calls that are left.

    A call whose permit would be later than it can wait is refused, and the next one gets the permit.

    Args:
        waiting: The calls.
        permits: For each permit its name, and when the call may start, by `time.monotonic`.
        now: The time.
        give_back: Called with the names of permits that nobody waits for any more.
    """
    left, queue = [], deque(permits)
    for one in waiting:
        if not queue:
            left.append(one)
        elif queue[0][1] > one.until:
            _complete(one.future, Permit(seconds=queue[0][1] - now, is_granted=False, has_waited=True))
        elif one.future.set_running_or_notify_cancel():
            name, start = queue.popleft()
            seconds = max(start - now, 0.0)
            one.future.set_result(Permit(name, seconds, True, one.is_late or seconds > 0))
    for name, _ in queue:
        give_back(name)
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
    # The numbers of processes are those of other hosts too.
    own = _name_of_process(os.getpid()) if is_own_executor() else socket.gethostname()
    return f"{own} {executor_name()}".encode()


def is_own_executor() -> bool:
    """Return whether this process is an executor by itself, as all are outside of Spark."""
    return executor_name().startswith("process ")
