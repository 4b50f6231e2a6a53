"""Groups of commands: their help has whole summaries, and imports no command. And an option that several have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import click

from lookupcache.errors import LookupCacheError

_LONGEST = 1_000
"""Click cuts summaries at 45 characters; this is longer than any."""


def tables_option(text: str) -> Callable[[Any], Any]:
    """Return the option ``--table``, which names files of tables and may be repeated; ``text`` says what for."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(
        "--table", "tables", multiple=True, type=kind, metavar="TABLE.toml", help=f"{text}; may be repeated."
    )


class Group(click.Group):
    """A group whose help has the first sentence of each command in full."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries(ctx)))

    def summaries(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield the name and the first sentence of each command."""
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert command is not None
            yield name, command.get_short_help_str(_LONGEST)


class LazyGroup(Group):
    """A group that imports a command when it is used, and prints lookupcache's own errors without a traceback.

    ``lazy`` maps names to the module and the name of the command there, and to its summary.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name][0].partition(":")
        return cast(click.Command, getattr(import_module(module), name))

    def summaries(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield the names and summaries, without importing the commands."""
        return ((name, self._lazy[name][1]) for name in self.list_commands(ctx))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LookupCacheError as error:
            raise click.ClickException(str(error)) from error
