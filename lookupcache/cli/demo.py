"""The command `lookupcache demo`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from lookupcache.errors import LookupCacheError


@click.command()
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
