"""The number of bytes of a row in the cache, with all columns of a table and with those after calc.

Rows of requested keys are fetched through the same connector, calc and cache as in a join, and measured there.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from dataclasses import dataclass

import pyarrow as pa

from lookupcache.cache.keys import KeyBatch
from lookupcache.config import LookupConfig
from lookupcache.errors import PlanError
from lookupcache.hitrate.sources import as_type
from lookupcache.plan import LookupPlan
from lookupcache.table import LookupTable
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.source import Source


@dataclass(frozen=True)
class Width:
    """Bytes per key with its rows, keys and index counted: ``whole`` with every column, ``calc`` after calc.

    ``rows`` are the numbers of rows that some keys have with calc, ``whole_rows`` without.
    """

    whole: float
    calc: float
    rows: tuple[int, ...] = (1,)
    whole_rows: tuple[int, ...] = (1,)


def measure_width(plan: LookupPlan, table: LookupTable, keys: pa.Table) -> Width:
    """Fetch the rows of these keys and measure them; ``keys`` has a column for each of the plan's, by its left name."""
    every = tuple(name for name in plan.schema.names if name not in plan.key_columns)
    whole = dataclasses.replace(plan, pushed=(), calc=(), constants=(), columns=every)
    calc_bytes, rows = _measure_rows(plan, table, keys)
    whole_bytes, whole_rows = _measure_rows(whole, table, keys)
    return Width(whole_bytes, calc_bytes, rows, whole_rows)


def left_names(plan: LookupPlan) -> list[str]:
    """Return the left columns of a plan's keys; raises PlanError if one is an expression."""
    found = [re.fullmatch(r"l\.`(.+)`", key.sql) for key in plan.keys]
    if not found or not all(found):
        raise PlanError(
            "Rows can be weighed only where each key is a plain column.",
            hint="Join by plain columns.",
        )
    return [name[1].replace("``", "`") for name in found if name]


def _measure_rows(plan: LookupPlan, table: LookupTable, keys: pa.Table) -> tuple[float, tuple[int, ...]]:
    """Load keys into an unlimited cache; return its bytes per key, and the number of rows of each key."""
    # A copy: the thread that closes one source's connector must not close that of the next.
    connector = copy.copy(table.connector)
    source = Source(dataclasses.replace(plan, config=LookupConfig(cache="LRU", max_rows=2**40)), connector)
    lookup = lookup_of(source)
    names, types = left_names(plan), source.reader.key_types
    try:
        columns = [
            as_type(keys.column(name).combine_chunks(), type_, name) for name, type_ in zip(names, types, strict=True)
        ]
        wanted = lookup.find(KeyBatch.of(columns, types))
        counts = wanted.counts()
        lookup.close(wanted)
        return lookup.cache.nbytes / max(len(lookup.cache), 1), tuple(counts.tolist())
    finally:
        source.close()
