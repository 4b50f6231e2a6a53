"""Whether a statement may use lookups, by the names and keywords in it.

A statement that names a lookup table where Spark alone could run it is refused; the error names the statement to run
instead. Spark gets all others as they were written, and its errors show no secrets.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, takewhile

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lookupcache.errors import Position, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.redaction import STARS
from lookupcache.spark.error_log import muted_error_log
from lookupcache.sql.latest import reads_streams
from lookupcache.sql.query import Args, SqlContext, no_query
from lookupcache.sql.text import QuestionMarks, Span, Statement
from lookupcache.sql.token_reader import QUERIES, TokenReader, is_relation, may_be_relation, unquote
from lookupcache.sql.windows import reads_windows
from lookupcache.versions import condition_of

_LATERALS = {("LATERAL", "TABLE"), ("LATERAL", "SNAPSHOT")}
_MARKS = {"SYSTEM_TIME", "PROCTIME", "LOOKUP", "ASYNC_TABLE_FUNC"}


def concerns(context: SqlContext, found: Sequence[Token], *, in_query: bool = False) -> bool:
    """Return whether a statement may use lookups: a lookup table, a table function, or one of their keywords.

    ``in_query`` says that the text is part of a query, where columns may have the same names.
    """
    positions = list(_unqualified(found))

    def named(known: Iterable[str], is_one: Callable[[Sequence[Token], int], bool]) -> bool:
        names = {name.lower() for name in known}
        return any(found[n].name.lower() in names and (not in_query or is_one(found, n)) for n in positions)

    words = [token.text for token in found]
    if named(context.catalog.tables, may_be_relation) or named(context.catalog.functions, _is_call):
        return True
    if _MARKS & set(words) or _LATERALS & set(pairwise(words)):
        return True
    if "=>" in words and ("SNAPSHOT", "(") in pairwise(words):
        return True
    return reads_windows(found) or reads_streams(context, found)


def _unqualified(found: Sequence[Token]) -> Iterator[int]:
    """Yield the positions of names that may be those of relations: no aliases, and no parts of a path.

    A lookup table has no schema, and a column of it needs a relation.
    """
    texts = ["", *(token.text for token in found), ""]
    for number, (token, before, after) in enumerate(zip(found, texts, texts[2:], strict=False)):
        if token.kind in ("word", "quoted") and before not in (".", "AS") and after != ".":
            yield number


def _is_call(found: Sequence[Token], number: int) -> bool:
    return number + 1 < len(found) and found[number + 1].text == "("


def lookup_named(context: SqlContext, found: Sequence[Token]) -> Token | None:
    """Return the first name of a lookup table or table function that stands where a relation does."""
    texts = ["", "", *(token.text for token in found), ""]
    for number, (token, after) in enumerate(zip(found, texts[3:], strict=True)):
        before, head = texts[number + 1], texts[number]
        if token.kind not in ("word", "quoted") or after == ".":
            continue
        if token.name in context.catalog.tables and is_relation(found[:number]):
            return token
        if token.name in context.catalog.functions and (before == "LATERAL" or (head, before) == ("TABLE", "(")):
            return token
    return None


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────


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


def refuse(context: SqlContext, statement: Statement) -> None:
    """Raise StatementError for a statement of a kind that cannot use lookups, where it names one."""
    found = statement.tokens
    _refuse_target(context, statement, found)
    kind, named = kind_of(found), lookup_named(context, found) or next(_immediate(context, found), None)
    if kind is not None and named is not None:
        fact, position = f"{kind} cannot use lookup tables.", statement.position_of(named)
        raise StatementError(fact, hint=_CURES[kind], position=position)


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


def _immediate(context: SqlContext, found: Sequence[Token]) -> Iterator[Token]:
    """Yield the first word of each EXECUTE IMMEDIATE with a literal that names a lookup."""
    for number, pair in enumerate(pairwise(token.text for token in found)):
        if pair == ("EXECUTE", "IMMEDIATE"):
            run = takewhile(lambda token: token.text not in ("INTO", "USING", ";"), found[number + 2 :])
            texts = [token.written.lstrip("rR")[1:-1] for token in run if token.kind == "string"]
            if any(lookup_named(context, list(tokens(text))) for text in texts):
                yield found[number]


def _refuse_target(context: SqlContext, statement: Statement, found: Sequence[Token]) -> None:
    """Raise StatementError for a statement about a table of Spark's, or a view, that names a lookup table."""
    words = list(takewhile(lambda token: token.kind == "word" and token.text in _BEFORE_A_TABLE, found))
    verb = " ".join(token.text for token in words)
    is_view = verb.startswith("CREATE") and verb.endswith("VIEW")
    if not words or not (is_view or words[0].text in _ABOUT_A_TABLE):
        return
    skipped = len(words)
    for option in (["IF", "EXISTS"], ["IF", "NOT", "EXISTS"]):
        skipped += len(option) * ([token.text for token in found[skipped : skipped + len(option)]] == option)
    name = TokenReader(found[skipped:]).name()
    if name is None or name.plain not in context.catalog.tables:
        return
    raise StatementError(
        f"{name.plain!r} is a lookup table, which does not support {verb}.",
        hint=_cure(verb, is_view),
        position=statement.position_of(name),
    )


