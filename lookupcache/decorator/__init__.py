"""`cached`: the cache and all that protects a source, before any function, without Spark.

decorate ─► decorated (what is called) ─► arguments (as a key)
        └─► sync_lookup · async_lookup (how calls are made) ─► pool (threads that can be given up)
            └─► single_flight (one call, however many want a key) ─► batching (calls that fill up)
                └─► callee (the function, whatever its kind), nesting (which call waits for which), latch
"""

from lookupcache.decorator.decorate import cached

__all__ = ["cached"]
