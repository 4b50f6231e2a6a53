"""Flink's windows in FROM, as relations of Spark's:

    TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTES)
─►  (SELECT * EXCEPT (window), window.start AS window_start, … FROM (SELECT *, window(ts, INTERVAL '10' MINUTES) …))

A name stands for each in the code that is parsed. Both systems count windows from the epoch by the wall clock, and
repeat a row for each of its windows. Both leave out rows without a time.

A SELECT groups by Spark's own window where only that is right: the bounds of a session are known in its group alone,
and the watermark of a stream ends groups only by the window itself:

    SELECT window_start, k, count(*) FROM … GROUP BY window_start, window_end, k
─►  SELECT CAST(lookup_w.start AS TIMESTAMP_NTZ) AS window_start, k, count(*) FROM … GROUP BY lookup_w, k
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, closing_of
from lookupcache.schema import quote
from lookupcache.sql.masks import SET_OPERATIONS, begins_clause, group_of
from lookupcache.sql.statement_target import QUERIES, arguments_of, is_relation, named_argument
from lookupcache.sql.text import Span, Statement, put

_KINDS = {
    "TUMBLE": ("data", "timecol", "size", "offset"), "HOP": ("data", "timecol", "slide", "size", "offset"),
    "CUMULATE": ("data", "timecol", "step", "size", "offset"), "SESSION": ("data", "timecol", "gap"),
}  # fmt: skip
"""The arguments of each window in their order."""
_UTC = ("UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Universal", "Zulu", "+00:00")
_UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}
_QUARTER = timedelta(minutes=15)
"""Of which the offsets of time zones are multiples."""

Column = Callable[[str, str], DataFrame | None]
"""Returns a column of a relation, which is SQL; None where only the rest of the statement tells it."""
Replaced = list[tuple[Span, str]]
"""SQL by the span that it stands for."""


@dataclass(frozen=True)
class _Call:
    """A window in FROM: its kind, the numbers of its first and last token, and the tokens of its arguments."""

    kind: str
    first: int
    last: int
    span: Span
    arguments: dict[str, list[Token]]


def reads_windows(found: Sequence[Token]) -> bool:
    """Return whether a statement has a window of Flink's in a FROM."""
    return any(_is_window(found, number) for number in range(len(found)))


def name_windows(statement: Statement, found: Sequence[Token], column: Column) -> tuple[Statement, Replaced, Replaced]:
    """Return a statement in which names stand for windows, the SQL of each by the span of its name, and other edits.

    Raises StatementError, with the position, for sessions that Spark has not, and for arguments that cannot be read.
    """
    names, made, edits = Replaced(), Replaced(), Replaced()
    for number, call in enumerate(_calls(statement, found)):
        names.append((call.span, f"_w{number}"))
        sql, more = _relation(statement, found, call, column)
        made.append((Span(call.span.start, call.span.start + len(names[-1][1])), sql))
        edits += more
    return (statement.with_code(put(statement.code, names)) if made else statement), made, edits


def _is_window(found: Sequence[Token], number: int) -> bool:
    """Return whether a window begins at a token, in ``TABLE(…)`` or alone."""
    words = [token.text for token in found[number : number + 4]]
    if words[:2] == ["TABLE", "("]:
        return len(words) == 4 and words[2] in _KINDS and words[3] == "("
    return words[0] in _KINDS and words[1:2] == ["("] and is_relation(found[:number])


def _calls(statement: Statement, found: Sequence[Token]) -> Iterator[_Call]:
    for number in range(len(found)):
        if not _is_window(found, number):
            continue
        name = number + 2 * (found[number].text == "TABLE")
        inner = closing_of(found, name + 1)
        last = inner if name == number else closing_of(found, number + 1)
        if inner is None or last is None:
            raise StatementError(
                "A parenthesis is not closed.",
                hint="Write the ) that closes it.",
                position=statement.position_of(found[number], found[name]),
            )
        span = statement.span_of(found[number], found[last])
        kind = found[name].text
        yield _Call(kind, number, last, span, _arguments(statement, kind, found[name + 2 : inner], span))


