"""A store that all hosts share, behind the caches of workers and hosts: Redis or a folder. See docs/sharing.md."""

from lookupcache.store.contract import Reading, Store, StoreContent, StoreFullError
from lookupcache.store.locations import open_store

__all__ = ["Reading", "Store", "StoreContent", "StoreFullError", "open_store"]
