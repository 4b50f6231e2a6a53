"""A lookup join for Spark: enrich a DataFrame from any source by key, through a cache that keeps only what it needs.

The rooms, in the order in which they import each other:

    errors · redaction · secrets · schema · expr      what the rest is written in
    config                                            options
    plan                                              what a join is, as data
    connector · function · table · table_function     where rows come from
    planner                                           from a condition to a plan
    cache                                             what is kept, and how it is found again
    metrics · calls                                   around calls to a source
    decorator                                         `cached`: all of it before any function, without Spark
    worker                                            what happens in a Python worker
    report · forms · join                             between driver and worker, who joins, and on the driver
    whole · sql                                       tables read whole, and SQL
    doctor                                            what a session could do better
    testing                                           for those who write a connector
    hitrate                                           what a cache would do, from the keys
    java · demo · cli                                 the command line
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lookupcache.config import LookupConfig
    from lookupcache.connector import Connector, LookupRequest
    from lookupcache.decorator import cached
    from lookupcache.errors import (
        ConnectorError,
        LookupCacheError,
        LookupFailedError,
        LookupRefusedError,
        LookupTimeoutError,
        OptionError,
        PlanError,
        SchemaError,
        SourceError,
        StatementError,
        TooManyRowsError,
    )
    from lookupcache.hitrate import hit_rate
    from lookupcache.metrics import LookupMetrics
    from lookupcache.plan import LookupPlan
    from lookupcache.spark.join import LookupJoin, lookup_join
    from lookupcache.sql import LookupSession
    from lookupcache.table import LookupTable

__all__ = [
    "Connector",
    "ConnectorError",
    "LookupCacheError",
    "LookupConfig",
    "LookupFailedError",
    "LookupJoin",
    "LookupMetrics",
    "LookupPlan",
    "LookupRefusedError",
    "LookupRequest",
    "LookupSession",
    "LookupTable",
    "LookupTimeoutError",
    "OptionError",
    "PlanError",
    "SchemaError",
    "SourceError",
    "StatementError",
    "TooManyRowsError",
    "cached",
    "hit_rate",
    "lookup_join",
]

_ROOMS = {
    "Connector": "connector",
    "LookupConfig": "config",
    "LookupJoin": "spark.join",
    "LookupMetrics": "metrics",
    "LookupPlan": "plan",
    "LookupRequest": "connector",
    "LookupSession": "sql",
    "LookupTable": "table",
    "cached": "decorator",
    "hit_rate": "hitrate",
    "lookup_join": "spark.join",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `cached` needs no Spark, and workers need neither planner nor SQL."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"lookupcache.{_ROOMS.get(name, 'errors')}"), name)
