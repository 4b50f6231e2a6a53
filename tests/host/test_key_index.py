"""The table from hashes to numbers of entries, also one that is built in chunks, and one without an empty slot."""

from __future__ import annotations

import numpy as np
import pytest

from lookupcache.cache.hash_index import mix_words
from lookupcache.host import key_index
from lookupcache.host.folder import Folder
from lookupcache.host.key_index import KeyIndex, build_index

WORDS = np.random.default_rng(1).integers(0, 2**64, 2_000, np.uint64)
MIXED, IDS = mix_words(WORDS), np.arange(1, 2_001)


@pytest.fixture
def folder(tmp_path):
    one = Folder(tmp_path / "folder")
    yield one
    one.close()


def found(index, mixed):
    return index.search(mixed, index.home(mixed))[0].tolist()


@pytest.mark.parametrize("chunk", [1, 100, 1_000, 10_000])
def test_a_table_finds_all_entries_whatever_the_sizes_of_parts_and_chunks(folder, monkeypatch, chunk):
    monkeypatch.setattr(key_index, "_CHUNK", chunk)
    parts = zip(np.split(WORDS, [0, 1, 60, 900]), np.split(IDS, [0, 1, 60, 900]), strict=True)
    build_index(folder, "index-0", 7, len(WORDS), parts)
    assert found(KeyIndex(folder, 0, 7), MIXED) == IDS.tolist()


def test_searches_and_writes_end_in_a_table_without_an_empty_slot(folder):
    """As in one that was damaged; the keys that are in it are found all the same."""
    build_index(folder, "index-0", 7, 300, [(WORDS[:300], IDS[:300])])
    index, rest = KeyIndex(folder, 0, 7), MIXED[300:400]
    index._slots[index._slots == 0] = 1
    index.insert(rest, IDS[300:400])
    assert not index.replace(rest, IDS[300:400], IDS[400:500]).any()
    assert found(index, MIXED[:400]) == [*IDS[:300], *[0] * 100]
