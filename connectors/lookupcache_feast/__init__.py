"""The `feast` connector: features of a Feast online store as a table, by entity key."""

from lookupcache_feast.connector import FeastConnector

__all__ = ["FeastConnector"]
