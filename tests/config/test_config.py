"""Every option: what it takes, what it refuses, what it contradicts; Flink's spelling of it."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from option_values import ALL, HOURLY, LETTERS, LRU, NULL, STORE, TEN_MINUTES, VALUES

from lookupcache.config import LookupConfig, split_options
from lookupcache.config.values import parse_bytes, parse_duration
from lookupcache.decorator import cached
from lookupcache.errors import OptionError
from lookupcache.table import LookupTable

FIELDS = {field.metadata["key"]: field for field in dataclasses.fields(LookupConfig)}


def test_every_option_is_tried_here():
    assert set(VALUES) == set(FIELDS)


@pytest.mark.parametrize("key", VALUES)
def test_an_option_takes_its_values_and_refuses_others(key):
    others, good, bad = VALUES[key]
    for text, value in good:
        assert getattr(LookupConfig.from_options({**others, key: text}), FIELDS[key].name) == value
    for text in bad:
        if text is not None:
            with pytest.raises(OptionError, match=f"Option '{key}' is (?s:.*)Hint: It takes"):
                LookupConfig.from_options({**others, key: text})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lookup.cache": "NONE", "lookup.cache.max-rows": "5"}, ["lookup.cache.max-rows", "'lookup.cache' = 'NONE'"]),
        ({**ALL, "lookup.cache.max-bytes": "5"}, ["lookup.cache.max-bytes", "'lookup.cache' = 'ALL'"]),
        ({**ALL, "lookup.cache.expire-after-write": "5 s"}, ["lookup.cache.expire-after-write", "'ALL'"]),
        ({"lookup.cache": "TTL"}, ["'TTL'", "lookup.cache.expire-after-write", "lookup.cache.expire-after-access"]),
        ({**LRU, "lookup.cache.reload-interval": "5 s"}, ["lookup.cache.reload-interval", "'LRU'"]),
        (
            {**LRU, "lookup.cache.missing-key": "false", "lookup.cache.missing-key.expire-after-write": "5 s"},
            ["lookup.cache.missing-key.expire-after-write", "'lookup.cache.missing-key' = 'false'"],
        ),
        ({**STORE, "lookup.rate-limit.scope": "cluster"}, ["lookup.rate-limit.scope", "without 'lookup.rate-limit'"]),
        (
            {"lookup.rate-limit": 5, "lookup.rate-limit.scope": "cluster"},
            ["lookup.rate-limit.scope", "'lookup.cache.store' to its URL"],
        ),
        ({"lookup.async.capacity.cluster": 5}, ["lookup.async.capacity.cluster", "'lookup.rate-limit.scope'"]),
        ({**STORE, **ALL}, ["lookup.cache.store", "'lookup.cache' = 'ALL'"]),
        ({"lookup.cache.store": "redis://h"}, ["lookup.cache.store", "'lookup.cache' = 'NONE'"]),
        ({**LRU, "lookup.cache.store.name": "x"}, ["lookup.cache.store.name", "without 'lookup.cache.store'"]),
        ({**LRU, "lookup.cache.store.timeout": "1 s"}, ["lookup.cache.store.timeout", "without 'lookup.cache.store'"]),
        ({**LRU, "lookup.cache.version": "2"}, ["lookup.cache.version", "without 'lookup.cache.store'"]),
        ({**ALL, "lookup.cache.jitter": "0.1"}, ["lookup.cache.jitter", "'lookup.cache' = 'ALL'"]),
        ({"lookup.cache.eviction": "sieve"}, ["lookup.cache.eviction", "'s3-fifo' replaces 'sieve'"]),
        ({"lookup.cache.eviction": "s3-fifo"}, ["lookup.cache.eviction", "'lookup.cache' = 'NONE'"]),
        ({"lookup.cache.refresh-after-write": "1 s"}, ["lookup.cache.refresh-after-write", "'lookup.cache' = 'NONE'"]),
        (
            {**TEN_MINUTES, "lookup.cache.refresh-after-write": "10 min"},
            ["lookup.cache.refresh-after-write", "lookup.cache.expire-after-write"],
        ),
        (
            {**TEN_MINUTES, "lookup.cache.refresh-after-write": "8 min", "lookup.cache.jitter": "0.25"},
            ["lookup.cache.jitter", "lookup.cache.refresh-after-write", "450 s"],
        ),
        (
            {**TEN_MINUTES, "lookup.cache.stale-if-error": "10 min"},
            ["lookup.cache.stale-if-error", "lookup.cache.expire-after-write"],
        ),
        (
            {**LRU, "lookup.cache.stale-if-error": "1 h"},
            ["lookup.cache.stale-if-error", "lookup.cache.expire-after-write"],
        ),
        ({"lookup.cache.reload-at": "03:00"}, ["lookup.cache.reload-at", "'lookup.cache' = 'NONE'"]),
        ({**LRU, "lookup.cache.reload-mode": "fixed-rate"}, ["lookup.cache.reload-mode", "'lookup.cache' = 'LRU'"]),
        (
            {**HOURLY, "lookup.cache.reload-at": "03:00"},
            ["'lookup.cache.reload-interval'", "'lookup.cache.reload-at'"],
        ),
        ({**ALL, "lookup.cache.reload-allow-empty": "true"}, ["lookup.cache.reload-allow-empty", "reload-interval"]),
        (
            {**ALL, "lookup.cache.reload-at": "03:00", "lookup.cache.reload-mode": "fixed-rate"},
            ["lookup.cache.reload-mode", "lookup.cache.reload-interval"],
        ),
        (
            {**ALL, "lookup.retry.on-miss.max-attempts": "2"},
            ["lookup.retry.on-miss.max-attempts", "'lookup.cache' = 'ALL'"],
        ),
        ({"lookup.on-error": "null"}, ["'lookup.on-error' = 'null'", "lookup.error-column"]),
        ({"lookup.on-error": "dead-letter"}, ["'lookup.on-error' = 'dead-letter'", "lookup.dead-letter.path"]),
        ({"lookup.error-column": "e"}, ["lookup.error-column", "'lookup.on-error' = 'fail'"]),
        ({**LETTERS, "lookup.error-column": "e"}, ["lookup.error-column", "'lookup.on-error' = 'dead-letter'"]),
        ({**NULL, "lookup.dead-letter.path": "x"}, ["lookup.dead-letter.path", "'lookup.on-error' = 'null'"]),
        ({**NULL, "lookup.age-column": "e"}, ["lookup.age-column", "lookup.error-column"]),
        ({**LRU, "lookup.form": "broadcast"}, ["'lookup.form' = 'broadcast'", "'lookup.cache' is 'LRU'"]),
        ({**ALL, **NULL, "lookup.form": "broadcast"}, ["'lookup.form' = 'broadcast'", "'lookup.on-error' = 'null'"]),
        ({"lookup.retry.delay": "20 s"}, ["lookup.retry.max-delay", "lookup.retry.delay"]),
        (
            {"lookup.partial-cache.max-rows": "5", "lookup.cache.max-rows": "6"},
            ["'lookup.partial-cache.max-rows'", "'lookup.cache.max-rows'"],
        ),
    ],
)
def test_contradictions_name_both_options(options, named):
    with pytest.raises(OptionError) as raised:
        LookupConfig.from_options(options)
    assert [word for word in named if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("flink", "ours"),
    [
        ({"lookup.cache": "PARTIAL"}, {"cache": "LRU"}),
        ({"lookup.cache.max-rows": "5"}, {"cache": "LRU", "max_rows": 5}),
        (
            {"lookup.cache.max-rows": "5", "lookup.cache.ttl": "1min", "lookup.cache.caching-missing-key": "false"},
            {"cache": "LRU", "max_rows": 5, "expire_after_write": 60, "missing_key": False},
        ),
        ({"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": "5"}, {"cache": "LRU", "max_rows": 5}),
        (
            {"lookup.cache": "PARTIAL", "lookup.partial-cache.expire-after-write": "1 min"},
            {"cache": "TTL", "expire_after_write": 60},
        ),
        (
            {
                "lookup.cache": "partial",
                "lookup.partial-cache.expire-after-access": "1 min",
                "lookup.partial-cache.max-rows": "5",
                "lookup.partial-cache.cache-missing-key": "false",
            },
            {"cache": "LRU", "expire_after_access": 60, "max_rows": 5, "missing_key": False},
        ),
        (
            {
                "lookup.cache": "FULL",
                "lookup.full-cache.reload-strategy": "PERIODIC",
                "lookup.full-cache.periodic-reload.interval": "1 h",
            },
            {"cache": "ALL", "reload_interval": 3600},
        ),
        (
            {
                "lookup.cache": "full",
                "lookup.full-cache.periodic-reload.interval": "1 h",
                "lookup.full-cache.periodic-reload.schedule-mode": "FIXED_RATE",
            },
            {"cache": "ALL", "reload_interval": 3600, "reload_mode": "fixed-rate"},
        ),
        (
            {
                "lookup.cache": "FULL",
                "lookup.full-cache.reload-strategy": "timed",
                "lookup.full-cache.timed-reload.iso-time": "10:15+07:00",
                "lookup.full-cache.timed-reload.interval-in-days": "1",
            },
            {"cache": "ALL", "reload_at": "10:15+07:00"},
        ),
    ],
)
def test_a_flink_table_moves_over_unchanged(flink, ours):
    assert LookupConfig.from_options(flink) == LookupConfig(**ours)


def test_an_unknown_option_is_refused_with_the_nearest_known_one():
    with pytest.raises(OptionError, match=r"'lookup\.cache\.max-row'(?s:.*)'lookup\.cache\.max-rows'"):
        LookupConfig.from_options({"lookup.cache.max-row": "5"})


@pytest.mark.parametrize(
    ("flink", "named"),
    [
        ({"reload-strategy": "HOURLY"}, ["lookup.full-cache.reload-strategy", "HOURLY", "PERIODIC, TIMED"]),
        (
            {"reload-strategy": "TIMED"},
            ["lookup.full-cache.reload-strategy", "lookup.full-cache.timed-reload.iso-time"],
        ),
        ({"reload-strategy": "PERIODIC"}, ["reload-strategy", "lookup.full-cache.periodic-reload.interval"]),
        (
            {"timed-reload.iso-time": "10:15", "timed-reload.interval-in-days": "7"},
            ["lookup.full-cache.timed-reload.interval-in-days", "'7'", "lookup.cache.reload-interval"],
        ),
    ],
)
def test_unsupported_flink_options_are_refused_by_flinks_name(flink, named):
    with pytest.raises(OptionError) as raised:
        LookupConfig.from_options({**ALL, **{f"lookup.full-cache.{key}": value for key, value in flink.items()}})
    assert [word for word in named if word not in str(raised.value)] == []


def test_an_lru_without_any_limit_gets_one_of_its_scope():
    config = LookupConfig(cache="LRU")
    assert (config.size_in("worker"), config.size_in("host")) == ((10_000, None), (None, 256 << 20))
    for limited in (LookupConfig(cache="LRU", max_bytes=100), LookupConfig(cache="LRU", scope="host", max_bytes=100)):
        assert limited.size_in("worker") == limited.size_in("host") == (None, 100)
    endless = LookupConfig(cache="TTL", expire_after_write=1)
    assert endless.size_in("worker") == endless.size_in("host") == (None, None)


CONFIGS = st.builds(
    LookupConfig,
    cache=st.just("LRU"),
    max_rows=st.none() | st.integers(1, 10**9),
    max_bytes=st.none() | st.integers(1, 10**12),
    expire_after_write=st.none() | st.floats(0, 1e9),
    missing_key=st.booleans(),
    async_=st.none() | st.booleans(),
    output_mode=st.sampled_from(["ordered", "allow-unordered"]),
    rate_limit=st.none() | st.floats(0, 1e9, exclude_min=True),
    retry_on=st.none() | st.just("OSError, aiohttp.ClientError"),
    retry_strategy=st.sampled_from(["exponential", "fixed-delay"]),
    retry_jitter=st.floats(0, 1),
    on_miss_max_attempts=st.integers(0, 10),
    age_column=st.none() | st.text(min_size=1).filter(str.strip),
    shuffle=st.booleans(),
    metrics=st.sampled_from(["auto", "off"]),
)


@given(CONFIGS)
def test_a_config_survives_its_repr_its_options_and_pickle(config):
    assert eval(repr(config)) == config
    assert LookupConfig.from_options(config.to_json()) == config
    assert pickle.loads(pickle.dumps(config)) == config


@given(st.floats(0.001, 1e6), st.sampled_from([("ms", 1e-3), ("s", 1), ("min", 60), ("h", 3600), ("d", 86400)]))
def test_durations_of_any_unit(number, unit):
    assert parse_duration(f"{number:.6f} {unit[0].upper()}") == pytest.approx(float(f"{number:.6f}") * unit[1])


def test_sizes_are_powers_of_1024():
    assert [parse_bytes(text) for text in ("1", "1b", "1k", "1 KB", "2M", "1gb")] == [1, 1, 1024, 1024, 2**21, 2**30]


def test_the_connectors_options_become_strings():
    ours, theirs = split_options({"lookup.async": True, "port": 5432, "ssl": True, "url": "x"})
    assert ours == {"lookup.async": True}
    assert theirs == {"port": "5432", "ssl": "true", "url": "x"}


@pytest.mark.parametrize(
    "make",
    [
        lambda name: LookupConfig(**{name: 1}),
        lambda name: LookupConfig.from_options({f"lookup.{name}": 1}),
        lambda name: LookupTable("t", "id INT", {"connector": "sql", f"lookup.{name}": 1}),
        lambda name: cached(**{name: 1}),
        lambda name: cached(LookupConfig(cache="LRU"), **{name: 1}),
    ],
)
@pytest.mark.parametrize("name", ["qqqqqqqqqqqqqqqq", "expire_after_writing"])
def test_a_mistyped_option_names_the_nearest_and_not_all(make, name) -> None:
    with pytest.raises(OptionError, match=r"There is no option '[\w.]*'\.\n\nHint: (Did you mean|Of \d+ )") as caught:
        make(name)
    assert caught.value.hint.count("'") <= 6
