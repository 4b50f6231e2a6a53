"""The joins that hypothesis draws for the DataFrame API, written as SQL: the same rows, types and names as Spark's.

``LOOKUPCACHE_CASES`` says how many, a sixth of it, ``LOOKUPCACHE_FIRST_CASE`` the number of the first.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from cases import AGE, ALLOWED, ERROR, Case, Session
from session_settings import NOT_OF_STATEMENTS
from test_properties import FIRST, Judge, case_of

from lookupcache import LookupJoin, LookupSession

pytestmark = pytest.mark.spark

CASES = max(int(os.environ.get("LOOKUPCACHE_CASES", "108")) // 6, 18)
HOWS = {"inner": "JOIN", "left": "LEFT JOIN", "semi": "LEFT SEMI JOIN", "anti": "LEFT ANTI JOIN"}


@dataclass(frozen=True)
class SqlJoin:
    """What the judge wants to know of a join: its result, its plan, its text."""

    df: object
    join: LookupJoin

    @property
    def plan(self):
        return self.join.plan

    def explain(self) -> str:
        return self.join.explain()


@dataclass
class SqlJudge(Judge):
    """Judges cases as SQL: each has a view for its left side and a lookup table, of names of their own."""

    views: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = LookupSession(self.spark)

    def settings(self, session: Session):
        """Set all that statements with lookups are compared under."""
        others = tuple(setting for setting in session.others if setting[0] not in NOT_OF_STATEMENTS)
        return super().settings(replace(session, others=others))

    def planned(self, case: Case):
        """Return our join and Spark's, without stars where statements have columns for age or error."""
        marks = {AGE, ERROR}.intersection(map(str, case.table_options.values()))
        if case.select is not None and marks:
            case = replace(case, select=tuple(item for item in case.select if "*" not in item) or ("o.v",))
        return super().planned(case)

    def lookup_join(self, case: Case, left, form: str) -> SqlJoin:
        number = next(self.numbers)
        left.createOrReplaceTempView(f"drawn_{number}")
        self.views.append(f"drawn_{number}")
        self.session.register_table(self.lookup_table(case), f"looked_{number}")
        query = self.session.query(statement(case, number, form))
        return SqlJoin(query.df(), query.joins[0])


def statement(case: Case, number: int, form: str) -> str:
    items = "*" if case.select is None else ", ".join(case.select)
    on = f"ON {case.on}" if isinstance(case.on, str) else f"USING ({', '.join(case.on)})"
    where = "" if case.where is None else f" WHERE {case.where}"
    hint = f"/*+ OPTIONS('lookup.form'='{form}') */"
    time = "o.proc_time" if case.as_of is None else case.as_of.time
    table = f"looked_{number} {hint} FOR SYSTEM_TIME AS OF {time} AS t"
    return f"SELECT {items} FROM drawn_{number} AS o {HOWS[case.how]} {table} {on}{where}"


@pytest.fixture(scope="module")
def verdicts(spark, tmp_path_factory):
    """Return what became of each case, by its number."""
    judge = SqlJudge(spark, tmp_path_factory.mktemp("sqlite"), every_form=False)
    drawn = {number: case_of(number) for number in range(FIRST, FIRST + CASES)}
    judge.judge(list(drawn.values()))
    for view in judge.views:
        spark.catalog.dropTempView(view)
    return {number: judge(case) for number, case in drawn.items()}


def test_every_join_in_sql_is_sparks_own(verdicts, capsys):
    with capsys.disabled():
        words = Counter(verdict.word for verdict in verdicts.values())
        print(f"\n{len(verdicts)} SQL joins from number {FIRST} on: {dict(words)}")
    wrong = {number: verdict.reason for number, verdict in verdicts.items() if verdict.word == "wrong"}
    assert wrong == {}


def test_few_cases_are_refused_and_many_match(verdicts):
    words = Counter(verdict.word for verdict in verdicts.values())
    assert words["joined"] > 0.85 * len(verdicts), (words, ALLOWED.pattern)
    assert sum(verdict.matched for verdict in verdicts.values()) > 0.3 * len(verdicts)
