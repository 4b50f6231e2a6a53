"""What the wheel holds, that it works where only it is installed, and which module may import which."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from zipfile import ZipFile

import pytest

import lookupcache

ROOT = Path(__file__).parent.parent

# One line per layer, the lowest first: a module imports from the lines above its own and from its own line.
LAYERS = """
    _version errors lazy notebook redaction shared_error thread_start
    background
    environment error_text source_options
    tls
    formats formats.floats formats.json_path formats.json_text
    formats.json_values
    arrays ddl
    java
    versions
    schema config.values config.flink config.contradictions secrets jdbc_url
    jdbc
    config.lookup_config
    config
    expr
    functions spark functions.value_codec
    plan metrics
    connector
    redis redis.commands redis.replies redis.errors
    redis.clients
    redis.address
    http http.coding
    http.client
    executor.job executor.latch
    executor.nesting executor.thread_slots executor.task_slots executor.call_group
    executor.coroutines executor.threads
    executor
    functions.variables_read
    functions.reached_code
    opening functions.answers functions.source_text
    functions.rows
    functions.adapter
    functions.identity functions.loaded_code
    functions.connector latest latest.load
    latest.source
    table_file
    table
    functions.table_function
    compiled.plan_reader compiled.code compiled.files
    compiled.lookup_fields
    compiled.nodes
    compiled.document
    compiled.catalog_objects compiled.show
    compiled.plan
    resilience.breaker resilience.rate_limit resilience.retry resilience.runtime
    resilience.policy
    resilience
    planner.clauses planner.depth planner.literals planner.explain
    planner.grammar planner.settings planner.argument_names planner.lambda_names
    planner.naming planner.coercion
    planner.condition planner.constant_keys planner.translate planner.output
    planner.sql_reader
    planner.column_text planner.as_of
    planner.catalyst_column
    planner.column
    planner.passes
    planner
    compiled.settings
    compiled
    compiled.diff compiled.check
    cache.limits cache.keys cache.appended_rows
    cache.hash_index
    cache.entry_columns
    cache.policy
    cache.policy_queues
    cache.key_queues
    cache.size
    cache.row_cache
    cache.given_cache
    cache.age
    cache.key_lookup cache.entry_numbers cache.entry_rows cache.in_flight
    cache.expiry
    cache.entry_table
    cache.column_cache
    cache
    flow.waiting
    flow.held_claims flow.flow
    flow
    host.clock host.folder host.joined_rows
    host.segment host.claims
    host.control host.key_index
    host.segments
    host.merge host.eviction host.mapped_rows
    host.maintenance
    host.host_cache
    host.inspection host.host_search
    host
    store.answer_time store.contract store.frames store.writer
    store.folder_files
    store.redis_client store.redis_store store.redis_rate store.timed_store store.object_files store.folder_segment
    store.folder_entries
    store.folder_store
    store.locations store.guard store.rows store.names
    store.row_store store.cluster_rate
    store.store_call
    store
    decorator.options
    decorator.arguments decorator.methods
    decorator.values
    decorator.shared_cache
    decorator.batching decorator.keyed_function decorator.stored_values
    decorator.single_flight
    decorator.sync_lookup decorator.async_lookup
    decorator.decorated
    decorator.decorate
    decorator
    worker.answers worker.error_naming
    worker.calls worker.connection worker.pandas_import
    worker.source_identity
    worker.source
    worker.prefetched
    worker.store_source
    worker.partial_cache worker.full_cache
    worker.host_lookup worker.host_scope worker.host_table
    worker.lookup
    worker.dead_letters worker.shared worker.full_scan
    worker.versions
    worker.runner
    report
    worker.task
    worker.spooled
    latest.values latest.payload
    latest.tasks
    latest.processor
    worker.chain
    daemon
    worker
    monitoring monitoring.totals monitoring.server
    monitoring.families
    monitoring.exposition monitoring.scrape
    monitoring.rates
    spark.planned spark.error_log
    spark.registry
    spark.listener
    spark.exporter
    spark.declared
    spark.forms.left_side spark.forms.join_context spark.forms.between
    spark.forms.filters spark.forms.cardinality spark.forms.attributes
    spark.forms.choice
    spark.forms.chain
    spark.forms.worker spark.forms.distinct spark.forms.broadcast
    spark.forms
    spark.catalyst
    spark.arguments spark.alias spark.worker_python
    spark.lineage spark.freezing spark.user_functions spark.variables spark.plan_tree spark.latest spark.refusals
    spark.join
    spark.data_source
    spark.scan
    sql.redaction sql.token_reader
    sql.text
    sql.dialect sql.catalog sql.stream_relations
    sql.hints sql.scope sql.failures sql.masks sql.model_calls
    sql.query
    sql.lookups sql.from_clause sql.reads sql.variables sql.windows
    sql.laterals sql.scalars sql.conditions
    sql.latest
    sql.detection sql.derived
    sql.select_text
    sql.one_lookup
    sql.select sql.ddl
    sql.models
    sql.rewrite sql.definitions
    sql.stream_inserts
    sql.queries
    sql.compiled
    sql.plan_runs
    sql.plan_statements
    sql.statements
    sql.script
    sql.session
    sql
    spark.doctor
    testing.samples testing.doubles testing.filters
    testing.join
    testing.checks
    testing.values testing.requests testing.lifecycle testing.secrets
    testing.suite
    testing
    hitrate.reuse
    hitrate.curve hitrate.sources
    hitrate.keys
    hitrate.ageing hitrate.shards hitrate.replay hitrate.width
    hitrate.deployment
    hitrate.advice hitrate.spark hitrate.plot
    hitrate.prediction
    hitrate
    hitrate.report
    demo.flights demo.comparison
    demo.customers demo.report
    demo.run
    demo
    cli.trial cli.terminal cli.session cli.groups
    cli.store
    cli.check cli.connectors cli.demo cli.doctor cli.hitrate cli.host cli.plan cli.top cli.sql
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


