"""Variables in SQL text: ``${name}``, whose value Spark puts into a text before it parses it, and session variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lookupcache.errors import PlanError, SchemaError, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.planner.naming import session_variable
from lookupcache.planner.settings import SUBSTITUTE, Settings
from lookupcache.report import is_classic
from lookupcache.schema import quote

_VARIABLE = re.compile(r"\$\{(?:\w+?:)?\S+?\}", re.ASCII)
_PLAIN = re.compile(r"\$\{\w+\}", re.ASCII)


def with_variables(spark: SparkSession, settings: Settings, text: str) -> str:
    """Return a text with the values of its variables, which may be parts of names, as Spark itself finds them.

    Spark Connect does not show the values: it gets the text as it is. Raises PlanError there for one in a name.
    """
    if not _VARIABLE.search(text) or not settings.on(SUBSTITUTE):
        return text
    if not is_classic(spark):
        _refuse_unreadable(text)
        return text
    with _active(spark):
        found = _substituted(spark, text)
        again = _substituted(spark, found)
    if again != found:  # Spark parses a plan's texts again.
        raise PlanError(f"The values of the variables in {text!r} are a variable together.", hint="Write the value.")
    return found


@contextmanager
def naming_unset(text: str, value: Callable[[str], str]) -> Iterator[None]:
    """Say in errors which variables outside of literals have no value; ``value`` returns that of one."""
    try:
        yield
    except (PlanError, SchemaError, StatementError) as error:
        literals = [(one.start, one.end) for one in _tokens(text) if one.kind == "string"]
        found = [one for one in _VARIABLE.finditer(text) if not any(a < one.start() < b for a, b in literals)]
        empty = list(dict.fromkeys(one[0] for one in found if not value(one[0])))
        if not empty:
            raise
        fact = f"{error.fact.rstrip('.')}. {' and '.join(empty)} {'have' if empty[1:] else 'has'} no value."
        raise error.rewritten(fact, "Set it, with spark.conf.set, or write its value.", error.position) from None


def unset_in_join(spark: SparkSession, settings: Settings, *given: Any) -> AbstractContextManager[None]:
    """Return `naming_unset` for the texts among the arguments of a join."""
    every = (one for part in given for one in (part if isinstance(part, list | tuple) else [part]))
    text = "\n".join(one for one in every if isinstance(one, str))
    if not _VARIABLE.search(text) or not settings.on(SUBSTITUTE) or not is_classic(spark):
        return nullcontext()
    return naming_unset(text, partial(_value, spark))


@contextmanager
def naming_session_variables(spark: SparkSession) -> Iterator[None]:
    """Say in the error about a name that no column has that it is a session variable, where there is one."""
    try:
        yield
    except SchemaError as error:
        if error.unknown is None or not is_session_variable(spark, quote(error.unknown)):
            raise
        raise session_variable(error.unknown) from None


def is_session_variable(spark: SparkSession, path: str) -> bool:
    """Return whether Spark finds a session variable, or a field of one, by a name in SQL."""
    try:
        return bool(spark.sql(f"SELECT {path}").schema)
    except PySparkException:
        return False


def _value(spark: SparkSession, variable: str) -> str:
    with _active(spark):
        return _substituted(spark, variable)


def _substituted(spark: SparkSession, text: str) -> str:
    jvm: Any = spark._jvm
    try:
        return str(jvm.org.apache.spark.sql.internal.VariableSubstitution().substitute(text))
    except PySparkException as error:
        raise PlanError(
            f"Spark finds no value for a variable in {text!r}: {str(error).splitlines()[0]}",
            hint="Set it, with spark.conf.set, or write its value.",
        ) from None


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one, whose values Spark takes."""
    sessions: Any = spark._jvm.SparkSession  # type: ignore[union-attr]
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _refuse_unreadable(text: str) -> None:
    """Raise PlanError for a variable that no reader can take for a value, as one in a name; strings may have them."""
    variables = {found.span(): found[0] for found in _VARIABLE.finditer(text)}
    found = _tokens(text)
    for before, token, after in zip([None, *found], found, [*found[1:], None], strict=False):
        inside = any(token.start < end and start < token.end for start, end in variables)
        alone = _PLAIN.fullmatch(variables.get((token.start, token.end), ""))
        in_path = any(one is not None and one.text == "." for one in (before, after))
        if inside and token.kind != "string" and (not alone or in_path):
            raise PlanError(
                f"{text!r} has a variable in a name or with a dot, and Spark Connect does not show its value.",
                hint="Put it into the text in Python, as in f\"c.{spark.conf.get('name')}\".",
            )


def _tokens(text: str) -> list[Token]:
    """Return the tokens of a text at their places, with a name of the same length in place of each variable."""
    return list(tokens(_VARIABLE.sub(lambda one: "_" * len(one[0]), text)))
