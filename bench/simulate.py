"""A cluster that starts with cold caches, in virtual time: `python -m bench.simulate --hosts 1000`.

Each host reads every key once, in its own order, which is that of the first occurrences in rows drawn `uniform` or
`zipf`. Its workers take batches of keys in turns. A batch goes through the library's own code: `fetch`, `StoreCall`,
`RowStore`, the guard of a store. The source's calls take a while, and a node of the store serves one command after the
other. A node takes as long for a command as Valkey has taken here (`--measure-node` measures it).

Nothing depends on the machine but the run's own duration: the same arguments print the same figures. What a host does
inside is not simulated: its workers share what they find, and none waits for another.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.host import DARK
from lookupcache.cache.keys import Positions
from lookupcache.config import LookupConfig
from lookupcache.flow.flow import fetch
from lookupcache.flow.held_claims import HeldClaims
from lookupcache.metrics import Counters
from lookupcache.resilience.runtime import Runtime, awaitable
from lookupcache.store import guard, row_store
from lookupcache.store.answer_time import AnswerTime
from lookupcache.store.contract import CALL_BYTES, CLAIMED, OTHERS, THERE, Reading
from lookupcache.store.guard import GuardedStore
from lookupcache.store.row_store import Codec, RowStore
from lookupcache.store.rows import StoredRows
from lookupcache.store.store_call import StoreCall

# The event loop and the store in memory are those of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from memory_store import MemoryStore
from simulation import SimulatedLoop

ROUND_TRIP_SECONDS = 0.0005


@dataclass(frozen=True)
class NodeCost:
    """How many seconds a node takes for a command, and for each name in it."""

    command: float
    get: float
    claim: float
    put: float


ONE_SERVER = NodeCost(command=15e-6, get=0.8e-6, claim=3.5e-6, put=5.5e-6)
IN_CLUSTER = NodeCost(command=16e-6, get=3.4e-6, claim=6.3e-6, put=8.7e-6)
"""About what `measure_node` returns; in a cluster, a script reads and writes name by name."""


@dataclass(frozen=True)
class World:
    """What is simulated."""

    hosts: int
    workers: int
    keys: int
    batch: int
    draw: str
    call_seconds: float
    nodes: int
    has_store: bool = True
    store_timeout: float | None = None
    """How long an answer of the store may take; None for what the options allow by default."""
    lookup_timeout: float = 180.0
    cost: NodeCost = ONE_SERVER


@dataclass
class Load:
    """What nodes have to do: until when, how many seconds in all, and how many commands, and names by second."""

    free_at: float = 0.0
    busy: float = 0.0
    commands: int = 0
    names: Counter[int] = field(default_factory=Counter)
    delay: float = 0.0

    def take_delay(self) -> float:
        """Return how long the last commands took, once."""
        delay, self.delay = self.delay, 0.0
        return delay


class Nodes(MemoryStore):
    """A store of nodes, each of which has its part of the names, and serves one command after the other.

    A command that takes longer than the timeout fails for its caller, but is served.
    """

    def __init__(self, world: World, loop: SimulatedLoop) -> None:
        super().__init__()
        self.world, self.loop, self.load = world, loop, Load()
        self.answer_time = AnswerTime(0.0, 0.0, loop.time)

    def connect(self, url: str, timeout: float, most: float) -> Nodes:
        """Return the same nodes, as one worker sees them."""
        own = copy.copy(self)
        own.answer_time = AnswerTime(timeout, most if self.world.store_timeout is None else timeout, self.loop.time)
        return own

    @property
    def clock(self) -> float:
        return self.loop.now

    @clock.setter
    def clock(self, value: float) -> None:
        """Time is the simulation's."""

    def get(self, names: Sequence[bytes]) -> Reading:
        """Return the entries of names."""
        self._serve(len(names), self.world.cost.get)
        return super().get(names)

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names that are free, by a script."""
        return self._claim(names, token, seconds, only_missing=False)

    def claim_missing(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names that are free and have no entry, by a script."""
        return self._claim(names, token, seconds, only_missing=True)

    def _claim(
        self, names: Sequence[bytes], token: bytes, seconds: float, *, only_missing: bool
    ) -> tuple[list[int], Reading]:
        entries, states = [self._live(self.entries, name) for name in names], []
        for name, entry in zip(names, entries, strict=True):
            if only_missing and entry is not None:
                states.append(THERE)
            elif self._live(self.claims, name) is not None:
                states.append(OTHERS)
            else:
                self.claims[name] = (token, self.clock + seconds)
                states.append(CLAIMED)
        self._serve(len(names), self.world.cost.claim)
        return states, Reading(self.clock, entries)

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        """Write entries, and end their claims."""
        written = super().put(names, entries, seconds, token)
        self._serve(len(names), self.world.cost.put)
        return written

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        """End claims, by a script."""
        super().release(names, token)
        self._serve(len(names), self.world.cost.get)

    def _serve(self, names: int, seconds_per_name: float) -> None:
        """Let the nodes be busy, and note how long the caller waits; raises TimeoutError where that is too long."""
        # The names of a command are spread over all nodes, which serve their parts at the same time.
        seconds = self.world.cost.command + names * seconds_per_name / self.world.nodes
        now, load, most = self.loop.now, self.load, self.answer_time.limit()
        load.free_at = max(load.free_at, now) + seconds
        load.busy += seconds
        load.commands += 1
        load.names[int(now)] += names
        delay = load.free_at - now + ROUND_TRIP_SECONDS
        load.delay = min(delay, most)
        if delay > most:
            self.answer_time.ran_out()
            raise TimeoutError
        self.answer_time.answered(delay)


