"""Run the tests that draw their cases, many times as large as in CI, and write what they found to docs/nightly.md.

    python3 .ci/dev.py nightly                  20 times as large: a million simulated steps, some hours
    python3 .ci/dev.py nightly 2 --only worker  twice as large, only suites whose name contains the word
    python3 .ci/dev.py nightly --seed 17        replay the run of a seed

Each run takes another seed, the time, unless one is given; the report names it. The report of the last run is kept in
the repository.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "nightly.md"


@dataclass(frozen=True)
class Suite:
    """Tests that are run together: what they show, and how many cases of LOOKUPCACHE_CASES they draw at scale 1."""

    name: str
    path: str
    shows: str
    cases: int | None = None
    line: tuple[str, ...] = ()
    """Arguments of Python, where it is no suite of pytest."""


SUITES = [
    Suite("simulated worker", "tests/worker/test_simulation.py", "every row is right, or marked, or the run failed"),
    Suite("simulated functions", "tests/decorator/test_simulated_calls.py", "the same for callers of `cached`"),
    Suite("cache states", "tests/cache/test_cache_states.py", "caches do as a plain dict does"),
    Suite("function states", "tests/decorator/test_cached_states.py", "`cached` does as its function does"),
    Suite("option pairs of joins", "tests/worker/test_worker_options.py", "every two options go together"),
    Suite("option pairs of functions", "tests/decorator/test_cached_options.py", "the same for `cached`"),
    Suite("fault points", "tests/worker/test_fault_points.py", "a fault at any point leaves nothing wrong"),
    Suite("failures", "tests/worker/test_failures.py", "an error never becomes a miss, in threads and coroutines"),
    Suite("interleavings", "tests/interleavings", "no order of threads or coroutines breaks what they share"),
    Suite("fuzzing", "tests/fuzz", "bytes from outside raise only what is documented"),
    Suite("SQL statements", "tests/sql/test_sql_generated.py", "columns, rows and order are Spark's own", cases=250),
    Suite("SQL on Connect", "tests/spark/test_connect.py", "the same on Spark Connect"),
    Suite("joins", "tests/properties", "the rows are those of Spark's own join", cases=120),
    Suite("mutants", "", "a test fails whatever is changed", line=(".ci/mutation.py", "--sample", "60")),
    Suite("soak", "", "a stream whose sources fail loses no row", line=("-m", "bench.soak", "--minutes", "2")),
]
COUNTS = r"^(?:\d+ (?:steps|orders|inputs|mutants|rows|lookups|statements)\b|Options of|survived ).*$"
"""The lines of a run's output that are part of the report."""


def main() -> int:
    """Run the suites; return 0 where all have passed."""
    parser = argparse.ArgumentParser(prog="dev.py nightly")
    parser.add_argument("scale", nargs="?", type=float, default=20.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    suites = [suite for suite in SUITES if given.only in suite.name]
    results = [run(suite, given.scale, given.seed) for suite in suites]
    REPORT.write_text(report(given.scale, given.seed, results))
    print(f"The report is in {REPORT.relative_to(ROOT)}.")
    return max((result.code for result in results), default=2)


@dataclass(frozen=True)
class Result:
    """How a suite ended."""

    suite: Suite
    code: int
    seconds: float
    passed: int
    counts: list[str]
    failures: list[str]


def run(suite: Suite, scale: float, seed: int) -> Result:
    """Run a suite with pytest, its output shown and read."""
    print(f"── {suite.name}: {suite.shows}", flush=True)
    environment = {"LOOKUPCACHE_SCALE": f"{scale:g}", "LOOKUPCACHE_SEED": str(seed)}
    if suite.cases is not None:
        environment["LOOKUPCACHE_CASES"] = str(round(suite.cases * scale))
    started = time.monotonic()
    line = [sys.executable, "-m", "pytest", "-q", "-n0", f"--hypothesis-seed={seed}", suite.path]
    line += ["-o", "faulthandler_timeout=0"]
    if suite.line:
        line = [sys.executable, *suite.line]
    done = subprocess.run(line, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    print(done.stdout[-4000:] if done.returncode else "\n".join(done.stdout.splitlines()[-1:]), flush=True)
    found = re.search(r"(\d+) passed", done.stdout)
    passed = int(found[1]) if found else int(bool(suite.line) and not done.returncode)
    return Result(
        suite, done.returncode, time.monotonic() - started, passed,
        re.findall(COUNTS, done.stdout, re.MULTILINE),
        re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE),
    )  # fmt: skip


def report(scale: float, seed: int, results: list[Result]) -> str:
    """Return the report as Markdown."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    lines = [
        "# The last nightly run", "",
        "Written by `python3 .ci/dev.py nightly`; [what is promised](promises.md) says what these tests hold.", "",
        f"Scale {scale:g}, seed {seed}, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit.strip()}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores.", "",
        "| suite | shows | tests passed | failed | seconds |", "|---|---|---:|---:|---:|",
    ]  # fmt: skip
    for result in results:
        lines.append(
            f"| {result.suite.name} | {result.suite.shows} | {result.passed} | {len(result.failures)} "
            f"| {result.seconds:.0f} |"
        )
    counts = [f"- {count}" for result in results for count in result.counts]
    failures = [f"- {failure}" for result in results for failure in result.failures]
    lines += ["", "## Counts", "", *(counts or ["None."]), "", "## Failures", "", *(failures or ["None."]), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
