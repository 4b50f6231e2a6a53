"""`claim_left`: claiming keys that were missing, so that nothing is requested that was published in the meantime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lookupcache.cache.keys import KeyBatch, Mask, Positions

Find = Callable[[Positions], Positions]


def claim_left(
    keys: KeyBatch, left: Positions, claim: Callable[[KeyBatch], Mask], release: Callable[[KeyBatch], None], find: Find
) -> tuple[Positions, Positions]:
    """Claim keys; return which to request here, and which other processes request.

    A process publishes a key before it releases its claim. So what is claimed here may have been published since it was
    looked for, and is looked for again.

    Args:
        keys: Distinct keys.
        left: The positions of those that were missing, in order.
        claim: Claims keys, and returns which to request here.
        release: Ends claims.
        find: Takes what was published since the keys were looked for, and returns the others, in order.
    """
    is_mine = claim(keys if len(left) == len(keys) else keys.take(left))
    mine, others = left[is_mine], left[~is_mine]
    still_left = find(left)
    if len(still_left) < len(left):
        release(keys.take(np.setdiff1d(mine, still_left)))
        mine, others = np.intersect1d(mine, still_left), np.intersect1d(others, still_left)
    return mine, others
