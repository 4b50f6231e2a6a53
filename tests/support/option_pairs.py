"""The options of a table, with the values that the pairwise suites combine; each option is in at least one of them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from memory_store import URL
from option_values import EVICTIONS, VALUES

from lookupcache.config import LookupConfig
from lookupcache.errors import OptionError

KEYS = {field.metadata["key"]: field.name for field in dataclasses.fields(LookupConfig)}
FIELDS = frozenset(KEYS.values())

CACHE = {
    "cache": ["NONE", "LRU", "TTL"],
    "max_rows": [None, 2, 50],
    "max_bytes": [None, 6_000],
    "eviction": EVICTIONS,
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
SHARED = {
    "cache_path": [None, "cache"],
    "store": [None, URL],
    "store_name": [None, "rows"],
    "version": [None, "2"],
    "store_timeout": [0.2, "1 s"],
    "store_expire_after_write": [None, 2],
    "rate_limit_scope": ["executor", "cluster"],
}
"""What other processes and hosts share."""
JOIN = {
    "scope": ["worker", "host", "auto"],
    "on_error": ["fail", "null", "dead-letter"],
    "error_column": [None, "error", "its error"],
    "dead_letter_path": [None, "letters"],
    "age_column": [None, "age"],
    "output_mode": ["ordered", "allow-unordered"],
    "as_of_period": [None, "since, till"],
    "as_of_version": [None, "version"],
}
WITHOUT_EFFECT = {"metrics": ["auto", "accumulator", "observe", "off"], "full_scan": [False, True]}
"""Options for the driver: they reach workers and decorated functions, and change nothing there."""
OF_SPARK = {
    "form": ["auto", "worker", "distinct", "broadcast"],
    "fuse": ["auto", "off"],
    "shuffle": [False, True],
}
"""Options that only the driver reads: a worker gets the plan that follows from them."""

NAMED = {*CACHE, *CALLS, *TABLE, *SHARED, *JOIN, *WITHOUT_EFFECT, *OF_SPARK}
for _option in dataclasses.fields(LookupConfig):
    if _option.name not in NAMED:
        _group = CALLS if _option.metadata["cached"] == "used" else JOIN
        _group[_option.name] = [_option.default, VALUES[_option.metadata["key"]][1][0][0]]

NOT_OF_A_JOIN = dict.fromkeys(OF_SPARK, "the driver's: it changes the plan that a worker gets, not the worker")
"""Options that are not in the product of the worker, with the reason."""
NOT_OF_A_FUNCTION = {
    **dict.fromkeys(TABLE, "refused: only a table can be read in full"),
    **dict.fromkeys(OF_SPARK, "the driver's, for a join"),
    **{
        one.name: "refused: it needs a join's rows"
        for one in dataclasses.fields(LookupConfig)
        if one.metadata["cached"] == "refused" and one.name not in {*TABLE, *OF_SPARK}
    },
}
"""Options that are not in the product of `cached`, with the reason."""


def config_of(case: dict[str, Any], folder: str = "folder") -> LookupConfig:
    """Return the config of a case, with paths in a folder; raises OptionError for a contradiction."""
    options = {name: value for name, value in case.items() if name in FIELDS}
    for name in ("cache_path", "dead_letter_path"):
        if options.get(name) is not None:
            options[name] = f"{folder}/{options[name]}"
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
