"""Mutation testing: change one thing in the code at a time, and see whether a test fails.

    python3 .ci/dev.py mutation --sample 60                60 mutants of each package, drawn from a seed
    python3 .ci/dev.py mutation --only cache --seed 17     another seed, one package
    python3 .ci/dev.py mutation --only cache --mutant 381  one mutant, whose change and test output are shown
    python3 .ci/dev.py mutation --only cache --mutant 3,5  several again, which have survived before

The changes are those of cosmic-ray's operators, without those in annotations. The package's tests that need neither
Spark nor servers run once, to learn which of them run which lines. Each mutant runs in a forked process that has
imported the libraries, with the tests that run its lines, the quickest first, until one fails. Tests draw few examples
at first; a mutant that survives is tried again with as many as by day, and printed as `killed late` if one finds it.
What is left is printed as `survived`, with its line. The share that is found comes with the limits between which that
of all mutants lies with a probability of 95 %.
"""

import argparse
import ast
import difflib
import importlib.machinery
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 30.0
"""A mutant whose tests take three times as long as without a change, and this, counts as found: it waits for ever."""
LATE_SECONDS = 900.0
"""The same with as many examples as by day."""


@dataclass(frozen=True)
class Package:
    """Modules, and the tests that are to find their mutants."""

    modules: str
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Modules that only tests with Spark run."""


PACKAGES = {
    "cache": Package(
        "lookupcache/cache",
        ("tests/cache", "tests/worker/test_lookup.py", "tests/worker/test_freshness.py", "tests/worker/test_runner.py",
         "tests/decorator/test_given_cache.py", "tests/test_docs.py"),
    ),
    "executor": Package(
        "lookupcache/executor",
        ("tests/executor", "tests/worker/test_lookup.py", "tests/decorator/test_cached.py",
         "tests/decorator/test_decorator.py", "tests/worker/test_failures.py", "tests/test_docs.py"),
    ),
    "planner": Package(
        "lookupcache/planner",
        ("tests/planner", "tests/test_plan.py", "tests/test_error_texts.py", "tests/test_docs.py"),
        ("column.py", "catalyst_column.py"),
    ),
    "expr": Package(
        "lookupcache/expr.py", ("tests/test_expr.py", "tests/planner/test_translate.py", "tests/test_docs.py")
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """The n-th place in a module at which an operator of cosmic-ray changes something."""

    path: Path
    operator: str
    occurrence: int


def main() -> int:
    """Draw mutants of each package and try them; return 1 if fewer than ``--least`` percent of a package are found."""
    parser = argparse.ArgumentParser(prog="dev.py mutation")
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("LOOKUPCACHE_SEED", "0")))
    parser.add_argument("--only", default="")
    parser.add_argument("--mutant", type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--least", type=float, default=0.0)
    options = parser.parse_args()
    rates = {
        name: try_package(name, options.sample, options.seed, options.mutant)
        for name in PACKAGES
        if options.only in ("", name)
    }
    failed = {name: rate for name, rate in rates.items() if rate < options.least}
    for name, rate in failed.items():
        print(f"FAILED {name}: {rate:.0f} % of the mutants were found, fewer than {options.least:g} %", flush=True)
    return int(bool(failed))


def try_package(name: str, sample: int, seed: int, only: list[int] | None) -> float:
    """Try a sample of a package's mutants, print those that survive, and return the percentage of the others."""
    preload()
    package = PACKAGES[name]
    mutants = list(mutants_of(ROOT / package.modules))
    numbers = [number for number, mutant in enumerate(mutants) if mutant.path.name not in package.without]
    random.Random(seed).shuffle(numbers)
    covering = measure(package)
    unchanged, every_test = mutants[0].path, sorted(covering.seconds, key=covering.seconds.__getitem__)
    code = run_forked(unchanged, unchanged.read_text(), every_test, covering.seconds_for(every_test), shown=False)
    if code:
        fault = "fail" if code > 0 else "take too long"
        sys.exit(f"The tests of {name} {fault} without a change if the quickest run first.")
    tried = found = 0
    started = time.monotonic()
    for number in only or numbers:
        if tried == sample and only is None:
            break
        source = mutants[number].path.read_text()
        changed = apply_mutant(source, mutants[number])
        if changed is None or not is_change(source, changed):
            continue
        tried += 1
        outcome = try_mutant(mutants[number].path, source, changed, covering, shown=len(only or ()) == 1)
        found += outcome != "survived"
        if tried % 10 == 0:
            print(f"{found} of {tried} found", flush=True)
        if outcome in ("survived", "killed late") or only is not None:
            print(f"{outcome} {name} {number}: {describe(source, changed, mutants[number].path)}", flush=True)
    minutes = (time.monotonic() - started) / 60
    rate = 100 * found / max(tried, 1)
    low, high = limits(found, max(tried, 1))
    print(f"{found} mutants of {tried} found in {name}, {rate:.0f} % ({low:.0f} to {high:.0f} %), of {len(numbers)} "
          f"places, seed {seed}; {tried / max(minutes, 0.01):.0f} a minute", flush=True)  # fmt: skip
    return rate


