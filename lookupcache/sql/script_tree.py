"""Scripts as trees: their statements, and IF, CASE, WHILE, REPEAT, LOOP and blocks that decide which of them run.

Cursors, FOR, handlers and conditions are refused: only Spark runs those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.statement_target import QUERIES
from lookupcache.sql.text import Statement

_REFUSED = {"FOR", "OPEN", "FETCH", "CLOSE", "SIGNAL", "RESIGNAL", "GET", "RETURN"}
_NO_VARIABLES = {"HANDLER", "CONDITION", "CURSOR"}
_LABELLED = {"BEGIN", "WHILE", "REPEAT", "LOOP"}
_BLOCKS = {"BEGIN", "IF", "CASE", "WHILE", "REPEAT", "LOOP"}


@dataclass(frozen=True)
class Step:
    """A statement of a script: its text and tokens."""

    statement: Statement
    found: Sequence[Token]

    @property
    def first(self) -> str:
        """Its first word."""
        return self.found[0].text

    @property
    def is_query(self) -> bool:
        """Whether it returns rows that the script may return."""
        return self.first in (*QUERIES, "(")


@dataclass(frozen=True)
class Block:
    """Statements in order, with the variables that they declare; ``label`` is the name that LEAVE uses."""

    body: Sequence[Node]
    label: str = ""

    @property
    def declarations(self) -> list[Step]:
        """Its declarations, which stand first."""
        return [node for node in self.body if isinstance(node, Step) and node.first == "DECLARE"]


@dataclass(frozen=True)
class Choice:
    """IF or CASE: conditions with what runs for the first that is true; ``otherwise`` runs if none is.

    With a ``value``, as in CASE value WHEN …, a branch has what the value is compared with.
    """

    branches: Sequence[tuple[Statement, Block]]
    otherwise: Block | None = None
    value: Statement | None = None


@dataclass(frozen=True)
class Loop:
    """WHILE, REPEAT or LOOP: runs ``body`` while ``condition`` is true, and after REPEAT until ``until`` is."""

    body: Block
    label: str = ""
    condition: Statement | None = None
    until: Statement | None = None


@dataclass(frozen=True)
class Jump:
    """LEAVE, or ITERATE if it ``repeats``: ends a block or a loop, or its current round."""

    label: str
    repeats: bool


Node = Step | Block | Choice | Loop | Jump


def parse_script(statement: Statement, found: Sequence[Token]) -> Block:
    """Return a script as a tree; raises StatementError, with the position, for what cannot be run."""
    reader = _Reader(statement, list(_with_depths(found)))
    block = reader.block("")
    if reader.rest and [token.text for token in reader.rest] != [";"]:
        raise reader.refuse(reader.rest[0], "A script ends with END.", "Write one script at a time.")
    return block


def _with_depths(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens with their depth in parentheses and CASE; an END of a CASE is inside of it."""
    opened: list[str] = []
    before = ""
    for token in found:
        text = token.text if token.kind in ("word", "symbol") else ""
        inside = len(opened)
        if text in (")", "]") or (text == "END" and opened[-1:] == ["CASE"]):
            del opened[-1:]
        yield replace(token, depth=inside if text == "END" else len(opened))
        if text in ("(", "[") or (text == "CASE" and before != "END"):
            opened.append(text)
        before = text


