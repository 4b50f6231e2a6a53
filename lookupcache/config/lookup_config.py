"""`LookupConfig`, the ``lookup.*`` options of a table, which are the same for every connector.

Each field declares its option key, its parser and its line of documentation. The option table of docs/options.md, the
validation and the parsing are all derived from the fields.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from lookupcache.config.contradictions import refuse_contradictions
from lookupcache.config.flink import from_flink
from lookupcache.config.values import (
    Eviction,
    one_of,
    parse_bool,
    parse_bytes,
    parse_class_names,
    parse_column,
    parse_count,
    parse_duration,
    parse_eviction,
    parse_folder,
    parse_fraction,
    parse_identifier,
    parse_name,
    parse_non_negative,
    parse_period,
    parse_rate,
    parse_store,
    parse_time_limit,
    parse_time_of_day,
    to_dashes,
)
from lookupcache.errors import OptionError, nearest
from lookupcache.redaction import hide_address
from lookupcache.source_options import path_from, working_directory

Strategy = Literal["NONE", "LRU", "TTL", "ALL"]
Backoff = Literal["exponential", "fixed-delay"]
MetricsChannel = Literal["auto", "accumulator", "observe", "off"]
ReloadMode = Literal["fixed-delay", "fixed-rate"]
OutputMode = Literal["ordered", "allow-unordered"]
OnError = Literal["fail", "null", "dead-letter"]
Form = Literal["auto", "worker", "distinct", "broadcast"]
Scope = Literal["auto", "worker", "host"]
Fuse = Literal["auto", "off"]
RateScope = Literal["executor", "cluster"]

Changed = Literal[
    "age", "cache", "calls", "failures", "columns", "versions", "form", "order", "failed rows", "dead letters"
]
"""What another value of an option changes; `compiled.diff` says what that means for a job."""

PARTIAL: tuple[Strategy, ...] = ("LRU", "TTL")
FULL: tuple[Strategy, ...] = ("ALL",)
"""The strategies that cache the rows of the keys that were looked up, and those that cache the full table."""

LRU_MAX_ROWS = 10_000
"""The limit of rows of an LRU cache without any limit, which a worker or process has for itself."""

LRU_MAX_HOST_BYTES = 256 << 20
"""The limit of bytes of an LRU cache without any limit, which all workers of a machine share."""


def _option(
    key: str,
    default: Any,
    parse: Callable[[Any], Any],
    doc: str,
    shown: str | None = None,
    *,
    change: Changed,
    strategies: tuple[Strategy, ...] = get_args(Strategy),
    cached: Literal["used", "ignored", "refused"] = "used",
) -> Any:
    """Declare an option field, with its line in the option table, which has ``shown`` as the default.

    ``change`` is what another value changes, ``strategies`` are those with which it has an effect, and ``cached`` is
    whether `cached` uses the option.
    """
    shown = str(default) if shown is None else shown
    metadata = {"key": key, "parse": parse, "doc": doc, "shown": shown, "change": change, "cached": cached}
    return field(default=default, metadata=metadata | {"strategies": strategies})


REMOVED = {
    "lookup.async.capacity.cluster": "Limit the calls of all hosts with 'lookup.rate-limit' and "
    "'lookup.rate-limit.scope' = 'cluster', and those of each worker with 'lookup.async.capacity'.",
}
"""The replacement of each option that an earlier version had."""


@dataclass(frozen=True, kw_only=True)
class LookupConfig:
    """How lookups of one table are cached, retried and executed; the same for every connector.

    Every field accepts what its option key accepts, also as text: ``expire_after_write="10 min"``.
    Durations are stored in seconds, sizes in bytes. Raises OptionError for a value that its option does not
    accept, and for options that contradict each other, naming both.

    >>> LookupConfig(cache="LRU", max_rows=500, expire_after_write="10 min")
    LookupConfig(cache='LRU', max_rows=500, expire_after_write=600.0)
    """

    if not TYPE_CHECKING:  # Type checkers know the names from the fields.

        def __new__(cls, **options: Any) -> LookupConfig:
            """Raise OptionError for a name that is no field's."""
            for name in options:
                if name not in cls.__dataclass_fields__:
                    known = cls.__dataclass_fields__
                    raise OptionError(f"There is no option {name!r}.", hint=nearest(name, known, what="options"))
            return super().__new__(cls)

    cache: Strategy = _option(
        "lookup.cache",
        "NONE",
        one_of(Strategy, str.upper),
        "the rows that are cached: `NONE` none; `LRU`, `TTL` those of the keys that were looked up; `ALL` all",
        "`NONE`",
        change="age",
    )
    scope: Scope = _option(
        "lookup.cache.scope", "auto", one_of(Scope, str.lower),
        "which processes share a cache: `worker`: none; `host`: the workers of a machine, in local files; "
        "`auto`: `host`, and `worker` where Spark's local directory cannot be used", "`auto`",
        change="cache", strategies=(*PARTIAL, *FULL),
    )  # fmt: skip
    cache_path: str | None = _option(
        "lookup.cache.path", None, parse_folder,
        "local directory for the cache of scope `host`, which applications with the same path share, also later ones; "
        "a relative one starts where the driver runs",
        "in Spark's local directory, for the application",
        change="cache", strategies=(*PARTIAL, *FULL),
    )  # fmt: skip
    store: str | None = _option(
        "lookup.cache.store", None, parse_store,
        "store behind the cache (`LRU`, `TTL`) that all hosts and later jobs share: a Redis or Valkey server, or a "
        "folder, by a path or a URL of `file://`, `s3://`, `gs://`, `abfss://` or `hdfs://`; `env:NAME` or `file:PATH` "
        "for a URL with a password", "none", change="cache", strategies=PARTIAL,
    )  # fmt: skip
    store_name: str | None = _option(
        "lookup.cache.store.name", None, parse_identifier,
        "name under which rows are stored, shared by all jobs with this name, whatever their filters, source and code",
        "a hash", change="age", strategies=PARTIAL,
    )  # fmt: skip
    version: str | None = _option(
        "lookup.cache.version", None, parse_name,
        "version of the source's code: a store or a path shares rows of the same version only",
        "a hash", change="age",
    )  # fmt: skip
    store_timeout: float = _option(
        "lookup.cache.store.timeout", 0.2, parse_time_limit,
        "how long to wait for the store, to connect and for each answer, before lookups go on without it; "
        "[longer](sharing.md#a-store-for-all-machines) for a server that may be busy", "200 ms",
        change="cache", strategies=PARTIAL,
    )  # fmt: skip
    store_expire_after_write: float | None = _option(
        "lookup.cache.store.expire-after-write", None, parse_duration,
        "maximum age of an entry of the store, which also deletes it after that time", "as in the cache",
        change="age", strategies=PARTIAL,
    )  # fmt: skip
    max_rows: int | None = _option(
        "lookup.cache.max-rows", None, parse_count,
        "maximum number of rows (not keys) cached by all workers of a machine, with scope `worker` by each; a key "
        "without rows counts as one row", "with `LRU` and no `max-bytes`: 10000 with scope `worker`, else none",
        change="cache", strategies=PARTIAL,
    )  # fmt: skip
    max_bytes: int | None = _option(
        "lookup.cache.max-bytes", None, parse_bytes,
        "maximum number of bytes, including keys and index, of a machine's files, with scope `worker` of each worker; "
        "`cached` measures a value once, when it is added, with all that it refers to",
        "with `LRU` and no `max-rows`: 256 mb with scope `host`, else none", change="cache", strategies=PARTIAL,
    )  # fmt: skip
    eviction: Eviction = _option(
        "lookup.cache.eviction", "lru", parse_eviction,
        "eviction policy of a full cache: `lru` evicts the least recently used entry, `s3-fifo` entries that were "
        "not used again after they were added", "`lru`",
        change="cache", strategies=PARTIAL,
    )  # fmt: skip
    expire_after_write: float | None = _option(
        "lookup.cache.expire-after-write", None, parse_duration,
        "maximum age of an entry; `TTL` needs this option or the next", "none", change="age", strategies=PARTIAL,
    )  # fmt: skip
    expire_after_access: float | None = _option(
        "lookup.cache.expire-after-access", None, parse_duration,
        "maximum time since the last hit of an entry", "none", change="age", strategies=PARTIAL,
    )  # fmt: skip
    missing_key: bool = _option(
        "lookup.cache.missing-key", True, parse_bool, "cache that a key has no rows", "`true`", change="age"
    )
    missing_key_expire_after_write: float | None = _option(
        "lookup.cache.missing-key.expire-after-write", None, parse_duration,
        "maximum age of an entry for a key without rows", "as for rows", change="age", strategies=PARTIAL,
    )  # fmt: skip
    jitter: float = _option(
        "lookup.cache.jitter", 0.0, parse_fraction,
        "random fraction subtracted from each maximum age, so that entries do not expire together",
        "0", change="age", strategies=PARTIAL,
    )  # fmt: skip
    refresh_after_write: float | None = _option(
        "lookup.cache.refresh-after-write", None, parse_duration,
        "entries older than this are still served while one call refreshes them", "never",
        change="age", strategies=PARTIAL,
    )  # fmt: skip
    stale_if_error: float | None = _option(
        "lookup.cache.stale-if-error", None, parse_duration,
        "maximum age of an entry, with or without rows, that is served when the source fails; `ALL` without it serves "
        "rows of any age",
        "expired entries are never served", change="age",
    )  # fmt: skip
    reload_interval: float | None = _option(
        "lookup.cache.reload-interval", None, parse_duration,
        "`ALL`: reload the table after this time, while lookups continue", "never",
        change="age", strategies=FULL, cached="refused",
    )  # fmt: skip
    reload_mode: ReloadMode = _option(
        "lookup.cache.reload-mode", "fixed-delay", one_of(ReloadMode, to_dashes),
        "`fixed-delay`: the interval starts at the end of a load; `fixed-rate`: at its start", "`fixed-delay`",
        change="age", strategies=FULL, cached="refused",
    )  # fmt: skip
    reload_at: str | None = _option(
        "lookup.cache.reload-at", None, parse_time_of_day,
        "`ALL`: reload the table daily at this time, for example `03:00Z`; without a time zone, in the worker's",
        "never", change="age", strategies=FULL, cached="refused",
    )  # fmt: skip
    reload_allow_empty: bool = _option(
        "lookup.cache.reload-allow-empty", False, parse_bool,
        "`ALL`: allow a reload without any row to replace a table with rows", "`false`",
        change="age", strategies=FULL, cached="refused",
    )  # fmt: skip
    async_: bool | None = _option(
        "lookup.async", None, parse_bool,
        "`true`: up to `lookup.async.capacity` concurrent calls, through the connector's `lookup_async`, or in threads "
        "if it has none; `false`: one call at a time", "connector's choice", change="calls",
    )  # fmt: skip
    async_capacity: int = _option(
        "lookup.async.capacity", 100, parse_count, "maximum number of concurrent calls per worker", change="calls"
    )
    output_mode: OutputMode = _option(
        "lookup.async.output-mode", "ordered", one_of(OutputMode, to_dashes),
        "`ordered`: batches of rows are emitted in input order; `allow-unordered`: as soon as they are ready",
        "`ordered`", change="order", cached="refused",
    )  # fmt: skip
    timeout: float = _option(
        "lookup.timeout", 180.0, parse_duration,
        "timeout of one call to the source, including retries; `cached` abandons a sync function that hangs only with "
        "`lookup.async`, which runs it in a thread", "3 min", change="failures",
    )  # fmt: skip
    batch_max_size: int | None = _option(
        "lookup.batch.max-size",
        None,
        parse_count,
        "maximum number of keys per call to the source",
        "connector's choice",
        change="calls",
    )
    batch_max_delay: float | None = _option(
        "lookup.batch.max-delay", None, parse_duration,
        "how long a call with fewer keys waits for the keys of the rows that follow", "no wait", change="calls",
    )  # fmt: skip
    rate_limit: float | None = _option(
        "lookup.rate-limit", None, parse_rate,
        "maximum number of calls to the source per second, for all workers of an executor together", "none",
        change="calls",
    )  # fmt: skip
    rate_limit_scope: RateScope = _option(
        "lookup.rate-limit.scope", "executor", one_of(RateScope, str.lower),
        "workers that `lookup.rate-limit` limits together: `executor`: those of an executor; `cluster`: those of all "
        "hosts, by the Redis server of `lookup.cache.store`", "`executor`", change="calls",
    )  # fmt: skip
    max_retries: int = _option(
        "lookup.max-retries", 3, parse_non_negative, "maximum number of retries after an error", change="failures"
    )
    retry_on: str | None = _option(
        "lookup.retry.on", None, parse_class_names,
        "errors that are retried, as class names separated by commas; `*` for all", "connector's choice",
        change="failures",
    )  # fmt: skip
    retry_strategy: Backoff = _option(
        "lookup.retry.strategy", "exponential", one_of(Backoff, to_dashes),
        "how the delay between retries develops: `exponential` or `fixed-delay`", "`exponential`", change="calls",
    )  # fmt: skip
    retry_delay: float = _option(
        "lookup.retry.delay", 0.1, parse_duration, "delay before the first retry", "100 ms", change="calls"
    )
    retry_max_delay: float = _option(
        "lookup.retry.max-delay", 10.0, parse_duration, "maximum delay before a retry", "10 s", change="calls"
    )
    retry_jitter: float = _option(
        "lookup.retry.jitter", 0.1, parse_fraction, "random fraction added to each delay", change="calls"
    )
    on_miss_max_attempts: int = _option(
        "lookup.retry.on-miss.max-attempts", 0, parse_non_negative,
        "how often to retry the lookup of a key for which the source has no row yet; filters are then not pushed to "
        "the source", change="age", strategies=("NONE", *PARTIAL),
    )  # fmt: skip
    on_miss_delay: float = _option(
        "lookup.retry.on-miss.delay", 1.0, parse_duration,
        "delay before each retry of a key without rows", "1 s", change="age",
    )  # fmt: skip
    on_error: OnError = _option(
        "lookup.on-error", "fail", one_of(OnError, to_dashes),
        "rows whose lookup failed: `fail` fails the job; `null` keeps them, with nulls and the error "
        "in `lookup.error-column`; `dead-letter` writes them to `lookup.dead-letter.path`", "`fail`",
        change="failed rows",
    )  # fmt: skip
    error_column: str | None = _option(
        "lookup.error-column", None, parse_column,
        "name of a result column, a struct of `code` and `message`; null where the lookup succeeded", "none",
        change="columns", cached="ignored",
    )  # fmt: skip
    dead_letter_path: str | None = _option(
        "lookup.dead-letter.path", None, parse_name,
        "directory for Parquet files with the left rows whose lookup failed, and the error", "none",
        change="dead letters", cached="refused",
    )  # fmt: skip
    breaker_failures: int | None = _option(
        "lookup.breaker.failures", None, parse_count,
        "number of consecutive failed calls after which the circuit breaker opens: lookups fail without a call",
        "never", change="failures",
    )  # fmt: skip
    breaker_delay: float = _option(
        "lookup.breaker.delay", 30.0, parse_duration,
        "how long the circuit breaker stays open before one call tests whether the source has recovered", "30 s",
        change="failures",
    )  # fmt: skip
    age_column: str | None = _option(
        "lookup.age-column", None, parse_column,
        "name of a result column with the age in seconds of the lookup result that a row was joined with", "none",
        change="columns", cached="refused",
    )  # fmt: skip
    form: Form = _option(
        "lookup.form", "auto", one_of(Form, str.lower),
        "form of the join: `worker`: every row passes through Python; `distinct`: only the distinct keys do; "
        "`broadcast`: Spark joins with the full table (`ALL`); `auto` chooses, and `explain` shows why", "`auto`",
        change="form", cached="ignored",
    )  # fmt: skip
    fuse: Fuse = _option(
        "lookup.fuse", "auto", one_of(Fuse, str.lower),
        "whether the join shares a Python stage with the lookup join on its left side: `auto`: if nothing between them "
        "needs Spark, as `explain` shows; `off`: never", "`auto`", change="form", cached="ignored",
    )  # fmt: skip
    as_of_period: str | None = _option(
        "lookup.as-of.period", None, parse_period,
        "the two columns of the period in which a row of the table is valid, for "
        "[as-of joins](streams.md#as-of-joins), as in `valid_from, valid_to`", "none",
        change="versions", cached="refused",
    )  # fmt: skip
    as_of_version: str | None = _option(
        "lookup.as-of.version", None, parse_column,
        "the column of a row's version, for as-of joins: its time, or a number that grows", "none",
        change="versions", cached="refused",
    )  # fmt: skip
    full_scan: bool = _option(
        "lookup.full-scan", False, parse_bool,
        "in SQL, read the full table where a join with it cannot be a lookup, as in FULL JOIN; EXPLAIN shows why; "
        "without it, such a join is an error", "`false`", change="form", cached="ignored",
    )  # fmt: skip
    shuffle: bool = _option(
        "lookup.shuffle", False, parse_bool,
        "partition the left side by key first, so that each worker looks up fewer keys", "`false`",
        change="form", cached="refused",
    )  # fmt: skip
    metrics: MetricsChannel = _option(
        "lookup.metrics", "auto", one_of(MetricsChannel, str.lower),
        "how metrics are reported to the driver: `accumulator` (classic Spark), `observe` (also Spark Connect, and "
        "in the progress of a stream), `off`",
        "`auto`: accumulator on classic Spark, and for a stream observe too; on Spark Connect observe",
        change="form", cached="ignored",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if value is not None and value is not option.default:
                object.__setattr__(self, option.name, _parse(option, value))
        refuse_contradictions(self)

    def __repr__(self) -> str:
        fields = [f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        changed = {f.name: getattr(self, f.name) for f in fields}
        if self.dead_letter_path is not None:
            changed["dead_letter_path"] = hide_address(self.dead_letter_path)
        return f"LookupConfig({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    @property
    def keeps_rows_by_content(self) -> bool:
        """Whether rows outlive the application under what determines them, and not under a stated name alone."""
        return self.cache_path is not None or (self.store is not None and self.store_name is None)

    @property
    def is_host_scope(self) -> bool:
        """Whether the workers of a host share one cache; with scope ``auto``, where they have a folder for it."""
        return self.scope != "worker" and self.cache != "NONE"

    @property
    def marks(self) -> dict[str, str]:
        """The names of the age and error columns, by the options that give them; without those that are not set."""
        named = {"lookup.age-column": self.age_column, "lookup.error-column": self.error_column}
        return {option: name for option, name in named.items() if name is not None}

    def size_in(self, scope: Literal["worker", "host"] | None = None) -> tuple[int | None, int | None]:
        """Return the maximum number of rows and of bytes, None for no limit, of a cache of this scope.

        The default is the config's scope.

        They differ for an LRU cache without limits, since disk is cheaper than each worker's memory. A cache that is a
        worker's own because no folder can be used has the limit of a worker.

        >>> LookupConfig(cache="LRU").size_in("worker"), LookupConfig(cache="LRU").size_in("host")
        ((10000, None), (None, 268435456))
        >>> LookupConfig(cache="LRU", max_rows=500).size_in("host")
        (500, None)
        """
        if self.cache == "LRU" and self.max_rows is None and self.max_bytes is None:
            is_host = self.is_host_scope if scope is None else scope == "host"
            return (None, LRU_MAX_HOST_BYTES) if is_host else (LRU_MAX_ROWS, None)
        return self.max_rows, self.max_bytes

    def located(self) -> LookupConfig:
        """Return the options with an absolute ``lookup.cache.path``: workers start in directories of their own.

        >>> LookupConfig(cache="LRU", cache_path="~/kept").located().cache_path == os.path.expanduser("~/kept")
        True
        """
        path = self.cache_path
        if path is None or os.path.isabs(path):
            return self
        found = path_from(working_directory(), os.path.expanduser(path), "lookup.cache.path")
        return dataclasses.replace(self, cache_path=os.path.normpath(found))

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, by option key."""
        return {
            f.metadata["key"]: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> LookupConfig:
        """Build a config from option keys; Flink's keys are accepted too.

        Raises OptionError for an unknown key, and suggests the most similar known key.

        >>> LookupConfig.from_options({"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": "500"})
        LookupConfig(cache='LRU', max_rows=500)
        """
        fields = {f.metadata["key"]: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in from_flink(options).items():
            if key not in fields:
                hint = REMOVED.get(key) or nearest(key, fields, what="lookup options")
                raise OptionError(f"There is no option {key!r}.", hint=hint)
            values[fields[key].name] = value
        return cls(**values)


def _parse(option: dataclasses.Field[Any], value: Any) -> Any:
    try:
        return option.metadata["parse"](value)
    except OptionError:
        raise
    except ValueError as error:
        shown = hide_address(value) if isinstance(value, str) else value
        raise OptionError(f"Option {option.metadata['key']!r} is {shown!r}.", hint=f"It takes {error}.") from None


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split a table's options into the ``lookup.*`` options and the connector's own, the latter as strings.

    >>> split_options({"lookup.cache": "LRU", "url": "sqlite:///shop.db", "port": 5432})
    ({'lookup.cache': 'LRU'}, {'url': 'sqlite:///shop.db', 'port': '5432'})
    """
    lookup = {key: value for key, value in options.items() if key.startswith("lookup.")}
    own = {key: _to_text(value) for key, value in options.items() if not key.startswith("lookup.")}
    return lookup, own


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
