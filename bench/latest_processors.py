"""The last value of each key by Spark's transformWithState, which `bench.latest` compares with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

COLUMNS = ["k", "id", "a", "b", "c", "d", "rate"]


class LastInPandas(StatefulProcessor):
    """Right rows of a key are folded first, then its left rows get the value."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "rate DOUBLE")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        frame = pd.concat(list(rows))
        right = frame[frame["is_right"]]
        if len(right):
            self.last.update((float(right["rate"].iloc[-1]),))
        left = frame[~frame["is_right"]]
        if len(left):
            rate = self.last.get()
            yield left.assign(rate=None if rate is None else rate[0])[COLUMNS]

    def close(self) -> None:
        pass


class LastInRows(StatefulProcessor):
    """The same, with rows as objects."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "rate DOUBLE")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        left = []
        for row in rows:
            if row.is_right:
                self.last.update((row.rate,))
            else:
                left.append(row)
        rate = self.last.get() if left else None
        for row in left:
            yield Row(k=row.k, id=row.id, a=row.a, b=row.b, c=row.c, d=row.d, rate=None if rate is None else rate[0])

    def close(self) -> None:
        pass
