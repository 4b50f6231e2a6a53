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
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lookupcache.cache.keys import Hashes
from lookupcache.errors import SchemaError
from lookupcache.hitrate.deployment import Deployment, Survey
from lookupcache.hitrate.keys import Requests, key_columns, not_a_key, refuse_backwards
from lookupcache.hitrate.reuse import Numbers
from lookupcache.hitrate.shards import SampledKeys
from lookupcache.versions import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROWS_LOOKED_AT = 200_000
_RESULT = "part INT, survey BINARY, rows BIGINT, nulls BIGINT, first BIGINT, last BIGINT, back BIGINT"


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


def collect_requests(df: DataFrame, keys: Sequence[str] | None, time: str | None) -> Requests:
    """Return all requests; each takes eight bytes, and eight for its time."""
    table = to_arrow(words_and_times(df, keys, time))
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
    return Requests(_words(words)[valid], times, int(np.count_nonzero(~valid)))


def _words(column: pa.Array) -> Hashes:
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64).view(np.uint64)


@dataclass(frozen=True)
class _Surveying:
    """The function for `mapInArrow`: batches of words in, one row with the partition's survey out."""

    deployments: tuple[Deployment, ...]
    hot: Hashes
    rate: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        surveys = [Survey(deployment, self.hot, self.rate) for deployment in self.deployments]
        rows = nulls = 0
        first = last = back = None
        for batch in batches:
            valid = batch.column(0).is_valid().to_numpy(zero_copy_only=False)
            words = _words(batch.column(0))[valid]
            times = None
            if batch.num_columns > 1:
                times = np.asarray(batch.column(1).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
            surveys[0].add(words, None if times is None else times[valid])
            for survey in surveys[1:]:
                survey.add(words)
            if times is not None and times.size:
                back = back or _fall(times, last)
                first, last = int(times[0]) if first is None else first, int(times[-1])
            rows, nulls = rows + len(words), nulls + batch.num_rows - len(words)
        part = context.partitionId() if context is not None else 0
        yield pa.RecordBatch.from_pylist(
            [{"part": part, "survey": pickle.dumps(surveys), "rows": rows, "nulls": nulls}
             | {"first": first, "last": last, "back": back}],
            schema=_SCHEMA,
        )  # fmt: skip


_SCHEMA = pa.schema(
    [("part", pa.int32()), ("survey", pa.binary())]
    + [(name, pa.int64()) for name in ("rows", "nulls", "first", "last", "back")]
)


def _fall(times: Numbers, last: int | None) -> int | None:
    """Return by how much times decrease, None if they do not."""
    steps = np.diff(times, prepend=times[:1] if last is None else last)
    return None if steps.min(initial=0) >= 0 else int(-steps.min())


@dataclass(frozen=True)
class Surveyed:
    """The result of the executors: a survey for each deployment, and totals of the requests."""

    surveys: list[Survey]
    requests: int
    nulls: int
    seconds: float | None


def survey_on_executors(
    df: DataFrame, keys: Sequence[str] | None, time: str | None, deployments: Sequence[Deployment], rate: float
) -> Surveyed:
    """Survey a DataFrame on the executors; only the sample, the part ``rate`` of the keys, is sent to the driver."""
    given = words_and_times(df, keys, time)
    requested = given.select("w").where("w IS NOT NULL")
    part = min(_ROWS_LOOKED_AT / max(requested.count(), 1), 1.0)
    some = to_arrow(requested.sample(fraction=part, seed=1)).column("w").combine_chunks()
    if not len(some):
        raise SchemaError("The DataFrame holds no keys.", hint="It has no row with a key.")
    surveying = _Surveying(tuple(deployments), SampledKeys.of(_words(some), rate).hot, rate)
    rows = sorted(to_arrow(given.mapInArrow(surveying, _RESULT)).to_pylist(), key=lambda row: row["part"])
    _refuse_backwards(rows, str(time))
    found: list[list[Survey]] = [pickle.loads(row["survey"]) for row in rows if row["rows"]]
    joined = [reduce(Survey.concat_with, surveys) for surveys in zip(*found, strict=True)]
    stamps = [stamp for row in rows for stamp in (row["first"], row["last"]) if stamp is not None]
    seconds = (stamps[-1] - stamps[0]) / 1_000_000 if stamps and stamps[-1] > stamps[0] else None
    return Surveyed(joined, sum(row["rows"] for row in rows), sum(row["nulls"] for row in rows), seconds)


def _refuse_backwards(rows: list[dict[str, Any]], time: str) -> None:
    last = None
    for row in rows:
        fell = row["back"]
        if fell is None and last is not None and row["first"] is not None and row["first"] < last:
            fell = last - row["first"]
        if fell is not None:
            raise SchemaError(
                f"Times run backwards: {time!r} falls by {fell / 1_000_000:g} s in partition {row['part']}.",
                hint=f"Sort the DataFrame by {time!r}, or leave the time column out.",
            )
        last = row["last"] if row["last"] is not None else last


def distinct_keys(df: DataFrame, keys: Sequence[str] | None, time: str | None) -> int:
    """Return the approximate number of keys."""
    from pyspark.sql import functions as F  # noqa: N812

    [row] = words_and_times(df, keys, time).agg(F.approx_count_distinct("w").alias("n")).collect()
    return int(row.n)
