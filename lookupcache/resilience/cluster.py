"""`ClusterRate`: what a policy needs of a rate that holds for all workers of all hosts together.

It is counted in a store (`lookupcache.store.cluster_rate`); a policy only waits for its permits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lookupcache.resilience.runtime import Runtime


@dataclass(frozen=True)
class Permit:
    """Permission for one call.

    ``seconds`` is how long the call has to wait for its time. ``is_granted`` is False if there is no time before the
    timeout; ``has_waited`` says whether the call was delayed.
    """

    seconds: float = 0.0
    is_granted: bool = True
    has_waited: bool = False


class ClusterRate(Protocol):
    """A rate of the cluster."""

    async def throttle(self, within: float, runtime: Runtime) -> Permit:
        """Reserve a time for a call, at most this many seconds from now."""

    def reset_after_fork(self) -> None:
        """Forget the permits of the parent process."""

    def close(self) -> None:
        """Disconnect."""
