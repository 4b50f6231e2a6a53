"""Texts from elsewhere in the output of commands: they must not control the terminal."""

from __future__ import annotations

from rich.markup import escape


def printable(text: str) -> str:
    r"""Return a text with a question mark for each character that is not printable.

    >>> printable("a\x1b[2J")
    'a?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(text: str) -> str:
    """Return a text as rich prints it: whoever writes to a store, or names a table, must not control the terminal."""
    return escape(printable(text))
