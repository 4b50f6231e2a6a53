"""A short run of each target with the same changes each time; `tests/fuzz/run.py` and the nightly run go on."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from changes import run_changes
from scale import SCALE, SEED, scale_up
from targets import SEEDS, TARGETS

INPUTS = 200
SECONDS = 3.0
"""For each target at night, times the scale."""


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_from_outside_raise_only_what_is_documented(name, capsys):
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    count = run_changes(TARGETS[name], SEEDS[name], SEED, scale_up(INPUTS))
    if SCALE > 1:
        with capsys.disabled():
            print(f"\n{count} inputs of {name}, changed at random from seed {SEED}")


if SCALE > 1:

    @pytest.mark.parametrize("name", TARGETS)
    def test_inputs_that_coverage_guides(name, capsys, tmp_path):
        line = [sys.executable, str(Path(__file__).parent / "run.py"), name, str(SECONDS * SCALE), str(SEED)]
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=os.environ)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-6000:]
        units = re.search(r"number_of_executed_units:\s*(\d+)", said)
        with capsys.disabled():
            print(f"\n{units[1]} inputs of {name}, guided by coverage" if units else f"\n{done.stdout.strip()}")
