"""Lookup joins and Spark's own joins of the demo side by side: what each read, and how long it took."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Way:
    """One way to make a join: the rows read from its tables, the calls to the database, and the seconds.

    ``copying`` are the seconds that copying the table took before.
    """

    rows: int
    calls: int
    seconds: float
    copying: float | None = None


@dataclass(frozen=True)
class Comparison:
    """One task, done by lookup joins, by Spark's own joins, and by Spark's own join with a copy of the table.

    ``result`` are the rows of the result; ``wrong`` is the number of distinct rows that differ from a result of Spark.
    """

    title: str
    result: int
    wrong: int
    lookup: Way
    spark: Way
    copy: Way | None = None


def difference(ours: DataFrame, theirs: DataFrame) -> int:
    """Return how many distinct rows do not stand in both equally often."""
    from pyspark.sql.functions import lit
    from pyspark.sql.functions import sum as total

    both = ours.withColumn("_times", lit(1)).unionAll(theirs.withColumn("_times", lit(-1)))
    times = both.groupBy(*theirs.columns).agg(total("_times").alias("_times"))
    return times.where("_times <> 0").count()


_FIGURES: dict[str, Callable[[Way], str]] = {
    "rows read from tables": lambda way: f"{way.rows:,}",
    "calls to the database": lambda way: f"{way.calls:,}" if way.calls else "–",
    "seconds": lambda way: f"{way.seconds:.1f}",
    "seconds to copy before": lambda way: "–" if way.copying is None else f"{way.copying:.1f}",
}

_NOTES = """\
  (1) The customers are read from the same database, only the columns of the
      join, by spark.read.format("lookupcache"); Spark broadcasts the orders.
      The small tables of the flights are in Spark's memory already.
  (2) Spark's own join with a copy of the table in Parquet files"""


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print one table with all comparisons, what its columns mean, and whether the results are the same."""
    console.print(_line("", ["lookup join", "Spark's own (1)", "with a copy (2)"]), style="cyan", highlight=False)
    for one in comparisons:
        console.print(f"  {one.title}", style="bold", highlight=False)
        ways = [one.lookup, one.spark, *([one.copy] if one.copy else [])]
        for name, shown in _FIGURES.items():
            if one.copy or "copy" not in name:
                console.print(_line(name, [shown(way) for way in ways]), highlight=False)
        console.print()
    console.print(_NOTES, style="dim", highlight=False)
    console.print()
    wrong = sum(one.wrong for one in comparisons)
    console.print(_verdict(comparisons), style="bold red" if wrong else "bold green", highlight=False)


def _line(name: str, shown: Sequence[str]) -> str:
    return f"    {name:<24}" + "".join(f"{text:>17}" for text in shown)


def _verdict(comparisons: Sequence[Comparison]) -> str:
    wrong = sum(one.wrong for one in comparisons)
    rows = " and ".join(f"{one.result:,}" for one in comparisons)
    if wrong:
        return f"✗ The results have {rows} rows, but {wrong:,} rows differ from Spark's own join."
    return f"✓ The results have {rows} rows, identical to Spark's own join."


# ── as a picture ─────────────────────────────────────────────────────────────────────────────────────────────

_WIDTH, _HEIGHT, _MARGIN = 8.4, 20, 18
"""Pixels of a character, of a line, and around the text."""

_STYLE = """\
rect{fill:#fcfcfe;stroke:#d5d8e3} text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#1d2233}
@media (prefers-color-scheme:dark){rect{fill:#16181f;stroke:#3b4152} text{fill:#e3e6f0}}"""


def as_svg(comparisons: Sequence[Comparison]) -> str:
    """Return the printed table as an SVG picture; its metadata are the figures, as JSON."""
    text = io.StringIO()
    print_comparisons(Console(file=text, width=100), comparisons)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    width = max(map(len, lines)) * _WIDTH + 2 * _MARGIN
    height = len(lines) * _HEIGHT + 2 * _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" xml:space="preserve"',
            ' role="img" aria-label="Lookup joins and Spark\'s own joins: rows read, calls, seconds">',
            f"<metadata>{escape(json.dumps([asdict(one) for one in comparisons]), quote=False)}</metadata>",
            f"<style>\n{_STYLE}\n</style>",
            f'<rect x="1" y="1" width="{width - 2:.0f}" height="{height - 2}" rx="10"/>',
            *(_text(number, line) for number, line in enumerate(lines) if line),
            "</svg>\n",
        ]
    )


def _text(number: int, line: str) -> str:
    """Return a line of the picture; its length is set, so that columns stay aligned in any font."""
    words = line.lstrip()
    x = _MARGIN + (len(line) - len(words)) * _WIDTH
    y = _MARGIN + number * _HEIGHT + 14
    return f'<text x="{x:.1f}" y="{y}" textLength="{len(words) * _WIDTH:.1f}">{escape(words, quote=False)}</text>'
