"""Checks of the lifecycle: options, pickling, opening, closing, and a source that fails and recovers."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from lookupcache.connector import Connector, offers, request_of
from lookupcache.errors import LookupCacheError, LookupRuntimeError, OptionError, SchemaError
from lookupcache.executor.call_group import event_loop
from lookupcache.table import LookupTable
from lookupcache.testing.checks import ID, Checks, Load, call_threads, eventually, fail_check, people, table_of
from lookupcache.testing.join import LocalJoin, Wanted, plan_of

_OURS = ("lookupcache-", "asyncio_")
"""Name prefixes of threads that outlive connectors: those of lookupcache and of the event loop."""
_RETRIES = {"lookup.max-retries": "5", "lookup.retry.delay": "10 ms", "lookup.retry.max-delay": "100 ms"}


class LifecycleChecks(Checks):
    """Checks of options, pickling, opening, closing and recovery."""

    # ── options ──────────────────────────────────────────────────────────────────────────────────────────

    def test_an_unknown_option_is_refused(self, load: Load) -> None:
        """An unknown option raises an error that names it."""
        rows = people()
        options = {**load(rows, ["id"]), "no-such-option": "1"}
        hint = "Define `options` in the class, a dict from each option's name to a line of documentation."
        self._expect_refusal(rows, options, "no-such-option", hint)

    def test_a_missing_option_is_refused(self, load: Load) -> None:
        """A missing required option raises an error that names it, on the driver."""
        rows = people()
        options = load(rows, ["id"])
        if not self.kind.required and any(self._misses(name, rows, options) for name in options):
            fail_check(
                "The connector fails without one of its options, but not with a clear error.",
                "Add the option to the class's `required`.",
            )
        for name in self.kind.required:
            rest = {key: value for key, value in options.items() if key != name}
            self._expect_refusal(rows, rest, name, "Add the option to the class's `required`.")

    # ── planning ─────────────────────────────────────────────────────────────────────────────────────────

    def test_a_join_by_its_key_can_be_planned(self, load: Load) -> None:
        """Before it is opened, the connector accepts a join by its key; one that it refuses, it refuses by an error."""
        rows = table_of({"id": ("bigint", [1, 2]), "part": ("bigint", [7, 8]), "name": ("string", ["ann", "bob"])})
        table = self.table(rows.schema, load(rows, ["id", "part"]))
        for name in ("id", "part"):
            if not self._plan(lambda name=name: table.connector.may_be_key(name)):  # type: ignore[misc]
                fail_check(
                    f"No join can be made by {name!r}, a column of the key.", "Return true for it in `may_be_key`."
                )
        for key in (("id", "part"), ("id",), ("name",), ("id", "part", "name")):
            request = request_of(plan_of(table, Wanted(key=key)))
            try:
                self._plan(lambda request=request: table.connector.check(request))  # type: ignore[misc]
            except LookupCacheError as error:
                if key == ("id", "part"):
                    fail_check(f"`check` refuses a join by the key: {error}", "Accept it.")

    def test_an_inferred_schema_is_that_of_the_rows(self, load: Load) -> None:
        """A table without schema has the columns of the source; nothing that was opened to read them stays open."""
        if not offers(self.kind, "infer_schema"):
            return
        rows = people()
        options, before = load(rows, ["id"]), _open_resources()
        try:
            table = self.table(None, options)
        except SchemaError:
            return  # The source has no types for its columns, or none of Spark's.
        if missing := [name for name in rows.schema.names if name not in table.schema.names]:
            found = ", ".join(table.schema.names)
            fail_check(
                f"`infer_schema` has no column {missing[0]!r}, but {found}.", "Return all columns of the source."
            )
        if not eventually(lambda: not _open_resources() - before, self.patience):
            left = ", ".join(sorted(_open_resources() - before))
            fail_check(
                f"After `infer_schema`, these resources are still open: {left}.", "Close them in `infer_schema`."
            )
        wanted, keys = Wanted(key=("id",), columns=("name",)), [(1,), (4,)]
        with LocalJoin(table, wanted) as join:
            self.compare(join.rows(keys), rows, wanted, keys, "Return the types in which `lookup` returns the columns.")

    # ── pickling, opening, closing ───────────────────────────────────────────────────────────────────────

    def test_it_is_pickled_before_it_is_opened(self, load: Load) -> None:
        """A connector is pickled, sent to the workers, and works there."""
        rows = people()
        table = self.table(rows.schema, load(rows, ["id"]))
        self._expect_works_unpickled(
            rows, table, table.connector, "Create clients in `open`, which runs in the worker, not in __init__."
        )

    def test_it_is_pickled_after_it_was_closed(self, load: Load) -> None:
        """After `close`, the connector can be pickled."""
        rows = people()
        table, before = self.table(rows.schema, load(rows, ["id"])), call_threads()
        with LocalJoin(table, ID) as join:
            join.rows([(1,)])
        eventually(lambda: not call_threads() - before, self.patience)
        self._expect_works_unpickled(rows, table, table.connector, "Set the clients on `self` to None in `close`.")

    def test_it_opens_again_after_it_was_closed(self, load: Load) -> None:
        """A connector that was closed can be opened again."""
        rows = people()
        hint = "Restore in `close` what `open` needs; create all clients in `open`."
        before = call_threads()
        with LocalJoin(self.table(rows.schema, load(rows, ["id"])), ID) as join:
            for _ in range(2):
                self.compare(join.rows([(1,), (4,)]), rows, ID, [(1,), (4,)], hint)
                join.close()
                eventually(lambda: not call_threads() - before, self.patience)

    def test_nothing_is_left_when_it_is_closed(self, load: Load) -> None:
        """`close` ends or closes all threads, tasks, connections and files."""
        rows = people()
        table = self.table(rows.schema, load(rows, ["id"]))
        event_loop()
        before = _open_resources()
        with LocalJoin(table, ID) as join:
            join.rows([(1,), (4,)])
        if not eventually(lambda: not _open_resources() - before, self.patience):
            left = ", ".join(sorted(_open_resources() - before))
            fail_check(
                f"After `close`, these resources are still open: {left}.",
                "Close everything in `close` that `open` or a lookup opened.",
            )

    # ── a source that fails ──────────────────────────────────────────────────────────────────────────────

    def test_a_source_that_dies_and_comes_back(self, load: Load, request: pytest.FixtureRequest) -> None:
        """While the source is down, lookups fail and are not misses; when it is back, they return its rows."""
        rows = people()
        kill, start = request.getfixturevalue("restart")
        options = load(rows, ["id"])
        with LocalJoin(self.table(rows.schema, options, _RETRIES), ID) as join:
            self.compare(join.rows([(1,)]), rows, ID, [(1,)], "Return the rows of the keys.")
            kill()
            self._expect_failure(join)
            for lookup in self._ways():
                with LocalJoin(self.table(rows.schema, options, lookup), ID) as other:
                    self._expect_failure(other)
            start()
            hint = (
                "After a broken connection the next call must open a new one: discard the client that failed, or use "
                "one that reconnects. `retryable` must return true for lost and refused connections."
            )
            try:
                found = join.rows([(1,), (2,), (4,)])
            except LookupRuntimeError as error:
                fail_check(f"The source is running again, but lookups still fail: {error}", hint)
            self.compare(found, rows, ID, [(1,), (2,), (4,)], hint)

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────

    def _expect_refusal(self, rows: pa.Table, options: Mapping[str, Any], name: str, hint: str) -> None:
        try:
            self.table(rows.schema, options)
        except OptionError as error:
            if name in str(error):
                return
            fail_check(f"The error does not name option {name!r}: {error}", hint)
        fail_check(f"Option {name!r} {'is accepted' if name in options else 'may be missing without an error'}.", hint)

    def _plan(self, work: Callable[[], Any]) -> Any:
        """Return the result of a method that is called on the driver; an error that is not lookupcache's fails."""
        try:
            return work()
        except LookupCacheError:
            raise
        except Exception as error:
            fail_check(
                f"A join cannot be planned: {type(error).__name__}: {error}",
                "`may_be_key` and `check` are called on the driver, before `open`; refuse a join by PlanError.",
            )

    def _misses(self, name: str, rows: pa.Table, options: Mapping[str, Any]) -> bool:
        """Return whether the connector looks up an option that is not there."""
        try:
            with suppress(LookupCacheError):
                self.table(rows.schema, {key: value for key, value in options.items() if key != name})
        except KeyError:
            return True
        return False

    def _expect_works_unpickled(self, rows: pa.Table, table: LookupTable, connector: Connector, hint: str) -> None:
        try:
            copied = pickle.loads(cloudpickle.dumps(connector))
        except Exception as error:
            fail_check(f"The connector cannot be pickled: {type(error).__name__}: {error}", hint)
        with LocalJoin(table, ID, copied) as join:
            self.compare(join.rows([(1,), (4,)]), rows, ID, [(1,), (4,)], "What __init__ sets must be pickled.")

    def _ways(self) -> list[dict[str, str]]:
        """Return options for each other way in which the connector can be called."""
        ways = [{"lookup.cache": "ALL"}] if self.can_scan else []
        if offers(self.kind, "lookup") and offers(self.kind, "lookup_async"):
            ways += [{"lookup.async": "true"}, {"lookup.async": "false"}]
        return ways

    def _expect_failure(self, join: LocalJoin) -> None:
        """Fail the check if a lookup of one key or of several returns something."""
        hint = "Do not catch the driver's error: a result without rows means that the keys have none."
        for keys in ([(2,)], [(2,), (4,), (7,)]):
            try:
                found = join.rows(keys)
            except LookupCacheError:
                continue
            fail_check(f"The source is down, but a lookup of {len(keys)} keys returned {found}.", hint)


def _open_resources() -> Counter[str]:
    """Count the threads and tasks of this process, and its open files and connections if the system lists them."""
    gc.collect()
    threads = [f"thread {thread.name}" for thread in threading.enumerate() if not thread.name.startswith(_OURS)]
    tasks = [f"task {task.get_name()} of {task.get_coro()}" for task in asyncio.all_tasks(event_loop())]
    return Counter([*threads, *tasks, *_open_files()])


def _open_files() -> Iterator[str]:
    """Yield the open files and sockets, if the system lists them."""
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(("socket:", "/")) and not target.startswith(("/dev/", "/proc/")):
            yield f"{'connection' if target.startswith('socket:') else 'file'} {target}"
