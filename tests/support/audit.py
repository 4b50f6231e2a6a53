"""Checks of what must hold in every cache, lookup and thread, whatever a test does with them.

`watching` wraps the caches and lookups that are made while a test runs. They are audited after some of their
operations (the 1st, 4th, 16th, … of each object, so that a cache that is used often costs little), and once more at the
end of the test. The parts of a cache are compared with each other, never with what the code under test says of itself:
the weight with the sum of the entries' weights, the index with the entries that it lists, and so on.

Each ``audit_…`` function returns one text per violation, and nothing where all holds.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import socket
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from audit_host import audit_claims, audit_host

from lookupcache.cache import ColumnCache, RowCache
from lookupcache.cache.appended_rows import AppendedRows
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.hash_index import HashIndex
from lookupcache.cache.key_queues import S3FifoDict
from lookupcache.cache.keys import KeyBatch
from lookupcache.cache.limits import Limits
from lookupcache.cache.policy import Lru, Policy
from lookupcache.cache.policy_queues import EvictionQueue, Ghost, S3Fifo
from lookupcache.decorator.async_lookup import AsyncLookup
from lookupcache.decorator.sync_lookup import SyncLookup
from lookupcache.executor.call_group import Executor
from lookupcache.executor.thread_slots import ThreadSlots
from lookupcache.executor.threads import Threads
from lookupcache.flow.held_claims import HeldClaims
from lookupcache.host import HostCache
from lookupcache.testing.join import LocalJoin
from lookupcache.worker.dead_letters import DeadLetters
from lookupcache.worker.full_cache import FullCacheLookup
from lookupcache.worker.partial_cache import PartialCacheLookup, PendingKeys, count_non_null
from lookupcache.worker.runner import Runner
from lookupcache.worker.source import Source

GRACE_SECONDS = 5.0
"""How long threads and calls may take to end after what they work for has been closed."""

_WAITING = ("lookupcache.executor.thread_slots", "threading")
"""The modules in which a thread of a pool waits for its next job."""

Violations = Iterator[str]


# ── a cache of columns ───────────────────────────────────────────────────────────────────────────────────


def audit_columns(cache: ColumnCache) -> list[str]:
    """Return what is wrong with a `ColumnCache`."""
    table = cache._table
    found = list(_numbers(table))
    if found:
        return found  # What follows goes by these numbers.
    listed = table.numbers.listed_entries()
    parts = (_key_lookup(table, listed), _rows(table, listed), _in_flight(table), _expiry(table, cache.limits))
    for part in (*parts, _column_lengths(table), _bytes(table), _store(table.rows._store, "rows")):
        found += part
    return found + audit_policy(table.policy, listed)


def audit_limits(cache: ColumnCache) -> list[str]:
    """Return which limits of a `ColumnCache` are exceeded; they must hold after `enforce_limits`."""
    limits, found = cache.limits, []
    if cache.rows > limits.rows:
        found.append(f"{cache.rows} rows are cached, and the limit is {limits.rows}")
    if len(cache) and cache.nbytes > limits.bytes:
        found.append(f"{cache.nbytes} bytes are used, and the limit is {limits.bytes}")
    if not limits.remembers and not cache._leases and len(cache):
        found.append("entries are left, though nothing is to be cached")
    return found


def _numbers(table: Any) -> Violations:
    """Each number below ``size`` is free, listed or unlisted; leases name no free one."""
    numbers = table.numbers
    given = np.concatenate([numbers._free, numbers.unlisted])
    if len(np.unique(given)) < len(given):
        yield "an entry number is free or unlisted twice"
    if given.size and not 0 <= given.min() <= given.max() < numbers.size:
        yield "a free or unlisted number was never handed out"
        return
    live = np.concatenate([numbers.listed_entries(), numbers.unlisted, [-1]])
    for lease in numbers.leases:
        if not np.isin(lease.entries, live).all():
            yield "a lease has the number of an entry that is free"


def _key_lookup(table: Any, listed: Any) -> Violations:
    keys = table.keys
    yield from audit_index(keys.index, listed, "entries")
    if len(keys) != len(listed):
        yield f"the index has {len(keys)} keys, and {len(listed)} entries are listed"
    if keys._keys is None:
        return
    yield from _store(keys._keys, "keys")
    rows = keys._key_row[np.concatenate([listed, table.numbers.unlisted])]
    if rows.size and not 0 <= rows.min() <= rows.max() < len(keys._keys):
        yield "an entry has no stored key"
    elif len(np.unique(rows)) < len(rows):
        yield "two entries have one stored key"
    else:
        columns = keys._keys.gather(keys._key_row[listed].astype(np.int64))
        if len(listed) and len(KeyBatch.of(columns, table._key_types).distinct().first) < len(listed):
            yield "two listed entries have equal keys"
    if keys._key_row[-1] != -1:
        yield "entry -1 has a key"


def audit_index(index: HashIndex, listed: Any, what: str) -> Violations:
    """An index finds exactly these entries, each by its word."""
    slots = index.slots
    if not np.array_equal(np.sort(slots[slots >= 0]), np.sort(listed)):
        yield f"the index does not have the listed {what}"
    elif (index.find(index.words[listed]) != listed).any():
        yield f"the index does not find {what} by their words"
    if index._live != np.count_nonzero(slots >= 0) or index._used != np.count_nonzero(slots != -1):
        yield "the index has lost count of its slots"


def _rows(table: Any, listed: Any) -> Violations:
    rows, unlisted = table.rows, table.numbers.unlisted
    live = np.concatenate([listed, unlisted])
    counts, starts = rows._count[live].astype(np.int64), rows._start[live].astype(np.int64)
    if (rows._count[-1], rows._start[-1]) != (0, -1):
        yield "entry -1 has rows"
    if (counts < 0).any() or (starts[counts > 0] < 0).any() or (starts + counts > len(rows)).any():
        yield "an entry has rows that are not stored"
    order = np.argsort(starts[counts > 0])
    ends = (starts + counts)[counts > 0][order]
    if (starts[counts > 0][order][1:] < ends[:-1]).any():
        yield "two entries share a row"
    if counts.sum() + rows.dead != len(rows):
        yield f"{len(rows)} rows are stored, {counts.sum()} belong to entries and {rows.dead} are counted as dead"
    if rows.unique and (counts > 1).any():
        yield "an entry has several rows, and the cache says that none has"
    weight = int(np.maximum(rows._count[listed], 1).sum())
    if weight != table.weight:
        yield f"the entries weigh {weight}, and the cache says {table.weight}"


def _in_flight(table: Any) -> Violations:
    marks = table.in_flight._group
    if marks[-1]:
        yield "entry -1 is in flight"
    if np.count_nonzero(marks[:-1]) != table.in_flight.pending:
        yield f"{np.count_nonzero(marks[:-1])} entries are in flight, and {table.in_flight.pending} are counted"
    if marks[table.numbers._free].any():
        yield "a free entry is in flight"


def _expiry(table: Any, limits: Limits) -> Violations:
    expiry, live = table.expiry, np.concatenate([table.numbers.listed_entries(), table.numbers.unlisted])
    if not (math.isnan(expiry._written[-1]) and expiry._deadline[-1] == expiry._idle_deadline[-1] == math.inf):
        yield "entry -1 has a time"
    if not expiry.is_tracked:
        return
    # An idle entry's deadline is set to minus infinity; a deadline may be early, never late.
    seconds = np.where(table.rows._count[live] > 0, limits.write_seconds, limits.miss_seconds)
    written = np.isfinite(expiry._written[live])
    if (expiry._deadline[live][written] > expiry._written[live][written] + seconds[written]).any():
        yield "an entry's deadline is later than its age limit allows"


def _column_lengths(table: Any) -> Violations:
    rows = {len(table.rows._start), len(table.rows._count)}
    others = [len(column) for column in (table.in_flight._group, table.policy.used)]
    # The rows grow last: where memory is short, the other columns may already have more space.
    if len(rows) > 1 or not table.numbers.size < min(rows) <= min(others):
        yield f"the columns have space for {sorted({*rows, *others})} entries, and {table.numbers.size} are in use"


def _bytes(table: Any) -> Violations:
    """All large arrays count as used: a column or queue that were left out would make the limit of bytes a lie."""
    held = _held_bytes([table.numbers._free, table.keys, *table._columns])
    # Not counted: columns of one element that the limits do not need, and where each run of rows begins.
    spare = 32 + sum(8 * len(store._starts) for store in (table.rows._store, table.keys._keys) if store is not None)
    if not 0 <= held - table.nbytes <= spare:
        yield f"the parts hold {held} bytes, and the cache says {table.nbytes}"


def _held_bytes(subject: Any) -> int:
    """Return the bytes of all arrays and Arrow batches that an object of the cache refers to."""
    if isinstance(subject, np.ndarray | pa.RecordBatch):
        return subject.nbytes
    if isinstance(subject, list | tuple):
        return sum(map(_held_bytes, subject))
    if not type(subject).__module__.startswith("lookupcache.cache."):
        return 0
    return sum(_held_bytes(value) for value in vars(subject).values())


def _store(store: AppendedRows, what: str) -> Violations:
    sizes = [run.num_rows for run in store.runs]
    if len(store.schema) and not np.array_equal(store._starts, np.cumsum([0, *sizes])):
        yield f"the stored {what} are not where their numbers say"


# ── eviction policies ────────────────────────────────────────────────────────────────────────────────────


def audit_policy(policy: Policy, listed: Any) -> list[str]:
    """Return what is wrong with a policy that is to list exactly these entries."""
    found = []
    known = np.flatnonzero(policy.used[:-1] >= 0)
    if not np.array_equal(known, np.sort(listed)):
        found.append("the policy does not have exactly the listed entries")
    if isinstance(policy, S3Fifo):
        return [*found, *_two_queues(policy, listed)]
    assert isinstance(policy, Lru), f"add a check of what {type(policy).__name__} stores to audit_policy"
    return [*found, *_least_recent(policy, known)]


def _least_recent(policy: Lru, known: Any) -> Violations:
    """The queue of the oldest entries is sorted, and all others were used later."""
    current = policy._oldest_used == policy.used.take(policy._oldest, mode="wrap")
    queued, times = policy._oldest[current], policy._oldest_used[current]
    if (np.diff(times) < 0).any():
        yield "the queue of the least recently used entries is not in order"
    others = policy.used[np.setdiff1d(known, queued)]
    if times.size and others.size and others.min() < times.max():
        yield "an entry outside of the queue was used before one in it"


def _two_queues(policy: S3Fifo, listed: Any) -> Violations:
    yield from _queues([policy._short, policy._long], listed, policy.positions)
    members = np.concatenate([policy._long.all(), policy._long._deferred])
    if not np.array_equal(np.sort(listed[policy._in_long[listed]]), np.sort(members)):
        yield "an entry is marked for the other queue than the one that it is in"
    yield from audit_ghost(policy._ghost)


def _queues(queues: list[EvictionQueue], listed: Any, place: Any) -> Violations:
    members = np.concatenate([part for queue in queues for part in (queue.all(), queue._deferred)])
    if not np.array_equal(np.sort(members), np.sort(listed)):
        yield "the eviction queues do not have exactly the listed entries"
    for queue in queues:
        slots = queue._slots[: queue._end]
        entries = np.flatnonzero(slots >= 0)
        if queue._live != len(entries) or not 0 <= queue.hand <= queue._end:
            yield "an eviction queue has lost count of its entries"
        if (place[slots[entries]] != entries).any() or (place[queue._deferred] != -1).any():
            yield "an entry is not at its position in the eviction queue"


def audit_ghost(ghost: Ghost) -> Violations:
    """The ghost queue's index finds exactly the positions that are in use."""
    used = np.flatnonzero(ghost._is_used).astype(np.int32)
    yield from audit_index(ghost._index, used, "evicted keys")
    if (ghost._index.words[used] != ghost._ring[used]).any():
        yield "an evicted key is not in its position of the ring"


