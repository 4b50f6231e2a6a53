"""Requests from a Spark DataFrame: hashed by Spark, and sampled on the executors.

    DataFrame ─► word, time (Spark) ─► toArrow ─► Requests                       (exact)
                             └─► mapInArrow: Survey of a partition ─► joined on the driver   (sampled)

The order of the requests is that of the partitions and of the rows in them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lookupcache.cache.keys import Hashes
from lookupcache.errors import SchemaError
from lookupcache.hitrate.deployment import Deployment, Survey
from lookupcache.hitrate.keys import Requests, key_columns, not_a_key, refuse_backwards
from lookupcache.hitrate.shards import SampledKeys
from lookupcache.versions import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROWS_LOOKED_AT = 200_000


def words_and_times(df: DataFrame, keys: Sequence[str] | None, time: str | None) -> DataFrame:
    """Return a column ``w``, a word for each key, null if one of its columns is, and ``t``, microseconds."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    names = key_columns("The DataFrame", df.columns, keys, time)
    for name in names:
        if isinstance(type_ := df.schema[name].dataType, T.ArrayType | T.MapType | T.StructType):
            raise not_a_key(name, type_.simpleString())
    wanted = [df[f"`{name}`"] for name in names]
    there = reduce(lambda one, other: one & other, (column.isNotNull() for column in wanted))
    word = F.when(there, F.xxhash64(*wanted)).alias("w")
    return df.select(word) if time is None else df.select(word, _microseconds(df, time).alias("t"))


def _microseconds(df: DataFrame, time: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    column, type_ = df[f"`{time}`"], df.schema[time].dataType
    if isinstance(type_, T.TimestampType | T.TimestampNTZType | T.DateType):
        return F.unix_micros(column.cast("timestamp"))
    if isinstance(type_, T.NumericType):
        return F.round(column * 1_000_000).cast("bigint")
    raise SchemaError(f"Column {time!r} is {type_.simpleString()}, which is no time.", hint="Give a timestamp.")


def collect_requests(given: DataFrame, time: str | None) -> Requests:
    """Return all requests of `words_and_times`; each takes eight bytes, and eight for its time."""
    table = to_arrow(given)
    words = table.column("w").combine_chunks()
    valid = words.is_valid().to_numpy(zero_copy_only=False)
    if not valid.any():
        raise SchemaError("The DataFrame holds no keys.", hint=f"It has {len(words):,} rows, none with a key.")
    times = None
    if time is not None:
        stamps = table.column("t")
        if stamps.null_count:
            raise SchemaError(f"Time column {time!r} holds nulls.", hint="Leave those rows out, or do without times.")
        times = stamps.to_numpy()[valid]
        refuse_backwards(times, time)
    return Requests(_words(words), times, int(np.count_nonzero(~valid)))


def _words(column: pa.Array) -> Hashes:
    return np.asarray(column.drop_null().to_numpy(zero_copy_only=False), dtype=np.int64).view(np.uint64)


@dataclass(frozen=True)
class RequestTotals:
    """What is counted of requests; ``keys`` is about how many different keys they are for."""

    requests: int
    nulls: int
    keys: int
    seconds: float | None


def total_requests(given: DataFrame) -> RequestTotals:
    """Count the requests of `words_and_times`, by one job."""
    from pyspark.sql import functions as F  # noqa: N812

    span = F.max("t") - F.min("t") if "t" in given.columns else F.lit(None)
    counts = (F.count("w"), F.count(F.lit(1)), F.approx_count_distinct("w"), span)
    [(requests, rows, distinct, micros)] = given.agg(*counts).collect()
    return RequestTotals(requests, rows - requests, distinct, micros / 1_000_000 if micros else None)


@dataclass(frozen=True)
class _Surveying:
    """The function for `mapInArrow`: batches of words in, one row with the partition's surveys out."""

    deployments: tuple[Deployment, ...]
    hot: Hashes
    rate: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        surveys = [Survey(deployment, self.hot, self.rate) for deployment in self.deployments]
        for batch in batches:
            for survey in surveys:
                survey.add(_words(batch.column(0)))
        part = context.partitionId() if context is not None else 0
        yield pa.record_batch({"part": pa.array([part], pa.int32()), "surveys": [pickle.dumps(surveys)]})


def survey_on_executors(
    given: DataFrame, requests: int, deployments: Sequence[Deployment], rate: float
) -> list[Survey]:
    """Survey the requests of `words_and_times` on the executors; only the part ``rate`` of the keys leaves them."""
    words = given.select("w")
    part = min(_ROWS_LOOKED_AT / max(requests, 1), 1.0)
    some = to_arrow(words.where("w IS NOT NULL").sample(fraction=part, seed=1)).column("w").combine_chunks()
    if not len(some):
        raise SchemaError("The DataFrame holds no keys.", hint="It has no row with a key.")
    surveying = _Surveying(tuple(deployments), SampledKeys.of(_words(some), rate).hot, rate)
    rows = to_arrow(words.mapInArrow(surveying, "part INT, surveys BINARY")).sort_by("part")
    found: list[list[Survey]] = [pickle.loads(surveys.as_py()) for surveys in rows.column("surveys")]
    return [reduce(Survey.concat_with, surveys) for surveys in zip(*found, strict=True)]
