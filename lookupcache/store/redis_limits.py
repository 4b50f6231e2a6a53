"""Limits of calls that are counted in Redis or Valkey, for all workers of all hosts.

    lookupcache:limit:1:{<source>}rate    a hash: the next free time, and when it was written
    lookupcache:limit:1:{<source>}calls   a sorted set: a lease for each call under way, by when it lapses
    lookupcache:limit:1:{<source>}waiting a sorted set: the workers that wait for a lease, by since when
    lookupcache:limit:1:{<source>}since   a hash: since when the server knows of leases, and who has told theirs
    lookupcache:limit:1:{<source>}<kind>s a sorted set: who has asked lately, by when

Each method is one round trip that runs one script, by the clock of the server, in microseconds. The braces put all
names of a source on the same server of a cluster. All names expire by themselves when nobody calls any more.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lookupcache.store.contract import DELAY_SECONDS
from lookupcache.store.redis_client import RedisClient

MEMBER_SECONDS = 60.0
"""How long an executor or worker counts as there after its last call."""

_PREFIX = b"lookupcache:limit:1:{%b}"
_MICROSECONDS = 1_000_000

# Numbers are formatted as integers: Lua writes those above 10^14 with an exponent, and loses digits.
_NOW = b"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number) return string.format('%.0f', number) end
local function clean(name, kind)
  local found = redis.call('TYPE', name).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', name) end
end
local function members(name, member, window)
  clean(name, 'zset')
  redis.call('ZADD', name, whole(now), member)
  redis.call('ZREMRANGEBYSCORE', name, '-inf', '(' .. whole(now - window))
  redis.call('ZREMRANGEBYSCORE', name, '(' .. whole(now), '+inf')
  redis.call('PEXPIRE', name, whole(window / 1000))
  return redis.call('ZCARD', name)
end
"""
"""Defines the time, and the number of members that have called lately; times of the future are of a clock set back."""

# KEYS: rate, members; ARGV: calls, µs between two, horizon in µs, member, its window in µs. The next time is never
# later than a call at this rate can have left it: another job may have had a lower rate.
_RATE = (
    _NOW
    + b"""
clean(KEYS[1], 'hash')
local calls, every, horizon = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = redis.call('HMGET', KEYS[1], 'free', 'at')
local free, at = tonumber(stored[1]), tonumber(stored[2])
if free and at and now < at then free = free - (at - now) end
if not free or free < now then free = now end
free = math.min(free, now + horizon + every)
local first, granted = free - now, 0
if first <= horizon then granted = math.min(calls, math.floor((horizon - first) / every) + 1) end
free = free + granted * every
redis.call('HSET', KEYS[1], 'free', string.format('%.3f', free), 'at', whole(now))
redis.call('PEXPIRE', KEYS[1], whole((free - now) / 1000 + 60000))
return {granted, whole(first), whole(free - now), members(KEYS[2], ARGV[4], tonumber(ARGV[5]))}
"""
)
# KEYS: calls, members, waiting, since; ARGV: capacity, µs of a lease, member, its window in µs, since when the server
# has known leases as the member was told, how many workers there were then, whether all leases of the member are named,
# how many µs a worker may stay away, then how many leases have ended, how many are prolonged, and the names of those
# and of the new ones that are wanted. Who has leases takes the next ones at once, and who has none asks now and then:
# so one is kept for each worker that has waited for 0.2 s and still asks.
#
# A server that has lost its data learns so from a member that knows an earlier start. Until as many workers as there
# were have told of their leases, those of the others count: as all that are free for the time of a lease, and then, for
# as long as they may leave the server alone, as the share that they keep to meanwhile.
_CALLS = (
    _NOW
    + b"""
clean(KEYS[1], 'zset')
local capacity, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
local ends, last_ended = now + lease, 10 + tonumber(ARGV[9])
local last_held = last_ended + tonumber(ARGV[10])
clean(KEYS[4], 'hash')
local since = tonumber(redis.call('HGET', KEYS[4], 'at'))
if not since or since > now then
  redis.call('DEL', KEYS[4])
  since = now
  redis.call('HSET', KEYS[4], 'at', whole(now), 'expected', 0, 'told', 0)
end
redis.call('PEXPIRE', KEYS[4], whole(tonumber(ARGV[4]) / 1000 + 60000))
local has_lost = ARGV[5] ~= '' and ARGV[5] ~= whole(since) and now - since < lease + tonumber(ARGV[8])
if has_lost then
  local expected = math.max(tonumber(ARGV[6]), tonumber(redis.call('HGET', KEYS[4], 'expected')) or 0)
  redis.call('HSET', KEYS[4], 'expected', expected)
  if ARGV[7] == '1' and redis.call('HSETNX', KEYS[4], 'of ' .. ARGV[3], 1) == 1 then
    redis.call('HINCRBY', KEYS[4], 'told', 1)
  end
end
for i = 11, last_ended do redis.call('ZREM', KEYS[1], ARGV[i]) end
for i = last_ended + 1, last_held do redis.call('ZADD', KEYS[1], whole(ends), ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. whole(ends), '+inf')) do
  redis.call('ZADD', KEYS[1], whole(ends), name)
end
clean(KEYS[3], 'zset')
local free, wanted = capacity - redis.call('ZCARD', KEYS[1]), #ARGV - last_held
local untold, workers = 0, members(KEYS[2], ARGV[3], tonumber(ARGV[4]))
if now - since < lease + tonumber(ARGV[8]) then
  local found = redis.call('HMGET', KEYS[4], 'expected', 'told')
  local expected = tonumber(found[1]) or 0
  untold, workers = math.max(expected - (tonumber(found[2]) or 0), 0), math.max(workers, expected)
  if untold > 0 and now - since < lease then free = 0
  elseif untold > 0 then free = free - untold * math.max(math.floor(capacity / expected), 1) end
end
if has_lost and ARGV[7] ~= '1' then return {-1, workers, ARGV[5]} end
local waits, limit = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[3])), now - 200000
for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. whole(math.min(limit, waits or limit)))) do
  local seen = tonumber(redis.call('ZSCORE', KEYS[2], other))
  if seen and now - seen < 500000 then free = free - 1 else redis.call('ZREM', KEYS[3], other) end
end
local granted = math.max(math.min(free, wanted), 0)
if wanted == granted or granted > 0 then redis.call('ZREM', KEYS[3], ARGV[3])
elseif not waits then redis.call('ZADD', KEYS[3], whole(now), ARGV[3]) end
redis.call('PEXPIRE', KEYS[3], 60000)
for i = last_held + 1, last_held + granted do redis.call('ZADD', KEYS[1], whole(ends), ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], whole(tonumber(ARGV[2]) / 500))
return {granted, workers, whole(since)}
"""
)
FORGOTTEN = -1
"""What `RedisLimits.take_leases` returns instead of a number if the server has to be told of all leases first."""


