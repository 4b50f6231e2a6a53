"""Statements that were written to break the rewriting of SQL; ``NOW`` stands for the period of a lookup."""

from __future__ import annotations

from sql_statements import NOW as PERIOD

_STATEMENTS = (
    "SELECT id, (SELECT c.name FROM cust AS c WHERE c.id = cust_all.k LIMIT 1) AS name FROM cust_all",
    "FROM (SELECT id, k FROM o) AS z JOIN cust NOW AS c ON z.id = c.id SELECT z.k, c.name",
    "SELECT * FROM o JOIN LATERAL (SELECT max(c.k) AS m FROM cust AS c WHERE c.id = o.id) AS l",
    "SELECT d.*, m.*, d.s.* FROM o AS d JOIN many NOW AS m USING (name, k)",
    "SELECT to_json(struct(c.*)), m.*, o.* FROM o JOIN many NOW AS m USING (k) LEFT JOIN cust NOW AS c USING (id)",
    "SELECT x.*, label FROM o JOIN cust NOW AS k ON o.id = k.id NATURAL JOIN cust NOW AS x",
    "SELECT label FROM o LEFT JOIN cust NOW AS k ON o.id = k.id JOIN cust NOW AS x USING (label, k)",
    "SELECT * FROM o JOIN many NOW AS m USING (id) JOIN cust NOW AS c USING (id)",
    "SELECT * FROM o JOIN many NOW AS m USING (k, id) JOIN cust NOW AS c USING (id)",
    "SELECT * FROM o JOIN many NOW AS m USING (k, id)",
    "SELECT * FROM o LEFT SEMI JOIN many NOW AS m USING (k, id)",
    "SELECT * FROM o LEFT SEMI JOIN many NOW AS m USING (k) JOIN cust NOW AS c USING (id)",
    "SELECT * FROM o NATURAL JOIN many NOW AS m",
    "SELECT * FROM o NATURAL LEFT JOIN cust NOW AS m NATURAL LEFT JOIN many NOW AS n",
    "SELECT o.id, c.k FROM o JOIN cust NOW AS c ON (o.k = c.id AND c.k = 1) OR (o.v = 'b' AND o.k = c.id AND c.k > 0)",
    "SELECT o.id, d.label FROM o LEFT JOIN cust NOW AS d ON o.id = d.id AND d.k > 0 OR o.id = d.id AND o.v = 'z'",
    "SELECT o.id FROM o LEFT ANTI JOIN many NOW AS d ON (o.k = d.id AND d.k > o.id) OR (o.k = d.id AND d.name = 'a')",
    "SELECT o.id, c.k FROM o LEFT JOIN cust NOW AS c ON o.k = c.id AND c.k = 1 OR c.id == (O.k) AND o.v = 'b'",
    "SELECT o.id, c.name FROM o LEFT JOIN cust NOW AS c ON o.k = c.id WHERE c.id > 0 AND NULL",
    "SELECT a.* FROM (SELECT id, int(k) AS k FROM o) AS a LEFT SEMI JOIN t USING (k) JOIN cust NOW AS c ON a.id = c.id",
    "WITH o AS (SELECT id + 1 AS id, k FROM o), p AS (WITH o AS (SELECT * FROM o WHERE id > 2) SELECT o.id, c.label "
    "FROM o LEFT JOIN cust NOW AS c ON o.k = c.id) SELECT * FROM p",
    "WITH o AS (SELECT id + 10 AS id, k FROM o), p AS (SELECT id, k FROM o) SELECT * FROM (WITH o AS (SELECT * FROM t) "
    "SELECT o.id, p.id AS i, c.label FROM o JOIN p ON p.k = o.k LEFT JOIN cust NOW AS c ON o.k = c.id)",
    "WITH RECURSIVE cust AS (SELECT 1L AS id UNION ALL SELECT id + 2 FROM cust WHERE id < 8) SELECT cust.id, m.name "
    "FROM cust LEFT JOIN many NOW AS m ON m.id = cust.id",
    "WITH RECURSIVE a AS (SELECT o.id, cust.name FROM o JOIN cust NOW ON o.k = cust.id), cust AS (SELECT 1 AS id) "
    "SELECT * FROM a, cust",
    "SELECT o.id, ${spark.sql.shuffle.partitions} AS n, '${x}' FROM o JOIN cust NOW AS c ON o.k = c.id AND c.id <> "
    "${spark.sql.leafNodeDefaultParallelism} + 1 WHERE ${spark.sql.shuffle.partitions} = c.k",
    "SELECT o.id, (SELECT max(k) FROM cust WHERE cust.id > 1) AS m, (SELECT cust.k FROM cust WHERE id > 0 ORDER BY "
    "cust.id DESC LIMIT 1) AS l FROM o WHERE o.id > (SELECT count(*) FROM cust WHERE name = 'a')",
    "WITH w AS (SELECT id, k FROM cust) SELECT o.id, w.k FROM o JOIN w NOW ON o.k = w.id |> UNION ALL TABLE w",
    "WITH w AS (SELECT id, k FROM cust) SELECT o.id, w.k, (SELECT count(*) FROM IDENTIFIER('w')) AS n FROM o JOIN w "
    "NOW ON o.k = w.id",
    "TABLE cust |> WHERE cust.id > 1 |> SELECT cust.k, id",
    "FROM o NATURAL JOIN cust NOW AS c |> WHERE k > 0 AND name = 'a'",
    "SELECT interval + 1, interval FROM (SELECT id AS interval, k FROM o) AS q JOIN cust NOW AS c ON q.k = c.id AND "
    "interval + 1 > 2",
    "SELECT * FROM (SELECT o.v, c.k, o.id FROM o JOIN cust NOW AS c ON o.k = c.id) PIVOT (ceil(sum(k)) AS a, "
    "max(k) + 1 AS b FOR v IN ('a', 'b' AS z))",
    "SELECT * FROM (SELECT o.id, c.k, c.name FROM o JOIN cust NOW AS c ON o.id = c.id) PIVOT (max(k) "
    "AS m FOR name IN ('a' AS a, 'b' AS b))",
    "SELECT o.id, (SELECT upper(cust.name) FROM cust WHERE cust.id = o.k) AS u, count(*) OVER () AS n FROM o",
    "SELECT o.id FROM o JOIN cust NOW AS c ON c.id = 1.0",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.k = c.id WHERE c.name = 'A' COLLATE UTF8_LCASE",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.k = c.id WHERE CAST(c.name AS STRING COLLATE UTF8_LCASE) = 'A'",
    "SELECT o.id, c.k FROM o LEFT JOIN cust NOW AS c ON o.k = c.id AND collate(upper(o.v), 'UTF8_LCASE') = c.name",
    "SELECT o.id FROM o LEFT ANTI JOIN cust NOW AS c ON c.name = 'A' COLLATE UTF8_LCASE AND o.k = c.id",
    "SELECT o.id FROM o JOIN cust NOW AS c ON c.name = CAST('a' AS VARCHAR(5))",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.id = c.id WHERE o.id IN (FROM t |> SELECT id)",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.id = c.id WHERE EXISTS (FROM t |> WHERE t.id = o.id)",
    "SELECT * EXCEPT (c) FROM o JOIN cust NOW AS x USING (id) JOIN many NOW AS m USING (k)",
    "SELECT x.*, * FROM o JOIN cust NOW AS x USING (id)",
    "SELECT id, k FROM o LEFT JOIN cust NOW AS x USING (id, k) WHERE id > 1 ORDER BY id",
    "SELECT id, count(*) FROM o JOIN cust NOW AS x USING (id) GROUP BY id HAVING id > 0",
    "SELECT id FROM o NATURAL LEFT JOIN many NOW AS x",
    "SELECT session.var_n, var_n + o.id, o.k FROM o JOIN cust NOW AS c ON o.id = c.id AND c.id > var_n - 1",
    "SELECT session.k, o.k FROM o JOIN cust NOW AS c ON o.id = c.id AND c.id >= session.k",
    "SELECT text FROM o JOIN cust NOW AS c ON o.id = c.id AND c.c <> text",
    "SELECT * FROM o JOIN cust NOW AS x USING (id) JOIN t USING (id)",
    "SELECT id, x.id, t.id, t.* FROM o JOIN cust NOW AS x USING (id) LEFT JOIN t USING (id) WHERE id > 0 ORDER BY id",
    "SELECT * FROM o JOIN cust NOW AS x USING (id, k, name) LEFT JOIN t AS y USING (k, id) JOIN t AS z ON z.id = x.id",
    "SELECT * FROM o JOIN cust NOW AS x USING (id) LEFT SEMI JOIN t USING (id)",
    "SELECT *, m.id FROM o JOIN cust NOW AS x USING (id) JOIN t USING (ID) JOIN many NOW AS m USING (id) WHERE id < 3",
    "SELECT * EXCEPT (id) FROM o JOIN cust NOW AS x USING (id) CROSS JOIN (SELECT 1 AS one)",
    "SELECT *, t.c FROM o LEFT JOIN cust NOW AS x USING (id) RIGHT JOIN t ON t.id = o.id",
    "WITH t AS (SELECT 1 AS id, 2 AS z) SELECT * FROM o JOIN cust NOW AS x USING (id) JOIN t USING (id)",
    "SELECT struct(IDENTIFIER('o.id'), c.name, identifier /* c */ ('c.' || 'k')) AS s, IDENTIFIER('c.name') FROM o "
    "JOIN cust NOW AS c ON IDENTIFIER('o.id') = c.id WHERE IDENTIFIER('o.id') > 0 AND o.k < 9",
    "SELECT o.id FROM o JOIN /* 1 /* 2 /* 3 /* 4 */ 3 */ 2 */ AND 1 */ cust NOW AS c ON o.id = c.id",
    "SELECT o.id, c.k FROM o JOIN cust NOW AS c ON o.id = c.id AND EXISTS (SELECT 1 FROM (SELECT id AS i, k AS j FROM "
    "t) WHERE i >= length(label) OR j = c.k)",
    "SELECT y.id FROM (SELECT id, v FROM o) AS y JOIN cust NOW AS c ON y.id = c.id AND y.id IN (SELECT id FROM t AS c "
    "WHERE c.k > 0)",
    "SELECT y.id FROM (SELECT id, v FROM o) AS y JOIN cust NOW AS c ON y.id = c.id AND EXISTS (SELECT 1 FROM "
    "(SELECT 1 AS i) WHERE i < k)",
    "SELECT id FROM t WHERE id IN (SELECT d.id FROM o JOIN cust NOW AS d ON o.k = d.id AND o.id = t.id)",
    "SELECT q.id FROM (SELECT id, 9 AS var_n FROM t) AS q WHERE EXISTS (SELECT 1 FROM o JOIN cust NOW AS d ON o.k = "
    "d.id AND d.id + 3 < var_n)",
    "SELECT o.id FROM o JOIN cust NOW AS d ON o.k = d.id WHERE EXISTS (FROM t |> WHERE t.id = o.id AND t.name < label)",
    "SELECT lookup_x0_0, d.name FROM (SELECT id AS lookup_x0_0, k FROM o) AS o JOIN cust NOW AS d ON o.k = d.id AND "
    "lookup_x0_0 > (SELECT 0)",
    "SELECT list[0], array[0], q.list[0], array(d.k, q.k)[1], fetch, `true` FROM (SELECT array(id) AS "
    "list, array(7) AS array, k, id AS fetch, 2 AS `true` FROM o) AS q JOIN cust NOW AS d ON q.k = d.id "
    "AND list[0] > 0 WHERE q.array[0] = 7",
    "SELECT * FROM odd JOIN cust NOW AS c ON odd.k = c.id",
    "SELECT odd.*, * FROM odd LEFT JOIN cust NOW AS c ON odd.k = c.id JOIN many NOW AS m ON m.id = c.k",
    "SELECT *, c.name FROM odd LEFT JOIN cust NOW AS c ON odd.k = c.id AND c.id > var_n - 1",
    "SELECT o.id !< 2, d.k >>> 1, dateadd(day, d.k, DATE'2020-01-01') FROM o JOIN cust NOW AS d ON o.k = d.id AND "
    "d.k >>> 1 !> 5 AND datediff(MONTH, DATE'2020-01-01', DATE'2020-02-01') = d.k WHERE o.k << 1 > 0",
)
_UNREAD = (
    "SELECT window.start, c.name, count(*) AS n FROM o JOIN cust NOW AS c ON o.k = c.id GROUP BY "
    "window(timestamp_seconds(o.id), '1 hour'), c.name HAVING count(*) > 0",
    "WITH a AS (SELECT k, count(*) AS n FROM o GROUP BY window(timestamp_seconds(id), '1 day'), k) SELECT a.n, c.name "
    "FROM a JOIN cust NOW AS c ON a.k = c.id",
    "WITH RECURSIVE r (n) MAX RECURSION LEVEL 10 AS (SELECT 1L UNION ALL SELECT n + 1 FROM r WHERE n < 4), s AS "
    "(SELECT n FROM r) SELECT s.n, c.name FROM s LEFT JOIN cust NOW AS c ON s.n = c.id",
    "WITH a AS (SELECT id, k FROM o) SELECT a.id, d.name FROM a JOIN cust NOW AS d ON a.k = d.id WHERE a.id IN (SELECT "
    "max(a.id) FROM a GROUP BY window(timestamp_seconds(k), '1 day')) OR EXISTS (SELECT count(*) FROM t WHERE t.id = "
    "d.k GROUP BY window(timestamp_seconds(t.id), '1 day'))",
    "SELECT z.m, c.name FROM (SELECT max(t.id) AS m FROM t GROUP BY window(timestamp_seconds(k), '1 day')) AS z JOIN "
    "cust NOW AS c ON z.m = c.id",
)
"""Clauses that the parser cannot read, beside lookups."""
_SEMI_JOINS = (
    "SELECT a.* FROM (SELECT id, int(k) AS k FROM o) AS a LEFT SEMI JOIN many NOW AS m ON a.id = m.id LEFT SEMI JOIN "
    "(SELECT int(k) AS k FROM t) AS x USING (k) JOIN cust NOW AS c ON c.id = a.id",
    "SELECT a.*, m.*, * FROM (SELECT id, int(k) AS j FROM o) AS a LEFT JOIN many NOW AS m ON a.id = m.id LEFT ANTI JOIN"
    " (SELECT int(k) AS k FROM t) AS x USING (k) LEFT JOIN cust NOW AS c ON c.id = a.id",
    "SELECT *, o.* FROM o JOIN cust NOW AS c ON c.id = o.id LEFT SEMI JOIN (SELECT 'a' AS v, 'A' AS label) AS t USING "
    "(v, label) LEFT JOIN many NOW AS d ON d.id = o.id WHERE v > '' ORDER BY label",
    "SELECT *, o.* FROM o LEFT SEMI JOIN (SELECT id AS k FROM t) AS t USING (k) JOIN cust NOW AS c USING (id) LEFT "
    "SEMI JOIN t AS u USING (id) LEFT JOIN many NOW AS d ON d.id = o.id",
    "SELECT *, o.k FROM o LEFT SEMI JOIN (SELECT id AS k FROM t) AS t USING (k) LEFT SEMI JOIN t AS u USING (id) LEFT "
    "JOIN (SELECT id AS i FROM t) AS z ON z.i = id LEFT JOIN cust NOW AS d ON d.id = z.i WHERE o.k > 0",
)
"""Semi joins whose USING puts columns first in a star, with lookups around."""
_DISJUNCTIONS = (
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON (o.k = c.id OR NULL)",
    "SELECT o.id, c.name FROM o LEFT JOIN cust NOW AS c ON (FALSE OR o.k = c.id) AND c.k > 0",
    "SELECT o.id FROM o LEFT ANTI JOIN cust NOW AS c ON o.k = c.id AND c.k > 1 OR (NULL)",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON ((o.k = c.id AND o.id IN (SELECT id FROM t)) OR (o.k = c.id AND "
    "c.k = 1))",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON (o.k = c.id AND c.id IN (SELECT id FROM t)) OR (c.id = o.k AND "
    "c.k = 1) OR NULL",
)
"""Keys in the operands of an OR."""
_AS_FULL_TABLES = (
    "SELECT o.id, c.name FROM o FULL JOIN cust_all NOW AS c ON o.id = c.id",
    "SELECT o.id, c.name FROM o RIGHT JOIN cust_all NOW AS c ON o.id = c.id AND c.k > 1",
    "SELECT * FROM o FULL JOIN cust_all NOW AS c USING (id)",
    "SELECT * FROM o RIGHT JOIN cust_all NOW AS c USING (id, k)",
    "SELECT * FROM (o JOIN cust_all NOW AS c ON o.id = c.id) AS z",
    "SELECT * FROM o JOIN cust_all NOW AS c (a, b, d, e, f) ON o.id = c.a",
    "SELECT c.a, o.id FROM o LEFT JOIN cust_all NOW AS c (a, b, d, e, f) ON o.id = c.a AND c.b > 0",
    "SELECT o.id FROM o LEFT JOIN cust_all NOW AS c ON o.id = c.id AND c.k IN (SELECT id FROM t)",
    "SELECT o.id FROM o LEFT ANTI JOIN cust_all NOW AS c ON o.id = c.id AND c.k IN (SELECT id FROM t)",
    "SELECT * FROM cust_all NOW AS c",
    "SELECT * FROM cust_all NOW AS c JOIN o ON o.id = c.id",
    "SELECT * FROM o CROSS JOIN cust_all NOW AS c",
    "SELECT y.id FROM (SELECT id, v FROM o) AS y LEFT JOIN cust_all NOW AS c ON y.id = c.id AND EXISTS (SELECT 1 FROM "
    "(SELECT 1 AS i) WHERE i <= k)",
    "SELECT * FROM o FULL JOIN (cust_all NOW AS c) ON o.id = c.id",
    "SELECT * FROM o, cust_all NOW AS c WHERE o.id < c.id",
    "SELECT * FROM o JOIN cust_all NOW AS c ON o.id <=> c.id",
    "SELECT * FROM o JOIN cust_all NOW AS c ON c.id IN (1, 2)",
    "SELECT * FROM o JOIN cust_all NOW AS c ON o.id = c.id UNPIVOT (z FOR w IN (o.v, c.c))",
    "SELECT o.id FROM o JOIN cust_all NOW AS c ON c.id = '1'",
    "SELECT o.id, c.name FROM o JOIN cust_all NOW TABLESAMPLE (100 PERCENT) AS c ON o.id = c.id",
    "SELECT o.id FROM o JOIN cust_all NOW AS c ON o.id = c.id JOIN many_all NOW AS m ON m.id > c.id",
    "SELECT o.id FROM o FULL JOIN cust_all NOW AS c ON o.id = c.id RIGHT JOIN many_all NOW AS m ON m.id = c.id",
    "SELECT o.id, c.label FROM o RIGHT JOIN cust_all NOW AS c USING (id) WHERE c.label IS NULL OR c.label = 'A'",
    "WITH cust AS (SELECT 1 AS id) SELECT * FROM o JOIN cust ON o.id = cust.id FULL JOIN cust_all NOW "
    "AS c ON c.id = o.id",
    "SELECT o.id, (SELECT c.name FROM cust_all AS c WHERE c.id = o.id ORDER BY c.k LIMIT 1) FROM o",
    "SELECT o.id, (SELECT max(c.name) FROM cust_all AS c WHERE c.id = o.id) FROM o",
    "SELECT o.id, (SELECT count(*) FROM cust_all AS c WHERE c.id = o.id GROUP BY c.id HAVING max(k) > 0) FROM o",
    "SELECT t.k, o.v, c.name FROM t LEFT JOIN (o JOIN cust_all NOW AS c ON o.id = c.id) ON o.id = t.id",
    "SELECT o.id FROM o LEFT JOIN cust_all NOW AS c ON o.id = c.id AND EXISTS (SELECT 1 FROM t WHERE t.k = o.k)",
    "SELECT * FROM (SELECT k, v, id FROM o) PIVOT (max(k) AS m FOR v IN ('a' AS a)) AS q JOIN cust_all NOW AS c ON "
    "q.id = c.id",
    "SELECT o.id, (SELECT DISTINCT c.name FROM cust_all AS c WHERE c.id = o.id AND c.name = 'a') FROM o",
)

_MOVED = (
    "EXISTS (SELECT 1 FROM t WHERE t.id = o.id AND t.name = d.name)", "(o.id, d.k) IN (SELECT id, id FROM t)",
    "o.id IN (SELECT id FROM t WHERE t.k = d.k)", "o.id + d.k IN (SELECT id FROM t)",
    "NOT EXISTS (SELECT 1 FROM t WHERE t.id > o.id + d.k)",
    "(EXISTS (SELECT 1 FROM t WHERE t.k = d.k + o.k) OR d.k = 1)",
    "o.id NOT IN (SELECT id FROM t WHERE t.k = d.k)",
)  # fmt: skip
CONDITIONS = tuple(
    f"SELECT o.id, o.v, d.name FROM o JOIN cust {PERIOD} AS d ON o.k = d.id {word} {one}"
    for one in _MOVED
    for word in ("AND", "WHERE")
)
"""Pairs: with a sub-query over both sides in ON, which Spark does not run, and with it in WHERE."""
REFUSED = tuple(
    text.replace("NOW", PERIOD)
    for text in (
        "SELECT q.id FROM (SELECT id, 9 AS var_n FROM t) AS q WHERE EXISTS (SELECT 1 FROM o LEFT JOIN cust NOW AS d ON "
        "o.k = d.id AND d.id + 3 < var_n)",
        "SELECT q.id FROM (SELECT id, 1 AS var_n FROM t) AS q JOIN LATERAL (SELECT d.name FROM (SELECT var_n AS i) AS z"
        " JOIN cust NOW AS d ON z.i = d.id) AS x",
        "SELECT q.id FROM (SELECT id, 1 AS var_n FROM t) AS q WHERE q.id IN (WITH w AS (SELECT var_n AS z) SELECT o.id "
        "FROM o JOIN w JOIN cust NOW AS d ON d.id = w.z)",
    )
)
"""Statements in which what Spark has to run alone reads the query around it, where a variable has the same name."""

STATEMENTS = tuple(text.replace("NOW", PERIOD) for text in (*_STATEMENTS, *_UNREAD, *_SEMI_JOINS, *_DISJUNCTIONS))
AS_FULL_TABLES = tuple(text.replace("NOW", PERIOD) for text in _AS_FULL_TABLES)
"""Statements in which a table cannot be looked up, or only that of another join."""
