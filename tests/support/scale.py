"""How much the large tests draw: little in the normal suite, ``LOOKUPCACHE_SCALE`` times as much at night."""

from __future__ import annotations

import os
import time

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