@dataclass(frozen=True)
class Times:
    """The times that calls were granted: how many, in how many seconds the first is, and when the next is free.

    ``members`` is how many executors have asked lately.
    """

    granted: int
    first: float
    free: float
    members: int


class RedisLimits(RedisClient):
    """The limits of one source in a Redis server; ``url`` is as for `RedisStore`, ``timeout`` in seconds.

    All methods raise what the server's client raises, and may be called by several threads.
    """

    def __init__(self, url: str, timeout: float, source: str) -> None:
        super().__init__(url, timeout)
        self._since = b""
        self._workers = 0
        self._answered = -math.inf
        self._tells_all = False
        self._prefix = _PREFIX % hashlib.sha256(source.encode()).hexdigest()[:32].encode()

    def take_times(self, calls: int, rate: float, horizon: float, member: bytes) -> Times:
        """Reserve times for calls, evenly spaced by ``rate`` per second; none later than ``horizon`` seconds."""
        arguments = [b"%d" % calls, b"%.6f" % (_MICROSECONDS / rate), _micros(horizon), member, _micros(MEMBER_SECONDS)]
        granted, first, free, members = self._run_script(_RATE, [b"rate", b"executors"], arguments)
        return Times(granted, int(first) / _MICROSECONDS, int(free) / _MICROSECONDS, members)

    def take_leases(
        self,
        wanted: Sequence[bytes],
        capacity: int,
        seconds: float,
        member: bytes,
        ended: Sequence[bytes] = (),
        held: Sequence[bytes] = (),
    ) -> tuple[int, int]:
        """End leases, prolong others, and take new ones; return how many were granted, and how many workers there are.

        If the server has lost its data, it grants none, and the number is `FORGOTTEN`: the next call has to name all
        leases as those to prolong. It grants new ones when all workers that there were have done so, or their leases
        have lapsed.

        Args:
            wanted: The names of new leases; the first ones are granted.
            capacity: How many leases there may be.
            seconds: How long a lease lasts that is not prolonged.
            member: The worker.
            ended: The leases to end.
            held: The leases to prolong; one that has lapsed is there again.
        """
        now = time.monotonic()
        # Who was away for longer has no leases that others would not have taken for lapsed.
        is_recent = held or now - self._answered < seconds + DELAY_SECONDS
        known = [self._since if is_recent else b"", b"%d" % self._workers, b"%d" % self._tells_all]
        counts = [_micros(DELAY_SECONDS), b"%d" % len(ended), b"%d" % len(held)]
        head = [b"%d" % capacity, _micros(seconds), member, _micros(MEMBER_SECONDS), *known, *counts]
        names = [b"calls", b"workers", b"waiting", b"since"]
        granted, members, since = self._run_script(_CALLS, names, [*head, *ended, *held, *wanted])
        self._tells_all = granted == FORGOTTEN
        if granted != FORGOTTEN:
            self._since, self._workers, self._answered = since, members, now
        return granted, members

    def _run_script(self, script: bytes, names: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        keys = [self._prefix + name for name in names]
        [reply] = self._run([[b"EVAL", script, b"%d" % len(keys), *keys, *arguments]])
        if isinstance(reply, Exception):
            raise reply
        return reply


def _micros(seconds: float) -> bytes:
    return b"%d" % max(int(seconds * _MICROSECONDS), 1)
