"""Guide to the supported SQL, statement by statement.

A session accepts statements in the syntax of Flink and of Spark. `LookupSession.sql` returns a query as a DataFrame,
and executes any other statement; statements without a lookup are passed to Spark unchanged. The examples share a
database:

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

**CREATE TABLE** creates a lookup table if it names a connector; otherwise the statement is passed to Spark. Flink's
syntax is supported: its types, its option names, PRIMARY KEY … NOT ENFORCED, computed columns, WATERMARK (which is
ignored), LIKE. Columns can be omitted if the connector can infer them. Tables belong to the session, so TEMPORARY has
no effect.

>>> _ = session.sql(f'''
...     CREATE TEMPORARY TABLE customers (
...       id BIGINT, name STRING COMMENT 'first name', country STRING, salary DOUBLE,
...       label AS upper(name),
...       PRIMARY KEY (id) NOT ENFORCED
...     ) WITH ('connector' = 'sql', 'url' = 'sqlite:///{shop}', 'table' = 'customers', 'lookup.cache' = 'LRU')''')
>>> _ = session.sql("CREATE OR REPLACE TABLE fresh WITH ('lookup.cache' = 'NONE') LIKE customers")

**SHOW** and **DESCRIBE** list them together with Spark's tables, with secrets masked; **DROP TABLE** removes them.

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

**A lookup join** is written with FOR SYSTEM_TIME AS OF the current time: PROCTIME(), CURRENT_TIMESTAMP, or a left
column named proc_time or proctime, which need not exist. It is an inner, LEFT, LEFT SEMI or LEFT ANTI join with at
least one equality. ON, WHERE and SELECT are planned together: only columns that the query uses are fetched, and filters
on the table are applied by the source, or before the cache, if that does not change the result.
With another time of the left side, a table that declares PERIOD FOR SYSTEM_TIME (from, until), or its version by
``lookup.as-of.version``, is joined with the rows that were valid then.

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

The left side can be any relation, batch or stream: joins, sub-queries, common table expressions, views, unions,
aggregations, and other lookups.

>>> show('''WITH named AS (
...           SELECT o.order_id, c.id + 1 AS next FROM guide_orders AS o
...           JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id)
...         SELECT n.order_id, d.name FROM named AS n
...         JOIN customers FOR SYSTEM_TIME AS OF n.proc_time AS d ON d.id = n.next ORDER BY n.order_id''')
10 bob
11 cem

Every name means what it means in Spark: Spark resolves the statement, in which a lookup table is a relation like any
other. What Spark rejects is an error, with Spark's message. Sub-queries, session variables and **parameters** are
supported in ON and WHERE; a sub-query in ON that reads the lookup table itself only in an inner join.

>>> session.sql('''SELECT o.order_id, to_json(struct(c.id, c.name)) AS c FROM guide_orders AS o
...     JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer_id = c.id AND c.country = :country''',
...     args={"country": "AT"}).collect()
[Row(order_id=10, c='{"id":1,"name":"ann"}')]

Without FOR SYSTEM_TIME AS OF, the **full table** is read, if its connector can scan. With the option
``lookup.full-scan`` it is also read where a join with FOR SYSTEM_TIME AS OF cannot be a lookup; EXPLAIN and the log say
so. Without the option such a join is an error.

>>> show("SELECT max(salary) FROM customers")
2500.0
>>> show('''SELECT o.order_id, c.name FROM guide_orders AS o
...         FULL JOIN customers /*+ OPTIONS('lookup.full-scan'='true') */ FOR SYSTEM_TIME AS OF o.proc_time AS c
...           ON o.customer_id = c.id AND c.salary > 1000 ORDER BY o.order_id, c.name''')
None ann
None cem
10 None
11 bob
12 None

**Hints** set options of one lookup: LOOKUP after SELECT, with the table's name or alias, and OPTIONS after a table.

>>> [plan] = session.plans('''
...     SELECT /*+ LOOKUP('table'='c', 'async'='true', 'output-mode'='allow_unordered', 'capacity'='100',
...       'timeout'='180s', 'retry-predicate'='lookup_miss', 'retry-strategy'='fixed_delay', 'fixed-delay'='10s',
...       'max-attempts'='3', 'shuffle'='true') */ c.name
...     FROM guide_orders AS o
...     JOIN customers /*+ OPTIONS('lookup.cache.max-rows'='50') */ FOR SYSTEM_TIME AS OF o.proc_time AS c
...       ON o.customer_id = c.id''')
>>> plan.config.output_mode, plan.config.on_miss_max_attempts, plan.config.shuffle, plan.config.max_rows
('allow-unordered', 3, True, 50)

**Table functions** are Python functions: sync, async, an async generator, or for a batch of calls. Their result type is
their annotation, ``returns``, or in WITH, together with the ``lookup.*`` options of the calls. They are joined with
Flink's LATERAL TABLE or Spark's LATERAL; the hint ASYNC_TABLE_FUNC sets how they are called.

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

**Scalar sub-queries** over a lookup table are lookups too. Without LIMIT 1, a second row is an error, as in SQL.

>>> show('''SELECT order_id, (SELECT name FROM customers WHERE id = o.customer_id LIMIT 1),
...           (SELECT label FROM customers AS c WHERE c.id = 3) FROM guide_orders AS o ORDER BY order_id''')
10 ann CEM
11 bob CEM
12 None CEM

One that aggregates gets all rows that match; without any, its count is 0.

>>> show('''SELECT order_id, (SELECT count(*) FROM customers AS c WHERE c.id = o.customer_id AND c.salary < 1000)
...         FROM guide_orders AS o ORDER BY order_id''')
10 1
11 0
12 0

**EXPLAIN** shows the lookup plans before Spark's plan.

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
SELECT c.name FROM (SELECT struct(*) AS lookup_1 FROM {lookup_1}) AS lookup_1
  JOIN LATERAL (SELECT lookup_1.lookup_1.`name` AS `name`) AS `c`
...

**INSERT INTO** writes a query's result to Spark's tables and files, and **EXECUTE STATEMENT SET** executes several
statements: all are planned before the first is executed.

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

**CREATE TEMPORARY VIEW** and **CACHE TABLE … AS** take a query with lookups too; MERGE, UPDATE, DELETE and SET VARIABLE
read such a view. Queries can also be written as ``FROM t``, ``FROM t SELECT …``, ``TABLE t``, ``WITH … INSERT``, Hive's
``FROM … INSERT … INSERT …``, and with pipes (``|>``).

>>> show('''FROM guide_orders AS o
...         |> JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer_id = c.id
...         |> WHERE c.salary > 1000 |> SELECT o.order_id, c.name''')
11 bob

**Not supported** as lookups, but with ``lookup.full-scan`` as a join with the full table: RIGHT and FULL JOIN, the
recursive part of a recursive query, a PIVOT of joined lookups, names for the columns of a lookup table (``AS c (a,
b)``) and TABLESAMPLE, joins in parentheses with an alias, ORDER BY in a correlated scalar sub-query, and in ON of
LEFT, SEMI and ANTI joins a sub-query that reads the lookup table. A lookup needs an equality as its key: ``c.id IN (1,
2)``, ``o.id <=> c.id``, ``struct(o.id) = struct(c.id)`` and a text for a column of another type, ``c.id = '1'``, are
none. Or use a sub-query or a temporary view.

**Not supported** with lookups at all: scripts (BEGIN … END) and EXECUTE IMMEDIATE, whose statements can be run from
Python, a join behind a pipe if the left side has several relations with merged columns and pipes other than joins,
RIGHT and FULL JOIN with USING in the same SELECT as a lookup, and statements that change a Spark table, such as
TRUNCATE or ALTER, for a lookup table.

**COMPILE PLAN** writes an INSERT or a statement set as it was planned, as JSON, which **EXECUTE PLAN** runs later
without planning it again; **EXPLAIN PLAN** shows it. docs/compiled-plans.md says what may change in between.

>>> plan = os.path.join(os.path.dirname(shop), "plan.json")
>>> out = os.path.join(os.path.dirname(shop), "out")
>>> _ = session.sql(f'''
...     COMPILE AND EXECUTE PLAN '{plan}' FOR INSERT OVERWRITE DIRECTORY '{out}' USING parquet
...     SELECT o.order_id, c.name FROM guide_orders AS o
...     JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer_id = c.id''')
>>> show(f"SELECT * FROM parquet.`{out}` ORDER BY order_id")
10 ann
11 bob
>>> show(f"EXPLAIN PLAN '{plan}'")  # doctest: +ELLIPSIS
Plan ...
2  lookup-join_1: inner lookup of customers AS c by id = CAST(l.`customer_id` AS BIGINT); caches name; form worker
...
It would run in this session.
<BLANKLINE>

**Errors** contain line and column, and mark the text.

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
