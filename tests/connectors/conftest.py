"""By day, the test kit checks the connectors of this project with fewer cases than those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scale import SCALE
from servers import HttpServer

from lookupcache.testing import ConnectorSuite

if SCALE <= 1:
    ConnectorSuite.filter_examples = 50


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most types to the nightly run, for each suite others."""
    own = [item for item in items if item.path.parent == Path(__file__).parent]
    for check, one_in in {"test_constants": 4, "test_values_there_and_back": 3, "test_keys_of_each_type": 3}.items():
        for number, item in enumerate(item for item in own if f"{check}[" in item.name):
            if number % one_in:
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
