"""One tree of errors: a fact, a hint, and both survive the way from worker to driver."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from lookupcache import errors
from lookupcache.errors import LookupCacheError, nearest

TREE = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and kind.__module__ == errors.__name__
    and not issubclass(kind, Warning)
}


@pytest.mark.parametrize("kind", TREE.values(), ids=TREE)
def test_every_error_has_a_fact_and_a_hint_and_survives_pickling(kind):
    error = pickle.loads(pickle.dumps(kind("It broke.", hint="Mend it.")))
    assert type(error) is kind
    assert isinstance(error, LookupCacheError)
    assert str(error) == "It broke.\n\nHint: Mend it."
    assert (error.fact, error.hint) == ("It broke.", "Mend it.")


def test_every_error_about_a_statement_has_a_cure():
    folder = Path(errors.__file__).parent / "sql"
    without = [
        f"{path.name}:{call.lineno}"
        for path in folder.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in TREE
        and "hint" not in [given.arg for given in call.keywords]
    ]  # fmt: skip
    assert without == []


def test_without_a_hint_only_the_fact():
    error = pickle.loads(pickle.dumps(LookupCacheError("It broke.")))
    assert str(error) == "It broke."
    assert error.hint is None


def test_the_error_tree_in_the_docstring_is_complete():
    assert [name for name in TREE if name not in errors.__doc__] == []


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("URL", ["url", "table"], "Did you mean 'url'?"),
        ("tabel", ["url", "Table"], "Did you mean 'Table'?"),
        ("x", ["url", "table"], "Known options: 'table', 'url'."),
        ("x", [], "There are no options."),
        (
            "zoo",
            [f"name{n:02}" for n in range(40)] + ["Oz"],
            "Of 41 options, the nearest are 'Oz', 'name39', 'name38'.",
        ),
    ],
)
def test_the_nearest_name_or_all_of_them(name, known, hint):
    assert nearest(name, known, what="options") == hint
