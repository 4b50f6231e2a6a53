"""What commands print: texts from elsewhere, which must not control the terminal, and tables."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table


def printable(text: str) -> str:
    r"""Return a text with a question mark for each character that is not printable.

    >>> printable("a\x1b[2J")
    'a?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(text: str) -> str:
    """Return a text for rich; a name of a table or an entry of a store must not control the terminal."""
    return escape(printable(text))


def grid() -> Table:
    """Return a table of three columns that wraps long text instead of truncating it."""
    rows = Table(box=None, show_header=False, padding=(0, 2))
    for _ in range(3):
        rows.add_column(overflow="fold")
    return rows
