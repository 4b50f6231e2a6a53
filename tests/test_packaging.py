"""What the wheel holds, that it works where only it is installed, and which room may import which."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

import lookupcache

ROOT = Path(__file__).parent.parent

# One line per storey, the lowest first: a room imports from the lines above its own and from its own line.
STOREYS = """
    errors redaction
    error_text
    java schema config.values config.flink config.contradictions secrets
    config.lookup_config
    config
    expr
    plan
    connector
    function
    table
    table_function
    metrics
    calls.breaker calls.rate calls.retry
    calls.guard
    planner.analyst planner.clauses planner.literals planner.explain
    planner.grammar planner.settings
    planner.naming planner.coercion
    planner.constants planner.translate planner.output
    planner.column
    planner.passes
    planner
    cache.limits cache.keys cache.row_store
    cache.hash_index
    cache.entry_columns cache.line cache.ghost
    cache.policy
    cache.policy_queues
    cache.policies
    cache.size
    cache.row_cache
    cache.key_lookup cache.entry_numbers cache.entry_rows cache.in_flight
    cache.expiry
    cache.entry_table
    cache.limit_enforcer
    cache.column_cache
    cache
    calls.flight
    calls.coroutines calls.threads
    calls
    decorator.latch decorator.pool decorator.arguments
    decorator.batching
    decorator.callee decorator.nesting
    decorator.single_flight
    decorator.sync_lookup decorator.async_lookup
    decorator.decorated
    decorator.decorate
    decorator
    worker.answers
    worker.source
    worker.partial worker.full
    worker.lookup
    worker.dead_letters
    worker.runner
    report
    worker.task
    worker
    forms.left_side forms.sides
    forms.judging forms.reckoning
    forms.choice
    forms.worker forms.distinct forms.broadcast
    forms.ways
    forms
    join
    whole
    sql.hiding
    sql.text
    sql.dialect sql.catalog
    sql.hints sql.scope
    sql.query
    sql.relation sql.lookups
    sql.laterals sql.scalars sql.naming
    sql.spelling
    sql.where
    sql.select sql.ddl sql.explain sql.functions sql.listing
    sql.statements
    sql.session
    sql.guide
    sql
    stages
    doctor
    testing.samples testing.doubles testing.filters
    testing.join
    testing.checks
    testing.holding testing.asking testing.living testing.secrecy
    testing.suite
    testing
    hitrate.reuse
    hitrate.curve hitrate.keys
    hitrate.ageing hitrate.shards hitrate.replay hitrate.width
    hitrate.deployment hitrate.age_sample
    hitrate.advice hitrate.spark
    hitrate.prediction
    hitrate
    hitrate.report hitrate.plot
    demo.flights demo.report
    demo.run
    demo
    cli.trial
    cli.hitrate
    cli.commands
    cli
    __main__
"""


def run(*command: object, **environment: str) -> str:
    """Run a program outside of the checkout; return what it prints, fail as it fails."""
    words = [str(word) for word in command]
    answer = subprocess.run(words, env={**os.environ, **environment}, cwd="/", capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, offline."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


def new_environment(folder: Path) -> Path:
    """Make a virtual environment with our dependencies but without lookupcache; return its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment where the wheel is installed."""
    python = new_environment(tmp_path_factory.mktemp("installed"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    return python


def test_the_wheel_holds_the_package_and_the_connectors_only(wheel: Path) -> None:
    top = {name.partition("/")[0] for name in ZipFile(wheel).namelist()}
    assert "lookupcache" in top
    assert "lookupcache_sql.py" in top
    assert [name for name in top if not re.fullmatch(r"lookupcache|lookupcache_\w+\.py|.*\.dist-info", name)] == []


def test_the_installed_wheel_imports_and_finds_its_connectors(installed: Path) -> None:
    code = "import lookupcache, lookupcache.connector as c; print(lookupcache.__file__, c.connector_class('sql'))"
    told = run(installed, "-c", code)
    assert str(installed.parent.parent) in told
    assert "lookupcache_sql.SqlConnector" in told


def test_the_command_and_the_module_are_the_same(installed: Path) -> None:
    as_command = run(installed.parent / "lookupcache", "--version")
    assert as_command == run(installed, "-m", "lookupcache", "--version")
    assert lookupcache.__version__ in as_command


PUBLIC = """
    Connector ConnectorError LookupCacheError LookupConfig LookupFailed LookupJoin LookupMetrics LookupPlan
    LookupRefused LookupRequest LookupSession LookupTable LookupTimeout OptionError PlanError SchemaError SourceError
    StatementError TooManyRows cached hit_rate lookup_join
