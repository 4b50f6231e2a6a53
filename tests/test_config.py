"""Every option: what it takes, what it refuses, what it contradicts; Flink's spelling of it."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookupcache.config import LookupConfig, parse_bytes, parse_duration, split_options
from lookupcache.errors import OptionError

FIELDS = {field.metadata["key"]: field for field in dataclasses.fields(LookupConfig)}
LRU = {"lookup.cache": "LRU"}
ALL = {"lookup.cache": "ALL"}

# For each option: what else it needs, values with what they mean, values that are refused.
OPTIONS = {
    "lookup.cache": ({}, [("none", "NONE"), ("LRU", "LRU"), ("all", "ALL")], ["", "LFU", None]),
    "lookup.cache.max-rows": (LRU, [("500", 500), (1, 1)], ["0", "-1", "1e3", "many", 1.5]),
    "lookup.cache.max-bytes": (LRU, [("64 mb", 2**26), ("1kb", 1024), (5, 5), ("0.5 gb", 2**29)], ["0", "1 tb", "mb"]),
    "lookup.cache.expire-after-write": (LRU, [("10 min", 600.0), (2, 2.0)], ["10 parsecs", "-1 s", "", -1]),
    "lookup.cache.expire-after-access": (LRU, [("1h", 3600.0)], ["soon"]),
    "lookup.cache.missing-key": (LRU, [("FALSE", False), (True, True)], ["yes", "1"]),
    "lookup.cache.missing-key.expire-after-write": (LRU, [("5 s", 5.0)], ["x"]),
    "lookup.cache.reload-interval": (ALL, [("1 day", 86400.0)], ["daily"]),
    "lookup.async": ({}, [("true", True), ("false", False)], ["maybe"]),
    "lookup.async.capacity": ({}, [("7", 7)], ["0"]),
    "lookup.timeout": ({}, [(timedelta(minutes=1), 60.0)], [timedelta(seconds=-1), True]),
    "lookup.batch.max-size": ({}, [("1000", 1000)], ["0"]),
    "lookup.max-retries": ({}, [("0", 0), (5, 5)], ["-1", "few"]),
    "lookup.retry.strategy": ({}, [("Fixed-Delay", "fixed-delay")], ["linear"]),
    "lookup.retry.delay": ({}, [("250ms", 0.25)], ["250 us"]),
    "lookup.retry.max-delay": ({}, [("1 min", 60.0)], ["x"]),
    "lookup.retry.jitter": ({}, [("0", 0.0), ("0.5", 0.5), (1, 1.0)], ["2", "-0.1", "nan", "half"]),
    "lookup.shuffle": ({}, [("true", True)], ["2"]),
    "lookup.metrics": ({}, [("OBSERVE", "observe")], ["loud"]),
}


def test_every_option_is_tried_here():
    assert set(OPTIONS) == set(FIELDS)


@pytest.mark.parametrize("key", OPTIONS)
def test_an_option_takes_its_values_and_refuses_others(key):
    others, good, bad = OPTIONS[key]
    for text, value in good:
        assert getattr(LookupConfig.from_options({**others, key: text}), FIELDS[key].name) == value
    for text in bad:
        if text is not None:
            with pytest.raises(OptionError, match=f"Option '{key}' is (?s:.*)Hint: It takes"):
                LookupConfig.from_options({**others, key: text})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lookup.cache.max-rows": "5"}, ["lookup.cache.max-rows", "'lookup.cache' = 'NONE'"]),
        ({**ALL, "lookup.cache.max-bytes": "5"}, ["lookup.cache.max-bytes", "'lookup.cache' = 'ALL'"]),
        ({**ALL, "lookup.cache.expire-after-write": "5 s"}, ["lookup.cache.expire-after-write", "'ALL'"]),
        ({"lookup.cache": "TTL"}, ["'TTL'", "lookup.cache.expire-after-write", "lookup.cache.expire-after-access"]),
        ({**LRU, "lookup.cache.reload-interval": "5 s"}, ["lookup.cache.reload-interval", "'LRU'"]),
        (
            {**LRU, "lookup.cache.missing-key": "false", "lookup.cache.missing-key.expire-after-write": "5 s"},
            ["lookup.cache.missing-key.expire-after-write", "'lookup.cache.missing-key' = 'false'"],
        ),
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
    ],
)
def test_a_flink_table_moves_over_unchanged(flink, ours):
    assert LookupConfig.from_options(flink) == LookupConfig(**ours)


def test_an_unknown_option_is_refused_with_the_nearest_known_one():
    with pytest.raises(OptionError, match=r"'lookup\.cache\.max-row'(?s:.*)'lookup\.cache\.max-rows'"):
        LookupConfig.from_options({"lookup.cache.max-row": "5"})
    with pytest.raises(OptionError, match=r"reload-strategy"):
        LookupConfig.from_options({"lookup.cache": "FULL", "lookup.full-cache.reload-strategy": "TIMED"})


def test_an_lru_without_any_limit_gets_one():
    assert LookupConfig(cache="LRU").max_rows == 10_000
    assert LookupConfig(cache="LRU", max_bytes=100).max_rows is None


CONFIGS = st.builds(
    LookupConfig,
    cache=st.just("LRU"),
    max_rows=st.none() | st.integers(1, 10**9),
    max_bytes=st.none() | st.integers(1, 10**12),
    expire_after_write=st.none() | st.floats(0, 1e9),
    missing_key=st.booleans(),
    async_=st.none() | st.booleans(),
    retry_strategy=st.sampled_from(["exponential", "fixed-delay"]),
    retry_jitter=st.floats(0, 1),
    shuffle=st.booleans(),
    metrics=st.sampled_from(["auto", "off"]),
)


@given(CONFIGS)
def test_a_config_goes_through_its_repr_its_options_and_pickle_unchanged(config):
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
