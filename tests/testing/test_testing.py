"""The public kit: each check of the suite fails for a connector with the fault that it is there for, and no other."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from collections import defaultdict
from xml.etree import ElementTree

import faulty_connectors
import pyarrow as pa
import pyarrow.dataset
import pytest
from servers import until

from lookupcache.connector import offers
from lookupcache.errors import LookupFailedError
from lookupcache.table import LookupTable
from lookupcache.testing import ConnectorSuite, FakeClock, Recorder, flaky, slow
from lookupcache.testing.join import LocalJoin, Wanted

FAULTS = [(suite, check) for suite, (_, check) in faulty_connectors.FAULTS.items()]


def failures_of(folder, tests):
    """Run tests of the shelves; return what failed, by suite and check, with its message."""
    report = folder / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == 1, result.stdout + result.stderr
    failed = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        checks = failed[case.get("classname").rpartition(".")[2]]
        for failure in (*case.iter("failure"), *case.iter("error")):
            checks[case.get("name").partition("[")[0]] = failure.get("message")
    return failed


@pytest.fixture(scope="module")
def of_own_checks(request, tmp_path_factory):
    """Return what fails where each faulty suite of this lane runs the check that is there for its fault."""
    cases = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = [item.callspec.params for item in cases if "of_own_checks" in item.fixturenames]
    tests = [f"{faulty_connectors.__file__}::{case['suite']}::{case['check']}" for case in chosen]
    return failures_of(tmp_path_factory.mktemp("own"), tests)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Return what fails where all suites run all checks."""
    return failures_of(tmp_path_factory.mktemp("all"), [faulty_connectors.__file__])


@pytest.mark.extended(keep_one_in=3)
@pytest.mark.parametrize(("suite", "check"), FAULTS)
def test_a_fault_fails_its_check_with_a_hint(of_own_checks, suite, check):
    assert "Hint: " in of_own_checks[suite][check]


@pytest.mark.nightly
@pytest.mark.parametrize(("suite", "check"), FAULTS)
def test_a_fault_fails_no_other_check(outcomes, suite, check):
    assert list(outcomes[suite]) == [check], outcomes[suite]


def test_every_check_has_a_fault_that_fails_it():
    checks = {name for name in dir(ConnectorSuite) if name.startswith("test_")}
    assert checks == {check for _, check in faulty_connectors.FAULTS.values()}


# ── settings of a suite ─────────────────────────────────────────────────────────────────────────────────────


def test_a_claim_of_no_known_type_or_trait_is_refused():
    with pytest.raises(ValueError, match=r"'nann' is not a type or trait; known are .*nan"):
        type("TestMine", (ConnectorSuite,), {"unsupported": {"nann": "a slip"}})


def test_the_error_of_a_suite_without_a_table_has_a_hint():
    with pytest.raises(pytest.fail.Exception, match=r"Hint: Write a fixture `load`"):
        ConnectorSuite.load.__wrapped__(ConnectorSuite())


def test_checks_that_do_not_apply_are_not_there():
    assert TestNarrow.test_the_whole_table is None
    assert TestNarrow.test_many_rows_of_a_key is None
    assert type("TestWide", (TestNarrow,), {"can_scan": True}).test_the_whole_table is not None


TestNarrow = type("TestNarrow", (ConnectorSuite,), {"unique_keys": True, "__test__": False})


def test_the_kit_needs_no_spark():
    code = "import sys, lookupcache.testing; print([name for name in sys.modules if name.startswith('pyspark')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_without_pytest_the_kit_names_what_to_install():
    code = "import sys; sys.modules['pytest'] = None; import lookupcache.testing"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "lookupcache.testing needs pytest." in result.stderr
    assert "pip install 'lookupcache[testing]'" in result.stderr


# ── stand-ins ────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = pa.table({"id": [1, 2], "name": ["ann", "bob"]})
ID = Wanted(key=("id",))


@pytest.fixture(params=["Shelf", "AsyncShelf"])
def table(request, tmp_path):
    with pa.ipc.new_file(tmp_path / "rows.arrow", ROWS.schema) as file:
        file.write_table(ROWS)
    options = {
        "connector": f"faulty_connectors:{request.param}",
        "path": str(tmp_path / "rows.arrow"),
        "password": "env:WORD",
    }
    return LookupTable("t", ROWS.schema, {**options, "key": "id", "lookup.retry.delay": "1 ms"})


@pytest.fixture(autouse=True)
def word(monkeypatch):
    monkeypatch.setenv("WORD", faulty_connectors.PASSWORD)


def test_a_recorder_keeps_requests_and_answers(table):
    recorder = Recorder(table.connector)
    with LocalJoin(table, ID, recorder) as join:
        assert join.rows([(1,), (7,)]) == [(1, "ann")]
    [call] = recorder.calls
    assert call.request.fields == ("id", "name")
    assert (call.keys.to_pydict(), call.answer.to_pydict()) == ({"id": [1, 7]}, {"id": [1], "name": ["ann"]})


