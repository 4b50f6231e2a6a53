"""FOR, handlers, conditions, and variables that hide one another, in scripts with lookups, against Spark's own."""

from __future__ import annotations

import pytest
from drawn_world import make_worlds
from pyspark.errors import PySparkException
from sql_statements import NOW, PERIODS

from lookupcache import LookupCacheError, LookupTable, PlanError, StatementError

pytestmark = pytest.mark.spark

JOINED = f"o JOIN cust {NOW} AS c ON o.k = c.id"
CAUGHT = "DECLARE EXIT HANDLER FOR SQLEXCEPTION SELECT 'caught' AS r"
FAILS = f"SELECT 1 / (c.id - c.id) FROM {JOINED}"
SAME = [
    # FOR
    f"FOR x AS SELECT o.id, c.name FROM {JOINED} ORDER BY o.id, c.name DO SET n = n * 10 + x.id; END FOR; SELECT n",
    f"FOR x AS SELECT o.id FROM {JOINED} ORDER BY o.id DO SET n = n * 10 + id; END FOR; SELECT n",
    f"FOR SELECT o.id FROM {JOINED} ORDER BY o.id DO SET n = n * 10 + id; END FOR; SELECT n",
    f"FOR x AS SELECT id FROM o ORDER BY id DO SELECT x.id, c.name FROM {JOINED} WHERE o.id = x.id; END FOR",
    f"FOR x AS SELECT id FROM t WHERE id > 9 DO SELECT id; END FOR; SELECT n, count(*) FROM {JOINED}",
    f"SELECT 1 AS a FROM {JOINED}; FOR x AS SELECT id FROM t WHERE id > 9 DO SELECT id; END FOR",
    f"l: FOR x AS SELECT o.id FROM {JOINED} ORDER BY 1 DO IF x.id = 2 THEN ITERATE l; END IF; SET n = n * 10 + x.id; "
    "END FOR; SELECT n",
    f"l: FOR x AS SELECT o.id FROM {JOINED} ORDER BY 1 DO IF x.id = 2 THEN LEAVE l; END IF; SET n = n + 1; END FOR l; "
    "SELECT n, 1",
    f"a: WHILE n < 3 DO SET n = n + 1; FOR x AS SELECT o.id FROM {JOINED} DO IF n = 2 THEN LEAVE a; END IF; END FOR; "
    "END WHILE; SELECT n, 2",
    f"FOR x AS SELECT o.id AS a, struct(c.id AS `c d`) AS s, map(c.name, o.id) AS m, array(c.k) AS r, o.s AS `o s` "
    f"FROM {JOINED} WHERE c.name IS NOT NULL ORDER BY o.id, c.name DO SELECT x.a, x.s.`c d`, m, x.r, x.`o s`; END FOR",
    f"FOR x AS SELECT o.id AS a, NULL AS z, INTERVAL '1' DAY AS i, TIMESTAMP_NTZ '2020-01-01' AS t, 1.50 AS d, "
    f"X'00' AS b FROM {JOINED} ORDER BY 1 DO SELECT x.a, x.z, i, x.t, d, b; END FOR",
    f"FOR x AS SELECT o.id FROM {JOINED} ORDER BY 1 DO FOR y AS SELECT x.id * 10 AS id DO SET n = n + y.id + id; "
    "END FOR; SET n = n + id; END FOR; SELECT n",
    f"FOR x AS VALUES (3), (4) DO SET n = n + x.col1; END FOR; SELECT n, count(*) FROM {JOINED}",
    f"FOR x AS WITH w AS (SELECT c.name AS w FROM {JOINED}) SELECT max(w) AS m FROM w DO SELECT x.m; END FOR",
    f"FOR o AS SELECT o.id FROM {JOINED} ORDER BY 1 DO SELECT o.id AS v, o.name FROM o WHERE id = 1; END FOR",
    f"FOR x AS SELECT n AS n FROM {JOINED} DO SELECT x.n; END FOR; SELECT n",
    # variables that hide others
    f"BEGIN DECLARE n INT DEFAULT n + 5; SET n = n + 1; SELECT n, c.id FROM {JOINED}; END; SET n = n + 1; SELECT n",
    f"BEGIN DECLARE n STRING DEFAULT 'a'; SELECT n, c.id FROM {JOINED}; END; SELECT n + 1 AS z",
    f"BEGIN DECLARE m, n INT DEFAULT n + 2; BEGIN DECLARE n INT DEFAULT n * 3; "
    f"SELECT m, n, c.id FROM {JOINED}; END; END",
    # handlers
    f"BEGIN {CAUGHT}; {FAILS}; SELECT 2; END; SET n = 3",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN SET n = n + 1; END; {FAILS}; SET n = 9; END; SELECT n",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLSTATE VALUE '22012', SQLSTATE '42000' SET n = 5; {FAILS}; END; SELECT n",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION, NOT FOUND SET n = 4; {FAILS}; END; SELECT n",
    f"BEGIN DECLARE EXIT HANDLER FOR divide_by_zero SET n = 6; {FAILS}; END; SELECT n",
    f"BEGIN DECLARE EXIT HANDLER FOR UNRESOLVED_COLUMN SET n = 7; SELECT nothing FROM {JOINED}; END; SELECT n",
    f"BEGIN DECLARE EXIT HANDLER FOR UNRESOLVED_COLUMN.WITH_SUGGESTION SET n = 8; "
    f"SELECT nothing FROM {JOINED}; END; SELECT n",
    f"BEGIN {CAUGHT}; DECLARE EXIT HANDLER FOR SQLSTATE '22012' SELECT 'state' AS r; {FAILS}; END",
    f"BEGIN {CAUGHT}; BEGIN DECLARE EXIT HANDLER FOR SQLSTATE '42000' SELECT 'inner' AS r; {FAILS}; END; "
    "SELECT 'z'; END",
    f"BEGIN {CAUGHT}; BEGIN DECLARE EXIT HANDLER FOR NOT FOUND SELECT 'none' AS r; {FAILS}; END; END",
    f"BEGIN {CAUGHT}; BEGIN DECLARE EXIT HANDLER FOR DIVIDE_BY_ZERO SELECT 1 / 0; {FAILS}; END; END",
    f"BEGIN BEGIN {CAUGHT}; {FAILS}; END; SELECT 'after', count(*) FROM {JOINED}; END",
    f"BEGIN DECLARE m INT DEFAULT 1 / 0; {CAUGHT}; SELECT c.id FROM {JOINED}; END",
    f"BEGIN {CAUGHT}; SELECT c.id FROM {JOINED}; IF 1 / n > 1 THEN SELECT 1; END IF; SELECT 3; END",
    f"BEGIN {CAUGHT}; FOR x AS {FAILS} DO SELECT 1; END FOR; END",
    f"BEGIN {CAUGHT}; "
    f"FOR x AS SELECT id FROM t ORDER BY id DO SELECT 1 / (x.id - max(c.id)) FROM {JOINED}; END FOR; END",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION SELECT n AS r; BEGIN DECLARE n STRING DEFAULT 'in'; "
    f"{FAILS}; END; END",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN DECLARE y INT DEFAULT n + 3; SELECT y; END; {FAILS}; END",
    f"BEGIN DECLARE mine CONDITION FOR SQLSTATE '22012'; {CAUGHT}; BEGIN DECLARE EXIT HANDLER FOR mine SELECT 'mine'; "
    f"{FAILS}; END; END",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLSTATE 'P0001' SELECT c.id FROM {JOINED}; SELECT raise_error('x'); END",
]
FAIL = [
    f"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION, SQLSTATE '22012' SELECT 1; {FAILS}; END",
    f"BEGIN DECLARE EXIT HANDLER FOR NOT FOUND SELECT 1; {FAILS}; END",
    f"BEGIN {CAUGHT}; BEGIN {CAUGHT}; {FAILS}; END; END; SELECT 1 / 0 FROM {JOINED}",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION SELECT raise_error('again'); {FAILS}; END",
    f"BEGIN DECLARE EXIT HANDLER FOR nosuch SELECT 1; {FAILS}; END",
    f"BEGIN DECLARE EXIT HANDLER FOR SQLSTATE '00000' SELECT 1; {FAILS}; END",
    f"BEGIN {CAUGHT}; {CAUGHT}; {FAILS}; END",
    f"BEGIN {CAUGHT}; DECLARE z INT; {FAILS}; END",
    f"BEGIN SET n = 1; {CAUGHT}; {FAILS}; END",
    f"DECLARE n INT; SELECT c.id FROM {JOINED}",
    f"FOR x AS SELECT o.id AS a, c.id AS a FROM {JOINED} DO SELECT x.a; END FOR",
    f"FOR x AS SELECT o.id FROM {JOINED} DO FOR x AS SELECT 1 AS z DO SELECT 1; END FOR; END FOR",
    f"x: FOR x AS SELECT o.id FROM {JOINED} DO SELECT 1; END FOR",
    f"FOR x AS SELECT o.id FROM {JOINED} DO DECLARE z INT; SELECT z; END FOR",
    f"IF n = 0 THEN DECLARE z INT; SELECT c.id FROM {JOINED}; END IF",
    f"FOR x AS SELECT o.id FROM {JOINED} DO SELECT 1; END FOR; SELECT x.id",
    f"BEGIN {CAUGHT}; SELECT c.id FROM {JOINED}; END; SIGNAL SQLSTATE '45000'",
]


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


