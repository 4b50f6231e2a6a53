"""A service as the options of the `http` connector describe it; the options are checked on the driver.

options ─► `Service`: templates, paths, statuses ─► `PageRequest` ─► `Pages`: the request of the next page
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from lookupcache.errors import OptionError, SchemaError, nearest
from lookupcache.formats.json_path import ABSENT, Path
from lookupcache.formats.json_text import plain_text
from lookupcache.http.client import HttpRequest, resolve_url, with_parameters
from lookupcache.schema import column_names
from lookupcache.source_options import FamilyOptions, one_of, seconds, whole_number
from lookupcache.tls import TLS_OPTIONS, check_encrypted
from lookupcache_http.template import BodyTemplate, UrlTemplate

T = TypeVar("T")

SECONDS_TO_CONNECT = 30
_RESERVED = ("keys", "columns")


OPTIONS = FamilyOptions({
    "url": "The URL of a key's rows, as in 'https://api/customers/{id}?fields={columns}'.",
    "body": "JSON to POST, as in '{\"ids\": {keys}}' or '{\"id\": {id}}'.",
    "key": "The columns whose values {keys} contains, separated by commas; a request per combination of other columns.",
    "rows": "The path to the rows in an answer, as in '$.data.items'; by default '$'.",
    "rows-per-key": "true: the rows' path leads to a list with one entry per key, in the order of {keys}.",
    "field.*": "The path to a column's value in a row, as in field.city = '$.address.city'; by default its name.",
    "missing-field": "For a row without a column's field: 'fail', the default, or 'null'. With 'null', an object "
    "behind a '*' of 'rows' that lacks the rest of the path has no rows.",
    "miss": "Statuses that mean that a key has no rows, separated by commas; by default 404 with a request per key.",
    "header.*": "A header of every request, as in header.X-Api-Key = env:API_KEY; never shown.",
    "query.*": "A parameter of every URL, as in query.apikey = env:API_KEY; never shown.",
    "user": "The user to log in as, by basic authentication.",
    "password": "The user's password; 'env:NAME' or 'file:PATH' keep it out of the code.",
    "token": "A bearer token.",
    "scan.url": "The URL of all rows; needed by 'lookup.cache' = 'ALL'.",
    "pages.next": "The next page's URL in a response: a path, as in '$.next', or 'link' for a Link header.",
    "pages.parameter": "The URL parameter for the value at pages.next; without pages.next, for the page's number.",
    "pages.first": "The first page's number; by default 1.",
    "pages.max": "The maximum number of pages of a response; by default 1000. More are an error.",
    "max-bytes": "The maximum number of bytes of a response, with all its pages; by default 67108864.",
    "connect.timeout": f"Seconds to connect; {SECONDS_TO_CONNECT} by default.",
    **TLS_OPTIONS,
    "tls.ca": "A PEM file of authorities to trust in addition to the system's, or its text, as by 'file:PATH'.",
})  # fmt: skip


@dataclass(frozen=True)
class PageRequest:
    """The request of a page, that of the first page, and the page's number, from 0."""

    request: HttpRequest
    first: HttpRequest
    number: int = 0

    def next(self, url: str) -> PageRequest:
        return PageRequest(HttpRequest(url, self.first.body, self.first.shown), self.first, self.number + 1)


@dataclass(frozen=True)
class Pages:
    """Finds the next page of a response."""

    path: Path | None
    link: bool
    parameter: str
    first: int
    most: int

    def following(
        self, page: PageRequest, link: str | ValueError | None, document: Any, rows: list[Any]
    ) -> PageRequest | None:
        """Return the request of the page after ``page``, None after the last; raises ValueError with the reason.

        ``link`` is the URL of the next page in the header ``Link``, or why that cannot be read. Where pages are
        counted, one without rows is the last.
        """
        target: Any = link
        if self.path is not None:
            target = self.path.find(document)
        elif not self.link:
            target = self.first + page.number + 1 if rows else None
        if isinstance(target, ValueError):
            raise target
        if target is ABSENT or target is None or target in ("", False):
            return None
        if page.number + 1 >= self.most:
            raise ValueError(f"has more than {self.most} pages")
        if self.parameter:
            url = with_parameters(page.first.url, {self.parameter: plain_text(target)})
        else:
            url = resolve_url(page.request.url, str(target))
        if url is None:
            raise ValueError("has its next page on another host")
        if str(url) == page.request.url:
            raise ValueError("names itself as its next page")
        return page.next(str(url))