# ── a cache of single keys ───────────────────────────────────────────────────────────────────────────────


def audit_rows(cache: RowCache) -> list[str]:
    """Return what is wrong with a `RowCache`, whose limits always hold."""
    entries, limits, found = list(cache.entries.items()), cache.limits, []
    kept = [entry for _, entry in entries]
    if cache.rows != sum(entry.weight for entry in kept):
        found.append(f"the entries weigh {sum(entry.weight for entry in kept)}, and the cache says {cache.rows}")
    if cache.nbytes != sum(entry.nbytes for entry in kept):
        found.append(f"the entries have {sum(entry.nbytes for entry in kept)} bytes, the cache says {cache.nbytes}")
    if cache.rows > limits.rows or cache.nbytes > limits.bytes:
        found.append(f"{cache.rows} rows and {cache.nbytes} bytes are more than the limits allow")
    if any(entry.weight < 1 for entry in kept):
        found.append("an entry weighs nothing")
    if any(entry.simple_until > min(entry.deadline, entry.refresh_at) for entry in kept):
        found.append("an entry may be used without a check after its deadline")
    if isinstance(cache.entries, S3FifoDict):
        found += _key_queues(cache.entries)
    return found


def _key_queues(entries: S3FifoDict) -> Violations:
    queued = [*entries._short, *entries._long, *entries._newest]
    if len(queued) != len(entries) or not set(queued) == set(entries) == set(entries._marks):
        yield "a key is in no queue or in several, or has no mark"


