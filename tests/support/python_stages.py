"""How many Python workers a task of a query keeps busy, by the plan that Spark shows: classic, Connect, streams."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LINE = re.compile(r"^(?P<marks>[\s:]*(?:[+:]- )?)(?:\*\(\d+\) |!)*(?P<name>==|\w+)")
_PYTHON = re.compile(r"Python|PySpark|InPandas|InArrow")
_OF_ITS_OWN = re.compile(r"\w*Exchange$|\w*Subquery|==$")


def python_stages(df: DataFrame) -> int:
    """Return how many Python operators the fullest stage of a query has: each has its own worker in every task.

    No job runs. Persisted parts count as if they were not computed yet.

    >>> python_stages(spark.range(3).mapInArrow(lambda batches: batches, "id BIGINT"))
    1
    """
    with redirect_stdout(io.StringIO()) as output:
        df.explain()
    return python_operators(output.getvalue())


def python_operators(plan: str) -> int:
    """Return the most Python operators of a stage in the text of a physical plan.

    >>> python_operators('''== Physical Plan ==
    ... MapInArrow f(id)
    ... +- *(2) HashAggregate(keys=[id])
    ...    +- Exchange hashpartitioning(id)
    ...       +- MapInArrow g(id)
    ...          +- ArrowEvalPython [h(id)]
    ...             +- *(1) Range (0, 3)''')
    2
    """
    root = _Operator("")
    above = [(-1, root)]
    for column, name in _lines(plan):
        while above[-1][0] >= column:
            above.pop()
        operator = _Operator(name)
        above[-1][1].inputs.append(operator)
        above.append((column, operator))
    return root.most()[1]


@dataclass(frozen=True)
class _Operator:
    """An operator of a plan, by its name, and what it reads."""

    name: str
    inputs: list[_Operator] = field(default_factory=list)

    def most(self) -> tuple[int, int]:
        """Return how many Python operators run together with what reads this one, and the most of any stage below."""
        counts = [one.most() for one in self.inputs]
        together = [here for here, _ in counts]
        # A task of a union reads one of its inputs only.
        here = max(together, default=0) if self.name == "Union" else sum(together)
        here += bool(_PYTHON.search(self.name))
        return 0 if _OF_ITS_OWN.match(self.name) else here, max([here, *(most for _, most in counts)])


def _lines(plan: str) -> Iterator[tuple[int, str]]:
    """Yield the column and the name of each operator; further lines of a text inside an expression have no mark."""
    first = False
    for line in plan.splitlines():
        found = _LINE.match(line)
        if found and (first or found["name"] == "==" or found["marks"].endswith("- ")):
            yield len(found["marks"]), found["name"]
        first = found is not None and found["name"] == "=="
