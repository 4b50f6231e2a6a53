"""The text of a statement: spans, the code without comments, and edits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from lookupcache.errors import LookupCacheError, Position
from lookupcache.planner.clauses import Token, end_of_comment, splice, tokens
from lookupcache.sql.redaction import Span as Span
from lookupcache.sql.redaction import find_secrets, mask_piece
from lookupcache.sql.token_reader import TableName, is_relation

_VARIABLE = re.compile(r"\$\{\S+?\}")
_LINE_COMMENT = re.compile(r"--(?:\\\n|[^\r\n])*")
_NESTED_TYPE = re.compile(r"\b(?:ARRAY|MAP|STRUCT)\s*<", re.IGNORECASE)


@dataclass(frozen=True)
class Statement:
    """One statement in a text of one or more; offsets count from the start of the full text.

    ``statement[span]`` is code, with blanks in place of comments: no piece can comment out the next, in whatever order
    they are combined.

    >>> statement = Statement("EXPLAIN SELECT 1 -- one", Span(8, 23))
    >>> statement.position(Span(15, 16)).column, statement.sql.rstrip()
    (16, 'SELECT 1')
    """

    text: str
    span: Span

    @classmethod
    def of(cls, text: str) -> Statement:
        """Return a text as one statement."""
        return cls(text, Span(0, len(text)))

    def part(self, start: int, end: int | None = None) -> Statement:
        """Return a statement inside of this one."""
        span = Span(start, self.span.end if end is None else end)
        if span == self.span:
            return self
        part = self._with_hidden(Statement(self.text, span))
        part.__dict__["code"] = self.code  # the code of the full text, computed once
        return part

    def _with_hidden(self, other: Statement) -> Statement:
        """Return a statement in the same text, of which the same pieces are secret, once they are known."""
        if "hidden" in self.__dict__:
            other.__dict__["hidden"] = self.hidden
        return other

    def with_code(self, code: str) -> Statement:
        """Return the statement with other code of the same length, so that offsets stay valid."""
        changed = self._with_hidden(Statement(self.text, self.span))
        changed.__dict__["code"] = code
        return changed

    def with_masks(self, masks: Iterable[tuple[Span, str]]) -> Statement:
        """Return the statement with other text in place of some pieces, which only the parser sees."""
        changed = self.with_code(self.code)
        changed.__dict__["parser_input"] = put(self.parser_input, masks)
        return changed

    def rewritten(self, text: str) -> Statement:
        """Return a statement of another text, which begins at the same line and column."""
        return Statement(self._blank_start + text, Span(self.span.start, self.span.start + len(text)))

    @property
    def _blank_start(self) -> str:
        """The text before the statement, with blanks in place of all but its line breaks."""
        return "".join("\n" if letter == "\n" else " " for letter in self.text[: self.span.start])

    @cached_property
    def code(self) -> str:
        """The full text with comments replaced by blanks."""
        return blank_comments(self.text)

    @property
    def sql(self) -> str:
        """The statement's code."""
        return self.code[self.span.start : self.span.end]

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the statement's code."""
        return tuple(tokens(self.sql))

    def without_end(self) -> Statement:
        """Return the statement without semicolons at its end."""
        found = list(self.tokens)
        while found and found[-1].text == ";":
            end = found.pop().start
        return self if len(found) == len(self.tokens) else self.part(self.span.start, self.span.start + end)

    @property
    def written(self) -> str:
        """The statement as it was written, comments included."""
        return self.text[self.span.start : self.span.end]

    @cached_property
    def parser_input(self) -> str:
        """The input of the parser: the code with blanks before the statement, and with the letter x in literals.

        The parser only has to find structure and positions, and so cannot misread, or show, the value of a literal.
        """
        sql = _with_plain_variables(_without_unsigned_shifts(_with_plain_literals(self.sql, self.tokens)))
        return put(self._blank_start + sql, ((span, " FROM") for span in self.tables))

    @cached_property
    def tables(self) -> list[Span]:
        """The keyword of each ``TABLE t``, which is read as ``FROM t``."""
        return [Span(self.span.start + start, self.span.start + end) for start, end in _table_queries(self.tokens)]

    @cached_property
    def unnested(self) -> list[int]:
        """Where each ``UNNEST`` begins that follows a join or a comma of FROM without LATERAL."""
        return [self.span.start + start for start in _unnested(self.tokens)]

    def span_of(self, first: Token | TableName, last: Token | None = None) -> Span:
        """Return the span in the full text of a token or name, or of several tokens, from the first to the last."""
        return self.span_within(first.start, (last or first).end)

    def position_of(self, first: Token | TableName, last: Token | None = None) -> Position:
        """Return the position of a token or name of the statement, or of several tokens."""
        return self.position(self.span_of(first, last))

    def span_within(self, start: int, end: int) -> Span:
        """Return the span in the full text of offsets within the statement, as those of its tokens."""
        return Span(self.span.start + start, self.span.start + end)

    def __getitem__(self, span: Span) -> str:
        return self.code[span.start : span.end]

    @cached_property
    def hidden(self) -> list[Span]:
        """The pieces of the full text that must not be shown."""
        return find_secrets(self.text)

    def hides(self, span: Span) -> bool:
        """Return whether a span contains anything that must not be shown."""
        return any(start < span.end and end > span.start for start, end in self.hidden)

    def position(self, span: Span) -> Position:
        """Return the position of a span, of its first line if there are more, with secrets masked."""
        start = min(span.start, len(self.text))
        first = self.text.rfind("\n", 0, start) + 1
        end = self.text.find("\n", start)
        line = Span(first, len(self.text) if end < 0 else end)
        last = max(min(span.end, line.end), start + 1)
        before, through = self._shown_length(line, start, last=False), self._shown_length(line, last, last=True)
        return Position(
            line=self.text.count("\n", 0, start) + 1,
            column=start - first + 1,
            text=mask_piece(self.text, self.hidden, line),
            length=max(through - before, 1),
            shift=start - first - before,
        )

    @contextmanager
    def located(self, span: Span) -> Iterator[None]:
        """Give the errors of lookupcache that are raised within the position of a span, where they have none."""
        try:
            yield
        except LookupCacheError as error:
            raise error.at(self.position(span)) from None

    def _shown_length(self, line: Span, edge: int, *, last: bool) -> int:
        """Return the offset of an edge of a span in the masked line; inside of a mask it is the mask's end or start."""
        for start, end in self.hidden:
            if start < edge < end:
                edge = end if last else start
        cut = mask_piece(self.text, [piece for piece in self.hidden if piece.start < edge], Span(line.start, edge))
        return len(cut)