# ── ages ─────────────────────────────────────────────────────────────────────────────────────────────────


def audit_found(cache: ColumnCache, lease: Lease, now: float) -> list[str]:
    """Return what is wrong with the entries that `ColumnCache.find` has just returned: none may be too old."""
    limits, table = cache.limits, cache._table
    if not table.expiry.is_tracked:
        return []
    entries = np.unique(lease.entries[lease.entries >= 0])
    entries = entries[table.in_flight.of(entries) <= 0]
    ages = now - table.expiry._written[entries]
    longest = np.where(table.rows._count[entries] > 0, limits.write_seconds, limits.miss_seconds)
    again = np.isin(entries, lease.entries[lease.expired])
    found = []
    if (ages[~again] > longest[~again]).any():
        found.append(f"an entry of age {ages[~again].max():g} s was found, which is above its limit")
    if (ages[again] > limits.stale_seconds).any():
        found.append("an entry that is too old to stand in for an error was found")
    return found


def audit_entry(cache: RowCache, entry: Any, now: float) -> list[str]:
    """Return what is wrong with an entry that `RowCache.find` has just returned, at this time."""
    return ["an expired entry was found"] if now > entry.deadline else []


def audit_put(cache: RowCache, key: Any, now: float) -> list[str]:
    """Return what is wrong with the times of an entry that was just added."""
    entry, limits = cache.entries.get(key), cache.limits
    if entry is None:
        return []
    known_miss = entry.value is None or entry.value == [] if isinstance(entry.value, list | None) else False
    longest = limits.miss_seconds if known_miss else limits.write_seconds
    late = entry.deadline > now + longest or entry.stale_until > now + limits.stale_seconds
    return ["an entry's deadline is later than its age limit allows"] if late else []


