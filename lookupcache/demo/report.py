"""The report that the demo prints at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookupcache.metrics import LookupMetrics
from lookupcache.plan import LookupPlan, Stage

STAGES: tuple[Stage, ...] = ("field key", "constant key", "calc", "residual")


@dataclass(frozen=True)
class Held:
    """The size of a cache: rows, and bytes including keys, index and keys without rows."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class JoinReport:
    """One join: its plan, its metrics, and the cache size of its keys with and without calc and constants."""

    title: str
    table: str
    plan: LookupPlan
    metrics: LookupMetrics
    keys: int
    with_calc: Held
    without_calc: Held


@dataclass(frozen=True)
class Outcome:
    """The result of the demo; ``wrong`` is the number of distinct rows that differ from Spark's own joins."""

    joins: Sequence[JoinReport]
    rows: int
    seconds: float
    wrong: int
    stream: bool


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print the plan and the metrics of each join, and the comparison with Spark's join."""
    for join in outcome.joins:
        console.print()
        console.print(Text.assemble((join.table, "bold"), "  ", (join.title, "dim")))
        console.print(_plan_table(join.plan))
    console.print()
    console.print(_metrics_table(outcome.joins))
    console.print()
    console.print(_comparison(outcome))


def _plan_table(plan: LookupPlan) -> Table:
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    for stage in STAGES:
        grid.add_row(f"{stage}s" if stage.endswith("key") else stage, _stage_conjuncts(plan, stage))
    columns = Text(", ".join((*plan.key_columns, *plan.columns)))
    grid.add_row("cached columns", columns.append(f"  (cache\u00a0{plan.fingerprint[:8]})", "dim"))
    return grid


def _stage_conjuncts(plan: LookupPlan, stage: Stage) -> Text:
    """Return the conjuncts of this stage; filters with the evaluator."""
    shown = Text()
    for conjunct in plan.conjuncts:
        if conjunct.stage == stage:
            shown.append(", " if shown else "").append(conjunct.text)
            shown.append("" if stage.endswith("key") else f"  (by the {conjunct.evaluator})", "dim")
    return shown or Text("–", "dim")


_METRIC_ROWS: dict[str, Callable[[JoinReport], str]] = {
    "left rows": lambda join: f"{join.metrics.rows:,}",
    "distinct keys": lambda join: f"{join.keys:,}",
    "hits": lambda join: f"{join.metrics.hits:,}",
    "misses": lambda join: f"{join.metrics.misses:,}",
    "hit rate": lambda join: f"{join.metrics.hit_rate:.1%}",
    "evictions": lambda join: f"{join.metrics.evictions:,}",
    "calls to the source": lambda join: f"{join.metrics.calls:,}",
    "time in the source": lambda join: f"{join.metrics.source_seconds:.2f} s",
    "time in the join, total": lambda join: f"{join.metrics.lookup_seconds:.2f} s",
    "rows, all caches": lambda join: f"{join.metrics.cached_rows:,}",
    "bytes, all caches": lambda join: _format_bytes(join.metrics.cached_bytes),
}
_SIZE_ROWS: dict[str, Callable[[JoinReport], str]] = {
    "rows, after calc": lambda join: f"{join.with_calc.rows:,}",
    "rows, without calc": lambda join: f"{join.without_calc.rows:,}",
    "bytes, after calc": lambda join: _format_bytes(join.with_calc.bytes),
    "bytes, without calc": lambda join: _format_bytes(join.without_calc.bytes),
    "bytes saved": lambda join: f"{1 - join.with_calc.bytes / max(join.without_calc.bytes, 1):.0%}",
}


def _metrics_table(joins: Sequence[JoinReport]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for join in joins:
        table.add_column(join.table, justify="right", no_wrap=True)
    for name, shown in _METRIC_ROWS.items():
        table.add_row(name, *(shown(join) for join in joins))
    table.add_row("\n[bold]the same keys in a single cache")
    for name, shown in _SIZE_ROWS.items():
        table.add_row(name, *(shown(join) for join in joins))
    return table


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


def _comparison(outcome: Outcome) -> Text:
    summary = f"{outcome.rows:,} rows in {outcome.seconds:.1f} s as a {'stream' if outcome.stream else 'batch'}"
    if outcome.wrong:
        return Text(f"✗ {summary}, but {outcome.wrong:,} rows differ from Spark's own join.", style="bold red")
    return Text(f"✓ {summary}, identical to Spark's own join.", style="bold green")
