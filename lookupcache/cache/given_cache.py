"""`GivenCache`: Python values by key in a cache that the user has made, such as one of cachetools."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import Any, cast

from lookupcache.cache.limits import Limits
from lookupcache.cache.row_cache import Entry, rows_in

_MOST_OUTDATED = 64
"""The maximum number of refresh times, per cached key and in addition, that are kept for keys that are not cached."""


def is_cache(value: Any) -> bool:
    """Return whether an object is a mapping that limits itself, as the caches of cachetools do."""
    return isinstance(value, MutableMapping) and hasattr(value, "maxsize") and hasattr(value, "currsize")


class GivenCache:
    """The values of a user's mapping, with the methods of `RowCache`.

    The mapping decides which values leave it; of the limits, only ``misses`` and ``refresh_seconds`` apply.
    Callers use it under a lock, as caches of cachetools require.
    """

    nbytes = 0
    evictions = 0
    expirations = 0

    def __init__(self, values: MutableMapping[Hashable, Any], limits: Limits) -> None:
        self.limits = limits
        self.values = values
        self.entries: Any = _Keys(values)
        self._refresh_at: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self.values)

    @property
    def rows(self) -> int:
        """The size of all values, as the mapping measures them; by default, each counts as one."""
        size: int = cast(Any, self.values).currsize
        return size

    def touch(self, key: Hashable) -> None:
        """Do nothing: the mapping notes each use itself."""

    def find(self, key: Hashable, now: float) -> Entry | None:
        """Return the entry of a key; from ``refresh_at`` on, it is due for a refresh."""
        try:
            value = self.values[key]
        except KeyError:
            return None
        return Entry(value, -math.inf, 1, 0, math.inf, math.inf, self._refresh_at.get(key, math.inf), -math.inf)

    def find_stale(self, key: Hashable, now: float) -> Entry | None:
        """Return None: expired values are not in the mapping any more."""
        return None

    def put(self, key: Hashable, value: Any, now: float) -> None:
        """Cache the value of a key, if the mapping has room for it."""
        self.remove(key)
        if not (self.limits.misses or rows_in(value)):
            return
        try:
            self.values[key] = value
        except ValueError:  # cachetools: the value alone is larger than the cache
            return
        if self.limits.refresh_seconds < math.inf:
            self._refresh_at[key] = now + self.limits.refresh_seconds
            if len(self._refresh_at) > 2 * len(self.values) + _MOST_OUTDATED:
                self._refresh_at = {key: at for key, at in self._refresh_at.items() if key in self.values}

    def remove(self, key: Hashable) -> bool:
        """Remove a key; return whether it was cached."""
        self._refresh_at.pop(key, None)
        try:
            del self.values[key]
        except KeyError:
            return False
        return True

    def remove_all(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Remove every key for which ``unwanted`` returns true."""
        for key in [key for key in self.values if unwanted(key)]:
            self.remove(key)

    def clear(self) -> None:
        """Remove every key."""
        self._refresh_at.clear()
        self.values.clear()


class _Keys:
    """The keys of a mapping, of which none is found without the lock."""

    def __init__(self, values: MutableMapping[Hashable, Any]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._values))

    def __getitem__(self, key: Hashable) -> Entry:
        raise KeyError(key)
