"""Checks that reject contradictory options when a config is built; the error names both options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from lookupcache.config.values import is_redis_url
from lookupcache.errors import OptionError
from lookupcache.secrets import is_reference

if TYPE_CHECKING:
    from lookupcache.config.lookup_config import LookupConfig

Rule = tuple[bool, str, str]
"""Whether the options contradict each other, the fact, and the cure."""


def refuse_contradictions(config: LookupConfig) -> None:
    """Raise OptionError for the first contradiction found."""
    groups = (_unused, _sharing, _cluster_rate, _reloads, _ages, _failures, _joins)
    for is_wrong, fact, cure in chain.from_iterable(group(config) for group in groups):
        if is_wrong:
            raise OptionError(fact, hint=cure)


def _unused(config: LookupConfig) -> Iterator[Rule]:
    """Yield the rules for options that have no effect with the strategy."""
    for key, strategies in _set_options(config):
        *others, last = (one for one in strategies if one != "NONE")
        used = f"{', '.join(others)} or {last}" if others else last
        fact = f"Option {key!r} has no effect with 'lookup.cache' = {config.cache!r}."
        yield config.cache not in (None, *strategies), fact, f"Set 'lookup.cache' to {used}, or remove the option."


def _set_options(config: LookupConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the keys of the options that differ from their defaults, and the strategies with which they matter."""
    for option in dataclasses.fields(config):
        if getattr(config, option.name) not in (None, option.default):
            yield option.metadata["key"], option.metadata["strategies"]


def _sharing(config: LookupConfig) -> Iterator[Rule]:
    yield (
        config.missing_key_expire_after_write is not None and not config.missing_key,
        "Option 'lookup.cache.missing-key.expire-after-write' contradicts 'lookup.cache.missing-key' = 'false'.",
        "Remove one of them.",
    )
    yield (
        config.scope == "worker" and config.cache_path is not None,
        "Option 'lookup.cache.path' has no effect with 'lookup.cache.scope' = 'worker'.",
        "Set 'lookup.cache.scope' to host, or remove the option.",
    )
    for key, _ in _set_options(config):
        fact = f"Option {key!r} has no effect without 'lookup.cache.store'."
        is_of_store = key.startswith("lookup.cache.store.")
        yield is_of_store and config.store is None, fact, "Set the store, or remove the option."
    yield (
        config.version is not None and config.store is None and config.cache_path is None,
        "Option 'lookup.cache.version' has no effect without 'lookup.cache.store' or 'lookup.cache.path'.",
        "Set one of them, so that other applications find the rows, or remove the option.",
    )


def _cluster_rate(config: LookupConfig) -> Iterator[Rule]:
    # The workers read the value behind a reference, and check it.
    has_server = config.store is not None and (is_redis_url(config.store) or is_reference(config.store))
    yield (
        config.rate_limit_scope == "cluster" and config.rate_limit is None,
        "Option 'lookup.rate-limit.scope' = 'cluster' has no effect without 'lookup.rate-limit'.",
        "Set the rate, or remove the option.",
    )
    yield (
        config.rate_limit_scope == "cluster" and not has_server,
        "Option 'lookup.rate-limit.scope' = 'cluster' needs a Redis server that counts the calls of all hosts.",
        "Set 'lookup.cache.store' to its URL, as in 'redis://host:6379/0', and 'lookup.cache' to LRU or TTL; "
        "or remove the option.",
    )


def _reloads(config: LookupConfig) -> Iterator[Rule]:
    interval, at = config.reload_interval, config.reload_at
    yield (
        interval is not None and at is not None,
        "Options 'lookup.cache.reload-interval' and 'lookup.cache.reload-at' contradict each other.",
        "Set one of them.",
    )
    yield (
        config.reload_mode != "fixed-delay" and interval is None,
        f"Option 'lookup.cache.reload-mode' = {config.reload_mode!r} needs a reload interval, and none is set.",
        "Set 'lookup.cache.reload-interval', for example to '1 h'.",
    )
    yield (
        config.reload_allow_empty and interval is None and at is None,
        "Option 'lookup.cache.reload-allow-empty' needs a reload schedule, and none is set.",
        "Set 'lookup.cache.reload-interval', for example to '1 h', or 'lookup.cache.reload-at'.",
    )


