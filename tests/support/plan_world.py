"""The statements and joins that are compiled in these tests, and the session that they run in.

``archive/<version>`` has their plans as that version compiled them: later code must run all of them. The newest plan
of a name is also what today's code must compile, byte for byte. With ``LOOKUPCACHE_UPDATE_GOLDEN`` set, a plan that
differs is written to the folder of the current version; folders of released versions are never changed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from option_values import VALUES
from sources import SCHEMA, rows_of
from sql_functions import split
from sql_world import make_world

import lookupcache
from lookupcache import LookupJoin, LookupTable

ARCHIVE = Path(__file__).parent.parent / "compiled" / "archive"

NOW = "FOR SYSTEM_TIME AS OF PROCTIME()"
FUNCTIONS = f"""STATEMENT SET BEGIN
  INSERT INTO people_sink (id, name) SELECT o.order_id, p.name FROM orders AS o
    JOIN people {NOW} AS p ON o.customer_id = p.id AND p.country = :country AND p.salary > o.total;
  INSERT INTO people_sink SELECT t.id, w.word FROM tags AS t, LATERAL TABLE(split(t.tag)) AS w(word, length)
    WHERE t.id > :least;
END"""
PARAMETERS = {"country": "NL", "least": 1}
IDENTIFIERS = f"""INSERT INTO people_sink SELECT o.order_id, c.name FROM orders AS o
    LEFT JOIN customers {NOW} AS c ON o.customer_id = c.id WHERE c.id IS NULL OR o.total > 2"""
# Options that contradict each other stand at different lookups; every option is at one of them.
_TOGETHER = (
    {"lookup.cache": "LRU", "lookup.cache.max-rows": "50", "lookup.cache.max-bytes": "1 mb",
     "lookup.cache.eviction": "s3-fifo", "lookup.cache.expire-after-write": "10 min",
     "lookup.cache.expire-after-access": "5 min", "lookup.cache.missing-key": "false", "lookup.cache.jitter": "0.1",
     "lookup.cache.refresh-after-write": "1 min", "lookup.cache.stale-if-error": "1 h", "lookup.async": "true",
     "lookup.async.capacity": "7", "lookup.async.output-mode": "allow-unordered", "lookup.timeout": "9 s",
     "lookup.batch.max-size": "3", "lookup.batch.max-delay": "1 ms", "lookup.rate-limit": "900",
     "lookup.max-retries": "2", "lookup.retry.on": "OSError", "lookup.retry.delay": "1 ms",
     "lookup.retry.max-delay": "2 ms", "lookup.retry.jitter": "0.2", "lookup.breaker.failures": "9",
     "lookup.breaker.delay": "1 s", "lookup.age-column": "age", "lookup.form": "worker", "lookup.fuse": "off",
     "lookup.full-scan": "true",
     "lookup.shuffle": "true", "lookup.metrics": "off"},
    {"lookup.cache": "LRU", "lookup.cache.scope": "host", "lookup.cache.path": "shared-cache",
     "lookup.as-of.period": "id, id"},
    {"lookup.cache": "LRU", "lookup.cache.missing-key.expire-after-write": "1 s", "lookup.on-error": "null",
     "lookup.error-column": "error", "lookup.retry.on-miss.max-attempts": "1", "lookup.retry.on-miss.delay": "1 ms",
     "lookup.retry.strategy": "fixed-delay"},
    {"lookup.cache": "ALL", "lookup.cache.reload-interval": "1 h", "lookup.cache.reload-mode": "fixed-rate",
     "lookup.cache.reload-allow-empty": "true"},
    {"lookup.cache": "ALL", "lookup.cache.reload-at": "03:00Z"},
    {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": "letters"},
    {"lookup.cache": "LRU", "lookup.cache.store": "redis://127.0.0.1:1", "lookup.cache.store.name": "people",
     "lookup.cache.version": "2", "lookup.cache.store.timeout": "50 ms", "lookup.cache.store.expire-after-write": "1 h",
     "lookup.rate-limit": "900", "lookup.rate-limit.scope": "cluster"},
)  # fmt: skip
_NAMED = {"lookup.as-of.version", *(key for options in _TOGETHER for key in options)}
OPTIONS = (
    *_TOGETHER,
    *({**needs, key: good[0][0]} for key, (needs, good, _) in VALUES.items() if key not in _NAMED),
)
"""Options that go together, and alone those that are not named above; `AS_OF` has the version."""


def inserts(statements):
    """Return statements as one set, each into a folder of its own: such a sink need not be there."""
    parts = (f"INSERT OVERWRITE DIRECTORY 'out/{name}' USING parquet\n{sql.rstrip(';')};" for name, sql in statements)
    return "STATEMENT SET BEGIN\n" + "\n".join(parts) + "\nEND"


def field_statements():
    """Return statements that together have all options, operators and fields."""
    yield from {"operators": OPERATORS, "never": NEVER, "renamed": RENAMED, "as_of": AS_OF}.items()
    for number, options in enumerate(OPTIONS):
        hint = ", ".join(f"'{name}'='{value}'" for name, value in options.items())
        yield (
            f"options_{number}",
            f"""SELECT o.order_id, p.name FROM orders AS o
            LEFT JOIN rows /*+ OPTIONS({hint}) */ {NOW} AS p ON o.customer_id = p.id""",
        )


def make_session(spark, folder):
    """Return a session in UTC with the tables of the SQL tests, more of them, and a sink."""
    session = make_world(spark, folder)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    session.register_table(LookupTable.from_function("people", SCHEMA, key=["id"], function=rows_of))
    session.register_table(LookupTable("rows", SCHEMA, {"connector": "sources:People"}))
    session.register_function("split", split)
    spark.sql("CREATE TABLE IF NOT EXISTS people_sink (id BIGINT, name STRING) USING parquet")
    return session


def compile_statements(session):
    """Return the text of each plan by its name."""
    plans = {
        "fields": (inserts(field_statements()), None, "SCHEMA"),
        "functions": (FUNCTIONS, PARAMETERS, "ALL"),
        "identifiers": (IDENTIFIERS, None, "IDENTIFIER"),
    }
    texts = {}
    for name, (sql, args, keeps) in plans.items():
        session.sql(f"SET 'table.plan.compile.catalog-objects' = '{keeps}'")
        texts[name] = session.compile_plan_sql(sql, args).as_json_string()
    session.sql("RESET 'table.plan.compile.catalog-objects'")
    return texts | {f"join_{form}": join(session.spark, form).compile().as_json_string() for form in FORMS}


FORMS = ("worker", "distinct", "broadcast")


OPERATORS = f"""SELECT o.order_id FROM orders AS o JOIN rows {NOW} AS p ON o.customer_id = p.id
    AND (p.salary + 1 > o.total - 2 OR p.salary * 2 >= o.total) AND (p.name IS NULL OR NOT p.name <=> 'q')
    AND (p.name LIKE 'a%' OR p.name LIKE '%b' OR p.name LIKE '%o%' OR p.country = 'BE')
    AND (p.id > 0 AND p.salary <= 9000 OR p.id < o.total)"""
NEVER = f"SELECT o.order_id FROM orders AS o LEFT JOIN rows {NOW} AS p ON o.customer_id = p.id AND p.country = NULL"
AS_OF = """SELECT o.order_id, p.name FROM orders AS o
    LEFT JOIN rows /*+ OPTIONS('lookup.as-of.version'='id') */ FOR SYSTEM_TIME AS OF o.order_id AS p
    ON o.customer_id = p.id AND p.salary > 9"""
RENAMED = "SELECT upper((SELECT p.name FROM rows AS p WHERE p.id = o.order_id AND p.salary > 9)) FROM orders AS o"


def left_side(spark):
    """Return the left side of the joins."""
    return spark.sql("SELECT id AS k, concat('x', id) AS x FROM range(5)")


def join(spark, form, left=None):
    """Return a join of the DataFrame API in a form."""
    cache = {"lookup.cache": "ALL"} if form == "broadcast" else {}
    options = {"connector": "sources:People", "lookup.form": form, **cache}
    table = LookupTable("p", SCHEMA, options)
    left = left_side(spark) if left is None else left
    condition = "k = p.id AND p.salary > 100 AND p.name < 'x' AND p.name <> x AND length(p.name) > k - 1"
    return LookupJoin(left, table, condition, "left" if form == "worker" else "inner", ["left.k", "p.name"])


def newest(name):
    """Return the newest archived plan of a name."""
    found = sorted(ARCHIVE.glob(f"*/{name}.json"), key=lambda path: [int(n) for n in path.parent.name.split(".")])
    return found[-1].read_text() if found else ""


def comparable(text):
    """Return a plan's text without the version of lookupcache, of which it does not depend."""
    return re.sub(r'^  "lookupcache": ".*",$', "", text, flags=re.M)


def update(name, text):
    """Write a plan to the archive of the current version, if that is requested and the newest is another."""
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN") and comparable(newest(name)) != comparable(text):
        folder = ARCHIVE / release()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(text)


def release():
    """Return the release that the current version leads to, such as 0.1.0 of 0.1.dev7."""
    numbers = [int(number) for number in lookupcache.__version__.split(".dev")[0].split(".")]
    return ".".join(map(str, [*numbers, 0, 0][:3]))
