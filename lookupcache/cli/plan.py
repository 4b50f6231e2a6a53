"""The commands `lookupcache plan show`, `diff` and `check`."""

from __future__ import annotations

from pathlib import Path

import click

from lookupcache.cli import trial
from lookupcache.cli.groups import Group, tables_option
from lookupcache.compiled import CompiledPlan, PlanReference
from lookupcache.compiled.catalog_objects import RESTORES
from lookupcache.compiled.check import findings, unasked
from lookupcache.compiled.diff import differences, verdict_of
from lookupcache.table import LookupTable

EXIT_CODES = {"compatible": 0, "incompatible": 1, "unknown": 3}
"""The exit codes of `diff`; 2 is that of a command line that cannot be read."""


@click.group(cls=Group)
def plan() -> None:
    """Show, compare and check compiled plans; nothing of a plan is run."""


@plan.command()
@click.argument("path", metavar="PLAN.json")
def show(path: str) -> None:
    """Show a plan as a person reads it.

    PLAN.json is a local path, or a URI such as s3://bucket/job.json.
    """
    click.echo(CompiledPlan.of(PlanReference.from_file(path)).explain(), nl=False)


@plan.command()
@click.argument("before", metavar="BEFORE.json")
@click.argument("after", metavar="AFTER.json")
def diff(before: str, after: str) -> None:
    """Compare two plans: is a job that runs AFTER in place of BEFORE the same?

    Each difference is compatible, incompatible or unknown. It concerns the result, the identity of the cache, the state
    of a stream, or the load of the source. The exit code is 0 if all are compatible, 1 if one is incompatible, and 3 if
    one is unknown.
    """
    first, second = (PlanReference.from_file(path).load() for path in (before, after))
    found = differences(first, second)
    for one in found:
        click.echo(str(one))
    verdict = verdict_of(found)
    click.echo(f"{verdict}: {len(found)} differences" if found else "The plans are equal.")
    raise SystemExit(EXIT_CODES[verdict])


@plan.command()
@click.argument("path", metavar="PLAN.json")
@tables_option("A table of the catalog, as `lookupcache check` reads it")
@click.option("--restore", default="ALL", type=click.Choice(RESTORES), help="table.plan.restore.catalog-objects")
@click.option("--connect", is_flag=True, help="Connect to the sources: compare their columns, and read a row.")
def check(path: str, tables: tuple[Path, ...], restore: str, connect: bool) -> None:
    """Tell whether a plan would run here: connectors, drivers, functions, options and columns.

    Spark is not started; EXPLAIN PLAN checks a plan in a session. The exit code is 0 if nothing is missing, 1 if
    something is, and 3 if something could not be checked.
    """
    document = PlanReference.from_file(path).load()
    catalog = {table.name: table for table in (LookupTable.from_toml(file) for file in tables)}
    found = list(findings(document, catalog, restore, _read_a_row if connect else None))
    for one in found:
        click.echo(f"{one.kind:<12}  {one.what}: {one.text}")
    click.echo(f"No part of this check: {unasked(connect)}.")
    kinds = {one.kind for one in found}
    raise SystemExit(1 if "missing" in kinds else 3 if "not checked" in kinds else 0)


def _read_a_row(table: LookupTable) -> str:
    row, _ = trial.first_row(table, {})
    return f"the source of {table.name} can be reached; {'a row was read' if row else 'it has no rows'}"
