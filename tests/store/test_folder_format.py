"""The files of a folder of entries: every byte of their heads and indexes is covered by a checksum."""

from __future__ import annotations

import numpy as np
import pytest

from lookupcache.store import folder_format
from lookupcache.store.folder_format import DamagedFileError, Entries


def segment() -> tuple[bytes, int]:
    """Return the bytes of a segment of three entries, and where its frames begin."""
    names = np.array([[1, 9], [2, 8], [3, 7]], np.uint64)
    entries = Entries(names, [b"a", b"bc", b"d"], np.array([1, 2, 3]), np.array([4, 5, folder_format.ENDLESS]))
    content = b"".join(bytes(part) for part in folder_format.segment_parts("i", 7, entries))
    return content, content.index(b"abcd")


def read_segment(content: bytes):
    return folder_format.read_index("i", len(content), lambda at, size: content[at : at + size])


def invalidation() -> tuple[bytes, int]:
    content = folder_format.invalidation("i", np.array([[1, 9], [2, 8]], np.uint64), 7)
    return content, len(content)


FILES = {
    "segment": (segment, read_segment, folder_format._HEAD.size),
    "invalidation": (
        invalidation,
        lambda content: folder_format.read_invalidation("i", content),
        folder_format._SMALL_HEAD.size,
    ),
}


@pytest.mark.parametrize(("make", "read", "head"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("bit", [0, 7])
def test_a_changed_byte_of_head_or_index_is_found(make, read, head, bit):
    content, size = make()
    read(content)
    for at in range(size):
        # The head ends with four bytes that mean nothing.
        if not head - 4 <= at < head:
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            with pytest.raises(DamagedFileError):
                read(bytes(changed))


@pytest.mark.parametrize(("make", "read", "head"), FILES.values(), ids=FILES)
def test_a_file_that_ends_early_is_found(make, read, head):
    content, size = make()
    for length in range(size):
        with pytest.raises(DamagedFileError):
            read(content[:length])
