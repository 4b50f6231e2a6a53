"""Lookups from outside: what is exported of their metrics, under which names, and how that is read again.

totals ─► families (names, types, labels) ─► exposition (as metrics of prometheus_client) ─► server (HTTP)
                                                                       HTTP ─► scrape (values) ─► rates (per second)
"""
