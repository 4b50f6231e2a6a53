"""By day, the test kit checks the connectors of this project with fewer cases than those of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from scale import SCALE

from lookupcache.testing import ConnectorSuite

if SCALE <= 1:
    ConnectorSuite.filter_examples = 50


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most types of constants to the nightly run, for each suite others."""
    of_types = [item for item in items if item.path.parent == Path(__file__).parent and "test_constants[" in item.name]
    for number, item in enumerate(of_types):
        if number % 4:
            item.add_marker(pytest.mark.nightly)
