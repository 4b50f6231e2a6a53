"""The record of the nightly runs: each suite keeps its last result, and a run that was stopped can go on."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def nightly(tmp_path, monkeypatch):
    """Return the module, with a record and a report of its own, and suites that do not run."""
    spec = importlib.util.spec_from_file_location("nightly", ROOT / ".ci" / "nightly.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "nightly", module)
    spec.loader.exec_module(module)
    for name in ("RECORD", "REPORT", "OUTPUT"):
        monkeypatch.setattr(module, name, tmp_path / name)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "current_commit", lambda: "abc1234")
    module.RECORD.write_text("{}")
    module.ran = []

    def run(suite, scale, seed, commit, minutes):
        module.ran.append(suite.name)
        cases = round((suite.cases or 0) * (scale if minutes is None else scale / 4))
        counts = [f"{cases} joins from number 1 on" if cases else f"{scale:g} inputs"]
        return dataclasses.replace(result, scale=scale, seed=seed, commit=commit, counts=counts)

    result = module.Result(0, 60.0, 3, [], [], 1.0, 1, "", "2026-01-01", "3.11.7", 2)
    module.really_run = module.run
    monkeypatch.setattr(module, "run", run)
    return module


def call(nightly, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["nightly", *words])
    return nightly.main()


def test_a_run_of_one_suite_keeps_the_results_of_the_others(nightly, monkeypatch):
    assert call(nightly, monkeypatch, "2", "--only", "cache states,fuzzing", "--seed", "7") == 0
    assert call(nightly, monkeypatch, "5", "--only", "fuzzing", "--seed", "8") == 0
    found = {name: (result.scale, result.seed) for name, result in nightly.read_record().items()}
    assert found == {"cache states": (2, 7), "fuzzing": (5, 8)}
    report = nightly.REPORT.read_text()
    assert "- cache states: 2 inputs" in report
    assert "- fuzzing: 5 inputs" in report
    assert "| 5 | 3 | 0 | 60 | 8 | abc1234 | 2026-01-01 |" in report


def test_cases_of_all_runs_are_added(nightly, monkeypatch):
    assert call(nightly, monkeypatch, "1", "--only", "joins") == 0
    assert call(nightly, monkeypatch, "2", "--only", "joins", "--minutes", "5") == 0
    found = nightly.read_record()["joins"]
    assert (found.scale, found.total) == (0.5, 7500)
    assert "- joins: 7500 in all runs" in nightly.REPORT.read_text()


def test_the_plot_of_a_run_that_passed_is_kept(nightly, monkeypatch, tmp_path):
    (tmp_path / "images").mkdir()
    kept, run = tmp_path / "images" / "soak.png", nightly.really_run
    for code, drawn in ((0, "first"), (0, "second"), (1, "third")):
        (tmp_path / "drawn.png").write_text(drawn)
        line = ("-c", f"import sys; print('Plotted to {tmp_path}/drawn.png.'); sys.exit({code})")
        suite = nightly.Suite("soak", "", "", line=line, plot="images/soak.png")
        nightly.write_record({"soak": run(suite, 1.0, 1, "abc1234")})
    assert kept.read_text() == "second"
    assert "![soak: a stream whose sources fail loses no row](images/soak.png)" in nightly.REPORT.read_text()


def test_a_run_that_was_stopped_goes_on(nightly, monkeypatch):
    assert call(nightly, monkeypatch, "2", "--only", "states") == 0
    assert nightly.ran == ["cache states", "function states"]
    nightly.ran.clear()
    assert call(nightly, monkeypatch, "2", "--only", "states,fuzzing", "--resume") == 0
    assert nightly.ran == ["fuzzing"]
    assert call(nightly, monkeypatch, "3", "--only", "fuzzing", "--resume") == 0
    assert nightly.ran == ["fuzzing", "fuzzing"]
    monkeypatch.setattr(nightly, "current_commit", lambda: "def5678")
    assert call(nightly, monkeypatch, "2", "--only", "cache states", "--resume") == 0
    assert nightly.ran[-1] == "cache states"


def test_the_list_says_how_long_a_run_takes(nightly, monkeypatch, capsys):
    call(nightly, monkeypatch, "2", "--only", "cache states")
    capsys.readouterr()
    assert call(nightly, monkeypatch, "20", "--only", "states", "--list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "cache states: passed at scale 2, abc1234, 2026-01-01; about 10 min at scale 20",
        "function states: never run",
        "all: about 10 min at scale 20, and 1 suites whose time is not known",
    ]


def test_the_report_in_the_repository_is_made_from_the_record(nightly):
    recorded = json.loads((ROOT / ".ci" / "nightly.json").read_text())
    results = {name: nightly.Result(**one) for name, one in recorded.items()}
    assert nightly.report(results) == (ROOT / "docs" / "nightly.md").read_text()


def test_each_suite_is_there(nightly):
    lines = [suite.path or suite.line[0] for suite in nightly.SUITES if suite.line[:1] != ("-m",)]
    paths = [path for line in lines for path in line.split()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
