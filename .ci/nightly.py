"""Run the tests that draw their cases, many times as large as by day, and print what they found.

    python3 .ci/dev.py nightly                  20 times as large: a million simulated steps, some hours
    python3 .ci/dev.py nightly 2 --only worker  twice as large, only suites whose name contains the word, or one
                                                of several with commas between them
    python3 .ci/dev.py nightly --list           the suites
    python3 .ci/dev.py nightly --seed 17        replay the run of a seed
    python3 .ci/dev.py nightly --only joins --minutes 60   as many joins as an hour allows, but no more than 100,000

Each run takes another seed, the time, unless one is given; the report names it. The output of suites that fail is in
`.nightly/`.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / ".nightly"
"""What suites that failed have printed, by their names."""


@dataclass(frozen=True)
class Suite:
    """Tests that are run together: what they show, and how many cases of LOOKUPCACHE_CASES they draw at scale 1."""

    name: str
    path: str
    shows: str
    cases: int | None = None
    line: tuple[str, ...] = ()
    """Arguments of Python, where it is no suite of pytest."""
    minutes: float | None = None
    """How long it takes by default, as the last argument of its line."""
    needs: str = ""
    """An environment variable without which it cannot be run."""


def of_pytest(words: str, *more: str) -> tuple[str, ...]:
    """Return the line of a suite that consists of tests of several files."""
    return ("-m", "pytest", "-q", *words.split(), *more)


SUITES = [
    Suite(
        "simulated worker",
        "tests/worker/test_simulation.py tests/worker/test_simulated_stores.py",
        "every row is right, or marked, or the run failed",
    ),
    Suite("simulated functions", "tests/decorator/test_simulated_calls.py", "the same for callers of `cached`"),
    Suite("cache states", "tests/cache/test_cache_states.py", "caches do as a plain dict does"),
    Suite("caches", "tests/cache/test_cache.py", "limits, leases and policies hold in any order of batches"),
    Suite("function states", "tests/decorator/test_cached_states.py", "`cached` does as its function does"),
    Suite("option pairs of joins", "tests/worker/test_worker_options.py", "every two options go together"),
    Suite("option pairs of functions", "tests/decorator/test_cached_options.py", "the same for `cached`"),
    Suite(
        "cases by coverage",
        "",
        "both again, drawn by the code that they reach",
        line=(".ci/fuzz_states.py",),
        minutes=60,
    ),
    Suite("fault points", "tests/worker/test_fault_points.py", "a fault at any point leaves nothing wrong"),
    Suite("failures", "tests/worker/test_failures.py", "an error never becomes a miss, in threads and coroutines"),
    Suite("interleavings", "tests/interleavings", "no order of threads or coroutines breaks what they share"),
    Suite(
        "long tests",
        "",
        "tests that are left out by day",
        line=of_pytest("-m nightly -n 2 --dist loadfile --max-worker-restart=0 tests"),
    ),
    Suite("test kit", "tests/testing", "each check of the kit finds its fault and no other"),
    Suite("fuzzing", "tests/fuzz", "bytes from outside raise only what is documented"),
    Suite("SQL statements", "tests/sql/test_sql_generated.py", "columns, rows and order are Spark's own", cases=250),
    Suite(
        "Spark's own files",
        "tests/sql/test_spark_files.py",
        "their statements give the same where lookup tables stand for relations",
        needs="LOOKUPCACHE_SPARK_FILES",
    ),
    Suite(
        "Flink's jobs",
        "tests/sql/test_flink_jobs.py",
        "public jobs run as they are, and give the rows of Spark's own joins",
        needs="LOOKUPCACHE_FLINK_JOBS",
    ),
    Suite("SQL on Connect", "tests/spark/test_connect.py", "the same on Spark Connect"),
    Suite(
        "latest values",
        "",
        "each left row gets what a model says, with restarts",
        line=of_pytest(
            "-n0 tests/latest tests/spark/test_latest.py tests/sql/test_latest_drawn.py -k", "drawn or each_order"
        ),
    ),
    Suite(
        "chains, streams and SQL",
        "",
        "the rows of several lookups, of streams, and of joins in SQL, are Spark's own",
        line=of_pytest(
            "-n0 tests/properties/test_chains.py tests/properties/test_stream_properties.py "
            "tests/properties/test_sql_properties.py"
        ),
        cases=120,
    ),
    Suite("joins", "tests/properties/test_properties.py", "the rows are those of Spark's own join", cases=5_000),
    *(
        Suite(
            f"mutants of {package}",
            "",
            f"a test fails for 85 of 100 changes of {package}",
            line=(".ci/mutation.py", "--sample", "60", "--least", "85", "--only", package),
        )
        for package in ("cache", "executor", "planner", "expr")
    ),
    Suite(
        "soak",
        "",
        "a stream whose sources fail loses no row",
        line=("-m", "bench.soak", "--minutes"),
        minutes=60,
    ),
    Suite(
        "scale",
        "",
        "joins of up to 100 million rows with 10 million keys end, keep to the limits, and have the right rows",
        line=("-m", "bench.scale", "--largest"),
    ),
]
COUNTS = (
    r"^(?:\d+ (?:steps|orders|inputs|mutants|rows|lookups|statements|joins|chains|streams|SQL joins)\b|"
    r"Options of|survived ).*$"
)
"""The lines of a run's output that are part of the report."""


