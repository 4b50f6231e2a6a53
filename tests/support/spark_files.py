"""The files of statements with which Spark tests itself, run with lookup tables in place of their tables and views.

A folder of them is ``sql/core/src/test/resources/sql-tests/inputs`` in Spark's sources; they are no part of this
project. Each relation that a file makes, and whose types a lookup table can have, becomes a lookup table of the same
name and rows, which may also be read completely; every query is then compared with Spark's own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from drawn_world import NULLS, SMALL, result_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from sources import options_of
from sql_world import read_once

from lookupcache import LookupCacheError, LookupSession, LookupTable

FILES = (
    "anti-join.sql", "column-resolution-*.sql", "cross-join.sql", "cte.sql", "cte-nested.sql",
    "cte-recursion.sql", "cte-with-*.sql", "except*.sql", "group-by*.sql", "having*.sql", "inner-join.sql",
    "intersect-all.sql", "join-*.sql", "natural-join.sql", "order-by-*.sql", "outer-join.sql", "pivot.sql",
    "postgreSQL/join.sql", "postgreSQL/select_having.sql", "subquery/**/*.sql", "table-aliases.sql",
    "union.sql", "unpivot.sql", "using-join.sql", "sql-session-variables.sql",
    "alias-resolution-edge-cases.sql", "extract-value-*.sql", "generators-*.sql", "charvarchar*.sql",
)  # fmt: skip
QUERY = re.compile(r"\s*(?:select|with|from|table|values|\()", re.IGNORECASE)
CHANGE = re.compile(r"\binsert\s+(?:into|overwrite)\b", re.IGNORECASE)
DEFINITION = re.compile(r"\s*(?:create|insert|drop|alter|cache|replace)\b", re.IGNORECASE)
CATALOG = re.compile(r"spark_catalog\.\w+\.")
RANDOM = re.compile(r"\b(?:u?uid|rand\w*|shuffle|monotonically_increasing_id|spark_partition_id)\s*\(", re.IGNORECASE)


def files(folder: Path) -> list[Path]:
    """Return the files that are about joins, sub-queries and names."""
    return sorted({path for pattern in FILES for path in folder.glob(pattern)})


def statements(text: str) -> list[str]:
    """Return the statements of a file, as Spark's own reader splits it: at the semicolons outside of comments."""
    code = "\n".join(line for line in text.splitlines() if not line.strip().startswith("--"))
    return [part.replace("\\;", ";").strip() for part in re.split(r"(?<!\\);", code) if part.strip()]


def settings(text: str) -> dict[str, str]:
    """Return the settings that a file asks for."""
    return dict(re.findall(r"^--SET\s+([\w.]+)\s*=\s*(\S+)\s*$", text, re.MULTILINE))


