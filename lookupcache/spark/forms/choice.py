"""Which form a join takes, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from lookupcache.errors import OptionError
from lookupcache.plan import LookupPlan
from lookupcache.spark.forms.cardinality import estimate_distinct_keys
from lookupcache.spark.forms.join_context import JoinContext, unusable_time
from lookupcache.spark.forms.left_side import LeftSide, rough_bytes
from lookupcache.spark.planned import FormChoice

WIDE = 100
"""Bytes of a left row from which on `distinct` and `broadcast` pay, as Spark estimates: 20 a string, 8 a number."""

LARGE = 32 << 20
"""Bytes of a left side from which on the form `distinct` pays for the two stages that it adds."""

HUGE = 128 << 20
"""Bytes of a left side from which on `distinct` and `broadcast` pay for narrow rows too."""


PACKED = 2
"""How many bytes of looked-up rows, as Spark estimates them, are one byte to be broadcast: they are compressed."""

CACHED = 2
"""How many bytes of a cache a byte of looked-up rows takes, with their index."""

REPEATED = 2
"""Left rows per key from which on another form pays for many keys, as far as Spark can estimate the left rows."""


def choose(context: JoinContext) -> FormChoice:
    """Return the form that the options set, or for ``auto`` the cheapest one.

    ``worker`` for a stream, and wherever the left side should be read once only. ``broadcast`` where the full table is
    cached anyway (ALL), and the left side wide, or huge with several rows per key. ``distinct`` where that is wide and
    large, or huge, no row is handled on its own, and Spark can broadcast the rows of its keys, or the cache could not
    hold them. To find out about the keys, if all else holds, a Spark job looks at a few left rows. ``worker`` else.
    Raises OptionError for a form that the join cannot take.
    """
    plan, left = context.plan, context.left
    form = plan.config.form
    if plan.matches != "all":
        return FormChoice("worker", "the number of matches of a left row is checked where they are joined")
    if form == "worker":
        return FormChoice("worker", "as 'lookup.form' says")
    if left.isStreaming:
        return _stream_form(form)
    if form != "auto":
        return FormChoice(form, "as 'lookup.form' says", again=LeftSide.of(left).obstacle is None)
    if plan.config.cache == "ALL":
        return _full_table(context)
    reason = next(_reasons_against_distinct(context), None)
    if reason is not None:
        return FormChoice("worker", reason)
    return FormChoice(
        "distinct", "a wide, large left side that may be read twice: only its keys go through Python", True
    )


def as_compiled(form: str, left: DataFrame) -> FormChoice:
    """Return the form that a compiled plan says."""
    again = form != "worker" and LeftSide.of(left).obstacle is None
    return FormChoice(form, "as the compiled plan says", again=again)


def _stream_form(form: str) -> FormChoice:
    if form != "auto":
        raise OptionError(
            f"'lookup.form' = {form!r} reads its left side more than once, or the table again; a stream does not.",
            hint="Use 'worker' or 'auto' for a stream; inside foreachBatch each micro-batch is a batch.",
        )
    return FormChoice("worker", "the left side is a stream")


def _full_table(context: JoinContext) -> FormChoice:
    plan, left = context.plan, context.left
    if plan.latest is not None:
        return FormChoice("worker", _PICKED)
    if plan.config.on_error != "fail":
        return FormChoice("worker", "rows are marked, or become dead letters, where the table cannot be loaded")
    if (reason := _narrow(plan, left, "broadcast")) is not None:
        # Spark's join is hardly faster then, and a large table may not fit its driver.
        return FormChoice("worker", reason)
    obstacle = LeftSide.of(left).obstacle
    if obstacle is None and row_bytes(plan, left) < WIDE:
        keys = estimate_distinct_keys(context)
        if keys * REPEATED > _rough_rows(left):
            return FormChoice("worker", f"about {keys:,.0f} keys: the table may have as many rows as the left side")
    if obstacle is None or plan.config.metrics == "off":
        return FormChoice(
            "broadcast",
            "much on the left, and the full table is cached (ALL): Spark joins with it",
            again=obstacle is None,
        )
    return FormChoice("worker", f"'broadcast' reads the left side twice, to count its rows, and {obstacle}{_CURE}")


def _narrow(plan: LookupPlan, left: DataFrame, form: str) -> str | None:
    """Return that the left rows are narrow, unless the left side is huge."""
    width = row_bytes(plan, left)
    if width >= WIDE or rough_bytes(left) >= HUGE:
        return None
    return f"the left rows are narrow ({width} bytes of those the join reads; {form!r} pays from {WIDE} on)"


_CURE = "; persist it, and the other form is taken"


_PICKED = "of each left row's matches the latest version is picked where they are joined"


def _reasons_against_distinct(context: JoinContext) -> Iterator[str]:
    """Yield the reasons for `worker`, those that are cheap to find out first."""
    plan, left = context.plan, context.left
    if plan.config.on_error == "dead-letter":
        yield "dead letters are written where the left rows are"
    if plan.latest is not None:
        yield _PICKED
    if (plan.residual or plan.spark_residual) and plan.how != "inner":
        yield f"a residual of a {plan.how} join is evaluated for each left row"
    if (reason := _narrow(plan, left, "distinct")) is not None:
        yield reason
    if (name := unusable_time(left)) is not None:
        yield f"left column {name!r} has type TIME, which this session refuses in 'distinct'"
    side = LeftSide.of(left)
    if side.obstacle is not None:
        yield f"'distinct' reads the left side twice, and {side.obstacle}{_CURE}"
    if side.size < LARGE:
        yield f"the left side is small ({side.size:,} bytes; 'distinct' pays from {LARGE:,} on)"
    most = PACKED * _broadcast_bytes(left.sparkSession) // looked_up_bytes(context)
    if not most:
        yield "Spark would not broadcast what was looked up: it may broadcast nothing, or may not adapt plans"
    keys = estimate_distinct_keys(context)
    if keys > most and (keys <= _cached_keys(context) or keys * REPEATED > _rough_rows(left)):
        yield f"by a few of its rows the left side has more than {most:,} keys: their matches are not broadcast"


def _cached_keys(context: JoinContext) -> float:
    """Return about how many keys the cache can hold: of more, a worker would request each several times."""
    rows, size = context.plan.config.size_in()
    if context.plan.config.cache == "NONE":
        return 0
    return min(rows or math.inf, (size or math.inf) / CACHED / looked_up_bytes(context))


def _rough_rows(left: DataFrame) -> float:
    """Return about how many left rows there are, from Spark's estimate of their bytes: 8 a row besides its columns."""
    return rough_bytes(left) / (8 + sum(_default_size(field.dataType) for field in left.schema))


