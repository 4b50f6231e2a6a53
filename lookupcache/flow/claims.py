"""`claim_left`: claiming keys that were missing, so that nothing is requested that was published in the meantime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from lookupcache.cache.keys import KeyBatch, Mask, Positions


class Published(Protocol):
    """A tier that knows when something was published in it, by a number."""

    def has_news_since(self, position: int) -> bool:
        """Return whether something has been published since the number had a value."""

    def release(self, keys: KeyBatch) -> None:
        """End this process's claims of keys."""


def claim_left(
    tier: Published, keys: KeyBatch, left: Positions, seen: int, claim: Callable[[KeyBatch], Mask],
    find: Callable[[Positions], Positions],
) -> tuple[Positions, Positions]:  # fmt: skip
    """Claim keys; return which to request here, and which other processes request.

    Who had claimed a key has published it before that claim was released, so before it was claimed here. So if anything
    has been published since, the keys are looked for again.

    Args:
        tier: Where to claim them.
        keys: Distinct keys.
        left: The positions of those that were missing.
        seen: The number of the last publication that was there.
        claim: Claims keys, and returns which to request here.
        find: Takes what is there of keys at positions, and returns the others.
    """
    is_mine = claim(keys if len(left) == len(keys) else keys.take(left))
    mine, others = left[is_mine], left[~is_mine]
    if tier.has_news_since(seen):
        left = find(left)
        tier.release(keys.take(np.setdiff1d(mine, left)))
        mine, others = np.intersect1d(mine, left), np.setdiff1d(left, mine)
    return mine, others
