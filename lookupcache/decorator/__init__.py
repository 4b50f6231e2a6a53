"""`cached`: the cache and all that protects a source, before any function, without Spark.

decorate ─► single_flight (one call, however many want a key) ─► latch
        ├─► batching (calls that fill up)
        └─► callee (the function, whatever its kind) ─► pool (threads that can be given up)
"""

from lookupcache.decorator.decorate import cached

__all__ = ["cached"]
