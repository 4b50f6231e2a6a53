"""`LookupConfig`, the connector-agnostic half of a table's options, and the table of its option keys.

One field, one key, one parser, one line of documentation: the README's table, the validation and the
parsing all read the fields of `LookupConfig`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import time, timedelta
from typing import Any, Literal, get_args

from lookupcache.errors import OptionError, nearest

Strategy = Literal["NONE", "LRU", "TTL", "ALL"]
Backoff = Literal["exponential", "fixed-delay"]
MetricsChannel = Literal["auto", "accumulator", "observe", "off"]
ReloadMode = Literal["fixed-delay", "fixed-rate"]
OutputMode = Literal["ordered", "allow-unordered"]
OnError = Literal["fail", "null", "dead-letter"]

LRU_MAX_ROWS = 10_000
"""What ``lookup.cache.max-rows`` is for an LRU cache that sets no limit at all."""

_SECONDS = {
    "ms": 0.001, "milli": 0.001, "millis": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_BYTES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_TIME_OF_DAY = re.compile(r"\s*\d{2}:\d{2}(:\d{2})?\s*(Z|[+-]\d{2}:\d{2})?\s*")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_duration(value: Any) -> float:
    """Return seconds; accepts ``"10 min"``, ``"5ms"``, a timedelta, or a number of seconds.

    >>> parse_duration("10 min"), parse_duration("250ms"), parse_duration(timedelta(hours=1))
    (600.0, 0.25, 3600.0)
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    number, unit = _quantity(value, "a duration such as '10 min', '5 s' or '100 ms'")
    if unit.lower() not in _SECONDS:
        raise ValueError("a duration such as '10 min', '5 s' or '100 ms' (units: ms, s, min, h, d)")
    return number * _SECONDS[unit.lower()]


def parse_bytes(value: Any) -> int:
    """Return bytes; accepts ``"64 mb"``, ``"1gb"``, or a number of bytes (units are powers of 1,024).

    >>> parse_bytes("64 mb")
    67108864
    """
    number, unit = _quantity(str(value), "a size such as '64 mb'")
    if unit.lower() not in _BYTES:
        raise ValueError("a size such as '64 mb' (units: b, kb, mb, gb)")
    return _at_least_one(int(number * _BYTES[unit.lower()]))


