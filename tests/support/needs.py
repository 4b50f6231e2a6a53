"""Marks tests of what an older Spark or sqlglot does not have; the run of all versions counts them as such."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from lookupcache.versions import minor


def needs_spark(least: str, reason: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests on a Spark before this minor version, as in ``"4.1"``."""
    return pytest.mark.skipif(is_before("pyspark", least), reason=reason)


def needs_sqlglot(least: str, reason: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests with a sqlglot before this minor version, as in ``"30.27"``."""
    return pytest.mark.skipif(is_before("sqlglot", least), reason=reason)


def joins_streams(test: Any) -> Any:
    """Mark a test that joins a stream with the latest values of another."""
    return needs_spark("4.0", "streams are joined with latest values on Spark 4.0 and later")(test)


def is_before(package: str, least: str) -> bool:
    """Return whether the installed version of a package is before this minor version."""
    return minor(version(package)) < minor(least)
