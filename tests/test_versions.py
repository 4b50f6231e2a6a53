"""The page of versions, which `dev.py matrix` writes, and pyproject.toml say the same."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "maintainers" / "versions.md").read_text()
ROWS = [
    [column.strip() for column in row.strip("|").split("|")] for row in re.findall(r"^\| \d.*\|$", PAGE, re.MULTILINE)
]
NOT_RUN = re.findall(r"^- Spark (\S+), Python (\S+), (\w+) packages, (\w+)$", PAGE, re.MULTILINE)
PYTHONS = {found[1] for line in PROJECT["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", line))}


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


RUN = {(minor(spark), minor(python), packages, session) for spark, python, packages, session, *_ in ROWS}


NEVER = {("3.5", "3.13", "newest", "classic"), *(("3.5", python, "newest", "connect") for python in PYTHONS)}
"""Spark 3.5 does not run on Python 3.13, and PyPI's has no server of Spark Connect."""


def test_the_page_has_exactly_the_pythons_of_the_classifiers() -> None:
    assert RUN
    assert {python for _, python, *_ in {*RUN, *NOT_RUN}} == PYTHONS
    oldest = min(PYTHONS, key=lambda version: int(version.split(".")[1]))
    assert PROJECT["requires-python"] == f">={oldest}"


def test_every_supported_spark_was_run_or_is_named_as_not_run() -> None:
    known = {*RUN, *NOT_RUN}
    sparks = {spark for spark, *_ in known}
    assert PROJECT["optional-dependencies"]["spark"][0] == f"pyspark>={min(sparks)}"
    assert PROJECT["optional-dependencies"]["connect"][0] == f"pyspark[connect]>={min(sparks)}"
    for session in ("classic", "connect"):
        cells = {(spark, python, "newest", session) for spark in sparks for python in PYTHONS}
        assert {cell for cell in cells if cell not in NEVER} <= known


def test_all_failures_are_beyond_the_bounds() -> None:
    assert [row for row in ROWS if row[5] != "0" and row[2] != "beyond"] == []
    assert all(int(row[4]) > 0 for row in ROWS)


CASES = """<testsuite>
<testcase classname="tests.test_versions" name="test_a"/>
<testcase classname="tests.test_versions.TestB" name="test_b[x.y]"><failure message="m"/></testcase>
<testcase classname="" name="tests.test_release"><error message="m"/></testcase>
<testcase classname="tests.test_versions" name="test_c"><skipped message="old"/></testcase>
<testcase classname="" name="tests.test_docs"><skipped message="collection skipped">('/t.py', 1, 'Skipped: old')\
</skipped></testcase>
</testsuite>"""


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module, whose results and report are in a folder of the test."""
    specification = importlib.util.spec_from_file_location("matrix", ROOT / ".ci" / "matrix.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "matrix", module)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "REPORT", tmp_path / "versions.md")
    return module


def test_failed_tests_of_a_cell_run_again(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = matrix.Cell("4.3.0", "3.11.7", "newest", "none")
    matrix.result_of(cell).write_text(CASES)
    tests = ("tests/test_versions.py::TestB::test_b[x.y]", "tests/test_release.py")

    def run(cell: Any, given: Any, result: Path) -> Any:
        assert (given, result.name) == (tests, "4.3-3.11-newest-none-again.xml")
        return matrix.Outcome(cell, Counter(passed=2, failed=1), 1.0, ["failed: `test_d`"]), {}

    monkeypatch.setattr(matrix, "run", run)
    outcome, _ = matrix.run_failed(cell)
    assert outcome.counts == {"passed": 3, "failed": 1, "cannot": 2}
    assert outcome.notes == ["cannot: old (2)", "failed: `test_d`", "2 of them in a second run"]


def test_a_report_keeps_the_reasons_of_other_cells(matrix: Any) -> None:
    def report(spark: str, session: str, *notes: str) -> list[str]:
        outcome = matrix.Outcome(matrix.Cell(spark, "3.12.1", "newest", session), Counter(passed=1), 1.0, list(notes))
        matrix.REPORT.write_text(matrix.report(outcome, {"pandas": "3.1.1"}))
        return re.findall(r"^- Spark .* packages, .*: .*", matrix.REPORT.read_text(), re.MULTILINE)

    newer, older = "- Spark 4.1, newest packages, classic: old: a|b (1)", "Spark 4.0, newest packages"
    assert report("4.1.4", "classic", "cannot: old: a|b (1)", "1 of them in a second run") == [newer]
    assert report("4.0.5", "classic", "cannot: x (1)") == [f"- {older}, classic: x (1)", newer]
    assert report("4.0.5", "connect", "cannot: x (1)") == [f"- {older}, classic; {older}, connect: x (1)", newer]
    assert report("4.0.5", "classic") == [f"- {older}, connect: x (1)", newer]
    assert "second run" in matrix.REPORT.read_text()
    assert "cannot:" not in matrix.REPORT.read_text()


def test_each_test_of_the_matrix_exists() -> None:
    named = re.findall(r'"(tests/[\w/]+\.py)::"?\s*"?(\w+)"', (ROOT / ".ci" / "matrix.py").read_text())
    assert len(named) > 10
    assert [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []
