"""The hash index against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.cache.hash_index import HashIndex

WORDS = st.one_of(st.integers(0, 40), st.sampled_from([2**64 - 1, 2**63, 1 << 40, 3 << 40]), st.integers(0, 2**64 - 1))
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "remove"]), st.sets(WORDS, max_size=30)), max_size=30)


def words_of(values) -> np.ndarray:
    return np.array(sorted(values), dtype=np.uint64)


def assert_finds(index: HashIndex, model: dict[int, int], wanted) -> None:
    assert index.find(words_of(wanted)).tolist() == [model.get(word, -1) for word in sorted(wanted)]


@settings(max_examples=examples(300), deadline=None)
@given(STEPS, st.sets(WORDS, max_size=50))
def test_behaves_like_a_dict(steps, wanted):
    index, model, number = HashIndex(), {}, 0
    for step, words in steps:
        if step == "insert":
            new = {word: number + n for n, word in enumerate(sorted(words - model.keys()))}
            index.insert(words_of(new), np.array(list(new.values()), dtype=np.int32))
            model |= new
            number += len(new)
        else:
            gone = words & model.keys()
            index.remove(np.array([model[word] for word in gone], dtype=np.int32))
            model = {word: entry for word, entry in model.items() if word not in gone}
        assert_finds(index, model, wanted | words)
        assert len(index) == len(model)


@pytest.mark.parametrize("step", [1, 8, 1 << 32, 1 << 48])
def test_regular_words_do_not_cluster(step):
    index, words = HashIndex(), np.arange(10_000, dtype=np.uint64) * np.uint64(step)
    index.insert(words, np.arange(10_000, dtype=np.int32))
    assert (index.find(words) == np.arange(10_000)).all()


def test_churn_does_not_grow_it():
    index = HashIndex()
    for start in range(0, 200_000, 1_000):
        words = np.arange(start, start + 1_000, dtype=np.uint64)
        index.insert(words, np.arange(1_000, dtype=np.int32))
        index.remove(np.arange(1_000, dtype=np.int32))
    assert (len(index), index.nbytes) == (0, 26_400)


def words_at(slot: int, count: int) -> list[int]:
    """Return words whose search starts at a slot of a table of 1,024."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    mixed = [((slot << 54) + number) * inverse % (1 << 64) for number in range(count)]
    return [word ^ word >> 32 for word in mixed]


@settings(max_examples=examples(100), deadline=None)
@given(st.sets(WORDS, max_size=100), st.integers(0, 60), st.sampled_from([0, 1_000, 1_022, 1_023]), st.randoms())
def test_an_index_that_is_built_at_once_finds_the_same(words, count, slot, draw):
    distinct = [*(words | set(words_at(slot, count)))]
    draw.shuffle(distinct)
    index = HashIndex.of_words(np.array(distinct, np.uint64))
    absent = {word + 1 for word in distinct if word < 2**64 - 1} - set(distinct)
    assert_finds(index, {word: number for number, word in enumerate(distinct)}, {*distinct, *absent})
