"""An error never becomes a miss: whatever fails or hangs, every row is right, or is marked, or the job has failed.

Every kind of connector and function is tested with a source that behaves as drawn; its rows contain the second in which
it made them. A row may be what a call returned after its batch was opened, or what was fresh enough then, or what may
be served in place of an error; it may be marked only if a call for its key failed in the meantime. The texts of errors
can be sent, whatever was raised; and all that holds if several runs share the lookup and take turns.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from scale import scale_up
from time_limit import LIMIT

from lookupcache.cache import keys
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.errors import LookupRuntimeError, LookupTimeoutError, SourceError, WrongRowsError
from lookupcache.functions.connector import FunctionConnector
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.partial_cache import PartialCacheLookup
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

COUNTS = [
    lambda second: 0,
    lambda second: 1,
    lambda second: 2,
    lambda second: second % 2,
    lambda second: 1 - second % 2,
]
"""How many rows the source has of each key, which for two of them changes every second."""


def colliding(letters: bytes) -> list[bytes]:
    """Return texts of 16 bytes that have one hash: the second half makes good what the first does."""
    firsts = np.array([letter * 0x0101010101010101 for letter in letters], np.uint64)
    seconds = keys._mix(np.full(len(letters), 16, np.uint64) * keys._ODD ^ np.uint64(keys.PROCESS_SEED) ^ firsts)
    found = [first.tobytes() + second.tobytes() for first, second in zip(firsts, seconds, strict=True)]
    assert len(set(keys.KeyBatch.of([pa.array(found)], [pa.binary()]).hashes.tolist())) == 1
    return found


KEYS = {
    "int": (pa.int64(), range(5)),
    "text": (pa.string(), ["a", "b", "c", "d", "e"]),
    "colliding": (pa.binary(), colliding(b"abcde")),
}


class Own(BaseException):
    """No Exception, and none that Python knows."""


class Mute(Exception):
    """Has no text, and no copy."""

    def __init__(self, text, lock=None):
        super().__init__(text)
        self.lock = lock or threading.Lock()

    def __str__(self):
        raise ValueError("no text")

    def __eq__(self, other):
        raise ValueError("no comparison")

    __hash__ = None


@dataclass(frozen=True)
class Frozen(Exception):
    """Takes no note."""

    text: str


def caused(text: str) -> Exception:
    """Return a harmless error that comes of another."""
    error = ValueError("see below")
    error.__cause__ = OSError(text)
    return error


RAISED = {
    "down": lambda: ConnectionError("not now"),
    "late and down": lambda: ConnectionError("not now"),
    "fatal": lambda: ValueError("never"),
    "surrogate": lambda: OSError("no file \udcff"),
    "surrogate within": lambda: caused("no file \ud800"),
    "surrogates": lambda: ExceptionGroup("some", [caused("no file \udfff"), ValueError("\udfff")]),
    "nul": lambda: OSError("\0"),
    "huge": lambda: OSError("much " * 10_000),
    "mute": lambda: Mute(""),
    "frozen": lambda: Frozen("never"),
    "ours": lambda: SourceError("wrong \ud800", hint="\ud800"),
    "timeout of its own": lambda: LookupTimeoutError("too slow \ud800"),
    "exit": lambda: SystemExit("no use"),
    "interrupt": lambda: KeyboardInterrupt("no use"),
    "own": lambda: Own("no use"),
    "closed": lambda: GeneratorExit("no use"),
    "cancelled": lambda: asyncio.CancelledError("no use"),
}
"""What a call raises."""

SPOILT = "one wrong row"
OUTCOMES = ["right", SPOILT, "late", *RAISED, "odd", "hangs"]
"""What may become of a call, the worse the later: of several keys in one call, the worst counts.

