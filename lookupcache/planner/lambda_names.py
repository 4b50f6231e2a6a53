"""Lambda variables named as the sides are in plans: ``l -> l > 1`` would hide the left columns, ``l.`id```.

Such a variable gets another name of one letter, so that all offsets in the text stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from string import ascii_lowercase

from lookupcache.errors import PlanError
from lookupcache.planner.argument_names import naming_arguments
from lookupcache.planner.clauses import Token, splice, tokens

SIDES = ("l", "r")
"""The qualifiers of columns in plans."""


def rename_variables(text: str, fold: Callable[[str], str]) -> str:
    """Return a text with other names for lambda variables that are named as a side; ``fold`` is the session's rule.

    Raises PlanError where Spark would name a field after such a variable, or no letter is left.

    >>> rename_variables("aggregate(l.xs, 0, (l, r) -> l + r.l + `r`)", str.lower)
    'aggregate(l.xs, 0, (a, b) -> a + b.l + `b`)'
    """
    if "->" not in text:
        return text
    found = list(tokens(text))
    used = {token.name.lower() for token in found if token.kind in ("word", "quoted")}
    free = (letter for letter in ascii_lowercase if letter not in used and letter not in SIDES)
    names: dict[str, str] = {}
    edits: dict[int, tuple[int, int, str]] = {}
    lambdas = list(lambdas_among(found))
    declared = {variable.start for variables, _ in lambdas for variable in variables}
    for variables, scope in lambdas:
        for name in dict.fromkeys(fold(variable.name) for variable in variables):
            if name not in SIDES:
                continue
            meant = [found[n] for n in scope if fold(found[n].name) == name and _is_name(found, n)]
            new = names[name] = names.get(name) or next(free, "")
            if not new or _names_fields(text, [one for one in meant if one.start not in declared]):
                raise PlanError(
                    f"{text!r} has a lambda variable {name!r}, which is reserved there.",
                    hint="Give it another name, such as x.",
                )
            for token in meant:
                quote = "`" if token.written[0] == "`" else ""
                edits[token.start] = token.start, token.end, f"{quote}{new}{quote}"
    return splice(text, sorted(edits.values()))


def lambdas_among(found: Sequence[Token]) -> Iterator[tuple[list[Token], range]]:
    """Yield the variables of each lambda, and where its tokens are."""
    for number, arrow in enumerate(found):
        if arrow.text != "->" or not number:
            continue
        start = number - 1
        if found[start].text == ")":
            start = next((n for n in range(start - 1, -1, -1) if found[n].depth == found[start].depth), start)
        end = next((n for n in range(number, len(found)) if _ends(found[n], arrow.depth)), len(found))
        variables = [token for token in found[start:number] if token.kind in ("word", "quoted")]
        yield variables, range(start, end)


def _ends(token: Token, depth: int) -> bool:
    return token.depth < depth or (token.depth == depth and token.text == ",")


def _is_name(found: Sequence[Token], number: int) -> bool:
    """Return whether a token is a name that may be that of a variable: no field, function, alias or argument."""
    before, after = (found[n].text if 0 <= n < len(found) else "" for n in (number - 1, number + 1))
    return found[number].kind in ("word", "quoted") and before not in (".", ":", "AS") and after not in ("(", "=>")


def _names_fields(text: str, meant: Sequence[Token]) -> bool:
    """Return whether Spark may name a field after one of the tokens: the last of an argument of a struct."""
    ends = {end for _, end in naming_arguments(text)}
    return any(token.end in ends for token in meant)