def blank_comments(text: str) -> str:
    """Return a text of the same length with comments replaced by blanks; hints are kept.

    Comments are those of Spark's lexer: they nest, a bare carriage return ends one, a backslash continues one.

    >>> blank_comments("a -- b" + chr(13) + "AND /* c /* d */ */ e")
    'a     \\rAND                 e'
    """
    pieces, done = [], 0
    for token in tokens(text):
        pieces += [_blank(text[done : token.start]), text[token.start : token.end]]
        done = token.end
    return "".join([*pieces, _blank(text[done:])])


def _blank(gap: str) -> str:
    """Return the text between two tokens without its comments."""
    if not gap.strip():
        return gap
    pieces, done = [], 0
    while done < len(gap):
        if gap.startswith("/*+", done):
            end = gap.find("*/", done)
            end = len(gap) if end < 0 else end + 2
            pieces.append(gap[done:end])
        else:
            end = _end_of_comment(gap, done)
            pieces.append("".join(letter if letter.isspace() else " " for letter in gap[done:end]))
        done = end
    return "".join(pieces)


def _end_of_comment(gap: str, start: int) -> int:
    """Return the end of the comment, or the blank, that begins at ``start``."""
    if (line := _LINE_COMMENT.match(gap, start)) is not None:
        return line.end()
    return (end_of_comment(gap, start) or len(gap)) if gap.startswith("/*", start) else start + 1


def _with_plain_variables(code: str) -> str:
    """Return code of the same length, with plain names in Spark's variables.

    >>> _with_plain_variables("a = ${spark.my.id}")
    'a = ${spark_my_id}'
    """
    return _VARIABLE.sub(lambda found: re.sub(r"\W", "_", found[0][2:-1]).join(("${", "}")), code)


