"""`LookupConfig`, the connector-agnostic half of a table's options, and the table of its option keys.

One field, one key, one parser, one line of documentation: the README's table, the validation and the
parsing all read the fields of `LookupConfig`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lookupcache.config.contradictions import refuse_contradictions
from lookupcache.config.flink import from_flink
from lookupcache.config.values import (
    dashed,
    one_of,
    parse_bool,
    parse_bytes,
    parse_class_names,
    parse_count,
    parse_duration,
    parse_fraction,
    parse_name,
    parse_rate,
    parse_time_of_day,
    parse_times,
)
from lookupcache.errors import OptionError, nearest
from lookupcache.redaction import hide_userinfo

Strategy = Literal["NONE", "LRU", "TTL", "ALL"]
Eviction = Literal["lru", "s3-fifo", "sieve"]
Backoff = Literal["exponential", "fixed-delay"]
MetricsChannel = Literal["auto", "accumulator", "observe", "off"]
ReloadMode = Literal["fixed-delay", "fixed-rate"]
OutputMode = Literal["ordered", "allow-unordered"]
OnError = Literal["fail", "null", "dead-letter"]
Form = Literal["auto", "worker", "distinct", "broadcast"]

LRU_MAX_ROWS = 10_000
"""What ``lookup.cache.max-rows`` is for an LRU cache that sets no limit at all."""


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
        "lookup.cache", "NONE", one_of(Strategy, str.upper), "`NONE`, `LRU`, `TTL` or `ALL`", "`NONE`"
    )
    max_rows: int | None = _option(
        "lookup.cache.max-rows", None, parse_count,
        "most rows (not keys) held per worker; a known miss weighs one row", "10000 with `LRU`",
    )  # fmt: skip
    max_bytes: int | None = _option(
        "lookup.cache.max-bytes", None, parse_bytes,
        "most bytes held per worker, keys and index counted; `cached` measures a value when it comes, with all that it "
        "refers to, but not what objects of other libraries hold outside of Python and do not tell", "none",
    )  # fmt: skip
    eviction: Eviction = _option(
        "lookup.cache.eviction", "lru", one_of(Eviction, dashed),
        "who goes where there are too many: `lru`, the least recently used; `s3-fifo` and `sieve`, who was not used "
        "again since it came; `lookupcache hitrate` tells which is best for your keys", "`lru`",
    )  # fmt: skip
    expire_after_write: float | None = _option(
        "lookup.cache.expire-after-write", None, parse_duration, "an entry's age limit; `TTL` needs this or the next",
        "none",
    )  # fmt: skip
    expire_after_access: float | None = _option(
        "lookup.cache.expire-after-access", None, parse_duration, "an entry's limit of time without a hit", "none"
    )
    missing_key: bool = _option(
        "lookup.cache.missing-key", True, parse_bool, "remember that a key has no rows", "`true`"
    )
    missing_key_expire_after_write: float | None = _option(
        "lookup.cache.missing-key.expire-after-write", None, parse_duration, "age limit of a known miss",
        "as for rows",
    )  # fmt: skip
    jitter: float = _option(
        "lookup.cache.jitter", 0.0, parse_fraction,
        "random part taken off each age limit, so that entries of one moment do not all expire at one moment", "0",
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
        "lookup.cache.reload-mode", "fixed-delay", one_of(ReloadMode, dashed),
        "`fixed-delay`: the interval runs from the end of a load; `fixed-rate`: from its start", "`fixed-delay`",
    )  # fmt: skip
    reload_at: str | None = _option(
        "lookup.cache.reload-at", None, parse_time_of_day,
        "`ALL`: load again at this time of day, as in `03:00Z`; without a zone, the worker's", "never",
    )  # fmt: skip
    reload_allow_empty: bool = _option(
        "lookup.cache.reload-allow-empty", False, parse_bool,
        "`ALL`: let a reload that finds no row replace a table that had some", "`false`",
    )  # fmt: skip
    async_: bool | None = _option(
        "lookup.async", None, parse_bool,
        "`true`: up to `capacity` calls at the same time, through the connector's `lookup_async`, or where it has none "
        "in threads; `false`: one after the other", "connector's choice",
    )  # fmt: skip
    async_capacity: int = _option("lookup.async.capacity", 100, parse_count, "calls in flight per worker")
    output_mode: OutputMode = _option(
        "lookup.async.output-mode", "ordered", one_of(OutputMode, dashed),
        "`ordered`: batches of rows leave in the order of their coming; `allow-unordered`: as they are ready",
        "`ordered`",
    )  # fmt: skip
    timeout: float = _option(
        "lookup.timeout", 180.0, parse_duration,
        "time for one call to the source, retries included; a sync function under `cached` is left to itself only with "
        "`lookup.async`, which gives it a thread", "3 min",
    )  # fmt: skip
    batch_max_size: int | None = _option(
        "lookup.batch.max-size", None, parse_count, "most keys in one call to the source", "connector's choice"
    )
    batch_max_delay: float | None = _option(
        "lookup.batch.max-delay", None, parse_duration,
        "how long a call that is not full waits for the keys of the rows that follow", "it does not wait",
    )  # fmt: skip
    rate_limit: float | None = _option(
        "lookup.rate-limit", None, parse_rate,
        "most calls to the source per second, all workers of an executor together", "none",
    )  # fmt: skip
    max_retries: int = _option("lookup.max-retries", 3, parse_times, "retries after an error")
    retry_on: str | None = _option(
        "lookup.retry.on", None, parse_class_names,
        "errors worth a retry, by the names of their classes, with commas between; `*` for all", "connector's choice",
    )  # fmt: skip
    retry_strategy: Backoff = _option(
        "lookup.retry.strategy", "exponential", one_of(Backoff, dashed), "`exponential` or `fixed-delay`",
        "`exponential`",
    )  # fmt: skip
    retry_delay: float = _option("lookup.retry.delay", 0.1, parse_duration, "the first wait", "100 ms")
    retry_max_delay: float = _option("lookup.retry.max-delay", 10.0, parse_duration, "the longest wait", "10 s")
    retry_jitter: float = _option(
        "lookup.retry.jitter", 0.1, parse_fraction, "random part added to each wait, as a fraction of it"
    )
    on_miss_max_attempts: int = _option(
        "lookup.retry.on-miss.max-attempts", 0, parse_times,
        "how often to look again for a key of which the source has no row yet; filters are then not pushed to it",
    )  # fmt: skip
    on_miss_delay: float = _option(
        "lookup.retry.on-miss.delay", 1.0, parse_duration, "how long to wait before each such look", "1 s"
    )
    on_error: OnError = _option(
        "lookup.on-error", "fail", one_of(OnError, dashed),
        "what becomes of rows whose lookup failed: `fail` stops the job; `null` keeps them, with nulls and the error "
        "in `lookup.error-column`; `dead-letter` writes them to `lookup.dead-letter.path`", "`fail`",
    )  # fmt: skip
    error_column: str | None = _option(
        "lookup.error-column", None, parse_name,
        "name of a column for the result, a struct of `code` and `message`: null where the lookup succeeded", "none",
    )  # fmt: skip
    dead_letter_path: str | None = _option(
        "lookup.dead-letter.path", None, parse_name,
        "directory for Parquet files of the left rows whose lookup failed, with the error; a task that is tried again "
        "writes its rows again", "none",
    )  # fmt: skip
    breaker_failures: int | None = _option(
        "lookup.breaker.failures", None, parse_count,
        "after so many failed calls in a row the source is left alone, and lookups fail at once", "never",
    )  # fmt: skip
    breaker_delay: float = _option(
        "lookup.breaker.delay", 30.0, parse_duration, "how long, until one call may try whether the source is back",
        "30 s",
    )  # fmt: skip
    age_column: str | None = _option(
        "lookup.age-column", None, parse_name,
        "name of a column for the result: the age in seconds of the answer that a row was given", "none",
    )  # fmt: skip
    form: Form = _option(
        "lookup.form", "auto", one_of(Form, str.lower),
        "who joins: `worker`: every row goes through Python; `distinct`: only the distinct keys, and Spark joins; "
        "`broadcast`: Spark joins with the whole table (`ALL`); `auto` chooses, and `explain` says why", "`auto`",
    )  # fmt: skip
    shuffle: bool = _option(
        "lookup.shuffle", False, parse_bool,
        "partition the left side by key first, so that each worker sees fewer keys", "`false`",
    )  # fmt: skip
    metrics: MetricsChannel = _option(
        "lookup.metrics", "auto", one_of(MetricsChannel, str.lower),
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
        refuse_contradictions(self)

    def __repr__(self) -> str:
        fields = [f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        changed = {f.name: getattr(self, f.name) for f in fields}
        if self.dead_letter_path is not None:
            changed["dead_letter_path"] = hide_userinfo(self.dead_letter_path)
        return f"LookupConfig({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

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
        for key, value in from_flink(options).items():
            if key not in fields:
                raise OptionError(f"There is no option {key!r}.", hint=nearest(key, fields, what="lookup options"))
            values[fields[key].name] = value
        return cls(**values)


def _parse(option: dataclasses.Field[Any], value: Any) -> Any:
    try:
        return option.metadata["parse"](value)
    except ValueError as error:
        raise OptionError(f"Option {option.metadata['key']!r} is {value!r}.", hint=f"It takes {error}.") from None


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