def _ages(config: LookupConfig) -> Iterator[Rule]:
    """Yield the rules for age limits of which one would never take effect."""
    expires, refreshed, stale = config.expire_after_write, config.refresh_after_write, config.stale_if_error
    yield (
        config.cache == "TTL" and expires is None and config.expire_after_access is None,
        "'lookup.cache' = 'TTL' needs an age limit.",
        "Set 'lookup.cache.expire-after-write' or 'lookup.cache.expire-after-access', as in '10 min'.",
    )
    if expires is not None and refreshed is not None:
        earliest = expires * (1 - config.jitter)
        yield (
            refreshed >= expires,
            "Option 'lookup.cache.refresh-after-write' is not shorter than 'lookup.cache.expire-after-write'.",
            "Make it shorter: an entry that has expired is fetched again, not refreshed.",
        )
        yield (
            refreshed >= earliest,
            "'lookup.cache.jitter' lets entries expire before 'lookup.cache.refresh-after-write'.",
            f"Set refresh-after-write to less than {earliest:g} s, or reduce the jitter.",
        )
    if stale is not None and config.cache != "ALL":
        yield (
            expires is None,
            "Option 'lookup.cache.stale-if-error' needs entries that expire.",
            "Set 'lookup.cache.expire-after-write' too.",
        )
        yield (
            stale <= (expires or 0.0),
            "Option 'lookup.cache.stale-if-error' is not longer than 'lookup.cache.expire-after-write'.",
            "Make it longer: both count from the time when the entry was written.",
        )


def _failures(config: LookupConfig) -> Iterator[Rule]:
    """Yield the rules for the destination of failed lookups, which is needed or never used, and for retries."""
    yield (
        config.on_error == "null" and config.error_column is None,
        "'lookup.on-error' = 'null' needs a column that marks failed lookups; otherwise they look like misses.",
        "Name one with 'lookup.error-column'.",
    )
    yield (
        config.on_error == "dead-letter" and config.dead_letter_path is None,
        "'lookup.on-error' = 'dead-letter' needs a directory for the rows.",
        "Name a directory with 'lookup.dead-letter.path'.",
    )
    destinations = {
        "null": ("lookup.error-column", config.error_column),
        "dead-letter": ("lookup.dead-letter.path", config.dead_letter_path),
    }
    for on_error, (key, value) in destinations.items():
        fact = f"Option {key!r} has no effect with 'lookup.on-error' = {config.on_error!r}."
        yield value is not None and config.on_error != on_error, fact, f"Set 'lookup.on-error' to {on_error}."
    yield (
        config.age_column is not None and config.age_column == config.error_column,
        "Options 'lookup.age-column' and 'lookup.error-column' name the same column.",
        "Rename one of them.",
    )
    yield (
        config.retry_max_delay < config.retry_delay and config.retry_strategy == "exponential",
        "Option 'lookup.retry.max-delay' is shorter than 'lookup.retry.delay'.",
        "Make it at least as long.",
    )


def _joins(config: LookupConfig) -> Iterator[Rule]:
    is_broadcast = config.form == "broadcast"
    yield (
        is_broadcast and config.cache != "ALL",
        f"'lookup.form' = 'broadcast' reads the full table, but 'lookup.cache' is {config.cache!r}.",
        "Set 'lookup.cache' to ALL, or 'lookup.form' to distinct.",
    )
    yield (
        is_broadcast and config.on_error != "fail",
        "'lookup.form' = 'broadcast' loads the full table at once, so single rows cannot fail, which "
        f"'lookup.on-error' = {config.on_error!r} is for.",
        "Set 'lookup.form' to worker, or remove the option.",
    )
    yield (
        config.as_of_period is not None and config.as_of_version is not None,
        "Option 'lookup.as-of.period' contradicts 'lookup.as-of.version'.",
        "Remove one of them: each says which rows a join with as_of finds.",
    )
