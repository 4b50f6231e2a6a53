"""Storage of looked-up rows: it finds, adds and removes; it never fetches.

There are two implementations of one contract. `RowCache` stores Python values and looks up one key at a time, for
functions outside Spark. `ColumnCache` stores Arrow columns and looks up a batch of keys at a time, for the worker. Both
follow the same `Limits`, and weigh an entry by its rows (a known miss weighs one). They use the same eviction policies,
and take the time from the caller.

    limits ◄─ row_cache ─► key_queues (the order of eviction) · size (the bytes of a value)
           ◄─ column_cache ─► entry_table

    entry_table ─► key_lookup      keys to entries           ─► hash_index · appended_rows (the keys' values)
                ─► entry_rows      the rows of each entry    ─► appended_rows
                ─► entry_numbers   numbers in use, leases
                ─► expiry          write times, deadlines
                ─► in_flight       entries being fetched
                ─► policy          the order of eviction

The parts of `entry_table` store columns indexed by entry number (`entry_columns`) and do not know each other.
Keys are normalised, hashed and compared in `keys`.
"""

from lookupcache.cache.column_cache import ColumnCache
from lookupcache.cache.limits import Limits
from lookupcache.cache.row_cache import RowCache

__all__ = ["ColumnCache", "Limits", "RowCache"]
