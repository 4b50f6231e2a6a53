"""By day, the test kit checks the connectors of this project with fewer cases than those of others."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kit_report
import pytest
from scale import SCALE
from servers import HttpServer

from lookupcache.testing import ConnectorSuite

IS_REPORTED = "LOOKUPCACHE_UPDATE_KIT" in os.environ
if SCALE <= 1 and not IS_REPORTED:
    ConnectorSuite.filter_examples = 50

_outcomes: defaultdict[str, dict[kit_report.Case, str]] = defaultdict(dict)
_suites: defaultdict[str, list[type]] = defaultdict(list)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most types to the nightly run, for each suite others."""
    own = [item for item in items if item.path.parent == Path(__file__).parent]
    for check, one_in in {"test_constants": 4, "test_values_there_and_back": 3, "test_keys_of_each_type": 3}.items():
        for number, item in enumerate(item for item in own if f"{check}[" in item.name):
            if number % one_in and not IS_REPORTED:
                item.add_marker(pytest.mark.nightly)


@pytest.fixture
def serve() -> Iterator[Callable[..., HttpServer]]:
    """Return a function that starts a server with given replies, for the test."""
    started = []

    def start(reply: Any, **how: Any) -> HttpServer:
        started.append(HttpServer(reply, **how).start())
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Any:
    """Remember what the cases of suites have found."""
    report = yield
    if IS_REPORTED and item.path.stem in kit_report.GUIDES and item.cls and issubclass(item.cls, ConnectorSuite):
        suites, found = _suites[item.path.stem], _outcomes[item.path.stem]
        if item.cls not in suites:
            suites.append(item.cls)
        case = item.cls.__name__, item.originalname, item.callspec.id if hasattr(item, "callspec") else ""
        if report.when == "call" or not report.passed:
            found[case] = report.outcome
    return report


def pytest_sessionfinish() -> None:
    """Write it into the guides."""
    kit_report.write(_outcomes, _suites)