Wrong rows of one key concern no other.
"""


def rows_of(number: int, key: Any, second: int) -> list[tuple]:
    return [(key, second, match) for match in range(COUNTS[number](second))]


def until(true) -> None:
    """Wait until something that another thread brings about is true."""
    pause = threading.Event()
    for _ in range(2_000):
        if true():
            return
        pause.wait(0.005)
    raise AssertionError("It never came true.")


# ── the source ───────────────────────────────────────────────────────────────────────────────────────────


class Script:
    """A source that does as was drawn, and knows what it did."""

    patience = 0.002
    """Seconds that a late answer waits for the next batch; where they are many, none once all have been read."""

    def __init__(self, keys: dict[Any, int], course: dict[int, list[str]]) -> None:
        self.now = 0.0
        self.keys = keys
        self.coming = {key: deque(course.get(number, ())) for key, number in keys.items()}
        self.answered: dict[Any, list[list[tuple]]] = defaultdict(list)
        self.failed: Counter[Any] = Counter()
        self.in_flight = 0
        self.batches = 0
        self.reading = 0
        self.changing = threading.Condition()
        self.released = threading.Event()

    def clock(self) -> float:
        return self.now

    def next_batch(self, seconds: float) -> None:
        with self.changing:
            self.now += seconds
            self.batches += 1
            self.changing.notify_all()

    def has_waited(self, batches: int) -> bool:
        """Return whether there have been more batches since, or no others will come."""
        return self.batches > batches or (self.patience >= 1 and not self.reading)

    def read(self, change: int) -> None:
        """Note that a run begins to be read, or has been."""
        with self.changing:
            self.reading += change
            self.changing.notify_all()

    def begin(self, keys: list) -> tuple[str, int, list]:
        """Return the result of a call, how many batches there have been, and of which keys it has wrong rows."""
        with self.changing:
            self.in_flight += 1
            outcomes = [self.coming[key].popleft() if self.coming[key] else "right" for key in keys]
            spoilt = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome == SPOILT]
            return max(outcomes, key=OUTCOMES.index, default="right"), self.batches, spoilt

    def answer(self, keys: list) -> dict[Any, list[tuple]] | None:
        """Return the rows of every key, None for wrong ones; None to answer what is no answer."""
        outcome, batches, spoilt = self.begin(keys)
        try:
            if outcome == "hangs":
                self.released.wait()
            if outcome.startswith("late"):
                with self.changing:
                    self.changing.wait_for(lambda: self.has_waited(batches), self.patience)
            return self.end(keys, outcome, spoilt)
        finally:
            self.ended()

    async def answer_async(self, keys: list) -> dict[Any, list[tuple]] | None:
        outcome, batches, spoilt = self.begin(keys)
        try:
            if outcome == "hangs":
                await asyncio.Event().wait()
            for _ in range(int(self.patience / 0.0005) * outcome.startswith("late")):
                if self.has_waited(batches):
                    break
                await asyncio.sleep(0.0005)
            return self.end(keys, outcome, spoilt)
        finally:
            self.ended()

    def end(self, keys: list, outcome: str, spoilt: list) -> dict[Any, list[tuple] | None] | None:
        with self.changing:
            if outcome in ("right", "late", SPOILT):
                second = int(self.now)
                self.failed.update(spoilt)
                rows = {key: rows_of(number, key, second) for key, number in self.keys.items()}
                for key in keys:
                    if key not in spoilt:
                        self.answered[key].append(rows[key])
                return rows | dict.fromkeys(spoilt)
            self.failed.update(keys)
        if outcome == "odd":
            return None
        raise RAISED[outcome]()

    def ended(self) -> None:
        with self.changing:
            self.in_flight -= 1


class Rows(Connector):
    """Answers with rows of all keys, whatever is requested."""

    def __init__(self, schema: pa.Schema, script: Script) -> None:
        super().__init__(schema, {})
        self.script = script

    def lookup(self, request, keys):
        requested = keys.column(0).to_pylist()
        return self.table(requested, self.script.answer(requested))

    def table(self, requested: list, rows: dict[Any, list[tuple] | None] | None) -> pa.Table:
        if rows is None:
            return pa.table({"second": [1]})
        table = table_of(itertools.chain(*(of_key or () for of_key in rows.values())), self.schema)
        wrong = {place: SourceError("wrong \ud800") for place, key in enumerate(requested) if rows[key] is None}
        if wrong:
            raise WrongRowsError.of(table, wrong)
        return table


class RowsLater(Rows):
    lookup = Connector.lookup

    async def lookup_async(self, request, keys):
        requested = keys.column(0).to_pylist()
        return self.table(requested, await self.script.answer_async(requested))


def table_of(rows, schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def function_of(kind: str, script: Script) -> Any:
    def of_key(rows, key):
        return ["odd"] if rows is None or rows[key] is None else rows[key]

    def one(key):
        return of_key(script.answer([key]), key)

    async def one_async(key):
        return of_key(await script.answer_async([key]), key)

    def many(keys):
        rows = script.answer(keys)
        return [] if rows is None else [of_key(rows, key) for key in keys]

    async def many_async(keys):
        rows = await script.answer_async(keys)
        return [] if rows is None else [of_key(rows, key) for key in keys]

    return {"one": one, "one async": one_async, "many": many, "many async": many_async}[kind]


KINDS = ["connector", "connector async", "one", "one async", "many", "many async"]


class Function(FunctionConnector):
    """A function that stays in this process."""

    def __copy__(self):
        return self


def connector_of(kind: str, schema: pa.Schema, script: Script) -> Connector:
    if kind.startswith("connector"):
        return (RowsLater if kind.endswith("async") else Rows)(schema, script)
    return Function(schema, key=("key",), function=function_of(kind, script), batch=kind.startswith("many"))


# ── what was seen ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Opened:
    """A left row that the runner has read: when, by number and by the clock, and how long after its key's last."""

    number: int
    time: float
    key: Any
    idle: float


@dataclass(frozen=True)
class CallResult:
    """What a call returned for a key: rows, or an error's code and None."""

    number: int
    time: float
    rows: list[tuple] | None
    code: str = ""


class Observed(Source):
    """Records the results of calls, and checks that they are what the source returned."""

    def __init__(self, plan: LookupPlan, connector: Connector, script: Script) -> None:
        super().__init__(plan, connector)
        self.script = script
        self.numbers = itertools.count()
        self.results: dict[Any, list[CallResult]] = defaultdict(list)

    def read_answers(self, calls, answers):
        keys = calls.keys.columns[0].to_pylist()
        try:
            fetched = super().read_answers(calls, answers)
        except LookupRuntimeError as error:
            for key in keys:
                self.note_error(key, error)
            raise
        rows = [tuple(row.values()) for row in fetched.rows.to_pylist()]
        ends = np.cumsum(fetched.counts).tolist()
        for place, key in enumerate(keys):
            if fetched.failed[place]:
                self.note_error(key, fetched.errors[fetched.call_of[place]])
            else:
                self.note_rows(key, rows[ends[place] - int(fetched.counts[place]) : ends[place]])
        return fetched

    def note_rows(self, key: Any, rows: list[tuple]) -> None:
        with self.script.changing:
            answered = self.script.answered[key]
            assert rows in answered, f"Of {key!r} the source did not answer {rows}, but {answered}."
            answered.remove(rows)
        self.results[key].append(CallResult(next(self.numbers), self.script.now, rows))

    def note_error(self, key: Any, error: LookupRuntimeError) -> None:
        config = self.plan.config
        check_text(error)
        if error.code == "SOURCE_ERROR" and config.on_error != "fail" and not config.on_miss_max_attempts:
            assert self.script.failed[key], f"No rows of {key!r} were wrong."
        self.results[key].append(CallResult(next(self.numbers), self.script.now, None, error.code))


def check_text(error: LookupRuntimeError) -> None:
    """See that an error can be sent, with all that led to it."""
    shown = "".join(traceback.format_exception(error))
    assert len(shown.encode()) < 60_000
    assert pickle.loads(pickle.dumps(error)).fact == error.fact
    assert pa.array([error.fact], pa.string()).to_pylist() == [error.fact]


