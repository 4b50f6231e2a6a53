"""Variables of a script: session variables while the block runs that declares them.

One that hides another of the script takes its name for that time, and the other gets it back with its value.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.errors import Position, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.planner.coercion import type_of_any_session
from lookupcache.schema import quote
from lookupcache.sql.script_tree import Block, Step, declaring
from lookupcache.sql.text import Statement

_EXISTS = "VARIABLE_ALREADY_EXISTS"


@dataclass
class Scope:
    """The variables of a block: those that it declared, and where the values are of those that they hide."""

    names: set[str] = field(default_factory=set)
    hidden: dict[str, str] = field(default_factory=dict)
    is_row: bool = False
    """Whether they are the columns of a FOR, which have a second name."""


@dataclass
class Variables:
    """The variables of a script that runs; ``scopes`` are those of its blocks, the innermost last."""

    spark: SparkSession
    execute: Callable[[Statement], DataFrame]
    resets: bool = False
    """Whether a statement sets a variable to DEFAULT, which one that was hidden has lost."""
    scopes: list[Scope] = field(default_factory=list)

    @contextmanager
    def scope(self, *, is_row: bool = False) -> Iterator[None]:
        """Open a scope; its variables are dropped at the end, and those that they hid are back."""
        self.scopes.append(Scope(is_row=is_row))
        try:
            yield
        finally:
            made = self.scopes.pop()
            for name in made.names:
                with suppress(PySparkException):
                    self.spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS {quote(name)}")
            for name, saved in made.hidden.items():
                self.spark.sql(f"DECLARE OR REPLACE VARIABLE {quote(name)} = system.session.{saved}")
                self.spark.sql(f"DROP TEMPORARY VARIABLE {saved}")

    def declare(self, step: Step) -> None:
        """Declare the variables of a DECLARE."""
        names = [token.name for token in declaring(step.found) if token.text != ","]
        self._declare(
            names, step.statement, step.statement.sql[step.found[0].end :], step.statement.position(step.statement.span)
        )

    def declare_row(self, variable: str, columns: T.StructType, query: Statement) -> None:
        """Declare the columns of a FOR, and the row, which has them as fields."""
        typed = [(field.name, field.dataType) for field in columns]
        typed += [(variable, columns)] if variable else []
        for name, type_ in typed:
            text = f" VARIABLE {quote(name)} {sql_type(type_)}"
            self._declare([name], Statement.of(f"DECLARE{text}"), text, query.position(query.span))

    def _declare(self, names: Sequence[str], statement: Statement, text: str, position: Position) -> None:
        """Declare variables by a statement, of which ``text`` is what stands behind DECLARE."""
        own = self.scopes[-1]
        hides = [name for name in names if self._is_around(name)]
        for name in names if hides else ():
            if name not in hides and self._exists(name):
                raise _refuse(name, position)
        if hides and self.resets:
            raise StatementError(
                f"Variable {hides[0]!r} hides another one, in a script with lookups that sets variables to DEFAULT.",
                hint="Choose another name.",
                position=position,
            )
        saved = {name.lower(): f"lookup_hidden_{uuid.uuid4().hex}" for name in hides}
        for name, other in saved.items():
            self.spark.sql(f"DECLARE VARIABLE {other} = system.session.{quote(name)}")
        try:
            self.execute(Statement.of(f"DECLARE OR REPLACE{text}") if hides else statement)
        except AnalysisException as error:
            if error.getCondition() != _EXISTS:
                raise
            raise _refuse(names[0], position) from None
        finally:
            own.hidden |= saved
        own.names |= {name.lower() for name in names}

    def _is_around(self, name: str) -> bool:
        """Return whether a block around the innermost one has a variable of a name, and that one has none."""
        *around, own = self.scopes
        return name.lower() not in own.names and any(name.lower() in one.names for one in around)

    def _exists(self, name: str) -> bool:
        with suppress(PySparkException):
            self.spark.sql(f"SELECT system.session.{quote(name)}")
            return True
        return False

    def refuse_hidden(self, block: Block) -> None:
        """Raise StatementError for a handler where variables hide others: there Spark reads the outermost one."""
        around = {name for scope in self.scopes for name in scope.names}
        steps = [node for node in block.body if isinstance(node, Step) and node.first == "DECLARE"]
        own = {token.name.lower() for step in steps for token in declaring(step.found)}
        hidden = sorted(own & around) or [name for scope in self.scopes for name in scope.hidden]
        if block.handlers and hidden:
            head = block.handlers[0].head
            raise StatementError(
                f"A handler cannot stand where variable {hidden[0]!r} hides another one, in a script with lookups.",
                hint="Choose another name for one of the two.",
                position=head.position(head.span),
            )

    def set_row(self, variable: str, rows: DataFrame, number: int) -> None:
        """Give the columns of a FOR the values of a row."""
        columns = [name for name in rows.columns if name != ROW_NUMBER]
        items = ", ".join(map(quote, columns))
        names = ", ".join(f"system.session.{quote(name)}" for name in columns)
        if variable:
            names += f", system.session.{quote(variable)}"
            items += f", struct({', '.join(map(quote, columns))})"
        self.spark.sql(
            f"SET VAR ({names}) = (SELECT {items} FROM {{lookup_rows}} WHERE {ROW_NUMBER} = {number})", lookup_rows=rows
        )

    def refuse_row(self, step: Step) -> None:
        """Raise StatementError for a SET of a column of a FOR: the row, which is a copy, would not change."""
        for token in _targets(step.found):
            owner = next((scope for scope in reversed(self.scopes) if token.name.lower() in scope.names), None)
            if owner is not None and owner.is_row:
                raise StatementError(
                    f"{token.name!r} is a column of FOR, which a script with lookups cannot set.",
                    hint="Set a variable that the script declares.",
                    position=step.statement.position(step.statement.span_within(token.start, token.end)),
                )


ROW_NUMBER = "lookup_row_number"
"""The column with the place of a row in the result of a FOR's query."""


