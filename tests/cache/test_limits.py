"""What follows from limits: which times are kept, what they take, and what is too old, to the moment."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.expiry import Expiry
from lookupcache.cache.in_flight import InFlight
from lookupcache.cache.limits import Limits, own_limits


@pytest.mark.parametrize(
    ("limits", "needed"),
    [
        (Limits(), False),
        (Limits(write_seconds=60), False),
        (Limits(stale_seconds=60), True),
        (Limits(write_seconds=60, refresh_seconds=50), True),
        (Limits(ages=True), True),
    ],
)
def test_write_times_are_kept_for_refreshes_stale_rows_and_ages(limits, needed):
    assert limits.needs_write_times == needed


@pytest.mark.parametrize(
    ("limits", "columns"),
    [
        (Limits(), 0),
        (Limits(write_seconds=60), 2),
        (Limits(access_seconds=60), 3),
        (Limits(ages=True), 2),
    ],
)
def test_only_the_times_that_limits_need_are_stored(limits, columns):
    expiry = Expiry(limits)
    expiry.grow(100)
    assert expiry.nbytes == 8 * columns * len(expiry._written)
    assert expiry.is_tracked == bool(columns)


ALL = np.array([0, 1, 2, 3], np.int32)
"""Two entries with a row, and two known misses; of both kinds the second is in flight where a test says so."""


def written(limits: Limits, at: float = 100.0) -> tuple[Expiry, InFlight]:
    """Return the times of four entries that were reserved and written at a moment."""
    expiry, in_flight = Expiry(limits), InFlight()
    expiry.grow(4)
    in_flight.grow(4)
    expiry.reserve(ALL, at)
    expiry.write(ALL, np.array([1, 2, 0, 0]), at)
    return expiry, in_flight


def check(expiry: Expiry, in_flight: InFlight, now: float, entries=ALL) -> tuple[list, list, list]:
    """Return the entries that are too old, those to be fetched before they are used, and those to be refreshed."""
    lease = Lease(np.array(entries, np.int32))
    too_old = expiry.check(lease, in_flight, now)
    return tuple(lease.entries[rows].tolist() for rows in (too_old, lease.expired, lease.aging))


AGED = Limits(write_seconds=10, miss_seconds=5)


@pytest.mark.parametrize(("age", "old"), [(0, []), (5, []), (5.001, [2, 3]), (10, [2, 3]), (10.001, [0, 1, 2, 3])])
def test_an_entry_is_used_up_to_its_last_moment(age, old):
    expiry, in_flight = written(AGED)
    now = 100.0 + age
    assert check(expiry, in_flight, now) == (old, [], [])
    assert expiry.is_usable(ALL, in_flight, now).tolist() == [entry not in old for entry in ALL]
    assert expiry.is_too_stale(ALL, now).tolist() == [entry in old for entry in ALL]
    assert expiry.sweep(ALL, in_flight, now).tolist() == old
    assert expiry.count_stale(ALL, now) == len(old)
    assert expiry.age(np.array([3, -1]), now).tolist() == pytest.approx([age, math.nan], nan_ok=True)
    in_flight.start(ALL[1::2], 7)
    assert check(expiry, in_flight, now)[0] == [entry for entry in old if entry % 2 == 0]
    assert expiry.is_usable(ALL, in_flight, now).tolist() == [entry % 2 == 1 or entry not in old for entry in ALL]
    assert expiry.sweep(ALL, in_flight, now).tolist() == [entry for entry in old if entry % 2 == 0]


def test_an_entry_that_was_written_later_than_now_has_no_age():
    assert written(AGED)[0].age(ALL[:1], 99.0).tolist() == [0.0]


STALE = Limits(write_seconds=10, miss_seconds=5, stale_seconds=30)


@pytest.mark.parametrize(
    ("age", "old", "again"),
    [
        (5, [], []),
        (6, [], [2, 3]),
        (10, [], [2, 3]),
        (11, [], [0, 1, 2, 3]),
        (30, [], [0, 1, 2, 3]),
        (31, [0, 1, 2, 3], []),
    ],
)
def test_an_expired_entry_is_served_for_an_error_until_too_stale(age, old, again):
    expiry, in_flight = written(STALE)
    now = 100.0 + age
    assert check(expiry, in_flight, now, [0, 0, 1, 2, 3, 3, -1]) == (old and [0, 0, 1, 2, 3, 3], again, [])
    assert expiry.is_too_stale(ALL, now).tolist() == [bool(old)] * 4
    assert expiry.sweep(ALL, in_flight, now).tolist() == old
    in_flight.start(ALL[:1], 7)
    assert check(expiry, in_flight, now)[:2] == (old[1:], [entry for entry in again if entry])
    in_flight.finish(ALL[:1])
    in_flight.start(ALL[:1], -7)
    check(expiry, in_flight, now)
    assert in_flight.waits(ALL) == ({7} if age > 10 else set())


def test_an_entry_may_live_longer_than_it_is_served_for_errors():
    expiry, in_flight = written(Limits(write_seconds=50, miss_seconds=50, stale_seconds=30))
    assert expiry.is_too_stale(ALL, 150.0).tolist() == [False] * 4
    assert expiry.is_too_stale(ALL, 150.1).tolist() == [True] * 4
    assert expiry.sweep(ALL, in_flight, 150.0).tolist() == []


@pytest.mark.parametrize(("age", "due"), [(3.999, []), (4, [0, 1, 2, 3]), (5.1, [0, 1]), (10, [0, 1]), (10.1, [])])
def test_a_refresh_stays_due_until_the_entry_expires(age, due):
    expiry, in_flight = written(Limits(write_seconds=10, miss_seconds=5, refresh_seconds=4))
    assert check(expiry, in_flight, 100.0 + age, [0, 1, 1, 2, -1, 3, 0])[2] == due
    in_flight.start(ALL[:1], -7)
    assert check(expiry, in_flight, 100.0 + age)[2] == [entry for entry in due if entry]


def test_an_entry_expires_after_its_idle_time_since_its_last_use():
    expiry, in_flight = written(Limits(access_seconds=10))
    assert check(expiry, in_flight, 110.0, [0, 0, -1])[0] == []
    assert expiry.is_usable(ALL, in_flight, 110.0).tolist() == [True] * 4
    assert expiry.is_usable(ALL, in_flight, 110.5).tolist() == [True, False, False, False]
    assert expiry.sweep(ALL, in_flight, 110.0).tolist() == []
    assert expiry.sweep(ALL, in_flight, 110.5).tolist() == [1, 2, 3]
    assert check(expiry, in_flight, 110.5, [1, -1])[0] == [1]
    assert check(expiry, in_flight, 120.0, [0, -1])[0] == []
    assert check(expiry, in_flight, 130.5, [0, -1])[0] == [0]
    assert expiry.is_usable(np.array([-1]), in_flight, 1e9).tolist() == [True]


def test_a_key_fetched_for_the_first_time_has_no_stale_rows():
    expiry, in_flight = Expiry(STALE), InFlight()
    for part in (expiry, in_flight):
        part.grow(4)
    expiry.reserve(ALL, 100.0)
    in_flight.start(ALL, 7)
    assert expiry.is_too_stale(ALL, 100.0).tolist() == [True] * 4
    assert expiry.is_usable(ALL, in_flight, 100.0).tolist() == [True] * 4
    assert (expiry.age(ALL, 100.0) == math.inf).all()


@pytest.mark.parametrize(
    ("limits", "pause"),
    [(AGED, 5), (Limits(write_seconds=3), 3), (Limits(access_seconds=2, write_seconds=60), 2), (STALE, 5)],
)
def test_a_sweep_is_due_once_per_shortest_lifetime(limits, pause):
    expiry, in_flight = written(limits)
    assert expiry.is_sweep_due(0.0)
    expiry.sweep(ALL, in_flight, 200.0)
    assert [expiry.is_sweep_due(200.0 + after) for after in (0, pause - 0.01, pause)] == [False, False, True]
    assert not Expiry(Limits(ages=True)).is_sweep_due(0.0)


def test_jitter_takes_off_up_to_its_part_of_a_lifetime():
    expiry, count = Expiry(Limits(write_seconds=10, miss_seconds=10, jitter=0.5)), 2_000
    expiry.grow(count)
    expiry.write(np.arange(count, dtype=np.int32), np.ones(count, np.int64), 100.0)
    lives = expiry._deadline[:-1] - 100.0
    assert (5.0 <= lives.min() < 5.2, 9.8 < lives.max() <= 10.0) == (True, True)
    assert lives.mean() == pytest.approx(7.5, abs=0.2)
    one_by_one = [Limits(write_seconds=10, jitter=0.5).deadline(100.0, 1) - 100.0 for _ in range(2_000)]
    assert (5.0 <= min(one_by_one) < 5.2, 9.8 < max(one_by_one) <= 10.0) == (True, True)


def test_deadlines_that_are_given_are_those():
    expiry, in_flight = Expiry(AGED), InFlight()
    for part in (expiry, in_flight):
        part.grow(4)
    expiry.write(ALL, np.array([1, 1, 0, 0]), np.array([10.0, 20.0, 30.0, 40.0]), np.array([11.0, 12.0, 13.0, 14.0]))
    assert expiry.count_stale(ALL, 12.5) == 2
    assert expiry.age(ALL, 50.0).tolist() == [40.0, 30.0, 20.0, 10.0]


def test_without_limits_nothing_is_ever_too_old():
    expiry, in_flight = written(Limits())
    assert expiry.is_usable(ALL, in_flight, 1e12).tolist() == [True] * 4
    assert expiry.is_too_stale(ALL, 1e12).tolist() == [True] * 4, "a failed fetch leaves nothing that may be served"
    assert (expiry.count_stale(ALL, 1e12), expiry.is_sweep_due(1e12), expiry.nbytes) == (0, False, 0)


@pytest.mark.parametrize(
    ("limits", "shortest", "longest"),
    [
        (Limits(), math.inf, math.inf),
        (Limits(write_seconds=10, miss_seconds=4), 4, 10),
        (Limits(write_seconds=4, miss_seconds=10), 4, 10),
        (Limits(write_seconds=10, miss_seconds=20, access_seconds=3), 3, 3),
        (Limits(write_seconds=10, miss_seconds=20, access_seconds=3, stale_seconds=15), 3, 15),
    ],
)
def test_the_shortest_and_the_longest_life_of_an_entry(limits, shortest, longest):
    assert (limits.shortest_seconds, limits.longest_seconds) == (shortest, longest)
    assert limits.expire == (shortest < math.inf)


@pytest.mark.parametrize(
    ("rows", "own"), [(9_999, 9_999), (10_000, 10_000), (160_000, 10_000), (160_016, 10_001), (math.inf, 10_000)]
)
def test_a_worker_caches_a_sixteenth_of_the_rows_of_its_host(rows, own):
    """It caches 10,000 at least, if the host does."""
    assert own_limits(Limits(rows=rows)).rows == own
