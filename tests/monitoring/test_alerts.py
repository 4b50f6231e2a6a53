"""Prometheus itself evaluates the alerts of the page on operating."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
[RULES] = re.findall(r"```yaml\n(groups:.*?)```", PAGE, re.DOTALL)
NAMES = re.findall(r"alert: (\w+)", RULES)
COUNTS = sorted(set(re.findall(r"lookupcache_[a-z_]+", RULES)))
CALLS = {"source_calls": "0+100x60"}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("counts", "fired"),
    [
        (CALLS, set()),
        ({**CALLS, "failed_stages": "0x50 1x10"}, {"LookupsFail"}),
        ({**CALLS, "failed_rows": "0x50 3x10"}, {"LookupsFail"}),
        ({**CALLS, "dead_letters": "0+1x60"}, {"LookupsFail"}),
        ({**CALLS, "failed_stages": "0 1x60"}, set()),  # half an hour and more ago
        ({**CALLS, "errors": "0+9x60"}, set()),
        ({**CALLS, "errors": "0+11x60"}, {"LookupSourceFails"}),
        ({"refused": "0+5x60"}, {"LookupSourceFails"}),
        ({**CALLS, "stale": "0x50 5x10"}, set()),  # not for long enough
        ({**CALLS, "stale": "0+5x60"}, {"LookupRowsAreOld"}),
        ({**CALLS, "reload_failures": "0x15 1x15 2x15 3x15"}, {"LookupRowsAreOld"}),
        ({**CALLS, "reload_failures": "0x15 1x45"}, set()),
    ],
    ids=str,
)
def test_an_alert_fires_for_what_it_is_for_alone(counts: dict[str, str], fired: set[str], tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no program `promtool`: install the package `prometheus`")
    labels = '{table="orders",join="0123456789ab",query="",instance="driver"}'
    given = dict.fromkeys(COUNTS, "0x60") | {f"lookupcache_{name}_total": value for name, value in counts.items()}
    (tmp_path / "rules.yml").write_text(RULES)
    expected = [
        {"eval_time": "60m", "alertname": name, "exp_alerts": [_alert(name)] if name in fired else []} for name in NAMES
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name + labels, "values": values} for name, values in given.items()],
        "alert_rule_test": expected,
    }
    (tmp_path / "test.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]})
    )
    result = subprocess.run([program, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def _alert(name: str) -> dict[str, dict[str, str]]:
    """Return what Prometheus sends for an alert."""
    [summary] = re.findall(rf'alert: {name}\n.*?summary: "(.*?)"', RULES, re.DOTALL)
    return {
        "exp_labels": {"table": "orders"},
        "exp_annotations": {"summary": summary.replace("{{ $labels.table }}", "orders")},
    }
