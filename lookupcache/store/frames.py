"""Frames: how the rows or the value of one key lie in the store, whatever the server.

A frame is a header of four 64-bit words and a body, padded with zeros to a multiple of eight bytes:

    magic and number of rows · time of writing · hash of the schema · checksum · body

All frames of a batch are checked together, as one array of words. A frame of another format version, of another schema
or with another checksum is damaged, which is the same as not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Positions

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

FORMAT_VERSION = 1
"""Part of every identity: entries of another version are never read. A change of the hash of keys needs a new one."""

HEADER_BYTES = 32
MICROSECONDS = 1_000_000

_MAGIC = np.uint64(int.from_bytes(b"LCS\x01", "little"))
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_ROWS_SHIFT = np.uint64(32)


@dataclass(frozen=True)
class Frames:
    """The intact frames of a batch: ``positions`` in the batch, and where their bodies are in ``joined``."""

    positions: Positions
    rows: Positions
    written: Floats
    joined: Bytes
    starts: Positions
    ends: Positions


def padded(sizes: Positions) -> Positions:
    """Return sizes rounded up to a multiple of eight."""
    return (sizes + 7) // 8 * 8


def seal(frames: Bytes, starts: Positions, rows: Positions, written: float, schema: int) -> None:
    """Write the headers of frames that lie one after another from ``starts`` on; their bodies are complete."""
    words = frames.view(np.uint64)
    first = starts // 8
    words[first] = _MAGIC | rows.astype(np.uint64) << _ROWS_SHIFT
    words[first + 1] = np.int64(written * MICROSECONDS).astype(np.uint64)
    words[first + 2] = np.uint64(schema)
    words[first + 3] = _checksums(words, first)


def read_frames(values: Sequence[bytes | None], schema: int) -> Frames:
    """Return the intact frames among values, None for those that are not there."""
    whole = {
        number: value
        for number, value in enumerate(values)
        if value is not None and len(value) >= HEADER_BYTES and len(value) % 8 == 0
    }
    found = list(whole.values())
    joined = np.frombuffer(b"".join(found), np.uint8)
    sizes = np.fromiter(map(len, found), np.int64, len(found))
    ends = np.cumsum(sizes)
    starts = ends - sizes
    words, first = joined.view(np.uint64), starts // 8
    heads = words[first]
    intact = (heads & np.uint64(0xFFFFFFFF)) == _MAGIC
    intact &= words[first + 2] == np.uint64(schema)
    intact &= words[first + 3] == _checksums(words, first)
    kept = np.flatnonzero(intact)
    return Frames(
        np.array(list(whole), np.int64)[kept],
        (heads[kept] >> _ROWS_SHIFT).astype(np.int64),
        words[first + 1].view(np.int64)[kept] / MICROSECONDS,
        joined,
        starts[kept] + HEADER_BYTES,
        ends[kept],
    )


def _checksums(words: Words, first: Positions) -> Words:
    """Return the checksum of each frame: the sum of its words, each mixed with its position; its own word is left out.

    It finds damage, not forgery: a user with write access to the store can write any rows.
    """
    if not first.size:
        return np.zeros(0, np.uint64)
    lengths = np.diff(np.append(first, len(words)))
    number = (np.arange(len(words)) - np.repeat(first, lengths) + 1).astype(np.uint64)
    mixed = (words ^ (number * _ODD)) * _ODD
    mixed ^= mixed >> _SHIFT
    mixed[first + 3] = 0
    return np.add.reduceat(mixed * _ODD, first)
