"""Scripts as trees: their statements, and IF, CASE, WHILE, REPEAT, LOOP and blocks that decide which of them run.

Cursors and CONTINUE handlers are refused: only Spark runs those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.statement_target import QUERIES
from lookupcache.sql.text import Statement

_REFUSED = {"OPEN", "FETCH", "CLOSE", "SIGNAL", "RESIGNAL", "GET", "RETURN"}
_LOOPS = {"WHILE", "REPEAT", "LOOP", "FOR"}
_LABELLED = {"BEGIN", *_LOOPS}
_BLOCKS = {"BEGIN", "IF", "CASE", *_LOOPS}


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
    """Statements in order, declarations of variables first; ``label`` is the name that LEAVE uses."""

    body: Sequence[Node]
    label: str = ""
    conditions: Sequence[Step] = ()
    handlers: Sequence[Handler] = ()


@dataclass(frozen=True)
class Handler:
    """What runs for an error of a block, which it then ends: the words of each condition, and its text up to there."""

    head: Statement
    conditions: Sequence[Sequence[Token]]
    body: Node


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
class For:
    """FOR variable AS query DO …: runs ``body`` for each row, whose columns are variables."""

    query: Statement
    variable: str
    body: Block
    label: str = ""


@dataclass(frozen=True)
class Jump:
    """LEAVE, or ITERATE if it ``repeats``: ends a block or a loop, or its current round."""

    label: str
    repeats: bool


Node = Step | Block | Choice | Loop | For | Jump


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
    names: list[str] = field(default_factory=list)
    """Variables of FOR around the position, which no label may have."""

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
        nodes = self.body("END", declares=True)
        self.take("END")
        return _block(nodes, label)

    def body(self, *ends: str, declares: bool = False) -> list[Node | Handler]:
        """Read statements, each with its semicolon, up to one of these words; only those of BEGIN have declarations."""
        nodes: list[Node | Handler] = []
        while self.word() not in ends:
            if not self.rest:
                raise self.refuse(self.found[-1], f"{ends[0]} is missing.", "Close each block that is begun.")
            if self.word() == ";":
                self.position += 1
                continue
            first = self.rest[0]
            nodes.append(self.handler() if self.is_handler() else self.node())
            if _is_declaration(nodes[-1]):
                self.check_declaration(nodes[-1], first, nodes[:-1], declares=declares)
            self.take(";")
        return nodes

    def node(self) -> Node:
        # In IF :p > 5, the colon begins a parameter.
        label = self.label() if self.word(1) == ":" and (self.word() not in _BLOCKS or self.word(2) in _BLOCKS) else ""
        first = self.rest[0]
        if first.text in _REFUSED and first.kind == "word":
            raise self.refuse_kind(first, first.text)
        if first.text not in _BLOCKS or first.kind != "word":
            return self.simple()
        self.labels.append((label, first.text in _LOOPS))
        node: Node = getattr(self, f"read_{first.text.lower()}")(label)
        self.labels.pop()
        if label and self.rest and self.rest[0].name.lower() == label:
            self.position += 1
        return node

    def label(self) -> str:
        """Read a label before a block or a loop; no two of those around each other have the same."""
        name, label = self.rest[0], self.rest[0].name.lower()
        if self.word(2) not in _LABELLED:
            raise self.refuse(name, "Only BEGIN, WHILE, REPEAT, LOOP and FOR have a label.", "Leave the label out.")
        if label in (*(known for known, _ in self.labels), *self.names):
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
            otherwise = _block(self.body("END"))
        self.take("END", "IF")
        return Choice(branches, otherwise)

    def branch(self, condition: Statement, *ends: str) -> tuple[Statement, Block]:
        self.take("THEN")
        return condition, _block(self.body(*ends))

    def read_case(self, _: str) -> Choice:
        self.take("CASE")
        value = None if self.word() == "WHEN" else self.until("WHEN")
        branches, otherwise = [], None
        while self.word() == "WHEN":
            self.position += 1
            branches.append(self.branch(self.until("THEN"), "WHEN", "ELSE", "END"))
        if self.word() == "ELSE":
            self.position += 1
            otherwise = _block(self.body("END"))
        self.take("END", "CASE")
        return Choice(branches, otherwise, value)

    def read_while(self, label: str) -> Loop:
        self.take("WHILE")
        condition = self.until("DO")
        self.take("DO")
        body = _block(self.body("END"))
        self.take("END", "WHILE")
        return Loop(body, label, condition)

    def read_repeat(self, label: str) -> Loop:
        self.take("REPEAT")
        body = _block(self.body("UNTIL"))
        self.take("UNTIL")
        until = self.until("END")
        self.take("END", "REPEAT")
        return Loop(body, label, until=until)

    def read_loop(self, label: str) -> Loop:
        self.take("LOOP")
        body = _block(self.body("END"))
        self.take("END", "LOOP")
        return Loop(body, label)

    def read_for(self, label: str) -> For:
        self.take("FOR")
        variable = self.rest[0].name if self.word(1) == "AS" and self.rest[0].kind in ("word", "quoted") else ""
        if variable and variable.lower() in (*(known for known, _ in self.labels), *self.names):
            raise self.refuse(self.rest[0], f"There is a label {variable!r} already.", "Choose another name.")
        self.position += 2 * bool(variable)
        query = self.until("DO")
        self.take("DO")
        self.names.append(variable.lower())
        body = _block(self.body("END"))
        self.names.pop()
        self.take("END", "FOR")
        return For(query, variable, body, label)

    # ── declarations ────────────────────────────────────────────────────────────────────────────────────────

    def is_handler(self) -> bool:
        """Return whether a handler is next."""
        return self.word() == "DECLARE" and self.word(1) in ("EXIT", "CONTINUE") and self.word(2) == "HANDLER"

    def handler(self) -> Handler:
        """Read a handler; LEAVE and ITERATE in it know no label outside of it."""
        begin = self.rest[0]
        if self.word(1) == "CONTINUE":
            raise self.refuse_kind(begin, "CONTINUE handlers")
        self.position += 3
        self.take("FOR")
        conditions = [self.condition()]
        while self.word() == ",":
            self.position += 1
            conditions.append(self.condition())
        head = self.statement.part(*self.statement.span_within(begin.start, conditions[-1][-1].end))
        outside, self.labels = self.labels, []
        body = self.block("") if self.word() == "BEGIN" else self.simple()
        self.labels = outside
        return Handler(head, conditions, body)

    def condition(self) -> list[Token]:
        """Read what a handler is for: SQLSTATE and its value, NOT FOUND, or a name."""
        if not self.rest:
            raise self.refuse(self.found[-1], "A handler is for a condition.", "Write FOR SQLEXCEPTION ….")
        start = self.position
        if self.word() == "SQLSTATE":
            self.position += 1 + (self.word(1) == "VALUE")
        elif self.word() == "NOT":
            self.position += 1
        while self.word(1) == ".":
            self.position += 2
        self.position += 1
        return list(self.found[start : self.position])

    def check_declaration(
        self, step: Node | Handler, first: Token, before: Sequence[Node | Handler], *, declares: bool
    ) -> None:
        """Raise StatementError for a declaration that is not at its place: variables and conditions, then handlers."""
        words = [] if isinstance(step, Handler) else [token.text for token in getattr(step, "found", ())]
        what = next((word for word in words if word == "CURSOR"), "OR REPLACE" if "REPLACE" in words[:3] else "")
        if what:
            raise self.refuse_kind(first, what)
        if isinstance(step, Step) and any(token.text == "." for token in declaring(step.found)):
            raise self.refuse(
                first, "A variable of a script has no qualifier.", "Declare it by its name alone: DECLARE x …."
            )
        late = not isinstance(step, Handler) and any(isinstance(node, Handler) for node in before)
        if not declares or late or not all(map(_is_declaration, before)):
            raise self.refuse(
                first,
                "A block declares variables before its other statements, and handlers behind them.",
                "Move DECLARE to the top of BEGIN … END.",
            )

    def refuse_kind(self, token: Token, what: str) -> StatementError:
        return self.refuse(
            token, f"A script with lookups cannot contain {what}.",
            "Write the lookups in a temporary view before the script, and read the view in it; or run the statements "
            "one by one.",
        )  # fmt: skip


def _is_declaration(node: Node | Handler) -> bool:
    return isinstance(node, Handler) or (isinstance(node, Step) and node.first == "DECLARE")


def is_condition(step: Step) -> bool:
    """Return whether a step declares a condition."""
    return [token.text for token in step.found[:1]] == ["DECLARE"] and "CONDITION" in [t.text for t in step.found[2:3]]


def _block(nodes: Sequence[Node | Handler], label: str = "") -> Block:
    """Return a block of what was read: its declarations apart from the rest."""
    conditions = [node for node in nodes if isinstance(node, Step) and is_condition(node)]
    handlers = [node for node in nodes if isinstance(node, Handler)]
    body = [node for node in nodes if not isinstance(node, Handler) and node not in conditions]
    return Block(body, label, conditions, handlers)


def declaring(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the names that a DECLARE declares, and what is between them."""
    words = [token for token in found[1:] if token.text not in ("VARIABLE", "VAR")]
    for number, token in enumerate(words):
        if number % 2 and token.text not in (",", "."):
            return
        yield token
