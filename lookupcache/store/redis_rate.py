"""A rate of calls that is counted in Redis or Valkey, for all workers of all hosts.

    lookupcache:limit:1:{<source>}rate       a hash: the next free time, and when it was written
    lookupcache:limit:1:{<source>}executors  a sorted set: the executors that have asked lately, by when

One script does it in a round trip, by the clock of the server, in microseconds. The braces put both names on the same
server of a cluster; both expire by themselves after the last call.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lookupcache.store.redis_client import RedisClient

MEMBER_SECONDS = 60.0
"""How long an executor counts as there after its last call."""

_PREFIX = b"lookupcache:limit:1:{%b}"
_MICROSECONDS = 1_000_000

# KEYS: rate, executors; ARGV: calls, µs between two, horizon in µs, executor, its window in µs. The next time is never
# later than a call at this rate can have left it: another job may have had a lower rate. Times of the future are of a
# clock that was set back. Numbers are formatted as integers: Lua writes those above 10^14 with an exponent.
_TAKE = b"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number) return string.format('%.0f', number) end
local function clean(name, kind)
  local found = redis.call('TYPE', name).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', name) end
end
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
clean(KEYS[2], 'zset')
redis.call('ZADD', KEYS[2], whole(now), ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. whole(now - tonumber(ARGV[5])))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. whole(now), '+inf')
redis.call('PEXPIRE', KEYS[2], whole(tonumber(ARGV[5]) / 1000))
return {granted, whole(first), whole(free - now), redis.call('ZCARD', KEYS[2])}
"""


@dataclass(frozen=True)
class Times:
    """The times that calls were granted: how many, in how many seconds the first is, and when the next is free.

    ``members`` is how many executors have asked lately.
    """

    granted: int
    first: float
    free: float
    members: int


class RedisRate(RedisClient):
    """The rate of one source in a Redis server; the other arguments are those of `RedisClient`."""

    def __init__(self, url: str, timeout: float, source: str, first_connect: float | None = None) -> None:
        super().__init__(url, timeout, first_connect=first_connect)
        prefix = _PREFIX % hashlib.sha256(source.encode()).hexdigest()[:32].encode()
        self.names = [prefix + b"rate", prefix + b"executors"]

    def take_times(self, calls: int, rate: float, horizon: float, member: bytes) -> Times:
        """Reserve times for calls, evenly spaced by ``rate`` per second; none later than ``horizon`` seconds.

        Raises what the server's client raises; may be called by several threads.
        """
        arguments = [b"%d" % calls, b"%.6f" % (_MICROSECONDS / rate), _micros(horizon), member, _micros(MEMBER_SECONDS)]
        [reply] = self._run([[b"EVAL", _TAKE, b"2", *self.names, *arguments]])
        if isinstance(reply, Exception):
            raise reply
        granted, first, free, members = reply
        return Times(granted, int(first) / _MICROSECONDS, int(free) / _MICROSECONDS, members)


def _micros(seconds: float) -> bytes:
    return b"%d" % max(int(seconds * _MICROSECONDS), 1)
