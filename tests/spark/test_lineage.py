"""Which joins are kept so that later joins can share their stage."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from lookupcache.spark import lineage


def join_of(jsc: Any) -> Any:
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=jsc))
    return SimpleNamespace(spark=session)


def test_joins_of_stopped_sessions_are_dropped(monkeypatch):
    stopped, running, latest = join_of(None), join_of("running"), join_of("running")
    monkeypatch.setattr(lineage, "_recent", deque([stopped, running], maxlen=16))
    monkeypatch.setattr(lineage, "is_classic", lambda session: True)
    result: Any = SimpleNamespace()
    lineage.remember(result, latest)
    assert list(lineage._recent) == [running, latest]
