"""The hash index against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from audit import audit_index
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.cache.hash_index import HashIndex, mix_words

WORDS = st.one_of(st.integers(0, 40), st.sampled_from([2**64 - 1, 2**63, 1 << 40, 3 << 40]), st.integers(0, 2**64 - 1))
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "remove"]), st.sets(WORDS, max_size=30)), max_size=30)


def words_of(values) -> np.ndarray:
    return np.array(sorted(values), dtype=np.uint64)


def assert_finds(index: HashIndex, model: dict[int, int], wanted) -> None:
    assert index.find(words_of(wanted)).tolist() == [model.get(word, -1) for word in sorted(wanted)]


@pytest.mark.extended
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
        assert [*audit_index(index, list(model.values()), "entries")] == []
        assert len(index) == len(model)


@pytest.mark.parametrize("step", [1, 8, 1 << 32, 1 << 48])
def test_regular_words_do_not_cluster(step):
    index, words = HashIndex(), np.arange(10_000, dtype=np.uint64) * np.uint64(step)
    index.insert(words, np.arange(10_000, dtype=np.int32))
    assert (index.find(words) == np.arange(10_000)).all()
    for one in (index, HashIndex.of_words(words)):
        further = slots_passed(one)
        # Words that are spread at random pass a third of a slot on average where two in five slots are used.
        assert (np.mean(further) < 0.4, np.max(further) < 40) == (True, True)


def slots_passed(index: HashIndex) -> np.ndarray:
    """Return for each word how many slots its search passes before it finds it."""
    places = np.flatnonzero(index.slots >= 0)
    start = mix_words(index.words[index.slots[places]]) >> np.uint64(64 - len(index.slots).bit_length() + 1)
    return (places - start.astype(np.int64)) % len(index.slots)


def test_words_start_at_the_same_slot_in_every_process():
    """Tables of words lie in files, which other processes search."""
    words = np.array([0, 1, 2**32, 2**63, 0x0123456789ABCDEF], np.uint64)
    assert mix_words(words).tolist() == [
        0, 11400714819323198485, 2126250766343240725, 4586140010364796928, 1339536232746914600
    ]  # fmt: skip


def test_an_index_grows_when_two_fifths_of_its_slots_are_used():
    """After that, a quarter of them is used at most."""
    index, before = HashIndex(), 1_024
    for number in range(5_000):
        index.insert(np.array([number], np.uint64), np.array([number], np.int32))
        assert 5 * (number + 1) <= 2 * len(index.slots)
        if len(index.slots) > before:
            assert 5 * (number + 1) > 2 * before, "it grew although there was space"
            assert 4 * (number + 1) <= len(index.slots) < 8 * (number + 1)
            before = len(index.slots)
    assert before == 16_384


@pytest.mark.parametrize(("count", "slots"), [(0, 1_024), (409, 1_024), (410, 2_048), (819, 2_048), (820, 4_096)])
def test_an_index_built_at_once_has_as_many_slots_as_it_needs(count, slots):
    index = HashIndex.of_words(np.arange(count, dtype=np.uint64))
    assert (len(index), len(index.slots), index.nbytes) == (count, slots, 4 * slots + 8 * (count + 2))


def test_words_are_copied_rarely_as_entries_are_added():
    index, sizes = HashIndex(), set()
    for number in range(5_000):
        index.insert(np.array([number], np.uint64), np.array([number], np.int32))
        sizes.add(len(index.words))
    assert len(sizes) < 40
    assert max(sizes) <= 1.25 * 5_000 + 3


def test_slots_of_removed_words_are_used_again():
    index = HashIndex()
    for _ in range(20):
        index.insert(words_of(words_at(5, 200)), np.arange(200, dtype=np.int32))
        index.remove(np.arange(200, dtype=np.int32))
    assert (index._used, len(index.slots)) == (200, 1_024)


def test_an_index_over_arrays_of_another_one_finds_the_same():
    words = np.array([*range(1, 300), *words_at(1_022, 5)], np.uint64)
    built = HashIndex.of_words(words)
    index = HashIndex.of_arrays(built.slots, built.words)
    assert index.find(words).tolist() == list(range(len(words)))
    assert index.find(words + np.uint64(1_000_000)).tolist() == [-1] * len(words)
    assert (len(index), index.nbytes) == (len(built), built.nbytes)


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
