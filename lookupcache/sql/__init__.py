"""SQL with lookups: what is a lookup becomes a lookup join, and the rest is passed to Spark as Spark SQL."""

from lookupcache.sql.session import LookupSession

__all__ = ["LookupSession"]
