"""References to secrets: read in the worker, shown nowhere."""

from __future__ import annotations

import json
import pickle
import traceback

import cloudpickle
import pyarrow as pa
import pytest

from lookupcache.connector import Connector, build_connector
from lookupcache.errors import ConnectorError, LookupFailedError
from lookupcache.planner.explain import explain
from lookupcache.report import Channel
from lookupcache.secrets import is_reference, resolve_references
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted, plan_of
from lookupcache.worker.runner import Layout
from lookupcache.worker.task import Task

SECRET = "s3cret-sesame"
SCHEMA = "id BIGINT, name STRING"
ID = Wanted(key=("id",))


class Door(Connector):
    """Opens with a password, and says which it was given where it should not."""

    options = {"url": "Where.", "password": "What opens it.", "note": "What to fail with."}  # noqa: RUF012
    opened_with: list[str] = []  # noqa: RUF012

    def open(self):
        self.opened_with.append(self.settings["password"])

    def lookup(self, request, keys):
        if "note" in self.settings:
            raise OSError(f"{self.settings['note']} {self.settings['password']} at {self.settings['url']}")
        return pa.table({"id": keys.column("id"), "name": ["ann"] * keys.num_rows})


class AsyncDoor(Door):
    lookup = Connector.lookup

    async def open(self):
        Door.open(self)

    async def lookup_async(self, request, keys):
        return Door.lookup(self, request, keys)


@pytest.fixture(params=["Door", "AsyncDoor"])
def door(request, monkeypatch):
    """Return a function that makes a table with a password by reference, and other options."""
    monkeypatch.setenv("DOOR_PASSWORD", SECRET)
    monkeypatch.setattr(Door, "opened_with", [])

    def table(**options):
        own = {"connector": f"{__name__}:{request.param}", "url": "door://front", "password": "env:DOOR_PASSWORD"}
        return LookupTable("t", SCHEMA, {**own, "lookup.max-retries": "0", **options})

    return table


# ── what is a reference, and what it stands for ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "is_one"),
    [("env:X", True), ("file:/x", True), ("env:", True), ("env::X", False), ("file::/x", False), ("environment", False),
     ("ENV:X", False), (" env:X", False), ("", False), (None, False), (7, False)],
)  # fmt: skip
def test_references_begin_with_env_or_file_and_one_colon(value, is_one):
    assert is_reference(value) is is_one


@pytest.mark.parametrize(
    ("value", "meant"),
    [("env:DOOR_PASSWORD", SECRET), ("env::DOOR_PASSWORD", "env:DOOR_PASSWORD"), ("file::x", "file:x"),
     ("env:::x", "env::x"), ("x env:DOOR_PASSWORD", "x env:DOOR_PASSWORD"), ("plain", "plain"), (7, 7)],
)  # fmt: skip
def test_references_are_resolved_and_double_colons_unescaped(monkeypatch, value, meant):
    monkeypatch.setenv("DOOR_PASSWORD", SECRET)
    assert resolve_references({"a": value, "b": "env::"}) == {"a": meant, "b": "env:"}


@pytest.mark.parametrize(
    ("content", "meant"),
    [(b"word", "word"), (b"word\n", "word"), (b"word\r\n", "word"), (b"word\n\n", "word\n"), (b" word ", " word "),
     ("wörd\n".encode(), "wörd"), (b"", ""), (b"a\rb\r", "a\rb\r")],
)  # fmt: skip
def test_the_content_of_a_file_without_its_last_line_break(tmp_path, content, meant):
    (tmp_path / "word").write_bytes(content)
    assert resolve_references({"password": f"file:{tmp_path / 'word'}"}) == {"password": meant}


def test_an_empty_variable_is_an_empty_text(monkeypatch):
    monkeypatch.setenv("DOOR_PASSWORD", "")
    assert resolve_references({"password": "env:DOOR_PASSWORD"}) == {"password": ""}


@pytest.mark.parametrize(
    ("reference", "says"),
    [("env:NO_SUCH_VARIABLE", "Option 'password' is 'env:NO_SUCH_VARIABLE', which is not set"),
     ("env:", "Option 'password' is 'env:', which is not set"),
     ("file:/no/such/file", "Option 'password' is 'file:/no/such/file', which cannot be read .* No such file"),
     ("file:", "Option 'password' is 'file:', which cannot be read"),
     ("file:/", "Option 'password' is 'file:/', which cannot be read .* Is a directory"),
     ("file:/a\0b", "Option 'password' is 'file:.*', which cannot be read")],
)  # fmt: skip
def test_a_reference_to_nothing_names_the_option_and_itself(reference, says):
    with pytest.raises(ConnectorError, match=says) as raised:
        resolve_references({"url": "door://front", "password": reference})
    assert "two colons" in raised.value.hint


def test_the_error_for_a_binary_file_shows_no_content(tmp_path):
    (tmp_path / "word").write_bytes(b"sesame\xff")
    with pytest.raises(ConnectorError, match="not valid UTF-8") as raised:
        resolve_references({"password": f"file:{tmp_path / 'word'}"})
    assert "sesame" not in "".join(traceback.format_exception(raised.value))
    assert raised.value.__suppress_context__