# ── lookups ──────────────────────────────────────────────────────────────────────────────────────────────


def audit_lookup(lookup: PartialCacheLookup, *, is_counted: bool = True) -> list[str]:
    """Return what is wrong with the books of a lookup: who leases entries, and who waits for what.

    ``is_counted`` says that a batch was closed just now, so that all entries that were removed are counted.
    """
    found = []
    owners = [pending.lease for pending in lookup._open] + [request.lease for request in lookup._requests.values()]
    owners += [awaited.lease for awaited in getattr(lookup, "_awaited", {}).values()]
    if not isinstance(lookup, FullCacheLookup) and Counter(map(id, owners)) != Counter(map(id, lookup.cache._leases)):
        found.append(f"{len(lookup.cache._leases)} leases are held, and {len(owners)} are in use")
    awaited = set(lookup._requests) | set(getattr(lookup, "_awaited", {}))
    if any(not pending.waits <= awaited for pending in lookup._open):
        found.append("a batch waits for a call that nobody makes")
    counters = lookup.counters
    if min(counters.values(), default=0) < 0:
        found.append(f"a count is negative: {dict(counters)}")
    removed = (counters["evictions"], counters["expirations"])
    if is_counted and not lookup._open and removed != (lookup.cache.evictions, lookup.cache.expirations):
        cached = (lookup.cache.evictions, lookup.cache.expirations)
        found.append(f"evictions and expirations are counted as {removed}, and were {cached}")
    return found