def limits(found: int, tried: int) -> tuple[float, float]:
    """Return the percentages between which the share lies with a probability of 95 %, by Wilson's formula."""
    z, share = 1.96, found / tried
    middle = share + z * z / (2 * tried)
    spread = z * (share * (1 - share) / tried + z * z / (4 * tried * tried)) ** 0.5
    return tuple(100 * (middle + sign * spread) / (1 + z * z / tried) for sign in (-1, 1))


class Covering:
    """Which tests run each line of each module, and how long they take."""

    def __init__(self, lines: dict[str, dict[str, list[str]]], seconds: dict[str, float]) -> None:
        self.lines = lines
        self.seconds = seconds

    def tests(self, path: Path, numbers: set[int]) -> list[str]:
        """Return the tests that run one of these lines, the quickest first; all, for lines that imports run."""
        found = {test for number in numbers for test in self.lines.get(str(path), {}).get(str(number), ())}
        chosen = self.seconds if "" in found else found
        return sorted(chosen, key=lambda test: self.seconds[test])

    def seconds_for(self, tests: list[str]) -> float:
        """Return how long these tests may take before they count as waiting for ever."""
        return SECONDS + 3 * sum(self.seconds[test] for test in tests)


def measure(package: Package) -> Covering:
    """Run all tests of a package without a change, and return which lines each has run; exit if one fails."""
    target = Path(tempfile.mkdtemp(prefix="mutation-")) / "covering.json"
    process = os.fork()
    if not process:
        os.setsid()
        os._exit(measure_forked(package, target))
    if os.waitpid(process, 0)[1]:
        sys.exit(f"The tests of {package.modules} fail without a change.")
    return Covering(*json.loads(target.read_text()))


def measure_forked(package: Package, target: Path) -> int:
    """Run tests in this process under coverage; write lines and seconds as JSON."""
    import coverage

    measured = coverage.Coverage(data_file=None, config_file=False, source=[str(ROOT / "lookupcache")])
    seconds: dict[str, float] = {}

    class Contexts:
        def pytest_runtest_setup(self, item) -> None:
            measured.switch_context(item.nodeid)

        def pytest_runtest_logreport(self, report) -> None:
            seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration

    measured.start()
    code = run_pytest(list(package.tests), [Contexts()])
    measured.stop()
    data = measured.get_data()
    files = [file for file in data.measured_files() if file.startswith(str(ROOT / package.modules))]
    target.write_text(json.dumps([{file: data.contexts_by_lineno(file) for file in files}, seconds]))
    return code


def preload() -> None:
    """Import what the tests import, except the code under test, so that forked processes need not."""
    import cosmic_ray.plugins  # noqa: F401
    import hypothesis.stateful
    import numpy as np
    import pandas as pd
    import pyarrow.compute
    import pyarrow.dataset
    import pyarrow.parquet
    import pyspark.sql.functions
    import pytest
    import sqlglot.dialects.spark

    _ = hypothesis, np, pd, pyarrow, pyspark, pytest, sqlglot


