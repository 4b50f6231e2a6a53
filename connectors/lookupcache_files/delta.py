"""Delta tables as datasets: columns by their logical names, without deleted rows, and partition values as in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from lookupcache.errors import SourceError
from lookupcache_files.partitions import Instants, instant

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ONLY_SCANNED = {"columnMapping", "deletionVectors"}
_MAPPING = "delta.columnMapping.mode"


def dataset_of(table: DeltaTable, columns: Sequence[str]) -> ds.Dataset:
    """Return these columns of a Delta table as a dataset; a name in another case is that column too.

    deltalake's dataset reads files by the logical names of columns, with deleted rows. Where that would be wrong, the
    table is scanned, without the statistics of row groups.
    """
    if not _is_only_scanned(table):
        return table.to_pyarrow_dataset()
    wanted, schema = {name.lower() for name in columns}, pa.schema(table.schema().to_arrow())
    # deltalake cannot scan no column at all.
    schema = pa.schema([one for one in schema if one.name.lower() in wanted] or schema)
    rows = pa.RecordBatchReader.from_stream(table.scan(columns=schema.names))
    # Its texts are views, which Arrow does not filter.
    return ds.dataset(rows.cast(schema))


def _is_only_scanned(table: DeltaTable) -> bool:
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        return True
    # Files may have deletion vectors that the protocol's version does not announce.
    return not _ONLY_SCANNED.isdisjoint(table.protocol().reader_features or ()) or _has_deleted_rows(table)


def _has_deleted_rows(table: DeltaTable) -> bool:
    return any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()))


def instants_of(table: DeltaTable, columns: Sequence[str], zone: str | None) -> dict[str, Instants]:
    """Return the instants of those partition columns that are TIMESTAMP, by name; raises SourceError.

    A text without a time zone is in that of Spark's session, as Spark reads it; deltalake takes it for UTC.
    """
    wanted = {name.lower() for name in columns}
    types = {one.name: str(getattr(one.type, "type", "")) for one in table.schema().fields}
    found = {}
    for name in table.metadata().partition_columns:
        if name.lower() in wanted and types[name] == "binary":
            raise SourceError(
                f"Partition column {name!r} of the Delta table is BINARY, whose text writers do not agree upon.",
                hint="Leave the column out of the query.",
            )
        if name.lower() in wanted and types[name] == "timestamp":
            found[name] = _instants(name, {str(row[name]) for row in table.partitions() if row[name]}, zone)
    return found


def _instants(name: str, texts: set[str], zone: str | None) -> Instants:
    by_read: dict[int, str] = {}
    for text in sorted(texts):
        other = by_read.setdefault(instant(text, "UTC"), text)
        if instant(other, zone) != instant(text, zone):
            raise SourceError(
                f"Partition column {name!r} of the Delta table has the values {other!r} and {text!r}. deltalake "
                f"does not tell them apart, but they are two instants in time zone {zone!r}.",
                hint="Write one of the two partitions again, with a time zone.",
            )
    return Instants.of({read: instant(text, zone) for read, text in by_read.items()})