def _cure(verb: str, is_view: bool) -> str:
    if verb.startswith(("SHOW", "DESC")):
        return "Write SHOW CREATE TABLE name, or DESCRIBE [EXTENDED] name."
    if is_view:
        return "Choose another name: a lookup table's comes before that of a view."
    default = "A lookup table is read-only; write the schema before the name if you mean a Spark table."
    return default if verb in _CHANGES else _CURES.get(verb, default)


# ── statements of Spark ─────────────────────────────────────────────────────────────────────────────────────


_BY_CHANCE = 3


def run_unchanged(context: SqlContext, statement: Statement, args: Args = None) -> DataFrame:
    """Pass a statement to Spark; raise StatementError in place of an error of Spark's that would show secrets."""
    shown: PySparkException
    try:
        with muted_error_log(bool(statement.hidden)):
            if isinstance(args, QuestionMarks):
                return context.spark.sql(args.as_written(statement.written), list(args.values()))
            return context.spark.sql(statement.written, args)
    except PySparkException as error:
        _refuse_unread(context, statement, error)
        if not _shows(statement, str(error)):
            raise
        shown = error
    rejected = StatementError(
        f"Spark rejects the statement: {_fact(statement, shown)}",
        hint="Write it as Spark's SQL has it. Spark's own error is not shown, since it contains a secret.",
        position=_error_position(statement, shown),
    )
    rejected.refusal = shown
    raise rejected


def _refuse_unread(context: SqlContext, statement: Statement, error: PySparkException) -> None:
    """Raise StatementError where Spark does not find a relation that is a lookup table."""
    if condition_of(error) == "UNRESOLVED_ROUTINE" and "PROCTIME" in str(error.getMessageParameters()).upper():
        raise no_query(statement, statement.span) from None
    if condition_of(error) != "TABLE_OR_VIEW_NOT_FOUND":
        return
    name = unquote((error.getMessageParameters() or {}).get("relationName") or "``")
    if name in context.catalog.tables:
        raise StatementError(
            f"{name!r} is a lookup table, which a statement of this kind cannot read.",
            hint=f"Write CREATE TEMPORARY VIEW … AS SELECT * FROM {name}, and the view's name here.",
            position=_error_position(statement, error),
        ) from None


def _shows(statement: Statement, text: str) -> bool:
    """Return whether an error of Spark's contains a secret."""
    return bool(statement.hidden) and ("== SQL" in text or any(piece in text for piece in _pieces(statement)))


def _pieces(statement: Statement) -> list[str]:
    """Return the secrets, the longest first; very short ones occur in any text by chance."""
    whole = {statement.text[piece.start : piece.end] for piece in statement.hidden}
    # Spark repeats a literal without its quotes, and two quotes in it as one.
    pieces = whole | {part for piece in whole for part in re.split(r"['\"`\\]+", piece)}
    return sorted((piece for piece in pieces if len(piece) > _BY_CHANCE), key=len, reverse=True)


def _fact(statement: Statement, error: PySparkException) -> str:
    """Return Spark's message without the statement's text, with secrets masked."""
    fact = re.split(r"\n+== SQL|;?\s*\(?line \d+,? pos \d+\)?|JVM stacktrace", str(error))[0].strip()
    return functools.reduce(lambda text, piece: text.replace(piece, STARS), _pieces(statement), fact)


def _error_position(statement: Statement, error: PySparkException) -> Position:
    """Return the position that Spark names, or that of the full statement."""
    found = re.search(r"line (\d+),? pos (\d+)", str(error))
    if found is None:
        return statement.position(statement.span)
    lines = statement.sql.splitlines(keepends=True)
    start = statement.span.start + sum(map(len, lines[: int(found[1]) - 1])) + int(found[2])
    return statement.position(Span(start, start + 1))
