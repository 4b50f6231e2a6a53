"""For authors of connectors: a test suite for connectors, and test doubles.

Needs ``pip install 'lookupcache[testing]'``.
"""

from __future__ import annotations

from lookupcache.errors import ConnectorError

try:
    from lookupcache.testing.doubles import FakeClock, Recorder, flaky, slow
    from lookupcache.testing.suite import ConnectorSuite
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("pytest", "_pytest", "hypothesis"):
        raise
    raise ConnectorError(
        f"lookupcache.testing needs {error.name}.", hint="pip install 'lookupcache[testing]'"
    ) from error

__all__ = ["ConnectorSuite", "FakeClock", "Recorder", "flaky", "slow"]
