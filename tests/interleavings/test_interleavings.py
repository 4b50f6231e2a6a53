"""Every order in which threads and coroutines can reach what they share, explored by `frontrun`.

It runs the threads one at a time and switches between them where they touch shared state (dynamic partial order
reduction): orders that differ only in steps without influence on each other count as one. An order that breaks an
invariant is replayed, and shown line by line. Processes that share a cache of a host or a store are threads here, each
with its own claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import itertools
import os
import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import frontrun
import numpy as np
import pytest
from frontrun._cooperative import patch_locks, unpatch_locks
from memory_store import MemoryStore
from scale import SEED, scale_up
from time_limit import LIMIT

from lookupcache import background, cached, metrics
from lookupcache.errors import LookupRefusedError
from lookupcache.executor import call_group
from lookupcache.executor.call_group import CallGroup, Executor
from lookupcache.executor.latch import Latch
from lookupcache.flow import held_claims
from lookupcache.host import claims as host_claims
from lookupcache.host.folder import Folder
from lookupcache.resilience import rate_limit
from lookupcache.resilience.breaker import Breaker
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.store import cluster_rate, writer
from lookupcache.store.guard import GuardedStore

ORDERS = [0]
"""How many orders were explored."""


@pytest.fixture(scope="module", autouse=True)
def count_orders(pytestconfig: pytest.Config) -> Iterator[None]:
    """Print how many orders were explored, as the nightly report shows it."""
    yield
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{ORDERS[0]} orders of threads and coroutines, at random from seed {SEED}")


@pytest.fixture(autouse=True)
def cooperative() -> Iterator[None]:
    """Replace locks, events and queues by those of frontrun, which switch to another thread where they would block."""
    patch_locks()
    own = [mock.patch.object(metrics, "_add_lock", threading.RLock()),
           mock.patch.object(call_group, "SimpleQueue", queue.Queue)]  # fmt: skip
    try:
        for one in own:
            one.start()
        yield
    finally:
        for one in own:
            one.stop()
        unpatch_locks()


def explore(setup: Any, workers: list[Any], invariant: Any, most: int = 12, most_steps: int = 1_500) -> None:
    """Explore up to ``most`` orders of these workers, times the scale; then as many at random.

    The systematic exploration does not see all that threads share: a latch that lost a wake-up passed it, and not the
    random one. Where all threads wait for ever, both end with "inconclusive", which fails the test too.
    """
    how: list[dict[str, Any]] = [{"max_executions": scale_up(most)}]
    how.append({"strategy": "random", "max_attempts": scale_up(most), "max_ops": most_steps, "seed": SEED})
    gc.collect()
    # Destructors of lookupcache are traced, too: one that runs while frontrun has its lock would wait for that lock.
    gc.disable()
    try:
        for one in how:
            result = frontrun.explore(
                setup, workers, invariant, trace_packages=["lookupcache.*"], detect_io=False,
                reproduce_on_failure=1, timeout_per_run=20.0, deadlock_timeout=10.0, **one,
            )  # fmt: skip
            result.assert_holds()
            ORDERS[0] += result.num_explored
    finally:
        gc.enable()


# ── latch ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
def test_a_waiter_for_a_latch_is_always_woken():
    def wait(state):
        state.woken.append(state.latch.wait())

    explore(
        lambda: SimpleNamespace(latch=Latch(), woken=[]),
        [wait, wait, lambda state: state.latch.open()],
        lambda state: state.woken == [True, True] and not state.latch._wakers,
    )


def test_a_latch_that_two_threads_open():
    def wait(state):
        state.woken.append(state.latch.wait())

    explore(
        lambda: SimpleNamespace(latch=Latch(), woken=[]),
        [wait, lambda state: state.latch.open(), lambda state: state.latch.open()],
        lambda state: state.woken == [True] and not state.latch._wakers,
    )


# ── circuit breaker ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_breaker_opens_once_and_lets_one_probe_through():
    def setup():
        state = SimpleNamespace(now=0.0, probes=[], refused=[])
        state.breaker = Breaker(failures=1, delay=10.0, clock=lambda: state.now)
        state.breaker.record_failure(state.breaker.acquire())
        state.now = 10.0
        return state

    def probe(state):
        try:
            state.breaker.acquire()
            state.probes.append(1)
        except LookupRefusedError:
            state.refused.append(1)

    explore(setup, [probe, probe, probe], lambda state: (len(state.probes), len(state.refused)) == (1, 2))


def test_failures_in_a_row_open_a_breaker_whatever_else_ends():
    def setup():
        state = SimpleNamespace(breaker=Breaker(failures=2, delay=10.0, clock=lambda: 0.0))
        state.permits = [state.breaker.acquire() for _ in range(3)]
        return state

    def fail(number):
        return lambda state: state.breaker.record_failure(state.permits[number])

    explore(
        setup,
        [fail(0), fail(1), fail(2)],
        lambda state: state.breaker.open_for() == 10.0 and state.breaker._opened == 1,
    )


def test_a_probe_leaves_the_breaker_closed_or_open_never_stuck():
    def setup():
        state = SimpleNamespace(now=0.0)
        state.breaker = Breaker(failures=1, delay=10.0, clock=lambda: state.now)
        state.old = state.breaker.acquire()
        state.breaker.record_failure()
        state.now = 10.0
        state.probe = state.breaker.acquire()
        return state

    def usable(state):
        state.now += 10.0
        state.breaker.acquire()
        return True

    explore(
        setup,
        [lambda state: state.breaker.record_success(state.probe), lambda state: state.breaker.record_failure(state.old),
         lambda state: state.breaker.record_failure()],
        usable,
    )  # fmt: skip
    explore(
        setup,
        [lambda state: state.breaker.release(state.probe), lambda state: state.breaker.record_success(state.old)],
        usable,
    )


# ── rate limit ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.parametrize("shared", [False, True])
def test_each_slot_of_a_rate_limit_is_given_once(tmp_path, shared, monkeypatch):
    path, system = tmp_path / "slot", SimpleNamespace(LOCK_EX=fcntl.LOCK_EX, LOCK_UN=fcntl.LOCK_UN)
    monkeypatch.setattr(rate_limit, "fcntl", system)

    def setup():
        path.unlink(missing_ok=True)
        # The lock of the file would block all threads; this one lets the others go on.
        lock = threading.Lock()
        system.flock = lambda file, how: lock.acquire() if how == fcntl.LOCK_EX else lock.release()
        limits = [RateLimit(10.0, path if shared else None, clock=lambda: 5.0) for _ in range(2)]
        return SimpleNamespace(limits=limits if shared else [limits[0]] * 2, waits=[])

    def reserve(number):
        def run(state):
            state.waits.append(round(state.limits[number].reserve(), 3))

        return run

    explore(setup, [reserve(0), reserve(1), reserve(0)], lambda state: sorted(state.waits) == [0.0, 0.1, 0.2])


# ── groups of calls in flight ────────────────────────────────────────────────────────────────────────────────


class Slots(Executor):
    """An executor whose calls are answered by the workers of the exploration."""

    def __init__(self) -> None:
        super().__init__(2, 10.0, TimeoutError)
        self.submitted: list[Any] = []

    def _submit(self, calls):
        self.submitted += calls

    def _abort(self, group):
        self._completed.put(group)


def group_state(**options):
    state = SimpleNamespace(slots=Slots(), group=CallGroup([1, 2], **options))
    state.slots.start(state.group)
    return state


def answer(number, value):
    return lambda state: state.slots.submitted[number].end(value)


def taken(state):
    found = state.slots.take_completed(wait=False, room=True)
    return found, state.slots.in_flight, state.group.answers


def test_a_group_completes_once_with_all_its_answers():
    def wait(state):
        state.found = state.slots.take_completed(wait=True)

    explore(
        group_state, [answer(0, "a"), answer(1, "b"), wait],
        lambda state: state.found == [state.group] and taken(state) == ([], 0, ["a", "b"]),
    )  # fmt: skip


def test_a_group_cancelled_while_it_is_answered_leaves_no_call():
    explore(
        group_state, [answer(0, "a"), answer(1, "b"), lambda state: state.slots.cancel(state.group)],
        lambda state: taken(state)[:2] == ([], 0),
    )  # fmt: skip


def test_a_group_of_which_one_call_fails_completes_once():
    error = OSError("down")
    explore(
        lambda: group_state(all_or_nothing=True), [answer(0, error), answer(1, "b")],
        lambda state: taken(state) == ([state.group], 0, [error, error]),
    )  # fmt: skip


def test_a_group_is_started_or_withdrawn_never_both():
    def withdraw(state):
        state.withdrawn = state.slots.withdraw(state.group)

    explore(
        lambda: SimpleNamespace(slots=Slots(), group=CallGroup([1])),
        [withdraw, lambda state: state.slots.start(state.group)],
        lambda state: len(state.slots.submitted) == state.slots.in_flight == (0 if state.withdrawn else 1),
    )


# ── claims of a host ─────────────────────────────────────────────────────────────────────────────────────────

KEY = np.array([7], np.uint64)


@pytest.fixture
def two_processes(tmp_path, monkeypatch):
    """Return a function that makes the claims of two processes, whose file lock lets the other threads go on."""
    folder, made = Folder(tmp_path / "host"), []

    def setup():
        for one in made:
            one.close()
        lock = threading.Lock()

        @contextlib.contextmanager
        def hold(self, name, *, wait=True):
            with lock:
                yield True

        monkeypatch.setattr(Folder, "lock", hold)
        made[:] = [host_claims.Claims(folder, 1), host_claims.Claims(folder, 1)]
        return SimpleNamespace(claims=list(made), mine=[], seen=[])

    yield setup
    for one in made:
        one.close()
    folder.close()


def claim_key(number):
    return lambda state: state.mine.append((number, bool(state.claims[number].claim(KEY, 5.0, 10.0)[0])))


def test_one_process_of_a_host_claims_a_key(two_processes):
    def look(state):
        state.seen.append(int(state.claims[0].states(KEY, 6.0).claimants[0]))

    def one_has_it(state):
        [number] = [number for number, is_mine in state.mine if is_mine]
        holder = state.claims[number].number
        return state.claims[0].states(KEY, 6.0).claimants[0] == holder and state.seen[0] in (0, holder)

    explore(two_processes, [claim_key(0), claim_key(1), look], one_has_it)


@pytest.mark.extended
def test_a_released_key_is_free_or_claimed_by_the_next_process(two_processes):
    def claim_and_release(state):
        claim_key(0)(state)
        if state.mine[-1][1] or state.mine[0] == (0, True):
            state.claims[0].release(KEY)

    def second_or_none(state):
        has_second = (1, True) in state.mine
        return state.claims[0].states(KEY, 6.0).claimants[0] == (state.claims[1].number if has_second else 0)

    explore(two_processes, [claim_and_release, claim_key(1)], second_or_none)


@pytest.mark.extended
def test_an_invalidation_ends_the_claims_made_before_it(two_processes):
    def remove(state):
        state.claims[1].remove(KEY)
        state.seen.append(len(state.mine))

    def ended(state):
        # A claim that was made before, and of which its process knows, is over.
        holder = state.claims[1].states(KEY, 6.0).claimants[0]
        return holder == 0 if state.seen == [1] else holder in (0, state.claims[0].number)

    explore(two_processes, [claim_key(0), remove], ended)


# ── claims in a store ────────────────────────────────────────────────────────────────────────────────────────

NAME = b"lookupcache:1:x:{00}"


def stores_state(count=2):
    state = SimpleNamespace(server=MemoryStore(), version=1, read=[], requests=0)
    # Where it is taken, the exploration may switch to another thread: a request takes time.
    state.source = threading.Lock()
    state.stores = [GuardedStore(state.server, metrics.Counters(), "A test", str, 60.0, 1.0) for _ in range(count)]
    for number, one in enumerate(state.stores):
        # Each is a process of its own, and its claims are renewed by nobody.
        one._name, one._process = bytes([number]) * 16, os.getpid()
        one._claims = mock.Mock()
    return state


def fetch(number):
    """Return what a process does for a key: find its value in the store, or claim the key, request it and store it."""

    def run(state):
        store = state.stores[number]
        claimed = store.claim([NAME])
        if claimed.reading.entries[0] is not None:
            store.release([NAME] if claimed.is_claimed[0] else [], claimed.token)
            state.read.append(claimed.reading.entries[0])
        elif claimed.to_request[0]:
            with state.source:
                value = b"%d" % state.version
                state.requests += 1
            store.put([NAME], [value], [60.0], claimed.token)
            state.read.append(value)

    return run


@pytest.mark.extended
def test_one_process_requests_a_key_of_a_store():
    explore(stores_state, [fetch(0), fetch(1)],
            lambda state: (state.requests, set(state.read), state.server.claims) == (1, {b"1"}, {}))  # fmt: skip


@pytest.mark.extended
def test_no_value_from_before_an_invalidation_stays_in_a_store():
    def change(state):
        with state.source:
            state.version = 2
        assert state.stores[2].invalidate([NAME])

    def is_new(state):
        [found] = state.server.get([NAME]).entries
        return found in (None, b"2") and state.server.claims == {}

    explore(lambda: stores_state(3), [fetch(0), change], is_new)
    explore(lambda: stores_state(3), [fetch(0), fetch(1), change], is_new, 20)


class Elapsed:
    """A condition of which every wait ends by its timeout at once: others may take the lock meanwhile."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def wait_for(self, predicate: Any, timeout: float) -> Any:
        self.lock.release()
        self.lock.acquire()
        return predicate()

    def notify_all(self) -> None:
        """Nobody waits for long."""


