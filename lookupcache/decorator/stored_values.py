"""`ValueStore`: the values of a function's keys in a store that all hosts share; for `cached`, without Spark.

keys ─► names ─► find or claim, in one round trip ──found──► values, with their true age
                    │ claimed here                └─claimed by another─► polled, until its value is there or
                    ▼                                                    its claim has ended
                  call ─► entry ─► claim ends
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lookupcache.cache.row_cache import rows_in
from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import Key, arguments_of, owner_of
from lookupcache.errors import OptionError
from lookupcache.flow.flow import TierCall, Values
from lookupcache.flow.waiting import Pauses
from lookupcache.functions.identity import stored_identity
from lookupcache.functions.value_codec import SUPPORTED, UnsupportedValueError, ValueCodec, dataclasses_of
from lookupcache.lazy import cached_property
from lookupcache.metrics import Counters
from lookupcache.redaction import hidden, url_secrets
from lookupcache.store.contract import Reading
from lookupcache.store.frames import HEADER_BYTES, padded, read_frames, seal
from lookupcache.store.guard import Claimed, Clock, GuardedStore
from lookupcache.store.lifetimes import Lifetimes, StoreClock
from lookupcache.store.locations import open_store, url_of
from lookupcache.store.names import is_of_other_schema, names_of_bytes, schema_hash

_SCHEMA = schema_hash("Python values")

# The lengths of key and value, which follow; the frame is padded.
_LENGTHS = struct.Struct("<II")


class ValueStore:
    """The values of a function's keys in a store; whatever fails there is counted, and calls go on.

    The first call raises OptionError if the identity of the function is not known.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        config: LookupConfig,
        counters: Counters,
        clock: Clock,
        identity: str | None = None,
    ) -> None:
        assert config.store is not None
        self._function, self._version = function, config.version
        self._name = config.store_name or identity
        self.counters = counters
        self._codec = ValueCodec(dataclasses_of(function))
        self.clock = clock
        self._lifetimes = Lifetimes.of(config)
        self.function = f"Function {getattr(function, '__qualname__', type(function).__qualname__)!r}"
        secrets = url_secrets(url_of(config.store))
        self._store = GuardedStore(
            open_store(config.store, config.store_timeout), counters, self.function,
            lambda text: hidden(text, secrets), config.timeout,
            config.store_timeout,
        )  # fmt: skip
        self._about = {"function": self.function, "columns": "Python values", "schema": f"{_SCHEMA:016x}"}
        self._is_described = False
        self._known_since = -math.inf
        self._store_clock = StoreClock()

    @cached_property
    def identity(self) -> str:
        """The identity of the values; taken late, since the functions that a function calls may be defined after it."""
        return self._name or stored_identity(self._function, self._version)

    def call(self, keys: Sequence[Key], *, waits: bool) -> StoreCall:
        """Return the work of a call for these keys; ``waits`` for values that another process fetches again."""
        return StoreCall(self, keys, waits=waits)

    def attempt(
        self, call: StoreCall, keys: list[Key], claim: Callable[[Sequence[bytes]], Claimed]
    ) -> tuple[list[Key], list[Key]]:
        """Take the values that are there; return the keys to request, and those whose entry cannot be used."""
        before = self.clock()
        claimed = claim(call.names(keys))
        mine = [key for key, is_mine in zip(keys, claimed.is_claimed, strict=True) if is_mine]
        call.claimed.update(dict.fromkeys(mine, claimed.token))
        # Who needs a value does not wait for another process to fetch it again; who fetches it again does.
        others = [not own and not there and not call.waits_for_refresh for own, there in
                  zip(claimed.to_request, claimed.has_entry, strict=True)]  # fmt: skip
        self._take(call, keys, claimed.reading, before, others)
        unusable = [
            key for key, there in zip(keys, claimed.has_entry, strict=True) if there and key not in call.found.values
        ]
        to_request = [key for key, own in zip(keys, claimed.to_request, strict=True) if own]
        return [key for key in to_request if key not in call.found.values], unusable

    def find_or_claim(self, call: StoreCall) -> list[Key]:
        """Take the values that are there, and claim the keys without one; return those to request."""
        if not self._is_described:
            self._describe()
        requested, unusable = self.attempt(call, list(call.left), self._store.claim_missing)
        if unusable:
            requested += self.attempt(call, unusable, self._store.claim)[0]
        return [key for key in requested if key not in call.found.values]

    def release(self, call: StoreCall, keys: Sequence[Key]) -> None:
        """End claims of keys; one may have been claimed with another token than the next."""
        for token, some in _by_token(call, keys).items():
            self._store.release(call.names(some), token)
        for key in keys:
            call.claimed.pop(key, None)

    def put(self, call: StoreCall, answers: Mapping[Key, Any]) -> None:
        """Store the function's values of keys that are claimed, and end the claims."""
        claimed = [key for key in answers if key in call.claimed]
        stored = [key for key in claimed if self._lifetimes.stores_misses or rows_in(answers[key])]
        written = self._store_clock.now(self.clock())
        if written is not None:
            for token, some in _by_token(call, stored).items():
                bodies = [self._body(call.encoded[key], answers[key]) for key in some]
                counts = [rows_in(answers[key]) for key in some]
                seconds = [self._lifetimes.rows if count else self._lifetimes.misses for count in counts]
                self._store.put(call.names(some), _frames(bodies, counts, written), seconds, token)
                for key in some:
                    call.claimed.pop(key, None)
        self.release(call, [key for key in claimed if key in call.claimed])

    # ── entries ──────────────────────────────────────────────────────────────────────────────────────────

    def _take(
        self, call: StoreCall, keys: Sequence[Key], reading: Reading | None, before: float, is_refreshed: Sequence[bool]
    ) -> None:
        """Take the values of entries that are intact, of their key and young enough, or fetched again elsewhere."""
        if reading is None:
            return
        self._store_clock.read(reading.earliest, self.clock())
        frames, _ = read_frames(reading.entries, _SCHEMA)
        damaged = {key for key, entry in zip(keys, reading.entries, strict=True) if entry is not None}
        damaged.difference_update(keys[position] for position in frames.positions.tolist())
        ages = reading.now - frames.written
        refreshed = np.array(is_refreshed, np.bool_)[frames.positions]
        allowed = self._lifetimes.allow(ages, frames.rows, refreshed) & (before - ages > self._known_since)
        spans = zip(frames.positions.tolist(), frames.starts.tolist(), frames.ends.tolist(), strict=True)
        for number, (position, start, end) in enumerate(spans):
            key = keys[position]
            try:
                value = self._codec.read(_value_of(frames.joined[start:end].tobytes(), call.encoded[key]))
            except ValueError:
                damaged.add(key)
                continue
            if allowed[number]:
                call.found.values[key], call.found.written[key] = value, before - float(ages[number])
                if key in call.claimed:
                    self.release(call, [key])
                self.counters.add("store_hits")
        # A damaged entry is read again when its key is claimed.
        self.counters.add("store_dropped", len(damaged - call.damaged) + reading.dropped)
        call.damaged |= damaged

    def encode_key(self, key: Key) -> bytes:
        """Return a key as other processes write it; raises OptionError for one that they do not have."""
        if owner_of(key) is not None:
            raise OptionError(
                f"{self.function} is a method: 'lookup.cache.store' cannot know which object of another process is "
                "the same.",
                hint="Decorate a function whose arguments say all that its result depends on.",
            )
        return self._write(self._codec.write_key, tuple(arguments_of(key)), "is called with")

    def _write(self, write: Callable[[Any], bytes], value: Any, does: str) -> bytes:
        try:
            return write(value)
        except UnsupportedValueError as error:
            raise OptionError(
                f"{self.function} {does} a value that 'lookup.cache.store' cannot keep: {error}.",
                hint=f"Use {SUPPORTED}; or leave the option out.",
            ) from None

    def _body(self, key: bytes, value: Any) -> bytes:
        encoded = self._write(self._codec.write, value, "returned")
        return _LENGTHS.pack(len(key), len(encoded)) + key + encoded

    def _describe(self) -> None:
        found = self._store.describe(self.identity, self._about)
        self._is_described = found is not None
        if found is not None and is_of_other_schema(found, self._about["schema"]):
            raise OptionError(
                f"{self.function}: the entries in the store named {self.identity!r} are rows of "
                f"{found.get('columns', '?')}, not values of a function.",
                hint="Choose another 'lookup.cache.store.name', or remove the entries with 'lookupcache cache clear'.",
            )

    # ── removing ─────────────────────────────────────────────────────────────────────────────────────────

    def invalidate(self, keys: Sequence[Key]) -> None:
        """Remove keys; what is being fetched for them is not stored.

        Without the store, its entries stay; this process then uses none that was written before.
        """
        names = names_of_bytes(self.identity, [self.encode_key(key) for key in keys])
        if not self._store.invalidate(names):
            self._distrust()

    def clear(self) -> None:
        """Remove all values of the function, or of all that share its name in the store."""
        if not self._store.clear(self.identity):
            self._distrust()
        self._is_described = False

    def _distrust(self) -> None:
        """Use nothing that was stored until now, and store nothing that is being fetched."""
        self._store.void_claims()
        self._known_since = self.clock()

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        self._store.close()

    def reset_after_fork(self) -> None:
        """Forget the calls of the parent process."""
        self._store.reset_after_fork()