def _without_unsigned_shifts(code: str) -> str:
    """Return code of the same length, with ``>>`` for ``>>>``, which the parser does not know."""
    return code if _NESTED_TYPE.search(code) else code.replace(">>>", ">> ")


_LOGIC = ("AND", "OR", "NOT")
_BEFORE_A_QUERY = {"UNION", "ALL", "DISTINCT", "EXCEPT", "INTERSECT", "MINUS", "BY", ")"}
_NO_CALL = _BEFORE_A_QUERY.union(("FROM", "JOIN", "LATERAL", "AS", "IN", "EXISTS", "SELECT", "WHERE", "ON"), _LOGIC)


def _table_queries(found: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield where the keyword of each query ``TABLE t`` stands; an argument of a function is no query."""
    for number, (token, after) in enumerate(pairwise(found)):
        if token.kind != "word" or token.text != "TABLE" or after.kind not in ("word", "quoted"):
            continue
        before = found[number - 1].text if number else ")"
        call = found[number - 2] if before == "(" and number > 1 else None
        is_call = call is not None and call.kind in ("word", "quoted") and call.text not in _NO_CALL
        if before in _BEFORE_A_QUERY or (before == "(" and not is_call):
            yield token.start, token.end


def _unnested(found: Sequence[Token]) -> Iterator[int]:
    """Yield the offset of each ``UNNEST (`` that is a relation without LATERAL, and may be lateral.

    >>> list(_unnested(list(tokens("FROM o CROSS JOIN UNNEST(a) JOIN LATERAL UNNEST(b) RIGHT JOIN UNNEST(c)"))))
    [18]
    """
    for number, (word, opening) in enumerate(pairwise(found)):
        if word.kind == "word" and word.text == "UNNEST" and opening.text == "(" and number:
            sides = {token.text for token in found[max(number - 3, 0) : number - 1]} & {"RIGHT", "FULL"}
            if found[number - 1].text in ("JOIN", ",") and not sides and is_relation(found[:number]):
                yield word.start


def _with_plain_literals(code: str, found: Iterable[Token]) -> str:
    """Return code of the same length, with each quoted literal replaced by letters a, which X'…' takes too."""

    strings = (one for one in found if one.kind == "string")
    return put(code, ((Span(one.start, one.end), f"'{'a' * (one.end - one.start - 2)}'") for one in strings))


def with_spark_time(sql: str) -> str:
    """Return an expression with Spark's function in place of Flink's ``PROCTIME()``.

    >>> with_spark_time("concat('proctime()', proctime ( ))")
    "concat('proctime()', current_timestamp())"
    """
    found = list(tokens(sql))
    calls = [
        (word.start, closing.end)
        for word, opening, closing in zip(found, found[1:], found[2:], strict=False)
        if (word.kind, word.text, opening.text, closing.text) == ("word", "PROCTIME", "(", ")")
    ]
    return edited(sql, ((Span(*call), "current_timestamp()") for call in calls))


class QuestionMarks(dict[str, Any]):
    """The values of question marks, each under a name: Spark, which gets pieces of the text, counts question marks.

    >>> text, values = QuestionMarks.named("a = ? AND b = '?'", [1])
    >>> text, values, values.as_written(text)
    ("a = :lookup_p0 AND b = '?'", {'lookup_p0': 1}, "a = ? AND b = '?'")
    """

    prefix = "lookup_p"

    @classmethod
    def named(cls, text: str, args: Sequence[Any]) -> tuple[str, QuestionMarks]:
        """Return a text with named parameters in place of its question marks, and their values."""
        made = cls()
        while made.prefix in text:
            made.prefix += "_"
        marks = (Span(token.start, token.end) for token in tokens(text) if token.kind == "symbol" and token.text == "?")
        named = edited(text, ((mark, f":{made.prefix}{number}") for number, mark in enumerate(marks)))
        made |= {f"{made.prefix}{number}": value for number, value in enumerate(args)}
        return named, made

    def as_written(self, text: str) -> str:
        """Return a text with question marks in place of their names."""
        return self._names.sub("?", text)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Give the errors of lookupcache that are raised within the text and positions with question marks."""
        try:
            yield
        except LookupCacheError as error:
            hint = None if error.hint is None else self.as_written(error.hint)
            position = None if error.position is None else self._position(error.position)
            raise error.rewritten(self.as_written(error.fact), hint, position) from error.__cause__

    def _position(self, position: Position) -> Position:
        start = position.column - 1 - position.shift
        before = self._offset(position.text, start, last=False)
        through = self._offset(position.text, start + position.length, last=True)
        column, text = position.column - (start - before), self.as_written(position.text)
        return replace(position, column=column, text=text, length=max(through - before, 1))

    def _offset(self, text: str, edge: int, *, last: bool) -> int:
        """Return the offset of an edge of a span, where question marks stand in place of their names."""
        moved = 0
        for name in self._names.finditer(text):
            moved += max(min(edge, name.end()) - name.start() - (last or edge >= name.end()), 0)
        return edge - moved

    @property
    def _names(self) -> re.Pattern[str]:
        return re.compile(rf":?\b{self.prefix}\d+\b")


def put(text: str, pieces: Iterable[tuple[Span, str]]) -> str:
    """Return a text of the same length, with other text, and blanks behind it, in place of some pieces.

    >>> put("FROM (SELECT 1) AS q", [(Span(5, 15), "_s0")])
    'FROM _s0        AS q'
    """
    return edited(text, ((span, new.ljust(span.end - span.start)) for span, new in pieces))


def edited(text: str, pieces: Iterable[tuple[Span, str]]) -> str:
    """Return a text with other text in place of some pieces."""
    return Edits(text, [Edit(*piece) for piece in pieces]).text(Span(0, len(text)))


class Edit(NamedTuple):
    """A piece of the text and its replacement."""

    span: Span
    new: str


def _order(edit: Edit) -> tuple[int, bool, int]:
    """Return the sort key of edits: an insertion comes before a replacement that starts at the same offset."""
    return edit.span.start, edit.span.end > edit.span.start, -edit.span.end


@dataclass
class Edits:
    """A text and the edits to it; of nested edits only the outermost is applied, of those of one span the last.

    >>> edits = Edits("SELECT o.id FROM orders AS o")
    >>> edits.replace(Span(7, 11), "id")
    >>> edits.text(Span(0, 28)), edits.original(Span(0, 28), 10)
    ('SELECT id FROM orders AS o', 12)
    """

    source: str
    made: list[Edit] = field(default_factory=list)

    def replace(self, span: Span, new: str) -> None:
        """Replace a span of the text."""
        self.made.append(Edit(span, new))

    def text(self, span: Span, more: Iterable[Edit] = ()) -> str:
        """Return a span of the text with all edits, and with ``more`` edits."""
        pieces = ((*edit.span, edit.new) for edit in self._outermost(span, more))
        return splice(self.source[: span.end], pieces, span.start)

    def original(self, span: Span, position: int) -> int:
        """Return the offset in the source for an offset in the edited text; in a replacement, of its start."""
        done = span.start
        for edit in self._outermost(span, ()):
            kept = edit.span.start - done
            if position < kept:
                break
            if position < kept + len(edit.new):
                return edit.span.start
            position -= kept + len(edit.new)
            done = edit.span.end
        return min(done + position, span.end)

    def replaced(self, span: Span, position: int) -> Span:
        """Return what an offset in the edited text stands for in the source: a letter, or the span of an edit.

        >>> edits = Edits("SELECT o.id FROM orders AS o")
        >>> edits.replace(Span(7, 11), "id")
        >>> tuple(edits.replaced(Span(0, 28), 8)), tuple(edits.replaced(Span(0, 28), 10))
        ((7, 11), (12, 13))
        """
        start = self.original(span, position)
        made = (edit.span for edit in self._outermost(span, ()) if edit.span.start == start < edit.span.end)
        return next(made, Span(start, start + 1))

    def _outermost(self, span: Span, more: Iterable[Edit]) -> Iterator[Edit]:
        done = span.start
        inside = [edit for edit in (*self.made, *more) if span.holds(edit.span)]
        last = {edit.span: edit for edit in inside}
        for edit in sorted(inside, key=_order):
            if edit.span.start < edit.span.end and last[edit.span] is not edit:
                continue
            if edit.span.start >= done:
                yield edit
                done = edit.span.end
