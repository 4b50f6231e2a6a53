"""What `dev.py release` says of changes of the Python API since the last tag."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
BEFORE = """
from lookupcache.join import lookup_join
__all__ = ["lookup_join"]
"""
JOIN = """
def lookup_join(left, table, on, how="inner"): ...
def helper(first): ...
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """Load `.ci/release.py`."""
    specification = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    """Return a repository whose last commit is tagged v1.2.0."""
    (tmp_path / "lookupcache").mkdir()
    (tmp_path / "lookupcache" / "__init__.py").write_text(BEFORE)
    (tmp_path / "lookupcache" / "join.py").write_text(JOIN)
    for line in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m .", "tag v1.2.0"):
        subprocess.run(["git", *line.split()], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("join", "version", "found"),
    [
        (JOIN, "1.2.1.dev1", []),
        (JOIN.replace('how="inner"', 'how="inner", form=None'), "1.3.0", []),
        (JOIN.replace("table, on", "table, keys"), "1.2.1.dev1", ["lookup_join(on): Parameter was removed"]),
        (JOIN.replace("table, on", "table, keys"), "2.0.0", []),
        (JOIN.replace('how="inner"', "how"), "1.3.0", ["lookup_join(how)"]),
        (JOIN.replace("def helper(first): ...", ""), "1.3.0", []),
        (JOIN.replace("def lookup_join", "def other"), "1.3.0", ["lookup_join"]),
    ],
    ids=["unchanged", "added", "renamed", "announced", "required", "private", "removed"],
)
def test_what_breaks_callers_is_named(
    join: str, version: str, found: list[str], release: ModuleType, tagged: Path
) -> None:
    (tagged / "lookupcache" / "join.py").write_text(join)
    breaks = release.breaking_changes(tagged, version)
    assert all(text in "\n".join(breaks) for text in found), breaks
    assert bool(breaks) == bool(found), breaks


def test_without_a_tag_there_is_nothing_to_compare_with(release: ModuleType, tagged: Path) -> None:
    assert release.breaking_changes(tagged, "1.2.0") == []


@pytest.mark.parametrize(("version", "numbers"), [("0.3.1", ("0", "3")), ("1.3.1", ("1",)), ("2.0.0.dev4", ("2",))])
def test_the_numbers_that_a_breaking_change_raises(version: str, numbers: tuple[str, ...], release: ModuleType) -> None:
    assert release.leading_numbers(version) == numbers