@pytest.mark.extended
def test_a_claim_that_is_held_is_renewed(monkeypatch):
    """A thread that finds no claims ends, and a claim that is added at the same time gets another."""

    def setup():
        state = SimpleNamespace(renewed=[], threads=[], now=0.0)

        def monotonic():
            state.now += 1.0
            return state.now

        monkeypatch.setattr(held_claims, "time", SimpleNamespace(monotonic=monotonic))
        without_threads(monkeypatch, state)
        state.claims = held_claims.HeldClaims(state.renewed.extend, 8.0, seconds=0.0)
        state.claims.add([b"a"], b"t")
        return state

    def is_renewed(state):
        # The claim "b" was renewed until its time was over, or a second thread is to renew it.
        return b"b" in state.renewed or len(state.threads) == 2

    explore(
        setup,
        [lambda state: state.threads[0](), lambda state: state.claims.remove([b"a"], b"t"),
         lambda state: state.claims.add([b"b"], b"t")],
        is_renewed,
    )  # fmt: skip


# ── the writer of a store, and the queue of the cluster's rate ──────────────────────────────────────────────


def without_threads(monkeypatch, state):
    """Let threads in the background be kept in ``state.threads`` instead, and their conditions not wait."""

    def thread(target, **_):
        return SimpleNamespace(start=lambda: state.threads.append(target))

    threads = SimpleNamespace(Thread=thread, Condition=Elapsed, RLock=threading.RLock)
    monkeypatch.setattr(background, "threading", threads)


def run_thread(state):
    """Be the thread that was started first, until it ends."""
    if state.threads:
        state.threads.pop(0)()


def drain(state):
    """Run what threads are left to do, after the exploration; a thread that was not started leaves it undone."""
    while state.threads:
        state.threads.pop(0)()


def test_a_writer_writes_each_entry_once_whoever_adds_and_closes(monkeypatch):
    def setup():
        state = SimpleNamespace(threads=[], written=[])
        without_threads(monkeypatch, state)
        state.writer = writer.Writer()
        add(b"a")(state)
        return state

    def add(name):
        return lambda state: state.writer.add([name], 1, lambda: state.written.append(name))

    def is_written(state):
        drain(state)
        undone = [state.writer.has([name]) for name in (b"a", b"b", b"c")]
        return sorted(state.written) == [b"a", b"b", b"c"] and undone == [False] * 3 and state.writer._nbytes == 0

    explore(setup, [run_thread, add(b"b"), add(b"c"), lambda state: state.writer.close()], is_written)


@pytest.mark.extended
def test_a_waiter_for_a_permit_is_served_when_the_thread_ends(monkeypatch):
    def setup():
        state = SimpleNamespace(threads=[], futures=[])
        without_threads(monkeypatch, state)

        def serve(waiting):
            cluster_rate._grant(waiting, [0.0] * len(waiting), 0.0)

        state.queue = cluster_rate._Queue(serve, "a queue")
        wait(state)
        return state

    def wait(state):
        state.futures.append(state.queue.add(10.0))

    def are_served(state):
        drain(state)
        return all(one.done() and one.result().is_granted for one in state.futures)

    explore(setup, [run_thread, wait], are_served, 30)
    explore(setup, [run_thread, wait, wait, lambda state: state.queue.close(1.0)], are_served)


# ── coroutines ───────────────────────────────────────────────────────────────────────────────────────────────


def async_state():
    state = SimpleNamespace(calls=[], got=[])

    @cached
    async def function(key):
        state.calls.append(key)
        await asyncio.sleep(0)
        return key * 10

    state.function = function
    return state


def call_async(key):
    async def run(state):
        state.got.append(await state.function(key))

    return run


@pytest.mark.extended
def test_a_cancelled_caller_leaves_the_others_their_value():
    """Each caller begins, and one of two for the same key is cancelled, after any number of turns of the loop.

    Without frontrun: it takes a task that a task starts for that task, and reports a deadlock that there is not.
    """

    async def turns(count):
        for _ in range(count):
            await asyncio.sleep(0)

    async def call_after(state, key, count):
        await turns(count)
        await call_async(key)(state)

    async def cancel_after(state, begin, count):
        await turns(begin)
        task = asyncio.ensure_future(state.function(1))
        await turns(count)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def every_order():
        for first, begin, count, other in itertools.product(range(5), range(5), range(5), range(2)):
            state = async_state()
            callers = [call_after(state, 1, first), cancel_after(state, begin, count), call_after(state, 2, other)]
            await asyncio.wait_for(asyncio.gather(*callers), LIMIT)
            assert (sorted(state.got), set(state.calls)) == ([10, 20], {1, 2}), (first, begin, count, other)
            assert len(state.calls) <= 3
            ORDERS[0] += 1

    asyncio.run(every_order())
