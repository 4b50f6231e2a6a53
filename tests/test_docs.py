"""The examples in the documentation run and are true."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from lookupcache.config import LookupConfig, option_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MODULES = sorted(
    ".".join(path.relative_to(folder).with_suffix("").parts)
    for folder, pattern in ((ROOT, "lookupcache/**/*.py"), (ROOT / "connectors", "*/*.py"))
    for path in folder.glob(pattern)
    if not path.stem.startswith("__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str, request: pytest.FixtureRequest) -> None:
    examples = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    shown = io.StringIO()
    for example in examples:
        if any(re.search(r"\bspark\b", line.source) for line in example.examples):
            example.globs["spark"] = request.getfixturevalue("spark")
        runner.run(example, out=shown.write)
    assert runner.summarize(verbose=False).failed == 0, shown.getvalue()


@pytest.mark.spark
def test_the_readme_prints_what_it_says(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n((?:(?!```).)*)```\s*```text\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    assert blocks
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert printed.getvalue().strip() == expected.strip()


def test_the_readme_shows_options_that_go_together() -> None:
    [code] = re.findall(r"```python\n(options = .*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert LookupConfig.from_options(names["options"]).on_error == "null"


def test_the_readme_holds_the_option_table() -> None:
    [shown] = re.findall(r"<!-- options -->\n(.*?)\n<!-- /options -->", README, re.DOTALL)
    assert shown == option_table()