def test_a_recorder_keeps_the_requests_to_copies_for_threads(table):
    recorder = Recorder(table.connector)
    one_by_one = table.with_options({"lookup.async": "true", "lookup.batch.max-size": "1"})
    with LocalJoin(one_by_one, ID, recorder) as join:
        join.rows([(1,), (2,), (3,)])
    assert sorted(call.keys.to_pylist()[0]["id"] for call in recorder.calls) == [1, 2, 3]


def test_a_recorder_keeps_what_a_scan_gave(table):
    recorder = Recorder(table.connector)
    with LocalJoin(table.with_options({"lookup.cache": "ALL"}), ID, recorder) as join:
        join.rows([(1,)])
    assert [(call.keys, call.answer.num_rows) for call in recorder.calls] == [(None, 2)]


def test_a_wrapper_offers_what_its_connector_offers(table):
    wrapped = flaky(table.connector)
    for method in ("lookup", "lookup_async", "scan", "changed"):
        assert offers(wrapped, method) == offers(table.connector, method)
    assert wrapped.identity() == table.connector.identity()
    assert "env:WORD" not in repr(wrapped)


@pytest.mark.parametrize(
    "options",
    [
        {"lookup.cache": "NONE"},
        {"lookup.cache": "ALL"},
        {"lookup.cache": "LRU", "lookup.async": "true"},
        {"lookup.cache": "LRU", "lookup.cache.store": "store"},
        {"lookup.cache": "LRU", "lookup.cache.path": "host"},
        {"lookup.cache": "ALL", "lookup.cache.path": "host"},
        {"lookup.cache": "LRU", "lookup.cache.path": "host", "lookup.cache.store": "store"},
    ],
    ids=lambda options: " ".join(options.values()),
)
def test_a_closed_local_join_disconnects_and_connects_again(table, tmp_path, options):
    opened = []
    kind = type(table.connector)

    def counting(method, change):
        def call(self):
            opened.append(change)
            return method(self)

        return call

    counted = type("Counted", (kind,), {"open": counting(kind.open, 1), "close": counting(kind.close, -1)})
    places = {name: str(tmp_path / value) if value in ("store", "host") else value for name, value in options.items()}
    with LocalJoin(table.with_options(places), ID, counted(table.schema, table.connector.settings)) as join:
        assert join.rows([(1,)]) == [(1, "ann")]
    # Threads disconnect as they end.
    until(lambda: opened and sum(opened) == 0)
    # Of a key that is not cached.
    assert join.rows([(1,), (2,)]) == [(1, "ann"), (2, "bob")]
    join.close()
    until(lambda: sum(opened) == 0)


def test_a_flaky_connector_fails_the_given_number_of_times(table):
    with LocalJoin(table, ID, flaky(table.connector, fails=3)) as join:
        assert join.rows([(1,)]) == [(1, "ann")]
        assert join.source.counters["retries"] == 3


def test_a_flaky_connector_fails_with_the_error_it_was_given(table):
    source = flaky(table.connector, fails=math.inf, error=TimeoutError("late"))
    with LocalJoin(table, ID, source) as join:
        with pytest.raises(LookupFailedError, match="after 4 attempts: TimeoutError: late"):
            join.rows([(1,)])
        source.fail(0)
        assert join.rows([(1,)]) == [(1, "ann")]


@pytest.mark.parametrize("cache", ["NONE", "LRU"])
def test_a_local_join_has_the_columns_for_age_and_error(table, cache):
    options = {"lookup.on-error": "null", "lookup.error-column": "e", "lookup.age-column": "age", "lookup.cache": cache}
    source = flaky(table.connector, fails=math.inf)
    with LocalJoin(table.with_options(options), ID, source) as join:
        [(identity, name, age, error)] = join.rows([(1,)])
        assert (identity, name, age, error["code"]) == (None, None, None, "LOOKUP_FAILED")
        source.fail(0)
        assert join.table([(1,)]).drop(["age"]).to_pylist() == [{"id": 1, "name": "ann", "e": None}]


def test_a_local_join_writes_dead_letters(table, tmp_path):
    options = {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": str(tmp_path / "letters")}
    with LocalJoin(table.with_options(options), ID, flaky(table.connector, fails=math.inf)) as join:
        assert join.rows([(1,)]) == []
    assert pyarrow.dataset.dataset(tmp_path / "letters").to_table(columns=["id"]).to_pylist() == [{"id": 1}]


def test_a_slow_connector_delays_calls_until_they_are_released(table):
    source, found = slow(table.connector), []
    with LocalJoin(table, ID, source) as join:
        thread = threading.Thread(target=lambda: found.extend(join.rows([(1,)])))
        thread.start()
        assert source.wait_for_calls()
        assert found == []
        source.let_go()
        thread.join()
        assert found == [(1, "ann")]
        source.hold()
        assert not source.wait_for_calls(timeout=0)


def test_a_clock_shows_the_time_that_is_set():
    clock = FakeClock(start=10)
    clock.sleep(1.5)
    asyncio.run(clock.sleep_async(0.5))
    assert (clock.tick(3), clock()) == (15.0, 15.0)
