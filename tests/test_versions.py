"""The page of versions, which `dev.py matrix` writes, and pyproject.toml say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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


def test_each_test_of_the_matrix_exists() -> None:
    named = re.findall(r'"(tests/[\w/]+\.py)::"?\s*"?(\w+)"', (ROOT / ".ci" / "matrix.py").read_text())
    assert len(named) > 10
    assert [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []
