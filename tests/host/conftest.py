"""Fixtures of the tests of the host's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from host_processes import new_cache

from lookupcache.host import HostCache


@pytest.fixture
def caches(tmp_path) -> Iterator[Callable[..., HostCache]]:
    """Return a function that opens the cache of one folder, as another process would."""
    made = []

    def open_one(**options) -> HostCache:
        made.append(new_cache(tmp_path / "cache", **options))
        return made[-1]

    yield open_one
    for one in made:
        one.close()
