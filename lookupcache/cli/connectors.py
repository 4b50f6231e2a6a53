"""The command `lookupcache connectors`."""

from __future__ import annotations

import importlib.util

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lookupcache.cli.terminal import grid
from lookupcache.connector import Connector, connector_class, connector_names
from lookupcache.errors import LookupCacheError


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
def connectors(names: tuple[str, ...]) -> None:
    """List the installed connectors and their options, or show the connectors NAME only.

    NAME is the value of the option 'connector': a name that the list has, or module:Class.
    """
    console = Console()
    for name in names:
        _show_connector(console, name, connector_class(name))
    for name in () if names else connector_names():
        try:
            _show_connector(console, name, connector_class(name))
        except LookupCacheError as error:
            console.print(f"[bold]{name}[/]  [red]{escape(error.fact)}[/] {escape(error.hint or '')}\n")


def _show_connector(console: Console, name: str, kind: type[Connector]) -> None:
    console.print(
        f"[bold]{escape(name)}[/]  {escape(_first_line(kind))}  [dim]{kind.__module__}:{kind.__qualname__}[/]"
    )
    console.print(_option_rows(kind), "")


def _first_line(kind: type[Connector]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0].replace("``", "")


def _option_rows(kind: type[Connector]) -> Table:
    rows = grid()
    for option, meaning in (kind.options or {}).items():
        rows.add_row(f"  {escape(option)}", "required" if option in kind.required else "", escape(meaning))
    for module, package in kind.drivers.items():
        if importlib.util.find_spec(module) is None:
            rows.add_row(f"  [dim]driver[/] {module}", "[red]missing[/]", escape(f"pip install '{package}'"))
        else:
            rows.add_row(f"  [dim]driver[/] {module}", "installed", "")
    return rows
