"""Checks that secrets stay secret, those in options and those that options refer to."""

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
from lookupcache.testing.checks import Checks, Load, eventually, lanes, people, refuse
from lookupcache.testing.join import LocalJoin, Wanted, plan_of

SECRET = "hunter2-4x"
"""What is given for a password: it opens nothing, and must be found nowhere."""

_VARIABLE = "LOOKUPCACHE_SUITE_SECRET"
_ID = Wanted(key=("id",))
_SHORTEST = 6


class SecrecyChecks(Checks):
    """Secrets."""

    def test_secrets_are_not_shown(
        self, load: Load, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """No secret is in a repr, a plan, explain, a log or an error, whether it opens the door or not."""
        rows = people()
        options = load(rows, ["id"])
        own = [one for one in self.table(rows.schema, options).connector.secret_values() if len(one) >= _SHORTEST]
        unlike = rows.schema.append(pa.field("no_such_column", pa.int32()))
        cases = [(rows.schema, options, own), (unlike, options, own)]
        cases += [(rows.schema, wrong, [SECRET]) for wrong in self._wrong_secrets(options)]
        for schema, given, secrets in cases:
            with caplog.at_level(logging.DEBUG):
                shown = _shown(lambda: self.table(schema, given))  # noqa: B023
            shown |= {"a log": caplog.text, "what was printed": "".join(capfd.readouterr())}
            _expect_hidden(secrets, shown)

    @pytest.mark.parametrize("kind", ["env", "file"])
    def test_secrets_by_reference(self, load: Load, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Options with secrets may be references, which only the worker reads."""
        rows, place = people(), tmp_path / "secret"
        options = load(rows, ["id"])
        for name in self._may_be_references(options):
            value = str(options[name])
            changed = {**options, name: f"env:{_VARIABLE}" if kind == "env" else f"file:{place}"}
            self._expect_missed(rows.schema, changed, name)
            monkeypatch.setenv(_VARIABLE, value)
            place.write_text(f"{value}\n")
            self._expect_resolved(rows, changed, name, value)
            monkeypatch.delenv(_VARIABLE)
            place.unlink()

    # ── wrong secrets ────────────────────────────────────────────────────────────────────────────────────

    def _secret_options(self) -> Iterator[str]:
        """Yield the names of options that hold secrets; where they are a family, as in ``header.*``, one of it."""
        secrets = self.kind.secrets if isinstance(self.kind.secrets, list | tuple | set) else ()
        for name in self.kind.options or ():
            if is_secret(name, secrets) or name.endswith("*"):
                yield name.replace("*", "x-token")

    def _wrong_secrets(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the options, each time with another wrong secret: for each option that is one, and in each URL."""
        for name in self._secret_options():
            yield {**options, name: SECRET}
        for name, value in options.items():
            if "://" in str(value):
                yield {**options, name: re.sub(r"://([^/@?]*@)?", f"://lookup:{SECRET}@", str(value), count=1)}

    # ── references ───────────────────────────────────────────────────────────────────────────────────────

    def _may_be_references(self, options: Mapping[str, Any]) -> list[str]:
        secret = set(self._secret_options())
        chosen = [name for name, value in options.items() if name in secret or "://" in str(value)]
        return chosen or list(options)[:1]

    def _expect_missed(self, schema: pa.Schema, options: Mapping[str, Any], name: str) -> None:
        """Expect that a reference to what is not there is no error on the driver, but one in the worker."""
        try:
            table = self.table(schema, options)
        except LookupCacheError as error:
            _refuse_reading(name, f"Option {name!r} may not be a reference: {error}")
        try:
            with LocalJoin(table, _ID) as join:
                join.rows([(1,)])
        except ConnectorError as error:
            if name not in str(error) or str(options[name]) not in str(error):
                _refuse_reading(name, f"The error for a missing reference names neither it nor {name!r}: {error}")
            return
        _refuse_reading(name, f"Option {name!r} refers to what is not there, and nobody minds.")

    def _expect_resolved(self, rows: pa.Table, options: Mapping[str, Any], name: str, value: str) -> None:
        """Expect that a reference opens the door, and that what it stands for is shown nowhere."""
        table, keys, before = self.table(rows.schema, options), [(1,), (4,)], lanes()
        cure = f"Read {name!r} in `open`, from `self.settings`, where references are resolved; not in __init__."
        shown = {"a pickle": _pickled(table.connector), **_said_of(table)}
        with LocalJoin(table, _ID) as join:
            try:
                found = join.rows(keys)
            except LookupCacheError as error:
                _refuse_reading(name, f"With option {name!r} as a reference, lookups fail: {error}")
            shown["the repr of the open connector"] = repr(table.connector)
        eventually(lambda: not lanes() - before, self.patience)
        shown["a pickle of the closed connector"] = _pickled(table.connector)
        self.compare(found, rows, _ID, keys, cure)
        _expect_hidden([value], shown)


def _refuse_reading(name: str, fact: str) -> NoReturn:
    refuse(fact, f"Read {name!r} in `open`, from `self.settings`; before, and in __init__, it may be a reference.")


def _expect_hidden(secrets: list[str], shown: Mapping[str, str]) -> None:
    forms = {form for one in secrets for form in (one, quote(one, safe=""), _basic(one), *_in_json(one))}
    for place, text in shown.items():
        if any(form in text for form in forms):
            refuse(
                f"A secret is shown in {place}.",
                "Name options with secrets in the class's `secrets`; let no error, log or repr say what they hold.",
            )


def _basic(secret: str) -> str:
    return base64.b64encode(f"lookup:{secret}".encode()).decode()


def _in_json(secret: str) -> tuple[str, str]:
    """Return how a secret stands in JSON, and how where slashes are escaped too."""
    text = json.dumps(secret)[1:-1]
    return text, text.replace("/", "\\/")


def _pickled(connector: Connector) -> str:
    """Return a pickle as text; whether there is one at all, another check says."""
    with suppress(Exception):
        return cloudpickle.dumps(connector).decode("latin-1")
    return ""


def _said_of(table: LookupTable) -> dict[str, str]:
    plan = plan_of(table, _ID)
    return {
        "the repr of the table": repr(table),
        "the repr of the connector": repr(table.connector),
        "the plan": json.dumps(plan.to_json()),
        "explain": explain(plan),
    }


def _shown(make: Callable[[], LookupTable]) -> dict[str, str]:
    """Return all that is said of a table and by a lookup in it, by where it is said."""
    try:
        table = make()
    except LookupCacheError as error:
        return {"an error on the driver": "".join(traceback.format_exception(error))}
    shown = _said_of(table)
    try:
        with LocalJoin(table, _ID) as join:
            join.rows([(1,)])
    except LookupCacheError as error:
        shown["the error of a lookup"] = "".join(traceback.format_exception(error))
    return shown