def audit_opened(before: Counter[str], lookup: PartialCacheLookup, keys: KeyBatch) -> list[str]:
    """Return which counts do not add up for a batch that was just opened."""
    rows, distinct, misses, hits, refreshes = (
        lookup.counters[name] - before[name] for name in ("rows", "keys", "misses", "hits", "refreshes")
    )
    keyed, different = count_non_null(keys), len(keys.distinct().first)
    found = []
    if (rows, hits + misses) != (len(keys), keyed):
        found.append(f"{len(keys)} rows, {keyed} with a key, are counted as {rows}: {hits} hits, {misses} misses")
    if not 0 <= misses <= different or not 0 <= distinct <= different:
        found.append(f"{misses} misses and {distinct} keys are more than the {different} keys of the batch")
    if refreshes > hits:
        found.append(f"{refreshes} refreshes are more than the {hits} hits")
    return found


# ── what is open after the end of a run, or of what it belongs to ────────────────────────────────────────


def audit_ended_run(runner: Runner, opened: list[PendingKeys]) -> list[str]:
    """Return what a run has left open that has just ended, failed or been closed."""
    lookup = getattr(runner.lookup, "_lookup", runner.lookup)
    found = []
    if any(pending in opened for pending in lookup._open):
        found.append("a run has ended, and a batch of it is open")
    awaited = {number for pending in lookup._open for number in pending.waits}
    if any(not one.background and one.number not in awaited for one in lookup._requests.values()):
        found.append("a run has ended, and a call is under way that no batch waits for")
    if isinstance(runner.letters, DeadLetters) and runner.letters._files:
        found.append("a run has ended, and its file of dead letters is open")
    return found


def audit_closed(owner: Any) -> list[str]:
    """Return which executors, threads, claims and caches are open of an object that has just been closed."""
    name = type(owner).__name__
    return [f"{name} was closed, and its {type(one).__name__} is open" for one in _parts_of(owner) if _is_open(one)]


def _parts_of(owner: Any) -> list[Any]:
    """Return the parts of an object that have to be closed, wherever it refers to them."""
    found, seen, rest = [], {id(owner)}, list(vars(owner).values())
    while rest:
        one = rest.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | tuple | set):
            rest += one.values() if isinstance(one, dict) else one
        elif type(one).__module__.startswith("lookupcache."):
            if isinstance(one, Executor | ThreadSlots | HeldClaims | HostCache):
                found.append(one)
            rest += getattr(one, "__dict__", {}).values()
    return found


def _is_open(part: Any) -> bool:
    if isinstance(part, Threads):
        return _is_open(part._slots)
    if isinstance(part, ThreadSlots):
        # Threads that wait for jobs for some seconds only, as those of a decorated function, end on their own.
        is_waiting = part._alive > 0 and part._idle_seconds > 3600 and not part._closed
        return bool(part._running or part._queue) or is_waiting
    if isinstance(part, HeldClaims):
        background = part._background
        return background.is_own and background.has_thread and not background._is_closing
    if isinstance(part, HostCache):
        return not part.is_lost
    return bool(part._active)


