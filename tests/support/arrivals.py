"""Two streams of files, orders and rates, and a query over them that may be stopped and started again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ORDERS = "user STRING, amount INT, ccy STRING, at INT"
RATES = "ccy STRING, exchange DOUBLE, at INT, deleted BOOLEAN"


@dataclass
class Arrivals:
    """Files that arrive, and the query; ``joined`` returns its result from orders and rates."""

    spark: SparkSession
    folder: Path
    joined: Callable[[DataFrame, DataFrame], DataFrame]
    query: StreamingQuery | None = None
    files: int = 0
    options: dict[str, str] = field(default_factory=dict)
    sink: str = "foreachBatch"
    results: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    """Rows by micro-batch: one that runs again replaces what it gave before."""
    ended: StreamingQuery | None = None
    """The query of the last run that has started it again."""
    fault: Callable[[DataFrame, int], None] | None = None
    """Is called with the rows of each micro-batch before they are taken, and may fail the query."""

    def __post_init__(self) -> None:
        for name in ("orders", "rates"):
            (self.folder / name).mkdir()

    def stream(self, name: str, columns: str) -> DataFrame:
        reader = self.spark.readStream.schema(columns).options(**self.options)
        return reader.json(str(self.folder / name))

    def arrive(self, name: str, *rows: dict[str, Any]) -> None:
        """Let rows arrive in one file."""
        self.files += 1
        hidden = self.folder / f".{self.files}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.folder / name / f"{self.files:03}.json")

    def run(self, *, restart: bool = False, trigger: str = "") -> list[tuple[Any, ...]]:
        """Process what has arrived, in the running query or in one that starts again; return all results.

        A trigger, "availableNow" or "once", starts it again, as ``restart`` does.
        """
        if restart or trigger:
            self.stop()
            self.ended = self._write().trigger(**{trigger or "availableNow": True}).start()
            self.ended.awaitTermination()
        else:
            self.query = self.query or self._write().start()
            self.query.processAllAvailable()
        return sorted(self._rows(), key=repr)

    def _rows(self) -> list[tuple[Any, ...]]:
        if self.sink == "foreachBatch":
            return [row for rows in self.results.values() for row in rows]
        if not (self.folder / "out" / "_spark_metadata").exists():
            return []
        columns = self.joined(self.stream("orders", ORDERS), self.stream("rates", RATES)).schema
        return [tuple(row) for row in self.spark.read.schema(columns).parquet(str(self.folder / "out")).collect()]

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _write(self) -> Any:
        df = self.joined(self.stream("orders", ORDERS), self.stream("rates", RATES))
        writer = df.writeStream.outputMode("append")
        if self.sink == "foreachBatch":
            writer = writer.foreachBatch(self._take)
        else:
            writer = writer.format(self.sink).option("path", str(self.folder / "out"))
        return writer.option("checkpointLocation", str(self.folder / "checkpoint"))

    def _take(self, rows: DataFrame, number: int) -> None:
        if self.fault is not None:
            self.fault(rows, number)
        self.results[number] = [tuple(row) for row in rows.collect()]
