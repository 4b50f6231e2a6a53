"""A store in Redis or Valkey: one server, the master that sentinels report, or a cluster.

    lookupcache:1:<identity>:{<hash of the key>}     an entry, with its own expiry
    lookupcache:1:<identity>:{<hash of the key>}c    a claim on it: the token of the process that requests the key
    lookupcache:1:<identity>:about                   a JSON object: table, connector, columns

Each method is one round trip, for a cluster one per server. The braces put an entry and its claim on the same server.
In a cluster, a server runs a script for all its names at once, although they are of several slots. Where it refuses
that, as while a slot moves or before Redis 7, it runs the script for each name.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

from lookupcache.redis.clients import Cluster, RedisServer
from lookupcache.store.contract import (
    CALL_BYTES,
    PREFIX,
    Reading,
    Store,
    StoreContent,
    StoreFullError,
    identity_prefix,
    read_about,
)
from lookupcache.store.redis_client import RedisClient

_MOST_NAMES = 1_000
_MOST_BYTES = 8 << 20
_SCAN = 1_000
_CLAIM = b"c"
_ABOUT = b"about"
_ZERO = ord("0")
_SINGLE_SECONDS = 60.0
"""How long scripts run for each name in a cluster where a server has refused one for names of several slots."""

T = TypeVar("T")
_FULL = re.compile(r"\b(OOM|MISCONF|READONLY|NOREPLICAS)\b")
"""The errors of a server that answers reads but takes no writes; a script puts other words before them."""


@dataclass(frozen=True)
class _Script:
    """A script that a server runs for some names, and a server of a cluster for those of several slots too.

    It runs few commands: while it runs, the server serves no other client. It calls ``get_all``, with the first and the
    last number of some KEYS, ``set_all``, with names and values in turns, and ``remove_all``, with names. Another value
    than a text, such as another program's list, is no entry and no claim.
    """

    body: bytes
    flags: bytes = b""
    """Those of Redis 7 for a server that has no more memory, apart from the one for several slots."""

    def command(self, names: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """Return the command that runs it for names of one server, in a cluster of one slot."""
        return [b"EVAL", _OF_ONE_SLOT + self.body, b"%d" % len(names), *names, *values]

    def command_across_slots(self, names: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """Return the command that runs it for names of one server in a cluster, of which it declares the first."""
        text = b"#!lua flags=allow-cross-slot-keys%b\n%b%b" % (self.flags, _OF_ALL_SLOTS, self.body)
        return [b"EVAL", text, b"1", names[0], b"%d" % len(names), *names, *values]


_OF_ONE_SLOT = b"""
local function get_all(first, last) return redis.call('MGET', unpack(KEYS, first, last)) end
local function set_all(words) redis.call('MSET', unpack(words)) end
local function remove_all(names) redis.call('DEL', unpack(names)) end
"""
_OF_ALL_SLOTS = b"""
local names, values = {}, {}
for i = 1, tonumber(ARGV[1]) do names[i] = ARGV[i + 1] end
for i = #names + 2, #ARGV do values[#values + 1] = ARGV[i] end
local KEYS, ARGV = names, values
local function get_all(first, last)
  local found = {}
  for i = first, last do
    local value = redis.pcall('GET', KEYS[i])
    if type(value) == 'table' then
      local reason = tostring(value.err)
      if not string.find(reason, 'WRONGTYPE') then error(reason) end
      value = false
    end
    found[#found + 1] = value
  end
  return found
end
local function set_all(words) for i = 1, #words, 2 do redis.call('SET', words[i], words[i + 1]) end end
local function remove_all(names) for i = 1, #names do redis.call('DEL', names[i]) end end
"""
"""Its arguments are how many names there are, the names, and those of the script."""

# KEYS: all entries, then their claims; ARGV: the token, the expiry of all in ms, 0 for none, then the bytes of each.
_PUT = _Script(b"""
local count, sets, ended = #KEYS / 2, {}, {}
local token, expiry = ARGV[1], ARGV[2]
local holders = get_all(count + 1, #KEYS)
for i = 1, count do
  if holders[i] == token then
    ended[#ended + 1] = KEYS[count + i]
    if expiry == '0' then
      sets[#sets + 1] = KEYS[i]
      sets[#sets + 1] = ARGV[i + 2]
    else redis.call('SET', KEYS[i], ARGV[i + 2], 'PX', expiry) end
  end
end
if #sets > 0 then set_all(sets) end
if #ended > 0 then remove_all(ended) end
return #ended
""")
_IS_OWN = b"""
local own = string.sub(ARGV[1], 1, -%d)
local function is_own(holder) return type(holder) == 'string' and string.sub(holder, 1, -%d) == own end
""" % (CALL_BYTES + 1, CALL_BYTES + 1)
"""Defines whether a claim is of the same process as the token."""

# KEYS: all entries, then their claims; ARGV: the token, how long a claim lasts, and whether to claim names that have an
# entry too. Returns the time, for each name a letter, what `Store.claim` says, and another, whether there is an entry,
# and the entries: two texts are read much faster than two numbers for each name. A name that the token has
# already was claimed by the same call: it ran for some of its names before it was refused for one.
_CLAIM_ALL = _Script(
    _IS_OWN
    + b"""
local time, states, there, count = redis.call('TIME'), {}, {}, #KEYS / 2
local entries = get_all(1, count)
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
    elseif holder == ARGV[1] then states[i] = '1'
    elseif is_own(holder) then states[i] = '2'
    else states[i] = '0' end
  end
end
reply[3], reply[4] = table.concat(states), table.concat(there)
return reply
"""
)
_RELEASE = _Script(
    b"""
local ended = {}
for i, holder in ipairs(get_all(1, #KEYS)) do
  if holder == ARGV[1] then ended[#ended + 1] = KEYS[i] end
end
if #ended > 0 then remove_all(ended) end
return 0
""",
    b",allow-oom",
)
_RENEW = _Script(
    _IS_OWN
    + b"""
for i, holder in ipairs(get_all(1, #KEYS)) do
  if is_own(holder) then redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
end
return 0
""",
    b",allow-oom",
)
_GET = _Script(b"return get_all(1, #KEYS)", b",no-writes")
_REMOVE = _Script(b"remove_all(KEYS) return 0", b",allow-oom")


class RedisStore(RedisClient, Store):
    """A store in Redis; ``url`` is as the option ``url`` of the redis connector, ``timeout`` in seconds.

    >>> RedisStore("redis://db:6379/0", 0.2)
    RedisStore(server at db)
    """

    _spans_slots_from = -math.inf
    """The time of `time.monotonic` from when scripts run for names of several slots of a cluster."""

    def __repr__(self) -> str:
        return f"RedisStore({self._address.kind} at {', '.join(host for host, _ in self._address.nodes)})"

    # ── entries and claims ───────────────────────────────────────────────────────────────────────────────

    def get(self, names: Sequence[bytes]) -> Reading:
        """Return the entries of names, by TIME and MGET; in a cluster, by TIME and a script."""
        if self._is_cluster:
            now = _seconds(self._call(_time_of_cluster))
            return Reading(now, _in_order(self._eval(_GET, [[name] for name in names], [])))
        now, entries = _checked(self._run([[b"TIME"], [b"MGET", *names]]))
        return Reading(_seconds(now), list(entries))

    def claim(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Claim names, and read their entries, by one script."""
        return self._claim(names, token, seconds, b"1")

    def claim_missing(self, names: Sequence[bytes], token: bytes, seconds: float) -> tuple[list[int], Reading]:
        """Read entries, and claim the names that have none, by one script."""
        return self._claim(names, token, seconds, b"0")

    def _claim(self, names: Sequence[bytes], token: bytes, seconds: float, always: bytes) -> tuple[list[int], Reading]:
        # In a cluster, the clock of one server is that of all.
        now = _seconds(self._call(_time_of_cluster)) if self._is_cluster else math.inf
        states: list[tuple[Sequence[int], list[int]]] = []
        entries: list[tuple[Sequence[int], list[bytes | None]]] = []
        shared = [token, _milliseconds(seconds), always]
        replies = self._eval(_CLAIM_ALL, [[name, name + _CLAIM] for name in names], shared)
        for numbers, (whole, micros, some, there, *found) in replies:
            now = now if self._is_cluster else min(now, _seconds((whole, micros)))
            states.append((numbers, [letter - _ZERO for letter in some]))
            in_order = iter(found)
            entries.append((numbers, [next(in_order) if letter != _ZERO else None for letter in there]))
        return _in_order(states), Reading(now, _in_order(entries))

    def renew(self, names: Sequence[bytes], token: bytes, seconds: float) -> None:
        self._eval(_RENEW, [[name + _CLAIM] for name in names], [token, _milliseconds(seconds)])

    def put(self, names: Sequence[bytes], entries: Sequence[bytes], seconds: Sequence[float], token: bytes) -> int:
        written = 0
        for second in dict.fromkeys(seconds):  # Those of rows, and of known misses.
            of = [at for at, own in enumerate(seconds) if own == second]
            keys, arguments = [[names[at], names[at] + _CLAIM] for at in of], [[entries[at]] for at in of]
            expiry = b"0" if second == math.inf else _milliseconds(second)
            written += sum(count for _, count in self._eval(_PUT, keys, [token, expiry], arguments))
        return written

    def release(self, names: Sequence[bytes], token: bytes) -> None:
        self._eval(_RELEASE, [[name + _CLAIM] for name in names], [token])

    def invalidate(self, names: Sequence[bytes]) -> None:
        self._unlink([part for name in names for part in (name, name + _CLAIM)])

    # ── identities ───────────────────────────────────────────────────────────────────────────────────────

    def describe(self, identity: str, about: dict[str, str]) -> dict[str, str]:
        name = identity_prefix(identity).encode() + _ABOUT
        text = json.dumps(about, sort_keys=True).encode()
        [found] = _checked(self._run([[b"GET", name]]))
        if found is None:  # Only then, since a server that is full takes no SET.
            _, found = _checked(self._run([[b"SET", name, text, b"NX"], [b"GET", name]]))
        return read_about(found) or about

    def contents(self) -> list[StoreContent]:
        sizes: dict[str, list[int]] = {}
        abouts: dict[str, dict[str, str]] = {}
        for names in self._scan(PREFIX.encode() + b"*"):
            for identity, name, size in self._sized(names):
                counts = sizes.setdefault(identity, [0, 0])
                if name.endswith(b"}"):
                    counts[0] += 1
                    counts[1] += size
                elif name.endswith(b":" + _ABOUT):
                    abouts[identity] = read_about(self._run([[b"GET", name]])[0]) or {}
        return [StoreContent(one, abouts.get(one, {}), *counts) for one, counts in sorted(sizes.items())]

    def clear(self, identity: str | None = None) -> int:
        prefix = PREFIX if identity is None else identity_prefix(identity)
        removed = 0
        # An identity may come from the command line, and is no pattern.
        for names in self._scan(re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix.encode()) + b"*"):
            self._unlink(names)
            removed += sum(name.endswith(b"}") for name in names)
        return removed

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────

    def _eval(
        self, script: _Script, keys: list[list[bytes]], shared: list[bytes], own: list[list[bytes]] | None = None
    ) -> list[tuple[Sequence[int], Any]]:
        """Run a script for groups of keys, with shared arguments and those of each group.

        Returns replies, each with the numbers of the groups it is for: those of a server, in a cluster too.
        """
        if not keys:
            return []
        run = partial(self._run_pieces, keys, shared, own or [[]] * len(keys))
        if not self._is_cluster:
            return _checked_pieces(run(script.command, [range(len(keys))]))
        done: list[tuple[Sequence[int], Any]] = []
        left: list[Sequence[int]] = self._call(lambda server: _by_server(server, [first for first, *_ in keys]))
        if time.monotonic() >= self._spans_slots_from:
            found = run(script.command_across_slots, left)
            done = [(numbers, reply) for numbers, reply in found if not _is_refused(reply)]
            left = [numbers for numbers, reply in found if _is_refused(reply)]
            self._spans_slots_from = time.monotonic() + _SINGLE_SECONDS if left else -math.inf
        single = [[number] for numbers in left for number in numbers]
        return _checked_pieces(done + run(script.command, single))

    def _run_pieces(
        self, keys: list[list[bytes]], shared: list[bytes], own: list[list[bytes]],
        command: Callable[[Sequence[bytes], Sequence[bytes]], list[bytes]], parts: Sequence[Sequence[int]],
    ) -> list[tuple[Sequence[int], Any]]:  # fmt: skip
        """Run a command for parts of the groups of keys, in pieces; return these with their replies, maybe errors."""
        pieces = [piece for part in parts for piece in _pieces(part, own)]
        commands = []
        for piece in pieces:
            # The first name of each group, then the second of each, as the scripts read them.
            names = list(chain.from_iterable(zip(*map(keys.__getitem__, piece), strict=True)))
            commands.append(command(names, [*shared, *chain.from_iterable(map(own.__getitem__, piece))]))
        return list(zip(pieces, self._run(commands), strict=True)) if commands else []

    def _unlink(self, names: list[bytes]) -> None:
        if self._is_cluster:
            self._eval(_REMOVE, [[name] for name in names], [])
            return
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


def _by_server(server: RedisServer | Cluster, names: Sequence[bytes]) -> list[Sequence[int]]:
    assert isinstance(server, Cluster)
    return [*server.group(names)]


def _checked(replies: list[Any]) -> list[Any]:
    """Return replies; raises the first that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            if _is_full(reply):
                raise StoreFullError(str(reply)) from reply
            raise reply
    return replies


def _checked_pieces(found: list[tuple[Sequence[int], Any]]) -> list[tuple[Sequence[int], Any]]:
    _checked([reply for _, reply in found])
    return found


def _in_order(found: Sequence[tuple[Sequence[int], list[T]]]) -> list[T]:
    """Return the values of pieces, each with the numbers of its values, in the order of the numbers."""
    if len(found) == 1:
        return found[0][1]
    pairs = [pair for numbers, values in found for pair in zip(numbers, values, strict=True)]
    return [value for _, value in sorted(pairs, key=itemgetter(0))]


def _is_refused(reply: Any) -> bool:
    """Return whether a server has refused a script, other than since it takes no writes."""
    from redis.exceptions import ResponseError

    return isinstance(reply, ResponseError) and not _is_full(reply)


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


def _pieces(numbers: Sequence[int], arguments: list[list[bytes]]) -> Iterator[Sequence[int]]:
    """Yield parts of the numbers of groups: at most `_MOST_NAMES` of them, and not too many bytes, in each."""
    taken = chain.from_iterable(map(arguments.__getitem__, numbers))
    if 0 < len(numbers) <= _MOST_NAMES and sum(map(len, taken)) <= _MOST_BYTES:
        # Nearly always; to add up group by group takes as long as to encode them.
        yield numbers
        return
    start, size = 0, 0
    for at, number in enumerate(numbers):
        own = sum(map(len, arguments[number]))
        if at > start and (at - start == _MOST_NAMES or size + own > _MOST_BYTES):
            yield numbers[start:at]
            start, size = at, 0
        size += own
    if start < len(numbers):
        yield numbers[start:]
