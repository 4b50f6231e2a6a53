"""Run the tests that draw their cases, many times as large as in CI, and write what they found to docs/nightly.md.

    python3 .ci/dev.py nightly                  20 times as large: a million simulated steps, some hours
    python3 .ci/dev.py nightly 2 --only worker  twice as large, only suites whose name contains the word, or one
                                                of several with commas between them
    python3 .ci/dev.py nightly --resume         go on where a run was stopped: without the suites that have passed
                                                on this commit, at this scale or a larger one
    python3 .ci/dev.py nightly --list           the last result of each suite, and how long a run would take
    python3 .ci/dev.py nightly --seed 17        replay the run of a seed
    python3 .ci/dev.py nightly --only joins --minutes 60   as many joins as an hour allows, but no more than 100,000

Each run takes another seed, the time, unless one is given; the report names it. The last result of each suite is kept
in the repository, with its commit and date: a run of one suite replaces the result of that suite only, when it ends.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "nightly.md"
RECORD = ROOT / ".ci" / "nightly.json"
"""The last result of each suite, from which the report is made."""
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
    plot: str = ""
    """Where in docs/ the plot of its last run that passed is kept; a run prints where it has drawn one."""


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
    Suite("S3 server", "", "a store in a bucket does as one in a folder", line=(".ci/dev.py", "s3", "-q")),
    Suite("test kit", "tests/testing", "each check of the kit finds its fault and no other"),
    Suite("fuzzing", "tests/fuzz", "bytes from outside raise only what is documented"),
    Suite("SQL statements", "tests/sql/test_sql_generated.py", "columns, rows and order are Spark's own", cases=250),
    Suite(
        "Spark's own files",
        "tests/sql/test_spark_files.py",
        "their statements give the same where lookup tables stand for relations",
        needs="LOOKUPCACHE_SPARK_FILES",
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
        plot="images/soak.png",
    ),
]
COUNTS = (
    r"^(?:\d+ (?:steps|orders|inputs|mutants|rows|lookups|statements|joins|chains|streams|SQL joins)\b|"
    r"Options of|survived ).*$"
)
"""The lines of a run's output that are part of the report."""
PLOT = re.compile(r"^Plotted to (.*)\.$", re.MULTILINE)
CASES = re.compile(r"(\d+) (?:joins|statements)\b")


def main() -> int:
    """Run the suites; return 0 where all have passed."""
    parser = argparse.ArgumentParser(prog="dev.py nightly")
    parser.add_argument("scale", nargs="?", type=float, default=20.0)
    parser.add_argument("--only", default="", help="words, with commas between them")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, help="how long joins, statements or cases by coverage are drawn")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    results, commit = read_record(), current_commit()
    suites = [suite for suite in SUITES if any(word in suite.name for word in given.only.split(","))]
    if given.resume:
        suites = [suite for suite in suites if not is_done(results.get(suite.name), given.scale, commit)]
    if given.list:
        print(overview(suites, results, given.scale))
        return 0
    if absent := [suite for suite in suites if suite.needs and suite.needs not in os.environ]:
        print("Left out:", *(f"{suite.name}, which needs {suite.needs}" for suite in absent), sep="\n  ")
        suites = [suite for suite in suites if suite not in absent]
    code = 0 if suites or given.resume else 2
    for suite in suites:
        result = run(suite, given.scale, given.seed, commit, given.minutes)
        # At once: what was found is kept if a later suite is stopped.
        results = read_record()
        results[suite.name] = with_total(suite, result, results.get(suite.name))
        write_record(results)
        code = max(code, result.code)
    print(f"The report is in {REPORT.relative_to(ROOT)}.")
    return code


@dataclass(frozen=True)
class Result:
    """How the last run of a suite ended."""

    code: int
    seconds: float
    passed: int
    counts: list[str]
    failures: list[str]
    scale: float
    seed: int
    commit: str
    date: str
    python: str
    cores: int | None
    total: int = 0
    """How many cases all recorded runs have drawn that passed, of suites that print how many they draw."""


def with_total(suite: Suite, result: Result, last: Result | None) -> Result:
    """Return a result with the cases of the runs before it, at the scale that it has reached."""
    found = [int(match[1]) for match in map(CASES.match, result.counts) if match]
    before = last.total if last else 0
    if suite.cases is None or not found:
        return replace(result, total=before)
    # Fewer than asked for, where the time was limited.
    scale = min(result.scale, round(found[0] / suite.cases, 2))
    return replace(result, scale=scale, total=before + (0 if result.code else found[0]))


