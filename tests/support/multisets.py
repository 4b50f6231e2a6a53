"""The rows of a DataFrame, to compare with those of another."""

from __future__ import annotations

from collections import Counter
from typing import Any


def multiset(df: Any) -> Counter[str]:
    """Return how often there is each row."""
    return Counter(map(repr, df.collect()))
