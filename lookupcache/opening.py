"""A connector opened for a test: its errors are without secrets, and it is closed again."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lookupcache.connector import Connector
from lookupcache.errors import ConnectorError, LookupCacheError, text_of
from lookupcache.executor.call_group import await_call, run_async


@contextmanager
def opened(connector: Connector, *, asynchronous: bool) -> Iterator[Connector]:
    """Open a connector while the context lasts, on the event loop if lookups run there.

    Raises LookupCacheError for all that fails, ConnectorError for errors of the driver.
    """
    connector.resolve()
    try:
        _call(connector.open, asynchronous)
        try:
            yield connector
        finally:
            _call(connector.close, asynchronous)
    except LookupCacheError as error:
        text = connector.hide(str(error))
        if text != str(error):
            raise type(error)(text) from None
        raise
    except Exception as error:
        text = connector.hide(str(error))
        raise ConnectorError(f"The source cannot be read: {type(error).__name__}: {text}.") from None


def _call(method: Callable[[], Any], asynchronous: bool) -> None:
    if asynchronous:
        run_async(await_call(method))
    else:
        method()


@dataclass(frozen=True)
class OpeningCheck:
    """Opens a pickled connector in a worker, once per batch; yields the host, and the problem or null."""

    connector: bytes = field(repr=False)
    async_: bool | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check once per batch."""
        for _ in batches:
            yield pa.record_batch({"host": [socket.gethostname()], "problem": pa.array([self._problem()], pa.string())})

    def _problem(self) -> str | None:
        try:
            connector: Connector = pickle.loads(self.connector)
            with opened(connector, asynchronous=connector.runs_async(self.async_)):
                return None
        except Exception as error:
            return text_of(error)
