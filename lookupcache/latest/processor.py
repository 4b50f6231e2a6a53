"""`BucketJoin` for Spark's transformWithState, of which a query may have several, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from lookupcache.latest.tasks import BucketJoin

if TYPE_CHECKING:
    import pandas as pd


class BucketProcessor(StatefulProcessor):
    """Joins the rows of a bucket with its values, which are in the state variable ``table``."""

    def __init__(self, join: BucketJoin) -> None:
        self.join = join

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variable."""
        self._table = handle.getValueState("table", "table BINARY")

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Yield payloads of joined rows, with counts."""
        return self.join(key, rows, _State(self._table))

    def close(self) -> None:
        """Do nothing: Spark closes the state."""


@dataclass(frozen=True)
class _State:
    """A state variable with the methods that a group's state has."""

    variable: Any

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
