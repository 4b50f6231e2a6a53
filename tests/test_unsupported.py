"""An unsupported Spark or Python, or a missing package, is named before anything else fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NO_PANDAS = "import sys; sys.modules['pandas'] = None\n"
PREDICT = """
import pyarrow as pa
from lookupcache import cached, hit_rate
assert cached(lambda key: key)(7) == 7
print(hit_rate(pa.table({"id": [7, 8, 7]}), keys=["id"]).requests)
"""


def run(code: str, *folders: Path) -> tuple[int, str]:
    """Run code in another process; return its exit code and what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*folders, ROOT, ROOT / "connectors"]))}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    return answer.returncode, answer.stdout + answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lookup_join", "LookupSession", "LookupJoin", "export_metrics"])
def test_an_older_spark_is_named_before_a_name_that_it_lacks(tmp_path: Path, name: str) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.4.4'")
    code, text = run(f"from lookupcache import {name}", tmp_path)
    assert code
    assert "UnsupportedVersionError: lookupcache does not run on Spark 3.4.4.\n\nHint: It supports Spark 3.5" in text


@pytest.mark.slow
def test_an_older_python_is_named() -> None:
    code, text = run("import sys; sys.version_info, sys.version = (3, 10, 13), '3.10.13 (main)'; import lookupcache")
    assert code
    assert "lookupcache does not run on Python 3.10.13.\n\nHint: It supports Python 3.11 and later." in text


@pytest.mark.slow
def test_a_join_without_pandas_names_the_extra() -> None:
    code, text = run(f"{NO_PANDAS}from lookupcache import lookup_join")
    assert code
    assert "pandas is not installed" in text
    assert "pip install 'lookupcache[spark]'" in text


@pytest.mark.slow
def test_without_spark_nothing_needs_pandas() -> None:
    assert run(NO_PANDAS + PREDICT) == (0, "3\n")
