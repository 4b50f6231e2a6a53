"""Checks that secrets are not shown, both those in options and those that options refer to."""

from __future__ import annotations

import base64
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import cloudpickle
import pyarrow as pa
import pytest

from lookupcache.connector import Connector, is_secret
from lookupcache.errors import ConnectorError, LookupCacheError
from lookupcache.planner.explain import explain
from lookupcache.table import LookupTable
from lookupcache.testing.checks import ID, Checks, Load, call_threads, eventually, fail_check, people
from lookupcache.testing.join import LocalJoin, plan_of

SECRET = "hunter2-4x"
"""The wrong password of the checks; it must not be shown anywhere."""

_VARIABLE = "LOOKUPCACHE_SUITE_SECRET"
_MIN_LENGTH = 6


class SecretChecks(Checks):
    """Checks of secrets."""

    def test_secrets_are_not_shown(
        self, load: Load, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """No secret is in a repr, a plan, explain, a log or an error, whether it is valid or not."""
        rows = people()
        options = load(rows, ["id"])
        own = [one for one in self.table(rows.schema, options).connector.secret_values() if len(one) >= _MIN_LENGTH]
        mismatched = rows.schema.append(pa.field("no_such_column", pa.int32()))
        cases = [(rows.schema, options, own), (mismatched, options, own)]
        cases += [(rows.schema, wrong, [SECRET]) for wrong in self._wrong_secrets(options)]
        for schema, used, secrets in cases:
            with caplog.at_level(logging.DEBUG):
                shown = _collect_texts(lambda: self.table(schema, used))  # noqa: B023
            shown |= {"a log": caplog.text, "printed output": "".join(capfd.readouterr())}
            _expect_hidden(secrets, shown)

    @pytest.mark.parametrize("kind", ["env", "file"])
    def test_secrets_by_reference(self, load: Load, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Options with secrets may be references, which only the worker resolves."""
        rows, path = people(), tmp_path / "secret"
        options = load(rows, ["id"])
        for name in self._reference_options(options):
            value = str(options[name])
            changed = {**options, name: f"env:{_VARIABLE}" if kind == "env" else f"file:{path}"}
            self._expect_error_in_worker(rows.schema, changed, name)
            monkeypatch.setenv(_VARIABLE, value)
            path.write_text(f"{value}\n")
            self._expect_resolved(rows, changed, name, value)
            monkeypatch.delenv(_VARIABLE)
            path.unlink()

    # ── wrong secrets ────────────────────────────────────────────────────────────────────────────────────

    def _secret_options(self) -> Iterator[str]:
        """Yield the names of options with secrets; for a pattern such as ``header.*``, one matching name."""
        secrets = self.kind.secrets if isinstance(self.kind.secrets, list | tuple | set) else ()
        for name in (*(self.kind.options or ()), *self.kind.renamed):
            if is_secret(name, secrets) or name.endswith("*"):
                yield name.replace("*", "x-token")

    def _wrong_secrets(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the options with one wrong secret each: in each secret option, and in each URL."""
        for name in self._secret_options():
            yield {**options, name: SECRET}
        for name, value in options.items():
            if "://" in str(value):
                yield {**options, name: re.sub(r"://([^/@?]*@)?", f"://lookup:{SECRET}@", str(value), count=1)}

    # ── references ───────────────────────────────────────────────────────────────────────────────────────

    def _reference_options(self, options: Mapping[str, Any]) -> list[str]:
        secret = set(self._secret_options())
        chosen = [name for name, value in options.items() if name in secret or "://" in str(value)]
        return chosen or list(options)[:1]

    def _expect_error_in_worker(self, schema: pa.Schema, options: Mapping[str, Any], name: str) -> None:
        """Expect that an unresolvable reference is accepted on the driver, and raises an error in the worker."""
        try:
            table = self.table(schema, options)
        except LookupCacheError as error:
            _fail_reading(name, f"Option {name!r} may not be a reference: {error}")
        try:
            with LocalJoin(table, ID) as join:
                join.rows([(1,)])
        except ConnectorError as error:
            if name not in str(error) or str(options[name]) not in str(error):
                _fail_reading(name, f"The error for a missing reference names neither it nor {name!r}: {error}")
            return
        _fail_reading(name, f"Option {name!r} is a reference to a missing secret, but no error is raised.")

    def _expect_resolved(self, rows: pa.Table, options: Mapping[str, Any], name: str, value: str) -> None:
        """Expect that a reference works, and that the secret it refers to is not shown."""
        table, keys, before = self.table(rows.schema, options), [(1,), (4,)], call_threads()
        hint = f"Read {name!r} in `open`, from `self.settings`, where references are resolved; not in __init__."
        shown = {"a pickle": _pickle_as_text(table.connector), **_describe_table(table)}
        with LocalJoin(table, ID) as join:
            try:
                found = join.rows(keys)
            except LookupCacheError as error:
                _fail_reading(name, f"With option {name!r} as a reference, lookups fail: {error}")
            shown["the repr of the open connector"] = repr(table.connector)
        eventually(lambda: not call_threads() - before, self.patience)
        shown["a pickle of the closed connector"] = _pickle_as_text(table.connector)
        self.compare(found, rows, ID, keys, hint)
        _expect_hidden([value], shown)


def _fail_reading(name: str, fact: str) -> NoReturn:
    fail_check(fact, f"Read {name!r} in `open`, from `self.settings`; before `open` it may be a reference.")


def _expect_hidden(secrets: list[str], shown: Mapping[str, str]) -> None:
    forms = {form for one in secrets for form in (one, quote(one, safe=""), _basic_auth(one), *_in_json(one))}
    for location, text in shown.items():
        if any(form in text for form in forms):
            fail_check(
                f"A secret is shown in {location}.",
                "List options with secrets in the class's `secrets`; keep their values out of errors, logs and reprs.",
            )


def _basic_auth(secret: str) -> str:
    return base64.b64encode(f"lookup:{secret}".encode()).decode()


def _in_json(secret: str) -> tuple[str, str]:
    """Return a secret as JSON spells it, without and with escaped slashes."""
    text = json.dumps(secret)[1:-1]
    return text, text.replace("/", "\\/")


def _pickle_as_text(connector: Connector) -> str:
    """Return a pickle as text, or an empty text; another check covers whether it can be pickled."""
    with suppress(Exception):
        return cloudpickle.dumps(connector).decode("latin-1")
    return ""


def _describe_table(table: LookupTable) -> dict[str, str]:
    plan = plan_of(table, ID)
    return {
        "the repr of the table": repr(table),
        "the repr of the connector": repr(table.connector),
        "the plan": json.dumps(plan.to_json()),
        "explain": explain(plan),
    }


def _collect_texts(make: Callable[[], LookupTable]) -> dict[str, str]:
    """Return all texts that a table and a lookup in it produce, by where they appear."""
    try:
        table = make()
    except LookupCacheError as error:
        return {"an error on the driver": "".join(traceback.format_exception(error))}
    shown = _describe_table(table)
    try:
        with LocalJoin(table, ID) as join:
            join.rows([(1,)])
    except LookupCacheError as error:
        shown["the error of a lookup"] = "".join(traceback.format_exception(error))
    return shown