@dataclass
class _Reader:
    """Reads a script from left to right."""

    statement: Statement
    found: Sequence[Token]
    position: int = 0
    labels: list[tuple[str, bool]] = field(default_factory=list)
    """Labels of the blocks around the position, and whether each is of a loop."""

    @property
    def rest(self) -> Sequence[Token]:
        return self.found[self.position :]

    def word(self, ahead: int = 0) -> str:
        """Return a word that follows; an empty string for anything else."""
        at = self.position + ahead
        return self.found[at].text if at < len(self.found) and self.found[at].kind in ("word", "symbol") else ""

    def take(self, *words: str) -> Token:
        """Read these words; raises StatementError if they are not next."""
        for word in words:
            if self.word() != word:
                token = self.found[min(self.position, len(self.found) - 1)]
                raise self.refuse(token, f"{word} is expected here.", "Write …; END, END IF, END WHILE ….")
            self.position += 1
        return self.found[self.position - 1]

    def refuse(self, token: Token, fact: str, hint: str) -> StatementError:
        span = self.statement.span_within(token.start, token.end)
        return StatementError(fact, hint=hint, position=self.statement.position(span))

    # ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────

    def block(self, label: str) -> Block:
        self.take("BEGIN")
        if (self.word(), self.word(1)) == ("NOT", "ATOMIC"):
            self.position += 2
        body = self.body("END")
        self.take("END")
        return Block(body, label)

    def body(self, *ends: str) -> list[Node]:
        """Read statements, each with its semicolon, up to one of these words."""
        nodes: list[Node] = []
        while self.word() not in ends:
            if not self.rest:
                raise self.refuse(self.found[-1], f"{ends[0]} is missing.", "Close each block that is begun.")
            if self.word() == ";":
                self.position += 1
                continue
            first = self.rest[0]
            nodes.append(self.node())
            if isinstance(nodes[-1], Step):
                self.check_declaration(nodes[-1], first, nodes[:-1])
            self.take(";")
        return nodes

    def node(self) -> Node:
        label = ""
        if self.word(1) == ":":
            label = self.label()
        first = self.rest[0]
        if first.text in _REFUSED and first.kind == "word":
            raise self.refuse_kind(first, first.text)
        if first.text not in _BLOCKS or first.kind != "word":
            return self.simple()
        self.labels.append((label, first.text in ("WHILE", "REPEAT", "LOOP")))
        node: Node = getattr(self, f"read_{first.text.lower()}")(label)
        self.labels.pop()
        if label and self.rest and self.rest[0].name.lower() == label:
            self.position += 1
        return node

    def label(self) -> str:
        """Read a label before a block or a loop; no two of those around each other have the same."""
        name, label = self.rest[0], self.rest[0].name.lower()
        if self.word(2) not in _LABELLED:
            raise self.refuse(name, "Only BEGIN, WHILE, REPEAT and LOOP have a label.", "Leave the label out.")
        if label in (known for known, _ in self.labels):
            raise self.refuse(name, f"There is a label {name.name!r} already.", "Choose another name.")
        self.position += 2
        return label

    def simple(self) -> Node:
        if self.word() in ("LEAVE", "ITERATE") and len(self.rest) > 1:
            return self.jump()
        begin = self.rest[0]
        statement = self.until(";")
        found = list(tokens(statement.sql))
        if [token.text for token in found][:4] == ["EXECUTE", "STATEMENT", "SET", "BEGIN"]:
            raise self.refuse_kind(begin, "another BEGIN")
        return Step(statement, found)

    def jump(self) -> Jump:
        verb, name = self.rest[0], self.rest[1]
        self.position += 2
        known = [loop for label, loop in self.labels if label == name.name.lower()]
        if not known or (verb.text == "ITERATE" and not known[-1]):
            raise self.refuse(
                name, f"There is no block {name.name!r} here to {verb.text}.", "Write the label before it."
            )
        return Jump(name.name.lower(), verb.text == "ITERATE")

    def until(self, *ends: str) -> Statement:
        """Read up to one of these words outside of parentheses and of CASE … END; return what was read."""
        begin = self.rest[0] if self.rest else self.found[-1]
        while self.rest and not (self.word() in ends and (self.word() == ";" or self.rest[0].depth == begin.depth)):
            self.position += 1
        if not self.rest or self.rest[0] is begin:
            last = self.rest[0] if self.rest else self.found[-1]
            raise self.refuse(last, "A script needs a semicolon after each statement.", "Write …; END.")
        span = self.statement.span_within(begin.start, self.found[self.position - 1].end)
        return self.statement.part(*span)

    # ── what controls the order; each method reads one kind ───────────────────────────────────────────────────────

    def read_begin(self, label: str) -> Block:
        return self.block(label)

    def read_if(self, _: str) -> Choice:
        branches, otherwise = [], None
        while self.word() in ("IF", "ELSEIF"):
            self.position += 1
            branches.append(self.branch(self.until("THEN"), "ELSEIF", "ELSE", "END"))
        if self.word() == "ELSE":
            self.position += 1
            otherwise = Block(self.body("END"))
        self.take("END", "IF")
        return Choice(branches, otherwise)

    def branch(self, condition: Statement, *ends: str) -> tuple[Statement, Block]:
        self.take("THEN")
        return condition, Block(self.body(*ends))

    def read_case(self, _: str) -> Choice:
        self.take("CASE")
        value = None if self.word() == "WHEN" else self.until("WHEN")
        branches, otherwise = [], None
        while self.word() == "WHEN":
            self.position += 1
            branches.append(self.branch(self.until("THEN"), "WHEN", "ELSE", "END"))
        if self.word() == "ELSE":
            self.position += 1
            otherwise = Block(self.body("END"))
        self.take("END", "CASE")
        return Choice(branches, otherwise, value)

    def read_while(self, label: str) -> Loop:
        self.take("WHILE")
        condition = self.until("DO")
        self.take("DO")
        body = Block(self.body("END"))
        self.take("END", "WHILE")
        return Loop(body, label, condition)

    def read_repeat(self, label: str) -> Loop:
        self.take("REPEAT")
        body = Block(self.body("UNTIL"))
        self.take("UNTIL")
        until = self.until("END")
        self.take("END", "REPEAT")
        return Loop(body, label, until=until)

    def read_loop(self, label: str) -> Loop:
        self.take("LOOP")
        body = Block(self.body("END"))
        self.take("END", "LOOP")
        return Loop(body, label)

    # ── declarations ────────────────────────────────────────────────────────────────────────────────────────

    def check_declaration(self, step: Step, first: Token, before: Sequence[Node]) -> None:
        """Raise StatementError for a declaration that is not that of variables at the start of a block."""
        if step.first != "DECLARE":
            return
        words = [token.text for token in step.found]
        what = next((word for word in words if word in _NO_VARIABLES), "OR REPLACE" if "REPLACE" in words else "")
        if what:
            raise self.refuse_kind(first, what)
        if any(token.text == "." for token in declaring(step.found)):
            raise self.refuse(
                first, "A variable of a script has no qualifier.", "Declare it by its name alone: DECLARE x …."
            )
        if not all(isinstance(node, Step) and node.first == "DECLARE" for node in before):
            raise self.refuse(
                first, "A script declares variables before its other statements.", "Move DECLARE to the top."
            )

    def refuse_kind(self, token: Token, what: str) -> StatementError:
        return self.refuse(
            token, f"A script with lookups cannot contain {what}.",
            "Write the lookups in a temporary view before the script, and read the view in it; or run the statements "
            "one by one.",
        )  # fmt: skip


def declaring(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the names that a DECLARE declares, and what is between them."""
    words = [token for token in found[1:] if token.text not in ("VARIABLE", "VAR")]
    for number, token in enumerate(words):
        if number % 2 and token.text not in (",", "."):
            return
        yield token
