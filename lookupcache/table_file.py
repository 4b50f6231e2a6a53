"""`TableFile`: the definition of a lookup table in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookupcache.errors import OptionError, nearest

_KNOWN_KEYS = ("name", "schema", "options")


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A table as a TOML file defines it; ``schema`` is None if it is to be inferred."""

    name: str
    schema: str | None
    options: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> TableFile:
        """Read ``name``, ``schema`` and the section ``[options]``; the default name is that of the file.

        Raises OptionError for a file that is not valid TOML, or has other keys.
        """
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OptionError(f"{str(path)!r} is not valid TOML: {error}.") from error
        if unknown := [key for key in data if key not in _KNOWN_KEYS]:
            hint = nearest(unknown[0], _KNOWN_KEYS, what="keys") + " Options belong in the section [options]."
            raise OptionError(f"{str(path)!r} has an unknown key {unknown[0]!r}.", hint=hint)
        options = data.get("options")
        if not isinstance(options, Mapping):
            raise OptionError(
                f"{str(path)!r} has no section [options].", hint='Add [options], and in it connector = "sql".'
            )
        schema = data.get("schema")
        if not isinstance(schema, str | None):
            raise OptionError(f"{str(path)!r} has a schema that is no text.", hint="Write it as DDL: 'id BIGINT, …'.")
        return cls(name=str(data.get("name", path.stem)), schema=schema, options=dict(_flatten(options)))


def _flatten(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield options as text; in TOML a dot in a bare key creates a nested table."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value).lower() if isinstance(value, bool) else str(value)