def run(suite: Suite, scale: float, seed: int, commit: str, minutes: float | None = None) -> Result:
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
        if suite.plot and (drawn := PLOT.search(done.stdout)):
            shutil.copy(drawn[1], REPORT.parent / suite.plot)
    found = re.search(r"(\d+) passed", done.stdout)
    passed = int(found[1]) if found else int(bool(suite.line) and not done.returncode)
    return Result(
        done.returncode, round(time.monotonic() - started), passed,
        re.findall(COUNTS, done.stdout, re.MULTILINE),
        re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE),
        scale, seed, commit, time.strftime("%Y-%m-%d", time.gmtime()), platform.python_version(), os.cpu_count(),
    )  # fmt: skip


def is_done(last: Result | None, scale: float, commit: str) -> bool:
    """Return whether a suite has passed on this commit, at this scale or a larger one."""
    return last is not None and not last.code and last.commit == commit and last.scale >= scale


def current_commit() -> str:
    """Return the short name of the commit, with a plus where files were changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = [line for line in git("status", "--porcelain").splitlines() if "nightly" not in line]
    return git("rev-parse", "--short=7", "HEAD") + "+" * bool(changed)


def read_record() -> dict[str, Result]:
    """Return the last results by suite."""
    return {name: Result(**result) for name, result in json.loads(RECORD.read_text()).items()}


def write_record(results: dict[str, Result]) -> None:
    """Write the last results, and the report of them."""
    kept = {suite.name: asdict(results[suite.name]) for suite in SUITES if suite.name in results}
    RECORD.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    REPORT.write_text(report(results))


def overview(suites: list[Suite], results: dict[str, Result], scale: float) -> str:
    """Return the last results as lines, with the minutes that each suite would take at a scale."""
    lines, minutes, unknown = [], 0.0, []
    for suite in suites:
        last = results.get(suite.name)
        if last is None:
            lines.append(f"{suite.name}: never run")
            unknown.append(suite.name)
            continue
        # Suites of a line take no scale.
        expected = last.seconds / 60 * (1 if suite.line else scale / last.scale)
        minutes += expected
        state = "failed" if last.code else "passed"
        lines.append(
            f"{suite.name}: {state} at scale {last.scale:g}, {last.commit}, {last.date}; about {expected:.0f} min "
            f"at scale {scale:g}"
        )
    rest = f", and {len(unknown)} suites whose time is not known" if unknown else ""
    return "\n".join([*lines, f"all: about {minutes:.0f} min at scale {scale:g}{rest}"])


def report(results: dict[str, Result]) -> str:
    """Return the report as Markdown."""
    lines = [
        "# The last nightly runs", "",
        "Written by `python3 .ci/dev.py nightly`; [what is promised](promises.md) says what these tests hold. A run of",
        "some suites replaces their lines only; `--resume` goes on with one, `--list` says how long it takes.",
        "",
        "| suite | shows | scale | tests passed | failed | seconds | seed | commit | date |",
        "|---|---|---:|---:|---:|---:|---:|---|---|",
    ]  # fmt: skip
    counts, plots, failures = [], [], []
    for suite in SUITES:
        last = results.get(suite.name)
        if last is None:
            lines.append(f"| {suite.name} | {suite.shows} | never run | | | | | | |")
            continue
        lines.append(
            f"| {suite.name} | {suite.shows} | {last.scale:g} | {last.passed} | {len(last.failures)} "
            f"| {last.seconds:.0f} | {last.seed} | {last.commit} | {last.date} |"
        )
        counts += [f"- {suite.name}: {count}" for count in last.counts]
        if last.total:
            counts.append(f"- {suite.name}: {last.total} in all runs that were recorded and passed")
        if suite.plot:
            plots += [f"![{suite.name}: {suite.shows}]({suite.plot})", ""]
        failures += [f"- {suite.name}: {failure}" for failure in last.failures]
        if last.code and not last.failures:
            failures.append(f"- {suite.name}: it ended with code {last.code}")
    lines += ["", "A plus behind a commit: with changes that were not committed.", ""]
    lines += ["## Counts", "", *(counts or ["None."]), ""]
    if plots:
        lines += ["## Plots", "", *plots]
    lines += ["## Failures", "", *(failures or ["None."]), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
