"""Options that contradict each other: refused when a config is built, with the names of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lookupcache.errors import OptionError

if TYPE_CHECKING:
    from lookupcache.config import LookupConfig


def refuse_contradictions(config: LookupConfig) -> None:
    """Raise OptionError for the first contradiction that is found."""
    for rule in (
        _idle_limits,
        _endless_ttl,
        _idle_reloads,
        _reloads_without_time,
        _odd_ages,
        _odd_errors,
        _odd_waits,
        _odd_forms,
    ):
        rule(config)


def _idle_limits(config: LookupConfig) -> None:
    """Limits of entries mean nothing where there are none, or where all rows are held."""
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
        _refuse_any(limits, config, "LRU or TTL")
    if config.cache == "ALL":
        _refuse_any({"lookup.retry.on-miss.max-attempts": config.on_miss_max_attempts or None}, config, "LRU or TTL")
    if config.missing_key_expire_after_write is not None and not config.missing_key:
        raise OptionError(
            "Option 'lookup.cache.missing-key.expire-after-write' contradicts 'lookup.cache.missing-key' = 'false'."
        )


def _refuse_any(options: dict[str, Any], config: LookupConfig, cure: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise OptionError(
                f"Option {key!r} means nothing with 'lookup.cache' = {config.cache!r}.",
                hint=f"Set 'lookup.cache' to {cure}, or leave that option out.",
            )


def _endless_ttl(config: LookupConfig) -> None:
    if config.cache == "TTL" and config.expire_after_write is None and config.expire_after_access is None:
        raise OptionError(
            "'lookup.cache' = 'TTL' needs to know when an entry expires.",
            hint="Set 'lookup.cache.expire-after-write' or 'lookup.cache.expire-after-access', as in '10 min'.",
        )


def _reloads(config: LookupConfig) -> dict[str, Any]:
    return {
        "lookup.cache.reload-interval": config.reload_interval,
        "lookup.cache.reload-at": config.reload_at,
        "lookup.cache.reload-mode": None if config.reload_mode == "fixed-delay" else config.reload_mode,
        "lookup.cache.reload-allow-empty": config.reload_allow_empty or None,
    }


def _idle_reloads(config: LookupConfig) -> None:
    if config.cache != "ALL":
        _refuse_any(_reloads(config), config, "ALL")


def _reloads_without_time(config: LookupConfig) -> None:
    """What says how ALL reloads needs to know when it does, and one rule for that is enough."""
    interval, at, mode, empty = _reloads(config).items()
    if interval[1] is not None and at[1] is not None:
        raise OptionError(f"Options {interval[0]!r} and {at[0]!r} contradict each other.", hint="Set one of them.")
    if mode[1] is not None and interval[1] is None:
        raise OptionError(
            f"Option {mode[0]!r} = {mode[1]!r} says how to count an interval, and there is none.",
            hint=f"Set {interval[0]!r}, as in '1 h'.",
        )
    if empty[1] is not None and interval[1] is None and at[1] is None:
        raise OptionError(
            f"Option {empty[0]!r} needs to know when the table is loaded again.",
            hint=f"Set {interval[0]!r}, as in '1 h', or {at[0]!r}.",
        )


def _odd_ages(config: LookupConfig) -> None:
    """Ages may not come in an order in which one of them never counts."""
    expires, refreshed, stale = config.expire_after_write, config.refresh_after_write, config.stale_if_error
    if expires is not None and refreshed is not None and refreshed >= expires:
        raise OptionError(
            "Option 'lookup.cache.refresh-after-write' is not shorter than 'lookup.cache.expire-after-write'.",
            hint="An entry that has expired is not refreshed but fetched anew.",
        )
    if expires is not None and refreshed is not None and refreshed >= expires * (1 - config.jitter):
        raise OptionError(
            "'lookup.cache.jitter' lets entries expire before 'lookup.cache.refresh-after-write'.",
            hint=f"Make that shorter than {expires * (1 - config.jitter):g} s, or the jitter smaller.",
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
            hint="It counts from when the entry was written, as the other does.",
        )


def _odd_errors(config: LookupConfig) -> None:
    """Rows may not fail without a trace, nor may what cannot fail leave one."""
    if config.on_error == "null" and config.error_column is None:
        raise OptionError(
            "'lookup.on-error' = 'null' needs a column to tell a failed lookup from one that found nothing.",
            hint="Name one with 'lookup.error-column'.",
        )
    if config.on_error == "dead-letter" and config.dead_letter_path is None:
        raise OptionError(
            "'lookup.on-error' = 'dead-letter' needs a place for the rows.",
            hint="Name a directory with 'lookup.dead-letter.path'.",
        )
    traces = {
        "null": ("lookup.error-column", config.error_column),
        "dead-letter": ("lookup.dead-letter.path", config.dead_letter_path),
    }
    for on_error, (key, value) in traces.items():
        if value is not None and config.on_error != on_error:
            raise OptionError(
                f"Option {key!r} means nothing with 'lookup.on-error' = {config.on_error!r}.",
                hint=f"Set 'lookup.on-error' to {on_error}.",
            )
    if config.age_column is not None and config.age_column == config.error_column:
        raise OptionError("Options 'lookup.age-column' and 'lookup.error-column' name the same column.")


def _odd_waits(config: LookupConfig) -> None:
    if config.retry_max_delay < config.retry_delay and config.retry_strategy == "exponential":
        raise OptionError("Option 'lookup.retry.max-delay' is shorter than 'lookup.retry.delay'.")


def _odd_forms(config: LookupConfig) -> None:
    """A table that is broadcast is held whole, and is there for all rows or for none."""
    if config.form != "broadcast":
        return
    if config.cache != "ALL":
        raise OptionError(
            f"'lookup.form' = 'broadcast' reads the whole table, and 'lookup.cache' is {config.cache!r}.",
            hint="Set 'lookup.cache' to ALL, or 'lookup.form' to distinct.",
        )
    if config.on_error != "fail":
        raise OptionError(
            f"'lookup.form' = 'broadcast' has a table for all rows or for none, and no row of its own to treat as "
            f"'lookup.on-error' = {config.on_error!r} asks.",
            hint="Set 'lookup.form' to worker, or leave it out.",
        )


_RULES = (
    _idle_limits, _endless_ttl, _idle_reloads, _reloads_without_time, _odd_ages, _odd_errors, _odd_waits, _odd_forms,
)  # fmt: skip
