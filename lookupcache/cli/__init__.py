"""The command line: `commands` defines the commands, `hitrate` and `top` some of them, `trial` tests a table."""

from __future__ import annotations

from typing import Any

__all__ = ["main"]


def main(*arguments: Any, **options: Any) -> Any:
    """Run the command line; exits with a hint if its libraries are not installed, since the library needs neither."""
    try:
        from lookupcache.cli.commands import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        raise SystemExit(f"The command line needs {error.name}.\n\nHint: pip install 'lookupcache[cli]'") from None
    except KeyboardInterrupt:  # While it is imported; click ends it later.
        raise SystemExit(130) from None
    return run(*arguments, **options)
