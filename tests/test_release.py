"""What `dev.py release` says of changes of the Python API since the last tag."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import lookupcache

ROOT = Path(__file__).parent.parent
Change = Callable[[str, str, str], None]
FILES = {
    "__init__.py": """
from lookupcache.join import lookup_join
__all__ = ["lookup_join"]
""",
    "join.py": """
def lookup_join(left, table, on, how="inner"): ...
def helper(first): ...
""",
    "errors.py": """
from collections.abc import Iterable
class LookupCacheError(Exception):
    def __init__(self, fact, hint=None): ...
def _kept(first): ...
""",
    "redaction.py": """
def hidden(text): ...
""",
    "connector.py": """
from lookupcache.errors import LookupCacheError
from lookupcache.redaction import hidden as hidden
class Connector:
    def lookup(self, request, keys): ...
""",
    "testing/__init__.py": """
from lookupcache.testing.suite import ConnectorSuite
__all__ = ["ConnectorSuite"]
""",
    "testing/lifecycle.py": """
class Lifecycle:
    def make_connector(self, **options): ...
""",
    "testing/suite.py": """
from lookupcache.testing.lifecycle import Lifecycle
class ConnectorSuite(Lifecycle): ...
class Private:
    def lookup_join(self, first): ...
""",
    "formats/__init__.py": "",
    "formats/json_text.py": """
def parse_json(text): ...
""",
}


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """Load `.ci/release.py`."""
    specification = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository whose last commit is tagged v1.2.0, and with former and later tags."""
    folder = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        path = folder / "lookupcache" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    commit = "-c user.name=a -c user.email=a@b commit -q --allow-empty -m ."
    for line in ("init -q", "add .", commit, "tag v1.1.0rc1", "tag v0.9.0", commit, "tag v1.2.0", "tag very-old"):
        subprocess.run(["git", *line.split()], cwd=folder, check=True)
    return folder


@pytest.fixture
def change(repository: Path) -> Iterator[Change]:
    """Return a function that replaces a text in a file of the package."""

    def replace(name: str, old: str, new: str) -> None:
        path = repository / "lookupcache" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    yield replace
    subprocess.run(["git", "checkout", "-q", "."], cwd=repository, check=True)


BREAKS = {
    "a parameter": ("join.py", "table, on", "table, keys", "lookup_join(on): Parameter was removed"),
    "a required one": ("join.py", 'how="inner"', "how", "lookup_join(how)"),
    "a name": ("join.py", "def lookup_join", "def other", "lookup_join"),
    "an export": ("__init__.py", '"lookup_join"', "", "lookup_join"),
    "an error": ("errors.py", "class LookupCacheError", "class Other", "LookupCacheError"),
    "an error's parameter": ("errors.py", "hint=None", "cure=None", "LookupCacheError.__init__(hint)"),
    "the contract": ("connector.py", "request, keys", "keys", "Connector.lookup(request)"),
    "a name that is passed on": ("redaction.py", "(text)", "(value)", "hidden(text)"),
    "one no longer passed on": ("connector.py", " as hidden", "", "hidden"),
    "the test kit": ("testing/__init__.py", '"ConnectorSuite"', "", "ConnectorSuite"),
    "what it inherits": ("testing/lifecycle.py", "make_connector", "build", "make_connector"),
    "a shared format": ("formats/json_text.py", "(text)", "(value)", "parse_json(text)"),
}
NONE = {
    "an optional parameter": ("join.py", 'how="inner"', 'how="inner", form=None'),
    "a private module": ("join.py", "def helper(first): ...", ""),
    "a private name": ("errors.py", "_kept(first)", "_kept()"),
    "a module's own import": ("errors.py", "from collections.abc import Iterable", ""),
    "a class that is not exported": ("testing/suite.py", "(self, first)", "(self)"),
}


@pytest.mark.extended
@pytest.mark.parametrize("what", BREAKS)
def test_changes_that_break_callers_are_named(what: str, release: ModuleType, repository: Path, change: Change) -> None:
    name, old, new, found = BREAKS[what]
    change(name, old, new)
    breaks = release.breaking_changes(repository, "1.3.0")
    assert any(found in line for line in breaks), breaks
    assert len(set(breaks)) == len(breaks)
    assert release.breaking_changes(repository, "2.0.0") == [], "a major version announces it"


@pytest.mark.parametrize("what", NONE)
def test_changes_that_break_no_caller_are_allowed(
    what: str, release: ModuleType, repository: Path, change: Change
) -> None:
    change(*NONE[what])
    assert release.breaking_changes(repository, "1.2.1.dev1") == []


def test_a_removed_module_breaks_callers(release: ModuleType, repository: Path, change: Change) -> None:
    (repository / "lookupcache" / "errors.py").unlink()
    found = release.breaking_changes(repository, "1.3.0")
    assert "Since v1.2.0: lookupcache.errors: Public module was removed" in found


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("0.9.0", None),
        ("1.0.0", "v0.9.0"),
        ("1.1.0rc1", "v0.9.0"),
        ("1.1.0rc2", "v0.9.0"),
        ("1.2.0", "v0.9.0"),
        ("1.2.1.dev3", "v1.2.0"),
        ("1.3.0rc1", "v1.2.0"),
    ],
)
def test_the_release_that_a_version_is_compared_with(
    version: str, tag: str | None, release: ModuleType, repository: Path
) -> None:
    assert release.last_release(repository, version) == tag


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("0.3.1", (0, 3)), ("0.2rc1", (0, 2)), ("1.3.1", (1,)), ("1", (1,)), ("2.0.0.dev4", (2,))],
)
def test_the_numbers_that_a_breaking_change_raises(version: str, numbers: tuple[int, ...], release: ModuleType) -> None:
    assert release.leading_numbers(version) == numbers


def test_the_compared_modules_are_those_that_the_docs_promise(release: ModuleType) -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("functions.md", "reference.md")]
    named = set(re.findall(r"^::: (lookupcache\.[a-z_.]+[a-z_])", pages[1], re.MULTILINE))
    named |= set(re.findall(r"`(lookupcache\.[a-z_.]+[a-z_])`", "".join(pages)))
    assert {name for name in named if is_module(name)} <= set(release.PUBLIC)
    for name in release.PUBLIC:
        assert any(name in page for page in pages), name


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module's, not that of a function or of an entry-point group."""
    parent, _, last = name.rpartition(".")
    if last == "connectors" or (parent == "lookupcache" and last in lookupcache.__all__):
        return False
    return importlib.util.find_spec(name) is not None
