"""Databases that are files: the path in a URL, and whether the file was replaced since it was opened."""

from __future__ import annotations

import os
from pathlib import Path

from lookupcache.connector import hide_address
from lookupcache.errors import OptionError

Stamp = tuple[int, ...]
"""Identifies a file, as opposed to another of the same name."""


def path_of(url: str) -> Path:
    """Return the path in a URL; raises OptionError."""
    _, separator, path = url.partition(":///")
    if separator and path and path != ":memory:" and "\0" not in path:
        return Path(path).absolute()
    raise OptionError(
        f"Option 'url' is {hide_address(url)!r}, which names no database file.",
        hint="As in 'sqlite:///relative.db' or 'sqlite:////absolute/path.db'.",
    )


def real_path(url: str) -> str:
    """Return the file that the path in a URL leads to now, by links that may lead elsewhere later."""
    return os.path.realpath(path_of(url))


def stamp_of(path: Path, *, written: bool) -> Stamp | None:
    """Return an identity that tells the file from others of the same name, and with ``written`` also its last change.

    None if there is no file now.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, *((found.st_size, found.st_mtime_ns) if written else ()))


def is_replaced(path: Path, opened: Stamp | None, *, written: bool) -> bool:
    """Return whether there is another file now; a file that was removed is read until then."""
    now = stamp_of(path, written=written)
    return now is not None and now != opened
