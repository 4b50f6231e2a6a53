"""Functions that workers run and that import nothing of this package: what a worker loads shows what the join needs."""

from __future__ import annotations


def identity(batches):
    """Return the input."""
    return batches


def list_modules(batches):
    """Yield the names of the modules that the process has loaded."""
    import sys

    import pyarrow as pa

    for _ in batches:
        names = sorted(sys.modules)
        yield pa.RecordBatch.from_pydict({"name": names})


def squares_of(n):
    """Return the rows of a key."""
    return [(n, n * n)]


async def squares_of_async(n):
    """Return the rows of a key."""
    return [(n, n * n)]


def logged_name(path, number):
    """Return the rows of a key, and note in a file that it was requested."""
    with open(path, "a") as log:
        log.write(f"{number}\n")
    return [(number, f"n{number}")] if number % 5 else []


def bound(value):
    """Return a function that keeps a value; its module imports nothing, so its identity is computed fast."""
    return lambda key: (key, value)
