"""What `mapInArrow` is given: the one object that travels from the driver to the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa

from lookupcache.connector import Connector
from lookupcache.errors import ConnectorError
from lookupcache.metrics import Tally
from lookupcache.plan import LookupPlan
from lookupcache.report import Channel
from lookupcache.worker.dead_letters import DeadLetters
from lookupcache.worker.runner import Layout, Runner, shared_lookup, tallied


@dataclass(frozen=True)
class Task:
    """Called in the worker: batches of the left side in, joined batches out.

    The connector is pickled by itself, so that a worker that has it open need not unpickle it again. ``letters`` is
    where dead letters go, if they are wanted: a plan does not hold what may be secret in it.
    """

    plan: LookupPlan
    connector: bytes
    layout: Layout
    channel: Channel
    letters: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the join over one partition."""
        lookup = shared_lookup(self.plan, self._unpickled)
        counts = Tally()
        joined = tallied(lookup, Runner(self.plan, self.layout, lookup, self._dead_letters()).run(batches), counts)
        return self.channel.reporting(joined, counts)

    def _dead_letters(self) -> DeadLetters | None:
        """Return what writes them, with the names that the left columns do not have inside the job."""
        return None if self.letters is None else DeadLetters(self.letters, self.plan.table, self.plan.left_columns)

    def _unpickled(self) -> Connector:
        return unpickled(self.plan, self.connector)


def unpickled(plan: LookupPlan, connector: bytes) -> Connector:
    """Return the connector; raises ConnectorError where its module is not on this worker."""
    try:
        found: Connector = cloudpickle.loads(connector)
    except ImportError as error:
        raise ConnectorError(
            f"Connector {plan.connector!r} of table {plan.table!r} is not on this worker: {error}.",
            hint="Ship its module, with spark.addArtifact(…, pyfile=True) or spark.submit.pyFiles, or install it.",
        ) from error
    return found