class StoreCall(TierCall[Key]):
    """One call's keys in a store: ``claimed`` has the tokens of those that are claimed.

    ``damaged`` are those whose entry could not be read. With ``waits``, it waits for values that others fetch again.
    """

    waits = "store_waits"
    is_source_asked = False

    def __init__(self, store: ValueStore, keys: Sequence[Key], *, waits: bool) -> None:
        super().__init__(keys, store.encode_key, store.clock, Pauses.of_store())
        self._store = store
        self._names = dict(zip(self.encoded, names_of_bytes(store.identity, list(self.encoded.values())), strict=True))
        self.waits_for_refresh = waits
        self.claimed: dict[Key, bytes] = {}
        self.damaged: set[Key] = set()

    def names(self, keys: Sequence[Key]) -> list[bytes]:
        """Return the names of keys."""
        return [self._names[key] for key in keys]

    def look(self, is_over: bool) -> list[Key]:
        """Find keys, and claim the others, in one round trip where possible."""
        return list(self.left) if is_over else self._store.find_or_claim(self)

    def publish(self, new: Values[Key]) -> None:
        """Store the values of keys that are claimed here, and end their claims."""
        self._store.put(self, new.values)

    def release(self) -> None:
        """End all claims."""
        self._store.release(self, list(self.claimed))


def _by_token(call: StoreCall, keys: Sequence[Key]) -> dict[bytes, list[Key]]:
    found: dict[bytes, list[Key]] = {}
    for key in keys:
        if key in call.claimed:
            found.setdefault(call.claimed[key], []).append(key)
    return found


def _frames(bodies: Sequence[bytes], counts: Sequence[int], written: float) -> list[bytes]:
    sizes = np.array([HEADER_BYTES + len(body) for body in bodies], np.int64)
    ends = np.cumsum(padded(sizes))
    starts = ends - padded(sizes)
    frames = np.zeros(int(ends[-1]), np.uint8)
    for start, body in zip(starts.tolist(), bodies, strict=True):
        frames[start + HEADER_BYTES : start + HEADER_BYTES + len(body)] = np.frombuffer(body, np.uint8)
    seal(frames, starts, np.array(counts, np.int64), written, _SCHEMA)
    whole = frames.tobytes()
    return [whole[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


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