@dataclass
class Found:
    """What became of the queries: how many were the same, with lookups among them, refused by whom, or different."""

    counts: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the counts as a line of the nightly report."""
        kinds = ", ".join(f"{count} {reason!r}" for reason, count in self.refused.most_common(12))
        return (
            f"{sum(self.counts.values())} statements of Spark's own files: {dict(self.counts)}; "
            f"most often refused: {kinds or 'none'}"
        )


@dataclass
class World:
    """Two sessions of Spark's: one with the relations of a file, one with lookup tables in their place."""

    theirs: object
    session: LookupSession
    place: str
    """The database of the first."""
    known: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, spark, name: str, wanted: dict[str, str]) -> World:
        """Return the world of a file, with a database for its tables."""
        theirs, ours = spark.newSession(), spark.newSession()
        for number, one in enumerate((theirs, ours)):
            database = f"{re.sub(r'[^a-z0-9]', '_', name.lower())}_{number}"
            one.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")
            one.sql(f"CREATE DATABASE {database}")
            one.sql(f"USE {database}")
            for key, value in (SMALL | wanted).items():
                one.conf.set(key, value)
        return cls(theirs, LookupSession(ours), theirs.catalog.currentDatabase())

    def prepare(self, text: str) -> None:
        """Run a statement that is no query, and bring the lookup tables up to date."""
        if not ran(self.theirs, text):
            return
        relations = relations_of(self.theirs)
        for name in (self.known.keys() - relations) & set(self.session._context.catalog.tables):
            self.session.sql(f"DROP TABLE `{name}`")
        if not (DEFINITION.match(text) or CHANGE.search(text)):
            ran(self.session.spark, text)
            return
        copied = [name for name in relations if name in text.lower() or name not in self.known]
        left = [name for name in copied if not self.look_up(name)]
        if (left or not copied) and not ran(self.session.spark, text):
            # It reads a relation that is a lookup table here: what it has made of it is read in the other database.
            for name in left:
                ran(self.session.spark, f"CREATE OR REPLACE TEMP VIEW `{name}` AS SELECT * FROM {self.place}.`{name}`")
        self.known = dict.fromkeys(relations)

    def look_up(self, name: str) -> bool:
        """Make a relation a lookup table; return whether it can be one."""
        try:
            df = self.theirs.table(name)
            rows = df.toArrow()
            # DESCRIBE tells of CHAR, which is STRING in the schema of what is read.
            lines = self.theirs.sql(f"DESCRIBE TABLE `{name}`").take(len(df.columns))
            ddl = ", ".join(f"`{line.col_name}` {line.data_type}" for line in lines)
            options = {"connector": "sources:Memory", "lookup.full-scan": "true", **options_of(rows)}
            self.session.register_table(LookupTable(name, ddl, options))
        except (LookupCacheError, PySparkException, Py4JJavaError, ValueError):
            return False
        return True


def relations_of(spark) -> set[str]:
    """Return the names of the tables and views, none where a file has dropped the schema that it is in."""
    try:
        return {row.tableName for row in spark.sql("SHOW TABLES").collect()}
    except PySparkException as error:
        if "SCHEMA_NOT_FOUND" not in str(error):
            raise
        return set()


def ran(spark, text: str) -> bool:
    """Run a statement; return whether Spark accepts it."""
    try:
        spark.sql(text)
    except (PySparkException, Py4JJavaError):
        return False
    return True


def compare(spark, path: Path, found: Found) -> None:
    """Compare the queries of a file."""
    text = path.read_text()
    world = World.of(spark, path.stem, settings(text))
    for statement in statements(text):
        if not QUERY.match(statement) or CHANGE.search(statement):
            world.prepare(statement)
        elif not RANDOM.search(statement):
            compare_query(world, path.stem, statement, found)


def result(session, text: str):
    """Return a DataFrame, or the text of the error; a few errors of Spark's have no class in Python."""
    try:
        return result_of(session, text, None)
    except Py4JJavaError as error:
        return str(error)


def compare_query(world: World, place: str, text: str, found: Found) -> None:
    """Compare one query: whether it is refused, its columns and types, and its rows in any order."""
    expected, ours = result(world.theirs, text), result(world.session, text)
    if isinstance(expected, str):
        word = "refused by both" if isinstance(ours, str) else "refused by Spark alone"
        found.counts[word] += 1
        if not isinstance(ours, str):
            found.different.append(f"{place}: {text}\nSpark refuses: {expected}")
        return
    if isinstance(ours, str):
        found.counts["refused by ours alone"] += 1
        found.refused[ours.splitlines()[0]] += 1
        return
    # Spark puts the database of a table, which a lookup table has none, into some names.
    types = [(CATALOG.sub("", name), type_) for name, type_ in expected.dtypes]
    if ours.dtypes != types:
        found.counts["different"] += 1
        found.different.append(f"{place}: {text}\n{ours.dtypes} in place of {types}")
        return
    left, right = rows(ours), rows(expected.toDF(*(name for name, _ in types)))
    found.counts["the same" if left == right else "different"] += 1
    if left != right:
        found.different.append(f"{place}: {text}\n{left} in place of {right}")


def rows(df) -> object:
    """Return the rows as JSON with their counts; for an error while they are read its class."""
    try:
        return Counter(row[0] for row in read_once(df.selectExpr(f"to_json(struct(*), {NULLS})")))
    except Exception as error:
        found = re.search(r"\[([A-Z_.]+)\]", str(error))
        return found[1] if found else type(error).__name__
