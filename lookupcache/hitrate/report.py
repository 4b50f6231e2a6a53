"""A prediction as tables and a curve on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lookupcache.hitrate.advice import winner
from lookupcache.hitrate.prediction import Prediction, ReportColumn

_ROWS_SHOWN = 14
_HEIGHT, _WIDTH = 12, 64
_MARKS = "●○"


def show(found: Prediction, console: Console) -> None:
    """Print the prediction."""
    console.print(
        f"[bold]{found.requests:,}[/] requests for [bold]{found.keys:,}[/] keys{_span(found)}", highlight=False
    )
    if found.nulls:
        console.print(f"{found.nulls:,} rows have a null in their key, and cause no request.")
    for note in found.notes:
        console.print(escape(note))
    console.print(_columns(found))
    console.print(*draw_curves(found), sep="\n", highlight=False)
    for table in (_ages(found), _policies(found)):
        if table is not None:
            console.print(table)
    for line in advice_lines(found):
        console.print(line, highlight=False)


def _span(found: Prediction) -> str:
    if found.seconds is None:
        return ""
    return f" in {found.seconds:,.6g} s, {found.requests / found.seconds:,.4g} a second"


def _columns(found: Prediction) -> Table:
    table = Table(title="Rows that hit, LRU, by rows in the cache")
    table.add_column("rows", justify="right")
    for column in found.columns:
        table.add_column(column.title, justify="right")
    for size in _some(found.sizes, found.advice.rows):
        style = "bold" if size == found.advice.rows else ""
        table.add_row(f"{size:,}", *(_cell(column, size) for column in found.columns), style=style)
    table.caption = _sampling_note(found.columns)
    return table


def _cell(column: ReportColumn, size: int) -> str:
    ratio = f"{column.curve.ratio([size])[0]:.2%}"
    if column.sampled_keys is None:
        return ratio
    return f"{ratio} ±{2 * column.curve.error_at([size])[0]:.2%}"


def _sampling_note(columns: Sequence[ReportColumn]) -> str | None:
    counts = [f"{column.sampled_keys:,}" for column in columns if column.sampled_keys is not None]
    return f"from {', '.join(counts)} sampled keys; ± is two standard errors" if counts else None


def _some(sizes: Sequence[int], chosen: int) -> list[int]:
    picked = np.unique(np.linspace(0, len(sizes) - 1, min(_ROWS_SHOWN, len(sizes))).round().astype(int))
    return sorted({sizes[number] for number in picked} | {chosen})


def draw_curves(found: Prediction) -> list[str]:
    """Return the plain curve and that of the deployment as lines of text; sizes grow by factors.

    Shapes: twelve lines of ratios from 100 % down, then the sizes.
    """
    curves = [found.columns[0].curve] + ([found.columns[-1].curve] if len(found.columns) > 1 else [])
    last = max(found.sizes[-1], 2)
    sizes = np.geomspace(1, last, _WIDTH).round().astype(np.int64)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT + 1)]
    for mark, curve in reversed(list(zip(_MARKS, curves, strict=False))):
        for column, level in enumerate(np.round(curve.ratio(sizes) * _HEIGHT).astype(int).tolist()):
            grid[_HEIGHT - level][column] = mark
    lines = [f"{(_HEIGHT - row) / _HEIGHT:5.0%} │{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    names = [
        f"{mark} {column.title}" for mark, column in zip(_MARKS, [found.columns[0], found.columns[-1]], strict=True)
    ]
    footer = f"1{f'{last:,} rows':>{_WIDTH - 1}}"
    return ["", *lines, f"      └{'─' * _WIDTH}", f"       {footer}", f"       {'   '.join(names[: len(curves)])}", ""]


def _ages(found: Prediction) -> Table | None:
    if not found.ages:
        return None
    table = Table(title="Requests that hit under an age limit (one after the other, one cache)")
    size = f"{found.ages[0].size:,} rows"
    for name in ("limit", "after write", "after access", f"after write, {size}", f"after access, {size}"):
        table.add_column(name, justify="right")
    for row in found.ages:
        ratios = (row.after_write, row.after_access, row.after_write_sized, row.after_access_sized)
        table.add_row(escape(row.limit), *(f"{ratio:.2%}" for ratio in ratios))
    return table


def _policies(found: Prediction) -> Table | None:
    if not found.policies:
        return None
    table = Table(title="Eviction: who would win")
    for name in ("rows", "lookups", *found.policies[0].ratios, "wins"):
        table.add_column(name, justify="right")
    for row in found.policies:
        best, gain = winner(row.ratios)
        lookups = "one by one" if row.batch == 1 else f"{row.batch:,} at a time"
        cells = [f"{ratio:.2%}" for ratio in row.ratios.values()]
        table.add_row(
            f"{row.size:,}", lookups, *cells, best if best == "lru" else f"{best}, by {100 * gain:.1f} points"
        )
    return table


def advice_lines(found: Prediction) -> list[str]:
    """Return the recommended options and their effects, with the markup of rich."""
    first, *rest = map(escape, found.texts())
    return [f"[bold]{first}[/]", *rest, "", *(f"  {line}" for line in found.advice.lines())]
