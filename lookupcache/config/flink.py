"""Flink's spelling of lookup options, so that the definition of a Flink table moves over unchanged."""

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
    "lookup.full-cache.periodic-reload.interval": "lookup.cache.reload-interval",
    "lookup.full-cache.periodic-reload.schedule-mode": "lookup.cache.reload-mode",
    "lookup.full-cache.timed-reload.iso-time": "lookup.cache.reload-at",
}
_STRATEGY = "lookup.full-cache.reload-strategy"
_DAYS = "lookup.full-cache.timed-reload.interval-in-days"
_RELOADS = {
    "PERIODIC": ("lookup.cache.reload-interval", "lookup.full-cache.periodic-reload.interval"),
    "TIMED": ("lookup.cache.reload-at", "lookup.full-cache.timed-reload.iso-time"),
}


def from_flink(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under our keys; two spellings of one option that differ are refused.

    >>> from_flink({"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": "500"})
    {'lookup.cache': 'LRU', 'lookup.cache.max-rows': '500'}
    """
    ours: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for key, value in options.items():
        key_ours = _KEYS.get(key, key)
        if key_ours in ours and ours[key_ours] != value:
            raise OptionError(f"Options {spelled[key_ours]!r} and {key!r} are the same option with two values.")
        ours[key_ours], spelled[key_ours] = value, key
    _take_strategy(ours)
    _take_reloads(ours)
    return ours


def _take_strategy(ours: dict[str, Any]) -> None:
    strategy = str(ours.get("lookup.cache", "")).upper()
    if strategy == "PARTIAL":
        expires = any(key.startswith("lookup.cache.expire-after-") for key in ours)
        bounded = "lookup.cache.max-rows" in ours or "lookup.cache.max-bytes" in ours
        ours["lookup.cache"] = "TTL" if expires and not bounded else "LRU"
    elif strategy == "FULL":
        ours["lookup.cache"] = "ALL"


def _take_reloads(ours: dict[str, Any]) -> None:
    """Take away what says in Flink which kind of reload is meant; ours follows from the option that is there."""
    if _STRATEGY in ours:
        kind = str(ours.pop(_STRATEGY)).upper()
        if kind not in _RELOADS:
            raise OptionError(f"Option {_STRATEGY!r} is {kind!r}.", hint="It takes one of PERIODIC, TIMED.")
        key_ours, key = _RELOADS[kind]
        if key_ours not in ours:
            raise OptionError(f"{_STRATEGY!r} = {kind!r} needs to know when.", hint=f"Set {key!r}.")
    if _DAYS in ours and str(days := ours.pop(_DAYS)).strip() != "1":
        raise OptionError(
            f"Option {_DAYS!r} is {days!r}.",
            hint="It takes 1: a table is loaded again each day. For longer, set 'lookup.cache.reload-interval'.",
        )
