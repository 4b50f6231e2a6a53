"""Left rows whose lookup failed, written as Parquet files next to the result."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext

from lookupcache.error_text import is_presentable, without_controls
from lookupcache.errors import LookupCacheError, text_of
from lookupcache.plan import LETTER_COLUMNS
from lookupcache.redaction import hidden, hide_address
from lookupcache.source_options import path_from, working_directory

T = TypeVar("T")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_MOST_BYTES = 64 << 20
_WRITE_ERRORS = (OSError, pa.ArrowException, ImportError)


class DeadLetters:
    """The dead letters of one task: files in a directory, which are not visible to readers until the task succeeds.

    ``path`` is a directory, local or a URI of a file system that Arrow supports (``s3://``, ``gs://``,
    ``abfss://``, ``hdfs://``, ``file:``). It is created if it is missing. ``names`` are the names of the left
    columns, the first ones of the batches; by default those of the batches. A file contains them and
    ``lookup_table``, ``lookup_error`` (a struct of code and message) and ``lookup_failed_at``. Columns of types
    that Parquet does not have, such as intervals, are written as text.

    Files are named ``part-<stage>-<partition>-<attempt>-<uuid>.parquet``; until the task ends, the name starts with
    ``_``, which Spark and Arrow ignore. A task that fails or is stopped leaves no files, and one that is retried writes
    its rows again: at least once. Raises LookupCacheError if the file system fails.

    >>> import tempfile, pyarrow.dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     letters = DeadLetters(folder, "c")
    ...     letters.write(pa.record_batch({"id": [7]}), pa.array([{"code": "LOOKUP_FAILED", "message": "down"}]))
    ...     letters.close(complete=True)
    ...     pyarrow.dataset.dataset(folder).to_table(columns=["id", "lookup_table", "lookup_error"]).to_pylist()
    [{'id': 7, 'lookup_table': 'c', 'lookup_error': {'code': 'LOOKUP_FAILED', 'message': 'down'}}]
    """

    def __init__(self, path: str, table: str, names: Sequence[str] | None = None) -> None:
        self.path = absolute_path(path)
        self.table = table
        self.names = names
        self._files: list[_LetterFile] = []

    def write(self, rows: pa.RecordBatch, errors: pa.StructArray) -> None:
        if rows.num_rows:
            if self.names is not None:
                rows = rows.select(list(range(len(self.names))))
            letters = self._letters(rows, errors)
            self._try(lambda: self._write(letters))

    def close(self, complete: bool) -> None:
        """Make the files visible, or if the task has not completed, remove them."""
        files, self._files = self._files, []
        if complete:
            self._try(lambda: _publish(files))
        else:
            _remove(files)

    def _letters(self, rows: pa.RecordBatch, errors: pa.StructArray) -> pa.RecordBatch:
        count = rows.num_rows
        now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
        added = [pa.repeat(pa.scalar(self.table), count), errors, pa.repeat(now, count)]
        names = [*(self.names or rows.schema.names), *LETTER_COLUMNS]
        return pa.RecordBatch.from_arrays([*map(_storable, rows.columns), *added], names=names)

    def _write(self, letters: pa.RecordBatch) -> None:
        if not self._files or self._files[-1].size >= _MOST_BYTES:
            if self._files:
                self._files[-1].close()
            self._files.append(_open(self.path, letters.schema))
        self._files[-1].writer.write_batch(letters)

    def _try(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except _WRITE_ERRORS as error:
            hide = partial(hidden, secrets=())
            # A traceback shows the cause in full, so it must not contain a secret.
            raise LookupCacheError(
                f"Table {self.table!r}: dead letters cannot be written to {hide_address(self.path)!r}: "
                f"{type(error).__name__}: {without_controls(hide(text_of(error)))}",
                hint="Set 'lookup.dead-letter.path' to a directory that every worker may write to, as a local path or "
                "a URI of a file system that Arrow knows.",
            ) from (error if is_presentable(error, hide) else None)


def absolute_path(path: str) -> str:
    """Return a path or URI for Arrow: local paths must be absolute, and ``s3a`` is not supported.

    >>> absolute_path("s3a://bucket/letters"), absolute_path("letters") == os.path.abspath("letters")
    ('s3://bucket/letters', True)
    """
    if _SCHEME.match(path):
        return re.sub(r"^s3[an]://", "s3://", path)
    return os.path.normpath(path_from(working_directory(), path, "lookup.dead-letter.path"))


@dataclass(frozen=True)
class _LetterFile:
    """A file that is being written: in the directory, under its final name with ``_`` before it."""

    system: fs.FileSystem
    folder: str
    name: str
    stream: pa.NativeFile
    writer: pq.ParquetWriter

    @property
    def size(self) -> int:
        return self.stream.tell()

    @property
    def hidden_path(self) -> str:
        return f"{self.folder}/_{self.name}"

    def close(self) -> None:
        self.writer.close()
        self.stream.close()


def _open(path: str, schema: pa.Schema) -> _LetterFile:
    system, folder = fs.FileSystem.from_uri(path)
    system.create_dir(folder, recursive=True)
    name = f"part-{_task()}-{uuid.uuid4().hex}.parquet"
    stream = system.open_output_stream(f"{folder}/_{name}")
    return _LetterFile(system, folder, name, stream, pq.ParquetWriter(stream, schema))


def _task() -> str:
    context = TaskContext.get()
    position = (context.stageId(), context.partitionId(), context.attemptNumber()) if context else (0, 0, 0)
    return "-".join(map(str, position))


def _publish(files: Sequence[_LetterFile]) -> None:
    for file in files:
        file.close()
    for file in files:
        file.system.move(file.hidden_path, f"{file.folder}/{file.name}")


def _remove(files: Sequence[_LetterFile]) -> None:
    """Remove files if possible: readers ignore what is left, and the task's own error matters more."""
    for file in files:
        with contextlib.suppress(*_WRITE_ERRORS):
            file.close()
        with contextlib.suppress(*_WRITE_ERRORS):
            file.system.delete_file(file.hidden_path)


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────


def _storable(column: pa.Array) -> pa.Array:
    """Return the column, or its values as text if Parquet has no type for them."""
    if _fits(column.type):
        return column
    return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())


def _fits(type_: pa.DataType) -> bool:
    """Return whether Spark reads the type back from Parquet; it would read a duration as a number."""
    if pa.types.is_duration(type_) or pa.types.is_interval(type_) or pa.types.is_null(type_):
        return False
    fields = [type_.field(number) for number in range(type_.num_fields)]
    return all(_fits(field.type) for field in fields) and not (pa.types.is_struct(type_) and not fields)
