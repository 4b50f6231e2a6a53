"""What a worker has loaded before its first connector is exempt from garbage collection, once per process."""

from __future__ import annotations

import gc

import cloudpickle
import pytest

from lookupcache.worker import task


@pytest.fixture
def frozen(monkeypatch):
    """Return the calls that exempt objects from collection, as in a fresh worker; none has an effect here."""
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    task.exempt_loaded_modules.cache_clear()
    yield calls
    task.exempt_loaded_modules.cache_clear()


def test_only_before_the_first_connector(frozen):
    assert [task.unpickle_connector(None, cloudpickle.dumps(number)) for number in (7, 8)] == [7, 8]
    assert frozen == [1]
