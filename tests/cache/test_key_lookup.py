"""Keys to entries where many keys have the same hash, against a dict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from audit import audit_index

from lookupcache.cache.key_lookup import KeyLookup, _next_words
from lookupcache.cache.keys import KeyBatch

TYPES = {"text": [pa.string()], "two columns": [pa.int32(), pa.string()]}


def batch(values, types, *, hashes: int = 3) -> KeyBatch:
    """Return keys of which all have one of a few hashes; a negative number is a null."""
    texts = pa.array([None if value < 0 else f"key {value}" for value in values], pa.string())
    keys = KeyBatch.of([pa.array([7] * len(values), pa.int32()), texts] if len(types) == 2 else [texts], types)
    return replace(keys, hashes=np.array(values, np.int64).view(np.uint64) % np.uint64(hashes))


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("seed", range(4))
def test_keys_with_equal_hashes_are_found_like_those_of_a_dict(seed, types):
    draw, lookup, model, free = np.random.default_rng(seed), KeyLookup(types), {}, [*range(200)]
    lookup.grow(200)
    stored = 0
    for _ in range(25):
        step = draw.random()
        if step < 0.5:
            new = [value for value in draw.permutation(80).tolist() if value not in model][: int(draw.integers(1, 12))]
            entries = [free.pop() for _ in new]
            lookup.insert(batch(new, types), np.array(entries, np.int32))
            model |= dict(zip(new, entries, strict=True))
            stored += len(new)
        elif step < 0.85:
            gone = [value for value in model if draw.random() < 0.4]
            lookup.remove(np.array([model[value] for value in gone], np.int32))
            free += [model.pop(value) for value in gone]
        else:
            live = draw.permutation([*model.values()]).astype(np.int32)
            lookup = lookup.renumbered(live, len(live))
            lookup.grow(200)
            model = {value: live.tolist().index(entry) for value, entry in model.items()}
            free, stored = [entry for entry in range(200) if entry not in model.values()], len(model)
        asked = [*range(-1, 80)]
        assert lookup.find(batch(asked, types)).tolist() == [model.get(value, -1) for value in asked]
        entries = np.array([*model.values()], np.int32)
        assert lookup._stored_keys(entries)[-1].to_pylist() == [f"key {value}" for value in model]
        assert [*audit_index(lookup.index, entries, "keys")] == []
        assert (len(lookup), lookup.count_dead(0), lookup.count_dead(2)) == (
            len(model), stored - len(model), stored - len(model) - 2
        )  # fmt: skip


def test_keys_go_as_many_words_on_as_others_have_their_hash():
    lookup = KeyLookup([pa.string()])
    lookup.grow(10)
    words = lookup.insert(batch([0, 1, 2], [pa.string()], hashes=1), np.array([0, 1, 2], np.int32))
    assert lookup.max_steps == 2
    assert words.tolist() == [0, 1, int(_next_words(np.array([1], np.uint64))[0])]
    lookup.insert(batch([3], [pa.string()], hashes=100), np.array([3], np.int32))
    assert lookup.max_steps == 2
    lookup.insert(batch([4], [pa.string()], hashes=1), np.array([4], np.int32))
    assert lookup.max_steps == 3


def test_the_sequence_of_words_repeats_only_after_all_of_them():
    """Modulo 2 ** k the sequence visits each of 2 ** k numbers, which shows that it does so modulo 2 ** 64."""
    word, seen = np.array([0], np.uint64), set()
    for _ in range(1 << 12):
        seen.add(int(word[0]) % (1 << 12))
        word = _next_words(word)
    assert (len(seen), int(word[0]) % (1 << 12)) == (1 << 12, 0)