def _quantity(value: Any, wanted: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(wanted)
    return float(match[1]), match[2]


def _bool(value: Any) -> bool:
    spelled = {"true": True, "false": False}.get(str(value).strip().lower())
    if spelled is None:
        raise ValueError("true or false")
    return spelled


def _at_least_one(value: int) -> int:
    if value < 1:
        raise ValueError("1 or more")
    return value


def _count(value: Any) -> int:
    try:
        return _at_least_one(int(str(value)))
    except ValueError:
        raise ValueError("a whole number, 1 or more") from None


def _retries(value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError("a whole number, 0 or more")
    return number


def _fraction(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1:
        raise ValueError("a number from 0 to 1")
    return number


def _rate(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < math.inf or isinstance(value, bool):
        raise ValueError("a number above 0, such as '50' or '0.5'")
    return number


def parse_time_of_day(value: Any) -> str:
    """Return a time of day as ISO 8601 has it; accepts ``"03:00"``, ``"03:00:30Z"`` or ``"03:00+02:00"``.

    >>> parse_time_of_day(" 03:00Z")
    '03:00:00+00:00'
    """
    if isinstance(value, str) and _TIME_OF_DAY.fullmatch(value):
        with contextlib.suppress(ValueError):
            return time.fromisoformat(value.replace(" ", "")).isoformat()
    raise ValueError("a time of day such as '03:00', '03:00Z' or '03:00+02:00'")


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a name")
    return value.strip()


def _names(value: Any) -> str:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else []
    if not names or not all(name == "*" or name.replace(".", "").isidentifier() for name in names):
        raise ValueError("names of exception classes with commas between, such as 'TimeoutError, aiohttp.ClientError'")
    return ", ".join(names)


def _dashed(text: str) -> str:
    return text.lower().replace("_", "-")


def _one_of(choices: Any, case: Callable[[str], str]) -> Callable[[Any], Any]:
    names = get_args(choices)

    def parse(value: Any) -> Any:
        if case(str(value)) not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return case(str(value))

    return parse


def _option(key: str, default: Any, parse: Callable[[Any], Any], doc: str, shown: str | None = None) -> Any:
    """Declare a field: ``shown`` is the default as documentation spells it."""
    metadata = {"key": key, "parse": parse, "doc": doc, "shown": str(default) if shown is None else shown}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class LookupConfig:
    """How lookups of one table are cached, retried and run; the same for every connector.

    Every field takes what its option key takes, so strings are fine: ``expire_after_write="10 min"``.
    Durations are held in seconds, sizes in bytes. Raises OptionError for a value that does not fit its
    option, and for options that contradict each other, naming both.

    >>> LookupConfig(cache="LRU", max_rows=500, expire_after_write="10 min")
    LookupConfig(cache='LRU', max_rows=500, expire_after_write=600.0)
    """

    cache: Strategy = _option(
        "lookup.cache", "NONE", _one_of(Strategy, str.upper), "`NONE`, `LRU`, `TTL` or `ALL`", "`NONE`"
    )
    max_rows: int | None = _option(
        "lookup.cache.max-rows", None, _count,
        "most rows (not keys) held per worker; a known miss weighs one row", "10000 with `LRU`",
    )  # fmt: skip
    max_bytes: int | None = _option(
        "lookup.cache.max-bytes", None, parse_bytes, "most bytes held per worker, keys and index counted", "none"
    )
    expire_after_write: float | None = _option(
        "lookup.cache.expire-after-write", None, parse_duration, "an entry's age limit; `TTL` needs this or the next",
        "none",
    )  # fmt: skip
    expire_after_access: float | None = _option(
        "lookup.cache.expire-after-access", None, parse_duration, "an entry's limit of time without a hit", "none"
    )
    missing_key: bool = _option("lookup.cache.missing-key", True, _bool, "remember that a key has no rows", "`true`")
    missing_key_expire_after_write: float | None = _option(
        "lookup.cache.missing-key.expire-after-write", None, parse_duration, "age limit of a known miss",
        "as for rows",
    )  # fmt: skip
    jitter: float = _option(
        "lookup.cache.jitter", 0.0, _fraction, "random part taken off each age limit, so that entries of one moment do "
        "not all expire at one moment", "0",
    )  # fmt: skip
    refresh_after_write: float | None = _option(
        "lookup.cache.refresh-after-write", None, parse_duration,
        "an entry of this age is still served, while one call fetches it anew", "never",
    )  # fmt: skip
    stale_if_error: float | None = _option(
        "lookup.cache.stale-if-error", None, parse_duration,
        "longest age that is served where the source fails; `ALL` without it serves its rows however old",
        "expired entries are never served",
    )  # fmt: skip
    reload_interval: float | None = _option(
        "lookup.cache.reload-interval", None, parse_duration,
        "`ALL`: load the table again after this long, beside the lookups", "never",
    )  # fmt: skip
    reload_mode: ReloadMode = _option(
        "lookup.cache.reload-mode", "fixed-delay", _one_of(ReloadMode, _dashed),
        "`fixed-delay`: the interval runs from the end of a load; `fixed-rate`: from its start", "`fixed-delay`",
    )  # fmt: skip
    reload_at: str | None = _option(
        "lookup.cache.reload-at", None, parse_time_of_day,
        "`ALL`: load again at this time of day, as in `03:00Z`; without a zone, the worker's", "never",
    )  # fmt: skip
    reload_allow_empty: bool = _option(
        "lookup.cache.reload-allow-empty", False, _bool,
        "`ALL`: let a reload that finds no row replace a table that had some", "`false`",
    )  # fmt: skip
    async_: bool | None = _option(
        "lookup.async", None, _bool,
        "`true`: up to `capacity` calls at the same time, through the connector's `lookup_async`, or where it has none "
        "in threads; `false`: one after the other", "connector's choice",
    )  # fmt: skip
    async_capacity: int = _option("lookup.async.capacity", 100, _count, "calls in flight per worker")
    output_mode: OutputMode = _option(
        "lookup.async.output-mode", "ordered", _one_of(OutputMode, _dashed),
        "`ordered`: batches of rows leave in the order of their coming; `allow-unordered`: as they are ready",
        "`ordered`",
    )  # fmt: skip
    timeout: float = _option(
        "lookup.timeout", 180.0, parse_duration, "time for one call to the source, retries included", "3 min"
    )
    batch_max_size: int | None = _option(
        "lookup.batch.max-size", None, _count, "most keys in one call to the source", "connector's choice"
    )
    batch_max_delay: float | None = _option(
        "lookup.batch.max-delay", None, parse_duration,
        "how long a call that is not full waits for the keys of the rows that follow", "it does not wait",
    )  # fmt: skip
    rate_limit: float | None = _option(
        "lookup.rate-limit", None, _rate, "most calls to the source per second, all workers of an executor together",
        "none",
    )  # fmt: skip
    max_retries: int = _option("lookup.max-retries", 3, _retries, "retries after an error")
    retry_on: str | None = _option(
        "lookup.retry.on", None, _names,
        "errors worth a retry, by the names of their classes, with commas between; `*` for all", "connector's choice",
    )  # fmt: skip
    retry_strategy: Backoff = _option(
        "lookup.retry.strategy", "exponential", _one_of(Backoff, str.lower), "`exponential` or `fixed-delay`",
        "`exponential`",
    )  # fmt: skip
    retry_delay: float = _option("lookup.retry.delay", 0.1, parse_duration, "the first wait", "100 ms")
    retry_max_delay: float = _option("lookup.retry.max-delay", 10.0, parse_duration, "the longest wait", "10 s")
    retry_jitter: float = _option(
        "lookup.retry.jitter", 0.1, _fraction, "random part added to each wait, as a fraction of it"
    )
    on_miss_max_attempts: int = _option(
        "lookup.retry.on-miss.max-attempts", 0, _retries,
        "how often to look again for a key of which the source has no row yet; filters are then not pushed to it",
    )  # fmt: skip
    on_miss_delay: float = _option(
        "lookup.retry.on-miss.delay", 1.0, parse_duration, "how long to wait before each such look", "1 s"
    )
    on_error: OnError = _option(
        "lookup.on-error", "fail", _one_of(OnError, _dashed),
        "what becomes of rows whose lookup failed: `fail` stops the job; `null` keeps them, with nulls and the error "
        "in `lookup.error-column`; `dead-letter` writes them to `lookup.dead-letter.path`", "`fail`",
    )  # fmt: skip
    error_column: str | None = _option(
        "lookup.error-column", None, _name,
        "name of a column for the result, a struct of `code` and `message`: null where the lookup succeeded", "none",
    )  # fmt: skip
    dead_letter_path: str | None = _option(
        "lookup.dead-letter.path", None, _name, "directory for Parquet files of the left rows whose lookup failed",
        "none",
    )  # fmt: skip
    breaker_failures: int | None = _option(
        "lookup.breaker.failures", None, _count,
        "after so many failed calls in a row the source is left alone, and lookups fail at once", "never",
    )  # fmt: skip
    breaker_delay: float = _option(
        "lookup.breaker.delay", 30.0, parse_duration, "how long, until one call may try whether the source is back",
        "30 s",
    )  # fmt: skip
    age_column: str | None = _option(
        "lookup.age-column", None, _name,
        "name of a column for the result: the age in seconds of the answer that a row was given", "none",
    )  # fmt: skip
    shuffle: bool = _option(
        "lookup.shuffle", False, _bool, "partition the left side by key first, so that each worker sees fewer keys",
        "`false`",
    )  # fmt: skip
    metrics: MetricsChannel = _option(
        "lookup.metrics", "auto", _one_of(MetricsChannel, str.lower),
        "how counts reach the driver: `accumulator` (classic Spark), `observe` (also Spark Connect, and shown in "
        "streaming progress), `off`", "`auto`: accumulator where Spark has it, else observe",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if value is not None:
                object.__setattr__(self, option.name, _parse(option, value))
        if self.cache == "LRU" and self.max_rows is None and self.max_bytes is None:
            object.__setattr__(self, "max_rows", LRU_MAX_ROWS)
        _refuse_contradictions(self)

    def __repr__(self) -> str:
        changed = (f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default)
        return f"LookupConfig({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, by option key."""
        return {
            f.metadata["key"]: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> LookupConfig:
        """Build a config from option keys; Flink's keys are understood too.

        Raises OptionError for a key that is unknown, naming the nearest one that is known.

        >>> LookupConfig.from_options({"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": "500"})
        LookupConfig(cache='LRU', max_rows=500)
        """
        fields = {f.metadata["key"]: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in _from_flink(options).items():
            if key not in fields:
                raise OptionError(f"There is no option {key!r}.", hint=nearest(key, fields, what="lookup options"))
            values[fields[key].name] = value
        return cls(**values)


def _parse(option: dataclasses.Field[Any], value: Any) -> Any:
    try:
        return option.metadata["parse"](value)
    except ValueError as error:
        raise OptionError(f"Option {option.metadata['key']!r} is {value!r}.", hint=f"It takes {error}.") from None


def _refuse_contradictions(config: LookupConfig) -> None:
    limits = {
        "lookup.cache.max-rows": config.max_rows,
        "lookup.cache.max-bytes": config.max_bytes,
        "lookup.cache.expire-after-write": config.expire_after_write,
        "lookup.cache.expire-after-access": config.expire_after_access,
        "lookup.cache.missing-key.expire-after-write": config.missing_key_expire_after_write,
        "lookup.cache.jitter": config.jitter or None,
        "lookup.cache.refresh-after-write": config.refresh_after_write,
    }
    given = [key for key, value in limits.items() if value is not None]
    if config.cache in ("NONE", "ALL") and given:
        raise OptionError(
            f"Option {given[0]!r} means nothing with 'lookup.cache' = {config.cache!r}.",
            hint="Set 'lookup.cache' to LRU or TTL, or leave that option out.",
        )
    if config.cache == "TTL" and config.expire_after_write is None and config.expire_after_access is None:
        raise OptionError(
            "'lookup.cache' = 'TTL' needs to know when an entry expires.",
            hint="Set 'lookup.cache.expire-after-write' or 'lookup.cache.expire-after-access', as in '10 min'.",
        )
    _refuse_idle_reloads(config)
    _refuse_odd_ages(config)
    _refuse_odd_errors(config)
    if config.missing_key_expire_after_write is not None and not config.missing_key:
        raise OptionError(
            "Option 'lookup.cache.missing-key.expire-after-write' contradicts 'lookup.cache.missing-key' = 'false'."
        )
    if config.retry_max_delay < config.retry_delay and config.retry_strategy == "exponential":
        raise OptionError("Option 'lookup.retry.max-delay' is shorter than 'lookup.retry.delay'.")


def _refuse_idle_reloads(config: LookupConfig) -> None:
    """Refuse what says how ALL reloads where nothing is reloaded."""
    reloads = {
        "lookup.cache.reload-interval": config.reload_interval,
        "lookup.cache.reload-at": config.reload_at,
        "lookup.cache.reload-allow-empty": config.reload_allow_empty or None,
        "lookup.cache.reload-mode": None if config.reload_mode == "fixed-delay" else config.reload_mode,
    }
    given = [key for key, value in reloads.items() if value is not None]
    if given and config.cache != "ALL":
        raise OptionError(
            f"Option {given[0]!r} means nothing with 'lookup.cache' = {config.cache!r}.",
            hint="Set 'lookup.cache' to ALL, or leave that option out.",
        )
    if config.reload_interval is not None and config.reload_at is not None:
        raise OptionError(f"Options {given[0]!r} and {given[1]!r} contradict each other.", hint="Set one of them.")
    if (
        given
        and config.reload_interval is None
        and (config.reload_at is None or len(given) > 1 + config.reload_allow_empty)
    ):
        raise OptionError(
            f"Option {given[-1]!r} needs to know when the table is loaded again.",
            hint="Set 'lookup.cache.reload-interval', as in '1 h'.",
        )
    if config.on_miss_max_attempts and config.cache == "ALL":
        raise OptionError(
            "Option 'lookup.retry.on-miss.max-attempts' means nothing with 'lookup.cache' = 'ALL'.",
            hint="Set 'lookup.cache' to LRU, TTL or NONE, or leave that option out.",
        )


def _refuse_odd_ages(config: LookupConfig) -> None:
    """Refuse ages that come in an order in which one of them never counts."""
    expires, refreshed, stale = config.expire_after_write, config.refresh_after_write, config.stale_if_error
    if expires is not None and refreshed is not None and refreshed >= expires:
        raise OptionError(
            "Option 'lookup.cache.refresh-after-write' is not shorter than 'lookup.cache.expire-after-write'.",
            hint="An entry that has expired is not refreshed but fetched anew.",
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


def _refuse_odd_errors(config: LookupConfig) -> None:
    """Refuse rows that fail without a trace, and traces of what cannot fail."""
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
    if config.error_column is not None and config.on_error != "null":
        raise OptionError(
            f"Option 'lookup.error-column' means nothing with 'lookup.on-error' = {config.on_error!r}.",
            hint="Set 'lookup.on-error' to null.",
        )
    if config.dead_letter_path is not None and config.on_error != "dead-letter":
        raise OptionError(
            f"Option 'lookup.dead-letter.path' means nothing with 'lookup.on-error' = {config.on_error!r}.",
            hint="Set 'lookup.on-error' to dead-letter.",
        )
    if config.age_column is not None and config.age_column == config.error_column:
        raise OptionError("Options 'lookup.age-column' and 'lookup.error-column' name the same column.")


_FLINK_KEYS = {
    "lookup.partial-cache.max-rows": "lookup.cache.max-rows",
    "lookup.partial-cache.expire-after-write": "lookup.cache.expire-after-write",
    "lookup.partial-cache.expire-after-access": "lookup.cache.expire-after-access",
    "lookup.partial-cache.cache-missing-key": "lookup.cache.missing-key",
    "lookup.partial-cache.caching-missing-key": "lookup.cache.missing-key",
    "lookup.full-cache.periodic-reload.interval": "lookup.cache.reload-interval",
    "lookup.full-cache.periodic-reload.schedule-mode": "lookup.cache.reload-mode",
    "lookup.full-cache.timed-reload.iso-time": "lookup.cache.reload-at",
}


def _from_flink(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under our keys; two spellings of one option that differ are refused."""
    ours: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for key, value in options.items():
        key_ours = _FLINK_KEYS.get(key, key)
        if key_ours in ours and ours[key_ours] != value:
            raise OptionError(f"Options {spelled[key_ours]!r} and {key!r} are the same option with two values.")
        ours[key_ours], spelled[key_ours] = value, key
    strategy = str(ours.get("lookup.cache", "")).upper()
    if strategy == "PARTIAL":
        expires = any(key.startswith("lookup.cache.expire-after-") for key in ours)
        bounded = "lookup.cache.max-rows" in ours or "lookup.cache.max-bytes" in ours
        ours["lookup.cache"] = "TTL" if expires and not bounded else "LRU"
    elif strategy == "FULL":
        ours["lookup.cache"] = "ALL"
    if str(ours.get("lookup.full-cache.reload-strategy", "")).upper() in ("PERIODIC", "TIMED"):
        del ours["lookup.full-cache.reload-strategy"]
    if str(ours.get("lookup.full-cache.timed-reload.interval-in-days", "")) == "1":
        del ours["lookup.full-cache.timed-reload.interval-in-days"]
    return ours


def option_table() -> str:
    """Return the Markdown table of every option, its default and its meaning; the README holds a copy."""
    rows = [
        f"| `{f.metadata['key']}` | {f.metadata['shown']} | {f.metadata['doc']} |"
        for f in dataclasses.fields(LookupConfig)
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Part a table's options into the ``lookup.*`` ones and the connector's own, the latter as strings.

    >>> split_options({"lookup.cache": "LRU", "url": "sqlite:///shop.db", "port": 5432})
    ({'lookup.cache': 'LRU'}, {'url': 'sqlite:///shop.db', 'port': '5432'})
    """
    ours = {key: value for key, value in options.items() if key.startswith("lookup.")}
    theirs = {key: _text(value) for key, value in options.items() if not key.startswith("lookup.")}
    return ours, theirs


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
