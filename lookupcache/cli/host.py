"""The command `lookupcache cache`: the contents of the caches that the workers of a host share, and of stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lookupcache.cli.groups import Group
from lookupcache.cli.store import clear_store, is_store, list_store, show_store
from lookupcache.cli.terminal import shown
from lookupcache.host import inspection
from lookupcache.host.inspection import Content
from lookupcache.redaction import hide_address
from lookupcache.secrets import is_reference


class _Location(click.ParamType[Any]):
    """A directory that exists, as a path, or the location of a store, as a text."""

    name = "location"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        if is_store(value):
            return value if "://" in value or is_reference(value) else str(Path(value).absolute())
        if "://" in value:
            self.fail(f"{hide_address(value)!r} is neither a folder nor the URL of a store.", param, ctx)
        found: Path = click.Path(exists=True, file_okay=False, path_type=Path).convert(value, param, ctx)
        return found


_PATH = click.argument("path", type=_Location())


@click.group(cls=Group)
def cache() -> None:
    """Look at the caches that the workers of a host share, and at stores, or remove what is in them.

    PATH is the value of 'lookup.cache.path', or of 'lookup.cache.store': the URL of a Redis server, the path or URL of
    a folder, env:NAME, or file:FILE.
    """


@cache.command("ls")
@_PATH
def list_(path: Path | str) -> None:
    """List the caches in PATH, the value of 'lookup.cache.path' or of 'lookup.cache.store'."""
    if isinstance(path, str):
        list_store(path)
        return
    table = Table(box=None, padding=(0, 2))
    for name in ("table", "plan", "keys", "rows", "bytes", "oldest", "hits", "processes"):
        table.add_column(name, justify="left" if name in ("table", "plan") else "right")
    for one in inspection.contents(path):
        if one.problem is not None:
            table.add_row("?", one.path.name, shown(one.problem))
            continue
        oldest = "" if one.ages is None else _duration(one.ages[1])
        counts = (f"{count:,}" for count in (one.keys, one.rows, one.nbytes))
        table.add_row(_name(one), one.path.name, *counts, oldest, f"{one.hits:,}", str(one.processes))
    Console().print(table)


@cache.command()
@_PATH
def show(path: Path | str) -> None:
    """Show each cache in PATH in detail."""
    if isinstance(path, str):
        show_store(path)
        return
    console = Console()
    for one in inspection.contents(path):
        console.print(f"[bold]{_name(one)}[/]  {escape(str(one.path))}", soft_wrap=True)
        rows = Table(box=None, show_header=False, padding=(0, 2))
        for name, text in _lines(one):
            rows.add_row(f"  {shown(name)}", shown(text))
        console.print(rows, "")


@cache.command()
@_PATH
@click.argument("identity", required=False)
@click.confirmation_option(prompt="Remove what is there?")
def clear(path: Path | str, identity: str | None) -> None:
    """Remove all caches in PATH; workers that use one go on with their own. In a store, only IDENTITY if given."""
    if isinstance(path, str):
        clear_store(path, identity)
        return
    if identity is not None:
        raise click.UsageError("IDENTITY is for stores; a directory is cleared as a whole.")
    left = []
    for one in inspection.clear(path):
        if one.problem is None:
            click.echo(f"Removed {one.path.name}: {one.keys:,} keys, {one.nbytes:,} bytes.")
        else:
            left.append(f"{one.path} could not be removed: {one.problem}.")
    if left:
        raise click.ClickException("\n".join(left))


def _name(one: Content) -> str:
    return shown(str(one.about.get("table", "?")))


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
