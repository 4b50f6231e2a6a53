"""Which tests a command runs: each lane runs the tests of the lanes above it, and more.

| lane       | command                 | runs                                                                      |
|------------|-------------------------|---------------------------------------------------------------------------|
| `fast`     | `dev.py test --fast`    | tests without a mark that need neither Spark nor servers                  |
| `standard` | `dev.py test`           | also tests marked `slow`, and all that need Spark or servers              |
| `extended` | `dev.py test --all`     | also tests marked `extended`; a command that names files runs these too   |
| `nightly`  | `dev.py nightly`        | also tests marked `nightly`                                               |

`dev.py test --sample 4` runs one in four of the tests that only the extended lane has, others with each commit.

A mark with ``keep_one_in=5`` applies to a function's cases but the first, the sixth and so on, which run in the shorter
lanes as well.
"""

from __future__ import annotations

import subprocess
import zlib
from collections import Counter
from enum import IntEnum

import pytest
from scale import IS_NIGHT


class Lane(IntEnum):
    """A set of tests; a larger one contains the smaller ones."""

    FAST = 0
    STANDARD = 1
    EXTENDED = 2
    NIGHTLY = 3


MARKS = {"nightly": Lane.NIGHTLY, "extended": Lane.EXTENDED}
SLOW_FOLDERS = ("connectors", "interleavings", "properties", "spark", "sql", "testing", "stranger")
"""Folders whose tests need servers, Spark or other processes."""
SLOW_FILES = ("test_stranger.py", "test_worker_options.py")
"""Files of other folders that take long even to be collected."""
SLOW_FIXTURES = {"spark", "postgres_server", "maria_server", "running_service", "wheel", "installed"}

LONG_CHECKS = {
    "test_hostile_texts",
    "test_ten_thousand_keys_in_a_call",
    "test_many_calls_at_a_time",
    "test_the_whole_table",
    "test_secrets_by_reference",
}
"""Checks of the kit for connectors that take long: in the standard lane they run for SQLite only."""


def chosen_lane(config: pytest.Config) -> Lane:
    """Return the lane that a command asks for. Where it names files, all tests that run by day are chosen."""
    if config.getoption("--fast"):
        return Lane.FAST
    if IS_NIGHT:
        return Lane.NIGHTLY
    names_files = config.args_source is pytest.Config.ArgsSource.ARGS
    return Lane.EXTENDED if config.getoption("--all") or names_files else Lane.STANDARD


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of longer lanes."""
    lane, sample, cases = chosen_lane(config), config.getoption("--sample"), Counter[str]()
    commit = _commit() if sample else ""
    chosen, left_out = [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        own = lane_of(item, cases[function])
        if sample:
            is_chosen = own is Lane.EXTENDED and not zlib.crc32(f"{commit} {item.nodeid}".encode()) % sample
        else:
            is_chosen = own <= lane
        (chosen if is_chosen else left_out).append(item)
        cases[function] += 1
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def lane_of(item: pytest.Item, case: int) -> Lane:
    """Return the shortest lane that runs a test, the given case of its function, counted from 0."""
    for name, lane in MARKS.items():
        if any(_applies(mark, case) for mark in item.iter_markers(name)):
            return lane
    if getattr(item, "originalname", "") in LONG_CHECKS and item.path.name != "test_suite_sqlite.py":
        return Lane.EXTENDED
    return Lane.STANDARD if _is_slow(item) else Lane.FAST


def _applies(mark: pytest.Mark, case: int) -> bool:
    """Return whether a mark applies to a case: not to those that ``keep_one_in`` keeps in the shorter lanes."""
    return "keep_one_in" not in mark.kwargs or case % mark.kwargs["keep_one_in"] != 0


def _is_slow(item: pytest.Item) -> bool:
    marked = any(item.get_closest_marker(name) for name in ("slow", "spark", "connect"))
    fixtures = SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    return bool(marked or fixtures or item.path.parent.name in SLOW_FOLDERS or item.path.name in SLOW_FILES)


def _commit() -> str:
    """Return the name of the commit that is checked out; an empty text outside of git."""
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
