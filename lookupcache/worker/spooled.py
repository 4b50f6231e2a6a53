"""Left rows whose matches Spark tests one by one, by a Python function: they wait in a file of the task.

rows with lists ─► SpoolTask ─► pairs of left row and match ─► Spark: a condition ─► RegroupTask ─► rows, shorter lists
                       └──────────► file: the rows ─────────────────────────────────────┘

Spark calls no Python function for the items of a list, and calls it for each row that it evaluates. So only pairs may
pass it: for a left row without a match, Spark's own join would not call it either.

All of it runs in one task, without a shuffle. A batch is in the file before its pairs are yielded. So once an answer
has arrived, its batch can be read, and all batches before it; at the end of the answers, all batches can.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import from_numpy, to_numpy
from lookupcache.cache.keys import Mask
from lookupcache.errors import LookupRuntimeError
from lookupcache.worker.host_scope import local_directories
from lookupcache.worker.runner import MATCHES, Numbers
from lookupcache.worker.task import send_errors


@dataclass(frozen=True)
class SpoolTask:
    """Called in the worker with left rows and their lists of matches; yields pairs: left columns, and the match.

    - ``name``: of the file, unique for each join; ``matches``: the position of the lists.
    - ``left``: the positions of the left columns that the condition reads.
    """

    name: str
    matches: int
    left: Sequence[int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._spool(batches))

    def _spool(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path = _file_of_task(self.name)
        try:
            with pa.OSFile(path, "wb") as file:
                yield from map(self._pairs, _written(batches, file))
        except BaseException:  # The task stops here, early or with an error.
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise

    def _pairs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        lists = batch.column(self.matches)
        owner = from_numpy(_owners(lists))
        columns = [*(batch.column(position).take(owner) for position in self.left), pc.list_flatten(lists)]
        return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])


def _written(batches: Iterable[pa.RecordBatch], file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """Yield batches, each once it is in the file; without a batch, the file stays empty."""
    writer: pa.RecordBatchStreamWriter | None = None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(file, batch.schema)
        writer.write_batch(batch)
        yield batch
    if writer is not None:
        writer.close()


@dataclass(frozen=True)
class RegroupTask:
    """Called in the worker with one boolean for each pair of a `SpoolTask`; yields its rows, with those matches only.

    Raises LookupRuntimeError where the file of the `SpoolTask` cannot be read.
    """

    name: str
    matches: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._rows(_Answers(batches)))

    def _rows(self, answers: _Answers) -> Iterator[pa.RecordBatch]:
        answers.wait()
        with _opened(_file_of_task(self.name)) as file:
            if not file.size():
                return
            reader = pa.ipc.open_stream(file)
            while (batch := next(reader, None)) is not None:
                yield self._filtered(batch, answers)
                answers.wait()

    def _filtered(self, batch: pa.RecordBatch, answers: _Answers) -> pa.RecordBatch:
        lists = batch.column(self.matches)
        owner = _owners(lists)
        passes = answers.take(len(owner))
        counts = np.bincount(owner[passes], minlength=len(lists))
        offsets = from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        kept = pa.ListArray.from_arrays(offsets, pc.list_flatten(lists).filter(from_numpy(passes)))
        return batch.set_column(self.matches, MATCHES, kept)


def _owners(lists: pa.Array) -> Numbers:
    """Return for each item of the lists the position of its list."""
    return np.repeat(np.arange(len(lists)), to_numpy(pc.list_value_length(lists).fill_null(0)))


class _Answers:
    """The answers of a partition, one after the other."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._parts = (to_numpy(batch.column(0)) for batch in batches if batch.num_rows)
        self._ahead: Mask = np.zeros(0, dtype=np.bool_)

    def wait(self) -> None:
        """Wait for the next answer, or for their end."""
        if not len(self._ahead):
            self._ahead = next(self._parts, self._ahead)

    def take(self, number: int) -> Mask:
        """Return the next answers."""
        found = [self._ahead[:0]]
        while number:
            self.wait()
            found.append(self._ahead[:number])
            self._ahead = self._ahead[number:]
            number -= len(found[-1])
        return np.concatenate(found)


def _opened(path: str) -> pa.NativeFile:
    """Open a file and delete its name, so that nothing is left if the task ends here."""
    try:
        file = pa.OSFile(path, "rb")
    except OSError as error:
        raise LookupRuntimeError(
            f"The rows that a lookup join has written to {path!r} cannot be read: {error}.",
            hint="All Python workers of a task must see the same local directories of Spark; or write the condition "
            "without a Python function.",
        ) from error
    os.unlink(path)
    return file


def _file_of_task(name: str) -> str:
    """Return the path of a file of this attempt of the task, where Spark deletes what is left."""
    from pyspark import TaskContext  # In a worker it is loaded anyway.

    context = TaskContext.get()
    folder = next(iter(local_directories()), tempfile.gettempdir())
    return os.path.join(folder, f"lookupcache-{name}-{context.taskAttemptId() if context else 0}")
