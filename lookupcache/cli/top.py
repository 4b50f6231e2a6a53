"""The commands `lookupcache top` and `lookupcache dashboard`: the lookups of a program that exports its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lookupcache.cli.terminal import printable
from lookupcache.monitoring.rates import TIERS, Rates, View
from lookupcache.monitoring.scrape import EndpointError, fetch, metrics_url, samples

_FIRST_TO_GO = (
    "evicted",
    "expired",
    "stale",
    "ms/call",
    "/".join(TIERS),
    "requested/s",
    "fill",
    "failed",
    "cached",
    "rows",
)
"""The columns that a narrow terminal does not show, in the order in which they are left out."""

_MOST_SHOWN = 100
_MOST_SECONDS = 86_400
_LONGEST_NAME = 30
_FROM_OTHERS = 3
"""Lines of the terminal that the table does not have: its head, its foot, and the prompt."""

ERRORS = ("errors_total", "timeouts_total", "refused_total")
FAILED = ("failed_rows_total", "dead_letters_total")


@click.command()
@click.argument("url", default="http://127.0.0.1:9477/metrics")
@click.option("--once", is_flag=True, help="Print the table once, without rates.")
@click.option("--every", type=float, default=1.0, show_default=True, help="Seconds between scrapes, 0.1 or more.")
def top(url: str, once: bool, every: float) -> None:
    """Show the lookups of a running job or stream, live.

    URL is that of the endpoint which lookupcache.export_metrics() opened in the program, http://127.0.0.1:9477/metrics
    if left out. A line is a table and a cache. Rates, hit rates and times are of the last 15 seconds, or of all where
    nothing happened in them; the rest are totals. A running task is counted when it has ended. Where the output is no
    terminal, each scrape adds a table.
    """
    if not 0.1 <= every <= _MOST_SECONDS:  # FloatRange accepts NaN.
        raise click.BadParameter(f"{every} is not in the range 0.1<=x<={_MOST_SECONDS}.", param_hint="'--every'")
    console, url = Console(), metrics_url(url)
    shown = frames(url, lambda: console.size, monotonic=time.monotonic)
    first = next(shown)
    if once:
        console.print(first)
        return
    try:
        if not console.is_terminal:
            while True:
                console.print(first)
                time.sleep(every)
                first = next(shown)
        with Live(first, console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(every)
                live.update(next(shown), refresh=True)
    except KeyboardInterrupt:
        return


@click.command()
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON to import, over the metrics of lookupcache.export_metrics()."""
    click.echo(files("lookupcache.monitoring").joinpath("grafana.json").read_text(), nl=False)


def frames(
    url: str,
    size: Callable[[], tuple[int, int]],
    *,
    read: Callable[[str], str] = fetch,
    monotonic: Callable[[], float],
) -> Iterator[RenderableType]:
    """Yield what to show after each scrape; raises EndpointError only if the first one fails."""
    rates, answered = Rates(), monotonic()
    table: RenderableType = render(rates.add(answered, samples(read(url), url)), *size())
    yield table
    while True:
        try:
            scraped = samples(read(url), url)
        except EndpointError as error:
            silent = monotonic() - answered
            yield Group(table, Text(f"\nNo answer for {silent:.0f} s: {error.fact}", style="red"))
            continue
        answered = monotonic()
        table = render(rates.add(answered, scraped), *size())
        yield table


def render(views: Sequence[View], width: int = 250, height: int = _MOST_SHOWN) -> RenderableType:
    """Return the table, of as many lines and columns as there is space for."""
    if not views:
        return Text("No lookups yet.")
    most = max(1, min(height - _FROM_OTHERS, _MOST_SHOWN))
    now = time.time()
    lines = [_cells(view, now) for view in views[:most]]
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    names = _columns_within(lines, width)
    for name in names:
        table.add_column(name, justify="left" if name == "table" else "right", overflow="ellipsis", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(line[name], style="red" if _is_alarming(name, line) else "") for name in names))
    rest = len(views) - most
    return Group(table, Text(f"and {rest} more", style="dim")) if rest > 0 else table


def _columns_within(lines: Sequence[dict[str, str]], width: int) -> list[str]:
    widths = {name: max(len(name), *(len(line[name]) for line in lines)) + 2 for name in lines[0]}
    for name in _FIRST_TO_GO:
        if sum(widths.values()) > width:
            del widths[name]
    return list(widths)


def _is_alarming(name: str, line: dict[str, str]) -> bool:
    return name in ("errors", "failed") and line[name] != "0"


def _cells(view: View, now: float) -> dict[str, str]:
    calls, age = view.seconds_per_call, view.age(now)
    return {
        "table": _name(view),
        "rows/s": _number(view.rate("rows_total")),
        "rows": _number(view.count("rows_total")),
        "hit": _percent(view.hit_rate),
        "/".join(TIERS): "/".join(_percent(view.tier(name)).rstrip("%") for name in TIERS) + "%",
        "requested/s": _number(view.rate("requested_keys_total")),
        "ms/call": "-" if calls is None else f"{calls * 1e3:.3g}",
        "errors": _number(sum(map(view.count, ERRORS))),
        "failed": _number(sum(map(view.count, FAILED))),
        "stale": _number(view.count("stale_total")),
        "expired": _number(view.count("expirations_total")),
        "evicted": _number(view.count("evictions_total")),
        "cached": f"{_number(view.count('cached_rows'))} {_size(view.count('cached_bytes'))}",
        "fill": _percent(view.fill),
        "age": "-" if age is None else _duration(age),
    }


def _name(view: View) -> str:
    """Return what identifies a line; names may have any character, and a terminal obeys some of them."""
    names = (view.series.table, view.series.query or view.series.join[:6])
    shown = " ".join(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names)
    return printable(shown)


def _number(value: float | None) -> str:
    """Return a number in at most five characters.

    >>> [_number(value) for value in (None, 0, 999, 12_345, 1.5e6, 2.5e9, 3e12)]
    ['-', '0', '999', '12.3k', '1.5M', '2.5G', '3T']
    """
    if value is None:
        return "-"
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


def _size(value: float) -> str:
    return f"{_number(value)}B"


def _percent(value: float | None) -> str:
    """Return a share as a percentage; almost all is not all.

    >>> [_percent(value) for value in (None, 0.0, 0.999, 1.0)]
    ['-', '0%', '99%', '100%']
    """
    return "-" if value is None else f"{int(value * 100 + 1e-9)}%"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
