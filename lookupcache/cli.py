"""The command `lookupcache`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lookupcache import __version__
from lookupcache.connector import Connector, connector_class, connector_names
from lookupcache.errors import LookupCacheError


class _Commands(click.Group):
    """A group that prints lookupcache's own errors as text; they explain themselves."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LookupCacheError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lookupcache")
def main() -> None:
    """A lookup join for Spark, through a cache that keeps only what it needs."""


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
        console.print(f"[bold]{name}[/]  [red]{error.fact}[/] {error.hint or ''}\n")
        return
    console.print(f"[bold]{name}[/]  {_first_line(kind)}  [dim]{kind.__module__}:{kind.__qualname__}[/]")
    console.print(_option_rows(kind), "")


def _first_line(kind: type[Connector]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


def _option_rows(kind: type[Connector]) -> Table:
    rows = Table(box=None, show_header=False, padding=(0, 2))
    for option, meaning in (kind.options or {}).items():
        rows.add_row(f"  {option}", "required" if option in kind.required else "", meaning)
    return rows


@main.command()
@click.option("--rows", type=click.IntRange(1), help="Only the first so many of the 336,776 flights.")
@click.option("--stream", is_flag=True, help="As a stream over files that arrive in steps.")
@click.option("--cache", default="LRU", show_default=True, help="NONE, LRU, TTL or ALL.")
@click.option("--max-rows", help="Most rows held per worker, for LRU and TTL.")
def demo(rows: int | None, stream: bool, cache: str, max_rows: str | None) -> None:
    """Join the flights of New York 2013 with a SQLite database, and compare with Spark's own join."""
    demo = _import_demo()
    options = {"lookup.cache": cache} | ({"lookup.cache.max-rows": max_rows} if max_rows else {})
    if cache.upper() == "TTL":
        options["lookup.cache.expire-after-write"] = "10 min"
    if demo.run(demo.Demo(rows=rows, stream=stream, options=options)).wrong:
        raise SystemExit(1)


def _import_demo() -> ModuleType:
    try:
        return import_module("lookupcache.demo.run")
    except ImportError as error:
        if (error.name or "").startswith("lookupcache"):
            raise
        raise LookupCacheError(f"The demo needs {error.name}.", hint="pip install 'lookupcache[demo]'") from error
