"""Names relations of a FROM whose latest rows are read, but which the parser takes for others.

    JOIN LATERAL TABLE(SNAPSHOT(input => TABLE rates, …)) AS r      ─► JOIN rates FOR SYSTEM_TIME AS OF NOW() AS r
    JOIN (SELECT …) FOR SYSTEM_TIME AS OF PROCTIME() AS r           ─► JOIN _s0 FOR SYSTEM_TIME AS OF PROCTIME() AS r
    FROM orders, (SELECT … FROM rates LIMIT 1) AS r                 ─► FROM orders, _s0 TIMESTAMP AS OF NOW() AS r
    (SELECT … FROM (SELECT … FROM rates) AS r WHERE …) in SELECT    ─► (SELECT … FROM _s0 AS r WHERE …)

The code keeps its length, so that positions in errors stay those of the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError, nearest
from lookupcache.latest.load import COMPILE_TIME, LoadPhase
from lookupcache.planner.clauses import Token, closing_of, split_arguments
from lookupcache.sql.text import Span, Statement, put
from lookupcache.sql.token_reader import QUERIES, described_column, named_argument

ReadQuery = Callable[[str], DataFrame | None]
"""Returns the rows of a query over a stream, None where it is no such query."""

_ARGUMENTS = (
    "input", "on_time", "load_completed_condition", "load_completed_time", "load_completed_idle_timeout", "state_ttl",
)  # fmt: skip
_AT_COMPILE_TIME, _AT_TIME = ("compile_time", "on_compile_time"), ("user_time", "on_time")
_CLAUSES = {"SELECT", "FROM", "WHERE", "ON", "HAVING", "BY", "QUALIFY", "USING", "LIMIT", "VALUES"}
_NO_SCALAR = {"IN", "EXISTS", "ANY", "ALL", "SOME", "LATERAL", "AS"}
"""Words before parentheses in which a query is no scalar."""


@dataclass(frozen=True)
class StreamRelation:
    """A relation whose latest rows are read: the rows of a query, None for a view by name, and SNAPSHOT's arguments.

    ``or_batch`` allows rows that are no stream. ``is_limited`` says that the query has LIMIT 1, and so one row for all
    left rows. ``query`` is a query over no stream, whose rows are looked up.
    """

    rows: DataFrame | None = None
    order_by: tuple[str, ...] = ()
    load: LoadPhase | None = None
    ttl: str | None = None
    or_batch: bool = False
    is_limited: bool = False
    query: Statement | None = None


@dataclass(frozen=True)
class Naming:
    """A relation, the span of its text, and the code in its place."""

    span: Span
    code: str
    relation: StreamRelation


def name_stream_relations(
    statement: Statement, found: Sequence[Token], read: ReadQuery
) -> tuple[Statement, dict[int, StreamRelation]]:
    """Return a statement in which such relations have names, and the relations by the positions of those.

    >>> asked = Statement.of("FROM a JOIN ((SELECT * FROM b)) FOR SYSTEM_TIME AS OF NOW() AS b ON a.k = b.k")
    >>> name_stream_relations(asked, asked.tokens, lambda query: query)[0].sql
    'FROM a JOIN _s0                 FOR SYSTEM_TIME AS OF NOW() AS b ON a.k = b.k'
    """
    namings = list(_namings(statement, found, read))
    for naming in namings:
        if len(naming.code) > naming.span.end - naming.span.start:
            raise StatementError(
                "A relation with the latest rows of a stream is too short to be read here.",
                hint="Put blanks into its parentheses.",
                position=statement.position(naming.span),
            )
    if not namings:
        return statement, {}
    code = put(statement.code, ((naming.span, naming.code) for naming in namings))
    return statement.with_code(code), {naming.span.start: naming.relation for naming in namings}


def _namings(statement: Statement, found: Sequence[Token], read: ReadQuery) -> Iterator[Naming]:
    done, number = -1, 0
    for index, token in enumerate(found):
        if token.start < done:
            continue
        naming = _snapshot(statement, found, index, read, f"_s{number}")
        naming = naming or _inner_query(statement, found, index, read, f"_s{number}")
        if naming is not None:
            yield naming
            done, number = naming.span.end - statement.span.start, number + 1


# ── queries inside ───────────────────────────────────────────────────────────────────────────────────────


def _inner_query(statement: Statement, found: Sequence[Token], index: int, read: ReadQuery, name: str) -> Naming | None:
    """Return the relation of a query in parentheses, if its latest row is read."""
    begin = index
    if _text_at(found, index) == "(" != _text_at(found, index - 1):  # the outermost of several
        while _text_at(found, begin + 1) == "(":
            begin += 1
    closing = _query_end(found, begin)
    if closing is None:
        return None
    last = closing + begin - index
    after = [token.text for token in found[closing + 1 : last + 3]]
    inner, limited = _without_limit(found[begin + 1 : closing])
    code = name
    is_timed = after == [*")" * (begin - index), "FOR", "SYSTEM_TIME"]
    if not is_timed and (begin > index or found[begin + 1].text == "WITH"):
        return None
    if not is_timed and not _is_first_of_scalar(found, index):
        if not limited or not _is_crossed(found, index):
            return None
        code = f"{name} TIMESTAMP AS OF NOW()"
    rows = read(statement[statement.span_of(inner[0], inner[-1])])
    if rows is None and not is_timed:
        return None
    whole = statement.part(*statement.span_within(found[begin].end, found[closing].start))
    relation = StreamRelation(rows, is_limited=limited) if rows is not None else StreamRelation(query=whole)
    return Naming(statement.span_of(found[index], found[last]), code, relation)


def _text_at(found: Sequence[Token], index: int) -> str:
    return found[index].text if 0 <= index < len(found) else ""


def _query_end(found: Sequence[Token], index: int) -> int | None:
    """Return the position of the parenthesis that closes a query; None where none begins here."""
    if found[index].text != "(" or index + 1 == len(found) or found[index + 1].text not in QUERIES:
        return None
    return closing_of(found, index)


def _without_limit(inner: Sequence[Token]) -> tuple[Sequence[Token], bool]:
    """Return a query's tokens without LIMIT 1, and whether it has that."""
    limited = [token.text for token in inner[-2:]] == ["LIMIT", "1"] and inner[-1].depth == inner[0].depth
    return (inner[:-2] if limited else inner), limited


