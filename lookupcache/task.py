"""What `mapInArrow` is given: the one object that travels from the driver to the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa

from lookupcache.metrics import Tally
from lookupcache.plan import LookupPlan
from lookupcache.report import Channel
from lookupcache.runner import Layout, Runner, shared_lookup, tallied


@dataclass(frozen=True)
class Task:
    """Called in the worker: batches of the left side in, joined batches out.

    The connector is pickled by itself, so that a worker that has it open need not unpickle it again.
    """

    plan: LookupPlan
    connector: bytes
    layout: Layout
    channel: Channel

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the join over one partition."""
        lookup = shared_lookup(self.plan, lambda: cloudpickle.loads(self.connector))
        counts = Tally()
        joined = tallied(lookup, Runner(self.plan, self.layout, lookup).run(batches), counts)
        return self.channel.reporting(joined, counts)
