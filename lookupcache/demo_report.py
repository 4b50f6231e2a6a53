"""What the demo prints when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookupcache.metrics import LookupMetrics
from lookupcache.plan import LookupPlan

PLACES = ("field key", "constant key", "pre-filter", "calc", "residual", "filter after")


@dataclass(frozen=True)
class Held:
    """What a cache holds: rows (a known miss weighs one) and bytes."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class JoinReport:
    """One join: its plan, its counts, and what its keys weigh with calc and constants applied, and without."""

    title: str
    table: str
    plan: LookupPlan
    metrics: LookupMetrics
    keys: int
    with_calc: Held
    without_calc: Held


@dataclass(frozen=True)
class Outcome:
    """The whole run; ``wrong`` is the number of distinct rows that Spark's own join has not as often."""

    joins: Sequence[JoinReport]
    rows: int
    seconds: float
    wrong: int
    stream: bool


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print what went where, what each join did, and the verdict."""
    for join in outcome.joins:
        console.print()
        console.print(Text(join.title, style="bold"))
        console.print(_where(join.plan))
    console.print()
    console.print(_counts(outcome.joins))
    console.print()
    console.print(_verdict(outcome))


def _where(plan: LookupPlan) -> Table:
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    for place in PLACES:
        found = [conjunct for conjunct in plan.conjuncts if conjunct.place == place]
        for number, conjunct in enumerate(found):
            grid.add_row(place if number == 0 else "", Text(conjunct.text), Text(f"by {conjunct.evaluator}", "dim"))
    grid.add_row("cached", Text(", ".join((*plan.key_columns, *plan.columns))), Text(plan.fingerprint[:8], "dim"))
    return grid


_ROWS: dict[str, Callable[[JoinReport], str]] = {
    "left rows": lambda join: f"{join.metrics.rows:,}",
    "distinct keys": lambda join: f"{join.keys:,}",
    "hits": lambda join: f"{join.metrics.hits:,}",
    "misses": lambda join: f"{join.metrics.misses:,}",
    "hit rate": lambda join: f"{join.metrics.hit_rate:.1%}",
    "calls to the source": lambda join: f"{join.metrics.calls:,}",
    "time in the source": lambda join: f"{join.metrics.source_seconds:.2f} s",
    "time in the join": lambda join: f"{join.metrics.lookup_seconds:.2f} s",
    "held by all workers": lambda join: _weight(Held(join.metrics.cached_rows, join.metrics.cached_bytes)),
    "evictions": lambda join: f"{join.metrics.evictions:,}",
    "all keys, after calc": lambda join: _weight(join.with_calc),
    "all keys, whole rows": lambda join: _weight(join.without_calc),
    "calc saves": lambda join: f"{1 - join.with_calc.bytes / max(join.without_calc.bytes, 1):.0%} of bytes",
}


def _counts(joins: Sequence[JoinReport]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for join in joins:
        table.add_column(join.table, justify="right", no_wrap=True)
    for name, shown in _ROWS.items():
        table.add_row(name, *(shown(join) for join in joins))
    return table


def _weight(held: Held) -> str:
    return f"{held.rows:,} rows, {_size(held.bytes)}"


def _size(count: float) -> str:
    """Return a number of bytes as a person reads it.

    >>> _size(512), _size(2_400_000)
    ('512 B', '2.4 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _verdict(outcome: Outcome) -> Text:
    did = f"{outcome.rows:,} rows in {outcome.seconds:.1f} s as a {'stream' if outcome.stream else 'batch'}"
    if outcome.wrong:
        return Text(f"✗ {did}, but {outcome.wrong:,} rows differ from Spark's own join.", style="bold red")
    return Text(f"✓ {did}: row for row the result of Spark's own join.", style="bold green")
