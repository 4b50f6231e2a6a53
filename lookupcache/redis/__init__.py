"""Connections to Redis: one server, the master that sentinels report, or a cluster.

The `redis` connector and the store (`lookupcache.store`) use the same clients.

url, options ─► `Address` (on the driver, nothing connected) ─► `RedisServer`, `Cluster`
`KeyCommand` (one for many keys) ─► one round trip ─► a reply per key, or its error
"""
