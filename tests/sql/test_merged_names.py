"""Names that USING and NATURAL merge where a relation has the name of a column, columns that only ON reads, and names
that structs in a condition take from columns."""

from __future__ import annotations

import pytest
from drawn_world import make_worlds
from sql_statements import NOW, PERIODS

pytestmark = pytest.mark.spark

STATEMENTS = [
    f"SELECT name.k, o.v, c.name FROM o LEFT JOIN t AS name USING (name, id) JOIN cust {NOW} AS c ON o.k = c.id",
    f"SELECT name.*, c.id FROM o LEFT JOIN t AS name USING (name, id) JOIN cust {NOW} AS c ON o.k = c.id",
    f"SELECT * FROM o LEFT JOIN t AS name USING (name, id) JOIN cust {NOW} AS c ON o.k = c.id AND "
    "coalesce(name.c, 'x') > c.name",
    f"SELECT k.c, * FROM o NATURAL LEFT JOIN t AS k JOIN cust {NOW} AS c ON o.id = c.id",
    f"SELECT x.k FROM t AS x JOIN cust {NOW} AS d USING (k) NATURAL LEFT JOIN t AS c "
    f"LEFT JOIN many {NOW} AS m ON x.k = m.id",
    # What an earlier ON reads, and nothing else.
    f"SELECT d.k FROM o JOIN many {NOW} AS x ON o.k = x.id AND x.name IN (SELECT name FROM t) JOIN many {NOW} AS d "
    "ON d.id = o.k",
    f"SELECT o.id FROM o JOIN many {NOW} AS x ON o.k = x.id AND x.name = (SELECT max(name) FROM o WHERE name < 'b') "
    f"JOIN many {NOW} AS d ON d.id = o.k JOIN cust {NOW} AS c ON c.id = o.k",
    # What has another name in the left DataFrame, is computed, or is a column there for the condition alone.
    f"SELECT o.k FROM o JOIN t ON o.id = t.id LEFT ANTI JOIN cust {NOW} AS c ON o.k = c.id "
    """AND to_json(struct(o.id, t.ID, c.K)) LIKE '{"id":_,"ID":_,"K":_}'""",
    f"SELECT o.k, c.name FROM o LEFT JOIN cust {NOW} AS c ON o.k = c.id AND to_json((label, o.k)) LIKE '{{\"label\":%'",
    f"SELECT o.k FROM o JOIN cust {NOW} AS c ON o.k = c.id WHERE to_json((label, o.k)) LIKE '{{\"label\":%'",
    f"SELECT o.k FROM o LEFT ANTI JOIN cust {NOW} AS c ON o.k = c.id AND "
    """to_json(struct(var_n, c.id)) LIKE '{"var_n":2,"id":_}'""",
    # A merged column in GROUP BY beside an alias of its name, and a column that IDENTIFIER names behind a sub-query.
    f"SELECT upper(o.name) AS name, max(x.name) AS m FROM o LEFT JOIN cust {NOW} AS x USING (id, name) "
    "GROUP BY name HAVING name IS NOT NULL",
    f"SELECT (SELECT cust.c FROM cust WHERE cust.id = o.id) AS zz, o.v FROM o JOIN many {NOW} AS x ON o.id = x.id "
    "WHERE IDENTIFIER('x.' || 'k') > 0",
]


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements_have_sparks_columns_and_rows(worlds, text):
    session, theirs = worlds
    ours, expected = session.sql(text.replace(NOW, PERIODS[0])), theirs.sql(text.replace(NOW, ""))
    assert ours.dtypes == expected.dtypes
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, expected.collect()))
