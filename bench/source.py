"""A generated customer table of any size, as a lookup source and as Spark SQL, with the same rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import Connector, LookupRequest

SCHEMA = "id BIGINT, code STRING, name STRING, country STRING, salary DOUBLE, age INT"
PAYLOAD = ("name", "country", "salary", "age")

# The same columns in Spark SQL, for the row with number `n`.
SQL: Mapping[str, str] = {
    "id": "n * 7 + 13",
    "code": "concat('N', lpad(cast(n AS STRING), 8, '0'))",
    "name": "concat('name ', cast(n % 1000 AS STRING))",
    "country": "concat('c', lpad(cast(n % 50 AS STRING), 2, '0'))",
    "salary": "n * 0.5D",
    "age": "CAST(n % 80 AS INT)",
}


def rows(numbers: np.ndarray, columns: tuple[str, ...]) -> pa.Table:  # type: ignore[type-arg]
    """Return the requested columns of the rows with these numbers."""
    digits = pc.cast(pa.array(numbers), pa.string())
    short = pc.utf8_lpad(pc.cast(pa.array(numbers % 50), pa.string()), 2, "0")
    generators = {
        "id": lambda: pa.array(numbers * 7 + 13),
        "code": lambda: pc.binary_join_element_wise("N", pc.utf8_lpad(digits, 8, "0"), ""),
        "name": lambda: pc.binary_join_element_wise("name ", pc.cast(pa.array(numbers % 1000), pa.string()), ""),
        "country": lambda: pc.binary_join_element_wise("c", short, ""),
        "salary": lambda: pa.array(numbers * 0.5),
        "age": lambda: pa.array((numbers % 80).astype(np.int32)),
    }
    return pa.table({name: generators[name]() for name in columns})


@dataclass(frozen=True)
class Call:
    """A call to the source: when it began, by `time.monotonic`, and how many keys it was for."""

    began: float
    keys: int


def calls_in(log: Path) -> list[Call]:
    """Return the calls that `Customers` has noted in a file, in the order of their ends."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [Call(float(began), int(keys)) for began, keys in map(str.split, lines)]


class Customers(Connector):
    """The table as a connector."""

    options: Mapping[str, str] = {
        "keys": "number of keys",
        "rows": "rows per key",
        "log": "file that gets a line for each call",
        "seconds": "how long a call takes",
    }
    required = ("keys",)

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return the rows of the keys that exist."""
        self._note(keys.num_rows)
        if "id" in request.key_columns:
            numbers = (keys.column("id").to_numpy() - 13) // 7
        else:
            numbers = pc.cast(pc.utf8_slice_codeunits(keys.column("code"), 1), pa.int64()).to_numpy()
        return self._rows(numbers[(numbers >= 0) & (numbers < int(self.settings["keys"]))], request)

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        count = int(self.settings["keys"])
        self._note(count)
        for start in range(0, count, _SCANNED):
            yield from self._rows(np.arange(start, min(start + _SCANNED, count)), request).to_batches()

    def _note(self, keys: int) -> None:
        began = time.monotonic()
        time.sleep(float(self.settings.get("seconds", "0")))
        if "log" in self.settings:
            # One write to the end of a file: the lines of several processes do not mix.
            with open(self.settings["log"], "ab", buffering=0) as log:
                log.write(b"%f %d\n" % (began, keys))

    def _rows(self, numbers: np.ndarray, request: LookupRequest) -> pa.Table:  # type: ignore[type-arg]
        return rows(np.repeat(numbers, int(self.settings.get("rows", "1"))), request.fields)


_SCANNED = 1_000_000
