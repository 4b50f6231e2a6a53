"""SQL, statement by statement.

A session takes statements as people write them for Flink and for Spark. `LookupSession.sql` returns the DataFrame that
a query is, or runs the statement; what has no lookup in it goes to Spark as it is. The examples share a shop:

>>> import os, sqlite3, tempfile
>>> from lookupcache import LookupSession
>>> shop = os.path.join(tempfile.mkdtemp(), "shop.db")
>>> with sqlite3.connect(shop) as db:
...     _ = db.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT, salary REAL)")
...     _ = db.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)",
...                        [(1, "ann", "AT", 900), (2, "bob", "BE", 1500), (3, "cem", "AT", 2500)])
>>> session = LookupSession(spark)
>>> _ = session.sql("CREATE OR REPLACE TEMPORARY VIEW guide_orders AS SELECT * FROM "
...                 "VALUES (10, 1, 'red hat'), (11, 2, 'blue'), (12, 9, 'red') AS t (order_id, customer_id, text)")
>>> def show(sql):
...     for row in session.sql(sql).collect():
...         print(*row)

**CREATE TABLE** makes a lookup table where it names a connector; without one it is Spark's. Flink's spellings are
understood: its types, its option names, PRIMARY KEY … NOT ENFORCED, computed columns, WATERMARK (which a lookup has no
use for), LIKE. Columns may be left out where the connector can tell them. Tables belong to the session, so that
TEMPORARY changes nothing.

>>> _ = session.sql(f'''
...     CREATE TEMPORARY TABLE customers (
...       id BIGINT, name STRING COMMENT 'first name', country STRING, salary DOUBLE,
...       label AS upper(name),
...       PRIMARY KEY (id) NOT ENFORCED
...     ) WITH ('connector' = 'sql', 'url' = 'sqlite:///{shop}', 'table' = 'customers', 'lookup.cache' = 'LRU')''')
>>> _ = session.sql("CREATE OR REPLACE TABLE fresh WITH ('lookup.cache' = 'NONE') LIKE customers")

**SHOW** and **DESCRIBE** list them beside Spark's, secrets starred; **DROP TABLE** forgets them.

>>> show("SHOW TABLES LIKE 'fr*'")
 fresh True
>>> show("DESCRIBE customers")
id bigint None
name string first name
country string None
salary double None
label string None
>>> show("SHOW CREATE TABLE fresh")  # doctest: +ELLIPSIS
CREATE TEMPORARY TABLE `fresh` (
...
>>> _ = session.sql("DROP TABLE fresh")

**A lookup join** says FOR SYSTEM_TIME AS OF, and means now: PROCTIME(), CURRENT_TIMESTAMP, or a left column named
proc_time or proctime, which need not exist. It is an inner, LEFT, LEFT SEMI or LEFT ANTI join with at least one
equality. ON, WHERE and SELECT are planned together: only columns that the query uses are fetched, and filters on the
table go to the source, or before the cache, where that keeps the meaning.

>>> show('''SELECT o.order_id, c.name, c.label FROM guide_orders AS o
...         JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id WHERE c.salary > 1000''')
11 bob BOB
>>> show('''SELECT c.country, count(*) FROM guide_orders AS o
...         LEFT JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer_id = c.id AND c.country = 'AT'
...         GROUP BY c.country ORDER BY c.country''')
None 2
AT 1
>>> show('''SELECT order_id FROM guide_orders AS o
...         LEFT ANTI JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id''')
12

The left side is any relation, batch or stream: joins, sub-queries, common table expressions, views, unions,
aggregations, and other lookups.

>>> show('''WITH named AS (
...           SELECT o.order_id, c.id + 1 AS next FROM guide_orders AS o
...           JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id)
...         SELECT n.order_id, d.name FROM named AS n
...         JOIN customers FOR SYSTEM_TIME AS OF n.proc_time AS d ON d.id = n.next ORDER BY n.order_id''')
10 bob
11 cem

Without FOR SYSTEM_TIME AS OF a lookup table is **read whole**, where its connector can.

>>> show("SELECT max(salary) FROM customers")
2500.0

**Hints** set options of one lookup: LOOKUP behind SELECT, by the table's name or alias, and OPTIONS behind a table.

>>> [plan] = session.plans('''
...     SELECT /*+ LOOKUP('table'='c', 'async'='true', 'output-mode'='allow_unordered', 'capacity'='100',
...       'timeout'='180s', 'retry-predicate'='lookup_miss', 'retry-strategy'='fixed_delay', 'fixed-delay'='10s',
...       'max-attempts'='3', 'shuffle'='true') */ c.name
...     FROM guide_orders AS o
...     JOIN customers /*+ OPTIONS('lookup.cache.max-rows'='50') */ FOR SYSTEM_TIME AS OF o.proc_time AS c
...       ON o.customer_id = c.id''')
>>> plan.config.output_mode, plan.config.on_miss_max_attempts, plan.config.shuffle, plan.config.max_rows
('allow-unordered', 3, True, 50)

**Table functions** are Python: sync, async, an async generator, or over a batch of calls. What they return is told by
their annotation, by ``returns``, or in WITH, beside the ``lookup.*`` options of the calls. They are joined with Flink's
LATERAL TABLE or Spark's LATERAL; the hint ASYNC_TABLE_FUNC sets how they are called.

>>> _ = session.sql("CREATE FUNCTION words AS 'builtins:str.split' WITH ('returns' = 'word STRING')")
>>> show('''SELECT order_id, w.word FROM guide_orders, LATERAL TABLE(words(text)) AS w(word)
...         WHERE w.word <> 'red' ORDER BY order_id''')
10 hat
11 blue
>>> async def longer(word: str, than: int) -> list[tuple[str, int]]:
...     return [(word, len(word))] if len(word) > than else []
>>> session.register_function("longer", longer)
>>> show('''SELECT /*+ ASYNC_TABLE_FUNC('function'='longer', 'output-mode'='ordered', 'capacity'='200',
...           'timeout'='180s') */ order_id, l.length
...         FROM guide_orders LEFT JOIN LATERAL TABLE(longer(text, 3)) AS l(word, length) ON TRUE ORDER BY order_id''')
10 7
11 4
12 None

**Scalar sub-queries** over a lookup table are lookups too. Without LIMIT 1 a second row is an error, as in SQL.

>>> show('''SELECT order_id, (SELECT name FROM customers WHERE id = o.customer_id LIMIT 1),
...           (SELECT label FROM customers AS c WHERE c.id = 3) FROM guide_orders AS o ORDER BY order_id''')
10 ann CEM
11 bob CEM
12 None CEM

**EXPLAIN** shows the lookup plans above Spark's plan.

>>> [[text]] = session.sql('''EXPLAIN ESTIMATED_COST SELECT c.name FROM guide_orders AS o
...     JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id AND c.country = 'AT'
... ''').collect()
>>> print(text)  # doctest: +ELLIPSIS
Lookup join: inner, table c, connector sql
<BLANKLINE>
Condition
  o.customer_id = c.id    field key
  c.country = 'AT'        constant key
...
== Spark SQL ==
SELECT lookup_1.name FROM {lookup_1} AS lookup_1
...

**INSERT INTO** writes a query's result to Spark's tables and files, and **EXECUTE STATEMENT SET** runs several: all are
planned before the first runs.

>>> folder = tempfile.mkdtemp()
>>> _ = session.sql(f'''EXECUTE STATEMENT SET BEGIN
...     INSERT OVERWRITE DIRECTORY '{folder}/known' USING parquet
...       SELECT o.order_id FROM guide_orders AS o
...       LEFT SEMI JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id;
...     INSERT OVERWRITE DIRECTORY '{folder}/unknown' USING parquet
...       SELECT o.order_id FROM guide_orders AS o
...       LEFT ANTI JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id;
...     END''')
>>> spark.read.parquet(f"{folder}/unknown").collect()
[Row(order_id=12)]

**Errors** name line and column, and mark the text.

>>> try:
...     session.sql('''SELECT o.order_id, c.nme
... FROM guide_orders AS o JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id''')
... except ValueError as error:
...     print(error)
Table 'c' has no column 'nme'.
<BLANKLINE>
Line 1, column 22:
  SELECT o.order_id, c.nme
                       ^^^
<BLANKLINE>
Hint: Did you mean 'name'?
>>> _ = session.sql("DROP VIEW guide_orders")
"""
