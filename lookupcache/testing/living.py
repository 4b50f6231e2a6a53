"""Checks of a connector's life: options, pickling, opening, closing, a source that dies, and secrets kept."""

from __future__ import annotations

import base64
import gc
import json
import logging
import os
import pickle
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cloudpickle
import pyarrow as pa
import pytest

from lookupcache.connector import Connector, is_secret
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, SourceTrouble
from lookupcache.flight import event_loop
from lookupcache.planner.explain import explain
from lookupcache.table import LookupTable
from lookupcache.testing.checks import Checks, Load, refuse, table_of
from lookupcache.testing.join import LocalJoin, Wanted, plan_of

SECRET = "hunter2-4x"
_VARIABLE = "LOOKUPCACHE_SUITE_SECRET"
_OURS = ("lookupcache-", "asyncio_")
_PATIENCE = 10.0
_RETRIES = {"lookup.max-retries": "5", "lookup.retry.delay": "10 ms", "lookup.retry.max-delay": "100 ms"}
ID = Wanted(key=("id",))


def people() -> pa.Table:
    """Return a small table."""
    return table_of({"id": ("bigint", [1, 2, 3]), "name": ("string", ["ann", "bob", "cy"])})


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
        table = self.table(rows.schema, load(rows, ["id"]))
        with LocalJoin(table, ID) as join:
            join.rows([(1,)])
        _eventually(lambda: not _lanes())
        self._expect_copy(rows, table, table.connector, "Let `close` set the clients on `self` to None.")

    def test_it_opens_again_after_it_was_closed(self, load: Load) -> None:
        """A connector that was closed can be opened again."""
        rows = people()
        cure = "Let `close` put back what `open` needs; let `open` make all clients anew."
        with LocalJoin(self.table(rows.schema, load(rows, ["id"])), ID) as join:
            for _ in range(2):
                self.compare(join.rows([(1,), (4,)]), rows, ID, [(1,), (4,)], cure)
                join.close()
                _eventually(lambda: not _lanes())

    def test_nothing_is_left_when_it_is_closed(self, load: Load) -> None:
        """`close` ends threads, tasks, connections and files."""
        rows = people()
        table = self.table(rows.schema, load(rows, ["id"]))
        event_loop()
        before = _held()
        with LocalJoin(table, ID) as join:
            join.rows([(1,), (4,)])
        if not _eventually(lambda: not _held() - before):
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

    # ── secrets ──────────────────────────────────────────────────────────────────────────────────────────

    def test_secrets_are_not_shown(
        self, load: Load, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """No secret is in a repr, a plan, explain, a log or an error, whether it opens the door or not."""
        rows = people()
        options = load(rows, ["id"])
        with caplog.at_level(logging.DEBUG):
            for name, changed in self._wrong_secrets(options):
                self._expect_hidden(f"option {name!r}", rows.schema, changed, [SECRET], caplog, capfd)
            own = [secret for secret in self._secrets(rows.schema, options) if len(secret) > 5]
            broken = rows.schema.append(pa.field("no_such_column", pa.int32()))
            for schema in (rows.schema, broken):
                self._expect_hidden("the table's own options", schema, options, own, caplog, capfd)

    @pytest.mark.parametrize("kind", ["env", "file"])
    def test_secrets_by_reference(self, load: Load, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Options with secrets may be references, which only the worker reads."""
        rows = people()
        options = load(rows, ["id"])
        for name in self._may_be_references(options):
            reference = f"env:{_VARIABLE}" if kind == "env" else f"file:{tmp_path / 'secret'}"
            table = self._referring(rows.schema, {**options, name: reference}, name)
            shown = [
                repr(table.connector),
                repr(plan_of(table, ID)),
                cloudpickle.dumps(table.connector).decode("latin-1"),
            ]
            monkeypatch.setenv(_VARIABLE, str(options[name]))
            (tmp_path / "secret").write_text(f"{options[name]}\n")
            cure = f"Read {name!r} in `open`, from `self.settings`, where references are resolved; not in __init__."
            with LocalJoin(table, ID) as join:
                self.compare(join.rows([(1,), (4,)]), rows, ID, [(1,), (4,)], cure)
                shown += [repr(join.source.connector), cloudpickle.dumps(table.connector).decode("latin-1")]
            if any(str(options[name]) in text for text in shown):
                refuse(
                    f"Option {name!r} is a reference, and its value is shown.",
                    "Keep resolved values out of __repr__ and pickles.",
                )
            monkeypatch.delenv(_VARIABLE)
            (tmp_path / "secret").unlink()

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

    def _secrets(self, schema: pa.Schema, options: Mapping[str, Any]) -> list[str]:
        return self.table(schema, options).connector.secret_values()

    def _secret_options(self) -> Iterator[str]:
        """Yield the names of options that hold secrets; where they are a family, as in ``header.*``, one of it."""
        secrets = self.kind.secrets if isinstance(self.kind.secrets, list | tuple | set) else ()
        for name in self.kind.options or ():
            if is_secret(name, secrets) or name.endswith("*"):
                yield name.replace("*", "x-token")

    def _wrong_secrets(self, options: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in self._secret_options():
            yield name, {**options, name: SECRET}
        for name, value in options.items():
            if "://" in str(value):
                yield name, {**options, name: re.sub(r"://([^/@?]*@)?", f"://lookup:{SECRET}@", str(value), count=1)}

    def _may_be_references(self, options: Mapping[str, Any]) -> list[str]:
        secret = set(self._secret_options())
        chosen = [name for name, value in options.items() if name in secret or "://" in str(value)]
        return chosen or list(options)[:1]

    def _referring(self, schema: pa.Schema, options: Mapping[str, Any], name: str) -> LookupTable:  # noqa: RET503
        """Return a table whose option is a reference to what is not there yet, which is an error that says so."""
        cure = f"Read {name!r} in `open`, from `self.settings`; on the driver it may be a reference."
        try:
            table = self.table(schema, options)
        except LookupCacheError as error:
            refuse(f"Option {name!r} may not be a reference: {error}", cure)
        try:
            with LocalJoin(table, ID) as join:
                join.rows([(1,)])
        except ConnectorError as error:
            if name in str(error) and str(options[name]) in str(error):
                return self.table(schema, options)
            refuse(f"The error for a missing reference does not name option {name!r} and the reference: {error}", cure)
        refuse(f"Option {name!r} refers to what is not there, and nobody minds.", cure)

    def _expect_hidden(
        self,
        what: str,
        schema: pa.Schema,
        options: Mapping[str, Any],
        secrets: list[str],
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        shown = {
            **_shown(lambda: self.table(schema, options)),
            "a log": caplog.text,
            "what was printed": "".join(capfd.readouterr()),
        }
        forms = {form for secret in secrets for form in (secret, quote(secret, safe=""), _basic(secret))}
        for place, text in shown.items():
            if any(form in text for form in forms):
                refuse(
                    f"A secret of {what} is shown in {place}.",
                    "Name options with secrets in the class's `secrets`; let no error and no log say what they hold.",
                )


def _basic(secret: str) -> str:
    return base64.b64encode(f"lookup:{secret}".encode()).decode()


def _shown(make: Callable[[], LookupTable]) -> dict[str, str]:
    """Return all that is said of a table and by a lookup in it, by where it is said."""
    try:
        table = make()
    except LookupCacheError as error:
        return {"an error on the driver": "".join(traceback.format_exception(error))}
    plan = plan_of(table, ID)
    shown = {
        "the repr of the table": repr(table),
        "the repr of the connector": repr(table.connector),
        "the plan": json.dumps(plan.to_json()),
        "explain": explain(plan),
    }
    try:
        with LocalJoin(table, ID) as join:
            join.rows([(1,)])
    except LookupCacheError as error:
        shown["the error of a lookup"] = "".join(traceback.format_exception(error))
    return shown


def _lanes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lookupcache-lane"]


def _held() -> set[str]:
    """Return the threads of this process that are not lookupcache's own, and where it can be told its open files."""
    gc.collect()
    threads = {f"thread {t.name}" for t in threading.enumerate() if not t.name.startswith(_OURS[1:])}
    return threads | set(_open_files())


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


def _eventually(true: Callable[[], bool]) -> bool:
    """Wait until something is so, for a while: threads end, and connections close, in their own time."""
    ends, pause = time.monotonic() + _PATIENCE, threading.Event()
    while not true():
        if time.monotonic() > ends:
            return False
        pause.wait(0.01)
    return True
