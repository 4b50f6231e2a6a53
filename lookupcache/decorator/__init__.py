"""`cached`: the cache, and all that protects a source, for any function, without Spark.

decorate ─► decorated (what is called) ─► arguments (as a key)
        └─► sync_lookup · async_lookup (calls in slots) ─► executor.thread_slots · executor.task_slots
            ├─► shared_cache (what other processes have called, if the options name a folder) ─► host
            ├─► stored_values (what other hosts and earlier runs have called, if the options name a store) ─► store
            │   both through flow.flow.fetch, which claims keys, waits for other processes, and publishes
            └─► single_flight (one call per key, however many callers) ─► batching (calls that fill up)
                └─► keyed_function (the function, called with keys) ─► functions.adapter
"""

from lookupcache.decorator.decorate import cached

__all__ = ["cached"]
