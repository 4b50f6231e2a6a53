"""The command `lookupcache`."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lookupcache import __version__
from lookupcache.cli import trial
from lookupcache.cli.hitrate import hitrate
from lookupcache.cli.host import cache
from lookupcache.cli.plan import plan
from lookupcache.cli.session import conf_option, remote_option, spark_session
from lookupcache.cli.sql import run_file
from lookupcache.cli.terminal import shown
from lookupcache.cli.top import dashboard, top
from lookupcache.connector import Connector, connector_class, connector_names
from lookupcache.errors import LookupCacheError
from lookupcache.planner import explain
from lookupcache.schema import shown_type
from lookupcache.table import LookupTable
from lookupcache.worker.source_identity import shares_nothing

if TYPE_CHECKING:
    from lookupcache.spark.doctor import Finding

_MAX_SHOWN_LENGTH = 200


class _Commands(click.Group):
    """A group that prints lookupcache's own errors without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LookupCacheError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lookupcache")
def main() -> None:
    """A lookup join for Spark with a cache that stores only the needed columns and rows."""


@main.command()
def connectors() -> None:
    """List the installed connectors and their options."""
    console = Console()
    for name in connector_names():
        _show_connector(console, name)


def _show_connector(console: Console, name: str) -> None:
    try:
        kind = connector_class(name)
    except LookupCacheError as error:
        console.print(f"[bold]{name}[/]  [red]{escape(error.fact)}[/] {escape(error.hint or '')}\n")
        return
    console.print(
        f"[bold]{escape(name)}[/]  {escape(_first_line(kind))}  [dim]{kind.__module__}:{kind.__qualname__}[/]"
    )
    console.print(_option_rows(kind), "")


def _first_line(kind: type[Connector]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0].replace("``", "")


def _option_rows(kind: type[Connector]) -> Table:
    rows = _grid()
    for option, meaning in (kind.options or {}).items():
        rows.add_row(f"  {escape(option)}", "required" if option in kind.required else "", escape(meaning))
    for module, package in kind.drivers.items():
        missing = importlib.util.find_spec(module) is None
        rows.add_row(
            f"  [dim]driver[/] {module}",
            "[red]missing[/]" if missing else "installed",
            _install_command(package, missing),
        )
    return rows


def _install_command(package: str, missing: bool) -> str:
    return escape(f"pip install '{package}'") if missing else ""


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="TABLE.toml")
@click.option(
    "--key", multiple=True, metavar="COLUMN=VALUE", help="Read a row with this key; repeat it for each column."
)
@click.option("--on", help="The condition of a join, e.g. 'o.customer_id = c.id AND c.salary > 1000'.")
@click.option("--where", help="The WHERE clause of a join.")
@click.option("--left", metavar="SCHEMA", help="The columns of the left side, e.g. 'customer_id BIGINT'.")
def check(file: Path, key: tuple[str, ...], on: str | None, where: str | None, left: str | None) -> None:
    """Test a table: connect, read a row, show the schema and what a condition would push to the source.

    TABLE.toml contains a name, a schema (which can be omitted if the connector can infer it), and in the section
    [options] the table's options. Nothing is written, and Spark is not started.
    """
    console = Console()
    definition = trial.TableFile.read(file)
    table = definition.table()
    console.print(f"[bold]{shown(table.name)}[/]  connector {shown(table.connector_name)}\n")
    console.print("Schema, as defined" if definition.schema else "Schema, inferred from the source")
    console.print(_schema_rows(table), "")
    row, advice = trial.first_row(table, trial.parse_keys(key))
    console.print("A row" if row else "No row has this key." if key else "The table has no rows.")
    if row:
        console.print(_row_cells(row))
    for sentence in advice:
        console.print(f"\n[yellow]Warning[/]  {escape(sentence)}")
    if on or where:
        planned = trial.plan_of(table, on, where, left)
        text = explain(planned, shared=not shares_nothing(planned, table.connector))
        console.print("", escape(text), sep="\n", soft_wrap=True)


