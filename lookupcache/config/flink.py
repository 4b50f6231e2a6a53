"""Translates Flink's lookup options, so that the definition of a Flink table can be used unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lookupcache.errors import OptionError

_KEYS = {
    "lookup.partial-cache.max-rows": "lookup.cache.max-rows",
    "lookup.partial-cache.expire-after-write": "lookup.cache.expire-after-write",
    "lookup.partial-cache.expire-after-access": "lookup.cache.expire-after-access",
    "lookup.partial-cache.cache-missing-key": "lookup.cache.missing-key",
    "lookup.partial-cache.caching-missing-key": "lookup.cache.missing-key",
    "lookup.cache.ttl": "lookup.cache.expire-after-write",
    "lookup.cache.caching-missing-key": "lookup.cache.missing-key",
    "lookup.full-cache.periodic-reload.interval": "lookup.cache.reload-interval",
    "lookup.full-cache.periodic-reload.schedule-mode": "lookup.cache.reload-mode",
    "lookup.full-cache.timed-reload.iso-time": "lookup.cache.reload-at",
}
_MAX_ROWS = "lookup.cache.max-rows"
_STRATEGY = "lookup.full-cache.reload-strategy"
_DAYS = "lookup.full-cache.timed-reload.interval-in-days"
_RELOADS = {
    "PERIODIC": ("lookup.cache.reload-interval", "lookup.full-cache.periodic-reload.interval"),
    "TIMED": ("lookup.cache.reload-at", "lookup.full-cache.timed-reload.iso-time"),
}


def from_flink(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under lookupcache's keys.

    Raises OptionError where two spellings of one option have different values.

    >>> from_flink({"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": "500"})
    {'lookup.cache': 'LRU', 'lookup.cache.max-rows': '500'}

    Those of Flink's JDBC connector are understood too, with which `max-rows` alone means a cache:

    >>> from_flink({"lookup.cache.max-rows": "500", "lookup.cache.ttl": "10 min"})
    {'lookup.cache.max-rows': '500', 'lookup.cache.expire-after-write': '10 min', 'lookup.cache': 'LRU'}
    >>> from_flink({"lookup.cache.ttl": "5555"})["lookup.cache.expire-after-write"]
    '5555 ms'
    """
    translated: dict[str, Any] = {}
    original_keys: dict[str, str] = {}
    for key, value in options.items():
        new_key = _KEYS.get(key, key)
        if key == "lookup.cache.ttl" and str(value).strip().isdecimal():
            value = f"{value} ms"  # Flink's unit of a duration without one
        if new_key in translated and translated[new_key] != value:
            raise OptionError(f"Options {original_keys[new_key]!r} and {key!r} are the same option with two values.")
        translated[new_key], original_keys[new_key] = value, key
    _translate_strategy(translated)
    _translate_reloads(translated)
    return translated


def _translate_strategy(translated: dict[str, Any]) -> None:
    if _MAX_ROWS in translated:
        translated.setdefault("lookup.cache", "LRU")
    strategy = str(translated.get("lookup.cache", "")).upper()
    if strategy == "PARTIAL":
        expires = any(key.startswith("lookup.cache.expire-after-") for key in translated)
        bounded = _MAX_ROWS in translated or "lookup.cache.max-bytes" in translated
        translated["lookup.cache"] = "TTL" if expires and not bounded else "LRU"
    elif strategy == "FULL":
        translated["lookup.cache"] = "ALL"


def _translate_reloads(translated: dict[str, Any]) -> None:
    """Remove the options that name Flink's reload strategy; here the strategy follows from the other options."""
    if _STRATEGY in translated:
        kind = str(translated.pop(_STRATEGY)).upper()
        if kind not in _RELOADS:
            raise OptionError(f"Option {_STRATEGY!r} is {kind!r}.", hint="It takes one of PERIODIC, TIMED.")
        new_key, key = _RELOADS[kind]
        if new_key not in translated:
            raise OptionError(f"Option {_STRATEGY!r} = {kind!r} needs a reload time.", hint=f"Set {key!r}.")
    if _DAYS in translated and str(days := translated.pop(_DAYS)).strip() != "1":
        raise OptionError(
            f"Option {_DAYS!r} is {days!r}.",
            hint="It takes 1, for a daily reload. For a longer interval, set 'lookup.cache.reload-interval'.",
        )
