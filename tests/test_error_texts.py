"""What errors say when they leave a worker: text that can be sent, short, and without secrets, whatever was raised."""

from __future__ import annotations

import threading
import traceback
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException

from lookupcache import LookupTable, lookup_join
from lookupcache.connector import Connector
from lookupcache.error_text import presentable
from lookupcache.errors import LookupFailedError, SourceError, text_of
from lookupcache.functions.table_function import Form, FunctionCalls
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.redaction import MOST_LETTERS, hidden
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source
from lookupcache.worker.task import send_errors

HIDE = partial(hidden, secrets=["s3cret"])


class Mute(Exception):
    """Has no text, and cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    def __str__(self):
        raise ValueError("no text")


class OfAnother(SourceError):
    """Is made of other arguments."""

    def __init__(self, number):
        super().__init__(f"Number {number} \ud800.")


def caused(cause):
    error = ValueError("see below")
    error.__cause__ = cause
    return error


def noted(note):
    error = ValueError("see below")
    error.__notes__ = note
    return error


def circular():
    error = caused(ValueError("\ud800"))
    error.__cause__.__cause__ = error
    return error


def syntax_error(text, file="<text>"):
    try:
        compile(text, file, "eval")
    except SyntaxError as error:
        return error
    raise AssertionError("It is an expression.")


ODD = {
    "surrogate": lambda: OSError("\udcff"),
    "of a cause": lambda: caused(OSError("\udcff")),
    "of a member of a group": lambda: ExceptionGroup("some", [caused(OSError("\udcff")), Mute()]),
    "of a note": lambda: noted(["\udcff"]),
    "a secret of a member of a group": lambda: ExceptionGroup("some", [OSError("s3cret")]),
    "long": lambda: OSError("s3cret, and so on, " * MOST_LETTERS),
    "mute": Mute,
    "notes that are none": lambda: noted(7),
    "in a circle": circular,
    "of our kind": lambda: SourceError("s3cret \udcff", hint="\udcff"),
    "of our kind, made of other arguments": lambda: OfAnother(7),
    "of our kind, with a cause": lambda: caused(OSError("\udcff")).with_traceback(None),
    "the line of a syntax error": lambda: caused(syntax_error("'s3cret")),
    "the file of a syntax error": lambda: syntax_error("1 +", "s3cret.py"),
    "nul": lambda: OSError("\0"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_worker_errors_are_encodable_short_and_without_secrets(odd):
    shown = presentable(odd(), HIDE)
    text = "".join(traceback.format_exception(shown)).encode()
    assert b"s3cret" not in text
    assert len(text) < 3 * MOST_LETTERS


@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_error_that_ends_a_task_can_be_encoded(odd):
    assert "".join(traceback.format_exception(ended(odd()))).encode()


def ended(error):
    """Return what a task ends with that fails with an error."""
    try:
        list(send_errors(failing(error)))
    except Exception as shown:
        return shown
    raise AssertionError("It did not end with an error.")


def failing(error):
    yield 1
    raise error


@pytest.mark.parametrize("error", [OSError("down"), caused(OSError("naïve")), SourceError("down", hint="wait")])
def test_an_error_that_can_be_shown_stays_unchanged(error):
    cause = error.__cause__
    assert ended(error) is error
    assert error.__cause__ is cause


def test_an_error_of_lookupcache_keeps_its_class():
    error = ended(OfAnother(7))
    assert (type(error), error.fact) == (SourceError, "Number 7 \\ud800.")


@given(st.text(st.characters(min_codepoint=0), max_size=20))
def test_any_error_text_can_be_sent_and_keeps_its_content(text):
    shown = hidden(text, [])
    assert shown.encode().decode() == shown
    assert shown == text or any("\ud800" <= letter <= "\udfff" for letter in text) or "://" in text or "=" in text


def test_control_characters_reach_no_terminal():
    def lookup(key):
        raise OSError("\x1b[31mno\x1b[0m key b\x02 s\x073cret")

    table = LookupTable.from_function(
        "c", "id BIGINT", key=["id"], function=lookup, options={"lookup.max-retries": "0"}
    )
    with LocalJoin(table, Wanted(key=("id",))) as join, pytest.raises(LookupFailedError) as raised:
        join.rows([(1,)])
    assert r"OSError: no key b\x02 s\x073cret" in raised.value.fact
    assert hidden("s\x073cret", secrets=["s\x073cret"]) == "***"


def test_an_error_whose_text_cannot_be_read_says_so():
    assert text_of(Mute()) == "(an error whose text cannot be read)"


# ── joins ────────────────────────────────────────────────────────────────────────────────────────────────


RAISED = {
    "surrogate": lambda: OSError("no file \udcff"),
    "within": lambda: caused(OSError("no file \udcff")),
    "mute": Mute,
    "huge": lambda: OSError("much " * 1_000_000),
}


class Raises:
    """A function that fails for the second key."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, key):
        if key == 1:
            raise RAISED[self.kind]()
        return [(key, "n")]


