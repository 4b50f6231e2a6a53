"""Databases that are files: the path in a URL, and whether the file was replaced since it was opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from lookupcache.connector import hide_address
from lookupcache.errors import ConnectorError, OptionError
from lookupcache_sql.database import Database


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


class FileDatabase(Database):
    """A database that is a file; one that was removed is read until there is another."""

    notices_writes: ClassVar[bool] = False
    """Whether a file that was changed in place counts as another."""

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self.path = path_of(settings["url"])
        self.stamp: tuple[int, ...] | None = None
        """Tells the file that is open from others of the same name."""

    def find_file(self) -> None:
        """Note which file is about to be opened; raises ConnectorError if there is none."""
        if not self.path.is_file():
            raise ConnectorError(f"Option 'url': there is no database file {hide_address(str(self.path))!r}.")
        self.stamp = self._stamp()

    def is_stale(self) -> bool:
        now = self._stamp()
        return now is not None and now != self.stamp

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        written = (found.st_size, found.st_mtime_ns) if self.notices_writes else ()
        return (found.st_dev, found.st_ino, *written)