"""


def test_the_public_names_are_these() -> None:
    assert lookupcache.__all__ == PUBLIC.split()
    assert [name for name in lookupcache.__all__ if not hasattr(lookupcache, name)] == []


@pytest.mark.parametrize("room", sorted(ROOT.glob("lookupcache/**/*.py")), ids=lambda path: room_name(path))
def test_a_room_imports_only_from_rooms_below(room: Path) -> None:
    storey = {name: level for level, line in enumerate(STOREYS.strip().splitlines()) for name in line.split()}
    name = room_name(room)
    if not name:
        return
    assert name in storey, "give the new room its place in STOREYS"
    above = {other for other in rooms_imported(room) if storey.get(other, 0) > storey[name]}
    assert above == set()


@pytest.mark.parametrize("connector", sorted(ROOT.glob("connectors/*.py")), ids=lambda path: path.stem)
def test_a_connector_imports_only_what_the_contract_offers(connector: Path) -> None:
    offered = {"connector", "errors", "expr", "schema"}
    assert rooms_imported(connector) - offered == set()


def room_name(path: Path) -> str:
    """Return a room's name as it is imported, without the package's: a folder's is that of its __init__."""
    parts = path.relative_to(ROOT / "lookupcache").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def rooms_imported(path: Path) -> set[str]:
    """Return the rooms of lookupcache that a file imports, when it is loaded or later, but for types alone."""
    tree = ast.parse(path.read_text())
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for_types = [node for node in branches if ast.unparse(node.test) == "TYPE_CHECKING"]
    return set(_rooms(tree)) - {name for node in for_types for name in _rooms(node)}


def _rooms(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[2] for name in node.names if name.name.startswith("lookupcache."))
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("lookupcache."):
            package = (node.module or "").partition(".")[2]
            for name in node.names:
                inner = f"{package}.{name.name}".lstrip(".")
                if (ROOT / "lookupcache" / f"{inner.replace('.', '/')}.py").exists():
                    yield inner
                elif package:
                    yield package


SHIPPED = """
import sqlite3, sys
from pathlib import Path
from lookupcache.java import local_spark_environment
local_spark_environment()
from pyspark.sql import SparkSession
from lookupcache import LookupTable, lookup_join

archive, database = sys.argv[1:]
with sqlite3.connect(database) as connection:
    connection.execute("CREATE TABLE squares (n INTEGER PRIMARY KEY, square INTEGER)")
    connection.executemany("INSERT INTO squares VALUES (?, ?)", [(n, n * n) for n in range(100)])
settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2"}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
spark.sparkContext.addPyFile(archive)

def where(batches):
    import lookupcache, pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"file": [lookupcache.__file__]})

print(*{row.file for row in spark.range(4).mapInArrow(where, "file STRING").collect()})
squares = LookupTable("s", "n BIGINT, square BIGINT", {"connector": "sql", "url": f"sqlite:///{database}",
                      "table": "squares", "lookup.cache": "LRU"})
joined = lookup_join(spark.range(1000, numPartitions=2), squares, on="id % 100 = s.n", select=["id", "square"])
print(joined.where("square = (id % 100) * (id % 100)").count())
"""


@pytest.mark.spark
def test_the_wheel_ships_to_executors_as_a_zip(wheel: Path, installed: Path, tmp_path: Path) -> None:
    archive = tmp_path / "lookupcache.zip"
    archive.write_bytes(wheel.read_bytes())
    bare = new_environment(tmp_path / "bare")
    script = tmp_path / "ship.py"
    script.write_text(SHIPPED)
    told = run(installed, "-W", "ignore", script, archive, tmp_path / "squares.db", PYSPARK_PYTHON=str(bare))
    files, rows = told.splitlines()
    assert "lookupcache.zip" in files
    assert rows == "1000"