@dataclass(frozen=True)
class Result:
    """How a suite ended."""

    suite: Suite
    code: int
    seconds: float
    passed: int
    counts: list[str]
    failures: list[str]


def main() -> int:
    """Run the suites and print the report; return 0 where all have passed."""
    parser = argparse.ArgumentParser(prog="dev.py nightly")
    parser.add_argument("scale", nargs="?", type=float, default=20.0)
    parser.add_argument("--only", default="", help="words, with commas between them")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, help="how long joins, statements or cases by coverage are drawn")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    suites = [suite for suite in SUITES if any(word in suite.name for word in given.only.split(","))]
    if given.list or not suites:
        print(*(f"{suite.name}: {suite.shows}" for suite in suites or SUITES), sep="\n")
        return 0 if given.list else 2
    if absent := [suite for suite in suites if suite.needs and suite.needs not in os.environ]:
        print("Left out:", *(f"{suite.name}, which needs {suite.needs}" for suite in absent), sep="\n  ")
    results = [run(suite, given.scale, given.seed, given.minutes) for suite in suites if suite not in absent]
    print("", *report(results, given.scale, given.seed), sep="\n")
    return max((result.code for result in results), default=2)


def run(suite: Suite, scale: float, seed: int, minutes: float | None = None) -> Result:
    """Run a suite with pytest, its output shown and read."""
    print(f"── {suite.name}: {suite.shows}", flush=True)
    environment = {"LOOKUPCACHE_SCALE": f"{scale:g}", "LOOKUPCACHE_SEED": str(seed)}
    if suite.cases is not None:
        environment["LOOKUPCACHE_CASES"] = str(round(suite.cases * scale))
    if minutes is not None:
        environment["LOOKUPCACHE_MINUTES"] = f"{minutes:g}"
    started = time.monotonic()
    line = [sys.executable, "-m", "pytest", "-q", "-n0", f"--hypothesis-seed={seed}", *suite.path.split()]
    line += ["-o", "faulthandler_timeout=0"]
    if suite.line:
        line = [sys.executable, *suite.line]
    if suite.minutes is not None:
        line.append(f"{minutes or suite.minutes:g}")
    done = subprocess.run(line, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        OUTPUT.mkdir(exist_ok=True)
        output = OUTPUT / f"{suite.name.replace(' ', '-')}.log"
        output.write_text(done.stdout + done.stderr)
        print(f"{done.stdout[-4000:]}\nAll of it is in {output.relative_to(ROOT)}.", flush=True)
    else:
        print("\n".join(done.stdout.splitlines()[-1:]), flush=True)
    found = re.search(r"(\d+) passed", done.stdout)
    return Result(
        suite,
        done.returncode,
        round(time.monotonic() - started),
        int(found[1]) if found else int(bool(suite.line) and not done.returncode),
        re.findall(COUNTS, done.stdout, re.MULTILINE),
        re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE),
    )


def report(results: list[Result], scale: float, seed: int) -> Iterator[str]:
    """Yield the lines of the report: how each suite ended, what it drew, and what failed."""
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    yield f"Scale {scale:g}, seed {seed}, commit {commit.strip()}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    for result in results:
        state = f"failed with code {result.code}" if result.code else "passed"
        yield f"{result.suite.name}: {state}, {result.passed} tests in {result.seconds:.0f} s"
        yield from (f"  {line}" for line in [*result.counts, *(f"FAILED {failure}" for failure in result.failures)])


if __name__ == "__main__":
    sys.exit(main())
