"""Checks that reject contradictory options when a config is built; the error names both options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lookupcache.config.values import is_redis_url
from lookupcache.errors import OptionError
from lookupcache.secrets import is_reference

if TYPE_CHECKING:
    from lookupcache.config.lookup_config import LookupConfig

_STORE_TIMEOUT = 0.2


def refuse_contradictions(config: LookupConfig) -> None:
    """Raise OptionError for the first contradiction found."""
    for rule in (
        _check_unused_limits,
        _check_scope,
        _check_store,
        _check_version,
        _check_cluster_rate,
        _check_ttl_has_limit,
        _check_unused_reloads,
        _check_reload_schedule,
        _check_age_limits,
        _check_error_handling,
        _check_retry_delays,
        _check_form,
        _check_as_of,
    ):
        rule(config)


def _check_unused_limits(config: LookupConfig) -> None:
    """Reject limits on entries where nothing is cached, or where the full table is."""
    limits = {
        "lookup.cache.max-rows": config.max_rows,
        "lookup.cache.max-bytes": config.max_bytes,
        "lookup.cache.expire-after-write": config.expire_after_write,
        "lookup.cache.expire-after-access": config.expire_after_access,
        "lookup.cache.missing-key.expire-after-write": config.missing_key_expire_after_write,
        "lookup.cache.jitter": config.jitter or None,
        "lookup.cache.eviction": None if config.eviction == "lru" else config.eviction,
        "lookup.cache.refresh-after-write": config.refresh_after_write,
    }
    if config.cache in ("NONE", "ALL"):
        _refuse_if_set(limits, config, "LRU or TTL")
    if config.cache == "ALL":
        _refuse_if_set({"lookup.retry.on-miss.max-attempts": config.on_miss_max_attempts or None}, config, "LRU or TTL")
    if config.missing_key_expire_after_write is not None and not config.missing_key:
        raise OptionError(
            "Option 'lookup.cache.missing-key.expire-after-write' contradicts 'lookup.cache.missing-key' = 'false'.",
            hint="Remove one of them.",
        )


def _check_scope(config: LookupConfig) -> None:
    """Reject a shared cache where nothing is cached, and a directory for one where each worker has its own."""
    if config.cache == "NONE":
        scope = None if config.scope == "auto" else config.scope
        _refuse_if_set({"lookup.cache.scope": scope, "lookup.cache.path": config.cache_path}, config, "LRU, TTL or ALL")
    if config.scope == "worker" and config.cache_path is not None:
        raise OptionError(
            "Option 'lookup.cache.path' has no effect with 'lookup.cache.scope' = 'worker'.",
            hint="Set 'lookup.cache.scope' to host, or remove the option.",
        )


def _check_store(config: LookupConfig) -> None:
    """Reject a store where no keys are cached, and the options of a store without a store."""
    own = {
        "lookup.cache.store.name": config.store_name,
        "lookup.cache.store.timeout": None if config.store_timeout == _STORE_TIMEOUT else config.store_timeout,
        "lookup.cache.store.expire-after-write": config.store_expire_after_write,
    }
    if config.cache in ("NONE", "ALL"):
        _refuse_if_set({"lookup.cache.store": config.store, **own}, config, "LRU or TTL")
    for key, value in own.items():
        if value is not None and config.store is None:
            raise OptionError(
                f"Option {key!r} has no effect without 'lookup.cache.store'.",
                hint="Set the store, or remove the option.",
            )


def _check_version(config: LookupConfig) -> None:
    """Reject a version of the code where no other application shares the rows."""
    if config.version is not None and config.store is None and config.cache_path is None:
        raise OptionError(
            "Option 'lookup.cache.version' has no effect without 'lookup.cache.store' or 'lookup.cache.path'.",
            hint="Set one of them, so that other applications find the rows, or remove the option.",
        )


def _check_cluster_rate(config: LookupConfig) -> None:
    """Reject the scope `cluster` without a rate limit, and where no server can count the calls."""
    if config.rate_limit_scope == "cluster" and config.rate_limit is None:
        raise OptionError(
            "Option 'lookup.rate-limit.scope' = 'cluster' has no effect without 'lookup.rate-limit'.",
            hint="Set the rate, or remove the option.",
        )
    # The workers read the value behind a reference, and check it.
    has_server = config.store is not None and (is_redis_url(config.store) or is_reference(config.store))
    if config.rate_limit_scope == "cluster" and not has_server:
        raise OptionError(
            "Option 'lookup.rate-limit.scope' = 'cluster' needs a Redis server that counts the calls of all hosts.",
            hint="Set 'lookup.cache.store' to its URL, as in 'redis://host:6379/0', and 'lookup.cache' to LRU or TTL; "
            "or remove the option.",
        )


def _refuse_if_set(options: dict[str, Any], config: LookupConfig, strategies: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise OptionError(
                f"Option {key!r} has no effect with 'lookup.cache' = {config.cache!r}.",
                hint=f"Set 'lookup.cache' to {strategies}, or remove the option.",
            )


def _check_ttl_has_limit(config: LookupConfig) -> None:
    if config.cache == "TTL" and config.expire_after_write is None and config.expire_after_access is None:
        raise OptionError(
            "'lookup.cache' = 'TTL' needs an age limit.",
            hint="Set 'lookup.cache.expire-after-write' or 'lookup.cache.expire-after-access', as in '10 min'.",
        )


def _reload_options(config: LookupConfig) -> dict[str, Any]:
    return {
        "lookup.cache.reload-interval": config.reload_interval,
        "lookup.cache.reload-at": config.reload_at,
        "lookup.cache.reload-mode": None if config.reload_mode == "fixed-delay" else config.reload_mode,
        "lookup.cache.reload-allow-empty": config.reload_allow_empty or None,
    }


def _check_unused_reloads(config: LookupConfig) -> None:
    if config.cache != "ALL":
        _refuse_if_set(_reload_options(config), config, "ALL")


def _check_reload_schedule(config: LookupConfig) -> None:
    """Allow one reload schedule only, and require one for the options that depend on it."""
    interval, at, mode, empty = _reload_options(config).items()
    if interval[1] is not None and at[1] is not None:
        raise OptionError(f"Options {interval[0]!r} and {at[0]!r} contradict each other.", hint="Set one of them.")
    if mode[1] is not None and interval[1] is None:
        raise OptionError(
            f"Option {mode[0]!r} = {mode[1]!r} needs a reload interval, and none is set.",
            hint=f"Set {interval[0]!r}, for example to '1 h'.",
        )
    if empty[1] is not None and interval[1] is None and at[1] is None:
        raise OptionError(
            f"Option {empty[0]!r} needs a reload schedule, and none is set.",
            hint=f"Set {interval[0]!r}, for example to '1 h', or {at[0]!r}.",
        )


def _check_age_limits(config: LookupConfig) -> None:
    """Reject age limits of which one would never take effect."""
    expires, refreshed, stale = config.expire_after_write, config.refresh_after_write, config.stale_if_error
    if expires is not None and refreshed is not None and refreshed >= expires:
        raise OptionError(
            "Option 'lookup.cache.refresh-after-write' is not shorter than 'lookup.cache.expire-after-write'.",
            hint="Make it shorter: an entry that has expired is fetched again, not refreshed.",
        )
    if expires is not None and refreshed is not None and refreshed >= expires * (1 - config.jitter):
        raise OptionError(
            "'lookup.cache.jitter' lets entries expire before 'lookup.cache.refresh-after-write'.",
            hint=f"Set refresh-after-write to less than {expires * (1 - config.jitter):g} s, or reduce the jitter.",
        )
    if stale is None or config.cache == "ALL":
        return
    if expires is None:
        raise OptionError(
            "Option 'lookup.cache.stale-if-error' needs entries that expire.",
            hint="Set 'lookup.cache.expire-after-write' too.",
        )
    if stale <= expires:
        raise OptionError(
            "Option 'lookup.cache.stale-if-error' is not longer than 'lookup.cache.expire-after-write'.",
            hint="Make it longer: both count from the time when the entry was written.",
        )


def _check_error_handling(config: LookupConfig) -> None:
    """Require a destination for the errors of failed lookups, and reject one that is never used."""
    if config.on_error == "null" and config.error_column is None:
        raise OptionError(
            "'lookup.on-error' = 'null' needs a column that marks failed lookups; otherwise they look like misses.",
            hint="Name one with 'lookup.error-column'.",
        )
    if config.on_error == "dead-letter" and config.dead_letter_path is None:
        raise OptionError(
            "'lookup.on-error' = 'dead-letter' needs a directory for the rows.",
            hint="Name a directory with 'lookup.dead-letter.path'.",
        )
    destinations = {
        "null": ("lookup.error-column", config.error_column),
        "dead-letter": ("lookup.dead-letter.path", config.dead_letter_path),
    }
    for on_error, (key, value) in destinations.items():
        if value is not None and config.on_error != on_error:
            raise OptionError(
                f"Option {key!r} has no effect with 'lookup.on-error' = {config.on_error!r}.",
                hint=f"Set 'lookup.on-error' to {on_error}.",
            )
    if config.age_column is not None and config.age_column == config.error_column:
        raise OptionError(
            "Options 'lookup.age-column' and 'lookup.error-column' name the same column.", hint="Rename one of them."
        )


def _check_retry_delays(config: LookupConfig) -> None:
    if config.retry_max_delay < config.retry_delay and config.retry_strategy == "exponential":
        raise OptionError(
            "Option 'lookup.retry.max-delay' is shorter than 'lookup.retry.delay'.",
            hint="Make it at least as long.",
        )


def _check_form(config: LookupConfig) -> None:
    """Broadcast loads the full table once, so it needs ALL and fails for all rows or for none."""
    if config.form != "broadcast":
        return
    if config.cache != "ALL":
        raise OptionError(
            f"'lookup.form' = 'broadcast' reads the full table, but 'lookup.cache' is {config.cache!r}.",
            hint="Set 'lookup.cache' to ALL, or 'lookup.form' to distinct.",
        )
    if config.on_error != "fail":
        raise OptionError(
            f"'lookup.form' = 'broadcast' loads the full table at once, so single rows cannot fail, which "
            f"'lookup.on-error' = {config.on_error!r} is for.",
            hint="Set 'lookup.form' to worker, or remove the option.",
        )


def _check_as_of(config: LookupConfig) -> None:
    if config.as_of_period is not None and config.as_of_version is not None:
        raise OptionError(
            "Option 'lookup.as-of.period' contradicts 'lookup.as-of.version'.",
            hint="Remove one of them: each says which rows a join with as_of finds.",
        )
