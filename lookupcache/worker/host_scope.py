"""Decides whether a lookup shares its cache with the other workers of the host, and in which folder."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa

from lookupcache.cache import Limits
from lookupcache.config import LookupConfig
from lookupcache.errors import LookupAdvice
from lookupcache.host import HostCache, HostUnavailableError
from lookupcache.host.folder import LOCK_SECONDS, why_unusable
from lookupcache.plan import content_of, digest
from lookupcache.worker.partial_cache import Clock
from lookupcache.worker.source import Source

_SPARK_FOLDER = "lookupcache"


def host_cache_of(source: Source, clock: Clock | None = None) -> HostCache | None:
    """Return the host's cache for the plan of a source; None, with a warning, where there can be none.

    With scope ``auto`` there is no warning outside of Spark's workers: such a process has no others to share with.
    """
    plan = source.plan
    if plan.config.scope == "auto" and plan.config.cache_path is None and not local_directories():
        return None
    try:
        folder, identity = _place_of(source)
        return HostCache(
            folder,
            identity,
            source.reader.key_types,
            plan.columns_schema,
            _limits_of(plan.config),
            about={
                "table": plan.table,
                "connector": plan.connector,
                "keys": ", ".join(plan.key_columns),
                "columns": ", ".join(plan.columns),
                "plan": plan.fingerprint,
            },
            clock=clock,
            counters=source.counters,
            lock_seconds=lock_seconds(plan.config),
        )
    except HostUnavailableError as error:
        source.counters["host_failures"] += 1
        if _is_first_to_warn(plan.fingerprint):
            warnings.warn(
                f"Table {plan.table!r}: each worker has its own cache, because workers cannot share one: {error}.",
                LookupAdvice,
                stacklevel=2,
            )
        return None


def _place_of(source: Source) -> tuple[Path, str]:
    """Return the folder, and the identity of the workers that share rows in it.

    Applications with one folder may have other code, and other environments; how they call does not matter. The workers
    of one application have the same code. They share even where a global differs, as a time or a random number does.
    """
    config, fingerprint = source.plan.config, source.plan.fingerprint
    content = source.identity.content
    if config.cache_path is not None and not source.identity.is_known:
        config = replace(config, cache_path=None)
        if not local_directories():
            raise HostUnavailableError(
                "what determines the rows cannot be known, and 'lookup.cache.path' is for all applications"
            )
    if config.cache_path is not None:
        limits = asdict(_limits_of(config))
        parts = [*content_of(source.plan, content), config.cache == "ALL", limits]
        if config.store is not None:
            from lookupcache.store.locations import entries_of  # Workers without a store do without it.

            parts += entries_of(config)
        return folder_of(config), digest(parts)
    return folder_of(config), digest([fingerprint, content]) if content else fingerprint


def _is_first_to_warn(fingerprint: str) -> bool:
    """Return whether no worker of this executor has warned yet: the first one leaves a file that Spark deletes.

    Where that cannot be written either, each worker warns.
    """
    directories = local_directories()
    if not directories:
        return True
    try:
        marker = os.path.join(directories[0], f"{_SPARK_FOLDER}-warned-{fingerprint}")
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def lock_seconds(config: LookupConfig) -> float:
    """Return how long to wait for a lock of the folder: a small part of the time that a lookup may take.

    >>> lock_seconds(LookupConfig(timeout=20.0))
    2.0
    """
    return min(LOCK_SECONDS, config.timeout / 10)


def _limits_of(config: LookupConfig) -> Limits:
    """Return the limits of the host's cache; a table that is reloaded must have a known age."""
    limits = Limits.of(config, "host")
    is_reloaded = config.reload_interval is not None or config.reload_at is not None
    return replace(limits, ages=limits.ages or is_reloaded)


def folder_of(config: LookupConfig) -> Path:
    """Return the folder for the caches of this host; raises HostUnavailableError without a usable one.

    Without ``lookup.cache.path``, it is the application's. It is in the directory that the cluster manager has made for
    all executors of the host, else in the executor's. Spark deletes both.
    """
    if config.cache_path is not None:
        return Path(config.cache_path)
    directories = local_directories()
    if not directories:
        raise HostUnavailableError("this process has no local directory of Spark, and 'lookup.cache.path' is not set")
    executor = Path(directories[0])
    application = executor.parent
    if application.name.startswith(("executor-", "application_")):
        return application / _SPARK_FOLDER
    return executor / _SPARK_FOLDER


def check_folder(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the name of this host, and why its workers cannot share caches, null if they can; runs in a worker."""
    for _ in batches:
        try:
            problem = why_unusable(folder_of(LookupConfig()))
        except HostUnavailableError as error:
            problem = str(error)
        yield pa.record_batch({"host": [socket.gethostname()], "problem": pa.array([problem], pa.string())})


def local_directories() -> list[str]:
    """Return the local directories that Spark has given this process; outside of its workers, an empty list."""
    return [name for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