class Letters:
    """Where failed rows go."""

    def __init__(self) -> None:
        self.codes: dict[int, str] = {}
        self.closed: list[bool] = []

    def write(self, rows: pa.RecordBatch, errors: pa.Array) -> None:
        for number, error in zip(rows.column("row").to_pylist(), errors.to_pylist(), strict=True):
            assert number not in self.codes
            self.codes[number] = error["code"]

    def close(self, complete: bool) -> None:
        self.closed.append(complete)


@dataclass(frozen=True)
class Case:
    """Batches of keys, each some seconds after the last, read in runs, of which some are closed early."""

    kind: str
    keys: str
    how: str
    options: dict[str, Any]
    course: dict[int, list[str]]
    runs: list[tuple[list[tuple[int, list[int | None]]], int | None]]


@dataclass
class Emitted:
    """What came out for one left row."""

    rows: list[tuple] = field(default_factory=list)
    ages: set[float | None] = field(default_factory=set)
    code: str | None = None
    time: float = 0.0


class Join:
    """A lookup under a case, to be run over; knows all that was read and came out."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.config = LookupConfig(**case.options)
        type_, values = KEYS[case.keys]
        self.values = list(values)
        self.type = type_
        schema = pa.schema([("key", type_), ("second", pa.int64()), ("match", pa.int64())])
        self.script = Script({key: number for number, key in enumerate(self.values)}, case.course)
        self.plan = LookupPlan(
            table="t", connector="script", source="-", schema=schema, how=case.how, config=self.config,
            keys=(FieldKey(column="key", sql=""),), columns=tuple(schema.names), left_columns=("key", "row"),
        )  # fmt: skip
        self.source = self.new_source()
        self.lookup: PartialCacheLookup = lookup_of(self.source, self.script.clock)
        self.opened: dict[int, Opened] = {}
        self.touched: dict[Any, float] = {}
        self.emitted: dict[int, Emitted] = {}

    def new_source(self) -> Any:
        return Observed(self.plan, connector_of(self.case.kind, self.plan.schema, self.script), self.script)

    def batches(self, drawn, rows: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a run, and note the numbers of their rows."""
        self.script.read(1)
        for seconds, numbers in drawn:
            self.script.next_batch(seconds)
            keys = [None if number is None else self.values[number] for number in numbers]
            first, at, now = len(self.opened), next(self.source.numbers), self.script.now
            idle = {key: now - self.touched.get(key, now) for key in keys}
            self.touched |= dict.fromkeys(keys, now)
            read = range(first, first + len(keys))
            rows += read
            self.opened |= {row: Opened(at, now, key, idle[key]) for row, key in zip(read, keys, strict=True)}
            yield pa.record_batch({"key": pa.array(keys, self.type), "row": pa.array(read, pa.int64())})
        self.script.read(-1)

    def run(self, drawn, stop: int | None = None) -> str:
        """Run once, as far as ``stop`` batches of the result, judge what came out, and return how it ended."""
        return self.run_in_turns([(drawn, stop)], [])[0]

    def run_in_turns(self, drawn: list, turns: list[int]) -> list[str]:
        """Run several at a time: each turn, one goes on to its next batch; then one after the other ends."""
        runs = [Run(self, batches, stop) for batches, stop in drawn]
        for turn in turns:
            runs[turn % len(runs)].go_on()
        for run in runs:
            while run.end is None:
                run.go_on()
        self.check_nothing_awaited()
        for run in runs:
            run.judge()
        return [run.end or "" for run in runs]

    def judge(self, opened: Opened, emitted: Emitted | None, letter: str | None, complete: bool) -> None:
        Verdict(self, opened, emitted, letter).check(complete)

    def check_nothing_awaited(self) -> None:
        """Whatever is still under way after a run is a refresh, which nobody waits for."""
        assert self.lookup._open == []
        assert all(request.background for request in self.lookup._requests.values())
        if not self.lookup._requests and self.source.connector.runs_async(self.config.async_):
            assert self.script.in_flight == 0

    def end(self) -> None:
        """Wait for what is under way, check what is held, and disconnect."""
        self.script.released.set()
        until(self.is_quiet)
        assert self.source.executor.in_flight == 0
        cache, counters = self.lookup.cache, self.lookup.counters
        cache.enforce_limits(self.script.now)
        live = cache._live()
        assert (cache._leases, cache._pending, len(live)) == ([], 0, len(cache))
        assert cache.rows == np.maximum(cache.counts(live), 1).sum()
        assert cache.rows <= (self.config.max_rows or cache.rows)
        assert len(cache) == 0 or cache.nbytes <= (self.config.max_bytes or cache.nbytes)
        keyed = sum(opened.key is not None for opened in self.opened.values())
        assert min(counters["hits"], counters["misses"]) >= 0
        assert (counters["rows"], counters["hits"] + counters["misses"]) == (len(self.opened), keyed)
        self.source.close()
        until(lambda: self.script.in_flight == 0)

    def is_quiet(self) -> bool:
        if self.lookup.in_flight:
            self.lookup.wait()
        self.lookup.poll()
        return not self.lookup._requests