def test_the_wheel_contains_only_the_package_and_the_connectors(wheel: Path) -> None:
    top = {name.partition("/")[0] for name in ZipFile(wheel).namelist()}
    assert "lookupcache" in top
    assert "lookupcache_sql" in top
    assert [
        name for name in top if not re.fullmatch(r"lookupcache|lookupcache_\w+|pyspark_lookupcache|.*\.dist-info", name)
    ] == []


@pytest.mark.extended
def test_the_installed_wheel_imports_and_finds_its_connectors(installed: Path) -> None:
    code = "import lookupcache, lookupcache.connector as c; print(lookupcache.__file__, c.connector_class('sql'))"
    result = run(installed, "-c", code)
    assert str(installed.parent.parent) in result
    assert "lookupcache_sql.connector.SqlConnector" in result


@pytest.mark.extended
def test_the_command_and_the_module_are_the_same(installed: Path) -> None:
    as_command = run(installed.parent / "lookupcache", "--version")
    assert as_command == run(installed, "-m", "lookupcache", "--version")


@pytest.mark.extended
def test_the_version_is_the_builds(wheel: Path, installed: Path) -> None:
    version = wheel.name.split("-")[1]
    assert run(installed, "-c", "import lookupcache; print(lookupcache.__version__)").strip() == version
    assert version in run(installed, "-m", "lookupcache", "--version")
    assert f"Version: {version}\n" in run(installed, "-m", "pip", "show", "lookupcache")


