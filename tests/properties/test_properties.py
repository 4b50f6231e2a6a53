"""The whole way, from condition to rows, against Spark's own join on the same rows; several cases share a job.

The cases are drawn first, with nothing run, then checked in bulk. Where one differs, the same draw is repeated and
hypothesis shrinks it, running single cases. ``LOOKUPCACHE_CASES`` says how many, ``LOOKUPCACHE_FIRST_CASE`` the number
of the first; else it follows from ``LOOKUPCACHE_SEED``, so that each night draws others; ``LOOKUPCACHE_MINUTES``
after how long no more are begun. Each drawn join is made over several sets of rows in one job (`case_sets`), and each
set counts as a join: three sets where there are few, 40 of a thousand or more. Few are run in every form that they can
take; of a thousand or more each is run in one, by its text, and all together in every form.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import sqlite3
import traceback
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from case_sets import fewer_rows, only_set, with_sets
from cases import AGE, ALLOWED, ERROR, MANY, SESSIONS, Case, Session, Side, cases
from hypothesis import HealthCheck, Phase, given, seed, settings
from jvm_names import remember_names
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F  # noqa: N812
from scale import SEED, is_time_left
from session_settings import DRAWN, DRAWN_OTHERWISE, MEANING
from sources import Rows, RowsLater, RowsOfMany, RowsOfManyLater, options_of

from lookupcache import LookupCacheError, LookupJoin, LookupTable, PlanError
from lookupcache.planner.naming import column_name

pytestmark = pytest.mark.spark

CASES = int(os.environ.get("LOOKUPCACHE_CASES", "60"))
FIRST = int(os.environ.get("LOOKUPCACHE_FIRST_CASE", SEED * 10**6))
EVERY_FORM = CASES < 1_000
SETS = int(os.environ.get("LOOKUPCACHE_SETS", "3" if EVERY_FORM else "40"))
"""How many sets of rows each drawn join has."""
BLOCKS = 3 if EVERY_FORM else 1
"""Few cases are judged in blocks, a test each, so that one that hangs or fails does not hide the others."""
CASES_AT_ONCE = 400
"""Many: those of equal settings share jobs. Not all: they take memory."""
CASES_PER_JOB = 4 if EVERY_FORM else 8
"""Few: each task reads the plan of its whole job, so that the time of a job grows with the square of its joins."""
THREADS = 2

RAISED = ("ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE", "CAST_INVALID_INPUT", "CAST_OVERFLOW")
"""Errors in values that Spark raises under ANSI rules."""
ENDLESS = "Max iterations"
"""An error of Spark's optimizer, in tests only, where its rules undo each other's changes."""

WIDE = ["map('k', s) AS m", "array(named_struct('x', v, 'y', array(s))) AS deep", "CAST(NULL AS VOID) AS z",
        "named_struct('k0', 'none', 'v', 'none', 's', 'none', 'x', 'none') AS `left`",
        *(f"coalesce(v, {number}) AS e{number}" for number in range(40))]  # fmt: skip
"""More columns of the left side of every seventh case, one of them with the name that qualifies the left side."""
NAMESAKE = "named_struct('k0', 'none', 'v', 'none', 's', 'none', 'x', 'none', 'n', 'none') AS o"
"""A struct with the alias that the left side of every third case has: its fields have the names of columns."""

FUNCTIONS = {
    "function": Rows, "function async": RowsLater, "functions": RowsOfMany, "functions async": RowsOfManyLater,
}  # fmt: skip

STAGES = {
    "field key, source", "constant key, source", "pre-filter, spark", "calc, source", "calc, worker",
    "residual, worker", "residual, spark", "filter after, spark",
}  # fmt: skip


@pytest.fixture(scope="module")
def judge(spark, tmp_path_factory) -> Iterator[Judge]:
    with pytest.MonkeyPatch.context() as patch:
        if not EVERY_FORM:
            remember_names(patch)
            # PySpark asks for the session at each call, to keep where it is called, which few cases need.
            patch.setattr("pyspark.errors.utils._enable_debugging_cache", False, raising=False)
        yield Judge(spark, tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="module")
def verdicts() -> dict[int, Verdict]:
    """Return the verdicts on the cases that were judged so far, by their numbers."""
    return {}


def judged(judge: Judge, first: int, joins: int) -> dict[int, Verdict]:
    """Judge cases from a number on until there are enough joins; return the verdicts by the cases' numbers."""
    found: dict[int, Verdict] = {}
    while (missing := joins - joins_of(found)) > 0 and (not found or is_time_left()):
        begin = first + len(found)
        drawn = {begin + n: case_with_sets(begin + n) for n in range(min(CASES_AT_ONCE, -(-missing // SETS)))}
        judge.judge(list(drawn.values()))
        found |= {number: judge(case) for number, case in drawn.items()}
        judge.known.clear()
    return found


def joins_of(verdicts: dict[int, Verdict]) -> int:
    return sum(verdict.sets for verdict in verdicts.values())


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_join_is_sparks_own(judge, verdicts, block, capsys):
    found = judged(judge, FIRST + block * 1_000, CASES // BLOCKS)
    verdicts |= found
    words = Counter(verdict.word for verdict in found.values())
    forms = Counter(form for verdict in found.values() for form in verdict.forms)
    with capsys.disabled():
        print(f"\n{joins_of(found)} joins of {len(found)} cases from number {min(found)} on: {dict(words)}; "
              f"joined in forms {dict(forms)}")  # fmt: skip
    wrong = [number for number, verdict in found.items() if verdict.word == "wrong"]
    if wrong:
        print(f"Cases that differ: {wrong}")
        simplify(judge, wrong[0])
        pytest.fail(f"Cases {wrong} differ; {found[wrong[0]].reason}")


def test_each_setting_that_changes_a_meaning_is_drawn(capsys):
    sessions = set(SESSIONS)
    with capsys.disabled():
        print(f"\n{len(MEANING)} settings in {len(sessions)} sessions")
    assert {name for session in sessions for name, _ in session.others} == set(MEANING) - set(DRAWN_OTHERWISE)
    assert {session.ansi for session in sessions} == {True, False}
    assert len({session.zone for session in sessions}) > 2
    if MANY:
        pairs = {pair for session in sessions for pair in itertools.combinations(sorted(dict(session.others)), 2)}
        assert pairs == set(itertools.combinations(sorted(DRAWN), 2))


def test_few_cases_are_refused_or_invalid(verdicts):
    assert joins_of(verdicts) > 0.9 * CASES, "this test judges what the blocks before it have found"
    words = Counter(verdict.word for verdict in verdicts.values())
    assert words["refused"] < 0.08 * len(verdicts)
    assert words["invalid"] < 0.05 * len(verdicts)


def test_many_cases_match_and_all_stages_occur(verdicts):
    joined = [verdict for verdict in verdicts.values() if verdict.word == "joined"]
    dropping = [verdict.matched for verdict in joined if verdict.how in ("inner", "semi")]
    assert sum(dropping) > 0.3 * len(dropping)
    stages = Counter(stage for verdict in joined for stage in verdict.stages)
    if CASES < 300:
        assert len(stages) >= len(STAGES) - 3  # three of the stages are rare
        return
    assert {stage for stage, count in stages.items() if count >= len(joined) / 200} == STAGES


def drawing(number: int, phases: Sequence[Phase]):
    """Return a decorator that runs a test with the case of this number, the second drawn; the first is a blank one."""
    settled = settings(
        max_examples=2, phases=phases, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return lambda test: seed(number)(settled(given(cases())(test)))


def case_of(number: int) -> Case:
    drawn = []

    @drawing(number, [Phase.generate])
    def keep(case):
        drawn.append(case)

    keep()
    return drawn[-1]


def case_with_sets(number: int) -> Case:
    case = case_of(number)
    return case if SETS == 1 else with_sets(case, SETS, random.Random(number))


def simplify(judge: Judge, number: int) -> None:
    """Draw a case again and find a simpler one that also differs; raises AssertionError with that."""

    every = Judge(judge.spark, judge.folder, numbers=judge.numbers, every_form=True)
    for one in (only_set(case_with_sets(number), n) for n in range(SETS)) if SETS > 1 else ():
        if every(one).word == "wrong":
            found = fewer_rows(one, lambda case: every(case).word == "wrong")
            pytest.fail(f"Case {number} differs: {found}\n{every(found).reason}")

    @drawing(number, [Phase.generate, Phase.shrink])
    def equals_sparks_own(case):
        verdict = every(case)
        assert verdict.word != "wrong", verdict.reason

    equals_sparks_own()


# ── judging ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Verdict:
    """What became of a case: ``joined``, ``refused`` by the planner, ``invalid`` in Spark's own eyes, or ``wrong``."""

    word: str
    reason: str = ""
    stages: frozenset[str] = frozenset()
    how: str = ""
    matched: bool = False
    forms: tuple[str, ...] = ()
    sets: int = 1


@dataclass
class Pair:
    """The same join by us, in some of its forms, and by Spark."""

    ours: dict[str, LookupJoin]
    theirs: object

    @property
    def first(self) -> LookupJoin:
        """Our join in the first of its forms; the plan is the same in all."""
        return next(iter(self.ours.values()))


@dataclass
class Judge:
    """Runs cases in a session; ``folder`` holds the SQLite files."""

    spark: object
    folder: Path
    known: dict[str, Verdict] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    every_form: bool = EVERY_FORM
    streams: bool = False
    """Whether the left side of our join is a stream; Spark's own is of the same rows."""

    def __post_init__(self) -> None:
        self.spark.udf.register("measured", lambda text: None if text is None else len(text), "int")

    def __call__(self, case: Case) -> Verdict:
        if case.text not in self.known:
            self.judge([case])
        return self.known[case.text]

    def judge(self, drawn: Sequence[Case]) -> None:
        """Judge many cases, those of a session in the same jobs."""
        by_session = sorted(drawn, key=lambda case: repr(case.session))
        for session, group in itertools.groupby(by_session, lambda case: case.session):
            cases_of_session = list(group)
            parts = [cases_of_session[n : n + CASES_PER_JOB] for n in range(0, len(cases_of_session), CASES_PER_JOB)]
            with self.settings(session), ThreadPoolExecutor(THREADS) as threads:
                for verdicts in threads.map(self._judge, parts):
                    self.known.update(verdicts)

    def check(self, drawn: Sequence[Case]) -> list[Verdict]:
        """Judge cases of which none may be wrong, and more than half must be joins; return their verdicts."""
        self.judge(drawn)
        verdicts = [self(case) for case in drawn]
        assert [verdict.reason for verdict in verdicts if verdict.word == "wrong"] == []
        assert sum(verdict.word == "joined" for verdict in verdicts) > len(drawn) / 2
        return verdicts

    def _judge(self, part: Sequence[Case]) -> dict[str, Verdict]:
        plans = {case.text: self.planned(case) for case in part}
        verdicts = {name: plan for name, plan in plans.items() if isinstance(plan, Verdict)}
        pairs = {name: plan for name, plan in plans.items() if isinstance(plan, Pair)}
        verdicts |= dict(zip(pairs, joined(list(pairs.values())), strict=True))
        return {case.text: self._counted(case, verdicts[case.text]) for case in part}

    def _counted(self, case: Case, verdict: Verdict) -> Verdict:
        """Return a verdict with the number of joins that were compared.

        One row in which Spark raises ends the joins of all sets: then only the first of them is joined.
        """
        if case.sets == 1 or verdict.word == "refused":
            return verdict
        if verdict.word == "invalid":
            return self._judge([only_set(case, 0)]).popitem()[1]
        return replace(verdict, sets=case.sets)

    # ── the two joins ────────────────────────────────────────────────────────────────────────────────────

    def planned(self, case: Case) -> Pair | Verdict:
        """Return our join and Spark's, or the error."""
        left, right = self.left(case), self.spark.createDataFrame(case.right.table(), case.right.ddl)
        of_ours = self.left(case, self.stream(case.left)) if self.streams else left
        try:
            theirs = spark_join(case, left, right)
        except AnalysisException as error:
            return self._refused(case, of_ours) or Verdict("invalid", _message(error))
        try:
            ours = {form: self.lookup_join(case, of_ours, form) for form in self.forms_of(case)}
            for form, join in ours.items():
                if (found := columns_of(join.df.drop(AGE, ERROR), join)) != columns_of(theirs, join):
                    return Verdict("wrong", f"{form}: {found} is not {columns_of(theirs, join)}")
            return Pair(ours, theirs)
        except PlanError as error:
            return Verdict("refused" if ALLOWED.search(str(error)) else "wrong", str(error))
        except Exception:
            return Verdict("wrong", traceback.format_exc())

    def _refused(self, case: Case, left) -> Verdict | None:
        """Judge the error of a join that Spark refuses: it names no columns as only the job does."""
        try:
            _ = self.lookup_join(case, left, self.forms_of(case)[0]).df
        except LookupCacheError as error:
            return Verdict("wrong", str(error)) if re.search(r"lookup_[lr]\d", str(error)) else None
        except Exception:
            return Verdict("wrong", traceback.format_exc())
        return None

    def forms_of(self, case: Case) -> list[str]:
        """Return the forms in which a case is run: each that it can take, or one of them."""
        if self.streams:
            return ["auto"]
        forms = forms_of(case)
        return forms if self.every_form else [forms[zlib.crc32(case.text.encode()) % len(forms)]]

    def left(self, case: Case, df=None):
        """Return the left side, of a stream if one is given."""
        df = self.spark.createDataFrame(case.left.table(), case.left.ddl) if df is None else df
        df = df.selectExpr("*", "named_struct('a', v, 'b', array(s)) AS n").withMetadata("v", {"comment": "a number"})
        number = zlib.crc32(case.left.text.encode())
        if number % 7 == 0:
            df = df.selectExpr("*", *WIDE)
        if number % 3 == 0:
            df = df.selectExpr("*", NAMESAKE).alias("o")
        return {"": df, "coalesce": df.coalesce(1), "repartition": df.repartition(3)}[case.spread]

    def stream(self, side: Side):
        """Return a stream of the rows, in two micro-batches."""
        folder, rows = self.folder / f"stream-{next(self.numbers)}", side.table()
        folder.mkdir()
        for number, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            pq.write_table(part, folder / f"{number}.parquet")
        # One after the other also where both have the same time.
        os.utime(folder / "0.parquet", (0, 0))
        return self.spark.readStream.schema(side.ddl).option("maxFilesPerTrigger", 1).parquet(str(folder))

    def lookup_join(self, case: Case, left, form: str) -> LookupJoin:
        on = case.on if isinstance(case.on, str) else list(case.on)
        table = self.lookup_table(case)
        as_of = None if case.as_of is None else case.as_of.time
        options = {"lookup.form": form}
        return LookupJoin(left, table, on, case.how, case.select, where=case.where, as_of=as_of, options=options)

    def lookup_table(self, case: Case) -> LookupTable:
        options = case.table_options | self.store_options(case)
        if case.source in FUNCTIONS:
            key, function = case.right.columns[0][0], FUNCTIONS[case.source](case.right.table())
            batch = isinstance(function, RowsOfMany | RowsOfManyLater)
            return LookupTable.from_function(
                "t", case.right.ddl, key=[key], function=function, batch=batch, options=options
            )
        if case.source == "sql":
            own = {"connector": "sql", "url": f"sqlite:///{self.database(case.right)}", "table": "t"}
        else:
            kinds = {"memory": "Memory", "superset": "Superset", "filtering": "Filtering", "async": "Awaited"}
            own = {"connector": f"sources:{kinds[case.source]}", **options_of(case.right.table())}
        return LookupTable("t", case.right.ddl, {**own, **options})

    def store_options(self, case: Case) -> dict[str, str]:
        """Return options for every third case whose cache may have a store: one for all cases and their forms."""
        if case.table_options.get("lookup.cache") not in ("LRU", "TTL") or zlib.crc32(case.text.encode()) % 3:
            return {}
        return {"lookup.cache.store": str(self.folder / "store"), "lookup.cache.store.timeout": "1 min"}

    def database(self, side: Side) -> Path:
        path = self.folder / f"{next(self.numbers)}.db"
        columns = ", ".join('"{}"'.format(name.replace('"', '""')) for name, _ in side.columns)
        marks = ", ".join("?" for _ in side.columns)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE t ({columns})")
            connection.executemany(f"INSERT INTO t VALUES ({marks})", [stored(row) for row in side.table().to_pylist()])
        return path

    @contextmanager
    def settings(self, session: Session) -> Iterator[None]:
        wanted = {
            "spark.sql.ansi.enabled": str(session.ansi).lower(),
            "spark.sql.session.timeZone": session.zone,
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(session.arrow_rows),
            "spark.sql.leafNodeDefaultParallelism": str(session.partitions),
            "spark.sql.shuffle.partitions": str(session.partitions),
            # Small plans, run once: compiling them would take longer than running them.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            # Else Spark computes over literal rows while it plans, and fails there.
            "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
        } | dict(session.others)
        before = {name: self.spark.conf.get(name, None) for name in wanted}
        try:
            for name, value in wanted.items():
                self.spark.conf.set(name, value)
            yield
        finally:
            for name, value in before.items():
                self.spark.conf.unset(name) if value is None else self.spark.conf.set(name, value)


def stored(row: dict) -> list:
    """Return a row as SQLite holds it."""
    return [_stored(value) for value in row.values()]


def _stored(value):
    if isinstance(value, Decimal):
        return format(value, "f")
    if hasattr(value, "hour"):
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return value.isoformat() if hasattr(value, "isoformat") else value


def columns_of(df, join: LookupJoin) -> list[tuple]:
    """Return the columns of a result: names, types, metadata, and which of the left side may have nulls.

    In SQL, computed columns are without metadata, which docs/limits.md says.
    """
    plain = {column_name("left", name) for name in join.plan.left_columns}
    kept = {output.name for output in join.plan.output if output.sql in plain}

    def described(f) -> tuple:
        has_metadata = isinstance(join, LookupJoin) or f.name in kept
        metadata = {key: value for key, value in (f.metadata or {}).items() if has_metadata and key[:2] != "__"}
        return f.name, f.dataType.simpleString(), metadata, f.name not in kept or f.nullable

    return [described(f) for f in df.schema.fields]


def spark_join(case: Case, left, right):
    on = F.expr(case.on) if isinstance(case.on, str) else list(case.on)
    if case.as_of is None:
        joined = left.alias("o").join(right.alias("t"), on, case.how)
    else:
        joined = join_as_of(case, left, right)
    joined = joined if case.where is None else joined.where(case.where)
    return joined if case.select is None else joined.selectExpr(*case.select)


def join_as_of(case: Case, left, right):
    """Return Spark's join with the rows that are valid, or by a window with the latest version."""
    time, columns = case.as_of.time, [f"t.{name}" for name in case.as_of.columns]
    if len(columns) == 2:
        start, end = columns
        period = f"({start} <= {time} OR {start} IS NULL) AND ({end} > {time} OR {end} IS NULL) AND {time} IS NOT NULL"
        return left.alias("o").join(right.alias("t"), F.expr(f"({case.on}) AND {period}"), case.how)
    rows = left.withColumn("number", F.monotonically_increasing_id())
    joined = rows.alias("o").join(right.alias("t"), F.expr(f"({case.on}) AND {columns[0]} <= {time}"), case.how)
    if case.how in ("inner", "left"):
        place = f"rank() OVER (PARTITION BY o.number ORDER BY {columns[0]} DESC)"
        joined = joined.selectExpr("*", f"{place} AS place").where("place = 1").drop("place")
    return joined.drop("number")


def forms_of(case: Case) -> list[str]:
    """Return the forms that a case can take: a table is broadcast where it is held whole, for all rows or none."""
    options = dict(case.options)
    whole = options.get("lookup.cache") == "ALL" and "lookup.on-error" not in options
    return ["worker", "distinct", *(["broadcast"] if whole else [])]


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────


def marked(df, number: int, side: str):
    """Return the rows as exact text, with the case and the side they are of; no lookup has failed, so no error."""
    marks = [name for name in (AGE, ERROR) if name in df.columns]
    plain = df.dtypes[: len(df.columns) - len(marks)]
    names = [f"c{n}" for n in range(len(plain))]
    texts = [exact(name, type_) for name, (_, type_) in zip(names, plain, strict=True)]
    failure = f"coalesce({ERROR}.message, '')" if ERROR in marks else "''"
    return df.toDF(*names, *marks).selectExpr(
        f"{number} AS `case`", f"'{side}' AS side", f"concat(concat_ws('|', {', '.join(texts)}), {failure}) AS `row`"
    )


def exact(name: str, type_: str) -> str:
    """Return SQL for a text that differs where the values differ: a sign of zero, a byte, a moment."""
    text = {"timestamp": f"CAST(unix_micros({name}) AS STRING)"}.get(type_, f"CAST({name} AS STRING)")
    if type_ in ("string", "binary"):
        text = f"hex({name})"
    return f"coalesce({text}, 'null')"


def united(frames: Sequence):
    """Return the union as a tree, not a list, of unions."""
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return united(frames[:middle]).unionAll(united(frames[middle:]))


def collected(frames: Sequence) -> list:
    """Return the rows of DataFrames, those of streams by a query that reads what is there."""
    rows = []
    if still := [frame for frame in frames if not frame.isStreaming]:
        rows += united(still).collect()
    if streams := [frame for frame in frames if frame.isStreaming]:
        query = united(streams).writeStream.foreachBatch(lambda df, _: rows.extend(df.collect()))
        with TemporaryDirectory() as folder:
            query.option("checkpointLocation", folder).trigger(availableNow=True).start().awaitTermination()
    return rows


def joined(pairs: Sequence[Pair]) -> list[Verdict]:
    """Judge pairs in one job; where one of them fails it, each half in one, and so on."""
    if len(pairs) < 2:
        return [alone(pair) for pair in pairs]
    try:
        return together(pairs)
    except Exception:
        middle = len(pairs) // 2
        return joined(pairs[:middle]) + joined(pairs[middle:])


def together(pairs: Sequence[Pair]) -> list[Verdict]:
    frames = [
        marked(df, n, side)
        for n, pair in enumerate(pairs)
        for side, df in {**{form: join.df for form, join in pair.ours.items()}, "theirs": pair.theirs}.items()
    ]
    found: dict[tuple[int, str], Counter] = defaultdict(Counter)
    for row in collected(frames):
        found[row.case, row.side][row.row] += 1
    return [
        compared(pair, {form: found[n, form] for form in pair.ours}, found[n, "theirs"]) for n, pair in enumerate(pairs)
    ]


def alone(pair: Pair) -> Verdict:
    """Judge a case by itself. Where Spark raises, ours may do as it likes.

    Spark may also get by without computing what ours has Spark compute, and miss the overflow in it.
    """
    try:
        theirs = Counter(row.row for row in collected([marked(pair.theirs, 0, "theirs")]))
    except Exception as error:
        return raised(error, (*RAISED, ENDLESS))
    try:
        ours = {
            form: Counter(row.row for row in collected([marked(join.df, 0, form)])) for form, join in pair.ours.items()
        }
    except PythonException as error:
        return Verdict("wrong", f"ours raises: {_message(error)}\n{pair.first.explain()}")
    except Exception as error:
        return raised(error, RAISED)
    return compared(pair, ours, theirs)


def raised(error: Exception, known: Sequence[str]) -> Verdict:
    return Verdict("invalid" if any(word in str(error) for word in known) else "wrong", _message(error))


def compared(pair: Pair, ours: dict[str, Counter], theirs: Counter) -> Verdict:
    plan = pair.first.plan
    for form, rows in ours.items():
        if rows != theirs:
            differences = f"only ours: {dict(rows - theirs)}\nonly Spark's: {dict(theirs - rows)}"
            return Verdict("wrong", f"{differences}\n{pair.ours[form].explain()}")
    stages = frozenset(f"{part.stage}, {part.evaluator}" for part in plan.conjuncts)
    return Verdict("joined", "", stages, plan.how, bool(theirs), tuple(ours))


def _message(error: Exception) -> str:
    lines = str(error).split("JVM stacktrace")[0].strip().splitlines()
    return "\n".join(line for line in lines if not line.startswith("\tat "))[-2000:]
