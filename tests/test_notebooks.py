"""The notebooks run, and print what is recorded in them.

`LOOKUPCACHE_UPDATE_NOTEBOOKS=1` records what they print now.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))
CHANGING = r"\b[0-9a-f]{32}\b"
"""What may differ between two runs: the identity of a cache depends on the source's folder."""

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def types_of_sqlite() -> Iterator[None]:
    """Take back the types that pandas registers for the whole process: Feast cannot read what it writes with them."""
    registered = [(kinds, dict(kinds)) for kinds in (sqlite3.adapters, sqlite3.converters)]
    yield
    for kinds, before in registered:
        kinds.clear()
        kinds.update(before)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(
    path: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text())
    names: dict[str, Any] = {}
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    try:
        for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
            recorded, cell["outputs"] = cell["outputs"], outputs_of("".join(cell["source"]), names, number + 1)
            cell["execution_count"] = number + 1
            if "LOOKUPCACHE_UPDATE_NOTEBOOKS" not in os.environ:
                assert comparable(cell["outputs"]) == comparable(recorded)
    finally:
        spark.conf.set(provider, before)
    if "LOOKUPCACHE_UPDATE_NOTEBOOKS" in os.environ:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def outputs_of(code: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a cell as Jupyter does; return what it prints, and the value of its last line."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "notebook", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"data": shown, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def comparable(outputs: list[dict[str, Any]]) -> str:
    """Return outputs as text, without what may change: of pictures, the words in them count."""
    whole = json.loads(json.dumps(outputs))
    for output in whole:
        html = "".join(output.get("data", {}).get("text/html", ()))
        if "<svg" in html:
            before, _, picture = html.partition("<svg")
            output["data"]["text/html"] = [before, *re.findall(r"<text[^>]*>([^<]*)</text>", picture)]
    return re.sub(CHANGING, "", json.dumps(whole, indent=1, ensure_ascii=False))
