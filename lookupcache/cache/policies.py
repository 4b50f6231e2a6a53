"""The eviction policies by their names in the options."""

from __future__ import annotations

from collections.abc import Callable

from lookupcache.cache.policy import Policy
from lookupcache.cache.policy_queues import S3Fifo

_POLICIES: dict[str, Callable[[], Policy]] = {"lru": Policy, "s3-fifo": S3Fifo}


def policy_of(eviction: str) -> Policy:
    """Return a new policy by its name in ``lookup.cache.eviction``.

    >>> type(policy_of("s3-fifo")).__name__
    'S3Fifo'
    """
    return _POLICIES[eviction]()
