"""For each option what else it needs, values with what they mean, and values that are refused.

A new option is added here, and to no other table of the tests: those take a value from here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

from lookupcache.config import Eviction

EVICTIONS = list(get_args(Eviction))
"""The eviction policies."""

LRU = {"lookup.cache": "LRU"}
STORE = {**LRU, "lookup.cache.store": "redis://h"}
ALL = {"lookup.cache": "ALL"}
HOURLY = {**ALL, "lookup.cache.reload-interval": "1 h"}
TEN_MINUTES = {"lookup.cache": "TTL", "lookup.cache.expire-after-write": "10 min"}
NULL = {"lookup.on-error": "null", "lookup.error-column": "e"}
LETTERS = {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": "letters"}

VALUES = {
    "lookup.cache": ({}, [("none", "NONE"), ("LRU", "LRU"), ("all", "ALL")], ["", "LFU", None]),
    "lookup.cache.max-rows": (LRU, [("500", 500), (1, 1)], ["0", "-1", "1e3", "many", 1.5]),
    "lookup.cache.max-bytes": (LRU, [("64 mb", 2**26), ("1kb", 1024), (5, 5), ("0.5 gb", 2**29)], ["0", "1 tb", "mb"]),
    "lookup.cache.scope": (LRU, [("HOST", "host"), ("auto", "auto"), ("worker", "worker")], ["cluster", ""]),
    "lookup.cache.store": (
        LRU,
        [
            (" rediss://ann@h:1/0 ", "rediss://ann@h:1/0"),
            ("env:URL", "env:URL"),
            ("redis+cluster://a,b", "redis+cluster://a,b"),
            ("unix:///x", "unix:///x"),
            *(
                (folder, folder)
                for folder in ("/data/store", "file:///data", "s3://b/x", "gs://b/x", "abfss://c@h/x", "hdfs://h/x")
            ),
        ],
        ["", "http://h", "data/store", "redis://:pw@h", "redis://h?password=pw", "s3://key:s3cret@b/x"],
    ),
    "lookup.cache.store.name": (STORE, [("geo-2.x_y", "geo-2.x_y")], ["", "a b", "a:b", "a*", "{a}", "x" * 65]),
    "lookup.cache.version": (STORE, [(" 2024-05 ", "2024-05")], ["", " "]),
    "lookup.cache.store.timeout": (STORE, [("1 s", 1.0), ("50ms", 0.05)], ["", "soon", "0 ms"]),
    "lookup.cache.store.expire-after-write": (STORE, [("1 d", 86_400.0)], ["", "soon"]),
    "lookup.cache.path": (
        {**LRU, "lookup.cache.scope": "host"},
        [(" /data/cache ", "/data/cache")],
        ["", "file:///data/cache", "s3://b/x", "env:KEPT"],
    ),
    "lookup.cache.eviction": (LRU, [("S3_FIFO", "s3-fifo"), ("LRU", "lru")], ["lfu", "sieve", ""]),
    "lookup.cache.expire-after-write": (LRU, [("10 min", 600.0), (2, 2.0)], ["10 parsecs", "-1 s", "", -1]),
    "lookup.cache.expire-after-access": (LRU, [("1h", 3600.0)], ["soon"]),
    "lookup.cache.missing-key": (LRU, [("FALSE", False), (True, True)], ["yes", "1"]),
    "lookup.cache.missing-key.expire-after-write": (LRU, [("5 s", 5.0)], ["x"]),
    "lookup.cache.jitter": (LRU, [("0.25", 0.25), (1, 1.0)], ["1.1", "-0.1", "some"]),
    "lookup.cache.refresh-after-write": (TEN_MINUTES, [("9 min", 540.0)], ["early", -1]),
    "lookup.cache.stale-if-error": (TEN_MINUTES, [("1 h", 3600.0)], ["old", True]),
    "lookup.cache.reload-interval": (ALL, [("1 day", 86400.0)], ["daily"]),
    "lookup.cache.reload-mode": (HOURLY, [("FIXED_RATE", "fixed-rate"), ("fixed-delay", "fixed-delay")], ["fixed"]),
    "lookup.cache.reload-at": (
        ALL,
        [("03:00", "03:00:00"), ("03:00:30Z", "03:00:30+00:00"), ("23:59 +05:30", "23:59:00+05:30")],
        ["3", "24:00", "03:60", "03:00 Europe/Paris", "2020-01-01T03:00", "", 3],
    ),
    "lookup.cache.reload-allow-empty": (HOURLY, [("true", True)], ["maybe"]),
    "lookup.async": ({}, [("true", True), ("false", False)], ["maybe"]),
    "lookup.async.capacity": ({}, [("7", 7)], ["0"]),
    "lookup.async.output-mode": ({}, [("ALLOW_UNORDERED", "allow-unordered"), ("ordered", "ordered")], ["random"]),
    "lookup.timeout": ({}, [(timedelta(minutes=1), 60.0)], [timedelta(seconds=-1), True]),
    "lookup.batch.max-size": ({}, [("1000", 1000)], ["0"]),
    "lookup.batch.max-delay": ({}, [("20 ms", 0.02), (0, 0.0)], ["later", float("nan"), float("inf")]),
    "lookup.rate-limit": ({}, [("50", 50.0), (0.5, 0.5)], ["0", "-1", "inf", "nan", "50/s", True]),
    "lookup.rate-limit.scope": (
        {**STORE, "lookup.rate-limit": 5},
        [("CLUSTER", "cluster"), ("executor", "executor")],
        ["host", ""],
    ),
    "lookup.max-retries": ({}, [("0", 0), (5, 5)], ["-1", "few"]),
    "lookup.retry.on": (
        {},
        [("OSError", "OSError"), ("TimeoutError,aiohttp.ClientError", "TimeoutError, aiohttp.ClientError"), ("*", "*")],
        ["", "OSError,", "not a name", "a..b", 5],
    ),
    "lookup.retry.strategy": ({}, [("Fixed-Delay", "fixed-delay"), ("FIXED_DELAY", "fixed-delay")], ["linear"]),
    "lookup.retry.delay": ({}, [("250ms", 0.25)], ["250 us"]),
    "lookup.retry.max-delay": ({}, [("1 min", 60.0)], ["x"]),
    "lookup.retry.jitter": ({}, [("0", 0.0), ("0.5", 0.5), (1, 1.0)], ["2", "-0.1", "nan", "half"]),
    "lookup.retry.on-miss.max-attempts": ({}, [("3", 3), (0, 0)], ["-1", "often"]),
    "lookup.retry.on-miss.delay": ({}, [("2 s", 2.0)], ["soon"]),
    "lookup.on-error": ({}, [("FAIL", "fail")], ["ignore"]),
    "lookup.error-column": ({"lookup.on-error": "null"}, [(" problem ", "problem"), ("`a b`", "a b")], [" ", 5]),
    "lookup.dead-letter.path": ({"lookup.on-error": "dead-letter"}, [("s3://bucket/x", "s3://bucket/x")], [""]),
    "lookup.breaker.failures": ({}, [("5", 5)], ["0", "many"]),
    "lookup.breaker.delay": ({}, [("1 min", 60.0)], ["a while"]),
    "lookup.age-column": ({}, [("age", "age"), ("`age`", "age")], [""]),
    "lookup.form": ({}, [("Distinct", "distinct"), ("auto", "auto")], ["fastest", 1]),
    "lookup.fuse": ({}, [("OFF", "off"), ("auto", "auto")], ["on"]),
    "lookup.as-of.period": (
        {},
        [("valid_from,valid_to", "valid_from, valid_to"), ("`a, b` , c", "`a, b`, c")],
        ["valid_from", "a, b, c", "a b, c", 5],
    ),
    "lookup.as-of.version": (
        {},
        [(" changed_at ", "changed_at"), ("valid.from", "valid.from"), ("`valid ``from`", "valid `from")],
        ["", 5, "```a```", "` a`"],
    ),
    "lookup.full-scan": ({}, [("true", True)], ["some"]),
    "lookup.shuffle": ({}, [("true", True)], ["2"]),
    "lookup.metrics": ({}, [("OBSERVE", "observe")], ["loud"]),
}
