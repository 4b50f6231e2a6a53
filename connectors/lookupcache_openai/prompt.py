"""Templates of prompts: text with key columns in braces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lookupcache.formats.json_text import json_text, plain_text

_PART = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


@dataclass(frozen=True)
class Prompt:
    """A text with placeholders ``{column}``; ``{{`` and ``}}`` stand for braces.

    Values are inserted once: braces in them are no placeholders. A value may contain instructions to the model.

    >>> Prompt.parse('Classify {text} as {{"kind": …}}').fill({"text": "{id}"})
    'Classify {id} as {"kind": …}'
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> Prompt:
        """Parse a template; raises ValueError with the reason."""
        if any(part[0] in ("{", "}") for part in _PART.finditer(text)):
            raise ValueError("has a brace that belongs to no column; '{{' and '}}' stand for braces")
        return cls(text)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns with a placeholder, each once."""
        return tuple(dict.fromkeys(part[1] for part in _PART.finditer(self.text) if part[1] is not None))

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the text with values."""
        return _PART.sub(lambda part: part[0][0] if part[1] is None else _value_text(values[part[1]]), self.text)


def _value_text(value: Any) -> str:
    return json_text(value) if isinstance(value, list | dict) else plain_text(value)
