"""`ValueStore`: the values of a function's keys in a store that all hosts share; for `cached`, without Spark.

A call's keys go through it by `fetch`, as a `StoreCall`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookupcache.cache.keys import Positions
from lookupcache.cache.row_cache import rows_in
from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import Key
from lookupcache.decorator.values import Drop, Tier, Values, at, repeated
from lookupcache.functions.value_codec import FORM
from lookupcache.metrics import Counters
from lookupcache.store.frames import read_frames
from lookupcache.store.guard import Clock
from lookupcache.store.names import names_of_bytes, schema_hash
from lookupcache.store.row_store import Codec, RowStore
from lookupcache.store.rows import StoredRows, join_parts
from lookupcache.store.store_call import StoreCall

_COLUMNS = "Python values"
_SCHEMA = schema_hash(f"{_COLUMNS}, {FORM}")

# The lengths of key and value, which follow; the frame is padded.
_LENGTHS = struct.Struct("<II")


class ValueStore(Tier):
    """The values of a function's keys in a store; its failures are counted, and calls go on.

    ``identify`` returns the identity of the function's values.
    """

    without = "leave 'lookup.cache.store' out"

    def __init__(
        self,
        function: Callable[..., Any],
        config: LookupConfig,
        identify: Callable[[], str],
        counters: Counters,
        clock: Clock,
    ) -> None:
        super().__init__(function)
        self.clock = clock
        self.function = f"Function {getattr(function, '__qualname__', type(function).__qualname__)!r}"
        self.entries = RowStore(
            config, Codec(_COLUMNS, [], names_of_bytes, self._read, self._write, lambda values, *_: values),
            lambda: config.store_name or identify(), self.function, {"function": self.function}, counters, clock,
        )  # fmt: skip

    def open(self, drop: Drop) -> bool:
        """Return True: the first call connects, and a store tells of no changes."""
        return True

    def call(self, keys: Sequence[Key], *, refresh: bool, most: float) -> ValueStoreCall:
        """Return the work of a call for these keys; a ``refresh`` waits for values that another process fetches again.

        The store itself limits how long claims are renewed.
        """
        return ValueStoreCall(self, keys, refresh=refresh)

    def _read(self, entries: Sequence[bytes | None], keys: Sequence[bytes]) -> _StoredValues:
        frames = read_frames(entries, _SCHEMA)
        values, intact = [], []
        spans = zip(frames.positions.tolist(), frames.starts.tolist(), frames.ends.tolist(), strict=True)
        for number, (position, start, end) in enumerate(spans):
            with suppress(ValueError):
                values.append(self.codec.read(_value_of(frames.joined[start:end].tobytes(), keys[position])))
                intact.append(number)
        kept = np.array(intact, np.int64)
        return _StoredValues(frames.positions[kept], values, frames.rows[kept], frames.written[kept])

    def _write(
        self, keys: Sequence[bytes], values: Mapping[bytes, Any], counts: Positions, written: float
    ) -> list[bytes]:
        encoded = [self.encode(self.codec.write, values[key], "returned") for key in keys]
        bodies = [_LENGTHS.pack(len(key), len(value)) + key + value for key, value in zip(keys, encoded, strict=True)]
        bounds = np.cumsum([0, *map(len, bodies)])
        return join_parts([(np.frombuffer(b"".join(bodies), np.uint8), bounds)], counts, written, _SCHEMA)

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Remove keys, or with None all of the function, or of all that share its name in the store.

        What is being fetched for them is not stored. Without the store, its entries stay; this process then uses none
        that was written before.
        """
        if keys is None:
            self.entries.clear()
        else:
            self.entries.invalidate(_array(map(self.encode_key, keys)))

    def close(self) -> None:
        self.entries.guarded.close()

    def reset_after_fork(self) -> None:
        self.entries.guarded.reset_after_fork()


class ValueStoreCall(StoreCall[Values]):
    """The keys of a call of `cached`, in a store."""

    is_source_asked = False
    is_put_at_once = True

    def __init__(self, store: ValueStore, keys: Sequence[Key], *, refresh: bool) -> None:
        self._of = keys
        self._encoded = _array(map(store.encode_key, keys))
        alone = repeated(self._encoded.tolist())
        super().__init__(store.entries, self._encoded, waits_for_refreshes=refresh, alone=alone)

    def publish(self, positions: Positions, new: Values) -> None:
        values = [new.values[key] for key in at(self._of, positions)]
        counts = np.array([rows_in(value) for value in values], np.int64)
        by_key = dict(zip(self._encoded[positions].tolist(), values, strict=True))
        self.put(positions, by_key, counts, np.ones(len(values), np.bool_))

    @property
    def found(self) -> Values:
        """The values that the store had."""
        found = Values()
        for positions, known in self.known:
            keys = at(self._of, positions)
            found.add(
                Values(dict(zip(keys, known.rows, strict=True)), dict(zip(keys, known.written.tolist(), strict=True)))
            )
        return found


@dataclass(frozen=True)
class _StoredValues(StoredRows):
    """The values of some keys; ``rows`` has one for each."""

    def take(self, kept: Positions) -> _StoredValues:
        values = [self.rows[number] for number in kept.tolist()]
        return _StoredValues(self.positions[kept], values, self.counts[kept], self.written[kept])


def _array(encoded: Iterable[bytes]) -> np.ndarray[Any, Any]:
    return np.array(list(encoded), object)


def _value_of(body: bytes, key: bytes) -> bytes:
    """Return the encoded value of an entry; raises ValueError if it is of another key, or damaged."""
    try:
        of_key, of_value = _LENGTHS.unpack_from(body)
    except struct.error:
        raise ValueError("cut off") from None
    end = _LENGTHS.size + of_key
    if body[_LENGTHS.size : end] != key:
        raise ValueError("another key")
    return body[end : end + of_value]
