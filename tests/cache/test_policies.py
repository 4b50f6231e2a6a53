"""The eviction policies and their parts, each against a model in plain lists, over drawn steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from audit import audit_ghost, audit_policy
from option_values import EVICTIONS

from lookupcache.cache.policy import OneEach, split_by_weight
from lookupcache.cache.policy_queues import EvictionQueue, Ghost, policy_of

DATA = Path(__file__).parents[1] / "data"
SEEDS = range(12)


class Weights(OneEach):
    """Entries that weigh one to three."""

    def weights(self, entries):
        return entries.astype(np.int64) % 3 + 1


def ints(values) -> np.ndarray:
    return np.array([*values], dtype=np.int32)


def words(values) -> np.ndarray:
    return np.array([*values], dtype=np.uint64)


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ghost_keeps_the_words_that_were_evicted_last(seed):
    draw, ghost, places, size, number = np.random.default_rng(seed), Ghost(), [], 0, 0
    for _ in range(150):
        if draw.random() < 0.3:
            asked = {*draw.integers(max(number - 40, 0), number + 5, 8).tolist()}
            assert ghost.recall(words(asked)).tolist() == [one in places for one in asked]
            places = [None if place in asked else place for place in places]
        else:
            count, most = int(draw.integers(0, 20)), int(draw.integers(0, 16))
            if not size * 3 // 4 <= most <= size:
                places, size = [place for place in places if place is not None], most
            places = [*places, *range(number, number + count)]
            places = places[max(len(places) - size, 0) :]
            ghost.remember(words(range(number, number + count)), most)
            number += count
        assert ghost.all().tolist() == [place for place in places if place is not None]
        assert [*audit_ghost(ghost)] == []
        assert ghost.nbytes == ghost._index.nbytes + 9 * size


@pytest.mark.parametrize("seed", SEEDS)
def test_an_eviction_queue_keeps_order_and_hand(seed):
    draw, queue, positions = np.random.default_rng(seed), EvictionQueue(), np.zeros(3_000, np.int32)
    order, deferred, hand, number = [], [], 0, 0
    for _ in range(150):
        step = draw.choice(["defer", "defer", "append", "settle", "remove", "remove", "advance", "renumber"])
        new = [*range(number, number + int(draw.integers(0, 15)))]
        if step == "defer":
            queue.defer(ints(new), positions)
            order, deferred, number = order + deferred, new, number + len(new)
        elif step == "append":
            queue.append(ints(new), positions)
            order, number = order + new, number + len(new)
        elif step == "settle":
            queue.append_deferred(positions)
            order, deferred = order + deferred, []
        elif step == "remove":
            gone = {one for one in order + deferred if draw.random() < 0.4}
            queue.remove(ints(gone), positions)
            hand -= sum(one in gone for one in order[:hand])
            order, deferred = ([one for one in part if one not in gone] for part in (order, deferred))
        elif step == "advance" and hand < len(order):
            to = int(draw.integers(hand, len(order)))
            queue.hand = int(positions[order[to]]) + 1
            hand = to + 1
        elif step == "renumber":
            live = [int(one) for one in draw.permutation(order + deferred)]
            new_number = np.full(number + 1, -1, np.int32)
            new_number[live] = np.arange(len(live))
            queue = queue.renumbered(new_number, positions)
            order, deferred = new_number[order].tolist(), new_number[deferred].tolist()
            number = len(live)
        assert queue.all().tolist() == order
        assert (len(queue), queue.deferred_count) == (len(order), len(deferred))
        assert (queue._slots[positions[order]] == order).all()
        assert (positions[deferred] == -1).all()
        ahead = queue.peek(5)
        assert len(ahead) == min(5, queue._end - queue.hand)
        assert ahead[ahead >= 0].tolist() == order[hand:][: np.count_nonzero(ahead >= 0)]
        assert [one for one in queue.peek(10_000).tolist() if one >= 0] == order[hand:]
        assert queue.nbytes == 4 * (len(queue._slots) + len(deferred))


def test_a_full_eviction_queue_grows_by_half():
    queue, positions, sizes = EvictionQueue(), np.zeros(2_000, np.int32), [64]
    for number in range(1_000):
        queue.append(ints([number]), positions)
        sizes.append(len(queue._slots))
        assert (sizes[-1] > sizes[-2]) == (number == sizes[-2])
        assert sizes[-1] in (sizes[-2], (number + 1) * 3 // 2)
    queue.remove(ints(range(10, 1_000)), positions)
    queue.append(ints(range(1_000, 1_900)), positions)
    assert len(queue._slots) == (10 + 900) * 3 // 2


@pytest.mark.parametrize(
    ("weight", "first", "weighs"), [(0.5, 1, 2), (2, 1, 2), (2.5, 2, 5), (5, 2, 5), (6, 3, 6), (100, 4, 8)]
)
def test_as_many_entries_are_chosen_as_weigh_enough(weight, first, weighs):
    entries = ints([1, 2, 3, 4])  # They weigh 2, 3, 1 and 2.
    chosen, rest, chosen_weight = split_by_weight(entries, weight, Weights())
    assert (chosen.tolist(), rest.tolist()) == (entries[:first].tolist(), entries[first:].tolist())
    assert chosen_weight == weighs
    assert split_by_weight(entries[:0], weight, Weights())[2] == 0


# ── the policies ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_lru_evicts_the_oldest_entries_until_they_weigh_enough(seed):
    draw, policy, order, size = np.random.default_rng(seed), policy_of("lru"), [], 400
    policy.grow(size)
    for _ in range(80):
        step = draw.random()
        if step < 0.3:
            new = [one for one in draw.permutation(size).tolist() if one not in order][: int(draw.integers(1, 60))]
            policy.admit(ints(new), words(new))
            assert policy.touch(ints(new)) == len(new)
            order += new
        elif step < 0.6 and order:
            used = draw.choice([*order, -1], int(draw.integers(1, 40))).tolist()
            assert policy.touch(ints(used)) == len({*used} - {-1})
            for one in used:
                if one >= 0:
                    order.remove(one)
                    order.append(one)
        elif step < 0.7:
            gone = [one for one in order if draw.random() < 0.2]
            policy.forget(ints(gone))
            order = [one for one in order if one not in gone]
        elif step < 0.75:
            live = [int(one) for one in draw.permutation(order)]
            policy = policy.renumbered(ints(live))
            policy.grow(size)
            order = [live.index(one) for one in order]
        else:
            weight, expected, weighs = int(draw.integers(0, 60)), [], 0
            while order and weighs < weight:
                expected.append(order.pop(0))
                weighs += expected[-1] % 3 + 1
            assert policy.victims(weight, 1_000, Weights()).tolist() == expected
        assert audit_policy(policy, ints(sorted(order))) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_policy_evicts_listed_entries_and_no_more_than_needed(eviction, seed):
    draw, policy, listed, size = np.random.default_rng(seed), policy_of(eviction), set(), 120
    policy.grow(size)
    for _ in range(80):
        new = [one for one in draw.permutation(size).tolist() if one not in listed][: int(draw.integers(0, 25))]
        policy.admit(ints(new), words(new))
        policy.touch(ints(new))
        listed |= {*new}
        used = draw.choice([*listed, -1], int(draw.integers(1, 60))).tolist()
        for _ in range(int(draw.integers(1, 4))):
            assert policy.touch(ints(used)) == len({*used} - {-1})
        gone = [one for one in listed if draw.random() < 0.1]
        policy.forget(ints(gone))
        listed -= {*gone}
        total = sum(one % 3 + 1 for one in listed)
        weight = int(draw.integers(0, 40)) if listed else 0
        evicted = policy.victims(weight, max(total, 1), Weights()).tolist()
        assert {*evicted} <= listed
        assert len({*evicted}) == len(evicted)
        weights = [one % 3 + 1 for one in evicted]
        assert sum(weights) >= min(weight, total)
        assert sum(weights) - max(weights, default=0) < max(weight, 1)
        listed -= {*evicted}
        assert audit_policy(policy, ints(sorted(listed))) == []


def test_evictions_one_at_a_time_seldom_sort_all_entries(monkeypatch):
    policy, sorted_ = policy_of("lru"), []
    policy.grow(8_000)
    policy.admit(ints(range(8_000)), words(range(8_000)))
    policy.touch(ints(range(8_000)))
    sort = policy._queue_oldest
    monkeypatch.setattr(policy, "_queue_oldest", lambda weight: (sorted_.append(weight), sort(weight)))
    evicted = [int(policy.victims(1, 8_000, OneEach())[0]) for _ in range(3_000)]
    assert evicted == [*range(3_000)]
    assert len(sorted_) in (3, 4)


HITS = {
    ("lru", 30, 1): 510, ("lru", 30, 50): 1_656, ("lru", 300, 1): 769, ("lru", 300, 50): 2_366,
    ("s3-fifo", 30, 1): 428, ("s3-fifo", 30, 50): 1_573, ("s3-fifo", 300, 1): 750, ("s3-fifo", 300, 50): 2_357,
}  # fmt: skip


@pytest.mark.parametrize("batch", [1, 50])
@pytest.mark.parametrize("size", [30, 300])
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_trace_has_as_many_hits_as_before(eviction, size, batch):
    """What a policy keeps is seen by nobody but in the hits: a change of them must be meant, and measured."""
    asked = pq.read_table(DATA / "web12_product_pages.parquet").column(0)[: 1_500 if batch == 1 else 6_000].to_numpy()
    ids = np.unique(asked, return_inverse=True)[1]
    policy, cached, hits = policy_of(eviction), np.zeros(len(ids), np.bool_), 0
    policy.grow(len(ids))
    for start in range(0, len(ids), batch):
        keys = ids[start : start + batch].astype(np.int32)
        new = np.unique(keys[~cached[keys]])
        hits += len(keys) - len(new)
        policy.admit(new, new.astype(np.uint64))
        policy.touch(keys)
        cached[new] = True
        if (excess := int(cached.sum()) - size) > 0:
            cached[policy.victims(excess, int(cached.sum()), OneEach())] = False
    assert int(cached.sum()) == min(size, len(set(ids)))
    assert hits == HITS.get((eviction, size, batch))
