"""How long claims last, and how often is looked for what other processes request."""

from __future__ import annotations

CLAIM_SECONDS = 5.0
"""How long a claim lasts that is not renewed."""

FULL_LOOK_SECONDS = 0.5
"""How often all keys are looked for that others request, where a few of many are looked for in between."""

HOST_POLL_SECONDS, LOAD_POLL_SECONDS = 0.002, 0.01
"""How often a worker looks at what other workers of its host request, and at a full table that one of them loads."""

HOST_PAUSES, STORE_PAUSES = (0.002, 0.02), (0.005, 0.1)
"""The first and the last pause in seconds between looks at mapped files, and between requests to a store."""

PATIENT_AGAIN_SECONDS = 60.0
"""How long a worker does not wait for others, after a worker that is alive has let a claim lapse."""


def host_claim_seconds(timeout: float, blocked_seconds: float = 0.0) -> float:
    """Return how long a claim on a host lasts, with a ``lookup.timeout``: a process that waits has time left to call.

    For ``blocked_seconds``, the claimant may be unable to renew it.

    >>> host_claim_seconds(6.0), host_claim_seconds(60.0, 10.0)
    (2.0, 15.0)
    """
    return min(min(CLAIM_SECONDS, timeout / 3) + blocked_seconds, timeout / 2)


def seconds_to_call(timeout: float) -> float:
    """Return how much of a timeout is kept for the own call, where another process does not end its claim.

    >>> seconds_to_call(6.0), seconds_to_call(60.0)
    (3.0, 5.0)
    """
    return min(timeout / 2, CLAIM_SECONDS)


class Pauses:
    """How long to wait before the next look for what another process requests: twice as long each time, up to a limit.

    >>> pauses = Pauses(*STORE_PAUSES)
    >>> [pauses.take() for _ in range(6)]
    [0.005, 0.01, 0.02, 0.04, 0.08, 0.1]
    """

    def __init__(self, first: float, last: float) -> None:
        self._next, self._last = first, last

    def take(self) -> float:
        """Return the next pause, in seconds."""
        pause, self._next = self._next, min(2 * self._next, self._last)
        return pause
