"""Texts that were recorded when Spark agreed with them; ``LOOKUPCACHE_UPDATE_GOLDEN=1`` records them again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "planner" / "golden" / "recorded"


def assert_recorded(name: str, lines: Sequence[str]) -> None:
    """Assert that lines are those of a file; lines may contain line breaks."""
    escaped = [line.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") for line in lines]
    path = FOLDER / name
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(escaped) + "\n")
    recorded = path.read_text().removesuffix("\n").split("\n")
    assert [pair for pair in zip(escaped, recorded, strict=True) if pair[0] != pair[1]] == []
