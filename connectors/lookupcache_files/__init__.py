"""The `files` connector: a table of Parquet files or a Delta table, cached in full by the workers."""

from lookupcache_files.connector import FilesConnector

__all__ = ["FilesConnector"]