def _clause(found: Sequence[Token], index: int) -> str:
    """Return the keyword of the clause in which a token stands."""
    depth = found[index].depth
    for token in reversed(found[:index]):
        if token.depth < depth:
            return ""
        if token.depth == depth and token.kind == "word" and token.text in _CLAUSES:
            return token.text
    return ""


def _is_crossed(found: Sequence[Token], index: int) -> bool:
    """Return whether a relation follows a comma, or CROSS JOIN, in FROM."""
    before = [token.text for token in found[max(index - 2, 0) : index]]
    return _clause(found, index) in ("FROM", "ON") and (before[-1:] == [","] or before == ["CROSS", "JOIN"])


def _is_first_of_scalar(found: Sequence[Token], index: int) -> bool:
    """Return whether a relation is the first in the FROM of a scalar sub-query."""
    if index < 2 or found[index - 1].text != "FROM":
        return False
    depth = found[index].depth
    opening = next((n for n in reversed(range(index)) if found[n].depth == depth - 1 and found[n].text == "("), None)
    if opening is None or found[opening + 1].text != "SELECT":
        return False
    return _outer_clause(found, opening) not in ("FROM", "USING", "")


def _outer_clause(found: Sequence[Token], index: int) -> str:
    """Return the keyword of the clause in which a parenthesis stands, perhaps in others or CASE; none after IN, …."""
    while index > 0 and found[index - 1].text not in _NO_SCALAR:
        clause, depth = _clause(found, index), found[index].depth
        outer = next((n for n in reversed(range(index)) if found[n].depth < depth), -1)
        if clause or outer < 0:
            return clause
        index = outer
    return ""


# ── SNAPSHOT ─────────────────────────────────────────────────────────────────────────────────────────────


def _snapshot(statement: Statement, found: Sequence[Token], index: int, read: ReadQuery, name: str) -> Naming | None:
    """Return the relation of LATERAL SNAPSHOT(…), or of LATERAL TABLE(SNAPSHOT(…))."""
    words = [token.text.upper() for token in found[index : index + 5]]
    if words[:3] == ["LATERAL", "SNAPSHOT", "("]:
        opening, outer = index + 2, index + 2
    elif words == ["LATERAL", "TABLE", "(", "SNAPSHOT", "("]:
        opening, outer = index + 4, index + 2
    elif words[:2] == ["SNAPSHOT", "("] and [token.text for token in found[index + 3 : index + 4]] == ["=>"]:
        raise StatementError(
            "SNAPSHOT stands after LATERAL only.",
            hint="Write FROM orders AS o JOIN LATERAL SNAPSHOT(input => TABLE view, …) AS r ON ….",
            position=statement.position_of(found[index]),
        )
    else:
        return None
    closing = [_closing(statement, found, one) for one in (opening, outer)]
    arguments = _arguments(statement, found[opening + 1 : closing[0]])
    span = statement.span_of(found[index], found[closing[1]])
    with statement.located(span):
        relation = _relation(arguments)
    code, rows = _input(statement, arguments, read, name)
    relation = StreamRelation(rows, relation.order_by, relation.load, relation.ttl, or_batch=True)
    return Naming(span, f"{code} FOR SYSTEM_TIME AS OF NOW()", relation)


def _closing(statement: Statement, found: Sequence[Token], opening: int) -> int:
    closing = closing_of(found, opening)
    if closing is None:
        raise StatementError(
            "A parenthesis is not closed.",
            hint="Write the ) that closes it.",
            position=statement.position_of(found[opening]),
        )
    return closing


