"""Refuses statements of Spark's that cannot use lookup tables, and names the statement to run instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.detection import lookup_named
from lookupcache.sql.query import Setting
from lookupcache.sql.statement_target import QUERIES
from lookupcache.sql.text import Statement

_SCRIPT, _IMMEDIATE, _SET = "A script (BEGIN … END)", "EXECUTE IMMEDIATE", "SET VARIABLE"
_BEHIND = "INSERT behind a query"
_CHANGES = ("MERGE", "UPDATE", "DELETE")
_VIEW = "Make a view of the lookup, CREATE TEMPORARY VIEW name AS SELECT … FROM … JOIN …, and read the view in {}."
_CACHE = "Write {} name AS SELECT … FROM …, or set 'lookup.cache' = 'ALL'."
_CURES = {
    _SCRIPT: "Run its statements from Python, each with session.sql(…).",
    _IMMEDIATE: "Run the statement from Python, with session.sql(text, args).",
    **{kind: _VIEW.format(kind) for kind in (*_CHANGES, _SET)},
    _BEHIND: "Write INSERT INTO t WITH … SELECT …; for several, EXECUTE STATEMENT SET BEGIN INSERT …; INSERT …; END.",
    "DROP VIEW": "Write DROP TABLE.",
    "ALTER TABLE": "Write CREATE OR REPLACE TABLE.",
    **{verb: _CACHE.format(verb) for verb in ("CACHE TABLE", "CACHE LAZY TABLE")},
}
_ABOUT_A_TABLE = {"TRUNCATE", "ALTER", "ANALYZE", "REFRESH", "CACHE", "UNCACHE", "MSCK", "REPAIR", "COMMENT", "DROP",
                  "SHOW", "DESCRIBE", "DESC", *_CHANGES}  # fmt: skip
_BEFORE_A_TABLE = _ABOUT_A_TABLE | {"TABLE", "VIEW", "LAZY", "ON", "FROM", "INTO", "IN", "WITH", "SCHEMA", "EVOLUTION",
                                    "PARTITIONS", "TBLPROPERTIES", "COLUMNS", "CREATE", "OR", "REPLACE", "TEMPORARY",
                                    "TEMP", "EXTENDED", "FORMATTED"}  # fmt: skip
"""Keywords of statements about a table, up to its name."""


@dataclass(frozen=True)
class _Refusal:
    """Why a statement is refused, the statement to write instead, and the token to mark."""

    fact: str
    cure: str
    token: Token


def refuse(setting: Setting, statement: Statement) -> None:
    """Raise StatementError for a statement of a kind that cannot use lookups, where it names one."""
    made = _of_target(setting, statement.words) or _of_kind(setting, statement.words)
    if made is not None:
        position = statement.position(statement.span_within(made.token.start, made.token.end))
        raise StatementError(made.fact, hint=made.cure, position=position)


def kind_of(found: Sequence[Token]) -> str | None:
    """Return the kind of a statement that cannot use lookups, None for any other statement."""
    words = [token.text for token in found if not token.depth]
    if words[:1] == ["BEGIN"]:
        return _SCRIPT
    if words[:2] == ["EXECUTE", "IMMEDIATE"]:
        return _IMMEDIATE
    if words[:2] in (["SET", "VAR"], ["SET", "VARIABLE"]):
        return _SET
    if words[:1] in (["WITH"], ["FROM"]) and "INSERT" in words:
        return _BEHIND
    main = next((word for word in words if word in (*QUERIES, *_CHANGES) and word != "WITH"), "")
    return main if main in _CHANGES and words[0] in ("WITH", main) else None


def _of_kind(setting: Setting, found: Sequence[Token]) -> _Refusal | None:
    kind, named = kind_of(found), lookup_named(setting, found) or next(_immediate(setting, found), None)
    return None if kind is None or named is None else _Refusal(f"{kind} cannot use lookup tables.", _CURES[kind], named)


def _immediate(setting: Setting, found: Sequence[Token]) -> Iterator[Token]:
    """Yield the first word of each EXECUTE IMMEDIATE with a literal that names a lookup."""
    for number, pair in enumerate(pairwise(token.text for token in found)):
        if pair == ("EXECUTE", "IMMEDIATE"):
            run = takewhile(lambda token: token.text not in ("INTO", "USING", ";"), found[number + 2 :])
            texts = [token.written.lstrip("rR")[1:-1] for token in run if token.kind == "string"]
            if any(lookup_named(setting, list(tokens(text))) for text in texts):
                yield found[number]


def _of_target(setting: Setting, found: Sequence[Token]) -> _Refusal | None:
    """Return why a statement about a table of Spark's, or a view, cannot name a lookup table."""
    words = list(takewhile(lambda token: token.kind == "word" and token.text in _BEFORE_A_TABLE, found))
    verb = " ".join(token.text for token in words)
    is_view = verb.startswith("CREATE") and verb.endswith("VIEW")
    if not words or not (is_view or words[0].text in _ABOUT_A_TABLE):
        return None
    skipped = len(words)
    for option in (["IF", "EXISTS"], ["IF", "NOT", "EXISTS"]):
        skipped += len(option) * ([token.text for token in found[skipped : skipped + len(option)]] == option)
    name, *after = [*found[skipped : skipped + 2], None]
    if name is None or name.kind not in ("word", "quoted") or name.name not in setting.catalog.tables:
        return None
    if after and after[0] is not None and after[0].text == ".":
        return None
    return _Refusal(f"{name.name!r} is a lookup table, which does not support {verb}.", _cure(verb, is_view), name)


def _cure(verb: str, is_view: bool) -> str:
    if verb.startswith(("SHOW", "DESC")):
        return "Write SHOW COLUMNS IN name, SHOW CREATE TABLE name, or DESCRIBE [EXTENDED] name [column]."
    if is_view:
        return "Choose another name: a lookup table's comes before that of a view."
    default = "A lookup table is read-only; write the schema before the name if you mean a Spark table."
    return default if verb in _CHANGES else _CURES.get(verb, default)