def _arguments(statement: Statement, kind: str, inside: Sequence[Token], span: Span) -> dict[str, list[Token]]:
    """Return the arguments by name, as they are named or by their place."""
    parts = arguments_of(inside)
    given = {}
    for name, part in zip(_KINDS[kind], parts, strict=False):
        own, value = named_argument(part)
        given[own or name] = value
    missing = [name for name in _KINDS[kind] if name not in given and name != "offset"]
    if missing or not set(given) <= set(_KINDS[kind]) or len(parts) > len(_KINDS[kind]):
        names = ", ".join(name.upper() for name in _KINDS[kind])
        more = "INTERVAL …, " * (kind in ("HOP", "CUMULATE"))
        raise StatementError(
            f"{kind} has other arguments than {names}.",
            hint=f"Write TABLE({kind}(TABLE t, DESCRIPTOR(ts), {more}INTERVAL '1' HOUR)).",
            position=statement.position(span),
        )
    return given


def _relation(
    statement: Statement, found: Sequence[Token], call: _Call, column: Column
) -> tuple[str, Sequence[tuple[Span, str]]]:
    """Return a window as a sub-query, and edits of the SELECT around it."""
    data, keys = _data(statement, call.arguments["data"])
    time = _time(statement, call)
    known = column(data, time)
    type_ = None if known is None else known.schema[0].dataType
    durations = {name: _duration(_text(statement, call.arguments[name])) for name in _KINDS[call.kind][2:]
                 if name in call.arguments}  # fmt: skip
    if call.kind == "SESSION" or _keeps_watermark(call.kind, known, durations):
        grouped = group_by_window(statement, found, call.first, call.last, keys if call.kind == "SESSION" else None)
        if grouped is not None:
            return f"(SELECT *, {_window(call.kind, time, durations)} AS {WINDOW} FROM {data})", grouped
    if call.kind == "SESSION":
        raise _no_group(statement, call, keys, time, durations["gap"])
    clock = time if isinstance(type_, T.TimestampNTZType) else f"CAST({time} AS TIMESTAMP_NTZ)"  # the wall clock
    rows, end = f"SELECT *, {_window(call.kind, clock, durations)} AS {WINDOW} FROM {data}", f"{WINDOW}.end"
    hidden, later = WINDOW, ""
    if call.kind == "CUMULATE":
        _check_steps(statement, call, durations)
        step, end, hidden = f"INTERVAL {durations['step']}", "lookup_end", f"{WINDOW}, lookup_end"
        ends = f"explode(sequence({WINDOW}.start + {step}, {WINDOW}.end, {step}))"
        rows, later = f"SELECT *, {ends} AS lookup_end FROM ({rows})", f" WHERE lookup_end > {clock}"
    last = f"{end} - INTERVAL '0.001' SECOND"
    last = f"CAST({last} AS TIMESTAMP_LTZ)" if isinstance(type_, T.TimestampType) else last
    columns = f"{WINDOW}.start AS window_start, {end} AS window_end, {last} AS window_time"
    return f"(SELECT * EXCEPT ({hidden}), {columns} FROM ({rows}){later})", ()


def _text(statement: Statement, part: Sequence[Token]) -> str:
    return statement[statement.span_of(part[0], part[-1])]


def _data(statement: Statement, data: Sequence[Token]) -> tuple[str, list[str]]:
    """Return a relation, and the columns of its PARTITION BY."""
    number = next(
        (n for n, token in enumerate(data) if n and token.text == "PARTITION" and not token.depth - data[0].depth),
        len(data),
    )
    keys = [token.name for token in data[number + 2 :] if token.kind in ("word", "quoted")]
    return _text(statement, data[data[0].text == "TABLE" : number]), keys


