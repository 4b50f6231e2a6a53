"""Decodes compressed HTTP responses in chunks, so that a small response cannot fill the memory.

chunks ─► `Decoder` ─► at most as many bytes as the limit
"""

from __future__ import annotations

import zlib

CODINGS = "gzip, deflate"
"""The encodings that are understood, as in the header Accept-Encoding."""

_EITHER = 32 + zlib.MAX_WBITS
_GZIP = b"\x1f"
_BLOCK = 1 << 14


class Decoder:
    """Decodes the coding in the header Content-Encoding; raises ValueError for one that is not supported.

    >>> decoder = Decoder("gzip")
    >>> packed = __import__("gzip").compress(b"x" * 1_000_000)
    >>> len(packed), decoder.decode(packed, 5)
    (1003, b'xxxxx')
    """

    def __init__(self, coding: str) -> None:
        self.coding = coding.strip().lower().removeprefix("x-")
        if self.coding not in ("", "identity", "gzip", "deflate"):
            raise ValueError(f"content coding {coding!r}")
        self._unpack = None if self.coding in ("", "identity") else zlib.decompressobj(_EITHER)
        self._begun = False

    def decode(self, piece: bytes, most: int) -> bytes:
        """Decode the next chunk of the response; return at most ``most`` bytes, and drop the rest.

        A caller that receives ``most`` bytes must stop reading. Raises zlib.error.
        """
        if self._unpack is None or not piece:
            return piece[:most]
        if not self._begun and self.coding == "deflate" and piece[0] & 15 != 8:
            # Some servers send deflate without the zlib header that HTTP requires.
            self._unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        self._begun = True
        found = bytearray()
        # In blocks: after each member of a gzip file zlib copies all that follows, and an answer may consist of members
        # that are empty.
        for start in range(0, len(piece), _BLOCK):
            if len(found) == most:
                break
            found += self._unpack.decompress(piece[start : start + _BLOCK], most - len(found))
            while len(found) < most and self._unpack.eof and self._unpack.unused_data[:1] == _GZIP:
                rest, self._unpack = self._unpack.unused_data, zlib.decompressobj(_EITHER)
                found += self._unpack.decompress(rest, most - len(found))
        return bytes(found)

    @property
    def complete(self) -> bool:
        return not self._begun or self._unpack is None or self._unpack.eof