# ── in a connector ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_connector_sees_a_secret_only_when_it_is_opened(door):
    table = door()
    assert table.connector.settings["password"] == "env:DOOR_PASSWORD"
    with LocalJoin(table, ID) as join:
        assert join.rows([(1,)]) == [(1, "ann")]
    assert Door.opened_with == [SECRET]


def test_references_are_resolved_before_each_opening(door, monkeypatch):
    connector = door().connector
    connector.resolve()
    monkeypatch.setenv("DOOR_PASSWORD", "another")
    connector.resolve()
    assert connector.settings["password"] == "another"


def test_each_thread_has_the_value(door):
    with LocalJoin(door(**{"lookup.async": "true", "lookup.batch.max-size": "1"}), ID) as join:
        join.rows([(number,) for number in range(20)])
    assert set(Door.opened_with) == {SECRET}


def test_a_text_that_only_looks_like_a_reference(door):
    with LocalJoin(door(password="env::DOOR_PASSWORD"), ID) as join:
        join.rows([(1,)])
    assert Door.opened_with == ["env:DOOR_PASSWORD"]


def test_a_reference_to_nothing_is_named_and_not_retried(door, monkeypatch):
    monkeypatch.delenv("DOOR_PASSWORD")
    with LocalJoin(door(**{"lookup.max-retries": "9"}), ID) as join:
        with pytest.raises(ConnectorError, match="Option 'password' is 'env:DOOR_PASSWORD', which is not set"):
            join.rows([(1,)])
        assert join.source.counters["retries"] == 0


def test_a_reference_identifies_a_source_but_its_value_does_not(door, monkeypatch):
    before = door().source
    monkeypatch.setenv("DOOR_PASSWORD", "another")
    assert door().source == before
    assert door(password="env:OTHER").source != before


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_secret_value_is_not_in_the_drivers_output_or_pickle(door):
    table = door()
    plan = plan_of(table, ID)
    task = Task(plan, cloudpickle.dumps(table.connector), Layout(("id",), (0,)), Channel())
    for text in (repr(table), repr(table.connector), json.dumps(plan.to_json()), explain(plan), repr(plan)):
        assert SECRET not in text
    assert SECRET.encode() not in cloudpickle.dumps(task)


def test_an_opened_connector_shows_and_pickles_the_reference(door):
    table = door(url="env:DOOR_PASSWORD")
    with LocalJoin(table, ID) as join:
        join.rows([(1,)])
        assert "'url': 'env:DOOR_PASSWORD'" in repr(table.connector)
        assert SECRET.encode() not in pickle.dumps(table.connector)
        assert pickle.loads(pickle.dumps(table.connector)).settings["url"] == "env:DOOR_PASSWORD"


@pytest.mark.parametrize("option", ["password", "url", "note"])
def test_a_value_is_not_in_an_error(door, monkeypatch, option):
    monkeypatch.setenv("OTHER", "harmless")
    options = {"note": "cannot", "password": "env:OTHER", option: "env:DOOR_PASSWORD"}
    with LocalJoin(door(**options), ID) as join, pytest.raises(LookupFailedError, match=r"OSError.*\*\*\*") as raised:
        join.rows([(1,)])
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_secret_within_another_is_hidden_with_it(door, monkeypatch):
    monkeypatch.setenv("OTHER", f"{SECRET}-and-more")
    with LocalJoin(door(note="env:OTHER"), ID) as join, pytest.raises(LookupFailedError) as raised:
        join.rows([(1,)])
    assert "and-more" not in str(raised.value)


def test_the_password_of_a_url_is_hidden_where_it_stands_alone(monkeypatch):
    connector = build_connector(f"{__name__}:Door", pa.schema([]), {"url": "env:DOOR_URL", "password": "env:DOOR_URL"})
    monkeypatch.setenv("DOOR_URL", "door://ann:s3%2Fcret@front")
    connector.resolve()
    assert {"s3%2Fcret", "s3/cret", "door://ann:s3%2Fcret@front"} <= set(connector.secret_values())


class Chained(Door):
    def lookup(self, request, keys):
        try:
            raise OSError(f"password is {self.settings['password']}")
        except OSError as error:
            raise ConnectorError("The door is shut.", hint=f"Try {self.settings['password']}.") from error


def test_a_connectors_own_error_has_no_secret_in_hint_or_cause(monkeypatch):
    monkeypatch.setenv("DOOR_PASSWORD", SECRET)
    table = LookupTable("t", SCHEMA, {"connector": f"{__name__}:Chained", "password": "env:DOOR_PASSWORD"})
    with LocalJoin(table, ID) as join, pytest.raises(ConnectorError, match=r"Try \*\*\*\.") as raised:
        join.rows([(1,)])
    assert SECRET not in "".join(traceback.format_exception(raised.value))
