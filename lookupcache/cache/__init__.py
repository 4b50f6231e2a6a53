"""Storage of looked-up rows: it finds, keeps and forgets; it never loads.

One contract, two makes. `RowCache` holds Python values and answers one key at a time, for functions outside
Spark. `ColumnCache` holds Arrow columns and answers a batch of keys at a time, for the worker. Both keep to
the same `Limits`, weigh an entry by its rows (a known miss weighs one), let the same policies say which entries go
first, and ask the caller for the time.

    limits · policies ◄─ row_cache ─► size (what a value holds)
                      ◄─ column_cache ─► keys (told apart) · hash_index (found) · row_store (kept in columns)
"""

from lookupcache.cache.column_cache import ColumnCache
from lookupcache.cache.limits import Limits
from lookupcache.cache.row_cache import RowCache

__all__ = ["ColumnCache", "Limits", "RowCache"]