class Run:
    """One task's run of a join: what it read, and what came out."""

    def __init__(self, join: Join, drawn, stop: int | None) -> None:
        self.join = join
        self.config = join.config
        self.stop = stop
        self.letters = Letters() if self.config.on_error == "dead-letter" else None
        self.emitted: dict[int, Emitted] = defaultdict(Emitted)
        join.emitted = self.emitted
        self.rows: list[int] = []
        self.order: list[int] = []
        self.count = 0
        self.end: str | None = None
        runner = Runner(join.plan, Layout(("key", "row"), (0,)), join.lookup, self.letters)
        self.stream = runner.run(join.batches(drawn, self.rows))

    def go_on(self) -> None:
        """Go on to the next batch of the result, or to the end."""
        if self.end is not None:
            return
        try:
            self.order += self.take(next(self.stream), self.emitted)
        except StopIteration:
            self.end = "complete"
        except LookupRuntimeError as error:
            assert self.config.on_error == "fail"
            check_text(error)
            self.end = "failed"
        else:
            self.count += 1
            if self.count == self.stop:
                self.stream.close()
                self.end = "closed"

    def judge(self) -> None:
        assert self.config.output_mode == "allow-unordered" or self.order == sorted(self.order)
        assert self.letters is None or self.letters.closed == [self.end == "complete"] * (self.end is not None)
        for row in self.rows:
            code = None if self.letters is None else self.letters.codes.get(row)
            self.join.judge(self.join.opened[row], self.emitted.get(row), code, self.end == "complete")

    def take(self, batch: pa.RecordBatch, emitted: dict[int, Emitted]) -> list[int]:
        rows = [tuple(row.values()) for row in batch.to_pylist()]
        marks = (self.config.age_column is not None) + (self.config.error_column is not None)
        for row in rows:
            out = emitted[row[1]]
            out.rows.append(row[2 : len(row) - marks])
            out.time = self.join.script.now
            if self.config.age_column is not None:
                out.ages.add(row[len(row) - marks])
            if self.config.error_column is not None and row[-1] is not None:
                out.code = row[-1]["code"]
        order = [row[1] for row in rows]
        assert order == sorted(order)
        return order


def shown(how: str, rows: list[tuple] | None) -> list[tuple]:
    """Return what comes out for a left row that has these matches."""
    if how in ("semi", "anti"):
        return [()] if bool(rows) == (how == "semi") else []
    return rows or ([(None,) * 3] if how == "left" else [])


@dataclass
class Verdict:
    """Whether what came out for a left row may be."""

    join: Join
    opened: Opened
    emitted: Emitted | None
    letter: str | None

    def check(self, complete: bool) -> None:
        if self.letter is not None:
            assert self.emitted is None
            assert self.letter in self.codes()
        elif self.emitted is not None and self.emitted.code is not None:
            assert self.emitted.code in self.codes()
            assert self.emitted.rows == [(None,) * len(self.emitted.rows[0])]
            assert self.emitted.ages <= {None}
        elif self.emitted is not None or complete:
            assert self.is_right(), f"{self.emitted} is none of {self.served()}, {self.opened}"

    def codes(self) -> list[str]:
        """Return what the calls for the key that have failed since failed with."""
        return [result.code for result in self.results() if result.rows is None and self.is_later(result)]

    def is_right(self) -> bool:
        if self.opened.key is None:
            return shown(self.join.case.how, []) == self.rows and self.ages <= {None}
        return any(
            shown(self.join.case.how, result.rows) == self.rows and self.ages <= {self.time - result.time}
            for result in self.served()
        )

    @property
    def rows(self) -> list[tuple]:
        return [] if self.emitted is None else self.emitted.rows

    @property
    def ages(self) -> set[float | None]:
        return set() if self.emitted is None else self.emitted.ages

    @property
    def time(self) -> float:
        return 0.0 if self.emitted is None else self.emitted.time

    def results(self) -> list[CallResult]:
        return self.join.source.results[self.opened.key]

    def is_later(self, result: CallResult) -> bool:
        return result.number > self.opened.number

    def served(self) -> list[CallResult]:
        return [result for result in self.results() if result.rows is not None and self.may_serve(result)]

    def may_serve(self, result: CallResult) -> bool:
        config, age = self.join.config, self.opened.time - result.time
        if self.is_later(result):
            return True
        if config.cache == "NONE" or not (result.rows or config.missing_key):
            return False
        idle = config.expire_after_access
        # The arrival of its rows is a use.
        unused = idle is not None and min(self.opened.idle, age) > idle and config.refresh_after_write is None
        return (age <= limit_of(config, result) and not unused) or any(
            failed.rows is None and self.is_later(failed) and failed.time - result.time <= config.stale_if_error
            for failed in (self.results() if config.stale_if_error else ())
        )


def limit_of(config: LookupConfig, result: CallResult) -> float:
    """Return until what age these rows may be served."""
    limits = [config.expire_after_write, None if result.rows else config.missing_key_expire_after_write]
    given_limits = [limit for limit in limits if limit is not None]
    return given_limits[-1] if given_limits else float("inf")


# ── any course of events ─────────────────────────────────────────────────────────────────────────────────

OFTEN = ["right", "late", "right", "late", "right", "late", "down", "late and down", "fatal", "odd", SPOILT]
OUTCOME = st.sampled_from(OFTEN) | st.sampled_from(OUTCOMES[:-1])


@st.composite
def ages(draw) -> dict[str, Any]:
    """Draw how long rows may be served."""
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["expire_after_write"] = draw(st.integers(1, 4))
        if draw(st.booleans()):
            options["stale_if_error"] = options["expire_after_write"] + draw(st.integers(1, 4))
        if draw(st.booleans()):
            options["missing_key_expire_after_write"] = draw(st.integers(0, 3))
        options["jitter"] = draw(st.sampled_from([0, 0, 0.5]))
    if draw(st.booleans()):
        options["expire_after_access"] = draw(st.integers(1, 4))
    if draw(st.booleans()):
        options["refresh_after_write"] = draw(st.sampled_from([0, 1, 2]))
        shortest = options.get("expire_after_write", 5) * (1 - options.get("jitter", 0))
        if options["refresh_after_write"] >= shortest:
            options["refresh_after_write"] = 0
    return options


