"""Scripts with lookups: the statements between BEGIN and END, which are run in order.

Variables that a script declares are session variables while it runs. Statements that control what runs next, handlers
and nested scripts are refused: only Spark runs those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.schema import quote
from lookupcache.sql.query import Setting
from lookupcache.sql.statement_target import QUERIES
from lookupcache.sql.text import Statement

_CONTROL = {"IF", "CASE", "WHILE", "REPEAT", "LOOP", "FOR", "LEAVE", "ITERATE", "BEGIN", "OPEN", "FETCH", "CLOSE",
            "SIGNAL", "RESIGNAL", "GET", "RETURN"}  # fmt: skip
_NO_VARIABLES = {"HANDLER", "CONDITION", "CURSOR"}
_SCRIPTING = "spark.sql.scripting.enabled"


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


def is_script(setting: Setting, found: Sequence[Token]) -> bool:
    """Return whether a statement is a script that Spark would run."""
    ends = [found[0].text, found[-1].text] if found else []
    return ends == ["BEGIN", "END"] and setting.spark.conf.get(_SCRIPTING, None) != "false"


def steps_of(statement: Statement, found: Sequence[Token]) -> list[Step]:
    """Return the statements of a script; raises StatementError for one that controls what runs next."""
    start, cuts = statement.span.start, [found[0], *(token for token in found if token.text == ";"), found[-1]]
    if len(found) > 2 and found[-2].text != ";":
        raise _refuse(statement, found[-1], "A script needs a semicolon after each statement.", "Write …; END.")
    steps = []
    for before, after in pairwise(cuts):
        inside = [token for token in found if before.end <= token.start < after.start]
        if inside:
            part = statement.part(start + inside[0].start, start + inside[-1].end)
            steps.append(Step(part, list(tokens(part.sql))))
            _refuse_control(statement, inside)
            _refuse_qualifier(statement, inside)
            _refuse_late_declaration(statement, inside, steps[:-1])
    return steps


def _refuse_control(statement: Statement, found: Sequence[Token]) -> None:
    words = [token.text for token in found]
    what = words[0] if words[0] in _CONTROL else "a label" if words[1:2] == [":"] else ""
    if "BEGIN" in words[1:]:  # of a statement set, whose semicolons are not the script's
        what = "another BEGIN"
    if words[0] == "DECLARE":
        what = next((word for word in words if word in _NO_VARIABLES), "OR REPLACE" if "REPLACE" in words else "")
    if what:
        raise _refuse(
            statement, found[0], f"A script with lookups cannot contain {what}.",
            "Write the lookups in a temporary view before the script, and read the view in it; or run the statements "
            "one by one.",
        )  # fmt: skip


def _refuse_qualifier(statement: Statement, found: Sequence[Token]) -> None:
    """Raise StatementError for a declared name with a qualifier, which Spark refuses in a script."""
    if found[0].text == "DECLARE" and any(token.text == "." for token in _declaring(found)):
        raise _refuse(
            statement,
            found[0],
            "A variable of a script has no qualifier.",
            "Declare it by its name alone: DECLARE x ….",
        )


def _refuse_late_declaration(statement: Statement, found: Sequence[Token], before: Sequence[Step]) -> None:
    if found[0].text == "DECLARE" and any(step.first != "DECLARE" for step in before):
        raise _refuse(
            statement, found[0], "A script declares variables before its other statements.", "Move DECLARE to the top."
        )


def _refuse(statement: Statement, token: Token, fact: str, hint: str) -> StatementError:
    return StatementError(fact, hint=hint, position=statement.position(statement.span_within(token.start, token.end)))


@contextmanager
def variables(setting: Setting, steps: Sequence[Step]) -> Iterator[None]:
    """Declare the variables of a script; drop them at the end."""
    made: list[str] = []
    try:
        for step in steps:
            if step.first == "DECLARE":
                made += _declare(setting, step)
        yield
    finally:
        for name in made:
            with suppress(PySparkException):
                setting.spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS {quote(name)}")


def _declare(setting: Setting, step: Step) -> list[str]:
    names = list(_declared_names(step.found))
    try:
        setting.spark.sql(step.statement.sql)
    except AnalysisException as error:
        if error.getCondition() != "VARIABLE_ALREADY_EXISTS":
            raise
        raise StatementError(
            f"There is a variable {names[0]!r} already, of the session or of this script.",
            hint="Choose another name: in a script with lookups a variable must not hide one of the session.",
            position=step.statement.position(step.statement.span),
        ) from None
    return names


def _declared_names(found: Sequence[Token]) -> Iterator[str]:
    """Yield the names that a DECLARE declares."""
    return (token.name for token in _declaring(found) if token.text != ",")


def _declaring(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the names that a DECLARE declares, and what is between them."""
    words = [token for token in found[1:] if token.text not in ("VARIABLE", "VAR")]
    for number, token in enumerate(words):
        if number % 2 and token.text not in (",", "."):
            return
        yield token


def as_set_variable(step: Step) -> Step:
    """Return a SET of a script, which sets a variable, as one outside of scripts."""
    words = [token.text for token in step.found[:2]]
    if words[:1] != ["SET"] or words[1:] in (["VAR"], ["VARIABLE"]):
        return step
    changed = Statement.of(f"SET VAR {step.statement.sql[step.found[0].end :]}")
    return Step(changed, list(tokens(changed.sql)))


def finish(df: DataFrame, *, is_last: bool) -> DataFrame | None:
    """Run a query of a script; return the rows of the last one, which may read variables that are dropped then."""
    if not is_last:
        df.write.format("noop").mode("overwrite").save()
        return None
    return df.sparkSession.createDataFrame(df.collect(), df.schema)