def _broadcast_bytes(spark: SparkSession) -> int:
    """Return how large a table may be that Spark broadcasts once it knows its size; 0 where it does not find out."""
    if spark.conf.get("spark.sql.adaptive.enabled") != "true":
        return 0
    text = spark.conf.get("spark.sql.adaptive.autoBroadcastJoinThreshold", None) or spark.conf.get(
        "spark.sql.autoBroadcastJoinThreshold"
    )
    if text is None or text.startswith("-"):
        return 0
    assert spark._jvm is not None
    return int(spark._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(text))


def looked_up_bytes(context: JoinContext) -> int:
    """Return how wide a looked-up row is, with its key, by Spark's default size of each type."""
    names = [*context.plan.key_columns, *context.plan.columns]
    return sum(_default_size(context.types[context.column("r", name)]) for name in names)


def row_bytes(plan: LookupPlan, left: DataFrame) -> int:
    """Return how wide a left row is, as far as the join reads it, by Spark's default size of each type."""
    read = set(plan.left_columns)
    return sum(_default_size(field.dataType) for field in left.schema if field.name in read)


def _default_size(type_: T.DataType) -> int:
    return _SIZES.get(type_.typeName(), 8)


_SIZES = {
    "boolean": 1, "byte": 1, "short": 2, "integer": 4, "float": 4, "date": 4,
    "string": 20, "varchar": 20, "char": 20, "binary": 100, "decimal": 16,
    "array": 40, "map": 60, "struct": 40, "variant": 2048,
}  # fmt: skip
