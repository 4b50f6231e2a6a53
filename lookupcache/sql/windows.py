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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, closing_of, split_arguments
from lookupcache.schema import quote
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.query import Query
from lookupcache.sql.scope import names_in
from lookupcache.sql.text import Edit, Span, Statement, put
from lookupcache.sql.token_reader import described_column, is_relation, named_argument

_KINDS = {
    "TUMBLE": ("data", "timecol", "size", "offset"), "HOP": ("data", "timecol", "slide", "size", "offset"),
    "CUMULATE": ("data", "timecol", "step", "size", "offset"), "SESSION": ("data", "timecol", "gap"),
}  # fmt: skip
"""The arguments of each window in their order."""
_UTC = ("UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Universal", "Zulu", "+00:00")
_UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}
_QUARTER = timedelta(minutes=15)
"""Of which the offsets of time zones are multiples."""


@dataclass(frozen=True)
class Window:
    """A window in FROM: its kind, its relation with the columns of PARTITION BY, its time column, and its durations."""

    kind: str
    span: Span
    data: str
    keys: list[str]
    time: str
    durations: dict[str, str]


def reads_windows(found: Sequence[Token]) -> bool:
    """Return whether a statement has a window of Flink's in a FROM."""
    return any(_is_window(found, number) for number in range(len(found)))


def name_windows(statement: Statement, found: Sequence[Token]) -> tuple[Statement, dict[Span, Window]]:
    """Return a statement in which names stand for windows, and the windows by the spans of their names.

    Raises StatementError, with the position, for arguments that cannot be read.
    """
    windows = list(_windows(statement, found))
    names = [(window.span, f"_w{number}") for number, window in enumerate(windows)]
    named = statement.with_code(put(statement.code, names)) if windows else statement
    spans = [Span(span.start, span.start + len(name)) for span, name in names]
    return named, dict(zip(spans, windows, strict=True))


def put_windows(query: Query, windows: Mapping[Span, Window]) -> None:
    """Put the SQL of windows for the names that stand for them, which are their aliases where they have no others.

    Raises StatementError, with the position, for sessions that Spark has not.
    """
    tables = {name_span(one.this): one for one in query.find(exp.Table) if isinstance(one.this, exp.Identifier)}
    for span, window in windows.items():
        table = tables.get(span)
        sql, edits = _relation(query, window, table)
        is_alias = table is not None and not table.alias
        for edit in (Edit(span, f"{sql} AS {query.statement[span]}" if is_alias else sql), *edits):
            query.replace(*edit)


def _is_window(found: Sequence[Token], number: int) -> bool:
    """Return whether a window begins at a token, in ``TABLE(…)`` or alone."""
    words = [token.text for token in found[number : number + 4]]
    if words[:2] == ["TABLE", "("]:
        return len(words) == 4 and words[2] in _KINDS and words[3] == "("
    return words[0] in _KINDS and words[1:2] == ["("] and is_relation(found[:number])


def _windows(statement: Statement, found: Sequence[Token]) -> Iterator[Window]:
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
        span, kind = statement.span_of(found[number], found[last]), found[name].text
        given = _arguments(statement, kind, found[name + 2 : inner], span)
        data, keys = _data(statement, given["data"])
        durations = {one: _duration(_text(statement, given[one])) for one in _KINDS[kind][2:] if one in given}
        time = described_column(given["timecol"])
        if time is None:
            raise StatementError(
                f"{kind} has no time column.", hint="Write DESCRIPTOR(ts).", position=statement.position(span)
            )
        yield Window(kind, span, data, keys, quote(time), durations)


def _arguments(statement: Statement, kind: str, inside: Sequence[Token], span: Span) -> dict[str, list[Token]]:
    """Return the arguments by name, as they are named or by their place."""
    parts = split_arguments(inside)
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


