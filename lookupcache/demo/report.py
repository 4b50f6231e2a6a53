"""What the demo prints when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookupcache.metrics import LookupMetrics
from lookupcache.plan import LookupPlan, Place

PLACES: tuple[Place, ...] = ("field key", "constant key", "calc", "residual")


@dataclass(frozen=True)
class Held:
    """What a cache holds: rows, and bytes, those of keys and index and known misses counted."""

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
        console.print(Text.assemble((join.table, "bold"), "  ", (join.title, "dim")))
        console.print(_where(join.plan))
    console.print()
    console.print(_counts(outcome.joins))
    console.print()
    console.print(_verdict(outcome))


def _where(plan: LookupPlan) -> Table:
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    for place in PLACES:
        grid.add_row(f"{place}s" if place.endswith("key") else place, _conjuncts(plan, place))
    columns = Text(", ".join((*plan.key_columns, *plan.columns)))
    grid.add_row("cached columns", columns.append(f"  (cache\u00a0{plan.fingerprint[:8]})", "dim"))
    return grid


def _conjuncts(plan: LookupPlan, place: Place) -> Text:
    """Return the conjuncts that went to this place; for a filter, who evaluates it."""
    shown = Text()
    for conjunct in plan.conjuncts:
        if conjunct.place == place:
            shown.append(", " if shown else "").append(conjunct.text)
            shown.append("" if place.endswith("key") else f"  (by the {conjunct.evaluator})", "dim")
    return shown or Text("–", "dim")


_ROWS: dict[str, Callable[[JoinReport], str]] = {
    "left rows": lambda join: f"{join.metrics.rows:,}",
    "distinct keys": lambda join: f"{join.keys:,}",
    "hits": lambda join: f"{join.metrics.hits:,}",
    "misses": lambda join: f"{join.metrics.misses:,}",
    "hit rate": lambda join: f"{join.metrics.hit_rate:.1%}",
    "evictions": lambda join: f"{join.metrics.evictions:,}",
    "calls to the source": lambda join: f"{join.metrics.calls:,}",
    "time in the source": lambda join: f"{join.metrics.source_seconds:.2f} s",
    "time in the join, all": lambda join: f"{join.metrics.lookup_seconds:.2f} s",
    "rows, all caches": lambda join: f"{join.metrics.cached_rows:,}",
    "bytes, all caches": lambda join: _size(join.metrics.cached_bytes),
}
_HELD: dict[str, Callable[[JoinReport], str]] = {
    "rows, after calc": lambda join: f"{join.with_calc.rows:,}",
    "rows, without calc": lambda join: f"{join.without_calc.rows:,}",
    "bytes, after calc": lambda join: _size(join.with_calc.bytes),
    "bytes, without calc": lambda join: _size(join.without_calc.bytes),
    "bytes saved": lambda join: f"{1 - join.with_calc.bytes / max(join.without_calc.bytes, 1):.0%}",
}


def _counts(joins: Sequence[JoinReport]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for join in joins:
        table.add_column(join.table, justify="right", no_wrap=True)
    for name, shown in _ROWS.items():
        table.add_row(name, *(shown(join) for join in joins))
    table.add_row("\n[bold]the same keys in one cache")
    for name, shown in _HELD.items():
        table.add_row(name, *(shown(join) for join in joins))
    return table


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
    return Text(f"✓ {did}, row for row those of Spark's own join.", style="bold green")
