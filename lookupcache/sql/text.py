"""A statement's text: places in it, and pieces of it replaced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from lookupcache.errors import Place
from lookupcache.sql.hiding import Piece, hidden_pieces, masked


class Span(NamedTuple):
    """From a letter to before another."""

    start: int
    end: int

    def holds(self, other: Span) -> bool:
        """Return whether the other lies inside."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Statement:
    """One statement among others in a text; positions count from the start of the whole text.

    >>> statement = Statement("EXPLAIN SELECT 1", Span(8, 16))
    >>> statement.place(Span(15, 16)).column
    16
    """

    text: str
    span: Span

    @classmethod
    def of(cls, text: str) -> Statement:
        """Return a text that is one statement."""
        return cls(text, Span(0, len(text)))

    def part(self, start: int, end: int | None = None) -> Statement:
        """Return a statement inside of this one."""
        return Statement(self.text, Span(start, self.span.end if end is None else end))

    @property
    def sql(self) -> str:
        """The statement itself."""
        return self.text[self.span.start : self.span.end]

    @cached_property
    def read(self) -> str:
        """The statement with what stands before it made blank, so that a reader finds places in the whole text."""
        before = "".join("\n" if letter == "\n" else " " for letter in self.text[: self.span.start])
        return before + self.sql

    def __getitem__(self, span: Span) -> str:
        return self.text[span.start : span.end]

    @cached_property
    def hidden(self) -> list[Piece]:
        """The pieces of the whole text that must not be shown."""
        return hidden_pieces(self.text)

    def hides(self, span: Span) -> bool:
        """Return whether a piece has something in it that must not be shown."""
        return any(start < span.end and end > span.start for start, end in self.hidden)

    def place(self, span: Span) -> Place:
        """Return where a piece stands, of several lines the first, with stars for what must not be shown."""
        start = min(span.start, len(self.text))
        first = self.text.rfind("\n", 0, start) + 1
        end = self.text.find("\n", start)
        line = Piece(first, len(self.text) if end < 0 else end)
        last = max(min(span.end, line.end), start + 1)
        before, through = self._shown(line, start, last=False), self._shown(line, last, last=True)
        return Place(
            line=self.text.count("\n", 0, start) + 1,
            column=start - first + 1,
            text=masked(self.text, self.hidden, line),
            length=max(through - before, 1),
            shift=start - first - before,
        )

    def _shown(self, line: Piece, edge: int, *, last: bool) -> int:
        """Return how far into the shown line an edge of a piece is; inside of stars it is at their end or start."""
        for start, end in self.hidden:
            if start < edge < end:
                edge = end if last else start
        cut = masked(self.text, [piece for piece in self.hidden if piece.start < edge], Piece(line.start, edge))
        return len(cut)


class Edit(NamedTuple):
    """A piece of the text and what takes its place."""

    span: Span
    new: str


@dataclass
class Edits:
    """A text and the edits to it; of edits inside each other the outermost counts.

    >>> edits = Edits("SELECT o.id FROM orders AS o")
    >>> edits.replace(Span(7, 11), "id")
    >>> edits.text(Span(0, 28))
    'SELECT id FROM orders AS o'
    """

    source: str
    made: list[Edit] = field(default_factory=list)

    def replace(self, span: Span, new: str) -> None:
        """Replace a piece, for good."""
        self.made.append(Edit(span, new))

    def text(self, span: Span, more: Iterable[Edit] = ()) -> str:
        """Return a piece as edited so far, and with ``more`` edits."""
        inside = [edit for edit in (*self.made, *more) if span.holds(edit.span)]
        pieces, done = [], span.start
        for edit in sorted(inside, key=lambda edit: (edit.span.start, -edit.span.end)):
            if edit.span.start < done:
                continue
            pieces += [self.source[done : edit.span.start], edit.new]
            done = edit.span.end
        return "".join([*pieces, self.source[done : span.end]])
