"""Templates of URLs and request bodies; values are escaped, so that they cannot change the rest.

https://api/customers/{id}?fields={columns}      {"ids": {keys}, "country": {country}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from lookupcache.formats.json_text import json_text, plain_text

_PLACE = re.compile(r"\{([^{}]*)\}")
_BODY_PART = re.compile(r'"(?:[^"\\]|\\.)*"|\{([^{}\s"\':,]*)\}')
_LEGAL = ":/?[]@!$&'()*+,;=%"
_IN_VALUES = re.compile(r"[A-Za-z0-9._~%-]*")


@dataclass(frozen=True)
class UrlTemplate:
    """A URL with placeholders ``{name}`` in its path and query.

    >>> template = UrlTemplate.parse("https://api/customers/{id}?fields={columns}")
    >>> template.fill({"id": "a/../b?ü", "columns": ("id", "name")})
    'https://api/customers/a%2F..%2Fb%3F%C3%BC?fields=id,name'
    """

    text: str
    segments: tuple[tuple[str, ...], ...]
    query: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> UrlTemplate:
        """Parse a template; raises ValueError with the reason, which does not contain the text."""
        parts = urlsplit(_PLACE.sub("x", text))
        start = re.match(r"[a-z+.-]*://[^/?#]*", text, re.I)
        if start is None or parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            raise ValueError("is not a URL that starts with 'http://' or 'https://' and a host")
        if "{" in start[0]:
            raise ValueError("has a placeholder in the host")
        if parts.username is not None:
            raise ValueError("holds a user or a password")
        if parts.fragment or "#" in text:
            raise ValueError("has a '#', which is not sent")
        path, mark, query = text.partition("?")
        return cls(text, tuple(map(_parts, path.split("/"))), _parts(mark + query))

    @property
    def names(self) -> list[str]:
        """The names of the placeholders, in order."""
        return _PLACE.findall(self.text)

    @cached_property
    def separators(self) -> list[tuple[str, str]]:
        """The text between two placeholders that a value may contain too, with the first placeholder's name.

        >>> UrlTemplate.parse("https://api/{a}-{b}/{c},{d}?e={e}{f}").separators
        [('a', '-'), ('e', '')]
        """
        return [
            (parts[at], unquote(parts[at + 1]))
            for parts in (*self.segments, self.query)
            for at in range(1, len(parts) - 2, 2)
            if _IN_VALUES.fullmatch(parts[at + 1])
        ]

    def fill(self, values: Mapping[str, Any]) -> str | None:
        """Return the URL with percent-encoded values; None if a value makes a path segment empty, ``.`` or ``..``.

        Servers and proxies remove such segments even if they are percent-encoded, so that the URL would be that of
        another resource. Raises ValueError for a value that contains the separator after it: the URL would be the
        same for other values.
        """
        for name, separator in self.separators:
            text = plain_text(values[name])
            if isinstance(values[name], str | bytes) and f"{text}{separator}".find(separator) < len(text):
                raise ValueError(f"a value of {name!r} that contains {separator!r}")
        segments = [_fill_template(parts, values) for parts in self.segments]
        for parts, segment in zip(self.segments, segments, strict=True):
            if len(parts) > 1 and segment in ("", ".", ".."):
                return None
        return "/".join(segments) + _fill_template(self.query, values)


def _parts(text: str) -> tuple[str, ...]:
    """Return the fixed parts, encoded as they are sent, and the names of the placeholders between them."""
    parts = _PLACE.split(text)
    return tuple(part if number % 2 else quote(part, safe=_LEGAL) for number, part in enumerate(parts))


def _fill_template(parts: tuple[str, ...], values: Mapping[str, Any]) -> str:
    if len(parts) == 1:
        return parts[0]
    return "".join(_encode_value(values[part]) if number % 2 else part for number, part in enumerate(parts))


def _encode_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_encode_value, value))
    return quote(plain_text(value), safe="")


@dataclass(frozen=True)
class BodyTemplate:
    """A JSON document with placeholders ``{name}``; inside a string they are plain text, as in a GraphQL query.

    >>> template = BodyTemplate.parse('{"query": "query($ids: [ID!]) {customers(ids: $ids) {id}}", "ids": {keys}}')
    >>> template.fill({"keys": [1, "é"]})
    '{"query": "query($ids: [ID!]) {customers(ids: $ids) {id}}", "ids": [1,"é"]}'
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> BodyTemplate:
        """Parse a template; raises ValueError if it is not JSON when filled."""
        template = cls(text)
        try:
            json.loads(template.fill(dict.fromkeys(template.names)), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise ValueError("is not JSON in which names in braces stand for values") from None
        return template

    @property
    def names(self) -> list[str]:
        """The names of the placeholders, in order."""
        return [part[1] for part in _BODY_PART.finditer(self.text) if part[1] is not None]

    @property
    def quoted_names(self) -> list[str]:
        """The names in braces that are a full string, as in ``{"id": "{id}"}``, and so no placeholders."""
        return re.findall(r'"\{([^{}\s"\':,]*)\}"', self.text)

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the document."""
        return _BODY_PART.sub(lambda part: part[0] if part[1] is None else json_text(values[part[1]]), self.text)


def _refuse_constant(name: str) -> Any:
    """Raise ValueError for NaN and Infinity, which Python reads although they are not JSON."""
    raise ValueError(name)
