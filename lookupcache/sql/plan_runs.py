"""Running a compiled plan: its INSERT statements in their order; those of streams go on from their checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.compiled import files
from lookupcache.compiled.document import Document
from lookupcache.compiled.nodes import InsertNode, Node, SparkQuery, inputs_of
from lookupcache.compiled.settings import CATALOG, SCHEMA
from lookupcache.errors import CompiledPlanError
from lookupcache.planner.catalyst_column import elements
from lookupcache.planner.clauses import tokens
from lookupcache.redaction import hide_userinfo
from lookupcache.report import is_classic
from lookupcache.schema import quote_path
from lookupcache.sql.compiled import Restored
from lookupcache.sql.failures import fact_of
from lookupcache.sql.stream_inserts import StreamInsert
from lookupcache.sql.token_reader import insert_target

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
STAMP = "lookupcache-plan.json"
"""A file next to Spark's in a checkpoint: which streams and which output it belongs to."""


def execute(restored: Restored) -> DataFrame:
    """Run the statements of a plan; nothing runs before all of it is known to fit.

    Returns a row for each stream that was started, or nothing.
    """
    with closing(restored):
        started = _run(restored)
    spark = restored.context.spark
    if not started:
        return spark.createDataFrame([], T.StructType([]))
    return spark.createDataFrame(started, "sink STRING, query STRING")


def _run(restored: Restored) -> list[tuple[str, str]]:
    """Run the statements of a plan; return the streams that were started."""
    check(restored)
    streams = _stream_inserts(restored)
    started = []
    for number, insert in restored.document.inserts:
        if (number, insert) in streams:
            started.append(_start(restored, insert))
        else:
            text, node = restored.text_of(insert)
            restored.spark_sql(number, text, node)
            _refresh(restored, insert)
    return started


def check(restored: Restored) -> None:
    """Raise CompiledPlanError where a plan does not fit its session, or its streams do not fit their checkpoints."""
    restored.check()
    for _, insert in _stream_inserts(restored):
        _refuse_stream(restored, insert)


def _stream_inserts(restored: Restored) -> list[tuple[int, InsertNode]]:
    return [(number, one) for number, one in restored.document.inserts if restored.df(one.input).isStreaming]


def _refresh(restored: Restored, insert: InsertNode) -> None:
    """Refresh the table in the user's session after a clone has written to it: sessions cache the files of tables."""
    spark = restored.context.spark
    if restored.spark is not spark and insert.sink is not None:
        spark.catalog.refreshTable(quote_path(_qualify_sink(restored, insert.sink)))


def _qualify_sink(restored: Restored, sink: tuple[str, ...]) -> tuple[str, ...]:
    """Return the name of a sink with its catalog and schema, which is the same in every session."""
    settings = restored.document.settings
    before = [str(settings[name]) for name in (CATALOG, SCHEMA) if settings.get(name)]
    return (*before[: max(0, 3 - len(sink))], *sink) if len(before) == 2 else sink


def _start(restored: Restored, insert: InsertNode) -> tuple[str, str]:
    """Start a stream under the name that the plan gives it, from which Spark derives where its checkpoint is."""
    found = list(tokens(insert.head))
    sink = insert_target(found)
    assert sink is not None  # A stream without a table is refused when the plan is compiled.
    stream = StreamInsert.of(sink, found)
    folder = checkpoint_of(restored, insert)
    if folder is not None:
        known = {name: part for name, part in stream_identity(restored, insert).items() if part is not None}
        _write_stamp(f"{folder}/{STAMP}", {**(_read_stamp(f"{folder}/{STAMP}") or {}), **known})
    try:
        query = stream.start(restored.df(insert.input), insert.query_name)
    except PySparkException as error:
        raise CompiledPlanError(
            f"Compiled plan {restored.document.source}: the stream into {stream.table} cannot be started: "
            f"{fact_of(error)}",
            hint=f"A stream needs a checkpoint: SET {CHECKPOINTS}=…" if folder is None else None,
        ) from None
    return stream.table, str(query.id)


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────


def checkpoint_of(restored: Restored, insert: InsertNode) -> str | None:
    """Return where Spark keeps the checkpoint of a stream, None where the session does not say."""
    base = restored.context.spark.conf.get(CHECKPOINTS, None)
    return None if base is None else f"{base.rstrip('/')}/{insert.query_name}"


