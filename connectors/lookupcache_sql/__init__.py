"""The `sql` connector: rows by key from a table, view or query of a SQL database."""

from lookupcache_sql.connector import SqlConnector

__all__ = ["SqlConnector"]
