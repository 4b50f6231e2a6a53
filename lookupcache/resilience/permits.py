"""`ClusterLimits`: what a policy needs of limits that hold for all workers of all hosts together.

They are counted in a store (`lookupcache.store.cluster_limits`); a policy only waits for its permits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lookupcache.resilience.runtime import Runtime


@dataclass(frozen=True)
class Permit:
    """Permission for one call.

    ``name`` identifies it, ``seconds`` is how long the call has to wait for its time. ``is_granted`` is False if there
    is none before the timeout; ``has_waited`` says whether the call was delayed.
    """

    name: bytes = b""
    seconds: float = 0.0
    is_granted: bool = True
    has_waited: bool = False


class ClusterLimits(Protocol):
    """A rate and a capacity; either may be unlimited, which None means as a permit."""

    async def enter(self, within: float, runtime: Runtime) -> Permit | None:
        """Wait for a slot of the cluster's capacity, at most so many seconds."""

    def leave(self, permit: Permit) -> None:
        """Free a slot."""

    async def throttle(self, within: float, runtime: Runtime) -> Permit | None:
        """Reserve a time for a call by the cluster's rate, at most so many seconds from now."""

    def reset_after_fork(self) -> None:
        """Forget the permits of the parent process."""

    def close(self) -> None:
        """End all permits, and disconnect."""
