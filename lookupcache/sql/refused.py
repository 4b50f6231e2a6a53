"""Refuses statements of Spark's that cannot read lookup tables, and names what can be run instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.detection import lookup_named
from lookupcache.sql.query import Args, Setting, nothing
from lookupcache.sql.statement_target import QUERIES
from lookupcache.sql.text import Statement

_SCRIPT, _IMMEDIATE, _SET = "A script (BEGIN … END)", "EXECUTE IMMEDIATE", "SET VARIABLE"
_CHANGES = ("MERGE", "UPDATE", "DELETE")
_VIEW = "Make a view of the lookup, CREATE TEMPORARY VIEW name AS SELECT … FROM … JOIN …, and read the view in {}."
_CURES = {
    _SCRIPT: "Run its statements from Python, each with session.sql(…).",
    _IMMEDIATE: "Run the statement from Python, with session.sql(text, args).",
    **{kind: _VIEW.format(kind) for kind in (*_CHANGES, _SET)},
}


def is_refused(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement is of a kind that cannot use lookups, and names one."""
    return kind_of(found) is not None and _named(setting, found) is not None


def refuse(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Raise StatementError for a statement of a kind that cannot use lookups, where it names one."""
    kind, named = kind_of(found), _named(setting, found)
    if kind is not None and named is not None:
        raise StatementError(
            f"{kind} cannot use lookups.",
            hint=_CURES[kind],
            position=statement.position(statement.span_within(named.start, named.end)),
        )
    return nothing(setting)


def kind_of(found: Sequence[Token]) -> str | None:
    """Return the kind of a statement that cannot use lookups, None for any other statement."""
    words = [token.text for token in found if not token.depth]
    if words[:1] == ["BEGIN"]:
        return _SCRIPT
    if words[:2] == ["EXECUTE", "IMMEDIATE"]:
        return _IMMEDIATE
    if words[:2] in (["SET", "VAR"], ["SET", "VARIABLE"]):
        return _SET
    main = next((word for word in words if word in (*QUERIES, *_CHANGES) and word != "WITH"), "")
    return main if main in _CHANGES and words[0] in ("WITH", main) else None


def _named(setting: Setting, found: Sequence[Token]) -> Token | None:
    """Return where a statement names a lookup: its name, or the word EXECUTE before a text with one."""
    return lookup_named(setting, found) or next(_immediate(setting, found), None)


def _immediate(setting: Setting, found: Sequence[Token]) -> Iterator[Token]:
    """Yield the first word of each EXECUTE IMMEDIATE with a literal that names a lookup."""
    for number, pair in enumerate(pairwise(token.text for token in found)):
        if pair == ("EXECUTE", "IMMEDIATE"):
            run = takewhile(lambda token: token.text not in ("INTO", "USING", ";"), found[number + 2 :])
            texts = [token.written.lstrip("rR")[1:-1] for token in run if token.kind == "string"]
            if any(lookup_named(setting, list(tokens(text))) for text in texts):
                yield found[number]
