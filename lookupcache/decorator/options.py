"""`CachedOptions`: the options of `cached` by name, for type checkers; `LookupConfig` explains them."""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any, Literal, TypedDict

from lookupcache.config.lookup_config import Backoff, RateScope, Scope
from lookupcache.config.values import Eviction

Duration = str | float | timedelta | None
Size = str | int | None


class CachedOptions(TypedDict, total=False):
    """The fields of `LookupConfig` that a decorated function may have; the others need a join."""

    cache: Literal["NONE", "LRU", "TTL"] | MutableMapping[Any, Any]
    scope: Scope
    cache_path: str | None
    store: str | None
    store_name: str | None
    version: str | None
    store_timeout: Duration
    store_expire_after_write: Duration
    max_rows: int | None
    max_bytes: Size
    eviction: Eviction
    expire_after_write: Duration
    expire_after_access: Duration
    missing_key: bool
    missing_key_expire_after_write: Duration
    jitter: float
    refresh_after_write: Duration
    stale_if_error: Duration
    async_: bool | None
    async_capacity: int
    timeout: Duration
    batch_max_size: int | None
    batch_max_delay: Duration
    rate_limit: str | float | None
    rate_limit_scope: RateScope
    max_retries: int
    retry_on: str | None
    retry_strategy: Backoff
    retry_delay: Duration
    retry_max_delay: Duration
    retry_jitter: float
    on_miss_max_attempts: int
    on_miss_delay: Duration
    on_error: Literal["fail", "null"]
    breaker_failures: int | None
    breaker_delay: Duration
