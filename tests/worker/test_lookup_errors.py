"""What a slow, failing, hanging or dying HTTP service does to decorated functions and to joins."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from clients import KINDS, AsyncKept, SyncKept
from drawing import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service import Service
from time_limit import LIMIT

from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.decorator import cached
from lookupcache.errors import LookupFailedError, LookupRuntimeError, LookupTimeoutError, SourceError
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.partial_cache import PartialCacheLookup
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

ROWS = {1: [[1, "ann"]], 2: [[2, "bob"]], 3: [[3, "cy"]]}
QUICK = {"lookup.cache": "LRU", "lookup.retry.delay": "1 ms"}
ONCE = {**QUICK, "lookup.max-retries": "0"}

# What a function's client, or the join in its place, raises when the last attempt failed.
FAILED = (LookupFailedError, OSError, aiohttp.ClientError)


@dataclass
class Look:
    """A way to look names up by key: a decorated function, or a join."""

    names: Callable[..., list[str | None]]
    metrics: Callable[[], Any]

    def __call__(self, *keys: int) -> list[str | None]:
        """Return the name of each key, None where it has no row."""
        return self.names(*keys)


def decorated(service: Service, kind: str, options: dict[str, str]) -> Look:
    """Return a function of this kind in the cache's hands; a timeout ends a sync call only where it has a thread."""
    batch, is_async = kind.endswith("batch"), kind.startswith("async")
    if "lookup.timeout" in options:
        options = {"lookup.async": "true", **options}
    function = cached(LookupConfig.from_options(options), batch=batch)(KINDS[kind](service.url))

    async def wanted(keys):
        return await function(keys) if batch else await asyncio.gather(*map(function, keys))

    def names(*keys):
        if is_async:
            answers = asyncio.run(wanted(list(keys)))
        else:
            answers = function(list(keys)) if batch else [function(key) for key in keys]
        return [rows[0][1] if rows else None for rows in answers]

    return Look(names, function.metrics)


def lookup_by(function: Callable[..., Any], options: dict[str, str], *, batch: bool = False) -> PartialCacheLookup:
    """Return what a worker would hold for a join with this function."""
    table = LookupTable.from_function(
        "people", "id BIGINT, name STRING", key=["id"], function=function, batch=batch, options=options
    )
    plan = LookupPlan(
        table="people", connector="function", source="s", schema=table.schema, how="left", config=table.config,
        keys=(FieldKey(column="id", sql="l.`id`"),), columns=("name",), left_columns=("id",),
    )  # fmt: skip
    return lookup_of(Source(plan, table.connector))


def runner_of(lookup: PartialCacheLookup) -> Runner:
    return Runner(lookup.source.plan, Layout(("id",), (0,)), lookup)


def joined_by(lookup: PartialCacheLookup) -> Look:
    """Return the join, which is given its keys in one batch."""
    runner = runner_of(lookup)

    def names(*keys):
        [result] = runner.run([pa.record_batch({"id": pa.array(keys, pa.int64())})])
        return result.column(1).to_pylist()

    return Look(names, lambda: lookup.counters)


def joined(service: Service, kind: str, options: dict[str, str]) -> Look:
    """Return a join with a function of this kind."""
    return joined_by(lookup_by(KINDS[kind](service.url), options, batch=kind.endswith("batch")))


WAYS = {"decorated": decorated, "joined": joined}
EVERY_WAY = [(way, kind) for way in WAYS for kind in KINDS]


@pytest.fixture
def served(service: Service) -> Iterator[Service]:
    service.set_rows(ROWS)
    yield service
    service.start()
    service.release()


@pytest.fixture(params=EVERY_WAY, ids=" ".join)
def made(request, served: Service) -> Callable[[dict[str, str]], Look]:
    """Return what makes a lookup of one of the eight ways, given its options."""
    way, kind = request.param
    return lambda options: WAYS[way](served, kind, options)


@pytest.fixture(params=[both for both in EVERY_WAY if "async" in both[1]], ids=" ".join)
def made_async(request, served: Service) -> Callable[[dict[str, str]], Look]:
    way, kind = request.param
    return lambda options: WAYS[way](served, kind, options)


