"""`ValueStore`: the values of a function's keys in a store that all hosts share; for `cached`, without Spark.

keys ─► names ─► find or claim, in one round trip ──found──► values, with their true age
                    │ claimed here                └─claimed by another─► polled, until its value is there or
                    ▼                                                    its claim has ended
                  call ─► entry ─► claim ends
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lookupcache.cache.row_cache import rows_in
from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import Key, arguments_of, owner_of
from lookupcache.errors import OptionError
from lookupcache.flow.waiting import Pauses
from lookupcache.functions.identity import stored_identity
from lookupcache.functions.value_codec import SUPPORTED, UnsupportedValueError, ValueCodec, dataclasses_of
from lookupcache.lazy import cached_property
from lookupcache.metrics import Counters
from lookupcache.redaction import hidden, url_secrets
from lookupcache.resilience.runtime import Runtime
from lookupcache.store.contract import Reading
from lookupcache.store.frames import HEADER_BYTES, padded, read_frames, seal
from lookupcache.store.guard import Claimed, Clock, GuardedStore
from lookupcache.store.lifetimes import Lifetimes, StoreClock
from lookupcache.store.locations import open_store, url_of
from lookupcache.store.names import is_of_other_schema, names_of_bytes, schema_hash

_SCHEMA = schema_hash("Python values")

# The lengths of key and value, which follow; the frame is padded.
_LENGTHS = struct.Struct("<II")

Answered = list[tuple[list[Key], dict[Key, Any]]]


RequestKeys = Callable[[list[Key]], Awaitable[Answered]]


@dataclass(eq=False)
class _Call:
    """The keys of a call that have no value yet, in order, their encoded forms and names, and the values so far.

    ``claimed`` has the tokens of the keys that are claimed, ``unusable`` the keys whose entry cannot be used,
    ``damaged`` those whose entry could not be read. With ``waits``, it waits for values that others fetch again.
    """

    left: dict[Key, tuple[bytes, bytes]]
    written: dict[Key, float]
    values: dict[Key, Any] = field(default_factory=dict)
    claimed: dict[Key, bytes] = field(default_factory=dict)
    unusable: list[Key] = field(default_factory=list)
    damaged: set[Key] = field(default_factory=set)
    waits: bool = False
    has_ended: bool = False

    def names(self, keys: Sequence[Key]) -> list[bytes]:
        return [self.left[key][1] for key in keys]


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
        self._clock = clock
        self._timeout = config.timeout
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

    # ── one call ─────────────────────────────────────────────────────────────────────────────────────────

    async def fetch(
        self,
        keys: list[Key],
        written: dict[Key, float],
        request: RequestKeys,
        runtime: Runtime,
        *,
        waits: bool,
        until: float = math.inf,
    ) -> Answered:
        """Return the values of keys, from the store or by ``request``.

        Args:
            keys: The keys.
            written: Where the times are written at which the values from the store were fetched, by the own clock.
            request: Calls the function.
            runtime: How to wait; the store is read and written by functions that block.
            waits: Whether to wait for values that are due for a refresh which another process makes.
            until: The time of `time.monotonic` until which to wait for other processes, at most ``lookup.timeout``.
        """
        encoded = [self._encode_value(key) for key in keys]
        call = _Call(dict(zip(keys, zip(encoded, names_of_bytes(self.identity, encoded), strict=True), strict=True)),
                     written, waits=waits)  # fmt: skip
        until, pauses, is_first = min(until, time.monotonic() + self._timeout), Pauses.of_store(), True
        try:
            if not self._is_described:
                await runtime.block(self._describe)
            while True:
                requested = await self._find_or_claim(call, runtime, is_late=not is_first and time.monotonic() >= until)
                if is_first:
                    self.counters.add("store_waits", len(call.left) - len(requested))
                    is_first = False
                if requested:
                    answered = await request(requested)
                    await self._put(call, {key: value for _, some in answered for key, value in some.items()}, runtime)
                if not call.left:
                    break
                await runtime.sleep(pauses.take())
        finally:
            # A thread may be claiming just now, for a caller that was cancelled: it releases by itself.
            call.has_ended = True
            self._release(call)
        return [([key], {key: value}) for key, value in call.values.items()]

    async def _find_or_claim(self, call: _Call, runtime: Runtime, is_late: bool) -> list[Key]:
        """Take the values that are there, and claim the keys without one; return those to call the function with."""
        keys = list(call.left)
        if is_late:
            # Who requests them takes longer than any call may.
            return keys
        requested = await self._attempt(call, keys, self._store.claim_missing, runtime)
        unusable = [key for key in call.unusable if key in call.left]
        if unusable:
            requested += await self._attempt(call, unusable, self._store.claim, runtime)
        return [key for key in requested if key in call.left]

    async def _attempt(
        self, call: _Call, keys: list[Key], claim: Callable[[Sequence[bytes]], Claimed], runtime: Runtime
    ) -> list[Key]:
        before, names = self._clock(), call.names(keys)
        claimed: Claimed = await runtime.block(self._claim_for, call, keys, names, claim)
        # Who needs a value does not wait for another process to fetch it again; who fetches it again does.
        others = [not own and not there and not call.waits for own, there in
                  zip(claimed.to_request, claimed.has_entry, strict=True)]  # fmt: skip
        self._take(call, keys, claimed.reading, before, others)
        call.unusable = [key for key, there in zip(keys, claimed.has_entry, strict=True) if there]
        return [key for key, own in zip(keys, claimed.to_request, strict=True) if own]

    def _claim_for(
        self, call: _Call, keys: Sequence[Key], names: Sequence[bytes], claim: Callable[[Sequence[bytes]], Claimed]
    ) -> Claimed:
        claimed = claim(names)
        mine = [key for key, is_mine in zip(keys, claimed.is_claimed, strict=True) if is_mine]
        call.claimed.update(dict.fromkeys(mine, claimed.token))
        if call.has_ended:
            self._release(call)
        return claimed

    def _release(self, call: _Call, keys: Sequence[Key] | None = None) -> None:
        """End the claims of keys, or of all; one may have been claimed with another token than the next."""
        ended = list(call.claimed) if keys is None else keys
        for token, some in _by_token(call, ended).items():
            self._store.release(call.names(some), token)
        for key in ended:
            call.claimed.pop(key, None)

    async def _put(self, call: _Call, answers: dict[Key, Any], runtime: Runtime) -> None:
        """Take the function's values, and store those whose keys are claimed here."""
        claimed = [key for key in call.claimed if key in answers]
        stored = [key for key in claimed if self._lifetimes.stores_misses or rows_in(answers[key])]
        written = self._store_clock.now(self._clock())
        if written is not None:
            for token, some in _by_token(call, stored).items():
                bodies = [self._body(call.left[key][0], answers[key]) for key in some]
                counts = [rows_in(answers[key]) for key in some]
                seconds = [self._lifetimes.rows if count else self._lifetimes.misses for count in counts]
                await runtime.block(self._store.put, call.names(some), _frames(bodies, counts, written), seconds, token)
                for key in some:
                    call.claimed.pop(key, None)
        for key, value in answers.items():
            call.values[key] = value
        if left := [key for key in answers if key in call.claimed]:
            await runtime.block(self._release, call, left)
        fetched_at = self._clock()
        for key in answers:
            call.left.pop(key, None)
        if call.left:
            # The caller gets them when the others are there, and would take them for new.
            call.written.update(dict.fromkeys(answers, fetched_at))

    # ── entries ──────────────────────────────────────────────────────────────────────────────────────────

    def _take(
        self, call: _Call, keys: Sequence[Key], reading: Reading | None, before: float, is_refreshed: Sequence[bool]
    ) -> None:
        """Take the values of entries that are intact, of their key and young enough, or fetched again elsewhere."""
        if reading is None:
            return
        self._store_clock.read(reading.earliest, self._clock())
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
                value = self._codec.read(_value_of(frames.joined[start:end].tobytes(), call.left[key][0]))
            except ValueError:
                damaged.add(key)
                continue
            if allowed[number]:
                call.values[key], call.written[key] = value, before - float(ages[number])
                if key in call.claimed:
                    self._release(call, [key])
                del call.left[key]
                self.counters.add("store_hits")
        # A damaged entry is read again when its key is claimed.
        self.counters.add("store_dropped", len(damaged - call.damaged) + reading.dropped)
        call.damaged |= damaged

    def _encode_value(self, key: Key) -> bytes:
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
        names = names_of_bytes(self.identity, [self._encode_value(key) for key in keys])
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
        self._known_since = self._clock()

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        self._store.close()

    def reset_after_fork(self) -> None:
        """Forget the calls of the parent process."""
        self._store.reset_after_fork()


def _by_token(call: _Call, keys: Sequence[Key]) -> dict[bytes, list[Key]]:
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
