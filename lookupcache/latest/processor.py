"""`BucketJoin` for Spark's transformWithState, of which a query may have several, and in which left rows can wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from lookupcache.latest.payload import read_payload
from lookupcache.latest.tasks import BucketJoin

if TYPE_CHECKING:
    import pandas as pd

_TOGETHER = 64
"""How many payloads are appended to a list state in one message."""


class BucketProcessor(StatefulProcessor):
    """Joins the rows of a bucket with its values, which are in the state variable ``table``.

    Left rows that wait for the end of a load phase are in the list ``waiting``, to which Spark appends without reading
    it. No timer ends a load phase: Spark would run micro-batches without rows for ever, and never end `availableNow`.
    """

    def __init__(self, join: BucketJoin) -> None:
        self.join = join

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variables."""
        waiting = None
        if self.join.latest.load is not None:
            rows = handle.getValueState("waiting_rows", "rows BIGINT")
            waiting = _WaitingRows(handle.getListState("waiting", "payload BINARY"), rows)
        self._state = _State(handle.getValueState("table", "table BINARY"), waiting)

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Yield payloads of joined rows, with counts."""
        return self.join(key, rows, self._state)

    def close(self) -> None:
        """Do nothing: Spark closes the state."""


@dataclass(frozen=True)
class _State:
    """A state variable with the methods that a group's state has, and the left rows that wait."""

    variable: Any
    waiting: _WaitingRows | None

    @property
    def exists(self) -> bool:
        return bool(self.variable.exists())

    @property
    def get(self) -> Any:
        return self.variable.get()

    def update(self, value: tuple[bytes]) -> None:
        self.variable.update(value)

    def remove(self) -> None:
        self.variable.clear()


@dataclass(frozen=True)
class _WaitingRows:
    """The payloads of left rows that wait, in a list state, and the number of those rows."""

    variable: Any
    number: Any

    def append(self, payloads: Iterable[bytes]) -> int:
        """Add payloads; return how many rows wait."""
        before = rows = int(self.number.get()[0]) if self.number.exists() else 0
        together: list[tuple[bytes]] = []
        for payload in payloads:
            rows += read_payload(payload).num_rows
            together.append((payload,))
            if len(together) == _TOGETHER:
                self.variable.appendList(together)
                together = []
        if together:
            self.variable.appendList(together)
        if rows != before:
            self.number.update((rows,))
        return rows

    def payloads(self) -> Iterator[bytes]:
        return (bytes(row[0]) for row in self.variable.get())

    def clear(self) -> None:
        self.variable.clear()
        self.number.clear()