def script(text):
    return f"BEGIN DECLARE n INT DEFAULT 0; {text}; END"


def rows_of(df):
    return df.schema.simpleString(), sorted(map(repr, df.collect()))


@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize("text", SAME)
def test_scripts_have_sparks_result(worlds, text):
    session, theirs = worlds
    before = variables(session.spark)
    expected = theirs.sql(script(text).replace(NOW, ""))
    found = session.sql(script(text).replace(NOW, PERIODS[0]))
    assert rows_of(found) == rows_of(expected)
    assert variables(session.spark) == before


@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("text", FAIL)
def test_what_spark_refuses_or_fails_is_an_error(worlds, text):
    session, theirs = worlds
    before = variables(session.spark)
    with pytest.raises(Exception, match="SQLSTATE"):
        theirs.sql(script(text).replace(NOW, "")).collect()
    with pytest.raises((LookupCacheError, PySparkException)):
        session.sql(script(text).replace(NOW, PERIODS[0])).collect()
    assert variables(session.spark) == before


def variables(spark):
    """Return those variables of the session that scripts here declare, and are still there."""
    found = []
    for name in ("n", "m", "x", "y", "id", "a", "name", "r", "z"):
        try:
            spark.sql(f"SELECT system.session.{name}")
        except PySparkException:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize(("text", "fact"), [
    (f"BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET n = 1; {FAILS}; END", "CONTINUE handlers"),
    (f"l: LOOP BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION LEAVE l; {FAILS}; END; END LOOP", "no block 'l' here"),
    (f"FOR x AS SELECT o.id FROM {JOINED} DO SET id = 5; END FOR", "'id' is a column of FOR"),
    (f"FOR x AS SELECT o.k FROM {JOINED} DO SELECT 1; END FOR", "a variable 'k' already"),
    (f"FOR x AS SELECT 1 AS x FROM {JOINED} DO SELECT 1; END FOR", "has the name of a column"),
    (f"BEGIN DECLARE n INT; SELECT c.id FROM {JOINED}; END; SET n = DEFAULT", "sets variables to DEFAULT"),
    (f"BEGIN DECLARE var_n INT; SELECT c.id FROM {JOINED}; END", "a variable 'var_n' already"),
    (f"BEGIN DECLARE n INT; DECLARE EXIT HANDLER FOR SQLEXCEPTION SET n = 1; {FAILS}; END", "'n' hides another one"),
    (f"BEGIN DECLARE n INT; BEGIN {CAUGHT}; {FAILS}; END; END", "'n' hides another one"),
])  # fmt: skip
def test_what_only_sparks_interpreter_does_is_refused(worlds, text, fact):
    with pytest.raises(StatementError) as refused:
        worlds[0].sql(script(text).replace(NOW, PERIODS[0]))
    assert fact in refused.value.fact
    assert refused.value.position is not None


