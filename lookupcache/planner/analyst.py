"""What the planner asks Spark, as a contract that the join fulfils."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Analyst(Protocol):
    """Answers that only Spark can give."""

    def types(self, expressions: Sequence[str]) -> list[str]:
        """Return Spark's names of the types of expressions over the left side, spelled as in a plan."""
        ...

    def names(self, expressions: Sequence[str]) -> list[str]:
        """Return what Spark calls expressions over both sides that have no name, one for each.

        Left columns stand there after ``l``, and those of the table after ``r``.
        """
        ...

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Return the values of expressions without columns."""
        ...