def test_a_copy_without_git_has_a_version(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert _hatch(tmp_path, "version", GIT_CEILING_DIRECTORIES=str(tmp_path.parent)) == "0.1.0.dev0"


def _hatch(folder: Path, *words: str, **environment: str) -> str:
    line = [sys.executable, "-m", "hatchling", *words]
    answer = subprocess.run(line, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


PUBLIC = """
    CompiledPlan CompiledPlanError Connector ConnectorError LoadPhase LookupCacheError LookupConfig LookupFailedError
    LookupJoin LookupMetrics LookupPlan LookupRefusedError LookupRequest LookupRuntimeError LookupSession LookupTable
    LookupTimeoutError OptionError PlanError PlanReference SchemaError SourceError StatementError TooManyRowsError
    WrongRowsError cached export_metrics hit_rate lookup lookup_join
"""


def test_the_public_names_are_these() -> None:
    assert lookupcache.__all__ == PUBLIC.split()
    assert [name for name in lookupcache.__all__ if not hasattr(lookupcache, name)] == []


MODULES = sorted(ROOT.glob("lookupcache/**/*.py"))


@pytest.mark.slow
def test_a_module_imports_only_from_modules_below() -> None:
    layer = {name: level for level, line in enumerate(LAYERS.strip().splitlines()) for name in line.split()}
    modules = {module_name(path): path for path in MODULES if module_name(path)}
    assert set(modules) ^ set(layer) <= {"_version"}, "give a new module its place in LAYERS"
    imported = {(name, other) for name, path in modules.items() for other in modules_imported(path)}
    assert {(name, other) for name, other in imported if layer.get(other, 0) > layer[name]} == set()


FOR_TYPES = {("config.contradictions", "config.lookup_config")}
"""Imports for types alone that close a circle: options check themselves, and what checks them names their class."""


def test_no_modules_import_each_other() -> None:
    imported = {module_name(path): set(_modules(parsed(path))) for path in MODULES}
    assert {(one, other) for one, other in FOR_TYPES if other not in imported[one]} == set()
    graph = {one: {other for other in found if (one, other) not in FOR_TYPES} for one, found in imported.items()}
    TopologicalSorter(graph).prepare()  # Raises CycleError, with the circle.


def test_a_connector_imports_only_what_the_contract_offers() -> None:
    offered = {
        "arrays", "connector", "environment", "errors", "expr", "jdbc_url", "schema", "shared_error", "source_options",
        "thread_start",
        "tls",
    }  # fmt: skip
    paths = sorted(ROOT.glob("connectors/lookupcache_*/*.py"))
    used = {(path.parent.name, name) for path in paths for name in modules_imported(path)}
    shared = ("formats.", "http.", "redis.")
    assert {(own, name) for own, name in used if name not in offered and not name.startswith(shared)} == set()
    packages = {path.parent.name for path in paths}
    assert [
        (path, other) for path in paths for other in packages - {path.parent.name} if any(_imported(path, other))
    ] == []


def module_name(path: Path) -> str:
    """Return a module's name as it is imported, without the package's: a folder's is that of its __init__."""
    parts = path.relative_to(ROOT / "lookupcache").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def modules_imported(path: Path) -> set[str]:
    """Return the modules of lookupcache that a file imports, when it is loaded or later, but for types alone."""
    tree = parsed(path)
    for_types = [node for node in ast.walk(tree) if _is_for_types(node)]
    return set(_modules(tree)) - {name for node in for_types for name in _modules(node)}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _modules(tree: ast.AST) -> Iterator[str]:
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


SPARK_ALLOWED = (
    "spark.", "sql.", "hitrate.spark", "planner.column", "planner.catalyst_column", "versions",
    "worker.dead_letters", "worker.spooled", "report", "daemon", "demo.", "cli.",
    "latest.tasks", "latest.processor", "latest.source",
)  # fmt: skip
"""Modules that may import pyspark: the driver's; in a worker only what needs the task's context, when it is used."""


def test_only_the_drivers_modules_import_spark() -> None:
    with_spark = {module_name(path) for path in MODULES if any(_imported(path, "pyspark"))}
    allowed = {name for name in with_spark if f"{name}.".startswith(SPARK_ALLOWED)}
    assert with_spark - allowed == set(), "give it a place among the driver's modules"


def test_a_worker_loads_no_module_of_the_driver() -> None:
    code = "import sys, lookupcache.worker.task; print(*sorted(m for m in sys.modules if m.startswith('lookupcache.')))"
    loaded = run(sys.executable, "-c", code, PYTHONPATH=str(ROOT)).split()
    assert [
        name for name in loaded if name.startswith(("lookupcache.spark", "lookupcache.sql", "lookupcache.cli"))
    ] == []


def _imported(path: Path, package: str) -> Iterator[str]:
    """Yield what a file imports from a package, now or later, but for types alone."""
    tree = parsed(path)
    for_types = {id(node) for branch in ast.walk(tree) if _is_for_types(branch) for node in ast.walk(branch)}
    for node in ast.walk(tree):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (name for name in names if id(node) not in for_types and name.partition(".")[0] == package)


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


NEIGHBOURS = ["dbt-core", "sqlmesh", "feast", "dlt", "great-expectations"]
"""What data engineers install beside lookupcache, and what pins versions of sqlglot, pandas, numpy or pyarrow."""


@pytest.mark.nightly
def test_pip_installs_it_beside_what_data_engineers_have(wheel: Path, tmp_path: Path) -> None:
    words = ["install", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet"]
    run(sys.executable, "-m", "pip", *words, f"--report={tmp_path / 'found.json'}", wheel, *NEIGHBOURS)
    found = json.loads((tmp_path / "found.json").read_text())["install"]
    names = {re.sub("[-_.]+", "-", one["metadata"]["name"].lower()) for one in found}
    assert {"lookupcache", *NEIGHBOURS} <= names
    assert "pyspark" not in names


@pytest.mark.nightly
@pytest.mark.spark
def test_the_wheel_ships_to_executors_as_a_zip(wheel: Path, installed: Path, tmp_path: Path) -> None:
    archive = tmp_path / "lookupcache.zip"
    archive.write_bytes(wheel.read_bytes())
    bare = new_environment(tmp_path / "bare")
    script = tmp_path / "ship.py"
    script.write_text(SHIPPED)
    result = run(installed, "-W", "ignore", script, archive, tmp_path / "squares.db", PYSPARK_PYTHON=str(bare))
    files, rows = result.splitlines()
    assert "lookupcache.zip" in files
    assert rows == "1000"
