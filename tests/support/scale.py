"""How much the large tests draw: little in the normal suite, ``LOOKUPCACHE_SCALE`` times as much at night."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("LOOKUPCACHE_SCALE", "1"))
SEED = int(os.environ.get("LOOKUPCACHE_SEED", "0"))


def scale_up(count: int) -> int:
    """Return a number of cases or steps, times the scale."""
    return max(round(count * SCALE), 1)
