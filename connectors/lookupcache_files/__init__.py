"""The `files` connector: a table of Parquet files or a Delta table, held whole by the workers."""

from lookupcache_files.connector import FilesConnector

__all__ = ["FilesConnector"]
