"""Handlers of a script, DECLARE EXIT HANDLER FOR …: which of them an error has, by Spark's rules.

A handler takes what Spark refuses, and errors of a statement that runs; not what only a lookup refuses, since the
script would go on as Spark's own would not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lookupcache.errors import LookupCacheError, StatementError
from lookupcache.planner.clauses import Token
from lookupcache.sql.dynamic import literal_value
from lookupcache.sql.script_tree import Block, Handler, Step
from lookupcache.sql.text import Statement

_INTERNAL, _NOT_FOUND = "XX", "02"
"""How the SQLSTATE begins of an error in Spark itself, and of one for which NOT FOUND stands."""


@dataclass(frozen=True)
class _Failure:
    """What handlers are chosen by."""

    condition: str
    state: str


def handler_of(block: Block, error: Exception) -> Handler | None:
    """Return the handler of a block that an error has: by its condition, else its SQLSTATE, else SQLEXCEPTION."""
    refusal = error.refusal if isinstance(error, LookupCacheError) else error
    # What fails while Spark runs a SET is the JVM's error itself, which PySpark does not convert.
    source = refusal if isinstance(refusal, PySparkException) else getattr(refusal, "java_exception", None)
    if source is None or not hasattr(source, "getCondition"):
        return None
    failure = _Failure(str(source.getCondition() or "").upper(), str(source.getSqlState() or ""))
    if failure.state.startswith(_INTERNAL):
        return None
    wanted = [failure.condition, failure.condition.split(".")[0], f"SQLSTATE {failure.state}"]
    wanted.append("NOT FOUND" if failure.state.startswith(_NOT_FOUND) else "SQLEXCEPTION")
    own = [(name, handler) for handler in block.handlers for name in _names(handler.conditions)]
    return next((handler for name in wanted for known, handler in own if name and known == name), None)


def _names(conditions: Sequence[Sequence[Token]]) -> list[str]:
    """Return what a handler is for: a condition's name, SQLEXCEPTION, NOT FOUND, or SQLSTATE with its value."""
    found = []
    for words in conditions:
        if words[0].text == "SQLSTATE":
            found.append(f"SQLSTATE {literal_value(words[-1].written).upper()}")
        elif [word.text for word in words] == ["NOT", "FOUND"]:
            found.append("NOT FOUND")
        else:
            found.append(".".join(word.name for word in words if word.text != ".").upper())
    return found


def check_handlers(spark: SparkSession, block: Block, conditions: Sequence[Step]) -> None:
    """Let Spark check the handlers and conditions of a block; raises StatementError with its reason.

    Args:
        spark: The session.
        block: The block.
        conditions: The declarations of conditions in it and around it.
    """
    if not block.handlers and not conditions:
        return
    # A name that is declared again hides the one of the block around, so each has a block.
    heads = "".join(f"BEGIN {one.statement.sql}; " for one in conditions)
    handlers = "".join(f"{one.head.sql} BEGIN END; " for one in block.handlers)
    text = f"BEGIN {heads}BEGIN {handlers}END; {'END; ' * len(conditions)}END"
    try:
        spark.sql(text)
    except Exception as error:  # Spark's errors about scripts are no PySparkException
        found = re.search(r"\[[A-Z_.]+\] [^\n]*", str(error))
        if found is None:
            raise
        where: Statement = block.handlers[0].head if block.handlers else conditions[-1].statement
        raise StatementError(
            re.sub(r"\s*SQLSTATE: \w+$", "", found[0].strip()), position=where.position(where.span)
        ) from None
