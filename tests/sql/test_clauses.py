"""What Spark's grammar has, beside a lookup: each expression and clause gives the columns and rows of Spark's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_world import SMALL, different, result_of
from sql_world import make_world, sparks_own

pytestmark = pytest.mark.spark

JOIN = "LEFT JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer_id = c.id"
FROM = f"FROM orders AS o {JOIN}"
FORMS = {
    "conditions": (f"SELECT o.order_id, c.name {FROM} WHERE {{}}", f"SELECT o.order_id, c.name {FROM} AND ({{}})"),
    "filters": (f"SELECT o.order_id, c.name {FROM} WHERE {{}}",),
    "values": (f"SELECT o.order_id, {{}} AS v, c.zip {FROM}", f"SELECT o.order_id {FROM} ORDER BY {{}}, 1"),
    "aggregates": (
        f"SELECT {{}} AS n, c.country {FROM} GROUP BY GROUPING SETS ((c.country))",
        f"SELECT c.country {FROM} GROUP BY c.country HAVING ({{}}) IS NOT NULL",
    ),
    "groups": (f"SELECT c.country, count(*) AS n {FROM} {{}}",),
    "ends": (f"SELECT o.order_id, c.name {FROM} {{}}",),
    "firsts": (f"SELECT o.order_id, c.name FROM {{}} {JOIN}", f"FROM {{}} {JOIN} SELECT o.order_id, c.name"),
    "heads": (f"{{}} {FROM}",),
    "whole": ("{}",),
}
"""The statements of each section of the file, with a line of it in each."""
AT_ONCE = 20


def statements() -> dict[str, list[str]]:
    """Return the statements of each section of the file: each line in one of its forms, the conditions in both."""
    found, section = dict[str, list[str]](), ""
    for number, line in enumerate((Path(__file__).parent / "clauses.txt").read_text().splitlines()):
        if line.startswith("== "):
            section = line[3:]
        elif line:
            written = line.replace("{noon}", "TIMESTAMP'2024-01-01 12:00:00'").replace("{from}", FROM)
            forms = FORMS[section]
            chosen = forms if section == "conditions" else forms[number % len(forms) :][:1]
            found.setdefault(section, []).extend(form.replace("{}", written) for form in chosen)
    return found


def parts() -> dict[str, list[str]]:
    """Return the statements in parts of few."""
    return {
        f"{section} {start}": texts[start : start + AT_ONCE]
        for section, texts in statements().items()
        for start in range(0, len(texts), AT_ONCE)
    }


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    made = make_world(spark.newSession(), tmp_path_factory.mktemp("clauses"))
    for name, value in SMALL.items():
        made.spark.conf.set(name, value)
    return made


@pytest.mark.extended(keep_one_in=8)
@pytest.mark.parametrize("texts", parts().values(), ids=parts())
def test_clauses_that_spark_reads_are_read_beside_a_lookup(session, texts):
    refused, pairs = dict[str, str](), {}
    for text in texts:
        ours, expected = result_of(session, text, None), result_of(session.spark, sparks_own(text), None)
        if isinstance(expected, str):
            refused |= {} if isinstance(ours, str) else {text: f"Spark refuses: {expected}"}
        elif isinstance(ours, str):
            refused[text] = ours
        elif ours.dtypes != expected.dtypes:
            refused[text] = f"{ours.dtypes} in place of {expected.dtypes}"
        else:
            pairs[text] = ours, expected, None
    assert refused == {}, refused
    assert len(pairs) > 0.5 * len(texts)
    wrong = different(dict(enumerate(pairs.values())))
    assert {list(pairs)[number]: why for number, why in wrong.items()} == {}
