"""Executors of a cluster that lose something while they join (`bench.cluster`): each job ends with the right rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.extended
def test_a_cluster_that_loses_something_ends_with_the_right_rows(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "bench.cluster", "--smallest", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # It compares rows itself, and fails where they differ.
    assert done.returncode == 0, done.stderr[-4000:]
    per_key = {one["scenario"]: one["per_key"] for one in json.loads((tmp_path / "cluster.json").read_text())}
    assert len(per_key) == 5
    assert per_key["cold"] == 1
    assert max(per_key.values()) <= 2, "two executors request each key at most once each"
