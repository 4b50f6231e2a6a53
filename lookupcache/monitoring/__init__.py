"""Lookups from outside: which metrics are exported, under which names, and how they are read again.

totals ─► families (names, types, labels) ─► exposition (as metrics of prometheus_client) ─► server (HTTP)
                                                                       HTTP ─► scrape (values) ─► rates (per second)
"""