@st.composite
def caches(draw) -> dict[str, Any]:
    cache = draw(st.sampled_from(["NONE", "LRU", "LRU", "TTL", "TTL"]))
    options: dict[str, Any] = {"cache": cache}
    if cache == "NONE":
        return options
    options |= draw(ages())
    if cache == "TTL" and not {"expire_after_write", "expire_after_access"} & set(options):
        options["expire_after_write"] = 3
    options["max_rows"] = draw(st.sampled_from([None, 1, 2, 3, 4]))
    options["max_bytes"] = draw(st.sampled_from([None, None, 6_000]))
    if "missing_key_expire_after_write" not in options:
        options["missing_key"] = draw(st.booleans())
    return options


@st.composite
def options_of_calls(draw, kind: str) -> dict[str, Any]:
    options = {
        "async_": draw(st.sampled_from([None, True]))
        if kind.endswith("async")
        else draw(st.sampled_from([None, True, False])),
        "async_capacity": draw(st.integers(1, 4)),
        "output_mode": draw(st.sampled_from(["ordered", "allow-unordered"])),
        "batch_max_size": draw(st.sampled_from([None, 1, 2, 3])),
        "batch_max_delay": draw(st.sampled_from([None, None, 0.001])),
        "on_miss_max_attempts": draw(st.sampled_from([0, 0, 1])),
        "on_miss_delay": 0,
        "max_retries": draw(st.integers(0, 2)),
        "retry_delay": 0,
        "breaker_failures": draw(st.sampled_from([None, None, 2])),
        "breaker_delay": draw(st.sampled_from([0, 100])),
        "on_error": draw(st.sampled_from(["fail", "null", "null", "dead-letter", "dead-letter"])),
        "age_column": draw(st.sampled_from([None, "age"])),
    }
    options["error_column"] = "error" if options["on_error"] == "null" else None
    options["dead_letter_path"] = "letters" if options["on_error"] == "dead-letter" else None
    return options


@st.composite
def courses(draw, hangs: bool) -> dict[int, list[str]]:
    """Draw for each key the results of the calls for it, one after the other; all later ones are right."""
    course = draw(st.dictionaries(st.integers(0, 4), st.lists(OUTCOME, max_size=5)))
    if hangs:
        hung = course.setdefault(draw(st.integers(0, 4)), [])
        hung.insert(draw(st.integers(0, len(hung))), "hangs")
    return course


@st.composite
def cases(draw, kind: str, hangs: bool) -> Case:
    numbers = st.lists(st.sampled_from([0, 1, 2, 3, 4, 1, 2, None]), max_size=5)
    batches = st.lists(st.tuples(st.integers(0, 2), numbers), max_size=9)
    runs = st.lists(st.tuples(batches, st.sampled_from([None, None, 1, 2])), min_size=1, max_size=3)
    options = draw(caches()) | draw(options_of_calls(kind))
    return Case(
        kind=kind,
        keys=draw(st.sampled_from(sorted(KEYS))),
        how=draw(st.sampled_from(["inner", "left", "semi", "anti"])),
        options=options | {"timeout": 0.02} if hangs else options,
        course=draw(courses(hangs)),
        runs=draw(runs),
    )


def check(case: Case) -> None:
    join = Join(case)
    for batches, stop in case.runs:
        event(join.run(batches, stop))
    join.end()


@st.composite
def shared_cases(draw, kind: str) -> Case:
    """Draw runs that share a lookup: several batches each, mostly with calls under way when another's turn comes."""
    case = draw(cases(kind, hangs=draw(st.sampled_from([False, False, False, True]))))
    numbers = st.lists(st.integers(0, 4), min_size=1, max_size=2)
    batches = st.lists(st.tuples(st.sampled_from([0, 0, 1]), numbers), min_size=2, max_size=5)
    runs = st.lists(st.tuples(batches, st.sampled_from([None, None, None, 1, 2])), min_size=2, max_size=3)
    at_once = {"async_": True, "async_capacity": draw(st.integers(2, 5))} if draw(st.booleans()) else {}
    late = {number: draw(st.lists(st.sampled_from(["right", "late", "late"]), max_size=3)) for number in range(5)}
    course = {number: [*late[number], *case.course.get(number, ())] for number in range(5)}
    return replace(case, runs=draw(runs), options=case.options | at_once, course=course)


@pytest.mark.extended
@settings(max_examples=examples(scale_up(25)), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), turns=st.lists(st.integers(0, 2), max_size=12))
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_right_if_runs_share_a_lookup(kind, data, turns):
    case = data.draw(shared_cases(kind))
    join = Join(case)
    for end in join.run_in_turns(case.runs, turns):
        event(end)
    join.end()