def _time(statement: Statement, call: _Call) -> str:
    """Return the time column."""
    column = call.arguments["timecol"]
    if [token.text for token in column[:2]] != ["DESCRIPTOR", "("] or len(column) != 4:
        raise StatementError(
            f"{call.kind} has no time column.", hint="Write DESCRIPTOR(ts).", position=statement.position(call.span)
        )
    return quote(column[2].name)


def _window(kind: str, time: str, durations: Mapping[str, str]) -> str:
    """Return the call of Spark's function."""
    if kind == "SESSION":
        return f"session_window({time}, {durations['gap']})"
    given = [durations["size"], durations.get("slide", durations["size"]), durations.get("offset", "'0 SECONDS'")]
    return f"window({time}, {', '.join(given)})"


def _keeps_watermark(kind: str, known: DataFrame | None, durations: Mapping[str, str]) -> bool:
    """Return whether Spark's windows of a stream's time begin where those of the wall clock do."""
    if kind == "CUMULATE" or known is None or not known.isStreaming or known.schema[0].dataType != T.TimestampType():
        return False
    length = _length(durations.get("slide", durations["size"]))
    is_utc = known.sparkSession.conf.get("spark.sql.session.timeZone") in _UTC
    return is_utc or (length is not None and not _QUARTER % length)


def _check_steps(statement: Statement, call: _Call, durations: Mapping[str, str]) -> None:
    step, size = _length(durations["step"]), _length(durations["size"])
    if step is not None and size is not None and size % step:
        raise StatementError(
            "The size of CUMULATE is no multiple of its step.",
            hint="Write the step before the size, as in INTERVAL '1' HOUR, INTERVAL '1' DAY.",
            position=statement.position(call.span),
        )


def _no_group(statement: Statement, call: _Call, keys: Sequence[str], time: str, gap: str) -> StatementError:
    items = ", ".join(["window_start", "window_end", *map(quote, keys)])
    own = ", ".join([f"session_window({time}, {gap})", *map(quote, keys)])
    return StatementError(
        "Spark knows a session only in the SELECT that groups by it.",
        hint=f"Write SELECT {items}, … FROM TABLE(SESSION(…)) GROUP BY {items} without WHERE and joins, in a sub-query "
        f"if need be; or Spark's own GROUP BY {own}.",
        position=statement.position(call.span),
    )


def _duration(text: str) -> str:
    """Return an interval as the text that Spark's window takes.

    >>> _duration("INTERVAL '10' MINUTES"), _duration("INTERVAL 1 HOUR")
    ("'10 MINUTES'", "'1 HOUR'")
    """
    words = [word.strip("'\"") for word in text.split()]
    return f"'{' '.join(words[1:] if words[0].upper() == 'INTERVAL' else words)}'"


def _length(duration: str) -> timedelta | None:
    """Return the length of a duration of one unit; None for others.

    >>> _length("'10 MINUTES'"), _length("'1 MONTH'")
    (datetime.timedelta(seconds=600), None)
    """
    number, _, unit = duration.strip("'").partition(" ")
    seconds = _UNITS.get(unit.strip().upper().removesuffix("S"))
    return timedelta(seconds=int(number) * seconds) if seconds and number.isdecimal() and int(number) else None


# ── a SELECT that groups by the bounds of a window ──────────────────────────────────────────────────────────


WINDOW = "lookup_w"
"""The name of the column with the window."""
_BOUNDS = {
    "window_start": f"CAST({WINDOW}.start AS TIMESTAMP_NTZ)",
    "window_end": f"CAST({WINDOW}.end AS TIMESTAMP_NTZ)",
    "window_time": f"({WINDOW}.end - INTERVAL '0.001' SECOND)",
}


class _Bound(NamedTuple):
    """A name of a window's bound: the numbers of its first and last token, and which bound it is."""

    first: int
    last: int
    name: str


