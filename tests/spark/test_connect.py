"""The join on Spark Connect, which cannot share a process with the classic session of the other tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scale import SCALE

HERE = Path(__file__).parent


@pytest.mark.extended
@pytest.mark.connect
def test_the_join_on_spark_connect(tmp_path, capsys):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "connect_check.py")]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600 * max(SCALE, 1), check=False
    )
    assert done.returncode == 0, f"{done.stdout[-10_000:]}\n{done.stderr[-5_000:]}"
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 35
    with capsys.disabled():  # the nightly report has this line
        print("", *re.findall(r"^\d+ statements: .*", done.stdout, re.MULTILINE), sep="\n")
