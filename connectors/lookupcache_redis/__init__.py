"""The `redis` connector: rows by key from Redis, Valkey and servers that speak their protocol."""

from lookupcache_redis.connector import RedisConnector

__all__ = ["RedisConnector"]
