"""Statements that were written to break the rewriting, against the same ones of Spark's over views of the same rows."""

from __future__ import annotations

import logging

import pytest
from drawn_world import different, make_worlds
from pyspark.errors import AnalysisException
from sql_hostile import AS_FULL_TABLES, CONDITIONS, REFUSED, STATEMENTS
from sql_statements import NOW, PERIODS

from lookupcache import LookupCacheError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def worlds(spark):
    """Return a session with lookup tables, and one of Spark's with views of the same rows."""
    return make_worlds(spark)


PARTS = 7


def with_periods(text):
    return text.replace(NOW, PERIODS[0])


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_hostile_statements_give_what_spark_gives(worlds, part):
    session, theirs = worlds
    pairs, wrong = {}, {}
    texts = [*STATEMENTS, *AS_FULL_TABLES][part::PARTS]
    for text in texts:
        try:
            plain, ours = theirs.sql(text.replace(NOW, "")), session.sql(with_periods(text))
        except Exception as error:
            wrong[text] = str(error)
            continue
        if ours.dtypes == plain.dtypes:
            pairs[len(pairs)] = ours, plain, None
        else:
            wrong[text] = f"{ours.dtypes} in place of {plain.dtypes}"
    texts = [text for text in texts if text not in wrong]
    wrong |= {texts[number]: why for number, why in different(pairs).items()}
    assert not wrong, "\n\n".join(f"{text}\n  {why}" for text, why in wrong.items())


@pytest.mark.extended
def test_a_subquery_over_both_sides_is_the_same_in_on_and_where(worlds):
    session, theirs = worlds
    texts = zip(CONDITIONS[::2], CONDITIONS[1::2], strict=True)
    pairs = [(session.sql(with_periods(on)), theirs.sql(where.replace(NOW, "")), None) for on, where in texts]
    assert different(dict(enumerate(pairs))) == {}


@pytest.mark.parametrize("text", REFUSED)
def test_a_variable_never_stands_for_an_outer_querys_column(worlds, text):
    session, _ = worlds
    with pytest.raises(LookupCacheError, match=r"query around (it|this one), or .*variable") as refused:
        session.sql(with_periods(text))
    assert refused.value.position is not None


@pytest.mark.parametrize("text", AS_FULL_TABLES)
def test_a_full_table_is_read_only_where_an_option_permits_it(worlds, text):
    session, _ = worlds
    with pytest.raises(LookupCacheError) as refused:
        session.sql(with_periods(text).replace("_all", ""))
    assert refused.value.position is not None


def test_a_full_scan_is_shown_and_logged(worlds, caplog):
    session, _ = worlds
    text = with_periods(
        f"SELECT c.name FROM o JOIN cust {NOW} AS d ON o.k = d.id FULL JOIN cust_all {NOW} AS c ON c.k = d.k"
    )
    with caplog.at_level(logging.WARNING, "lookupcache.sql"):
        [[shown]] = session.sql(f"EXPLAIN {text}").collect()
    assert shown.startswith("Full scan: cust_all, which is not looked up: A FULL JOIN cannot be a lookup join.")
    assert "Lookup join: inner, table d" in shown
    assert "'cust_all' is read completely" in caplog.text


def test_a_lookup_table_is_named_itself(worlds):
    session, _ = worlds
    with pytest.raises(LookupCacheError, match="Write the name itself") as refused:
        session.sql(f"SELECT o.id FROM o JOIN IDENTIFIER('cust') {PERIODS[0]} AS c ON o.id = c.id")
    assert refused.value.position.marked.startswith("IDENTIFIER('cust')")


def test_a_query_in_identifier_is_refused_as_spark_refuses_it(worlds):
    for session in worlds:
        with pytest.raises((LookupCacheError, AnalysisException), match="NOT_A_CONSTANT_STRING"):
            session.sql("SELECT o.id FROM o JOIN IDENTIFIER((SELECT 'cust')) AS c ON o.id = c.id")