def refuse(key):
    raise ConnectionError("the source is down")


def test_a_handler_takes_the_failure_of_a_source(worlds):
    session, _ = worlds
    session.register_table(LookupTable.from_function("down", "id BIGINT, v STRING", key=["id"], function=refuse))
    text = f"BEGIN {CAUGHT}; SELECT d.v FROM o JOIN down {PERIODS[0]} AS d ON o.k = d.id; SELECT 1; END"
    assert [row.r for row in session.sql(script(text)).collect()] == ["caught"]


def test_the_condition_of_a_loop_does_not_see_the_variables_of_a_block_inside(worlds):
    """Spark's own does, where the block ends the loop's body: there ``n < 3`` compares 7."""
    text = (
        f"WHILE n < 3 DO SET n = n + 1; BEGIN DECLARE n INT DEFAULT n * 7; SELECT n, c.id FROM {JOINED}; END; END WHILE"
    )
    assert {row.n for row in worlds[0].sql(script(text).replace(NOW, PERIODS[0])).collect()} == {21}
    assert {row.n for row in worlds[1].sql(script(text).replace(NOW, "")).collect()} == {7}


def test_a_handler_does_not_take_what_only_a_lookup_refuses(worlds):
    text = f"BEGIN {CAUGHT}; SELECT c.id FROM o FULL JOIN cust {PERIODS[0]} AS c ON o.k = c.id; END"
    with pytest.raises(PlanError, match="FULL JOIN"):
        worlds[0].sql(script(text))