class Call(StoreCall[None]):
    """The keys of a batch in the store, as a worker looks for them."""

    is_source_asked = False
    is_put_at_once = True
    reads_first = True

    def publish(self, positions: Positions, new: None) -> None:
        """Store what was requested with a claim."""
        self.put(positions, None, np.ones(len(positions), np.int64), np.ones(len(positions), np.bool_))


def read_entries(entries: Sequence[Any], keys: Any) -> StoredRows:
    """Return what entries say, each the time when it was written."""
    there = np.array([number for number, entry in enumerate(entries) if entry is not None], np.int64)
    written = np.array([entries[number] for number in there.tolist()], np.float64)
    return StoredRows(there, None, np.ones(len(there), np.int64), written)


CODEC = Codec(
    "keys", None, lambda identity, keys: keys.tolist(), read_entries,
    lambda keys, rows, counts, written: [written] * len(keys),  # type: ignore[list-item]
    lambda rows, counts, positions: rows,
)  # fmt: skip


@dataclass
class Seen:
    """What has happened: calls and keys at the source by second, batches with their times and keys, and failures."""

    calls: Counter[int] = field(default_factory=Counter)
    requested: int = 0
    batches: list[tuple[float, float, int]] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


def order_of(world: World, host: int) -> np.ndarray[Any, Any]:
    """Return all keys in the order of their first occurrence in a host's rows: that of exponential times, by rate."""
    times = np.random.default_rng(host).exponential(size=world.keys)
    if world.draw == "zipf":
        times *= np.arange(1, world.keys + 1)
    return np.argsort(times)


async def run_worker(
    batches: Iterator[Any], world: World, seen: Seen, runtime: Runtime, clock: Callable[[], float]
) -> None:
    """Look up one batch of keys after the other."""

    async def request(positions: Positions, until: float) -> None:
        seen.calls[int(clock())] += 1
        seen.requested += len(positions)
        await asyncio.sleep(world.call_seconds)

    if world.has_store:
        limit = {} if world.store_timeout is None else {"store_timeout": world.store_timeout}
        config = LookupConfig(cache="LRU", store="redis://store", timeout=world.lookup_timeout, **limit)
        store = RowStore(config, CODEC, lambda: "simulated", "", {}, seen.counters, clock)
    for keys in batches:
        began = clock()
        if not world.has_store:
            await request(keys, math.inf)
        else:
            call = Call(store, keys, waits_for_refreshes=False)
            await fetch(call, request, runtime, seen.counters, world.lookup_timeout)
        seen.batches.append((began, clock(), len(keys)))


@dataclass(frozen=True)
class Figures:
    """What a run has shown.

    ``warm`` is when 99 % of what the hosts look for outside was there, ``wait`` the longest time of a batch, in
    seconds; ``busy`` is the part of the time that the store had work until then.
    """

    hosts: int
    store: str
    per_key: float
    calls_per_second: int
    names_per_second: int
    store_commands: int
    busy: float
    failures: int
    wait: float
    warm: float