# ── threads and files ────────────────────────────────────────────────────────────────────────────────────


def threads() -> set[threading.Thread]:
    """Return the living threads that lookupcache has started, but for the event loop, which lives on."""
    alive = {thread for thread in threading.enumerate() if thread.name.startswith("lookupcache")}
    return {thread for thread in alive if thread.name != "lookupcache-loop"}


def is_idle(thread: threading.Thread) -> bool:
    """Return whether a thread waits for its next job: pools keep such threads for a while."""
    is_enabled = gc.isenabled()
    # The interpreter holds a lock meanwhile: a callback of the garbage collector would let another thread wait for it.
    gc.disable()
    try:
        frame = sys._current_frames().get(thread.ident or 0)
    finally:
        if is_enabled:
            gc.enable()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(_WAITING):
            return False
        frame = frame.f_back
    return True


def files() -> Counter[str]:
    """Return the files and sockets that this process has open."""
    found: Counter[str] = Counter()
    for path in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            target = os.readlink(path)
            if target.startswith(("/", "socket:")):
                found[target] += 1
    return found


def spark_sockets() -> set[str]:
    """Return the connections to and from Spark's JVM.

    Both ends open them when they free an object of an earlier test, or when one of its tasks tells its metrics late.
    """
    pyspark = sys.modules.get("pyspark.core.context")
    gateway = None if pyspark is None else pyspark.SparkContext._gateway
    if pyspark is None or gateway is None:
        return set()
    found, port, callbacks = set(), gateway.gateway_parameters.port, gateway.get_callback_server()
    metrics = getattr(pyspark.SparkContext._active_spark_context, "_accumulatorServer", None)
    own = [] if callbacks is None else [(callbacks.get_listening_port(),)]
    own += [] if metrics is None else [metrics.server_address[1:2]]
    for path in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            target = os.readlink(path)
            if target.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(path.name))) as connection:
                    if connection.getpeername()[1:2] == (port,) or connection.getsockname()[1:2] in own:
                        found.add(target)
    return found | _lost_spark_sockets()


def _lost_spark_sockets() -> set[str]:
    """Return the connections to Spark's JVM that it has closed: Py4J notices that when it uses them again."""
    found = set()
    for one in gc.get_objects():
        if type(one).__name__ in ("ClientServerConnection", "GatewayConnection"):
            with suppress(OSError, AttributeError):
                found.add(os.readlink(f"/proc/self/fd/{one.socket.fileno()}"))
    return found


def worker_loop() -> Any:
    """Return the worker's event loop, or None if there is none yet."""
    from lookupcache.executor import call_group

    if not getattr(call_group, "_loop_of", None) or not call_group._loop_of.cache_info().currsize:
        return None
    return call_group.event_loop()


def tasks() -> set[Any]:
    """Return the tasks of the worker's event loop that have not ended."""
    loop = worker_loop()
    return set() if loop is None else asyncio.all_tasks(loop)


def loop_files() -> set[str]:
    """Return the sockets of the worker's event loop, which it has as long as the process lives."""
    loop = worker_loop()
    if loop is None:
        return set()
    return {os.readlink(f"/proc/self/fd/{end.fileno()}") for end in (loop._ssock, loop._csock)}


# ── watching ─────────────────────────────────────────────────────────────────────────────────────────────