def group_by_window(
    statement: Statement, found: Sequence[Token], first: int, last: int, keys: Sequence[str] | None
) -> list[tuple[Span, str]] | None:
    """Return the edits of the SELECT that groups by the bounds of a window; None where it does not, or has joins.

    ``first`` and ``last`` are the numbers of the window's tokens. A GROUP BY must have the ``keys`` of a session,
    without a WHERE that leaves rows out of sessions; for other windows they are None.
    """
    clauses = _clauses(found, first, last)
    if clauses is None or "GROUP" not in clauses or "WITH" in clauses or (keys is not None and "WHERE" in clauses):
        return None
    grouping = clauses.pop("GROUP")
    items = arguments_of([found[n] for n in grouping[1:]])
    bounds = [bound.name for item in items if (bound := _only_bound(item)) is not None]
    others = [item for item in items if _only_bound(item) is None]
    is_plain = keys is None or sorted(item[-1].name.lower() for item in others) == sorted(map(str.lower, keys))
    has_sets = any(item[0].text in _SETS for item in others)
    if not {"window_start", "window_end"} <= set(bounds) or not is_plain or has_sets:
        return None
    texts = [statement[statement.span_of(item[0], item[-1])] for item in others]
    edits = [(statement.span_of(found[grouping[1]], found[grouping[-1]]), ", ".join([WINDOW, *texts]))]
    for word in ("SELECT", "WHERE", "HAVING"):
        for bound in _bounds(found, clauses.get(word, range(0))):
            is_item = word == "SELECT" and _is_item(found, bound, found[first].depth)
            alias = f" AS {bound.name}" if is_item else ""
            edits.append((statement.span_of(found[bound.first], found[bound.last]), _BOUNDS[bound.name] + alias))
    return edits


_SETS = ("GROUPING", "CUBE", "ROLLUP")


def _clauses(found: Sequence[Token], first: int, last: int) -> dict[str, range] | None:
    """Return which tokens each clause of a SELECT has behind its keyword; None if it has not just one relation."""
    group, depth = group_of(found, first, found[first].depth), found[first].depth
    starts = [n for n in group if found[n].depth == depth and begins_clause(found, n)]
    before = [n for n in starts if n < first]
    if [found[n].text for n in before[-2:]] != ["SELECT", "FROM"] or before[-1] != first - 1:
        return None
    after = [n for n in starts if n > last]
    stop = next((n for n in after if found[n].text in SET_OPERATIONS), group.stop)
    after = [n for n in after if n < stop]
    end = after[0] if after else stop
    alias = [token.text for token in found[last + 1 : end] if token.text != "AS"]
    if len(alias) > 1:
        return None
    edges = [*after, stop]
    clauses = {found[start].text: range(start + 1, stop) for start, stop in pairwise(edges)}
    return clauses | {"SELECT": range(before[-2] + 1, before[-1])}


def _bounds(found: Sequence[Token], inside: range) -> Iterator[_Bound]:
    """Yield the names of bounds in a clause, without those in sub-queries."""
    skipped = 0
    for n in inside:
        if n < skipped:
            continue
        if found[n].text == "(" and found[n + 1].text in QUERIES:
            skipped = closing_of(found, n) or inside.stop
        texts = [found[n - 1].text, found[n + 1].text if n + 1 < len(found) else ""]
        if found[n].name.lower() in _BOUNDS and texts[0] != "AS" and texts[1] not in (".", "("):
            yield _Bound(n - 2 if texts[0] == "." else n, n, found[n].name.lower())


def _only_bound(item: Sequence[Token]) -> _Bound | None:
    """Return the bound that an item of GROUP BY is."""
    bound = next(_bounds([*item[:1], *item], range(1, len(item) + 1)), None)
    return bound if bound is not None and (bound.first, bound.last) == (1, len(item)) else None


def _is_item(found: Sequence[Token], bound: _Bound, depth: int) -> bool:
    """Return whether a name is all of an item of SELECT, which then has this name."""
    before, after = found[bound.first - 1], found[bound.last + 1]
    is_whole = before.text in ("SELECT", "DISTINCT", "ALL", ",") and after.text in (",", "FROM")
    return is_whole and found[bound.first].depth == depth
