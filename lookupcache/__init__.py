"""A lookup join for Spark: enrich a DataFrame from any source by key, through a cache that keeps only what it needs.

The layers, in the order in which they import each other; `docs/maintainers/architecture.md` says more:

    errors · redaction · secrets · schema · expr      errors, secrets in texts, types, expressions
    config                                            options
    plan                                              a planned join, as data
    connector · functions · table                     sources: the contract, and functions as sources
    planner                                           from a condition to a plan
    compiled                                          plans as versioned JSON
    cache                                             storage of looked-up rows
    metrics · resilience · executor                   counts; retries and limits of a call; concurrent calls
    decorator                                         `cached`, without Spark
    worker                                            what runs in a Python worker
    report · spark                                    transfer of counts to the driver; the join on the driver
    sql                                               statements
    monitoring                                        exported metrics: names, endpoint, reading them
    testing                                           the test kit for connectors
    hitrate                                           prediction of hit rates
    java · demo · cli                                 the command line
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - an archive that is sent to a cluster is not checked by pip
    from lookupcache.errors import UnsupportedVersionError

    raise UnsupportedVersionError(
        f"lookupcache does not run on Python {sys.version.split()[0]}.", hint="It supports Python 3.11 and later."
    )

__version__: str

if TYPE_CHECKING:
    from lookupcache.compiled import CompiledPlan, PlanReference
    from lookupcache.config import LookupConfig
    from lookupcache.connector import Connector, LookupRequest
    from lookupcache.decorator import cached
    from lookupcache.errors import (
        CompiledPlanError,
        ConnectorError,
        LookupCacheError,
        LookupFailedError,
        LookupRefusedError,
        LookupRuntimeError,
        LookupTimeoutError,
        OptionError,
        PlanError,
        SchemaError,
        SourceError,
        StatementError,
        TooManyRowsError,
        WrongRowsError,
    )
    from lookupcache.hitrate import hit_rate
    from lookupcache.metrics import LookupMetrics
    from lookupcache.plan import LookupPlan
    from lookupcache.spark.exporter import export_metrics
    from lookupcache.spark.join import LookupJoin, lookup, lookup_join
    from lookupcache.sql import LookupSession
    from lookupcache.table import LookupTable

__all__ = [
    "CompiledPlan",
    "CompiledPlanError",
    "Connector",
    "ConnectorError",
    "LoadPhase",
    "LookupCacheError",
    "LookupConfig",
    "LookupFailedError",
    "LookupJoin",
    "LookupMetrics",
    "LookupPlan",
    "LookupRefusedError",
    "LookupRequest",
    "LookupRuntimeError",
    "LookupSession",
    "LookupTable",
    "LookupTimeoutError",
    "OptionError",
    "PlanError",
    "PlanReference",
    "SchemaError",
    "SourceError",
    "StatementError",
    "TooManyRowsError",
    "WrongRowsError",
    "cached",
    "export_metrics",
    "hit_rate",
    "lookup",
    "lookup_join",
]

_MODULES = {
    "LoadPhase": "latest.load",
    "CompiledPlan": "compiled",
    "Connector": "connector",
    "LookupConfig": "config",
    "LookupJoin": "spark.join",
    "LookupMetrics": "metrics",
    "LookupPlan": "plan",
    "LookupRequest": "connector",
    "LookupSession": "sql",
    "LookupTable": "table",
    "PlanReference": "compiled",
    "cached": "decorator",
    "export_metrics": "spark.exporter",
    "hit_rate": "hitrate",
    "lookup": "spark.join",
    "lookup_join": "spark.join",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `cached` needs no Spark, and workers need neither planner nor SQL."""
    if name == "__version__":
        return _read_version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"lookupcache.{_MODULES.get(name, 'errors')}"), name)


def _read_version() -> str:
    """Return the version that the build took from git's tags; in a checkout that was not built, the installed one."""
    try:
        from lookupcache._version import __version__ as version
    except ModuleNotFoundError:
        from importlib import metadata

        try:
            version = metadata.version("lookupcache")
        except metadata.PackageNotFoundError:
            version = "0.0.0"
    return str(version)
