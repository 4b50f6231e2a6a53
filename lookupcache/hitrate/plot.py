"""A prediction as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookupcache.errors import LookupCacheError, OptionError

Drawn = Any
"""A `Prediction`, whose module imports this one."""

_SHAPE: dict[str, Any] = {"figsize": (7, 4.2), "layout": "constrained"}


def plot(found: Drawn, path: Path, title: str = "") -> None:
    """Draw all curves, the replayed policies and the chosen size into a PNG file; needs matplotlib."""
    plt = _pyplot("Agg")
    figure, parts = plt.subplots(1, 2 if found.dilution else 1, figsize=(10, 6), layout="constrained", squeeze=False)
    plot_into(found, parts[0][0], title)
    if found.dilution:
        draw_dilution(found.dilution, parts[0][1])
        parts[0][1].set_title(f"{found.advice.rows:,} rows")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"The plot cannot be written to {str(path)!r}: {reason}.",
            hint="Name a file in a folder that exists, which ends in .png, .svg or .pdf.",
        ) from None
    finally:
        plt.close(figure)


def plot_into(found: Drawn, axes: Any = None, title: str = "") -> Any:
    """Draw the curves into matplotlib's axes, by default those of a new figure of pyplot; return the axes."""
    if axes is None:
        axes = _pyplot().subplots(**_SHAPE)[1]
    sizes = np.union1d(found.sizes, [found.advice.rows])
    for column in found.columns:
        ratio, error = 100 * column.curve.ratio(sizes), 200 * column.curve.error_at(sizes)
        axes.plot(sizes, ratio, label=f"LRU, {column.title}")
        if error.any():
            axes.fill_between(sizes, ratio - error, ratio + error, alpha=0.2)
    alone = [row for row in found.policies if row.batch == 1]
    for name, mark in zip((one for one in (alone[0].ratios if alone else {}) if one != "lru"), "^sD", strict=False):
        axes.plot([row.size for row in alone], [100 * row.ratios[name] for row in alone], mark, label=f"{name}, plain")
    axes.axvline(found.advice.rows, color="grey", linestyle=":", label=f"{found.advice.rows:,} rows")
    axes.set(xscale="log", ylim=(0, 100), xlabel="rows in the cache", ylabel="rows that hit, %")
    axes.set_title(title or f"{found.requests:,} requests for {found.keys:,} keys")
    axes.grid(alpha=0.3)
    # Beside the curves, which may be anywhere inside.
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return axes


def as_svg(found: Drawn) -> str:
    """Return the curves as SVG, the same text for the same curves; an empty text without matplotlib."""
    try:
        _pyplot()
    except LookupCacheError:
        return ""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(**_SHAPE)  # Not pyplot's, which a notebook would show once more.
    plot_into(found, figure.subplots())
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "lookupcache", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("?>")[2]


def _pyplot(backend: str | None = None) -> Any:
    """Return matplotlib's pyplot, with the backend that the user has chosen unless one is named."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise LookupCacheError("A plot needs matplotlib.", hint="pip install 'lookupcache[plot]'") from error
    if backend is not None:
        mpl.use(backend)
    from matplotlib import pyplot as plt

    return plt


def draw_dilution(rows: Sequence[Any], axes: Any) -> None:
    """Draw how often each key is requested, over the number of workers, in both scopes, into matplotlib's axes."""
    workers = [row.workers for row in rows]
    axes.plot(workers, [row.worker_scope for row in rows], "o-", label="scope worker")
    axes.plot(workers, [row.host_scope for row in rows], "s-", label="scope host")
    axes.set(xscale="log", xlabel="workers of a host", ylabel="requests per key", ylim=(0, None))
    axes.set_xticks(workers, labels=[str(one) for one in workers], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