def mutants_of(path: Path):
    """Yield all mutants of a module or of the modules of a folder."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import get_ast
    from cosmic_ray.mutating import MutationVisitor

    for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        tree = get_ast(module.read_text())
        for name in plugins.operator_names():
            if "Decorator" in name or "Variable" in name:
                continue
            visitor = MutationVisitor(sys.maxsize, plugins.get_operator(name)())
            visitor.walk(tree)
            for occurrence in range(visitor._count):
                yield Mutant(module, name, occurrence)


def apply_mutant(source: str, mutant: Mutant) -> str | None:
    """Return the changed source."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    return mutate_code(source, plugins.get_operator(mutant.operator)(), mutant.occurrence)


def is_change(source: str, changed: str) -> bool:
    """Return whether anything but annotations has changed, and it is still Python."""
    try:
        return _without_annotations(source) != _without_annotations(changed)
    except SyntaxError:
        return False


def _without_annotations(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


def try_mutant(path: Path, source: str, changed: str, covering: Covering, *, shown: bool) -> str:
    """Run the tests that run the changed statement; return `killed`, `killed late`, `timeout` or `survived`."""
    tests = covering.tests(path, statement_lines(source, changed))
    if not tests:
        return "survived"
    if code := run_forked(path, changed, tests, covering.seconds_for(tests), shown=shown):
        return "killed" if code > 0 else "timeout"
    code = run_forked(path, changed, tests, LATE_SECONDS, shown=shown, is_late=True)
    return "survived" if not code else "killed late" if code > 0 else "timeout"


def statement_lines(source: str, changed: str) -> set[int]:
    """Return the lines of the statements that differ, of a compound statement those of its head."""
    before, after = source.splitlines(), changed.splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    differing = {
        line for kind, start, end, *_ in blocks if kind != "equal" for line in range(start, max(end, start + 1))
    }
    found = {line + 1 for line in differing}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            lines = set(range(node.lineno, max(last, node.lineno) + 1))
            if lines & {line + 1 for line in differing}:
                found |= lines
    return found


def run_forked(path: Path, source: str, tests: list[str], seconds: float, *, shown: bool, is_late: bool = False) -> int:
    """Return the exit code of pytest in a forked process, or -1 if it had to be killed."""
    process = os.fork()
    if not process:
        os.setsid()
        os._exit(run_tests(path, source, tests, shown=shown, is_late=is_late))
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return abs(os.waitstatus_to_exitcode(status))
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -1


def run_tests(path: Path, source: str, tests: list[str], *, shown: bool, is_late: bool) -> int:
    """Run tests in this process, in this order, in which the module of a path has another source."""
    if not shown:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self, name):
        if self.path == str(path):
            return compile(source, str(path), "exec", dont_inherit=True)
        return original(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code
    order = {test: number for number, test in enumerate(tests)}

    class Chosen:
        def pytest_collection_modifyitems(self, items) -> None:
            items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    return run_pytest(sorted({test.partition("::")[0] for test in tests}), [Chosen()], is_late=is_late)


def run_pytest(arguments: list[str], plugins: list[object], *, is_late: bool = False) -> int:
    """Run pytest in this process until a test fails, without tests that need Spark or servers.

    Unless ``is_late``, tests draw few examples; else it is up to the plugins which tests run.
    """
    sys.path[:0] = [str(ROOT), str(ROOT / "connectors")]
    os.chdir(ROOT)
    from hypothesis.internal.conjecture.engine import ConjectureRunner

    # That a test fails is enough; a smaller example is not needed.
    ConjectureRunner.shrink_interesting_examples = lambda self: None
    import pytest

    quiet = ["-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    # What was imported before keeps its plain asserts.
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main(["-x", "-q", "-n0", *([] if is_late else ["--fast"]), *quiet, *arguments], plugins=plugins))


def describe(source: str, changed: str, path: Path) -> str:
    """Return the changed lines."""
    lines = list(difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm=""))
    place = next((line for line in lines if line.startswith("@@")), "").split()
    texts = [line[1:].strip() for line in lines[2:] if line[:1] in "+-"]
    return f"{path.relative_to(ROOT)}:{place[1].lstrip('-').partition(',')[0] if place else ''}: {' => '.join(texts)}"


if __name__ == "__main__":
    sys.exit(main())