def _refuse(name: str, position: Position) -> StatementError:
    return StatementError(
        f"There is a variable {name!r} already, of the session or of this block.",
        hint="Choose another name: in a script with lookups a variable must not hide one of the session.",
        position=position,
    )


def _targets(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the names that SET, or EXECUTE IMMEDIATE … INTO, sets, with their qualifiers."""
    words = [token.text for token in found]
    if words[:2] == ["EXECUTE", "IMMEDIATE"] and "INTO" in words:
        yield from (token for token in found[words.index("INTO") :] if token.kind in ("word", "quoted"))
    reads = words[:1] == ["SET"]
    for token in found[1:]:
        if reads and token.kind in ("word", "quoted"):
            yield token
        if token.text in ("=", ",") and not token.depth:
            reads = words[0] == "SET" and token.text == ","


def sql_type(type_: T.DataType) -> str:
    """Return a type as SQL, with the names in it quoted.

    >>> sql_type(T.ArrayType(T.StructType([T.StructField("a b", T.LongType())])))
    'ARRAY<STRUCT<`a b`: bigint>>'
    """
    if isinstance(type_, T.StructType):
        return f"STRUCT<{', '.join(f'{quote(field.name)}: {sql_type(field.dataType)}' for field in type_)}>"
    if isinstance(type_, T.ArrayType):
        return f"ARRAY<{sql_type(type_.elementType)}>"
    if isinstance(type_, T.MapType):
        return f"MAP<{sql_type(type_.keyType)}, {sql_type(type_.valueType)}>"
    return type_of_any_session(type_.simpleString())


def resets_variables(statement: Statement) -> bool:
    """Return whether a script sets a variable to DEFAULT."""
    return any((a.text, b.text) == ("=", "DEFAULT") for a, b in pairwise(tokens(statement.sql)))
