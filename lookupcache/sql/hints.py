"""Parses hints into options of a lookup: LOOKUP and ASYNC_TABLE_FUNC after SELECT, OPTIONS after a table's name.

/*+ LOOKUP('table'='c', 'retry-predicate'='lookup_miss', …) */  ─►  {'lookup.retry.on-miss.…': …}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlglot import exp

from lookupcache.errors import OptionError, nearest
from lookupcache.planner.clauses import Token, closing_of, split_arguments, tokens
from lookupcache.sql.dialect import span_of
from lookupcache.sql.text import Span, Statement
from lookupcache.sql.token_reader import unquote

_CALLS = {
    "output-mode": "lookup.async.output-mode",
    "capacity": "lookup.async.capacity",
    "timeout": "lookup.timeout",
}
_RETRY = {
    "retry-predicate": None,
    "retry-strategy": None,
    "fixed-delay": "lookup.retry.on-miss.delay",
    "max-attempts": "lookup.retry.on-miss.max-attempts",
}
_KEYS: dict[str, dict[str, str | None]] = {
    "LOOKUP": {"table": None, "async": "lookup.async", **_CALLS, **_RETRY, "shuffle": "lookup.shuffle"},
    "ASYNC_TABLE_FUNC": {"function": None, **_CALLS, **_RETRY},
}
_ONLY = {"retry-predicate": "lookup_miss", "retry-strategy": "fixed_delay"}


class Value(NamedTuple):
    """The value of an option, and the span of key and value."""

    text: str
    span: Span


@dataclass
class Hint:
    """One hint: its name in upper case, its options as written, and its span."""

    name: str
    span: Span
    given: dict[str, Value] = field(default_factory=dict)
    used: bool = False

    @property
    def target(self) -> str | None:
        """The table or function that the hint applies to; None for any."""
        value = self.given.get("table" if self.name == "LOOKUP" else "function")
        return value.text if value else None

    def options(self) -> dict[str, str]:
        """Return the hint as options of a lookup."""
        if self.name == "OPTIONS":
            return {key: value.text for key, value in self.given.items()}
        keys = _KEYS[self.name]
        return {str(keys[key]): value.text for key, value in self.given.items() if keys[key] is not None}


class Hints:
    """The lookup hints of one SELECT; ``others`` is the text of the other hints, which are Spark's.

    Raises OptionError, with the position, for an unknown key, an invalid value, or an incomplete retry.
    """

    def __init__(self, statement: Statement, select: exp.Select) -> None:
        self._statement = statement
        node = select.args.get("hint")
        self.span = None if node is None else span_of(node)
        found = [] if self.span is None else list(_hints(statement, Span(self.span.start + 3, self.span.end - 2)))
        self.ours = [hint for hint in found if hint.name in _KEYS]
        self.others = ", ".join(statement[hint.span] for hint in found if hint.name not in _KEYS)
        for hint in self.ours:
            self._check(hint)

    def refuse_unused(self, tables: Sequence[str], functions: Sequence[str]) -> None:
        """Raise OptionError for a hint that names a table or function that the query does not look up."""
        for hint in self.ours:
            known, what = (tables, "table") if hint.name == "LOOKUP" else (functions, "table function")
            if not hint.used:
                raise OptionError(
                    f"Hint {hint.name} is for {what} {hint.target or '(any)'!r}, which this query does not look up.",
                    hint=nearest(hint.target or "", known, what=f"{what}s of the query"),
                    position=self._statement.position(hint.given["table" if hint.name == "LOOKUP" else "function"].span)
                    if hint.target
                    else self._statement.position(hint.span),
                )

    def options(self, kind: str, names: Sequence[str]) -> dict[str, str]:
        """Return the options of the hints of a kind for a target with one of these names: alias and own name.

        Hints that name their target override the others.
        """
        options: dict[str, str] = {}
        for named in (False, True):
            for hint in self.ours:
                wanted = hint.target is not None and hint.target.lower() in [name.lower() for name in names]
                if hint.name == kind and (wanted if named else hint.target is None):
                    hint.used = True
                    options |= hint.options()
        return options

    def _check(self, hint: Hint) -> None:
        known = _KEYS[hint.name]
        for key, value in hint.given.items():
            if key not in known:
                raise self._wrong(f"Hint {hint.name} has no key {key!r}.", nearest(key, known, what="keys"), value.span)
            if key in _ONLY and value.text.lower().replace("-", "_") != _ONLY[key]:
                raise self._wrong(f"{key!r} is {value.text!r}.", f"The only value is {_ONLY[key]!r}.", value.span)
        missing = [key for key in _RETRY if key not in hint.given]
        if missing and len(missing) < len(_RETRY):
            raise self._wrong(
                f"Hint {hint.name} sets a retry without {missing[0]!r}.",
                "A retry on a miss needs 'retry-predicate'='lookup_miss', 'retry-strategy'='fixed_delay', "
                "'fixed-delay' and 'max-attempts'.",
                hint.span,
            )
        if hint.name == "LOOKUP" and hint.target is None:
            raise self._wrong("Hint LOOKUP has no 'table'.", "Add 'table'='…', the table's name or alias.", hint.span)

    def _wrong(self, fact: str, cure: str, span: Span) -> OptionError:
        return OptionError(fact, hint=cure, position=self._statement.position(span))


def table_options(statement: Statement, span: Span) -> Hint | None:
    """Return the OPTIONS hint of a table, or None."""
    start = statement.code.find("/*+", span.start, span.end)  # a name may stand for a query with hints of its own
    if start < 0:
        return None
    end = statement.code.index("*/", start)
    for hint in _hints(statement, Span(start + 3, end)):
        if hint.name == "OPTIONS":
            return Hint("OPTIONS", Span(start, end + 2), hint.given)
    raise OptionError(
        "A hint after a table can only be OPTIONS.",
        hint="Write LOOKUP(…) after SELECT.",
        position=statement.position(Span(start, end + 2)),
    )


def _hints(statement: Statement, span: Span) -> Iterator[Hint]:
    """Read ``NAME(…), NAME, …``."""
    found, start = list(tokens(statement[span])), span.start
    for number, token in enumerate(found):
        if token.kind == "word" and not token.depth:
            is_called = [one.text for one in found[number + 1 : number + 2]] == ["("]
            last = (closing_of(found, number + 1) or len(found) - 1) if is_called else number
            hint = Hint(token.text, Span(start + token.start, start + found[last].end))
            if token.text in (*_KEYS, "OPTIONS"):
                hint.given = dict(_pairs(statement, token.text, found[number + 2 : last], start))
            yield hint


def _pairs(statement: Statement, name: str, found: Sequence[Token], start: int) -> Iterator[tuple[str, Value]]:
    """Read ``'key' = 'value', …``."""
    for part in split_arguments(found) if found else []:
        first, last = (part or found)[0], (part or found)[-1]
        span = Span(start + first.start, start + last.end)
        if [token.kind for token in part] != ["string", "symbol", "string"] or part[1].text != "=":
            raise OptionError(
                f"Hint {name} cannot be read here.",
                hint=f"Write {name}('key' = 'value', …).",
                position=statement.position(span),
            )
        yield unquote(first.text), Value(unquote(last.text), span)
