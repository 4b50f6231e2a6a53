"""Refuses statements of Spark's that run other statements, where those name a lookup table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.detection import lookup_named
from lookupcache.sql.query import Args, Setting, nothing
from lookupcache.sql.text import Statement

_SCRIPT = "A script (BEGIN … END)"
_IMMEDIATE = "EXECUTE IMMEDIATE"
_CURES = {
    _SCRIPT: "Run its statements from Python, each with session.sql(…).",
    _IMMEDIATE: "Run the statement from Python, with session.sql(text, args).",
}


def is_refused(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement is of a kind that cannot use lookups, and names one."""
    return _kind(found) is not None and _named(setting, found) is not None


def refuse(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Raise StatementError for a statement of a kind that cannot use lookups, where it names one."""
    kind, named = _kind(found), _named(setting, found)
    if kind is not None and named is not None:
        raise StatementError(
            f"{kind} cannot use lookups.",
            hint=_CURES[kind],
            position=statement.position(statement.span_within(named.start, named.end)),
        )
    return nothing(setting)


def _kind(found: Sequence[Token]) -> str | None:
    words = [token.text for token in found[:2]]
    if words[:1] == ["BEGIN"]:
        return _SCRIPT
    return _IMMEDIATE if words == ["EXECUTE", "IMMEDIATE"] else None


def _named(setting: Setting, found: Sequence[Token]) -> Token | None:
    """Return where a statement names a lookup; of a text that EXECUTE IMMEDIATE would run, the literal."""
    texts = (one for one in _texts(found) if lookup_named(setting, list(tokens(one.written.lstrip("rR")[1:-1]))))
    return lookup_named(setting, found) or next(texts, None)


def _texts(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the literals in what each EXECUTE IMMEDIATE runs."""
    for number, pair in enumerate(pairwise(token.text for token in found)):
        if pair == ("EXECUTE", "IMMEDIATE"):
            run = takewhile(lambda token: token.text not in ("INTO", "USING", ";"), found[number + 2 :])
            yield from (token for token in run if token.kind == "string")
