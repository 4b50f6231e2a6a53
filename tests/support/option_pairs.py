"""The options that cache, executor and worker understand, with the values that the pairwise suites combine."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from lookupcache.config import LookupConfig
from lookupcache.errors import OptionError

KEYS = {field.metadata["key"]: field.name for field in dataclasses.fields(LookupConfig)}

CACHE = {
    "cache": ["NONE", "LRU", "TTL"],
    "max_rows": [None, 2, 50],
    "max_bytes": [None, 6_000],
    "eviction": ["lru", "s3-fifo", "sieve"],
    "expire_after_write": [None, 4],
    "expire_after_access": [None, 3],
    "missing_key": [True, False],
    "missing_key_expire_after_write": [None, 1],
    "jitter": [0, 0.5],
    "refresh_after_write": [None, 0, 1],
    "stale_if_error": [None, 9],
}
CALLS = {
    "async_": [None, True, False],
    "async_capacity": [100, 1, 2],
    "timeout": [180, 20],
    "batch_max_size": [None, 1, 2],
    "batch_max_delay": [None, "1 ms"],
    "rate_limit": [None, 1e6],
    "max_retries": [3, 0, 1],
    "retry_on": [None, "*", "ConnectionError"],
    "retry_strategy": ["exponential", "fixed-delay"],
    "retry_delay": [0, "1 ms"],
    "retry_max_delay": ["10 s", "1 ms"],
    "retry_jitter": [0.1, 0],
    "on_miss_max_attempts": [0, 1],
    "on_miss_delay": [0, "1 ms"],
    "breaker_failures": [None, 2],
    "breaker_delay": [0, 30],
}
TABLE = {
    "reload_interval": [None, 1, 3],
    "reload_mode": ["fixed-delay", "fixed-rate"],
    "reload_at": [None, "03:00Z"],
    "reload_allow_empty": [False, True],
}
JOIN = {
    "scope": ["worker", "host"],
    "on_error": ["fail", "null", "dead-letter"],
    "age_column": [None, "age"],
    "output_mode": ["ordered", "allow-unordered"],
}

OTHERS = {"form", "fuse", "shuffle", "metrics", "error_column", "dead_letter_path", "cache_path", "full_scan",
          "as_of_period", "as_of_version",
          "rate_limit_scope", "async_capacity_cluster", "store_name", "store_timeout",
          "store_expire_after_write"}  # fmt: skip
"""Options that belong to Spark's side of the join, and those that follow from ``on_error``, ``scope`` and ``store``."""


def config_of(case: dict[str, Any], letters: str = "letters") -> LookupConfig:
    """Return the config of a case; raises OptionError for options that contradict each other."""
    options = {name: value for name, value in case.items() if name in KEYS.values()}
    options["error_column"] = "error" if case["on_error"] == "null" else None
    options["cache_path"] = f"{letters}-cache" if case.get("scope") == "host" else None
    options["dead_letter_path"] = letters if case["on_error"] == "dead-letter" else None
    return LookupConfig(**options)


def clash_of(case: dict[str, Any]) -> set[str]:
    """Return the options that contradict each other, as the error names them."""
    try:
        config_of(case)
    except OptionError as error:
        return names_in(error) & set(case)
    return set()


def names_in(error: OptionError) -> set[str]:
    """Return the fields of all options that an error and its hint name."""
    keys = re.findall(r"lookup\.[a-z.-]*[a-z]", str(error))
    names = {KEYS[key] for key in keys if key in KEYS}
    return names | ({"jitter", "expire_after_write"} if "refresh_after_write" in names else set())
