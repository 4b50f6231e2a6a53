"""The `http` connector: rows by key from a service that speaks JSON."""

from lookupcache_http.connector import HttpConnector

__all__ = ["HttpConnector"]
