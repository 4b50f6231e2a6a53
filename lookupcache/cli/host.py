"""The command `lookupcache cache`: the contents of the caches that the workers of a host share."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lookupcache.host import inspection
from lookupcache.host.inspection import Content

_PATH = click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group()
def cache() -> None:
    """Look at the caches that the workers of a host share, or remove them."""


@cache.command("ls")
@_PATH
def list_(path: Path) -> None:
    """List the caches in PATH, the value of 'lookup.cache.path'."""
    table = Table(box=None, padding=(0, 2))
    for name in ("table", "plan", "keys", "rows", "bytes", "oldest", "hits", "processes"):
        table.add_column(name, justify="left" if name in ("table", "plan") else "right")
    for one in inspection.contents(path):
        if one.problem is not None:
            table.add_row("?", one.path.name, escape(one.problem))
            continue
        oldest = "" if one.ages is None else _duration(one.ages[1])
        counts = (f"{count:,}" for count in (one.keys, one.rows, one.nbytes))
        table.add_row(_name(one), one.path.name, *counts, oldest, f"{one.hits:,}", str(one.processes))
    Console().print(table)


@cache.command()
@_PATH
def show(path: Path) -> None:
    """Show each cache in PATH in detail."""
    console = Console()
    for one in inspection.contents(path):
        console.print(f"[bold]{_name(one)}[/]  {escape(str(one.path))}", soft_wrap=True)
        rows = Table(box=None, show_header=False, padding=(0, 2))
        for name, text in _lines(one):
            rows.add_row(f"  {name}", escape(text))
        console.print(rows, "")


@cache.command()
@_PATH
@click.confirmation_option(prompt="Remove all caches there?")
def clear(path: Path) -> None:
    """Remove all caches in PATH; workers that use one go on with their own."""
    for one in inspection.clear(path):
        click.echo(f"Removed {one.path.name}: {one.keys:,} keys, {one.nbytes:,} bytes.")


def _name(one: Content) -> str:
    return escape(str(one.about.get("table", "?")))


def _lines(one: Content) -> list[tuple[str, str]]:
    if one.problem is not None:
        return [("problem", one.problem)]
    ages = "unknown" if one.ages is None else f"{_duration(one.ages[0])} to {_duration(one.ages[1])}"
    counts = {"keys": one.keys, "rows": one.rows, "bytes": one.nbytes, "segments": one.segments, "hits": one.hits,
              "evictions": one.evictions, "merges": one.merges, "processes now": one.processes}  # fmt: skip
    about = [(name, str(value)) for name, value in one.about.items() if name != "table"]
    return [*about, *((name, f"{count:,}") for name, count in counts.items()), ("ages", ages)]


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
