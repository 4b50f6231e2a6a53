"""Names that Spark takes from arguments: ``struct(c.v, o.n)`` has the fields v and n.

A plan, and the job that runs it, call columns by other names than the user does. So where Spark would take a column's
name, a plan writes the user's with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from lookupcache.planner.clauses import Token, closing_of, split_arguments, string_sql, tokens
from lookupcache.schema import quote

NAMING_FUNCTIONS = frozenset({"struct", "arrays_zip"})
"""Functions whose result has fields named after their arguments; ``(c.v, o.n)`` is a struct too."""

_NO_CALLS = ("AND", "OR", "NOT", "WHEN", "THEN", "ELSE", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "CASE", "IS", "FROM",
             "DIV", "REGEXP")  # fmt: skip
"""Words before a parenthesis that do not call a function."""
_NAMED = re.compile(
    r"named_struct\((?:'[^']*'|CAST\(X'[0-9A-F]*' AS STRING\)), ([lr]\.`(?:[^`]|``)+`)\)\.`(?:[^`]|``)+`"
)


def named_sql(sql: str, name: str) -> str:
    """Return an expression under a name that `struct` and `arrays_zip` take; Spark's optimizer removes the rest.

    >>> named_sql("r.`v`", "V")
    "named_struct('V', r.`v`).`V`"
    """
    return f"named_struct({string_sql(name)}, {sql}).{quote(name)}"


def unnamed_sql(sql: str) -> str:
    """Return a plan's SQL without the names that `named_sql` gave to columns, for those who read it.

    >>> unnamed_sql("struct(named_struct('V', r.`v`).`V`, 1)")
    'struct(r.`v`, 1)'
    """
    return _NAMED.sub(r"\1", sql)


def naming_arguments(text: str, *, by_parser: bool = False) -> Mapping[tuple[int, int], str | None]:
    """Return start and end of each argument that Spark names a field after, and the name; None for one without.

    ``by_parser`` leaves out the calls whose fields Spark names later: those of a function in backticks, by the types
    of its arguments and after it has spread stars.

    >>> text = "to_json(struct(c.v, (o.`n m`), 1)) = upper(c.w) AND (a, b.c) IN (d, e)"
    >>> {text[start:end]: name for (start, end), name in naming_arguments(text).items()}
    {'c.v': 'v', '(o.`n m`)': 'n m', 'o.`n m`': 'n m', '1': None, 'a': 'a', 'b.c': 'c'}
    """
    found = list(tokens(text))
    spans: dict[tuple[int, int], str | None] = {}
    for number, token in enumerate(found):
        if token.text == "(" and token.kind == "symbol":
            arguments = split_arguments(found[number + 1 : closing_of(found, number)])
            if _names_fields(found, number, len(arguments), by_parser):
                spans |= {span: name for one in arguments if one for span, name in _spans(one)}
    return spans


def _names_fields(found: Sequence[Token], bracket: int, arguments: int, by_parser: bool) -> bool:
    """Return whether brackets make a struct of their arguments, or an array of structs."""
    if not calls(found, bracket):
        return arguments > 1
    before = found[bracket - 1]
    return before.name.lower() in NAMING_FUNCTIONS and not (by_parser and before.kind == "quoted")


def calls(found: Sequence[Token], bracket: int) -> bool:
    """Return whether a bracket opens the arguments of a call, or the list of IN."""
    before = found[bracket - 1] if bracket else None
    return before is not None and before.kind in ("word", "quoted") and before.text not in _NO_CALLS


def _spans(argument: Sequence[Token]) -> Iterator[tuple[tuple[int, int], str | None]]:
    """Yield start and end of an argument, with and without brackets around it, and its name."""
    yield (argument[0].start, argument[-1].end), _name(argument)
    if argument[0].text == "(" and argument[-1].text == ")" and len(argument) > 2:
        yield from _spans(argument[1:-1])


def _name(argument: Sequence[Token]) -> str | None:
    """Return the name of a column, None for any other expression."""
    while argument[0].text == "(" and argument[-1].text == ")" and len(argument) > 2:
        argument = argument[1:-1]
    names, dots = argument[::2], argument[1::2]
    is_column = all(one.kind in ("word", "quoted") for one in names) and all(one.text == "." for one in dots)
    return argument[-1].name if is_column and len(names) > len(dots) else None
