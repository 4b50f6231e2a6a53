"""Statements that were written to break the rewriting of SQL; ``NOW`` stands for the period of a lookup."""

from __future__ import annotations

from sql_statements import NOW as PERIOD

_STATEMENTS = (
    "SELECT id, (SELECT count(*) FROM many AS m WHERE m.id = cust_all.id) AS n FROM cust_all",
    "SELECT * FROM cust_all WHERE (SELECT max(m.k) FROM many AS m WHERE m.id = cust_all.id) > 0",
    "SELECT id, (SELECT c.name FROM cust AS c WHERE c.id = cust_all.k LIMIT 1) AS name FROM cust_all",
    "FROM (SELECT id, k FROM o) AS z JOIN cust NOW AS c ON z.id = c.id SELECT z.k, c.name",
    "FROM (o JOIN many NOW AS m ON o.id = m.id) JOIN cust NOW AS c ON o.k = c.id SELECT o.v, c.name, m.k",
    "SELECT * FROM (TABLE o |> JOIN cust NOW AS c ON o.id = c.id |> SELECT o.id, c.k) AS q JOIN t USING (id)",
    "SELECT * FROM o JOIN LATERAL (SELECT max(c.k) AS m FROM cust AS c WHERE c.id = o.id) AS l",
    "SELECT d.*, m.*, d.s.* FROM o AS d JOIN many NOW AS m USING (name, k)",
    "SELECT to_json(struct(c.*)), m.*, o.* FROM o JOIN many NOW AS m USING (k) LEFT JOIN cust NOW AS c USING (id)",
    "SELECT x.*, label FROM o JOIN cust NOW AS k ON o.id = k.id NATURAL JOIN cust NOW AS x",
    "SELECT label FROM o LEFT JOIN cust NOW AS k ON o.id = k.id JOIN cust NOW AS x USING (label, k)",
    "SELECT q.a, c.name FROM ((SELECT k, v, id FROM o) PIVOT (max(k) AS m FOR v IN ('a' AS a)) AS q "
    "JOIN cust NOW AS c ON q.id = c.id) JOIN many NOW AS d ON d.id = c.id",
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
    "SELECT o.id, c.k FROM o LEFT JOIN cust NOW AS c ON o.k = c.id AND ((SELECT max(id) > 1 FROM t)) WHERE o.id < 9 "
    "AND (SELECT min(k) > 0 AND max(k) < 9 FROM t WHERE id > 0 AND k > 0)",
    "SELECT a.* FROM (SELECT id, int(k) AS k FROM o) AS a LEFT SEMI JOIN t USING (k) JOIN cust NOW AS c ON a.id = c.id",
    "WITH o AS (SELECT id + 1 AS id, k FROM o), p AS (WITH o AS (SELECT * FROM o WHERE id > 2) SELECT o.id, c.label "
    "FROM o LEFT JOIN cust NOW AS c ON o.k = c.id) SELECT * FROM p",
    "WITH o AS (SELECT id + 10 AS id, k FROM o), p AS (SELECT id, k FROM o) SELECT * FROM (WITH o AS (SELECT * FROM t) "
    "SELECT o.id, p.id AS i, c.label FROM o JOIN p ON p.k = o.k LEFT JOIN cust NOW AS c ON o.k = c.id)",
    "WITH RECURSIVE cust AS (SELECT 1L AS id UNION ALL SELECT id + 2 FROM cust WHERE id < 8) SELECT cust.id, m.name "
    "FROM cust LEFT JOIN many NOW AS m ON m.id = cust.id",
    "WITH RECURSIVE a AS (SELECT o.id, cust.name FROM o JOIN cust NOW ON o.k = cust.id), cust AS (SELECT 1 AS id) "
    "SELECT * FROM a, cust",
    "FROM t |> AS cust |> JOIN many NOW AS m ON cust.k = m.id |> SELECT cust.id, m.name",
    "SELECT o.id, ${spark.sql.shuffle.partitions} AS n, '${x}' FROM o JOIN cust NOW AS c ON o.k = c.id AND c.id <> "
    "${spark.sql.leafNodeDefaultParallelism} + 1 WHERE ${spark.sql.shuffle.partitions} = c.k",
    "SELECT o.id, (SELECT max(k) FROM cust WHERE cust.id > 1) AS m, (SELECT cust.k FROM cust WHERE id > 0 ORDER BY "
    "cust.id DESC LIMIT 1) AS l FROM o WHERE o.id > (SELECT count(*) FROM cust WHERE name = 'a')",
    "TABLE cust |> WHERE cust.id > 1 |> SELECT cust.k, id",
    "SELECT id, k, name, c, c FROM t |> EXCEPT ALL TABLE cust |> UNION DISTINCT TABLE cust |> WHERE id > 0",
    "FROM o NATURAL JOIN cust NOW AS c |> WHERE k > 0 AND name = 'a'",
    "TABLE o |> JOIN cust NOW AS c USING (id) |> WHERE id > 1 |> SELECT id, c.k",
    "SELECT interval + 1, interval FROM (SELECT id AS interval, k FROM o) AS q JOIN cust NOW AS c ON q.k = c.id AND "
    "interval + 1 > 2",
    "SELECT * FROM (SELECT o.v, c.k, o.id FROM o JOIN cust NOW AS c ON o.k = c.id) PIVOT (ceil(sum(k)) AS a, "
    "max(k) + 1 AS b FOR v IN ('a', 'b' AS z))",
    "SELECT z.id FROM ((o JOIN cust NOW AS c ON o.id = c.id) JOIN many NOW AS z ON z.id = c.id)",
    "SELECT z.id FROM ((SELECT id, k FROM o) AS q JOIN cust NOW AS c ON q.id = c.id) JOIN many NOW AS z ON z.id = c.id",
    "SELECT * FROM (SELECT o.id, c.k, c.name FROM o JOIN cust NOW AS c ON o.id = c.id) PIVOT (max(k) "
    "AS m FOR name IN ('a' AS a, 'b' AS b))",
    "SELECT o.id, (SELECT upper(cust.name) FROM cust WHERE cust.id = o.k) AS u, count(*) OVER () AS n FROM o",
    "SELECT o.id FROM o JOIN cust NOW AS c ON c.id = 1.0",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.k = c.id WHERE c.name = 'A' COLLATE UTF8_LCASE",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.k = c.id WHERE CAST(c.name AS STRING COLLATE UTF8_LCASE) = 'A'",
    "SELECT o.id, c.k FROM o LEFT JOIN cust NOW AS c ON o.k = c.id AND collate(upper(o.v), 'UTF8_LCASE') = c.name",
    "SELECT o.id FROM o LEFT ANTI JOIN cust NOW AS c ON c.name = 'A' COLLATE UTF8_LCASE AND o.k = c.id",
    "SELECT o.id FROM o JOIN cust NOW AS c ON c.name = CAST('a' AS VARCHAR(5))",
    "WITH w AS (SELECT 1 AS x) FROM o |> JOIN cust NOW AS c ON o.id = c.id |> SELECT o.id, c.name",
    "FROM o |> WHERE id > 1 |> JOIN cust NOW AS c ON o.id = c.id |> SELECT o.id, c.name",
    "FROM o |> SELECT id, k |> AS q |> LEFT JOIN cust NOW AS c ON q.id = c.id |> SELECT q.id, c.name",
    "FROM o |> EXTEND id + 1 AS nxt |> JOIN cust NOW AS c ON nxt = c.id |> SELECT nxt, c.name",
    "SELECT * FROM (FROM o |> JOIN cust NOW AS c ON o.id = c.id |> SELECT c.name) AS q",
    "SELECT id FROM o |> JOIN cust NOW AS c USING (id) |> SELECT c.name",
    "TABLE o |> JOIN cust NOW AS c ON o.id = c.id |> ORDER BY c.name |> LIMIT 2",
    "FROM o |> WHERE o.id > 1 |> LEFT SEMI JOIN cust NOW AS c ON o.id = c.id |> UNION ALL (SELECT * FROM o)",
    "FROM t |> UNION ALL (SELECT c.id, c.k, c.name, c.c FROM o JOIN cust NOW AS c ON o.id = c.id)",
    "FROM t |> WHERE id IN (SELECT c.id FROM o JOIN cust NOW AS c ON o.id = c.id)",
    "FROM o |> JOIN cust NOW AS c ON o.id = c.id |> WHERE c.k > 0 |> SELECT o.id, c.k AS kk |> AS q |> "
    "JOIN many NOW AS m ON m.id = q.id |> AGGREGATE count(*) AS n GROUP BY m.name",
    "SELECT id, k FROM o |> JOIN cust NOW AS c ON o.k = c.id |> SELECT c.name, o.id",
    "FROM o |> DROP s |> WHERE k > 0 |> JOIN cust NOW AS c ON o.id = c.id",
    "FROM o |> SET v = 'x' |> JOIN cust NOW AS c ON o.id = c.id |> SELECT v, c.id",
    "FROM o AS z |> WHERE z.id > 1 |> JOIN t ON t.id = z.id |> LEFT JOIN cust NOW AS c ON z.k = c.id "
    "|> WHERE c.id IS NULL OR t.id > 0",
    "FROM (SELECT id FROM o) AS z |> WHERE id > 0 |> JOIN cust NOW AS c ON z.id = c.id",
    "FROM (FROM o |> WHERE id > 1) AS z |> JOIN cust NOW AS c ON z.id = c.id |> SELECT z.id, c.name",
    "SELECT o.id FROM o WHERE EXISTS (FROM t |> WHERE t.id = o.id) AND o.id IN (FROM o |> JOIN cust "
    "NOW AS c ON o.id = c.id |> SELECT c.id)",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.id = c.id WHERE o.id IN (FROM t |> SELECT id)",
    "SELECT o.id, c.name FROM o JOIN cust NOW AS c ON o.id = c.id WHERE EXISTS (FROM t |> WHERE t.id = o.id)",
    "FROM o |> AGGREGATE max(id) AS id GROUP BY k |> AS g |> JOIN cust NOW AS c ON g.id = c.id |> SELECT g.k, c.name",
    "FROM o |> ORDER BY id |> LIMIT 3 |> JOIN cust NOW AS c ON o.id = c.id |> SELECT o.id",
    "FROM o |> JOIN cust NOW AS c ON o.id = c.id |> SELECT o.id, c.name |> WHERE name IS NOT NULL",
    "FROM o |> PIVOT (max(k) FOR name IN ('a', 'b')) |> AS p |> JOIN cust NOW AS c ON p.id = c.id |> "
    "SELECT p.id, a, c.name",
    "SELECT * EXCEPT (c) FROM o JOIN cust NOW AS x USING (id) JOIN many NOW AS m USING (k)",
    "SELECT x.*, * FROM o JOIN cust NOW AS x USING (id)",
    "SELECT id, k FROM o LEFT JOIN cust NOW AS x USING (id, k) WHERE id > 1 ORDER BY id",
    "SELECT id, count(*) FROM o JOIN cust NOW AS x USING (id) GROUP BY id HAVING id > 0",
    "SELECT id FROM o NATURAL LEFT JOIN many NOW AS x",
    "SELECT * FROM (t NATURAL JOIN many NOW AS m) JOIN cust NOW AS c ON c.id = m.id",
    "SELECT * FROM (o JOIN cust NOW AS x USING (id)) JOIN many NOW AS m ON m.id = x.k",
    "SELECT x.id FROM (o JOIN cust NOW AS x USING (id)) JOIN t ON t.k = x.k AND t.id = o.id",
    "SELECT session.var_n, var_n + o.id, o.k FROM o JOIN cust NOW AS c ON o.id = c.id AND c.id > var_n - 1",
    "SELECT session.k, o.k FROM o JOIN cust NOW AS c ON o.id = c.id AND c.id >= session.k",
    "SELECT text FROM o JOIN cust NOW AS c ON o.id = c.id AND c.c <> text",
    "SELECT IDENTIFIER('c.' || 'name') FROM o JOIN IDENTIFIER('cust') NOW AS c ON IDENTIFIER('o.id') = c.id",
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
    "SELECT o.name AS z, * FROM ((SELECT id, k, name FROM o) AS o LEFT SEMI JOIN cust NOW AS d USING (k, name)) "
    "JOIN many NOW AS m ON m.id = o.k",
    "SELECT * FROM (o JOIN cust NOW AS x USING (id))",
    "SELECT *, id FROM (o LEFT JOIN cust NOW AS x USING (id, k)) WHERE id > 1",
    "SELECT * FROM (o JOIN cust NOW AS x USING (id)) JOIN t USING (id)",
    "SELECT * FROM ((o JOIN cust NOW AS x USING (id)) NATURAL JOIN many NOW AS y) LEFT JOIN t ON t.k = x.k",
    "SELECT *, t.k FROM t JOIN (o JOIN cust NOW AS x USING (id)) ON x.k = t.k WHERE x.id > 0",
    "SELECT * EXCEPT (v) FROM t JOIN (o LEFT SEMI JOIN cust NOW AS x USING (id)) ON o.k = t.k",
    "SELECT * EXCEPT (t.k) FROM t JOIN (o JOIN cust NOW AS x USING (id)) ON o.k = t.k",
    "SELECT o.id FROM o JOIN /* 1 /* 2 /* 3 /* 4 */ 3 */ 2 */ AND 1 */ cust NOW AS c ON o.id = c.id",
    "SELECT o.id, c.k FROM o JOIN cust NOW AS c ON o.id = c.id AND EXISTS (SELECT 1 FROM (SELECT id AS i, k AS j FROM "
    "t) WHERE i >= length(label) OR j = c.k)",
    "SELECT y.id FROM (SELECT id, v FROM o) AS y JOIN cust NOW AS c ON y.id = c.id AND y.id IN (SELECT id FROM t AS c "
    "WHERE c.k > 0)",
    "SELECT y.id FROM (SELECT id, v FROM o) AS y LEFT JOIN cust NOW AS c ON y.id = c.id AND EXISTS (SELECT 1 FROM t "
    "WHERE t.k = y.id AND c = v)",
    "SELECT y.id FROM (SELECT id, v FROM o) AS y JOIN cust NOW AS c ON y.id = c.id AND EXISTS (SELECT 1 FROM "
    "(SELECT 1 AS i) WHERE i < k)",
    "SELECT * FROM o JOIN (cust NOW AS c) USING (id) JOIN t USING (id)",
    "SELECT c.*, o.id FROM o LEFT JOIN ((cust NOW AS c)) ON o.id = c.id JOIN (many NOW AS m) ON m.id = o.k "
    "WHERE c.k > 0",
    "SELECT * FROM (t JOIN (cust NOW AS c) ON t.id = c.id) JOIN ( /* ) */ many NOW AS m ) USING (k)",
    "SELECT id FROM t WHERE id IN (SELECT d.id FROM o JOIN cust NOW AS d ON o.k = d.id AND o.id = t.id)",
    "SELECT q.id FROM (SELECT id, 9 AS var_n FROM t) AS q WHERE EXISTS (SELECT 1 FROM o JOIN cust NOW AS d ON o.k = "
    "d.id AND d.id + 3 < var_n)",
    "SELECT o.id FROM o JOIN cust NOW AS d ON o.k = d.id WHERE EXISTS (FROM t |> WHERE t.id = o.id AND t.name < label)",
    "SELECT lookup_x0_0, d.name FROM (SELECT id AS lookup_x0_0, k FROM o) AS o JOIN cust NOW AS d ON o.k = d.id AND "
    "lookup_x0_0 > (SELECT 0)",
    "SELECT list[0], array[0], q.list[0], array(d.k, q.k)[1], fetch, `true` FROM (SELECT array(id) AS "
    "list, array(7) AS array, k, id AS fetch, 2 AS `true` FROM o) AS q JOIN cust NOW AS d ON q.k = d.id "
    "AND list[0] > 0 WHERE q.array[0] = 7",
    "SELECT o.id !< 2, d.k >>> 1, dateadd(day, d.k, DATE'2020-01-01') FROM o JOIN cust NOW AS d ON o.k = d.id AND "
    "d.k >>> 1 !> 5 AND datediff(MONTH, DATE'2020-01-01', DATE'2020-02-01') = d.k WHERE o.k << 1 > 0",
)
_PIPES = (
    "FROM o |> WHERE id > 0 |> JOIN t ON o.id = t.id |> WHERE t.k > 0 |> JOIN o AS p ON p.id = t.id |> WHERE p.k > 0 "
    "|> JOIN cust NOW AS c ON c.id = p.k |> SELECT o.v, t.c, p.v, c.c",
    "SELECT o.id FROM o WHERE EXISTS (FROM t |> JOIN cust NOW AS c ON c.id = t.id |> WHERE t.id IN (FROM o |> JOIN "
    "cust "
    "NOW AS d ON d.id = o.id |> SELECT d.id))",
    "SELECT id FROM (SELECT id, 9 AS var_n FROM t) AS q WHERE EXISTS (FROM o |> JOIN cust NOW AS d ON o.k = d.id "
    "|> WHERE d.id + 3 < var_n)",
    "FROM o |> JOIN t ON o.id = t.id |> WHERE t.k > 0 |> JOIN cust NOW AS c ON c.id = o.k |> SELECT o.id, t.name",
    "FROM o |> LEFT JOIN (SELECT 1 AS z, 2 AS y) ON o.id = z |> WHERE y > 0 |> LEFT JOIN cust NOW AS c ON c.id = y |> "
    "SELECT y, o.k",
    "FROM o AS a, t b |> WHERE a.id = b.id |> JOIN cust NOW c ON c.id = a.k |> DROP label |> UNION ALL (FROM o AS a, t "
    "b |> WHERE a.id = b.id |> JOIN cust NOW c ON c.id = a.k |> DROP label)",
    "FROM o JOIN t ON o.id = t.id |> SET v = 'q' |> JOIN cust NOW AS c ON c.id = o.k",
    "FROM o JOIN t ON o.id = t.id |> AGGREGATE max(t.k) AS m GROUP BY o.k |> JOIN cust NOW AS c ON c.id = m |> SELECT "
    "o.k, c.id, m",
    "FROM o JOIN t ON o.id = t.id |> WHERE t.k > 0 |> JOIN cust NOW AS c ON c.id = o.k",
    "FROM o JOIN cust NOW AS d ON o.id = d.id |> WHERE d.k > 0 |> LEFT JOIN cust NOW AS c ON c.id = o.k |> SELECT o.*, "
    "d.name, c.name",
    "FROM o JOIN cust NOW AS d ON o.id = d.id |> EXTEND o.id + 1 AS x |> JOIN t ON t.id = o.id |> LEFT JOIN cust NOW "
    "AS c ON c.id = x",
    "FROM o JOIN cust NOW AS d ON o.id = d.id |> EXTEND o.id + 1 AS x |> JOIN many NOW AS t ON t.id = o.id |> WHERE "
    "t.k > 0 |> LEFT JOIN cust NOW AS c ON c.id = x |> WHERE c.id > 0",
    "FROM o JOIN cust NOW AS d ON o.id = d.id |> EXTEND o.id + 1 AS x |> JOIN t ON t.id = o.id |> WHERE t.k > 0 |> "
    "LEFT JOIN cust NOW AS c ON c.id = x",
    "FROM o JOIN t ON o.id = t.id |> SELECT t.id, o.v, o.k |> JOIN cust NOW AS c ON c.id = o.k |> SELECT o.*, t.id, "
    "c.k, *",
    "FROM o |> LEFT SEMI JOIN t AS s ON o.id = s.id |> WHERE o.s.id > 0 |> JOIN cust NOW AS c ON c.id = s.id |> SELECT "
    "s.id, c.k",
    "SELECT o.id FROM o WHERE EXISTS (FROM t |> JOIN cust NOW AS c ON c.id = t.id |> WHERE t.id = o.id)",
    "SELECT o.id FROM o WHERE EXISTS (FROM t |> WHERE t.k > 0 |> JOIN cust NOW AS c ON c.id = t.id AND t.id = o.id)",
    "SELECT o.id, (FROM t |> JOIN cust NOW AS c ON c.id = t.id |> WHERE t.id = o.id |> AGGREGATE max(c.k)) AS m FROM o",
    "SELECT o.id, l.* FROM o JOIN LATERAL (FROM t |> JOIN cust NOW AS c ON c.id = t.id |> WHERE t.id >= o.id |> SELECT "
    "c.k) AS l",
    "FROM o |> WHERE id IN (SELECT c.id FROM t JOIN cust NOW AS c ON c.id = t.id WHERE t.k = o.k)",
    "FROM o |> WHERE EXISTS (FROM t |> JOIN cust NOW AS c ON c.id = t.id |> WHERE t.k = o.k) |> JOIN cust NOW AS x ON "
    "x.id = o.k",
    "SELECT o.id FROM o JOIN cust NOW AS c ON o.k = c.id AND o.id IN (FROM t |> JOIN cust NOW AS d ON t.id = d.id |> "
    "SELECT d.id)",
    "WITH w AS (SELECT * FROM o) SELECT * FROM (FROM w |> JOIN cust NOW AS c ON w.id = c.id) AS q",
    "WITH cust AS (SELECT id + 1 AS id FROM o) SELECT cust.id FROM cust WHERE EXISTS (FROM cust |> WHERE cust.id > 1 |>"
    " JOIN many NOW AS c ON cust.id = c.id)",
    "WITH t AS (SELECT id, 7L AS k FROM o) SELECT t.id FROM t WHERE t.k IN (FROM t |> WHERE t.id > 1 |> JOIN many NOW "
    "AS c ON t.id = c.id |> SELECT t.k)",
    "WITH w AS (SELECT * FROM o), v AS (FROM w |> WHERE w.id > 1 |> JOIN cust NOW AS c ON w.k = c.id |> SELECT w.id, "
    "c.name) SELECT * FROM v JOIN cust NOW AS d ON v.id = d.id",
    "WITH o AS (SELECT id, k + 1 AS k FROM o) FROM o JOIN t ON o.id = t.id |> WHERE o.k > 0 |> JOIN cust NOW AS c ON "
    "c.id = o.k",
)
"""Pipes over several relations, in other queries, and below a WITH."""
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
_GROUPS = (
    "SELECT d.id, many.k FROM ((SELECT id FROM cust) AS d JOIN cust NOW AS cust ON d.id = cust.id) JOIN many NOW AS "
    "many ON many.id = d.id",
    "SELECT * FROM ((WITH many AS (SELECT x.id FROM t AS x JOIN many NOW AS d ON x.k = d.id), cust AS (SELECT * FROM "
    "many) SELECT id FROM cust) AS d JOIN cust NOW AS cust ON d.id = cust.id) JOIN many NOW AS z ON z.id = d.id",
    "SELECT * FROM t JOIN ((SELECT c.id FROM o JOIN cust NOW AS c ON c.id = o.k) AS d JOIN cust NOW ON d.id = cust.id) "
    "ON t.id = d.id",
)
"""Joins in parentheses whose first relation is a query that reads lookup tables."""
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
_AGGREGATES = (
    "SELECT o.id, (SELECT max(c.name) FROM cust AS c WHERE c.id = o.id) AS m FROM o",
    "SELECT (SELECT count(*) FROM many AS m WHERE m.id = o.id AND m.k > 1) FROM o",
    "SELECT o.*, c.name, (SELECT collect_list(coalesce(m.name, 'q')) FROM many NOW AS m WHERE m.id = c.id) AS x FROM o "
    "LEFT JOIN cust NOW AS c ON o.k = c.id JOIN t ON t.id = o.id",
    "SELECT *, (SELECT count(m.name) + max(m.k) FROM many AS m WHERE m.id = o.k) AS x, (SELECT sum(c.k) FROM cust AS c "
    "WHERE c.id = o.id AND c.k > o.k - 5) AS y FROM o",
    "SELECT o.id, (SELECT max(m.k) FILTER (WHERE m.k > 0 OR m.name IS NULL) FROM many AS m WHERE m.id = o.id) AS x, "
    "(SELECT name FROM cust WHERE cust.id = o.k) AS n FROM o WHERE o.id > 0 AND (SELECT count(*) FROM many AS m WHERE "
    "m.id = o.id) < 2",
    "SELECT o.id, (SELECT count(DISTINCT label) FROM cust WHERE cust.k = o.k) AS x FROM o",
    "SELECT o.k, count(*), max((SELECT count(*) FROM many AS m WHERE m.id = o.id)) FROM o GROUP BY o.k",
    "SELECT (SELECT count(*) FROM many AS m WHERE m.id = o.id) AS z, count(*) FROM o GROUP BY 1",
    "SELECT o.id, (SELECT max(label) || 'x' FROM cust AS c WHERE c.id = o.k AND c.label IS NOT NULL) AS x FROM o",
    "SELECT (SELECT min(5) FROM many AS m WHERE m.id = o.id) AS x FROM (SELECT id, k FROM o CROSS JOIN (SELECT 1 FROM t"
    ")) AS o",
    "SELECT q.id FROM t AS q WHERE EXISTS (SELECT 1 FROM o WHERE q.id = o.id AND (SELECT max(m.k) FROM many AS m WHERE "
    "m.id = o.id) > 0)",
    "SELECT o.id, (SELECT max(m.k) FROM many AS m WHERE m.id = o.id LIMIT 1) AS x FROM o",
    "SELECT (SELECT percentile(m.k, 0.5) FROM many AS m WHERE m.id = o.id) AS x FROM o",
    "SELECT (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY m.k) FROM many AS m WHERE m.id = o.id) AS x, (SELECT "
    "bool_or(m.k > 1) FROM many AS m WHERE m.id = o.id) FROM o",
    "WITH o AS (SELECT id, k FROM t) SELECT o.id, (SELECT max(m.k) FROM many AS m WHERE m.id = o.id) AS x FROM o",
    "SELECT (SELECT try_sum(m.k) FROM many AS m WHERE m.id = o.id AND m.id = 1) AS x FROM o",
    "SELECT o.id, (SELECT count(*) FROM many AS m WHERE o.id = m.id GROUP BY m.id HAVING max(m.k) > 1 OR m.id = 4) AS "
    "x FROM o",
    "SELECT o.id, (SELECT m.id + count(*) FROM many AS m WHERE o.id = m.id GROUP BY id) AS x FROM o",
    "SELECT o.id, (SELECT count(*) FROM many AS m WHERE o.id = m.id HAVING count(*) = 0) AS x FROM o",
    "SELECT (SELECT max(m.k) FROM many NOW AS m WHERE m.id = o.id) AS x, count(*) FROM o LEFT JOIN t ON t.id = o.id "
    "GROUP BY ALL HAVING x > 0",
    "SELECT o.id, (SELECT max(m.k) FROM many NOW AS m WHERE m.id = o.id AND o.v IN (SELECT name FROM t)) AS x FROM o",
    "SELECT sum((SELECT count(*) FROM many AS m WHERE m.id = o.id)) AS s FROM o",
    "SELECT o.id, (SELECT max(m.k) AS k FROM many AS m WHERE m.id = o.id HAVING k > 1) AS x, (SELECT count(*) AS z "
    "FROM "
    "many AS m WHERE m.id = o.id HAVING z + 1 < 3 AND max(k) > 0) AS y FROM o",
)
"""Scalar sub-queries that aggregate the rows that match."""
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
        "SELECT id FROM (SELECT id, 9 AS var_n FROM t) AS q WHERE EXISTS (FROM o |> WHERE o.id < var_n |> JOIN cust "
        "NOW AS d ON o.k = d.id)",
    )
)
"""Statements in which what Spark has to run alone reads the query around it, where a variable has the same name."""

STATEMENTS = tuple(
    text.replace("NOW", PERIOD)
    for text in (*_STATEMENTS, *_PIPES, *_UNREAD, *_GROUPS, *_SEMI_JOINS, *_DISJUNCTIONS, *_AGGREGATES)
)
AS_FULL_TABLES = tuple(text.replace("NOW", PERIOD) for text in _AS_FULL_TABLES)
"""Statements in which a table cannot be looked up, or only that of another join."""
