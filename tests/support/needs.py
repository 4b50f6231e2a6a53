"""Marks tests of what an older Spark does not have; the run of all versions counts them as such."""

from __future__ import annotations

import pyspark
import pytest


def needs_spark(version: str, reason: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests on a Spark before this minor version, as in ``"4.1"``."""
    there, least = (tuple(int(part) for part in text.split(".")[:2]) for text in (pyspark.__version__, version))
    return pytest.mark.skipif(there < least, reason=reason)
