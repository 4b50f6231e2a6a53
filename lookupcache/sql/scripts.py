"""Runs scripts with lookups: the statements between BEGIN and END, in the order that IF, CASE and loops decide.

Variables that a block declares are session variables while it runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.schema import quote
from lookupcache.sql.dynamic import immediate_of, literal_value
from lookupcache.sql.query import Setting
from lookupcache.sql.script_tree import Block, Choice, Jump, Loop, Node, Step, declaring, parse_script
from lookupcache.sql.text import Statement

_SCRIPTING = "spark.sql.scripting.enabled"
_UNNAMED_TYPES = (T.NullType, T.ArrayType, T.MapType, T.StructType)
"""Types whose names cannot always be written in SQL."""


def is_script(setting: Setting, found: Sequence[Token]) -> bool:
    """Return whether a statement is a script that Spark would run."""
    words = [token.text for token in found]
    ends = words[:-1] if words[-1:] == [";"] else words
    return ends[:1] == ["BEGIN"] and ends[-1:] == ["END"] and setting.spark.conf.get(_SCRIPTING, None) != "false"


def immediate_texts(found: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each literal of a script that an EXECUTE IMMEDIATE in it may run."""
    if ("EXECUTE", "IMMEDIATE") in pairwise(token.text for token in found):
        yield from (list(tokens(literal_value(token.written))) for token in found if token.kind == "string")


def run_script(
    setting: Setting, statement: Statement, found: Sequence[Token], run: Callable[[Statement], DataFrame]
) -> DataFrame | None:
    """Run a script; return the rows of its last query, or None if it ran none.

    Args:
        setting: The session, its catalog and its settings.
        statement: The script.
        found: Its tokens.
        run: Runs one statement.
    """
    runner = _Runner(setting, run)
    runner.run(parse_script(statement, found))
    return runner.result


@dataclass
class _Runner:
    """Runs the nodes of a script; methods return the jump that ends what they run, if there is one."""

    setting: Setting
    execute: Callable[[Statement], DataFrame]
    result: DataFrame | None = None

    def run(self, node: Node) -> Jump | None:
        if isinstance(node, Jump):
            return node
        if isinstance(node, Block):
            return self.run_block(node)
        if isinstance(node, Choice):
            return self.run_choice(node)
        if isinstance(node, Loop):
            return self.run_loop(node)
        returns_rows = self.is_query(node)
        df = self.execute(as_set_variable(node).statement)
        if returns_rows:
            # They may depend on variables that are changed later. Python would lose which of two equal local times
            # a timestamp is, and has not all of Spark's types.
            self.result = df.localCheckpoint()
        return None

    def is_query(self, step: Step) -> bool:
        """Return whether a step returns rows that the script may return, also one that EXECUTE IMMEDIATE runs."""
        immediate = immediate_of(self.setting, step.statement, step.found)
        if immediate is None:
            return step.is_query
        inner = Statement.of(immediate.text)
        return not immediate.variables and Step(inner, list(tokens(inner.sql))).is_query

    def run_block(self, block: Block) -> Jump | None:
        declared = block.declarations
        with self.variables(declared):
            for node in block.body[len(declared) :]:
                jump = self.run(node)
                if jump is not None:
                    return None if jump.label == block.label and not jump.repeats else jump
        return None

    def run_choice(self, choice: Choice) -> Jump | None:
        block = self.chosen(choice)
        return None if block is None else self.run(block)

    def chosen(self, choice: Choice) -> Block | None:
        """Return what IF or CASE runs, if anything."""
        with self.case_value(choice.value) as value:
            for condition, block in choice.branches:
                if self.is_true(condition, value):
                    return block
        return choice.otherwise

    @contextmanager
    def case_value(self, value: Statement | None) -> Iterator[str]:
        """Compute the value of CASE value WHEN … once; return the SQL of it, an empty one where CASE has none."""
        if value is None:
            yield ""
            return
        text = f"({value.sql}\n)"
        type_ = self.execute(Statement.of(f"SELECT {text}")).schema[0].dataType
        if isinstance(type_, _UNNAMED_TYPES):
            yield text
            return
        name = f"lookup_case_{uuid.uuid4().hex}"  # scripts may run at the same time in one session
        self.setting.spark.sql(f"DECLARE VARIABLE {name} {type_.simpleString()}")
        try:
            self.execute(Statement.of(f"SET VAR {name} = {text}"))
            yield f"system.session.{name}"
        finally:
            self.setting.spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS {name}")

    def run_loop(self, loop: Loop) -> Jump | None:
        while loop.condition is None or self.is_true(loop.condition):
            jump = self.run(loop.body)
            if jump is not None and jump.label != loop.label:
                return jump
            if jump is not None and not jump.repeats:
                return None
            if loop.until is not None and self.is_true(loop.until):
                return None
        return None

    @contextmanager
    def variables(self, steps: Sequence[Step]) -> Iterator[None]:
        """Declare variables; drop them at the end."""
        made: list[str] = []
        try:
            for step in steps:
                made += self.declare(step)
            yield
        finally:
            for name in made:
                with suppress(PySparkException):
                    self.setting.spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS {quote(name)}")

    def declare(self, step: Step) -> list[str]:
        """Declare the variables of a DECLARE; return their names."""
        names = [token.name for token in declaring(step.found) if token.text != ","]
        try:
            self.execute(step.statement)
        except AnalysisException as error:
            if error.getCondition() != "VARIABLE_ALREADY_EXISTS":
                raise
            raise StatementError(
                f"There is a variable {names[0]!r} already, of the session or of this script.",
                hint="Choose another name: in a script with lookups a variable must not hide another one.",
                position=step.statement.position(step.statement.span),
            ) from None
        return names

    def is_true(self, condition: Statement, value: str = "") -> bool:
        """Return whether a condition is true, or equals a value; null is neither true nor equal."""
        text = f"({condition.sql}\n)"
        df = self.execute(Statement.of(f"SELECT ({value} = {text})" if value else f"SELECT {text}"))
        if not isinstance(df.schema[0].dataType, T.BooleanType):
            raise StatementError(
                f"A condition of a script is a {df.schema[0].dataType.simpleString()}, not a boolean.",
                hint="Compare it: IF x > 0 THEN ….",
                position=condition.position(condition.span),
            )
        return df.collect()[0][0] is True


def as_set_variable(step: Step) -> Step:
    """Return a SET of a script, which sets a variable, as one outside of scripts."""
    words = [token.text for token in step.found[:2]]
    if words[:1] != ["SET"] or words[1:] in (["VAR"], ["VARIABLE"]):
        return step
    changed = Statement.of(f"SET VAR {step.statement.sql[step.found[0].end :]}")
    return Step(changed, list(tokens(changed.sql)))
