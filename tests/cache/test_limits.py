"""What follows from limits: which times are kept, and what they take."""

from __future__ import annotations

import pytest

from lookupcache.cache.expiry import Expiry
from lookupcache.cache.limits import Limits


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
def test_write_times_are_kept_for_refreshes_stale_entries_and_ages(limits, needed):
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