def stream_identity(restored: Restored, insert: InsertNode) -> dict[str, Any]:
    """Return the parts of a stream that its checkpoint depends on: its sources, in order, and its output.

    Lookups have no state in the checkpoint, so they are no part of it, nor are texts over their results.
    """
    document, rows = restored.document, restored.df(insert.input)
    nodes = [node for node in _reads(document, insert.input) if isinstance(node, SparkQuery) and node.streaming]
    classic = is_classic(rows.sparkSession)
    streams = _streams(rows) if classic else []
    texts = [" ".join(node.text.split()) for node in nodes if not node.views]
    output = [[name, type_] for name, type_ in document.node(insert.input).output]
    return {
        "texts": [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts],
        "sources": [leaf.schema().toDDL() for leaf in streams] if classic else None,
        "places": [_place_of(leaf) for leaf in streams] if classic else None,
        "output": output,
        "sink": list(insert.sink or ()),
        "table": list(_qualify_sink(restored, insert.sink or ())),
    }


def _streams(rows: DataFrame) -> list[Any]:
    """Return Spark's plan nodes of the streams that a result is made of, in order; only classic Spark shows them."""
    return [leaf for leaf in elements(rows._jdf.queryExecution().analyzed().collectLeaves()) if leaf.isStreaming()]


_PLACES = ("path", "subscribe", "subscribePattern", "assign")
"""Options that name the source of a stream; others set how it is read, or where it begins."""


def _place_of(leaf: Any) -> str:
    """Return the source of a stream: its kind, with the folder or topics."""
    name = hide_userinfo(_FILE_SCHEME.sub("[", str(leaf.toString())))  # such as FileSource[/folder]
    if leaf.nodeName() != "StreamingRelationV2":
        return name
    options = leaf.extraOptions()
    values = [f"{key}={hide_userinfo(options.get(key))}" for key in _PLACES if options.containsKey(key)]
    return " ".join([name, *values])


_FILE_SCHEME = re.compile(r"\[file:/*(?=/)")


def _reads(document: Document, number: int) -> Iterator[Node]:
    """Yield a node and all that it reads, those first."""
    seen: dict[int, None] = {}

    def visit(one: int) -> None:
        for before in inputs_of(document.node(one)):
            visit(before)
        seen.setdefault(one)

    visit(number)
    yield from (document.node(one) for one in seen)


def _refuse_stream(restored: Restored, insert: InsertNode) -> None:
    """Refuse a stream without a sink table, and one whose checkpoint is of other sources or another output."""
    source = restored.document.source
    if insert.sink is None:
        raise CompiledPlanError(
            f"Compiled plan {source} writes a stream to files.", hint="Write INSERT INTO a table of Spark's."
        )
    folder = checkpoint_of(restored, insert)
    before = None if folder is None or not _has_begun(folder) else _read_stamp(f"{folder}/{STAMP}")
    now = stream_identity(restored, insert)
    changed = [] if before is None else [name for name in now if _is_other(before.get(name), now[name])]
    if changed:
        what = ", ".join(changed)
        raise CompiledPlanError(
            f"The checkpoint {folder!r} is of another stream than compiled plan {source}: other {what}.\n"
            f"  checkpoint: {json.dumps(before)}\n  plan: {json.dumps(now)}",
            hint=f"Run the plan that it belongs to, or set another {CHECKPOINTS}: the stream then starts again. To go "
            f"on nevertheless, delete {STAMP} in the checkpoint; Spark reads all files of another folder again.",
        )


def _has_begun(folder: str) -> bool:
    """Return whether a stream has read anything: one that could not be started has nothing to go on from."""
    try:
        return files.exists(f"{folder}/offsets")
    except CompiledPlanError:
        return False


def _is_other(before: Any, now: Any) -> bool:
    """Return whether a part of an identity differs; Spark Connect does not know all parts."""
    return before is not None and now is not None and before != now


def _read_stamp(path: str) -> Any:
    """Return the stream that a checkpoint names; None without one, or if only Spark can read its file system."""
    try:
        return json.loads(files.read_text(path)) if files.exists(path) else None
    except (CompiledPlanError, ValueError):
        return None


def _write_stamp(path: str, identity: dict[str, Any]) -> None:
    # Where only Spark can write, the stream is not compared.
    with contextlib.suppress(CompiledPlanError):
        files.write_text(path, json.dumps(identity), overwrite=True)
