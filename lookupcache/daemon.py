"""Spark's Python daemon with all imports that a lookup join's workers need: `spark.python.daemon.module`.

Spark's own daemon forks a worker and lets it import. This one imports first, so that a fresh worker has all modules, in
memory that it shares with the others until it writes to it. It is otherwise `pyspark.daemon`.

    spark.python.daemon.module                      lookupcache.daemon
    spark.executorEnv.LOOKUPCACHE_DAEMON_IMPORTS    my_functions,my_model      further modules, if any

Modules that are imported here are imported before a fork, so none may open a connection, nor start a thread that a
worker needs. Two of `MODULES` start threads: numpy the pool of its BLAS library, and pyarrow one of jemalloc, which
returns memory in the background. A worker has neither after the fork; the libraries handle forks, and no Python code
runs in these threads. Add other modules only if you know that they start none. The package must be installed for the
Python of the executors: a daemon that cannot be started fails every Python job, and files that are added to a session
come too late.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TextIO

ALSO = "LOOKUPCACHE_DAEMON_IMPORTS"
"""The environment variable with the names of further modules to import, separated by commas."""

_LIMIT = "PYSPARK_EXECUTOR_MEMORY_MB"

MODULES = (
    "pyspark.worker", "numpy", "pandas", "pyarrow", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet",
    "lookupcache.worker.chain", "lookupcache.worker.dead_letters", "lookupcache.executor.coroutines",
    "lookupcache.worker.host_lookup", "lookupcache.worker.host_scope", "lookupcache.worker.host_table",
    "lookupcache_files", "lookupcache_http", "lookupcache_http.service", "lookupcache_openai", "lookupcache_redis",
    "lookupcache_sql", "lookupcache_sql.sqlite", "lookupcache_sql.postgres", "lookupcache_sql.mysql",
    "lookupcache_sql.duckdb", "adbc_driver_postgresql.dbapi", "aiohttp", "duckdb", "pymysql", "redis",
)  # fmt: skip
"""What workers of the connectors of this package import; those of it that are installed."""


def import_modules(names: Sequence[str] = MODULES) -> None:
    """Import modules for the workers that will be forked; one that is missing or fails is left to the workers.

    What modules print appears among the errors, since Spark reads the daemon's output; their input is empty.
    """
    for name in names:
        _import(name)
    # A forked worker that has its own numpy draws the same random numbers as the others.
    os.register_at_fork(after_in_child=_reseed_numpy)
    # The collector writes to every object that it looks at, which would copy the shared memory in each worker.
    gc.collect()
    gc.freeze()


def _import(name: str) -> None:
    try:
        with _without_input_and_output():
            if find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
    except BaseException as error:  # also SystemExit: without this daemon there are no Python workers
        print(f"lookupcache.daemon: {name} cannot be imported: {error!r}", file=sys.stderr)


@contextlib.contextmanager
def _without_input_and_output() -> Iterator[None]:
    """Let a module read an empty input and print among the errors, and undo what it does with Python's streams."""
    streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    _flush(sys.stdout)
    descriptors = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(empty, 0)
        os.dup2(2, 1)
        yield
    finally:
        for number, (name, stream) in enumerate(streams.items()):
            _flush(stream)
            if stream is not None and stream.closed:
                stream = os.fdopen(number, "w" if number else "r", closefd=False)
            setattr(sys, name, stream)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(empty)


def _flush(stream: TextIO | None) -> None:
    if stream is not None and not stream.closed and stream.writable():
        stream.flush()


def _reseed_numpy() -> None:
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def limit_own_memory() -> None:
    """Let `spark.executor.pyspark.memory` limit what a worker maps itself, beside what it has of the daemon.

    The modules alone map more than a limit that is ample for a worker: its next allocation or thread would fail.
    Workers read the limit, which Spark gives the daemon, from the environment.
    """
    limit = int(os.environ.get(_LIMIT, "-1"))
    if limit > 0:
        os.environ[_LIMIT] = str(limit + _mapped_megabytes())


def _mapped_megabytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
    except OSError:  # No Linux, and Spark sets no limit, or one that is not enforced.
        return 0
    return (pages * os.sysconf("SC_PAGE_SIZE")) >> 20


def main() -> None:
    """Import, then run Spark's daemon."""
    from pyspark.daemon import manager

    import_modules((*MODULES, *(name.strip() for name in os.environ.get(ALSO, "").split(",") if name.strip())))
    limit_own_memory()
    manager()


if __name__ == "__main__":
    main()
