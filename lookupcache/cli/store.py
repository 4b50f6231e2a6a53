"""The part of the command `lookupcache cache` for stores: what lies in a Redis server or in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.table import Table

from lookupcache.cli.terminal import shown
from lookupcache.config.values import is_folder_url, is_redis_url
from lookupcache.errors import ConnectorError
from lookupcache.redaction import hidden, url_secrets
from lookupcache.secrets import is_reference
from lookupcache.store import Store, StoreContent, open_store
from lookupcache.store.folder_files import ROOT
from lookupcache.store.locations import url_of

_TIMEOUT_SECONDS = 10.0

T = TypeVar("T")


def is_store(location: str) -> bool:
    """Return whether a location is that of a store: a URL, a reference to one, or the path of a folder with a store."""
    if location.startswith("/") or "://" not in location:
        return is_reference(location) or Path(location, ROOT).is_dir()
    return is_redis_url(location) or is_folder_url(location) or is_reference(location)


def list_store(location: str) -> None:
    """Print a line for each identity in a store."""
    table = Table(box=None, padding=(0, 2))
    for name in ("table", "identity", "keys", "bytes"):
        table.add_column(name, justify="left" if name in ("table", "identity") else "right")
    for one in _contents(location):
        table.add_row(_name(one), shown(one.identity), f"{one.entries:,}", f"{one.nbytes:,}")
    Console().print(table)


def show_store(location: str) -> None:
    """Print each identity in a store with what describes it."""
    console = Console()
    for one in _contents(location):
        console.print(f"[bold]{_name(one)}[/]  {shown(one.identity)}", soft_wrap=True)
        rows = Table(box=None, show_header=False, padding=(0, 2))
        about = [(name, text) for name, text in one.about.items() if name not in ("table", "function") and text]
        for name, text in [*about, ("keys", f"{one.entries:,}"), ("bytes", f"{one.nbytes:,}")]:
            rows.add_row(f"  {shown(name)}", shown(text))
        console.print(rows, "")


def clear_store(location: str, identity: str | None) -> None:
    """Remove the entries of an identity from a store, or of all."""
    removed = _run(location, lambda store: store.clear(identity))
    click.echo(f"Removed {removed:,} keys.")


def _contents(location: str) -> list[StoreContent]:
    return _run(location, lambda store: store.contents())


def _run(location: str, work: Callable[[Store], T]) -> T:
    """Run a command of a store; its failure is an error without the password of the URL."""
    store = open_store(location, _TIMEOUT_SECONDS)
    try:
        return work(store)
    except Exception as error:
        text = hidden(str(error), url_secrets(url_of(location)))
        raise ConnectorError(
            f"The store does not answer: {type(error).__name__}: {text.rstrip('.')}.",
            hint="Check its URL or path, the name and password in it, and that this user may read and write there.",
        ) from None
    finally:
        store.close()


def _name(one: StoreContent) -> str:
    return shown(one.about.get("table") or one.about.get("function") or "?")
