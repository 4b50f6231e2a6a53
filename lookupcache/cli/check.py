"""The command `lookupcache check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lookupcache.cli import trial
from lookupcache.cli.terminal import grid, shown
from lookupcache.planner import explain
from lookupcache.schema import shown_type
from lookupcache.table import LookupTable
from lookupcache.table_file import TableFile
from lookupcache.worker.source_identity import shares_nothing

_MAX_SHOWN_LENGTH = 200


@click.command()
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
    table = LookupTable.from_toml(file)
    console.print(f"[bold]{shown(table.name)}[/]  connector {shown(table.connector_name)}\n")
    is_defined = TableFile.read(file).schema is not None
    console.print("Schema, as defined" if is_defined else "Schema, inferred from the source")
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


def _schema_rows(table: LookupTable) -> Table:
    rows = grid()
    for field in table.schema:
        rows.add_row(f"  {shown(field.name)}", shown_type(field.type), "" if field.nullable else "NOT NULL")
    return rows


def _row_cells(row: dict[str, Any]) -> Table:
    rows = grid()
    for name, value in row.items():
        rows.add_row(f"  {shown(name)}", "NULL" if value is None else escape(_truncate(repr(value))))
    return rows


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}…"
