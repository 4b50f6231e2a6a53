"""How much the large tests draw: little in the normal suite, ``LOOKUPCACHE_SCALE`` times as much at night."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import pytest

SCALE = float(os.environ.get("LOOKUPCACHE_SCALE", "1"))
SEED = int(os.environ.get("LOOKUPCACHE_SEED", "0"))
IS_NIGHT = SCALE > 1 or int(os.environ.get("LOOKUPCACHE_CASES", "0")) >= 300
"""Whether tests that are marked as nightly run."""

_END = time.monotonic() + 60 * float(os.environ.get("LOOKUPCACHE_MINUTES", "inf"))


def is_time_left() -> bool:
    """Return whether to draw more cases: by day always, at night until ``LOOKUPCACHE_MINUTES`` have passed."""
    return time.monotonic() < _END


def scale_up(count: int) -> int:
    """Return a number of cases or steps, times the scale."""
    return max(round(count * SCALE), 1)


def by_day(cases: Iterable[Any], one_in: int) -> list[Any]:
    """Return the cases of a parametrized test: one in so many by day, the others marked as ``nightly``.

    Args:
        cases: Single values, or a tuple for several parameters.
        one_in: The first of so many is run by day. Of a product of parameters, it must not divide the number of the
            last one's values, or only some of those are run.
    """
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[pytest.mark.nightly] * bool(n % one_in)) for n, case in enumerate(values)]
