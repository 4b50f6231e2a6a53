"""Runs scripts with lookups: the statements between BEGIN and END, as IF, CASE, loops and handlers decide."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as T  # noqa: N812

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.dynamic import immediate_of, literal_value
from lookupcache.sql.query import Setting
from lookupcache.sql.script_handlers import check_handlers, handler_of
from lookupcache.sql.script_tree import Block, Choice, For, Jump, Loop, Node, Step, parse_script
from lookupcache.sql.script_variables import ROW_NUMBER, Variables, resets_variables, sql_type
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
    runner = _Runner(setting, run, Variables(setting.spark, run, resets=resets_variables(statement)))
    runner.run(parse_script(statement, found))
    return runner.result


@dataclass
class _Runner:
    """Runs the nodes of a script; methods return the jump that ends what they run, if there is one."""

    setting: Setting
    execute: Callable[[Statement], DataFrame]
    variables: Variables
    result: DataFrame | None = None
    conditions: list[Sequence[Step]] = field(default_factory=list)
    """Those that the blocks around the position declare."""

    def run(self, node: Node) -> Jump | None:
        if isinstance(node, Jump):
            return node
        if isinstance(node, Block):
            return self.run_block(node)
        if isinstance(node, Choice):
            return self.run_choice(node)
        if isinstance(node, Loop):
            return self.run_loop(node)
        if isinstance(node, For):
            return self.run_for(node)
        if node.first == "DECLARE":
            self.variables.declare(node)
            return None
        self.variables.refuse_row(node)
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
        self.variables.refuse_hidden(block)
        self.conditions.append(block.conditions)
        try:
            check_handlers(self.setting.spark, block, [step for steps in self.conditions for step in steps])
            with self.variables.scope():
                return self.run_handled(block)
        finally:
            self.conditions.pop()

    def run_handled(self, block: Block) -> Jump | None:
        try:
            for node in block.body:
                jump = self.run(node)
                if jump is not None:
                    return None if jump.label == block.label and not jump.repeats else jump
            return None
        except Exception as error:
            handler = handler_of(block, error)
            if handler is None:
                raise
        return self.run(handler.body)

    def run_for(self, node: For) -> Jump | None:
        """Run the body for each row of the query, which is run once."""
        rows = self.execute(node.query)
        columns = rows.schema
        if node.variable.lower() in (name.lower() for name in columns.names):
            raise StatementError(
                f"FOR {node.variable} has the name of a column of its query, which a script with lookups cannot have.",
                hint="Choose another name.",
                position=node.query.position(node.query.span),
            )
        # In the order in which collect() would return them.
        rows = rows.localCheckpoint().withColumn(ROW_NUMBER, F.monotonically_increasing_id())
        numbers = sorted(row[0] for row in rows.select(ROW_NUMBER).collect())
        with self.variables.scope(is_row=True):
            if numbers:
                self.variables.declare_row(node.variable, columns, node.query)
            for number in numbers:
                self.variables.set_row(node.variable, rows, number)
                jump = self.run(node.body)
                if jump is not None and jump.label != node.label:
                    return jump
                if jump is not None and not jump.repeats:
                    return None
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
        self.setting.spark.sql(f"DECLARE VARIABLE {name} {sql_type(type_)}")
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
