"""The command line: `commands` reads it, `trial` tries a table."""

from lookupcache.cli.commands import main

__all__ = ["main"]
