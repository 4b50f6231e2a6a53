"""Checks of a connector's life: options, pickling, opening, closing, and a source that dies."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from lookupcache.calls.flight import event_loop
from lookupcache.connector import Connector
from lookupcache.errors import LookupCacheError, OptionError, SourceTrouble
from lookupcache.table import LookupTable
from lookupcache.testing.checks import Checks, Load, eventually, lanes, people, refuse
from lookupcache.testing.join import LocalJoin, Wanted

_OURS = ("lookupcache-", "asyncio_")
"""Threads that outlive connectors: of lookupcache, and of the event loop."""
_RETRIES = {"lookup.max-retries": "5", "lookup.retry.delay": "10 ms", "lookup.retry.max-delay": "100 ms"}
ID = Wanted(key=("id",))


class LivingChecks(Checks):
    """Life and death."""

    # ── options ──────────────────────────────────────────────────────────────────────────────────────────

    def test_an_unknown_option_is_refused(self, load: Load) -> None:
        """An option that the connector does not know is an error that names it."""
        rows = people()
        options = {**load(rows, ["id"]), "no-such-option": "1"}
        cure = "Give the class `options`, a dict from each option's name to a line that says what it is."
        self._expect_refusal(rows, options, "no-such-option", cure)

    def test_a_missing_option_is_refused(self, load: Load) -> None:
        """An option that the connector cannot do without is missed by name, on the driver."""
        rows = people()
        options = load(rows, ["id"])
        if not self.kind.required and any(map(self._needs(rows, options), options)):
            refuse(
                "The connector fails without one of its options, but not clearly.", "Name it in the class's `required`."
            )
        for name in self.kind.required:
            rest = {key: value for key, value in options.items() if key != name}
            self._expect_refusal(rows, rest, name, "Name the option in the class's `required`.")

    # ── pickling, opening, closing ───────────────────────────────────────────────────────────────────────

    def test_it_is_pickled_before_it_is_opened(self, load: Load) -> None:
        """A connector goes to the workers as a pickle, and answers there."""
        rows = people()
        table = self.table(rows.schema, load(rows, ["id"]))
        self._expect_copy(
            rows, table, table.connector, "Make clients in `open`, which runs in the worker, not in __init__."
        )

    def test_it_is_pickled_after_it_was_closed(self, load: Load) -> None:
        """`close` leaves nothing that cannot be pickled."""
        rows = people()
        table, before = self.table(rows.schema, load(rows, ["id"])), lanes()
        with LocalJoin(table, ID) as join:
            join.rows([(1,)])
        eventually(lambda: not lanes() - before, self.patience)
        self._expect_copy(rows, table, table.connector, "Let `close` set the clients on `self` to None.")

    def test_it_opens_again_after_it_was_closed(self, load: Load) -> None:
        """A connector that was closed can be opened again."""
        rows = people()
        cure = "Let `close` put back what `open` needs; let `open` make all clients anew."
        before = lanes()
        with LocalJoin(self.table(rows.schema, load(rows, ["id"])), ID) as join:
            for _ in range(2):
                self.compare(join.rows([(1,), (4,)]), rows, ID, [(1,), (4,)], cure)
                join.close()
                eventually(lambda: not lanes() - before, self.patience)

    def test_nothing_is_left_when_it_is_closed(self, load: Load) -> None:
        """`close` ends threads, tasks, connections and files."""
        rows = people()
        table = self.table(rows.schema, load(rows, ["id"]))
        event_loop()
        before = _held()
        with LocalJoin(table, ID) as join:
            join.rows([(1,), (4,)])
        if not eventually(lambda: not _held() - before, self.patience):
            left = ", ".join(sorted(_held() - before))
            refuse(
                f"When the connector is closed, this is left: {left}.",
                "Close in `close` whatever `open` or a lookup opens.",
            )

    # ── a source that dies ───────────────────────────────────────────────────────────────────────────────

    def test_a_source_that_dies_and_comes_back(self, load: Load, request: pytest.FixtureRequest) -> None:
        """While the source is dead lookups fail, and are no misses; when it is back they find what is there."""
        rows = people()
        kill, start = request.getfixturevalue("restart")
        table = self.table(rows.schema, load(rows, ["id"]), _RETRIES)
        with LocalJoin(table, ID) as join:
            self.compare(join.rows([(1,)]), rows, ID, [(1,)], "Return the rows of the keys.")
            kill()
            self._expect_trouble(join)
            start()
            cure = (
                "After a broken connection the next call must make a new one: drop the client where it failed, or take "
                "one that connects again. `retryable` must say that lost and refused connections are worth a retry."
            )
            try:
                found = join.rows([(1,), (2,), (4,)])
            except SourceTrouble as error:
                refuse(f"The source is back, but lookups still fail: {error}", cure)
            self.compare(found, rows, ID, [(1,), (2,), (4,)], cure)

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────

    def _expect_refusal(self, rows: pa.Table, options: Mapping[str, Any], name: str, cure: str) -> None:
        try:
            self.table(rows.schema, options)
        except OptionError as error:
            if name in str(error):
                return
            refuse(f"The error does not name option {name!r}: {error}", cure)
        refuse(f"Option {name!r} {'is taken' if name in options else 'is not missed'}.", cure)

    def _needs(self, rows: pa.Table, options: Mapping[str, Any]) -> Callable[[str], bool]:
        def fails_without(name: str) -> bool:
            try:
                self.table(rows.schema, {key: value for key, value in options.items() if key != name})
            except KeyError:
                return True
            except LookupCacheError:
                return False
            return False

        return fails_without

    def _expect_copy(self, rows: pa.Table, table: LookupTable, connector: Connector, cure: str) -> None:
        try:
            copied = pickle.loads(cloudpickle.dumps(connector))
        except Exception as error:
            refuse(f"The connector cannot be pickled: {type(error).__name__}: {error}", cure)
        with LocalJoin(table, ID, copied) as join:
            self.compare(join.rows([(1,), (4,)]), rows, ID, [(1,), (4,)], "What __init__ sets must survive the pickle.")

    def _expect_trouble(self, join: LocalJoin) -> None:
        cure = "Let the driver's error pass: an answer without rows says that there are none."
        try:
            found = join.rows([(2,)])
        except SourceTrouble:
            return
        refuse(f"The source is dead, and a lookup returned {found}.", cure)


def _held() -> set[str]:
    """Return the threads and tasks of this process, and where it can be told its open files and connections."""
    gc.collect()
    threads = {f"thread {thread.name}" for thread in threading.enumerate() if not thread.name.startswith(_OURS)}
    tasks = {f"task {task.get_name()} of {task.get_coro()}" for task in asyncio.all_tasks(event_loop())}
    return threads | tasks | set(_open_files())


def _open_files() -> Iterator[str]:
    """Yield the open files and sockets, where the system shows them."""
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        try:
            place = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if place.startswith(("socket:", "/")) and not place.startswith(("/dev/", "/proc/")):
            yield f"{'connection' if place.startswith('socket:') else 'file'} {place}"