@pytest.mark.extended
@settings(max_examples=examples(scale_up(30)), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_right_or_marked_or_the_job_failed(kind, data):
    check(data.draw(cases(kind, hangs=False)))


@pytest.mark.extended
@settings(max_examples=examples(scale_up(15)), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_right_if_calls_hang(kind, data):
    check(data.draw(cases(kind, hangs=True)))


# ── a table that is held whole ───────────────────────────────────────────────────────────────────────────


class Whole(Connector):
    """A table that, each time it is read in full, does the next thing that was drawn."""

    lookup = Rows.lookup

    def __init__(self, schema: pa.Schema, script: Script, course: list[str]) -> None:
        super().__init__(schema, {})
        self.script = script
        self.coming = iter(course)
        self.began = 0.0

    def scan(self, request):
        outcome, self.began, batches = next(self.coming, "right"), self.script.now, self.script.batches
        if outcome.startswith("late"):
            with self.script.changing:
                self.script.changing.wait_for(lambda: self.script.batches > batches, 0.002)
        if outcome.endswith("down"):
            raise ConnectionError("not now")
        second = int(self.script.now)
        rows = [row for number, key in enumerate(self.script.keys) for row in rows_of(number, key, second)]
        yield (
            pa.table({"second": [1]}) if outcome == "odd" else table_of([] if outcome == "empty" else rows, self.schema)
        )


@dataclass(frozen=True)
class Load:
    """What came of reading the table: the second that it is of, None where it is empty, or an error's code."""

    began: float
    ended: float
    second: int | None = None
    code: str | None = None


class ObservedLoads(Source):
    """Notes every load."""

    def __init__(self, plan: LookupPlan, connector: Whole, script: Script) -> None:
        super().__init__(plan, connector)
        self.script = script
        self.numbers = itertools.count()
        self.loads: list[Load] = []

    def read_table(self, answer):
        began, ended = self.connector.began, self.script.now
        try:
            keys, fetched = super().read_table(answer)
        except LookupRuntimeError as error:
            self.loads.append(Load(began, ended, code=error.code))
            raise
        second = fetched.rows.column("second")[0].as_py() if fetched.rows.num_rows else None
        emptied = second is None and self.served is not None and self.served.second is not None
        refused = emptied and not self.plan.config.reload_allow_empty
        self.loads.append(Load(began, ended, second, "SOURCE_ERROR" if refused else None))
        return keys, fetched

    @property
    def served(self) -> Load | None:
        """The last load that took the place of the one before."""
        return next((load for load in reversed(self.loads) if load.code is None), None)


class WholeJoin(Join):
    """A join with a table that is held whole; knows which load each batch was given."""

    def __init__(self, case: Case, course: list[str]) -> None:
        self.course = course
        self.given: dict[int, tuple[Load | None, Load]] = {}
        super().__init__(case)

    def new_source(self) -> Any:
        return ObservedLoads(self.plan, Whole(self.plan.schema, self.script, self.course), self.script)

    def batches(self, drawn, rows):
        for batch in super().batches(drawn, rows):
            yield batch
            self.note(len(self.opened))

    def note(self, end: int) -> None:
        """Note what the rows before this one were given, which left before any other was read."""
        for row in range(len(self.given), end):
            self.given[row] = self.source.served, self.source.loads[-1]

    def check_nothing_awaited(self) -> None:
        assert self.lookup._open == []
        self.note(len(self.opened))

    def judge(self, opened: Opened, emitted: Emitted | None, letter: str | None, complete: bool) -> None:
        row = next(row for row, one in self.opened.items() if one is opened)
        served, last = self.given[row]
        assert opened.time - last.ended < 2 * (self.config.reload_interval or float("inf"))
        code = letter if emitted is None else emitted.code
        if code is not None:
            assert code == last.code
            assert served is None or self.may_be_too_old(served, opened)
            assert letter is None or emitted is None
        elif emitted is not None or complete:
            assert opened.key is None or (served is not None and not self.must_be_too_old(served, last, opened))
            known = opened.key is not None and served.second is not None
            rows = rows_of(self.script.keys[opened.key], opened.key, served.second) if known else []
            assert ([] if emitted is None else emitted.rows) == shown(self.case.how, rows)

    def may_be_too_old(self, served: Load, opened: Opened) -> bool:
        """Return whether these rows may be too old: they are of after the load before them ended."""
        before = [load.ended for load in self.source.loads[: self.source.loads.index(served)]]
        longest = self.config.stale_if_error
        return longest is not None and opened.time - max(before, default=0.0) > longest

    def must_be_too_old(self, served: Load, last: Load, opened: Opened) -> bool:
        longest = self.config.stale_if_error
        return longest is not None and last.code is not None and opened.time - served.began > longest

    def end(self) -> None:
        """Check what is held, and disconnect."""
        assert self.lookup.cache._leases == []
        assert min(self.lookup.counters["hits"], self.lookup.counters["misses"]) >= 0
        self.source.close()


@st.composite
def whole_cases(draw) -> tuple[Case, list[str]]:
    numbers = st.lists(st.sampled_from([0, 1, 2, 3, 4, None]), max_size=4)
    batches = st.lists(st.tuples(st.integers(0, 3), numbers), max_size=9)
    on_error = draw(st.sampled_from(["fail", "null", "null", "dead-letter"]))
    options = {
        "cache": "ALL",
        "reload_interval": draw(st.sampled_from([None, 1, 2, 3])),
        "stale_if_error": draw(st.sampled_from([None, None, 2, 4])),
        "max_retries": draw(st.integers(0, 1)),
        "retry_delay": 0,
        "on_error": on_error,
        "error_column": "error" if on_error == "null" else None,
        "dead_letter_path": "letters" if on_error == "dead-letter" else None,
    }
    if options["reload_interval"] is not None:
        options["reload_allow_empty"] = draw(st.booleans())
        options["reload_mode"] = draw(st.sampled_from(["fixed-delay", "fixed-rate"]))
    runs = draw(st.lists(st.tuples(batches, st.sampled_from([None, None, 1, 2])), min_size=1, max_size=3))
    course = draw(st.lists(st.sampled_from(["right", "right", "late", "down", "late and down", "empty", "odd"])))
    keys, how = draw(st.sampled_from(sorted(KEYS))), draw(st.sampled_from(["inner", "left", "semi", "anti"]))
    return Case("whole", keys, how, options, {}, runs), course


@settings(max_examples=examples(scale_up(40)), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(whole_cases())
def test_every_row_is_right_with_the_full_table_cached(drawn):
    join = WholeJoin(*drawn)
    for batches, stop in drawn[0].runs:
        event(join.run(batches, stop))
    join.end()


# ── telling courses of events ────────────────────────────────────────────────────────────────────────────


def joined(kind="connector", runs=(), course=None, how="left", keys="int", **options) -> Join:
    """Run a case to its end."""
    options = {"max_retries": 0, "on_error": "null", "error_column": "error", **options}
    join = Join(Case(kind, keys, how, options, course or {}, list(runs)))
    for batches, stop in join.case.runs:
        join.run(batches, stop)
    return join


def test_an_idle_row_due_for_a_refresh_is_requested_once():
    join = joined(cache="LRU", expire_after_access=3, refresh_after_write=2, runs=[([(0, [1]), (4, [1])], None)])
    assert (join.lookup.counters["misses"], join.lookup.counters["refreshes"]) == (2, 0)
    join.end()


def test_an_idle_row_that_may_be_served_stale_is_requested_once():
    ages = {"expire_after_write": 1, "stale_if_error": 9, "expire_after_access": 3}
    join = joined(cache="LRU", **ages, runs=[([(0, [1]), (4, [1])], None)])
    assert (join.lookup.counters["misses"], join.lookup.counters["hits"]) == (2, 0)
    join.end()


def test_closing_a_run_ends_a_call_that_waits_for_more_keys():
    options = {"cache": "LRU", "batch_max_size": 3, "batch_max_delay": 3600, "output_mode": "allow-unordered"}
    join = joined(**options, runs=[([(0, [1])], None), ([(0, [2]), (0, [1])], 1), ([(0, [3])], None)])
    assert join.lookup.counters["calls"] == 2
    join.end()


def test_a_failed_run_leaves_no_more_rows_than_the_limit():
    options = {"on_error": "fail", "error_column": None, "timeout": 0.05, "cache": "LRU", "max_rows": 1}
    join = joined("connector async", course={1: ["hangs"]}, **options, runs=[([(0, [1]), (0, [2, 3])], None)])
    assert join.source.results[2][0].rows
    assert join.lookup.cache.rows <= 1
    join.end()


@pytest.mark.parametrize(("keys", "most"), [("colliding", 100), ("int", 1)])
def test_a_lost_key_of_a_waiting_call_does_not_join_it_again(keys, most):
    options = {"cache": "LRU", "max_rows": most, "batch_max_delay": 3600, "output_mode": "allow-unordered"}
    batches = [(0, [1, 2]), (0, [None]), (0, [1, 2])]
    joined(keys=keys, **options, runs=[(batches, None)]).end()


def test_missing_keys_are_retried_if_a_source_returns_other_keys():
    join = joined(cache="LRU", on_miss_max_attempts=2, on_miss_delay=0, runs=[([(0, [0, 1, 2])], None)])
    assert join.lookup.counters["miss_retries"] == 2
    join.end()


def test_a_refresh_that_fails_marks_no_row_that_was_young_enough():
    """By then the row has expired; its batch waits for another."""
    options = {"cache": "LRU", "expire_after_write": 5, "refresh_after_write": 2, "timeout": 0.05}
    course = {1: ["right", "late and down"], 2: ["hangs"]}
    runs = [([(0, [1])], None), ([(3, [1, 2]), (3, [None])], None)]
    join = joined("connector async", course=course, **options, runs=runs)
    assert [join.emitted[row].code for row in (1, 2)] == [None, "LOOKUP_TIMEOUT"]
    join.end()


def test_rows_that_wait_for_a_failed_refresh_are_marked():
    options = {"cache": "LRU", "expire_after_write": 5, "refresh_after_write": 2, "timeout": 0.05}
    runs = [([(0, [1])], None), ([(3, [1]), (3, [1])], None)]
    join = joined("connector async", course={1: ["right", "hangs"]}, **options, runs=runs)
    assert [join.emitted[row].code for row in (1, 2)] == [None, "LOOKUP_TIMEOUT"]
    assert join.lookup.counters["calls"] == 2
    join.end()


@pytest.mark.parametrize("kind", KINDS)
def test_two_batches_wait_for_one_call_that_fails(kind, monkeypatch):
    monkeypatch.setattr(Script, "patience", 10.0)
    join = joined(kind, course={1: ["late and down"]}, async_=True, cache="LRU", runs=[([(0, [1]), (0, [1])], None)])
    assert [join.emitted[row].code for row in (0, 1)] == ["LOOKUP_FAILED"] * 2
    assert (join.lookup.counters["calls"], join.lookup.counters["hits"], len(join.lookup.cache)) == (1, 1, 0)
    join.end()


@pytest.mark.parametrize("delay", ["1 ms", "1 h"])
@pytest.mark.parametrize("kind", ["connector", "connector async", "many", "many async"])
def test_a_call_that_waits_takes_the_keys_of_the_next_batch(kind, delay):
    runs = [([(0, [1]), (0, [2, 3]), (0, [2, 4])], None)]
    join = joined(kind, course={3: ["down"]}, cache="LRU", batch_max_size=3, batch_max_delay=delay, runs=runs)
    assert join.emitted[2].code == "LOOKUP_FAILED"
    assert join.lookup.counters["calls"] in ([2] if delay == "1 h" else [1, 2, 3])
    join.end()


def test_open_batches_keep_their_rows_after_renumbering():
    options = {"cache": "LRU", "max_bytes": 5_500, "async_capacity": 4, "output_mode": "allow-unordered"}
    numbers = [[number % 5] for number in range(40)]
    course = {1: ["late"] * 9, 2: ["late and down", "late"] * 4}
    evictions = 0
    # Whether a batch is open when another one evicts depends on the threads.
    for _ in range(20):
        join = joined("one async", course=course, **options, runs=[([(1, number) for number in numbers], None)])
        evictions += join.lookup.counters["evictions"]
        join.end()
        if evictions:
            return
    pytest.fail("No run had evictions.")


# ── what threads share ───────────────────────────────────────────────────────────────────────────────────


class Client:
    """A function's object that answers only while it is open."""

    def __init__(self, script: Script, refuses: int) -> None:
        self.script = script
        self.refuses = refuses
        self.counts: Counter[str] = Counter()
        self.threads: list[threading.Thread] = []
        self.requested = threading.Event()

    def open(self):
        self.counts["opened"] += 1
        if self.counts["opened"] <= self.refuses:
            raise ConnectionError("no connection")
        self.requested.wait(0.02)
        self.counts["ready"] += 1

    def close(self):
        self.counts["closed"] += 1

    def __call__(self, key):
        self.threads.append(threading.current_thread())
        self.requested.set()
        if self.counts["ready"] <= self.counts["closed"]:
            raise ValueError("not open")
        return self.script.answer([key])[key]


class ClientJoin(Join):
    def __init__(self, course=None, refuses=0, **options) -> None:
        self.refuses = refuses
        options = {"cache": "LRU", "max_retries": 0, "on_error": "null", "error_column": "error", **options}
        super().__init__(Case("one", "int", "left", options, course or {}, []))

    def new_source(self) -> Any:
        self.client = Client(self.script, self.refuses)
        connector = Function(self.plan.schema, key=("key",), function=self.client, batch=False)
        return Observed(self.plan, connector, self.script)

    def codes(self) -> list[str | None]:
        return [emitted.code for _, emitted in sorted(self.emitted.items())]


def test_no_thread_calls_what_another_has_not_opened_yet():
    join = ClientJoin(async_=True, async_capacity=3)
    join.run([(0, [1, 2, 3])])
    assert (join.codes(), join.client.counts) == ([None] * 3, {"opened": 1, "ready": 1})
    join.end()


def test_a_failed_opening_is_repeated():
    join = ClientJoin(refuses=1)
    join.run([(0, [1])])
    assert join.codes() == ["LOOKUP_FAILED"]
    join.run([(0, [1])])
    assert (join.codes(), join.client.counts) == ([None], {"opened": 2, "ready": 1})
    join.end()


def test_an_abandoned_thread_closes_nothing_that_another_uses():
    join = ClientJoin({1: ["hangs"]}, timeout=2)
    join.run([(0, [1]), (0, [2])])
    join.script.released.set()
    join.client.threads[0].join(LIMIT)
    join.run([(0, [3, 1])])
    assert (join.codes(), join.client.counts) == ([None] * len(join.codes()), {"opened": 1, "ready": 1})
    join.source.close()
    until(lambda: join.client.counts["closed"] == 1)


def test_a_key_is_found_after_its_colliding_key_is_removed():
    runs = [([(0, [0, 1]), (2, [2]), (0, [1]), (0, [2])], None)]
    join = joined(keys="colliding", cache="LRU", missing_key_expire_after_write=1, runs=runs)
    assert (join.lookup.counters["expirations"], join.lookup.counters["misses"]) == (1, 3)
    join.end()


@pytest.mark.parametrize("kind", ["connector", "connector async", "many", "many async"])
def test_wrong_rows_of_one_call_end_the_others_with_its_error(kind):
    case = Case(kind, "int", "left", {"cache": "LRU", "max_retries": 0, "batch_max_size": 2}, {1: [SPOILT]}, [])
    join = Join(case)
    assert join.run([(0, [0, 1, 2])]) == "failed"
    assert join.run([(0, [0, 1, 2])]) == "complete"
    join.end()


@pytest.mark.parametrize("method", ["split", "read_answers"])
def test_an_error_leaves_nothing_for_the_next_run_to_wait_for(method, monkeypatch):
    join = joined(cache="LRU", expire_after_write=1, stale_if_error=9, runs=[([(0, [1])], None)])

    def breaks(*arguments):
        raise RuntimeError("no source's fault")

    with monkeypatch.context() as broken:
        broken.setattr(join.source, method, breaks)
        for numbers in ([1], [2], [1, 2]):
            with pytest.raises(RuntimeError, match="no source's fault"):
                join.run([(2, numbers)])
    assert join.lookup.cache._leases == []
    join.run([(0, [1, 2])])


# ── a join by more columns than the function's key ───────────────────────────────────────────────────────

KEY_PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=6)


@pytest.mark.extended
@settings(max_examples=examples(scale_up(60)), deadline=None)
@given(batches=st.lists(KEY_PAIRS, max_size=3), failing=st.sets(st.integers(0, 3)), size=st.sampled_from([None, 1, 2]))
@pytest.mark.parametrize("failure", ["error", "malformed", "mute"])
@pytest.mark.parametrize("kind", ["one", "one async", "many", "many async"])
def test_a_failed_function_key_marks_all_its_rows_and_no_other(kind, failure, batches, failing, size):
    def of_key(key):
        failed = {"error": ValueError("never"), "malformed": [(key, 0, "no number")], "mute": Mute("")}[failure]
        return failed if key in failing else [(key, match, 10 * key + match) for match in range(2)]

    def one(key):
        rows = of_key(key)
        if isinstance(rows, Exception):
            raise rows
        return rows

    async def one_async(key):
        return one(key)

    def many(keys):
        return [of_key(key) for key in keys]

    async def many_async(keys):
        return many(keys)

    function = {"one": one, "one async": one_async, "many": many, "many async": many_async}[kind]
    schema = pa.schema([("key", pa.int64()), ("match", pa.int64()), ("value", pa.int64())])
    connector = Function(schema, key=("key",), function=function, batch=kind.startswith("many"))
    config = LookupConfig(cache="LRU", max_retries=0, on_error="null", error_column="error", batch_max_size=size)
    plan = LookupPlan(
        table="t", connector="script", source="-", schema=schema, how="left", config=config, columns=schema.names,
        keys=(FieldKey(column="key", sql=""), FieldKey(column="match", sql="")), left_columns=("key", "match"),
    )  # fmt: skip
    source = Source(plan, connector)
    runner = Runner(plan, Layout(("key", "match"), (0, 1)), lookup_of(source))
    types = pa.schema([("key", pa.int64()), ("match", pa.int64())])
    left = [pa.table(list(zip(*pairs, strict=True)) or [[], []], types).combine_chunks() for pairs in batches]
    given_rows = [batch for table in left for batch in table.to_batches()]
    shown = [
        tuple(row.values())[:2] + tuple(row.values())[4:] for out in runner.run(given_rows) for row in out.to_pylist()
    ]
    source.close()
    requested = [pair for pairs in batches for pair in pairs]
    values = [(key, match, None if key in failing or match > 1 else 10 * key + match) for key, match in requested]
    assert [row[:3] for row in shown] == values
    assert [row[3] is not None for row in shown] == [key in failing for key, _ in requested]
