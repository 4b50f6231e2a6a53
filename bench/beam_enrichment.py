"""Apache Beam's Enrichment over PostgreSQL, for `bench.peers`: run by a Python that has Beam, psycopg and pyarrow.

    python bench/beam_enrichment.py LEFT.parquet postgresql://… COUNTS

Prints the seconds and the sums of the rows as JSON, and writes the number of keys of each request into a file: Beam
makes the requests in threads of their own, where its metrics count nothing. It imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import apache_beam as beam
import psycopg
from apache_beam.transforms.enrichment import Enrichment, EnrichmentSourceHandler


class People(EnrichmentSourceHandler[beam.Row, beam.Row]):
    """Looks up a batch of rows by a query for its keys."""

    def __init__(self, url: str, counts: str) -> None:
        self.url = url
        self.counts = counts

    def __enter__(self) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def __call__(self, rows: list[beam.Row], *_: Any, **__: Any) -> list[tuple[beam.Row, beam.Row]]:
        keys = list({row.id for row in rows})
        with open(self.counts, "a") as log:
            log.write(f"{len(keys)}\n")
        answer = self.connection.execute("SELECT id, name, age FROM t WHERE id = ANY(%s)", [keys], prepare=True)
        found = {key: beam.Row(name=name, age=age) for key, name, age in answer}
        missing = beam.Row(name=None, age=None)
        return [(row, found.get(row.id, missing)) for row in rows]

    def batch_elements_kwargs(self) -> dict[str, int]:
        """Return how many rows a call takes."""
        return {"min_batch_size": 1_000, "max_batch_size": 10_000}


def parts(row: beam.Row) -> tuple[int, int, int]:
    """Return what `bench.peers` adds up of a row."""
    age = -1 if row.age is None else row.age
    return 1, row.id % 1_009 * (age + 2), row.v % 1_009 * len(row.name or "")


def main(left: str, url: str, counts: str) -> None:
    """Run the pipeline and print its seconds and sums."""
    pipeline = beam.Pipeline()
    sums: beam.PCollection[tuple[int, int, int]] = (
        pipeline
        | beam.io.ReadFromParquet(left)
        | beam.Map(lambda row: beam.Row(id=row["id"], v=row["v"]))
        | Enrichment(People(url, counts), timeout=600)
        | beam.Map(parts)
        | beam.CombineGlobally(lambda rows: tuple(map(sum, zip(*rows, strict=True))) or (0, 0, 0))
    )
    _ = sums | beam.Map(lambda row: print("sums", json.dumps(row), flush=True))
    started = time.perf_counter()
    pipeline.run().wait_until_finish()
    print("seconds", time.perf_counter() - started)


if __name__ == "__main__":
    main(*sys.argv[1:])