class Auditor:
    """Audits what is made while a test runs, and collects what is wrong."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.audits = 0
        self.caches: weakref.WeakSet[ColumnCache | RowCache] = weakref.WeakSet()
        self.lookups: weakref.WeakSet[PartialCacheLookup] = weakref.WeakSet()
        self.executors: weakref.WeakSet[Executor] = weakref.WeakSet()
        self.claims: weakref.WeakSet[HeldClaims] = weakref.WeakSet()
        self.hosts: weakref.WeakSet[HostCache] = weakref.WeakSet()
        self.opened: weakref.WeakKeyDictionary[Runner, list[PendingKeys]] = weakref.WeakKeyDictionary()
        self._used: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._threads, self._files, self._tasks = threads(), files(), tasks()

    def note(self, audit: Callable[..., Any], *subjects: Any) -> None:
        """Audit, and keep what is wrong."""
        try:
            self.audits += 1
            self.violations += [text for text in audit(*subjects) if text not in self.violations]
        except RecursionError:
            pass  # A test that recurses as deep as Python allows leaves no space for an audit.
        except Exception as error:
            # Not raised here, in the middle of the code under test.
            self.violations.append(f"an audit ended with {error!r}")

    def is_due(self, subject: Any) -> bool:
        """Count an operation of a cache or lookup; return whether it is the 1st, 4th, 16th, …"""
        count = self._used[subject] = self._used.get(subject, 0) + 1
        return count & (count - 1) == 0 and count.bit_length() % 2 == 1

    def finish(self) -> list[str]:
        """Audit all that is alive, close what may live longer than a test, and return all violations."""
        for lookup in list(self.lookups):
            # A refresh that was answered after the last batch may have removed an entry.
            self.note(partial(audit_lookup, is_counted=False), lookup)
        # No variable may keep what would be freed, with its sockets, now that it is closed.
        deque(map(Executor.close, self.executors), maxlen=0)
        deque(map(HeldClaims.close, self.claims), maxlen=0)
        for host in list(self.hosts):
            self.note(audit_host, host)
        for cache in list(self.caches):
            self.note(_audit_until_stable, audit_columns if isinstance(cache, ColumnCache) else audit_rows, cache)
        self.note(self._left_threads)
        self.note(self._left_tasks)
        self.note(self._left_files)
        return self.violations

    def _left_threads(self) -> list[str]:
        left = _until_empty(lambda: [thread for thread in threads() - self._threads if not is_idle(thread)])
        return [f"a thread is left: {thread.name}" for thread in left]

    def _left_tasks(self) -> list[str]:
        left = _until_empty(lambda: list(tasks() - self._tasks))
        return [f"a task is left: {task.get_coro()!r}" for task in left]

    def _left_files(self) -> list[str]:
        def look() -> list[str]:
            left = set(files() - self._files)
            if left:
                gc.collect()
                left = set(files() - self._files) - loop_files() - spark_sockets()
            return sorted(left)

        left = _until_empty(look)
        return [f"a file or socket is left open: {path}" for path in left if ".so" not in path]


def _audit_until_stable(audit: Callable[[Any], list[str]], subject: Any) -> list[str]:
    """Audit what a background thread may still be changing: only a violation that stays is one."""
    return _until_empty(lambda: audit(subject), seconds=0.5)


def _until_empty(look: Callable[[], list[Any]], seconds: float = GRACE_SECONDS) -> list[Any]:
    ends, pause = time.monotonic() + seconds, threading.Event()
    while (found := look()) and time.monotonic() < ends:
        pause.wait(0.005)
    return found


@contextmanager
def watching() -> Iterator[Auditor]:
    """Watch the caches, lookups and executors that are made in this block; `Auditor.finish` is up to the caller."""
    auditor = Auditor()
    originals = {(owner, name): owner.__dict__[name] for owner, name in _HOOKS}
    try:
        for (owner, name), hook in _HOOKS.items():
            setattr(owner, name, hook(auditor, originals[owner, name]))
        yield auditor
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)


def _after(look: Callable[..., None]) -> Callable[[Auditor, Any], Any]:
    """Return a hook that looks after each call of a method, with what it returned and its arguments."""

    def hook(auditor: Auditor, original: Any) -> Any:
        @wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            look(auditor, self, result, *args)
            return result

        return method

    return hook


def _track_new(group: str) -> Callable[[Auditor, Any], Any]:
    return _after(lambda auditor, made, *_: getattr(auditor, group).add(made))


def _found_columns(auditor: Auditor, cache: ColumnCache, lease: Lease, _: KeyBatch, now: float) -> None:
    auditor.note(audit_found, cache, lease, now)


def _limits_enforced(auditor: Auditor, cache: ColumnCache, *_: Any) -> None:
    if auditor.is_due(cache):
        auditor.note(audit_limits, cache)
        auditor.note(audit_columns, cache)


def _found_row(auditor: Auditor, cache: RowCache, entry: Any, _: Any, now: float) -> None:
    if entry is not None:
        auditor.note(audit_entry, cache, entry, now)


def _put_row(auditor: Auditor, cache: RowCache, _: Any, key: Any, value: Any, now: float) -> None:
    if auditor.is_due(cache):
        auditor.note(audit_put, cache, key, now)
        auditor.note(audit_rows, cache)


def _closed_batch(auditor: Auditor, lookup: PartialCacheLookup, *_: Any) -> None:
    if auditor.is_due(lookup):
        auditor.note(audit_lookup, lookup)


def _opened_batch(auditor: Auditor, runner: Runner, one: Any, *_: Any) -> None:
    if one.pending is not None:
        auditor.opened.setdefault(runner, []).append(one.pending)


def _track_open(auditor: Auditor, original: Any) -> Any:
    def open(self: PartialCacheLookup, keys: KeyBatch) -> PendingKeys:
        before = Counter(self.counters)
        pending = original(self, keys)
        auditor.note(audit_opened, before, self, keys)
        return pending

    return open


def _check_ended(auditor: Auditor, original: Any) -> Any:
    def run(self: Runner, *args: Any) -> Any:
        process = os.getpid()
        try:
            yield from original(self, *args)
        finally:
            # Nothing of this may keep a batch longer than the run.
            opened = auditor.opened.pop(self, [])
            if process == os.getpid():
                auditor.note(audit_ended_run, self, opened)

    return run


def _check_closed(auditor: Auditor, original: Any) -> Any:
    def close(self: Any) -> Any:
        closed = original(self)
        if asyncio.iscoroutine(closed):
            return _when_closed(auditor, self, closed)
        auditor.note(audit_closed, self)
        return closed

    return close


def _check_closing(auditor: Auditor, original: Any) -> Any:
    def close(self: HostCache) -> None:
        auditor.note(audit_host, self)
        number, infos = self._claims.number, self._claims._infos
        original(self)
        auditor.note(audit_claims, number, infos)

    return close


async def _when_closed(auditor: Auditor, owner: Any, closing: Any) -> None:
    await closing
    auditor.note(audit_closed, owner)


_HOOKS: dict[tuple[type, str], Callable[[Auditor, Any], Any]] = {
    (ColumnCache, "__init__"): _track_new("caches"),
    (RowCache, "__init__"): _track_new("caches"),
    (PartialCacheLookup, "__init__"): _track_new("lookups"),
    (Executor, "__init__"): _track_new("executors"),
    (HeldClaims, "__init__"): _track_new("claims"),
    (HostCache, "__init__"): _track_new("hosts"),
    (HostCache, "close"): _check_closing,
    (Runner, "_open"): _after(_opened_batch),
    (Runner, "run"): _check_ended,
    **{(owner, "close"): _check_closed for owner in (LocalJoin, Source, SyncLookup, AsyncLookup)},
    (ColumnCache, "find"): _after(_found_columns),
    (ColumnCache, "enforce_limits"): _after(_limits_enforced),
    (RowCache, "find"): _after(_found_row),
    (RowCache, "put"): _after(_put_row),
    (PartialCacheLookup, "open"): _track_open,
    (FullCacheLookup, "open"): _track_open,
    (PartialCacheLookup, "close"): _after(_closed_batch),
    (PartialCacheLookup, "abandon"): _after(_closed_batch),
}
