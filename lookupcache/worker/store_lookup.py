"""`StoredHostCacheLookup`: a cache that the workers of a host share, with a store behind it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lookupcache.arrays import from_numpy
from lookupcache.cache.keys import Mask
from lookupcache.worker.answers import Fetched
from lookupcache.worker.host_lookup import HostCacheLookup
from lookupcache.worker.partial_cache import Request


class StoredHostCacheLookup(HostCacheLookup):
    """Publishes on the host also what came from the store, and not as if it had been fetched just now."""

    def _publish_fetched(self, request: Request, fetched: Fetched) -> None:
        if fetched.written is None or bool((fetched.written == math.inf).all()):
            super()._publish_fetched(request, fetched)
            return
        is_new = fetched.written == math.inf
        if is_new.any():
            super()._publish_fetched(*_part(request, fetched, is_new))
        is_old = ~is_new & ~fetched.failed
        if is_old.any():
            since, _ = self._since.get(request.number, (-1, -math.inf))
            part, old = _part(request, fetched, is_old)
            # One time for all of them, the earliest: too high an age only means to look into the store again.
            self.host.publish(part.keys, old.rows, old.counts, float(fetched.written[is_old].min()), since)


def _part(request: Request, fetched: Fetched, mask: Mask) -> tuple[Request, Fetched]:
    """Return what belongs to some of the keys of a request."""
    rows = fetched.rows.take(from_numpy(np.flatnonzero(np.repeat(mask, fetched.counts))))
    call_of = None if fetched.call_of is None else fetched.call_of[mask]
    part = Fetched(rows, fetched.counts[mask], fetched.errors, call_of)
    return replace(request, keys=request.keys.take(np.flatnonzero(mask))), part
