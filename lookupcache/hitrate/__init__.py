"""Hit rates before anything is deployed: predicted from the keys that will be looked up.

keys (requests) ─► reuse (exact distances) · shards (a part of the keys) ─► curve
               ─► deployment (batches, workers, rows, misses) · ageing (TTL) · replay (other policies) · width (bytes)
prediction ─► advice ─► report · plot
"""

from lookupcache.hitrate.prediction import Prediction, hit_rate

__all__ = ["Prediction", "hit_rate"]
