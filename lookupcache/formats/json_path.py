"""Paths to values in a JSON document: a subset of JSONPath."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_STEP = re.compile(r"\.([^.\[\]*'\"\s]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]|(\.\*|\[\*\])")


class Absent:
    """The type of `ABSENT`."""


ABSENT: Final = Absent()
"""Stands for a member that an object does not have; None stands for JSON's null."""


@dataclass(frozen=True)
class Path:
    """A path to values in a JSON document: a subset of JSONPath (RFC 9535).

    ``$`` is the document, ``.name`` or ``['name']`` a member, ``[2]`` an item (from 0), ``[*]`` every member or item.
    Slices, filters and ``..`` are not supported. Raises ValueError.

    >>> path = Path.parse("$.data['the items'][*].id")
    >>> path.nodes({"data": {"the items": [{"id": 1}, {}, {"id": 2}]}})
    [1, 2]
    """

    text: str
    steps: tuple[str | int | None, ...]

    @classmethod
    def parse(cls, text: str) -> Path:
        """Parse a path; ``$`` is optional before a name."""
        rest = text[1:] if text.startswith("$") else f".{text}"
        steps, at = list[str | int | None](), 0
        while at < len(rest):
            step = _STEP.match(rest, at)
            if step is None:
                raise ValueError(f"{text!r} is no path such as '$.data.items'")
            steps.append(_step(step))
            at = step.end()
        return cls(text, tuple(steps))

    @property
    def name(self) -> str:
        """The names of the members on the path, separated by dots, as services name fields."""
        return ".".join(str(step) for step in self.steps if step is not None)

    def nodes(self, document: Any) -> list[Any]:
        """Return every value at the path."""
        found = [document]
        for step in self.steps:
            found = [inner for node in found for inner in members(node, step)]
        return found

    def find(self, document: Any) -> Any:
        """Return the first value, or `ABSENT`."""
        return next(iter(self.nodes(document)), ABSENT)

    def start_in(self, document: Any) -> bool:
        """Return whether the first step of the path exists in a document."""
        return Path(self.text, self.steps[:1]).find(document) is not ABSENT

    def start(self) -> Path:
        """Return the path up to its first wildcard."""
        steps = self.steps[: self.steps.index(None)] if None in self.steps else self.steps
        return Path(self.text, steps)


def _step(step: re.Match[str]) -> str | int | None:
    name, item, single, double, _ = step.groups()
    if item is not None:
        return int(item)
    quoted = single if single is not None else double
    return name if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def members(node: Any, step: Any) -> Iterator[Any]:
    """Yield what one step of a path leads to from a node: each member or item for None."""
    if step is None:
        yield from node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    elif isinstance(node, dict if isinstance(step, str) else list):
        with contextlib.suppress(KeyError, IndexError):
            yield node[step]