def _arguments(statement: Statement, inside: Sequence[Token]) -> dict[str, list[Token]]:
    """Return SNAPSHOT's arguments by name; raises StatementError for any that it has not."""
    arguments: dict[str, list[Token]] = {}
    for part in split_arguments(inside):
        name, value = named_argument(part)
        if name not in _ARGUMENTS or name in arguments:
            raise _wrong_argument(statement, name, part or list(inside), again=name in arguments)
        arguments[name] = value
    if "input" not in arguments:
        raise StatementError("SNAPSHOT has no 'input'.", hint="Write SNAPSHOT(input => TABLE view, …).")
    return arguments


def _wrong_argument(statement: Statement, name: str, found: Sequence[Token], *, again: bool) -> StatementError:
    fact, hint = "SNAPSHOT's arguments have names.", "Write SNAPSHOT(input => TABLE view, …)."
    if name:
        fact, hint = f"SNAPSHOT has no argument {name!r}.", nearest(name, _ARGUMENTS, what="arguments")
    if again:
        fact, hint = f"SNAPSHOT has the argument {name!r} twice.", "Leave one of them out."
    position = statement.position_of(found[0], found[-1]) if found else None
    return StatementError(fact, hint=hint, position=position)


def _input(
    statement: Statement, arguments: dict[str, list[Token]], read: ReadQuery, name: str
) -> tuple[str, DataFrame | None]:
    """Return the name that stands for SNAPSHOT's input, and its rows where it is a query."""
    found = arguments["input"]
    if found[0].text == "TABLE" and len(found) == 2 and found[1].kind in ("word", "quoted"):
        return found[1].written, None
    rows = None
    if found[0].text == "(" and found[-1].text == ")":
        rows = read(statement[statement.span_of(found[1], found[-2])])
    if rows is None:
        raise StatementError(
            "SNAPSHOT's 'input' is no view and no query over a stream.",
            hint="Write input => TABLE view, or input => (SELECT … FROM view).",
            position=statement.position_of(found[0], found[-1]),
        )
    return name, rows


def _relation(arguments: dict[str, list[Token]]) -> StreamRelation:
    """Return SNAPSHOT's arguments as a load phase; raises StatementError for invalid values."""
    on_time = described_column(arguments.get("on_time", ()))
    if on_time is None and "on_time" in arguments:
        raise StatementError("'on_time' is no column.", hint="Write on_time => DESCRIPTOR(column).")
    time = _text("load_completed_time", arguments, ("TIMESTAMP", "TIMESTAMP_LTZ"))
    condition = _text("load_completed_condition", arguments, ())
    if condition is not None and condition not in (*_AT_COMPILE_TIME, *_AT_TIME):
        raise StatementError(
            f"'load_completed_condition' is {condition!r}.", hint="It is 'compile_time' or 'user_time'."
        )
    if condition in _AT_TIME and time is None:
        raise StatementError(
            f"'load_completed_condition' is {condition!r}, and there is no 'load_completed_time'.",
            hint="Add load_completed_time => TIMESTAMP '…'.",
        )
    if condition in _AT_COMPILE_TIME and time is not None:
        raise StatementError(
            f"'load_completed_condition' is {condition!r}, and there is a 'load_completed_time'.",
            hint="Leave one of them out.",
        )
    idle = _interval("load_completed_idle_timeout", arguments)
    load = LoadPhase(COMPILE_TIME if time is None else time, idle, on_time)
    return StreamRelation(None, () if on_time is None else (on_time,), load, _interval("state_ttl", arguments))


def _text(name: str, arguments: dict[str, list[Token]], types: tuple[str, ...]) -> str | None:
    """Return the text of a literal, with one of some types' names before it, or in a CAST to one of them."""
    found = arguments.get(name)
    if found is None:
        return None
    found = _without_cast(found, types)
    if found[-1].kind == "string" and [token.text.upper() for token in found[:-1]] in [[one] for one in types] + [[]]:
        return found[-1].written[1:-1]
    example = f"{types[0]} '2026-07-01 00:00:00'" if types else "'compile_time'"
    raise StatementError(f"{name!r} is no literal.", hint=f"Write {name} => {example}.")


def _without_cast(found: list[Token], types: tuple[str, ...]) -> list[Token]:
    """Return the value in CAST(… AS TIMESTAMP_LTZ(3)), as Flink's examples write a time; other values as they are."""
    words = [token.text.upper() for token in found]
    if words[:2] != ["CAST", "("] or words[-1:] != [")"] or "AS" not in words:
        return found
    at = words.index("AS")
    target = words[at + 1 : -1]
    is_time = target[:1] != [] and target[0] in types and (len(target) == 1 or (target[1] == "(" and target[-1] == ")"))
    return found[2:at] if is_time else found


def _interval(name: str, arguments: dict[str, list[Token]]) -> str | None:
    """Return an interval of one unit as a duration."""
    found = arguments.get(name)
    if found is None:
        return None
    words = [token.written.strip("'\"") for token in found]
    if words[0].upper() == "INTERVAL" and len(words) in (2, 3):
        words = words[1:]
    text = " ".join(words).lower()
    if len(words) > 2 or not text[:1].isdigit():
        raise StatementError(f"{name!r} is no interval of one unit.", hint=f"Write {name} => INTERVAL '10' SECOND.")
    return text
