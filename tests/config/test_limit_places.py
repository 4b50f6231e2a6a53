"""Fails where a limit of a cache is forgotten, and names the place: its option, `Limits`, a storage, or `explain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from host_processes import KINDS, PLAN, SCHEMA, keys_of, rows_of, store
from option_values import VALUES

from lookupcache.cache import ColumnCache, Limits, RowCache
from lookupcache.config import LookupConfig
from lookupcache.host import HostCache
from lookupcache.plan import LookupPlan
from lookupcache.planner.explain import explain
from lookupcache.store.row_store import may_be_used

LIMITS = {field.name for field in dataclasses.fields(Limits)}
OF_CACHES = {
    option.metadata["key"]
    for option in dataclasses.fields(LookupConfig)
    if option.metadata["change"] in ("age", "cache")
}
NO_LIMITS = ("cache.scope", "cache.path", "cache.version", "cache.store", "cache.reload", "retry.on-miss")
"""Options that say where a cache is, what it shares, or when it is filled, by how they begin."""


class NotedLimits(Limits):
    """Limits that note which of them are read."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        NotedLimits.read.add(name)
        return super().__getattribute__(name)


def use_rows(limits: Limits, folder: str) -> None:
    cache = RowCache(limits)
    for key, value in enumerate([["a"], [], None]):
        cache.put(key, value, 0.0)
        cache.get(key, 1.0)


def use_columns(limits: Limits, folder: str) -> None:
    cache = ColumnCache(SCHEMA, KINDS["int"], limits)
    for numbers in (range(30), range(30, 60)):
        cache.put(keys_of(numbers), *rows_of(numbers), 0.0)
        cache.release(cache.find(keys_of(numbers), 1.0))
        cache.enforce_limits(1.0)


def use_host(limits: Limits, folder: str) -> None:
    cache = HostCache(folder, PLAN, KINDS["int"], SCHEMA, limits)
    for numbers in (range(30), range(30, 60)):
        store(cache, numbers)
        cache.find(keys_of(numbers))
    cache.close()


def use_store(limits: Limits, folder: str) -> None:
    may_be_used(limits, np.array([5.0]), np.array([1]), np.array([False]))


STORAGES: dict[str, tuple[Callable[[Limits, str], None], dict[str, str]]] = {
    "cache/row_cache.py": (use_rows, {"ages": "a decorated function has no column of ages"}),
    "cache/column_cache.py": (use_columns, {}),
    "host/host_cache.py": (
        use_host,
        {"remembers": "without a cache the host has no cache either", "misses": "a publisher leaves them out"},
    ),
    "store/row_store.py": (
        use_store,
        {
            **dict.fromkeys(["rows", "bytes", "eviction", "access_seconds"], "the store's own"),
            **dict.fromkeys(["jitter", "stale_seconds"], "of the cache before the store"),
            **{"ages": "they are always stored", "remembers": "without a cache there is no store"},
        },
    ),
}
"""How a storage is used, and the limits that it does not read, with the reason."""


@pytest.mark.parametrize("module", STORAGES)
def test_each_storage_reads_each_limit(module, tmp_path):
    use, not_read = STORAGES[module]
    some = Limits(
        rows=20, bytes=1e6, write_seconds=60, miss_seconds=60, access_seconds=60, jitter=0.5, refresh_seconds=9,
        stale_seconds=90, ages=True,
    )  # fmt: skip
    NotedLimits.read.clear()
    for limits in (Limits(), some):
        use(NotedLimits(**dataclasses.asdict(limits)), str(tmp_path / str(limits.rows)))
    assert LIMITS - NotedLimits.read == set(not_read), f"{module} has to keep these limits, or the reason is above"


def options_that_change(what: Callable[[dict[str, Any]], Any]) -> set[str]:
    """Return the options of which a value makes a difference to what a function returns for a config."""
    return {
        key
        for key, (others, good, _) in VALUES.items()
        for value, _ in good
        if key in OF_CACHES and what({**others, key: value}) != what(others)
    }


def explained(options: dict[str, Any]) -> list[str]:
    config = LookupConfig.from_options(options)
    plan = LookupPlan(table="t", connector="sql", source="", schema=SCHEMA, how="inner", keys=(), config=config)
    return [line for line in explain(plan).splitlines() if "identity" not in line]


def test_each_option_of_a_cache_is_in_its_limits():
    limiting = options_that_change(lambda options: Limits.of(LookupConfig.from_options(options)))
    others = {key for key in OF_CACHES if key.removeprefix("lookup.").startswith(NO_LIMITS)}
    assert OF_CACHES - limiting == others, "Limits.of has to read these options"


def test_explain_shows_each_option_of_a_cache():
    hidden = {f"lookup.{key}" for key in ("cache.eviction", "cache.store.timeout", "retry.on-miss.delay")}
    assert OF_CACHES - options_that_change(explained) == hidden, "planner/explain.py has to show these options"
