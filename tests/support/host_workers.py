"""Workers of one host in one process, which share a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def host_workers(make: Callable[..., Any], kind: type, folder: Path, **defaults: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function that makes a worker with a lookup of a kind; each has its own connection to the host's cache."""
    made = []

    def new(*arguments: Any, **config: Any) -> Any:
        options = {"scope": "host", "cache_path": str(folder / "cache"), **defaults, **config}
        worker = make(*arguments, **options)
        assert isinstance(worker.lookup, kind)
        made.append(worker.lookup)
        return worker

    yield new
    for lookup in made:
        lookup.disconnect()


def values_of(pending: Any) -> list[Any]:
    """Return the first column of the rows of an open batch of keys, None for a key without rows."""
    stored, entries = pending.resolve()
    values: list[Any] = stored.gather(stored.starts(entries))[0].to_pylist()
    return values
