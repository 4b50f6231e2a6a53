"""The report that the demo prints at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookupcache.demo.comparison import Comparison, print_comparisons
from lookupcache.hitrate.width import Width
from lookupcache.metrics import LookupMetrics
from lookupcache.plan import LookupPlan
from lookupcache.planner.explain import parts_of


@dataclass(frozen=True)
class JoinReport:
    """One join: its plan, its metrics, and the bytes of its keys with and without calc and constants."""

    title: str
    table: str
    plan: LookupPlan
    metrics: LookupMetrics
    keys: int
    width: Width


@dataclass(frozen=True)
class Outcome:
    """The result of the demo: what each join of the flights did, and the comparisons with Spark's own joins."""

    joins: Sequence[JoinReport]
    comparisons: Sequence[Comparison]

    @property
    def wrong(self) -> int:
        """The number of distinct rows that differ from Spark's own joins."""
        return sum(one.wrong for one in self.comparisons)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print the plan of each join of the flights, what these joins did, and the comparison with Spark's joins."""
    for join in outcome.joins:
        console.print()
        console.print(Text.assemble((join.table, "bold"), "  ", (join.title, "dim")))
        console.print(_plan_table(join.plan))
    console.print()
    console.print(_figures(outcome))
    console.print(Text(_NOTES, "dim"))
    console.print()
    print_comparisons(console, outcome.comparisons)


def _plan_table(plan: LookupPlan) -> Table:
    """Return what `explain` shows of the condition and the cached columns."""
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    parts = parts_of(plan)
    for name, text in (*parts["Condition"], parts["Lookup"][-1]):
        grid.add_row(Text(name, "cyan"), Text(text))
    return grid


_FIGURES: dict[str, Callable[[JoinReport], str]] = {
    "rows to look up": lambda join: f"{join.metrics.rows:,}",
    "different keys": lambda join: f"{join.keys:,}",
    "rows found in the cache": lambda join: f"{join.metrics.hits:,}",
    "  hit rate": lambda join: f"{join.metrics.hit_rate:.1%}",
    "keys requested": lambda join: f"{join.metrics.misses:,}",
    "  calls to the source": lambda join: f"{join.metrics.calls:,}",
    "  evicted later": lambda join: f"{_evictions(join):,}",
    "cached, all workers": lambda join: _format_bytes(join.metrics.cached_bytes),
    "  bytes saved (1)": lambda join: f"{1 - join.width.calc / max(join.width.whole, 1):.0%}",
}


def _evictions(join: JoinReport) -> int:
    """Return how many keys must be requested again; a key that only a worker's own cache has evicted is on the host."""
    return join.metrics.host_evictions if join.plan.config.scope != "worker" else join.metrics.evictions


def _figures(outcome: Outcome) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for join in outcome.joins:
        table.add_column(join.table, justify="right", no_wrap=True)
    for name, shown in _FIGURES.items():
        table.add_row(name, *(shown(join) for join in outcome.joins))
    return table


_NOTES = "  (1) by filtering rows and selecting columns before they are cached"


def _format_bytes(count: float) -> str:
    """Return a number of bytes as readable text.

    >>> _format_bytes(512), _format_bytes(2_400_000)
    ('512 B', '2.4 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
