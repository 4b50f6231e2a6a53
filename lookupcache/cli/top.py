"""The commands `lookupcache top` and `lookupcache dashboard`: the lookups of a program that exports its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lookupcache.monitoring.rates import TIERS, Rates, View
from lookupcache.monitoring.scrape import EndpointError, fetch, metrics_url, samples

_COLUMNS = ("table", "rows/s", "rows", "hit", "/".join(TIERS), "requested/s", "ms/call", "errors", "failed",
            "stale", "expired", "evicted", "cached", "fill", "age")  # fmt: skip
_MOST_SHOWN = 100
_FROM_OTHERS = 3
"""Lines of the terminal that the table does not have: its head, what is below, and the prompt."""

ERRORS = ("errors_total", "timeouts_total", "refused_total")
FAILED = ("failed_rows_total", "dead_letters_total")


@click.command()
@click.argument("url", default="http://127.0.0.1:9477/metrics")
@click.option("--once", is_flag=True, help="Print the table once, without rates.")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between scrapes.")
def top(url: str, once: bool, every: float) -> None:
    """Show the lookups of a running job or stream, live.

    URL is that of the endpoint which lookupcache.export_metrics() opened in the program, http://127.0.0.1:9477/metrics
    if left out. A line is a table and a cache. Rates, hit rates and times are of the last 15 seconds, or of all where
    nothing happened in them; the rest are totals. A running task is counted when it has ended.
    """
    console, url = Console(), metrics_url(url)
    shown = frames(url, lambda: console.height, monotonic=time.monotonic)
    first = next(shown)
    if once:
        console.print(first)
        return
    try:
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
    height: Callable[[], int],
    *,
    read: Callable[[str], str] = fetch,
    monotonic: Callable[[], float],
) -> Iterator[RenderableType]:
    """Yield what to show after each scrape; raises EndpointError only if the first one fails."""
    rates, answered = Rates(), monotonic()
    table: RenderableType = render(rates.add(answered, samples(read(url), url)), height())
    yield table
    while True:
        try:
            scraped = samples(read(url), url)
        except EndpointError as error:
            silent = monotonic() - answered
            yield Group(table, Text(f"\nNo answer for {silent:.0f} s: {error.fact}", style="red"))
            continue
        answered = monotonic()
        table = render(rates.add(answered, scraped), height())
        yield table


def render(views: Sequence[View], height: int = _MOST_SHOWN) -> RenderableType:
    """Return the table, of as many lines as there is space for."""
    if not views:
        return Text("No lookups yet.")
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "table" else "right", overflow="fold", no_wrap=name != "table")
    most = max(1, min(height - _FROM_OTHERS, _MOST_SHOWN))
    now = time.time()
    for view in views[:most]:
        table.add_row(*_cells(view, now))
    rest = len(views) - most
    return Group(table, Text(f"and {rest} more", style="dim")) if rest > 0 else table


def _cells(view: View, now: float) -> Iterator[str]:
    yield _name(view)
    yield _number(view.rate("rows_total"))
    yield _number(view.count("rows_total"))
    yield _percent(view.hit_rate)
    yield "/".join(_percent(view.tier(name)).rstrip("%") for name in TIERS) + "%"
    yield _number(view.rate("requested_keys_total"))
    yield "-" if view.seconds_per_call is None else f"{view.seconds_per_call * 1e3:.3g}"
    for names in (ERRORS, FAILED):
        found = sum(view.count(name) for name in names)
        yield f"[red]{_number(found)}[/]" if found else "0"
    for name in ("stale_total", "expirations_total", "evictions_total"):
        yield _number(view.count(name))
    yield f"{_number(view.count('cached_rows'))} {_size(view.count('cached_bytes'))}"
    yield _percent(view.fill)
    age = view.age(now)
    yield "-" if age is None else _duration(age)


def _name(view: View) -> str:
    """Return what identifies a line; names may have any character, and a terminal obeys some of them."""
    name = f"{view.series.table} {view.series.query or view.series.join[:6]}"
    return escape("".join(letter if letter.isprintable() else "?" for letter in name))


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
