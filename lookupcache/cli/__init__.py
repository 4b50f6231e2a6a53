"""The command line: `commands` defines the commands, `hitrate` one of them, `trial` tests a table."""

from lookupcache.cli.commands import main

__all__ = ["main"]
