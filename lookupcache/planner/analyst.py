"""The interface through which the planner uses Spark's analyzer; the join implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Analyst(Protocol):
    """Facts that only Spark knows."""

    def types(self, expressions: Sequence[str]) -> list[str]:
        """Return Spark's type names of expressions over the left side, written as in a plan."""

    def names(self, expressions: Sequence[str]) -> list[list[str]]:
        """Return the names that Spark gives to the columns of each expression over both sides without an alias.

        Left columns are qualified with ``l``, those of the table with ``r``.
        """

    def star(self, qualifier: str) -> list[str] | None:
        """Return the left columns that ``qualifier.*`` stands for; None where Spark does not know the qualifier."""

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Return the values of expressions without columns."""