def table_of(kind, **options):
    options = {"lookup.max-retries": "0", **{f"lookup.{name}": value for name, value in options.items()}}
    return LookupTable.from_function("t", "id BIGINT, name STRING", key=["id"], function=Raises(kind), options=options)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("kind", RAISED)
def test_a_job_fails_and_says_why(spark, kind):
    joined = lookup_join(spark.range(0, 3, 1, 1), table_of(kind), ["id"])
    with pytest.raises(PythonException, match="the lookup of 1 key failed after 1 attempt"):
        joined.collect()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("kind", RAISED)
def test_a_row_is_marked_or_put_away_with_what_was_wrong(spark, kind, tmp_path):
    marked = table_of(kind, **{"on-error": "null", "error-column": "problem"})
    rows = {row.id: row.problem for row in lookup_join(spark.range(0, 3, 1, 1), marked, ["id"], "left").collect()}
    assert (rows[0], rows[2]) == (None, None)
    assert "the lookup of 1 key failed after 1 attempt" in rows[1].message
    put_away = table_of(kind, **{"on-error": "dead-letter", "dead-letter.path": str(tmp_path)})
    assert lookup_join(spark.range(0, 3, 1, 1), put_away, ["id"]).count() == 2
    [letter] = spark.read.parquet(str(tmp_path)).collect()
    assert (letter.id, letter.lookup_error.message) == (1, rows[1].message)


class Unasked(Connector):
    """Cannot say what has changed."""

    def lookup(self, request, keys):
        raise NotImplementedError

    def changed(self, request):
        raise OSError("no file \udcff")


@pytest.mark.spark
def test_errors_before_a_call_are_reported_too(spark):
    table = LookupTable("t", "id BIGINT, name STRING", {"connector": "test_error_texts:Unasked"})
    with pytest.raises(PythonException, match=r"reading the changed keys failed.*no file \\udcff"):
        lookup_join(spark.range(0, 3, 1, 1), table, ["id"]).collect()


# ── which keys ───────────────────────────────────────────────────────────────────────────────────────────


def of_many(keys):
    answers = {1: [(1, "n", "too much")], 2: [7], 3: KeyError("not this one"), 4: 7}
    return [answers.get(key, [(key, "n")]) for key in keys]


@pytest.mark.parametrize("batch", [False, True])
def test_only_the_keys_with_wrong_rows_are_marked(batch):
    function = of_many if batch else lambda key: of_many([key])[0]
    options = {"lookup.max-retries": "0", "lookup.on-error": "null", "lookup.error-column": "problem"}
    table = LookupTable.from_function(
        "t", "id BIGINT, name STRING", key=["id"], function=function, batch=batch, options=options
    )
    plan = LookupPlan(
        table="t", connector="function", source="-", schema=table.schema, how="left", config=table.config,
        keys=(FieldKey(column="id", sql="l.`id`"),), columns=("name",), left_columns=("id",),
    )  # fmt: skip
    runner = Runner(plan, Layout(("id",), (0,)), lookup_of(Source(plan, table.connector)))
    [joined] = runner.run([pa.record_batch({"id": pa.array(range(6), pa.int64())})])
    assert joined.column(1).to_pylist() == ["n", None, None, None, None, "n"]
    problems = [problem and problem["message"] for problem in joined.column(2).to_pylist()]
    assert [problem is None for problem in problems] == [True, False, False, False, False, True]
    expected = ["tuple of 3 values as a row", "'name'", "KeyError", "'name'"]
    assert [words in problem for words, problem in zip(expected, problems[1:5], strict=True)] == [True] * 4


@pytest.mark.parametrize(
    "options", [{}, {"lookup.retry.on-miss.max-attempts": "1", "lookup.retry.on-miss.delay": "0 s"}]
)
def test_a_job_fails_with_the_error_of_the_first_wrong_key(options):
    table = LookupTable.from_function(
        "t", "id BIGINT, name STRING", key=["id"], function=of_many, batch=True, options=options
    )
    with LocalJoin(table, Wanted(key=("id",))) as join, pytest.raises(SourceError, match="tuple of 3 values as a row"):
        join.rows([(key,) for key in range(6)])
    with (
        LocalJoin(table, Wanted(key=("id",))) as join,
        pytest.raises(LookupFailedError, match="KeyError: 'not this one'"),
    ):
        join.rows([(0,), (3,)])


def test_a_row_that_does_not_fit_fails_only_its_own_call():
    calls = FunctionCalls("f", (Form(value=0),), 1, ("a", "b"), batch=True)
    first, second, third = calls.rows_of_keys([7, 8, 9], [[(1, 2)], [(1, 2, 3)], OSError("not this one")])
    assert first == [(7, 1, 2)]
    assert isinstance(second, SourceError)
    assert isinstance(third, OSError)