def _grid() -> Table:
    """Return a table of three columns that wraps long text instead of truncating it."""
    rows = Table(box=None, show_header=False, padding=(0, 2))
    for _ in range(3):
        rows.add_column(overflow="fold")
    return rows


def _schema_rows(table: LookupTable) -> Table:
    rows = _grid()
    for field in table.schema:
        rows.add_row(f"  {shown(field.name)}", shown_type(field.type), "" if field.nullable else "NOT NULL")
    return rows


def _row_cells(row: dict[str, Any]) -> Table:
    rows = _grid()
    for name, value in row.items():
        rows.add_row(f"  {shown(name)}", "NULL" if value is None else escape(_truncate(repr(value))))
    return rows


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}…"


main.add_command(hitrate)
main.add_command(cache)
main.add_command(plan)
main.add_command(run_file)
main.add_command(top)
main.add_command(dashboard)


@main.command()
@remote_option
@conf_option
def doctor(remote: str | None, conf: tuple[str, ...]) -> None:
    """Check a Spark session: which settings to change for lookup joins, and why; and what it cannot do.

    It starts a session with the settings of spark-defaults.conf and --conf, as your programs do, and runs one small job
    in the workers. For an existing session, call lookupcache.spark.doctor.examine(spark); examine(spark, df) also
    checks the plan of a query. The exit code is 1 if a required setting is wrong.
    """
    console = Console()
    findings = _examine_session(remote, conf)
    rows = _grid()
    for finding in sorted(findings, key=lambda one: (one.wanted is None, not one.must, one.limit)):
        if finding.wanted is not None:
            mark = "[red]required[/]" if finding.must else "[yellow]recommended[/]"
            mark = "[cyan]limit[/]" if finding.limit else mark
            rows.add_row(
                mark, escape(f"{finding.name} = {finding.found}"), escape(f"→ {finding.wanted}: {finding.why}")
            )
        else:
            rows.add_row("[green]ok[/]", escape(f"{finding.name} = {finding.found}"), "")
    console.print(rows)
    if any(finding.must and finding.wanted is not None for finding in findings):
        raise SystemExit(1)


def _examine_session(remote: str | None, conf: tuple[str, ...]) -> list[Finding]:
    spark = spark_session("lookupcache doctor", remote, conf)
    from lookupcache.spark.doctor import examine

    try:
        return examine(spark)
    finally:
        spark.stop()


@main.command()
@click.option("--rows", type=click.IntRange(1), help="Use only the first ROWS of the 336,776 flights.")
@click.option("--stream", is_flag=True, help="Run as a stream over files that arrive in steps.")
@click.option("--cache", default="LRU", show_default=True, help="The cache of the flights: NONE, LRU, TTL or ALL.")
@click.option("--max-rows", help="Maximum number of rows cached of the flights' tables, for LRU and TTL.")
@click.option(
    "--customers", type=click.IntRange(5000), default=3_000_000, show_default=True, help="Size of the large table."
)
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the last table into this file, as SVG.")
def demo(
    rows: int | None, stream: bool, cache: str, max_rows: str | None, customers: int, picture: Path | None
) -> None:
    """Join flights with three small tables and orders with a large one, and compare with Spark's own joins."""
    demo = _import_demo()
    options = {"lookup.cache": cache} | ({"lookup.cache.max-rows": max_rows} if max_rows else {})
    if cache.upper() == "TTL":
        options["lookup.cache.expire-after-write"] = "10 min"
    if demo.run(demo.Demo(rows, stream, options, customers, picture)).wrong:
        raise SystemExit(1)


def _import_demo() -> ModuleType:
    try:
        return import_module("lookupcache.demo.run")
    except ImportError as error:
        if (error.name or "").startswith("lookupcache"):
            raise
        raise LookupCacheError(f"The demo needs {error.name}.", hint="pip install 'lookupcache[demo]'") from error
