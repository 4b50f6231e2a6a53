"""What the files of a host's cache mean: where that changes, FORMAT must, since old and new code may share a folder."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pyarrow as pa

from lookupcache.cache.hash_index import mix_words
from lookupcache.cache.keys import KeyBatch
from lookupcache.host import claims, control, key_index, segment, segments
from lookupcache.host.segment import FORMAT

CONSTANTS = {
    segment: ("_SECTIONS", "_TYPES", "_USE_TYPES", "_HEAD_BYTES", "_ALIGNED", "_BLOCK_WORDS", "_HEAD", "_USE_HEAD"),
    claims: ("NAME", "LOCK", "_WAYS", "_MILLISECONDS", "_DEADLINE", "_QUEUED", "_HALF", "_ODD"),
    control: ("NAME", "PUBLISH_LOCK", "_SIZE", "_FIELDS", "_FIELDS_AT", "_HEAD"),
    key_index: ("MOST_IDS", "_TAG", "_USED", "_TAG_ODD", "_HEAD_BYTES", "_HEAD"),
    segments: ("_MESSAGE",),
}

LAYOUTS = {4: 3837963628, 5: 3525552339, 6: 2638023824, 7: 4038418009}
"""The checksum of all of them by format. After a change: raise FORMAT, and add a line with the new checksum."""


def ids(*values) -> KeyBatch:
    return KeyBatch.of([pa.array(values, pa.int64())], [pa.int64()])


def plain(value) -> str:
    """Return a text that is the same with all versions of numpy."""
    if isinstance(value, np.integer):
        return str(int(value))
    return value.format if isinstance(value, struct.Struct) else str(value)


def test_a_format_has_one_layout():
    layout = [plain(vars(module)[name]) for module, names in CONSTANTS.items() for name in names]
    assert LAYOUTS[FORMAT] == zlib.crc32(repr(layout).encode()), "the layout has changed: raise FORMAT"


def test_a_format_has_one_hash_per_key():
    """Processes with other code find keys by the same hashes, in segments, in the index and among the claims."""
    columns = [pa.array(["a", "bc", ""]), pa.array([1, -1, 2**40])]
    hashes = KeyBatch.of(columns, [pa.string(), pa.int64()], seed=7).hashes
    found = zlib.crc32(np.concatenate([hashes, mix_words(hashes), mix_words(ids(1, 2).hashes)]).tobytes())
    assert (FORMAT, found) == (7, 2338344880)


def test_a_format_has_one_form_of_claims(caches):
    """Old code that took the bit of queued calls for a part of the time saw claims that never end."""
    cache = caches()
    keys, table = ids(5), cache._claims
    bucket, _ = table._find(keys.hashes)
    table.claim(keys.hashes, 1.0, 2.0)
    assert table._infos[bucket[0]].max() == table.number << 48 | 3_000
    table.renew(keys.hashes, 2.0, 2.5, is_queued=True)
    assert table._infos[bucket[0]].max() == table.number << 48 | 1 << 47 | 4_500
    table.renew(keys.hashes, 3.0, 2.5)
    assert table._infos[bucket[0]].max() == table.number << 48 | 5_500