def _relation(query: Query, window: Window, table: exp.Table | None) -> tuple[str, Sequence[Edit]]:
    """Return a window as a sub-query, and edits of the SELECT around it."""
    kind, time, data, durations = window.kind, window.time, window.data, window.durations
    known = _known(query, window)
    type_ = None if known is None else known.schema[0].dataType
    if table is not None and (kind == "SESSION" or _keeps_watermark(kind, known, durations)):
        grouped = _group_by_window(query, window, table)
        if grouped is not None:
            return f"(SELECT *, {_call(kind, time, durations)} AS {WINDOW} FROM {data})", grouped
    if kind == "SESSION":
        raise _no_group(query, window)
    clock = time if isinstance(type_, T.TimestampNTZType) else f"CAST({time} AS TIMESTAMP_NTZ)"  # the wall clock
    rows, end = f"SELECT *, {_call(kind, clock, durations)} AS {WINDOW} FROM {data}", f"{WINDOW}.end"
    hidden, later = WINDOW, ""
    if kind == "CUMULATE":
        _check_steps(query, window)
        step, end, hidden = f"INTERVAL {durations['step']}", "lookup_end", f"{WINDOW}, lookup_end"
        ends = f"explode(sequence({WINDOW}.start + {step}, {WINDOW}.end, {step}))"
        rows, later = f"SELECT *, {ends} AS lookup_end FROM ({rows})", f" WHERE lookup_end > {clock}"
    last = f"{end} - INTERVAL '0.001' SECOND"
    last = f"CAST({last} AS TIMESTAMP_LTZ)" if isinstance(type_, T.TimestampType) else last
    columns = f"{WINDOW}.start AS window_start, {end} AS window_end, {last} AS window_time"
    return f"(SELECT * EXCEPT ({hidden}), {columns} FROM ({rows}){later})", ()


def _known(query: Query, window: Window) -> DataFrame | None:
    """Return the time column of a window's relation; None where only the rest of the statement tells it."""
    try:
        return query.context.spark.sql(f"SELECT {window.time} FROM {window.data}")
    except PySparkException:
        return None


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


def _call(kind: str, time: str, durations: Mapping[str, str]) -> str:
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


def _check_steps(query: Query, window: Window) -> None:
    step, size = _length(window.durations["step"]), _length(window.durations["size"])
    if step is not None and size is not None and size % step:
        raise StatementError(
            "The size of CUMULATE is no multiple of its step.",
            hint="Write the step before the size, as in INTERVAL '1' HOUR, INTERVAL '1' DAY.",
            position=query.statement.position(window.span),
        )


def _no_group(query: Query, window: Window) -> StatementError:
    items = ", ".join(["window_start", "window_end", *map(quote, window.keys)])
    own = ", ".join([_call(window.kind, window.time, window.durations), *map(quote, window.keys)])
    return StatementError(
        "Spark knows a session only in the SELECT that groups by it.",
        hint=f"Write SELECT {items}, … FROM TABLE(SESSION(…)) GROUP BY {items} without WHERE and joins, in a sub-query "
        f"if need be; or Spark's own GROUP BY {own}.",
        position=query.statement.position(window.span),
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


def _group_by_window(query: Query, window: Window, table: exp.Table) -> list[Edit] | None:
    """Return the edits of the SELECT that groups by the bounds of a window; None where it does not, or has joins.

    A GROUP BY must have the keys of a session, without a WHERE that leaves rows out of sessions.
    """
    select = table.find_ancestor(exp.Select)
    args = {} if select is None else select.args
    group, is_session = args.get("group"), window.kind == "SESSION"
    more = [args.get("joins"), args.get("laterals"), *(table.args.get(name) for name in ("joins", "pivots", "sample"))]
    if select is None or group is None or args["from_"].this is not table or any(more):
        return None
    items = group.expressions
    if any(value for name, value in group.args.items() if name != "expressions") or query.unread_in(span_of(group)):
        return None
    others = [item for item in items if not _is_bound(item)]
    keys = [item.name.lower() if isinstance(item, exp.Column) else "" for item in others]
    is_plain = not is_session or (args.get("where") is None and sorted(keys) == sorted(map(str.lower, window.keys)))
    if not {"window_start", "window_end"} <= {item.name.lower() for item in items if _is_bound(item)} or not is_plain:
        return None
    texts = [query.statement[span_of(item)] for item in others]
    whole = Span(span_of(items[0]).start, span_of(items[-1]).end)
    edits = [Edit(whole, ", ".join([WINDOW, *texts]))]
    for part in (*select.expressions, *filter(None, (args.get("where"), args.get("having")))):
        for name in names_in(part, query.fold):
            if not name.nested and _is_bound(name.node):
                bound = name.node.name.lower()
                alias = f" AS {bound}" if name.node is part else ""
                edits.append(Edit(name.span, _BOUNDS[bound] + alias))
    return edits


def _is_bound(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and node.name.lower() in _BOUNDS and len(node.parts) <= 2