def simulate(world: World) -> Figures:
    """Run a world until all hosts have read all keys."""
    loop = SimulatedLoop()
    nodes, seen = Nodes(world, loop), Seen()

    async def block(work: Callable[..., Any], *arguments: Any) -> Any:
        done = work(*arguments)
        await asyncio.sleep(nodes.load.take_delay())
        return done

    runtime = Runtime(asyncio.sleep, awaitable(lambda future: future.result()), block, lambda work: work())

    async def run_all() -> None:
        hosts = [batches_of(world, host) for host in range(world.hosts)]
        work = partial(run_worker, world=world, seen=seen, runtime=runtime, clock=loop.time)
        await asyncio.gather(*(work(batches) for batches in hosts for _ in range(world.workers)))

    began = loop.now
    with ExitStack() as patches:
        for patch in in_one_process(loop, nodes):
            patches.enter_context(patch)
        loop.run(run_all())
    loop.close()
    return figures(world, nodes, seen, began)


def in_one_process(loop: SimulatedLoop, nodes: Nodes) -> list[Any]:
    """Return patches: the time and the store are simulated, and each worker claims as if it were a process.

    No call takes so long that claims had to be renewed, which a thread does.
    """
    tokens = (number.to_bytes(16, "little") for number in itertools.count())
    return [
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(GuardedStore.__init__, "__defaults__", (loop.time,)),
        mock.patch.object(HeldClaims, "add"),
        mock.patch.object(HeldClaims, "lose"),
        mock.patch.object(row_store, "open_store", nodes.connect),
        mock.patch.object(guard, "process_token", side_effect=lambda process: next(tokens)),
        mock.patch("warnings.warn"),
    ]


def batches_of(world: World, host: int) -> Iterator[Any]:
    """Yield a host's batches of keys."""
    keys = order_of(world, host)
    for start in range(0, world.keys, world.batch):
        yield keys[start : start + world.batch]


def figures(world: World, nodes: Nodes, seen: Seen, began: float) -> Figures:
    """Return what a run has shown."""
    ends = np.array([end for _, end, _ in seen.batches]) - began
    order = np.argsort(ends)
    done = np.cumsum(np.array([keys for *_, keys in seen.batches])[order])
    warm = float(ends[order][np.searchsorted(done, 0.99 * done[-1])])
    return Figures(
        world.hosts, store_of(world), seen.requested / world.keys, max(seen.calls.values()),
        max(nodes.load.names.values(), default=0), nodes.load.commands, min(nodes.load.busy / float(ends.max()), 1.0),
        seen.counters["store_failures"], max(end - start for start, end, _ in seen.batches), warm,
    )  # fmt: skip


# ── the cost of a node ───────────────────────────────────────────────────────────────────────────────────


def measure_node(is_cluster: bool, names: int = 1_000, rounds: int = 20) -> NodeCost:
    """Return how long Valkey takes, by its own CPU time, which does not depend on what else the machine does."""
    from servers import RedisCluster, RedisServer

    from lookupcache.store.redis_store import RedisStore

    with closing((RedisCluster if is_cluster else RedisServer)().start()) as server:
        store, clients = RedisStore(server.url, 60.0), [one.client() for one in getattr(server, "servers", [server])]
        token = bytes(16 + CALL_BYTES)
        batches = [[b"lookupcache:1:x:{%032d}" % (at * names + n) for n in range(names)] for at in range(rounds)]

        def cpu() -> float:
            found = [client.info("cpu") for client in clients]
            return sum(float(one["used_cpu_user"] + one["used_cpu_sys"]) for one in found)

        def per_name(work: Callable[[list[bytes]], object]) -> float:
            before = cpu()
            for batch in batches:
                work(batch)
            return (cpu() - before) / names / rounds

        claim = per_name(lambda batch: store.claim_missing(batch, token, 600.0))
        put = per_name(lambda batch: store.put(batch, [bytes(120)] * names, [3600.0] * names, token))
        get = per_name(store.get)
        store.close()
        before = cpu()
        for _ in range(rounds * 100):
            clients[0].ping()
        return NodeCost((cpu() - before) / rounds / 100, get, claim, put)