@dataclass(frozen=True)
class Service:
    """The options of a service, parsed and checked."""

    url: UrlTemplate
    body: BodyTemplate | None
    scan: UrlTemplate | None
    key: tuple[str, ...]
    rows: Path
    rows_per_key: bool
    fields: Mapping[str, Path]
    lenient: bool
    miss: frozenset[int]
    pages: Pages | None
    most_bytes: int

    @classmethod
    def of(cls, schema: pa.Schema, options: Mapping[str, str]) -> Service:
        """Read the options; raises OptionError or SchemaError that names the wrong one."""
        body = _parse_option(options, "body", BodyTemplate.parse)
        batched = body is not None and "keys" in body.names
        service = cls(
            url=_parse_option(options, "url", UrlTemplate.parse) or UrlTemplate("", (), ()),
            body=body,
            scan=_parse_option(options, "scan.url", UrlTemplate.parse),
            key=tuple(filter(None, column_names(options.get("key", "")))),
            rows=_parse_option(options, "rows", Path.parse) or Path("$", ()),
            rows_per_key=one_of(options, "rows-per-key", ("false", "true")) == "true",
            fields=_fields(schema, options),
            lenient=one_of(options, "missing-field", ("fail", "null")) == "null",
            miss=_statuses(options, "" if batched else "404"),
            pages=_pages(options),
            most_bytes=whole_number(options, "max-bytes", 64 << 20),
        )
        _ = seconds(options, "connect.timeout")
        service._check(schema, options)
        return service

    @cached_property
    def body_names(self) -> list[str]:
        """The names of the placeholders in the body."""
        return [] if self.body is None else self.body.names

    @cached_property
    def placeholders(self) -> tuple[str, ...]:
        """The columns with a placeholder in a request, other than ``{keys}``."""
        return tuple(name for name in dict.fromkeys([*self.url.names, *self.body_names]) if name not in _RESERVED)

    @property
    def has_tls(self) -> bool:
        """Whether a URL is one of https."""
        return any(one is not None and one.text.lower().startswith("https:") for one in (self.url, self.scan))

    @property
    def batched(self) -> bool:
        """Whether a request is for many keys."""
        return "keys" in self.body_names

    def first_page(self, request: HttpRequest) -> PageRequest:
        pages = self.pages
        if pages is None or pages.path is not None or pages.link:
            return PageRequest(request, request)
        url = with_parameters(request.url, {pages.parameter: str(pages.first)})
        return PageRequest(HttpRequest(url, request.body, request.shown), request)

    def _check(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        known = [*schema.names, "columns"]
        _check_names("url", self.url.names, known)
        _check_names("body", self.body_names, [*known, "keys"])
        _check_names("scan.url", [] if self.scan is None else self.scan.names, ["columns"])
        _check_names("key", self.key, schema.names)
        if self.batched != bool(self.key):
            raise OptionError(
                "Option 'body' contains {keys}, so option 'key' must name their columns." if self.batched
                else "Option 'key' is for {keys} in option 'body'.",
                hint=OPTIONS["key"],
            )  # fmt: skip
        if self.rows_per_key and not self.batched:
            raise OptionError("Option 'rows-per-key' is for {keys} in option 'body'.", hint="Leave it out.")
        if self.rows_per_key and None in self.rows.steps:
            raise OptionError(
                f"Option 'rows' = {self.rows.text!r} leads to several lists, so that 'rows-per-key' cannot tell which "
                "key their rows are of.",
                hint="Let it lead to the list that has one entry per key, and name its fields with 'field.…'.",
            )
        _check_quoted([] if self.body is None else self.body.quoted_names, known)
        _check_unfilled(schema, options)
        _check_separators(schema, self.url.separators)
        if not self.placeholders and not self.batched:
            raise OptionError("Neither 'url' nor 'body' has a placeholder for a key.", hint=OPTIONS["url"])
        check_encrypted(options, self.url.text)
        if "token" in options and "user" in options:
            raise OptionError("Options 'token' and 'user' both authenticate.", hint="Leave one out.")


def _parse_option(options: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    if not options.get(name):
        return None
    try:
        return parse(options[name])
    except ValueError as error:
        raise OptionError(f"Option {name!r} {error}.", hint=OPTIONS.get(name)) from None


def _statuses(options: Mapping[str, str], default: str) -> frozenset[int]:
    words = [word.strip() for word in options.get("miss", default).split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdigit() and 400 <= int(word) <= 599):
            raise OptionError(f"Option 'miss' holds {word!r}.", hint="It holds statuses, as in '404, 410'.")
    return frozenset(map(int, words))


def _fields(schema: pa.Schema, options: Mapping[str, str]) -> dict[str, Path]:
    paths = {name: Path(name, (name,)) for name in schema.names}
    for name in family(options, "field."):
        if name not in paths:
            hint = nearest(name, schema.names, what="columns")
            raise SchemaError(f"Option 'field.{name}' is for a column that the schema does not have.", hint=hint)
        paths[name] = _parse_option(options, f"field.{name}", Path.parse) or paths[name]
        if None in paths[name].steps:
            raise OptionError(f"Option 'field.{name}' leads to more than one value.", hint="Leave out '*'.")
    return paths


def _pages(options: Mapping[str, str]) -> Pages | None:
    after, parameter = options.get("pages.next", ""), options.get("pages.parameter", "")
    if not after and not parameter:
        return None
    link = after == "link"
    path = None if link else _parse_option(options, "pages.next", Path.parse)
    most = whole_number(options, "pages.max", 1000)
    return Pages(path, link, parameter, whole_number(options, "pages.first", 1, least=0), most)


def _check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            hint = nearest(name, known, what="names")
            raise OptionError(f"Option {option!r} names {name!r}, which is no column.", hint=hint)


def _check_quoted(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name in (*known, "keys"):
            raise OptionError(
                f"Option 'body' holds {{{name}}} between quotes, where it is text.",
                hint=f"Leave the quotes out: {{{name}}} becomes JSON, with quotes where the value is a text.",
            )


def _check_unfilled(schema: pa.Schema, options: Mapping[str, str]) -> None:
    for option, value in options.items():
        for name in schema.names if option.startswith(("header.", "query.")) else ():
            if f"{{{name}}}" in value:
                raise OptionError(
                    f"Option {option!r} names column {name!r} in braces, which are sent as they are.",
                    hint="Placeholders for columns belong in 'url' and 'body'.",
                )


def _check_separators(schema: pa.Schema, separators: Sequence[tuple[str, str]]) -> None:
    """Raise OptionError if the end of a value in a URL is ambiguous; for texts, each value is checked instead."""
    for name, separator in separators:
        if name not in schema.names:
            continue
        if _may_follow(schema.field(name).type).match(separator):
            raise OptionError(
                f"Option 'url' does not show where the value of {name!r} ends.",
                hint=f"Put a '/' or a ',' behind {{{name}}}, or a parameter's name.",
            )


def _may_follow(type_: pa.DataType) -> re.Pattern[str]:
    """Return a pattern of the characters that may continue a value of the type."""
    if pa.types.is_boolean(type_) or pa.types.is_date(type_) or (pa.types.is_timestamp(type_) and type_.tz):
        return re.compile("(?!)")
    if pa.types.is_floating(type_) or pa.types.is_timestamp(type_):
        return re.compile(r"$|[0-9.e]")
    return re.compile(r"$|[0-9]") if pa.types.is_integer(type_) or pa.types.is_decimal(type_) else re.compile("$")


def family(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the options whose names start with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
