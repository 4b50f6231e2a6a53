"""Flink's windows in FROM, as relations of Spark's:

    TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTES))
─►  (SELECT * EXCEPT (window), window.start AS window_start, … FROM (SELECT *, window(ts, INTERVAL '10' MINUTES) …))

A name stands for each in the code that is parsed. Both systems begin windows at the epoch by the wall clock, give a row
for each window that it is in, and leave out rows without a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, closing_of
from lookupcache.schema import quote
from lookupcache.sql.statement_target import arguments_of
from lookupcache.sql.text import Span, Statement

_KINDS = {"TUMBLE": ("data", "timecol", "size", "offset"), "HOP": ("data", "timecol", "slide", "size", "offset")}
"""The windows that Spark has, with the arguments of each in their order."""
_CURES = {
    "CUMULATE": "Group by TUMBLE of the step, and add up: sum(n) OVER (PARTITION BY … ORDER BY window_end).",
    "SESSION": "Write GROUP BY session_window(ts, '5 minutes'), key, whose struct has start and end.",
}
WINDOWS = (*_KINDS, *_CURES)

TypeOf = Callable[[str, str], T.DataType | None]
"""Returns the type of a column of a relation, which is SQL; None where only the rest of the statement tells it."""


@dataclass(frozen=True)
class _Call:
    """A window in FROM: its kind, the span from TABLE to the closing parenthesis, and the tokens of its arguments."""

    kind: str
    span: Span
    arguments: dict[str, list[Token]]


def reads_windows(found: Sequence[Token]) -> bool:
    """Return whether a statement has a window of Flink's in a FROM."""
    return any(_is_window(found, number) for number in range(len(found)))


def name_windows(
    statement: Statement, found: Sequence[Token], type_of: TypeOf
) -> tuple[Statement, list[tuple[Span, str]]]:
    """Return a statement in which names stand for windows, and the SQL of each by the span of its name.

    Raises StatementError, with the position, for windows that Spark has not, and for arguments that cannot be read.
    """
    code, made = statement.code, list[tuple[Span, str]]()
    for number, call in enumerate(_calls(statement, found)):
        name = f"_w{number}"
        start, end = call.span
        code = code[:start] + name.ljust(end - start) + code[end:]
        made.append((Span(start, start + len(name)), _sql(statement, call, type_of)))
    return (statement.with_code(code) if made else statement), made


def _is_window(found: Sequence[Token], number: int) -> bool:
    words = [token.text.upper() for token in found[number : number + 4]]
    return words[:2] == ["TABLE", "("] and len(words) == 4 and words[2] in WINDOWS and words[3] == "("


def _calls(statement: Statement, found: Sequence[Token]) -> Iterator[_Call]:
    for number in range(len(found)):
        if not _is_window(found, number):
            continue
        kind = found[number + 2].text.upper()
        inner, outer = (closing_of(found, one) for one in (number + 3, number + 1))
        position = statement.span_within(found[number].start, found[number + 2].end)
        if kind in _CURES:
            raise StatementError(
                f"Spark has no {kind} in FROM.", hint=_CURES[kind], position=statement.position(position)
            )
        if inner is None or outer is None:
            raise StatementError("A parenthesis is not closed.", position=statement.position(position))
        span = statement.span_within(found[number].start, found[outer].end)
        yield _Call(kind, span, _arguments(statement, kind, found[number + 4 : inner], span))


def _arguments(statement: Statement, kind: str, inside: Sequence[Token], span: Span) -> dict[str, list[Token]]:
    """Return the arguments by name, as they are named or by their place."""
    parts = arguments_of(inside)
    given = {}
    for name, part in zip(_KINDS[kind], parts, strict=False):
        is_named = len(part) > 2 and part[1].text == "=>"
        given[part[0].name.lower() if is_named else name] = part[2:] if is_named else part
    missing = [name for name in _KINDS[kind] if name not in given and name != "offset"]
    if missing or not set(given) <= set(_KINDS[kind]) or len(parts) > len(_KINDS[kind]):
        names = ", ".join(name.upper() for name in _KINDS[kind])
        raise StatementError(
            f"{kind} has other arguments than {names}.",
            hint=f"Write TABLE({kind}(TABLE t, DESCRIPTOR(ts), {'INTERVAL …, ' * (kind == 'HOP')}INTERVAL '1' HOUR)).",
            position=statement.position(span),
        )
    return given


def _sql(statement: Statement, call: _Call, type_of: TypeOf) -> str:
    """Return a window as a sub-query."""

    def text(part: Sequence[Token]) -> str:
        return statement[statement.span_within(part[0].start, part[-1].end)]

    data, column = call.arguments["data"], call.arguments["timecol"]
    if [token.text.upper() for token in column[:2]] != ["DESCRIPTOR", "("] or len(column) != 4:
        raise StatementError(
            f"{call.kind} has no time column.", hint="Write DESCRIPTOR(ts).", position=statement.position(call.span)
        )
    relation = text(data[1:]) if data[0].text == "TABLE" else text(data)
    time = quote(column[2].name)
    type_ = type_of(relation, time)
    is_local, is_wall = isinstance(type_, T.TimestampType), isinstance(type_, T.TimestampNTZType)
    clock = time if is_wall else f"CAST({time} AS TIMESTAMP_NTZ)"  # windows begin by the wall clock, as Flink's do
    durations = [text(call.arguments[one]) for one in ("size", "slide", "offset") if one in call.arguments]
    if call.kind == "TUMBLE" and "offset" in call.arguments:
        durations.insert(1, durations[0])
    given = ", ".join(_duration(one) for one in durations)
    end = "lookup_w.end - INTERVAL '0.001' SECOND"
    last = f"CAST({end} AS TIMESTAMP_LTZ)" if is_local else end
    columns = f"lookup_w.start AS window_start, lookup_w.end AS window_end, {last} AS window_time"
    inner = f"SELECT *, window({clock}, {given}) AS lookup_w FROM {relation}"
    return f"(SELECT * EXCEPT (lookup_w), {columns} FROM ({inner}))"


def _duration(text: str) -> str:
    """Return an interval as the text that Spark's window takes.

    >>> _duration("INTERVAL '10' MINUTES"), _duration("INTERVAL 1 HOUR")
    ("'10 MINUTES'", "'1 HOUR'")
    """
    words = [word.strip("'\"") for word in text.split()]
    return f"'{' '.join(words[1:] if words[0].upper() == 'INTERVAL' else words)}'"