@pytest.fixture(params=[both for both in EVERY_WAY if "batch" in both[1]], ids=" ".join)
def made_batch(request, served: Service) -> Callable[[dict[str, str]], Look]:
    way, kind = request.param
    return lambda options: WAYS[way](served, kind, options)


# ── healthy ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_service_is_called_once_per_key(made, served):
    look = made(QUICK)
    assert [look(1, 2, 9), look(9, 1)] == [["ann", "bob", None], [None, "ann"]]
    assert sorted(int(key) for request in served.requests() for key in request.keys) == [1, 2, 9]


# ── slow and hanging ─────────────────────────────────────────────────────────────────────────────────────


def test_a_slow_answer_in_time_is_an_answer(made, served):
    served.slow(0.05)
    assert made({**ONCE, "lookup.timeout": "10 s"})(1) == ["ann"]


@pytest.mark.extended
@pytest.mark.parametrize("failure", ["slow", "hang"])
def test_a_service_that_takes_too_long_is_a_timeout(made, served, failure):
    served.slow(20) if failure == "slow" else served.hang()
    look = made({**QUICK, "lookup.timeout": "100 ms"})
    with pytest.raises(LookupTimeoutError, match=r"0\.1 s"):
        look(1)
    assert len(served.requests()) == 1
    assert look.metrics()["timeouts"] if isinstance(look.metrics(), dict) else look.metrics().timeouts


def test_a_call_that_ran_out_of_time_leaves_its_connection(made_async, served):
    served.hang()
    with pytest.raises(LookupTimeoutError):
        made_async({**QUICK, "lookup.timeout": "100 ms"})(1)
    served.wait_open(0)


@pytest.mark.extended
def test_a_call_that_hangs_is_in_nobodys_way(made, served):
    served.hang(times=1)
    look = made({**QUICK, "lookup.timeout": "2 s"})
    with pytest.raises(LookupTimeoutError):
        look(1)
    assert look(2) == ["bob"]
    assert look(1) == ["ann"]


IN_FLIGHT = {**QUICK, "lookup.async": "true"}


def ids(*keys: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64())})


@pytest.mark.nightly(keep_one_in=4)
@pytest.mark.parametrize(("kind", "capacity"), list(itertools.product(KINDS, [1, 2, 5])))
def test_a_join_reads_ahead_as_long_as_calls_may_be_made(served, kind, capacity):
    served.hang()
    options = {**IN_FLIGHT, "lookup.async.capacity": str(capacity)}
    runner = runner_of(lookup_by(KINDS[kind](served.url), options, batch=kind.endswith("batch")))
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(lambda: list(runner.run(ids(key) for key in (1, 2, 3, 9, 8))))
        served.wait_open(capacity)
        assert not joined.done()
        served.heal()
        served.release()
        names = [name for batch in joined.result(LIMIT) for name in batch.column(1).to_pylist()]
    assert names == ["ann", "bob", "cy", None, None]
    assert served.most_open() == capacity


@pytest.mark.parametrize("kind", KINDS)
def test_a_join_that_is_ended_early_leaves_nothing_open(served, kind):
    def batches():
        yield ids(1)
        served.wait_open(1)
        served.release()
        yield ids(2)

    served.hang()
    lookup = lookup_by(KINDS[kind](served.url), IN_FLIGHT, batch=kind.endswith("batch"))
    joined = runner_of(lookup).run(batches())
    assert next(joined).column(1).to_pylist() == ["ann"]
    served.wait_open(1)
    joined.close()
    if kind.startswith("async"):
        served.wait_open(0)
    served.heal()
    assert joined_by(lookup)(2, 3) == ["bob", "cy"]


# ── failing ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [500, 503])
def test_an_error_of_the_service_is_retried(made, served, status):
    served.fail(status, times=2)
    look = made(QUICK)
    assert look(1) == ["ann"]
    assert len(served.requests()) == 3


@pytest.mark.extended
def test_the_service_sends_retry_after(made, served):
    served.fail(503, retry_after=1, times=1)
    assert made(QUICK)(1) == ["ann"]
    first, second = served.requests()
    assert 1 <= second.at - first.at < 5


def test_a_retry_after_that_exceeds_the_timeout(made, served):
    served.fail(503, retry_after=3600)
    with pytest.raises((LookupTimeoutError, *FAILED)):
        made({**QUICK, "lookup.timeout": "200 ms"})(1)
    assert len(served.requests()) == 1


def test_a_short_answer_is_an_error_and_not_retried(made_batch, served):
    served.short()
    look = made_batch(QUICK)
    with pytest.raises(SourceError, match=r"returned 1 (lists|values) for 2 keys"):
        look(1, 2)
    served.heal()
    assert look(1, 2) == ["ann", "bob"]
    assert len(served.requests()) == 2


@pytest.mark.parametrize("failure", ["tear", "fail"])
def test_an_error_that_stays_is_raised_after_the_last_attempt(made, served, failure):
    getattr(served, failure)()
    look = made({**QUICK, "lookup.max-retries": "2"})
    with pytest.raises(Exception) as caught:
        look(1)
    assert not isinstance(caught.value, LookupTimeoutError | SourceError)
    assert len(served.requests()) == 3


@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(
    ("kind", "failure", "named"),
    [(kind, *failed) for failed in (("tear", "Incomplete|Payload"), ("fail", "503")) for kind in KINDS],
)
def test_a_failed_join_names_the_table_the_keys_and_the_attempts(served, kind, failure, named):
    getattr(served, failure)()
    look = joined(served, kind, {**QUICK, "lookup.max-retries": "2"})
    with pytest.raises(LookupFailedError, match=rf"'people'.* 1 key.* 3 attempts.*({named})") as caught:
        look(1)
    assert caught.value.__cause__ is not None


def test_a_connection_broken_within_the_body_is_retried(made, served):
    served.tear(times=2)
    assert made(QUICK)(1) == ["ann"]
    assert len(served.requests()) == 3


# ── killed ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_service_that_restarts_is_found_again(made, served):
    look = made(ONCE)
    assert look(1) == ["ann"]
    served.kill()
    assert look(1) == ["ann"]
    with pytest.raises(FAILED):
        look(2)
    served.start()
    assert look(2) == ["bob"]


def test_a_call_survives_the_death_of_the_service(made, served):
    served.hang()
    look = made({**QUICK, "lookup.max-retries": "1000", "lookup.retry.strategy": "fixed-delay"})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(look, 1)
        served.wait_open(1)
        served.kill()
        served.start()
        assert waiting.result(LIMIT) == ["ann"]


@pytest.mark.parametrize("client", [SyncKept, AsyncKept])
def test_a_kept_connection_may_break(served, client):
    lookup = lookup_by(client(served.url), QUICK)
    look = joined_by(lookup)
    assert look(1) == ["ann"]
    served.kill()
    served.start()
    assert look(2) == ["bob"]
    lookup.source.close()


# ── never a miss ─────────────────────────────────────────────────────────────────────────────────────────

FAILURES = {
    "slow": LookupTimeoutError,
    "hang": LookupTimeoutError,
    "fail": Exception,
    "tear": Exception,
}


@pytest.mark.extended
@pytest.mark.parametrize("failure", FAILURES)
def test_an_error_is_not_kept_as_a_miss(made, served, failure):
    served.slow(20) if failure == "slow" else getattr(served, failure)()
    look = made({**ONCE, "lookup.timeout": "200 ms"})
    with pytest.raises(FAILURES[failure]):
        look(1, 9)
    served.heal()
    assert answer_of(look, 1, 9, 2) == ["ann", None, "bob"]


def answer_of(look: Look, *keys: int) -> list[str | None]:
    """Return the names from a service that is well, but may answer too late on a busy machine."""
    for _ in range(50):
        with suppress(LookupTimeoutError):
            return look(*keys)
    pytest.fail("There was no answer in time.")


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=4)
@pytest.mark.parametrize(("kind", "failure"), list(itertools.product(KINDS, ["fail", "tear", "hang"])))
def test_a_marked_error_differs_from_a_miss(served, kind, failure):
    getattr(served, failure)(times=1)
    marked = {"lookup.on-error": "null", "lookup.error-column": "why", "lookup.timeout": "2 s"}
    batch = kind.endswith("batch")
    runner = runner_of(lookup_by(KINDS[kind](served.url), {**ONCE, **marked}, batch=batch))
    [result] = runner.run([pa.record_batch({"id": [1, 9]})])
    names, errors = result.column(1).to_pylist(), result.column(2).to_pylist()
    code = "LOOKUP_TIMEOUT" if failure == "hang" else "LOOKUP_FAILED"
    assert [error["code"] for error in errors if error] == [code] * (2 if batch else 1)
    assert [name for name, error in zip(names, errors, strict=True) if error] == [None] * (2 if batch else 1)
    assert all(error or name == right for name, error, right in zip(names, errors, ["ann", None], strict=True))
    [result] = runner.run([pa.record_batch({"id": [1, 9]})])
    assert result.column(1).to_pylist() == ["ann", None]
    assert result.column(2).to_pylist() == [None, None]


@pytest.mark.extended
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    failures=st.lists(st.sampled_from(["fail", "tear", "short", "none"]), max_size=6),
    retries=st.sampled_from(["0", "2"]),
    batches=st.lists(st.lists(st.sampled_from([1, 2, 3, 9]), min_size=1, max_size=5), min_size=1, max_size=3),
)
@pytest.mark.parametrize("kind", ["batch", "async batch"])
def test_every_row_is_right_or_the_job_failed(service, kind, failures, retries, batches):
    service.reset()
    service.set_rows(ROWS)
    for failure in failures:
        service.slow(0, times=1) if failure == "none" else getattr(service, failure)(times=1)
    look = joined(service, kind, {**QUICK, "lookup.max-retries": retries})
    for keys in batches:
        right = [ROWS[key][0][1] if key in ROWS else None for key in keys]
        try:
            assert look(*keys) == right
        except LookupRuntimeError:
            service.heal()
            assert look(*keys) == right


# ── where an error was raised ────────────────────────────────────────────────────────────────────────────────


def parsed(text):
    return json.loads(text)


def one(id):
    return [(id, parsed("{"))]


async def one_async(id):
    return [(id, parsed("{"))]


def many(ids):
    return [[(id, parsed("{"))] for id in ids]


class Opened:
    """A function whose object cannot be made."""

    def __init__(self):
        parsed("{")

    def __call__(self, id):
        """Return no rows."""
        return []


class Broken(Connector):
    """A connector that raises an error."""

    def lookup(self, request, keys):
        """Raise it."""
        parsed("{")


def of_function(function, batch=False):
    return LookupTable.from_function("t", "id BIGINT, v STRING", key=["id"], function=function, batch=batch)


@pytest.mark.parametrize(
    ("table", "name", "line"),
    [
        (of_function(one), "function 'one'", r"in parsed, .*test_lookup_errors\.py"),
        (of_function(one_async), "function 'one_async'", r"in parsed, .*test_lookup_errors\.py"),
        (of_function(many, batch=True), "function 'many'", r"in parsed, .*test_lookup_errors\.py"),
        (of_function(Opened), "function 'Opened'", r"in parsed, .*test_lookup_errors\.py"),
        (of_function(json.loads), "function 'loads'", r"in loads, .*json.__init__\.py"),
        (LookupTable("t", "id BIGINT", {"connector": f"{__name__}:Broken"}), f"connector '{__name__}:Broken'",
         r"in parsed, .*test_lookup_errors\.py"),
    ],
    ids=["sync", "async", "batch", "class", "library", "connector"],
)  # fmt: skip
def test_an_error_has_the_innermost_line_of_the_users_code(table, name, line):
    table = table.with_options({"lookup.max-retries": "0"})
    with LocalJoin(table, Wanted(key=("id",))) as join, pytest.raises(LookupFailedError) as failed:
        join.rows([(1,)])
    assert re.search(
        rf"Table 't' \({name}\): .* failed after 1 attempt: .* \({line}, line \d+\)\.?$", failed.value.fact
    )
