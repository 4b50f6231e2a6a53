"""How many examples property tests draw; `--fast` draws few."""

from __future__ import annotations

FAST_EXAMPLES = 10
_limit: int | None = None


def draw_few() -> None:
    """Limit the examples of tests that are imported from now on; called by conftest.py with `--fast`."""
    global _limit
    _limit = FAST_EXAMPLES


def examples(count: int) -> int:
    """Return the number of examples to draw: ``count``, or few with `--fast`."""
    return count if _limit is None else min(count, _limit)
