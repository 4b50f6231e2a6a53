"""The files of a folder of entries: every byte of their heads and indexes is covered by a checksum."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lookupcache.store import folder_segment
from lookupcache.store.folder_files import DamagedFileError
from lookupcache.store.folder_segment import FolderSegment, StoredEntries, invalidation, segment_parts

NAMES = np.array([[1, 9], [2, 8], [3, 7]])
FILES = {
    "segment": StoredEntries(NAMES, [b"a", b"bc", b"d"], np.array([1, 2, 3]), np.array([4, 5, folder_segment.ENDLESS])),
    "invalidation": invalidation(NAMES, 7),
    "invalidation of all": invalidation(None, 7),
}


def content_of(entries: StoredEntries) -> bytes:
    return b"".join(bytes(part) for part in segment_parts("i", 7, entries))


def read(content: bytes, identity: str = "i") -> FolderSegment:
    file = SimpleNamespace(size=len(content), read=lambda at, size: content[at : at + size])
    return FolderSegment(identity, "name", file)


@pytest.mark.parametrize("entries", FILES.values(), ids=FILES)
def test_a_segment_is_read_as_it_was_written(entries):
    segment = read(content_of(entries))
    assert segment.published == 7
    assert segment.names.tolist() == entries.names.tolist()
    assert (segment.since.tolist(), segment.ends.tolist()) == (entries.since.tolist(), entries.ends.tolist())
    assert segment.frames(np.arange(len(segment))) == entries.frames
    assert segment.search(np.array([[2, 8], [2, 9], [0, 0]])).tolist() == [1 if len(segment) else -1, -1, -1]
    with pytest.raises(DamagedFileError, match="identity"):
        read(content_of(entries), "j")


@pytest.mark.parametrize("entries", FILES.values(), ids=FILES)
@pytest.mark.parametrize("bit", [0, 7])
def test_a_changed_byte_of_head_or_index_is_found(entries, bit):
    content, head = content_of(entries), folder_segment._HEAD.size
    for at in range(len(content) - sum(map(len, entries.frames))):
        # The head ends with four bytes that mean nothing.
        if not head - 4 <= at < head:
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            with pytest.raises(DamagedFileError):
                read(bytes(changed))


@pytest.mark.parametrize("entries", FILES.values(), ids=FILES)
def test_a_file_that_ends_early_is_found(entries):
    content = content_of(entries)
    for length in range(len(content)):
        with pytest.raises(DamagedFileError):
            read(content[:length])