# ── showing ──────────────────────────────────────────────────────────────────────────────────────────────


def show(found: list[Figures], console: Console) -> None:
    """Print a table."""
    names = (
        "hosts",
        "store",
        "requests/key",
        "calls within a second",
        "names asked of the store within a second",
        "commands",
    )
    table = Table(*names, "store busy", "failures", "longest wait, s", "warm after, s")
    for one in found:
        store = (f"{one.names_per_second:,}", f"{one.store_commands:,}", f"{one.busy:.0%}", f"{one.failures:,}")
        cells = (f"{one.hosts:,}", one.store, f"{one.per_key:.2f}", f"{one.calls_per_second:,}")
        table.add_row(*cells, *([""] * 4 if one.store == NO_STORE else store), f"{one.wait:.2f}", f"{one.warm:.2f}")
    console.print(table)


def store_of(world: World) -> str:
    """Return how the store of a world is called."""
    if not world.has_store:
        return NO_STORE
    return "default" if world.store_timeout is None else f"timeout {world.store_timeout:g} s"


def plot(found: list[Figures], path: Path, title: str) -> None:
    """Draw requests per key and the time until warm over the number of hosts."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "lookupcache"
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for name, axis, label in (("per_key", axes[0], "requests per key"), ("warm", axes[1], "seconds until warm")):
        for store in dict.fromkeys(one.store for one in found):
            mine = [one for one in found if one.store == store]
            hosts, values = [one.hosts for one in mine], [getattr(one, name) for one in mine]
            axis.plot(hosts, values, marker="o", label=f"store: {store}")
        axis.set(xscale="log", yscale="log", xlabel="hosts", title=label)
    axes[0].legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    if path.suffix == ".svg":
        path.write_text(path.read_text().replace("</style>", f"\n{DARK}</style>", 1))


NO_STORE = "none"
TIMEOUT = "How long an answer of the store may take, in seconds; a line for each, besides the default and no store."
SIZES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)


@click.command()
@click.option("--hosts", default=1_000, show_default=True, help="Hosts of the largest cluster.")
@click.option("--workers", default=10, show_default=True, help="Workers of each host.")
@click.option("--keys", default=10_000, show_default=True, help="Keys, each of which every host reads.")
@click.option("--batch", default=500, show_default=True, help="Keys of a batch.")
@click.option("--draw", default="uniform", show_default=True, type=click.Choice(["uniform", "zipf"]))
@click.option("--call-seconds", default=0.02, show_default=True, help="How long a call to the source takes.")
@click.option("--nodes", default=1, show_default=True, help="Nodes of the store.")
@click.option("--store-timeout", "timeouts", type=float, multiple=True, help=TIMEOUT)
@click.option("--measure-node", "measures", is_flag=True, help="Measure how long Valkey takes, instead of ONE_SERVER.")
@click.option("--smallest", is_flag=True, help="Up to 30 hosts and 1,000 keys, as CI does it.")
@click.option("--plot", "path", type=click.Path(path_type=Path), help="Draw into this file.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(
    measures: bool, smallest: bool, timeouts: tuple[float, ...], path: Path | None, out: Path, **given: Any
) -> None:
    """Simulate clusters up to a size, print a table, and write simulate.json."""
    console = Console()
    console.width = max(console.width, 150)
    if smallest:
        given |= {"hosts": 30, "keys": 1_000, "batch": 100}
    is_cluster = given["nodes"] > 1
    world = World(**given, cost=measure_node(is_cluster) if measures else IN_CLUSTER if is_cluster else ONE_SERVER)
    console.print(world, highlight=False)
    found = []
    for hosts in [size for size in SIZES if size < world.hosts] + [world.hosts]:
        some = dataclasses.replace(world, hosts=hosts)
        found.append(simulate(dataclasses.replace(some, has_store=False)))
        found += [simulate(dataclasses.replace(some, store_timeout=timeout)) for timeout in (None, *timeouts)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "simulate.json").write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
    show(found, console)
    if path is not None:
        plot(
            found,
            path,
            f"simulated: {world.keys:,} keys, {world.workers} workers a host, nodes of the store: {world.nodes}",
        )


if __name__ == "__main__":
    main()
