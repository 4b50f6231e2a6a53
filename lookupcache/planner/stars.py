"""The stars in an expression: ``*``, ``c.*`` and ``c.* EXCEPT (a, b)``, alone or as an argument of a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lookupcache.planner.clauses import Token, tokens


@dataclass(frozen=True)
class ColumnStar:
    """A star: the names before it, those that EXCEPT leaves out, each by its parts, and its position in the text."""

    qualifier: tuple[str, ...]
    without: tuple[tuple[str, ...], ...]
    start: int
    end: int


def column_stars(text: str) -> list[ColumnStar]:
    """Return the stars that stand for columns; those of a product and of ``count(*)`` are not.

    >>> [(star.qualifier, star.without) for star in column_stars("struct(a * 2, o.n.*, * EXCEPT (b, c.d)), count(*)")]
    [(('o', 'n'), ()), ((), (('b',), ('c', 'd')))]
    """
    found = list(tokens(text))
    return [_star(found, number) for number, token in enumerate(found) if token.text == "*" and _is_star(found, number)]


def _is_star(found: Sequence[Token], number: int) -> bool:
    """Return whether a star stands where an operand does; ``count(*)`` counts rows."""
    before = found[number - 1].text if number else ""
    after = found[number + 1].text if number + 1 < len(found) else ""
    counts = before == "(" and after == ")" and number > 1 and found[number - 2].text.upper() == "COUNT"
    return not counts and before in ("", "(", ",", ".") and after in ("", ")", ",", "EXCEPT")


def _star(found: Sequence[Token], number: int) -> ColumnStar:
    first = number
    while first > 1 and found[first - 1].text == ".":
        first -= 2
    names = tuple(token.name for token in found[first:number:2])
    inside = list(_in_brackets(found, number + 2)) if _has_except(found, number) else []
    last = number + (len(inside) + 3 if inside else 0)
    return ColumnStar(names, tuple(_paths(inside)), found[first].start, found[min(last, len(found) - 1)].end)


def _has_except(found: Sequence[Token], number: int) -> bool:
    return [token.text for token in found[number + 1 : number + 3]] == ["EXCEPT", "("]


def _in_brackets(found: Sequence[Token], bracket: int) -> Iterator[Token]:
    """Yield the tokens in brackets."""
    for token in found[bracket + 1 :]:
        if token.text == ")":
            return
        yield token


def _paths(found: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    """Yield the parts of each name of a list."""
    path: list[str] = []
    for token in found:
        if token.text == ",":
            yield tuple(path)
            path = []
        elif token.text != ".":
            path.append(token.name)
    if path:
        yield tuple(path)
