"""Counts from the progress of streams: `LookupListener` gives them to the registry."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from lookupcache.report import is_classic
from lookupcache.spark.registry import JOINS, Registry

_logger = logging.getLogger(__name__)


class LookupListener(StreamingQueryListener):
    """Collects the counts of observed lookup joins from the progress of a session's streams.

    These are the joins with ``lookup.metrics`` = ``observe``, and on Spark Connect all.
    `lookupcache.export_metrics` adds one to each session that has such streams; to collect without it, call
    ``spark.streams.addListener(LookupListener())``. A micro-batch that several listeners see counts once.
    """

    def __init__(self, registry: Registry = JOINS) -> None:
        self._registry = registry

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Add the counts of a micro-batch."""
        try:
            self._registry.add_progress(event.progress)
        except Exception:
            # An error would end up in Spark's log, once per micro-batch, and stop other listeners on Spark Connect.
            _logger.warning("The counts of a micro-batch could not be read.", exc_info=True)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the counts stay."""


class Listening:
    """A listener in each session that has observed streams, from `start` to `stop`."""

    def __init__(self, registry: Registry = JOINS) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._is_over = False
        self._added: list[tuple[SparkSession, LookupListener]] = []

    def start(self) -> None:
        """Listen to the streams that there are and to later ones."""
        self._registry.follow(self._listen)

    def stop(self) -> None:
        """Remove the listeners from the sessions that still run."""
        self._registry.unfollow(self._listen)
        with self._lock:
            self._is_over = True
        for session, listener in self._added:
            if not is_stopped(session):
                # The session may be stopped meanwhile.
                with suppress(Exception):
                    session.streams.removeListener(listener)

    def _listen(self, session: SparkSession) -> None:
        with self._lock:
            if self._is_over or is_stopped(session) or any(_is_same(session, other) for other, _ in self._added):
                return
            listener = LookupListener(self._registry)
            try:
                session.streams.addListener(listener)
            except Exception:
                # A join is worth more than its counts.
                _logger.warning("The streams of a session cannot be listened to.", exc_info=True)
                return
            self._added.append((session, listener))


def is_stopped(session: Any) -> bool:
    """Return whether a session has ended."""
    return session.sparkContext._jsc is None if is_classic(session) else bool(session.is_stopped)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two objects stand for one session."""
    if not (is_classic(one) and is_classic(other)):
        return one is other
    return one is other or bool(one._jsparkSession.equals(other._jsparkSession))
