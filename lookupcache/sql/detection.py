"""Whether a statement may use lookups, by the names and keywords in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lookupcache.planner.clauses import Token
from lookupcache.sql.latest import reads_streams
from lookupcache.sql.query import Setting
from lookupcache.sql.statement_target import is_relation
from lookupcache.sql.windows import reads_windows

_LATERALS = {("LATERAL", "TABLE"), ("LATERAL", "SNAPSHOT")}
_MARKS = {"SYSTEM_TIME", "PROCTIME", "LOOKUP", "ASYNC_TABLE_FUNC"}


def concerns(setting: Setting, found: Sequence[Token]) -> bool:
    """Return whether a statement may use lookups: a lookup table, a table function, or one of their keywords."""
    names = {token.name.lower() for token in _unqualified(found)}
    known = {name.lower() for name in (*setting.catalog.tables, *setting.catalog.functions)}
    words = [token.text for token in found]
    if names & known or _MARKS & set(words) or _LATERALS & set(pairwise(words)):
        return True
    if "=>" in words and ("SNAPSHOT", "(") in pairwise(words):
        return True
    return reads_windows(found) or reads_streams(setting, found)


def _unqualified(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the names that may be those of relations: no aliases, and no parts of a path.

    A lookup table has no schema, and a column of it needs a relation.
    """
    texts = ["", *(token.text for token in found), ""]
    for token, before, after in zip(found, texts, texts[2:], strict=False):
        if token.kind in ("word", "quoted") and before not in (".", "AS") and after != ".":
            yield token


def lookup_named(setting: Setting, found: Sequence[Token]) -> Token | None:
    """Return the first name of a lookup table or table function that stands where a relation does."""
    texts = ["", "", *(token.text for token in found), ""]
    for number, (token, after) in enumerate(zip(found, texts[3:], strict=True)):
        before, head = texts[number + 1], texts[number]
        if token.kind not in ("word", "quoted") or after == ".":
            continue
        if token.name in setting.catalog.tables and is_relation(found[:number]):
            return token
        if token.name in setting.catalog.functions and (before == "LATERAL" or (head, before) == ("TABLE", "(")):
            return token
    return None
