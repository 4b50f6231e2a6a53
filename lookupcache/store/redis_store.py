"""A store in Redis or Valkey: one server, the master that sentinels report, or a cluster.

    lookupcache:1:<identity>:{<hash of the key>}     an entry, with its own expiry
    lookupcache:1:<identity>:{<hash of the key>}c    a claim on it: the token of the process that requests the key
    lookupcache:1:<identity>:about                   a JSON object: table, connector, columns

Each method is one round trip, for a cluster one per server. The braces put an entry and its claim on the same server.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from lookupcache.redis.clients import Cluster, RedisServer
from lookupcache.redis.commands import KeyCommand
from lookupcache.store.contract import (
    CALL_BYTES,
    PREFIX,
    Reading,
    Store,
    StoreContent,
    StoreFullError,
    identity_prefix,
)
from lookupcache.store.redis_client import RedisClient

_MOST_NAMES = 1_000
_MOST_BYTES = 8 << 20
_SCAN = 1_000
_CLAIM = b"c"
_ABOUT = b"about"
_ZERO = ord("0")
_FULL = re.compile(r"\b(OOM|MISCONF|READONLY|NOREPLICAS)\b")
"""The errors of a server that answers reads but takes no writes; a script puts other words before them."""

# KEYS: all entries, then their claims; ARGV: the token, the expiry of all in ms, 0 for none, then the bytes of each. It
# runs few commands: while it runs, the server serves no other client.
_PUT = b"""
local count, sets, ended = #KEYS / 2, {}, {}
local token, expiry = ARGV[1], ARGV[2]
local holders = redis.call('MGET', unpack(KEYS, count + 1))
for i = 1, count do
  if holders[i] == token then
    ended[#ended + 1] = KEYS[count + i]
    if expiry == '0' then
      sets[#sets + 1] = KEYS[i]
      sets[#sets + 1] = ARGV[i + 2]
    else redis.call('SET', KEYS[i], ARGV[i + 2], 'PX', expiry) end
  end
end
if #sets > 0 then redis.call('MSET', unpack(sets)) end
if #ended > 0 then redis.call('DEL', unpack(ended)) end
return #ended
"""
_IS_OWN = b"""
local own = string.sub(ARGV[1], 1, -%d)
local function is_own(holder) return type(holder) == 'string' and string.sub(holder, 1, -%d) == own end
""" % (CALL_BYTES + 1, CALL_BYTES + 1)
"""Defines whether a claim is of the same process as the token."""

# KEYS: all entries, then their claims; ARGV: the token, how long a claim lasts, and whether to claim names that have an
# entry too. Returns the time, for each name a letter, what `Store.claim` says, and another, whether there is an entry,
# and the entries: two texts are read much faster than two numbers for each name. Another value than a text, such as
# another program's list, is no entry and no claim.
_CLAIM_ALL = (
    _IS_OWN
    + b"""
local time, states, there, count = redis.call('TIME'), {}, {}, #KEYS / 2
local entries = redis.call('MGET', unpack(KEYS, 1, count))
local reply = {time[1], time[2], '', ''}
for i = 1, count do
  local entry, claim = entries[i], KEYS[count + i]
  if entry then
    there[i] = '1'
    reply[#reply + 1] = entry
  else there[i] = '0' end
  if entry and ARGV[3] == '0' then states[i] = '3'
  elseif redis.call('SET', claim, ARGV[1], 'NX', 'PX', ARGV[2]) then states[i] = '1'
  else
    local holder = redis.pcall('GET', claim)
    if type(holder) == 'table' then redis.call('SET', claim, ARGV[1], 'PX', ARGV[2]) states[i] = '1'
    elseif is_own(holder) then states[i] = '2'
    else states[i] = '0' end
  end
end
reply[3], reply[4] = table.concat(states), table.concat(there)
return reply
"""
)
_RELEASE = b"""
local ended = {}
for i, holder in ipairs(redis.call('MGET', unpack(KEYS))) do
  if holder == ARGV[1] then ended[#ended + 1] = KEYS[i] end
end
if #ended > 0 then redis.call('DEL', unpack(ended)) end
return 0
"""
_RENEW = (
    _IS_OWN
    + b"""
for i = 1, #KEYS do
  if is_own(redis.pcall('GET', KEYS[i])) then redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
end
return 0
"""
)


class RedisStore(RedisClient, Store):
    """A store in Redis; ``url`` is as the option ``url`` of the redis connector, ``timeout`` in seconds.

    >>> RedisStore("redis://db:6379/0", 0.2)
    RedisStore(server at db)
    """

    def __repr__(self) -> str:
        return f"RedisStore({self._address.kind} at {', '.join(host for host, _ in self._address.nodes)})"

    # ── entries and claims ───────────────────────────────────────────────────────────────────────────────

    def get(self, names: Sequence[bytes]) -> Reading:
        """Return the entries of names, by TIME and MGET; in a cluster, by TIME and GETs."""
        if self._is_cluster:
            now, entries = self._call(lambda server: _read_cluster(server, names))
            return Reading(_seconds(now), _checked(entries))
        now, entries = _checked(self._run([[b"TIME"], [b"MGET", *names]]))
        return Reading(_seconds(now), list(entries))

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names, and read their entries, by one script."""
        return self._claim(names, token, seconds, b"1")

    def claim_missing(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Read entries, and claim the names that have none, by one script."""
        return self._claim(names, token, seconds, b"0")

    def _claim(self, names: Sequence[bytes], token: bytes, seconds: float, always: bytes) -> tuple[list[int], Reading]:
        is_cluster = self._is_cluster
        # In a cluster, the clock of one server is that of all.
        now = _seconds(self._call(_time_of_cluster)) if is_cluster else math.inf
        claims, size = [name + _CLAIM for name in names], 1 if is_cluster else _MOST_NAMES
        commands = []
        for start in range(0, len(names), size):
            keys = [*names[start : start + size], *claims[start : start + size]]
            commands.append([b"EVAL", _CLAIM_ALL, b"%d" % len(keys), *keys, token, _milliseconds(seconds), always])
        states: list[int] = []
        entries: list[bytes | None] = []
        for whole, micros, some, there, *found in _checked(self._run(commands)) if commands else []:
            now = now if is_cluster else min(now, _seconds((whole, micros)))
            states += [letter - _ZERO for letter in some]
            in_order = iter(found)
            entries += [next(in_order) if letter != _ZERO else None for letter in there]
        return states, Reading(now, entries)

    def renew(self, names: Sequence[bytes], token: bytes, seconds: float) -> None:
        """Prolong the claims that the token's process still has."""
        self._eval(_RENEW, [[name + _CLAIM] for name in names], [token, _milliseconds(seconds)])

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        """Write the entries whose claims the token still has, and end those claims."""
        written = 0
        for second in dict.fromkeys(seconds):  # Those of rows, and of known misses.
            of = [at for at, own in enumerate(seconds) if own == second]
            keys, arguments = [[names[at], names[at] + _CLAIM] for at in of], [[entries[at]] for at in of]
            expiry = b"0" if second == math.inf else _milliseconds(second)
            written += sum(self._eval(_PUT, keys, [token, expiry], arguments))
        return written

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        """End the claims that the token still has."""
        self._eval(_RELEASE, [[name + _CLAIM] for name in names], [token])

    def invalidate(self, names: Sequence[bytes]) -> None:
        """Remove entries and claims."""
        self._unlink([part for name in names for part in (name, name + _CLAIM)])

    # ── identities ───────────────────────────────────────────────────────────────────────────────────────

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        """Return what describes an identity; if there is nothing yet, write it."""
        name = identity_prefix(identity).encode() + _ABOUT
        text = json.dumps(about, sort_keys=True).encode()
        [found] = _checked(self._run([[b"GET", name]]))
        if found is None:  # Only then, since a server that is full takes no SET.
            _, found = _checked(self._run([[b"SET", name, text, b"NX"], [b"GET", name]]))
        return _about(found) or about

    def contents(self) -> list[StoreContent]:
        """Return what lies in the store, found by SCAN."""
        sizes: dict[str, list[int]] = {}
        abouts: dict[str, dict[str, str]] = {}
        for names in self._scan(PREFIX.encode() + b"*"):
            for identity, name, size in self._sized(names):
                counts = sizes.setdefault(identity, [0, 0])
                if name.endswith(b"}"):
                    counts[0] += 1
                    counts[1] += size
                elif name.endswith(b":" + _ABOUT):
                    abouts[identity] = _about(self._run([[b"GET", name]])[0]) or {}
        return [StoreContent(one, abouts.get(one, {}), *counts) for one, counts in sorted(sizes.items())]

    def clear(self, identity: str | None = None) -> int:
        """Remove all entries and claims of an identity, or of all, found by SCAN."""
        prefix = PREFIX if identity is None else identity_prefix(identity)
        removed = 0
        # An identity may come from the command line, and is no pattern.
        for names in self._scan(re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix.encode()) + b"*"):
            self._unlink(names)
            removed += sum(name.endswith(b"}") for name in names)
        return removed

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────

    def _eval(
        self, script: bytes, keys: list[list[bytes]], shared: list[bytes], own: list[list[bytes]] | None = None
    ) -> list[Any]:
        """Run a script for groups of keys, with shared arguments and those of each group.

        One server runs it for many groups at a time, a cluster for each, since their slots differ.
        """
        most = 1 if self._is_cluster else _MOST_NAMES
        commands = _script(script, keys, shared, own, most)
        return _checked(self._run(commands)) if commands else []

    def _unlink(self, names: list[bytes]) -> None:
        if self._is_cluster:
            commands = [[b"UNLINK", name] for name in names]
        else:
            commands = [[b"UNLINK", *names[at : at + _SCAN]] for at in range(0, len(names), _SCAN)]
        if commands:
            _checked(self._run(commands))

    def _scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        """Yield names in batches, each once."""
        seen: set[bytes] = set()
        batch: list[bytes] = []
        self._call(lambda server: server.check())
        for name in self._server.scan(pattern, "STRING", _SCAN):
            if name not in seen:
                seen.add(name)
                batch.append(name)
            if len(batch) == _SCAN:
                yield batch
                batch = []
        if batch:
            yield batch

    def _sized(self, names: list[bytes]) -> Iterator[tuple[str, bytes, int]]:
        sizes = self._run([[b"STRLEN", name] for name in names])
        for name, size in zip(names, sizes, strict=True):
            identity = name.decode("utf-8", "replace").removeprefix(PREFIX).partition(":")[0]
            yield identity, name, size if isinstance(size, int) else 0


def _time_of_cluster(server: RedisServer | Cluster) -> tuple[int, int]:
    assert isinstance(server, Cluster)
    return server.time()


def _read_cluster(server: RedisServer | Cluster, names: Sequence[bytes]) -> tuple[tuple[int, int], list[Any]]:
    """Return the time, and then the reply for each name; another value than a text is missing, as for MGET."""
    now = _time_of_cluster(server)
    replies = server.execute(KeyCommand(b"MGET", list(names), together=True))
    return now, [None if _is_no_text(reply) else reply for reply in replies]


def _is_no_text(reply: Any) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")


def _checked(replies: list[Any]) -> list[Any]:
    """Return replies; raises the first that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            if _is_full(reply):
                raise StoreFullError(str(reply)) from reply
            raise reply
    return replies


def _is_full(error: Exception) -> bool:
    """Return whether a server says that it takes no writes; the client has removed some of its words."""
    from redis.exceptions import OutOfMemoryError, ReadOnlyError

    return isinstance(error, OutOfMemoryError | ReadOnlyError) or _FULL.search(str(error)) is not None


def _seconds(time: Sequence[Any]) -> float:
    whole, micros = time
    return int(whole) + int(micros) / 1_000_000


def _milliseconds(seconds: float) -> bytes:
    # At least 1: 0 is not allowed.
    return b"%d" % max(int(seconds * 1_000), 1)


def _about(text: bytes | None) -> dict[str, str] | None:
    try:
        found = json.loads(text or b"")
    except ValueError:
        return None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None


def _script(
    script: bytes, keys: list[list[bytes]], shared: list[bytes], own: list[list[bytes]] | None, most: int
) -> list[list[bytes]]:
    """Return the commands that run a script for groups of keys, at most ``most`` groups in each."""
    arguments = own or [[] for _ in keys]
    commands = []
    for start, end in _pieces(arguments, most):
        # The first name of each group, then the second of each, as the scripts read them.
        names = chain.from_iterable(zip(*keys[start:end], strict=True))
        values = chain.from_iterable(arguments[start:end])
        commands.append([b"EVAL", script, b"%d" % (len(keys[0]) * (end - start)), *names, *shared, *values])
    return commands


def _pieces(arguments: list[list[bytes]], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of groups: at most ``most`` of them, and not too many bytes, in each."""
    if 0 < len(arguments) <= most and sum(map(len, chain.from_iterable(arguments))) <= _MOST_BYTES:
        # Nearly always; to add up group by group takes as long as to encode them.
        yield 0, len(arguments)
        return
    start, size = 0, 0
    for number, group in enumerate(arguments):
        own = sum(map(len, group))
        if number > start and (number - start == most or size + own > _MOST_BYTES):
            yield start, number
            start, size = number, 0
        size += own
    if start < len(arguments):
        yield start, len(arguments)
