"""Drawn statements over streaming views: several sub-queries and a join in one, with restarts and kinds of triggers.

Also drawn are the types of order columns, the session's time zone of each run, orders that both sides have, conditions
that are constant or on the outer row alone, and doubled parentheses. A model, a row at a time, says what each order
must get.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from arrivals import Arrivals
from needs import joins_streams
from scale import SCALE, SEED, scale_up

from lookupcache import LookupSession, LookupTable
from lookupcache.spark.latest import PROVIDER, ROCKSDB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = max(int(os.environ.get("LOOKUPCACHE_CASES", "150")) // 150, 1)
IS_SCALED = SCALE > 1 or SEED > 0 or CASES > 1
SEEDS = [1000 * SEED + number for number in range(scale_up(4 * CASES))] if IS_SCALED else [1646]
"""By day one, with an order of both sides and three kinds of inner queries."""

Rate = tuple[str | None, float | None, int | None]
"""Currency, rate, and when."""
EPOCH = dt.datetime(1970, 1, 1)
MOMENTS: dict[str, tuple[str, str, Callable[[int], Any]]] = {
    # SQL for a value of a type from a number, for the number from a value, and the value in Python.
    "INT": ("{}", "{}", lambda at: at),
    "TIMESTAMP": ("timestamp_seconds({})", "unix_seconds({})", dt.datetime.fromtimestamp),
    "TIMESTAMP_NTZ": (
        "TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {})",
        "date_diff(SECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {})",
        lambda at: EPOCH + dt.timedelta(seconds=at),
    ),
    "DATE": ("date_from_unix_date({})", "unix_date({})", lambda at: EPOCH.date() + dt.timedelta(days=at)),
}
ZONES = ["UTC", "Asia/Kathmandu", "America/New_York"]
OUTER: dict[str, Callable[[int], bool]] = {  # Conditions that do not read the view, and the amounts they are true for.
    "": lambda amount: True,
    "FALSE": lambda amount: False,
    "o.amount % 2 = 0": lambda amount: amount % 2 == 0,
    "((1 = 1))": lambda amount: True,
}
Order = tuple[int, str | None, int | None]
"""Amount, currency, and when."""


@dataclass(frozen=True)
class Inner:
    """A query whose last row is read: its relation, correlation, condition and column.

    ``relation`` is a view, a query in parentheses, which may have a limit of one row, a common table expression, or a
    registered table whose rows have an order. A condition on a table or on one row is compared with the latest row;
    one on the others chooses among the rows.
    """

    number: int
    relation: str
    key: tuple[str, ...]
    least: int | None
    is_inside: bool
    column: str
    limit: bool
    at: str
    outer: str
    doubled: bool
    left_order: bool

    @classmethod
    def of(cls, draw: random.Random, number: int, at: str, *, left_order: bool) -> Inner:
        relation = draw.choice(["view", "query", "with", "table", "limited"])
        key = ("ccy",) if relation == "table" else draw.choice([(), ("ccy",), ("at",), ("ccy", "at"), ("at", "ccy")])
        inside = relation in ("query", "with") and draw.random() < 0.5
        column = draw.choice([*COLUMNS])
        outer = draw.choice(["", "", *OUTER])
        least, limit, doubled = draw.choice([None, 1]), draw.random() < 0.5, draw.random() < 0.4
        by_both = left_order and relation == "table"
        return cls(number, relation, key, least, inside, column, limit, at, outer, doubled, by_both)

    @property
    def common(self) -> list[str]:
        """Its common table expression."""
        return [f"w{self.number} AS ({self._selected})"] if self.relation == "with" else []

    @property
    def sql(self) -> str:
        """The scalar sub-query."""
        relation = {"view": "rates", "with": f"w{self.number}", "table": "ordered", "query": f"({self._selected})"}
        relation["limited"] = f"({self._selected} LIMIT 1)"
        own = [f"r.exchange > {self.least}"] if self.least is not None and not self.is_inside else []
        conditions = [f"r.{name} = o.{name}" if self.number % 2 else f"o.{name} = r.{name}" for name in self.key] + own
        conditions += [self.outer] if self.outer else []
        text = " AND ".join(f"(({one}))" for one in conditions) if self.doubled else " AND ".join(conditions)
        where = f" WHERE {text}" if conditions else ""
        limit = " LIMIT 1" if self.limit else ""
        column = self.column.format(MOMENTS[self.at][1].format("r.at"))
        inner = f"(SELECT {column} FROM {relation[self.relation]} AS r{where}{limit})"
        return f"(({inner}))" if self.doubled else inner

    @property
    def is_number(self) -> bool:
        """Whether its value is a number."""
        return self.column != "r.at" or self.at == "INT"

    def last(self) -> Last:
        """Return its last rows, of which there are none yet."""
        outer = OUTER[self.outer]
        if self.relation == "limited":
            return Last((), self.least, chooses=False, compared=self.key, outer=outer)
        is_table = self.relation == "table"
        return Last(
            self.key, self.least, is_ordered=is_table, chooses=not is_table, outer=outer, by_both=self.left_order
        )

    def value(self, rate: Rate | None) -> Any:
        """Return the value of the column in the last row."""
        if rate is None:
            return None
        if self.column == "r.at":
            return None if rate[2] is None else MOMENTS[self.at][2](rate[2])
        return COLUMNS[self.column](rate)

    @property
    def _selected(self) -> str:
        where = f" WHERE exchange > {self.least}" if self.is_inside and self.least is not None else ""
        return f"SELECT at, exchange, ccy FROM rates{where}"


COLUMNS: dict[str, Callable[[Rate], float | None]] = {
    "r.exchange": lambda rate: rate[1],
    "coalesce(r.exchange, 7D)": lambda rate: 7.0 if rate[1] is None else rate[1],
    "r.exchange * 2 + {}": lambda rate: None if rate[1] is None or rate[2] is None else rate[1] * 2 + rate[2],
    "r.at": lambda rate: rate[2],
}


@dataclass
class Last:
    """The last rows of an inner query, or of a join's relation."""

    key: Sequence[str]
    least: int | None
    is_ordered: bool = False
    chooses: bool = True
    compared: Sequence[str] = ()
    outer: Callable[[int], bool] = OUTER[""]
    by_both: bool = False
    rows: dict[tuple[Any, ...], Rate] = field(default_factory=dict)
    before: dict[tuple[Any, ...], Rate] = field(default_factory=dict)
    arrived: Sequence[Rate] = ()

    def arrive(self, rates: Sequence[Rate]) -> None:
        """Take the rates of a micro-batch."""
        self.before, self.arrived = dict(self.rows), rates
        for rate in rates:
            self.fold(rate)

    def fold(self, rate: Rate) -> None:
        if self.chooses and not self._passes(rate):
            return
        key = tuple({"ccy": rate[0], "at": rate[2]}[name] for name in self.key)
        before = self.rows.get(key)
        if None in key or (self.is_ordered and before is not None and order_of(before) > order_of(rate)):
            return
        self.rows[key] = rate

    def find(self, order: Order) -> Rate | None:
        left = {"ccy": order[1], "at": order[2]}
        if self.by_both:  # What was stored before, and what has arrived that is not above the order.
            then = Last(self.key, self.least, is_ordered=True, chooses=self.chooses, rows=dict(self.before))
            then.arrive([rate for rate in self.arrived if order_of(rate) <= order_of(order)])
            then.outer = self.outer
            return then.find(order)
        rate = self.rows.get(tuple(left[name] for name in self.key))
        if rate is None or not self._passes(rate) or not self.outer(order[0]):
            return None
        right = {"ccy": rate[0], "at": rate[2]}
        return rate if all(left[name] is not None and left[name] == right[name] for name in self.compared) else None

    def _passes(self, rate: Rate) -> bool:
        return self.least is None or (rate[1] is not None and rate[1] > self.least)


def order_of(row: Rate | Order) -> int:
    return -1 if row[2] is None else row[2]


@dataclass(frozen=True)
class Statement:
    """A statement with sub-queries as columns, in expressions and in WHERE, and perhaps a join."""

    columns: tuple[Inner, ...]
    where: Inner | None
    join: str
    least: int | None
    is_present: bool
    at: str
    left_order: bool
    outer: str

    @classmethod
    def of(cls, draw: random.Random) -> Statement:
        count, at, both = draw.randrange(1, 3), draw.choice([*MOMENTS]), draw.random() < 0.5
        columns = tuple(Inner.of(draw, number, at, left_order=both) for number in range(count))
        where = draw.choice([None, Inner.of(draw, count, at, left_order=both)])
        join, outer = draw.choice(["", *JOINS]), draw.choice(["", *OUTER])
        return cls(columns, where, join, draw.choice([None, 1]), draw.random() < 0.7, at, both, outer)

    @property
    def sql(self) -> str:
        inner = [*self.columns, *([self.where] if self.where else [])]
        common = [text for one in inner for text in one.common]
        items = ["o.amount", *(EXPRESSIONS[one.number % 2 and one.is_number].format(one.sql) for one in self.columns)]
        conditions = []
        if self.where is not None:
            conditions = [f"{self.where.sql} IS {'NOT ' if self.is_present else ''}NULL"]
        join = ""
        if self.join:
            on = "((o.ccy = j.ccy))" + ("" if self.least is None else f" AND j.exchange > {self.least}")
            on += f" AND {self.outer}" if self.outer else ""
            comes_with_where = self.join.startswith((",", "CROSS"))
            conditions += [on] if comes_with_where else []
            join = f"{self.join.format(RELATION)}{'' if comes_with_where else f' ON {on}'}"
            items += [] if "SEMI" in self.join or "ANTI" in self.join else ["j.exchange"]
        with_text = f"WITH {', '.join(common)} " if common else ""
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"{with_text}SELECT {', '.join(items)} FROM orders AS o {join}{where}"

    def model(self) -> Callable[[Sequence[Rate], Sequence[Order]], list[tuple[Any, ...]]]:
        """Return a function from the rates and orders of a micro-batch to the rows that leave."""
        inner = [*self.columns, *([self.where] if self.where else [])]
        lasts = [one.last() for one in inner]
        joined = Last(["ccy"], self.least, chooses=False, outer=OUTER[self.outer])

        def run(rates: Sequence[Rate], orders: Sequence[Order]) -> list[tuple[Any, ...]]:
            for last in (*lasts, joined):
                last.arrive(rates)
            rows = []
            for order in orders:
                found = [last.find(order) for last in lasts]
                values = [one.value(rate) for one, rate in zip(inner, found, strict=True)]
                if self.where is not None and (values[-1] is not None) != self.is_present:
                    continue
                other = joined.find(order) if self.join else None
                if self.join and not keeps(self.join, other):
                    continue
                pairs = zip(self.columns, values, strict=False)
                items = [MEANINGS[one.number % 2 and one.is_number](value) for one, value in pairs]
                own = [] if not self.join or "SEMI" in self.join or "ANTI" in self.join else [other and other[1]]
                rows.append((order[0], *items, *own))
            return rows

        return run


EXPRESSIONS = ["{}", "CASE WHEN {} > 2 THEN 1D ELSE 0D END"]
MEANINGS: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: float(value is not None and value > 2),
]
RELATION = "rates FOR SYSTEM_TIME AS OF PROCTIME() AS j"
JOINS = ["LEFT JOIN {}", "JOIN {}", "LEFT SEMI JOIN {}", "LEFT ANTI JOIN {}", "CROSS JOIN {}", ", {}"]


def keeps(join: str, rate: Rate | None) -> bool:
    if join.startswith("LEFT JOIN"):
        return True
    return (rate is None) == ("ANTI" in join)


@joins_streams
@pytest.mark.extended
@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_statements_with_restarts_and_kinds_of_triggers(
    spark: SparkSession, arrivals: Callable[..., Arrivals], seed: int
) -> None:
    draw = random.Random(seed)
    statement = Statement.of(draw)

    def result(orders: DataFrame, rates: DataFrame) -> DataFrame:
        at = f"{MOMENTS[statement.at][0].format('at')} AS at"
        rates = rates.selectExpr("ccy", "exchange", at)
        orders.selectExpr("amount", "ccy", at).createOrReplaceTempView("orders")
        rates.createOrReplaceTempView("rates")
        session, both = LookupSession(spark), "at" if statement.left_order else None
        session.register_table(LookupTable.from_stream("ordered", rates, key="ccy", order_by="at", left_order_by=both))
        return session.sql(statement.sql)

    spark.conf.set(PROVIDER, ROCKSDB)
    try:
        streams, model, expected, number = arrivals(result), statement.model(), [], 0
        for _ in range(3 if IS_SCALED else 2):
            # What is in the checkpoint was written in another time zone.
            spark.conf.set("spark.sql.session.timeZone", draw.choice(ZONES))
            rates = [draw_rate(draw) for _ in range(draw.randrange(1, 6))]
            orders = [(number := number + 1, *draw_rate(draw)[::2]) for _ in range(draw.randrange(2, 5))]
            streams.arrive("rates", *({"ccy": ccy, "exchange": rate, "at": at} for ccy, rate, at in rates))
            streams.arrive("orders", *({"amount": amount, "ccy": ccy, "at": at} for amount, ccy, at in orders))
            expected += model(rates, orders)
            # A query that is running may take the rates before the orders arrive.
            trigger = draw.choice(["availableNow", "once", *([] if statement.left_order else [""])])
            assert streams.run(trigger=trigger) == sorted(expected, key=repr), (statement.sql, trigger)
    finally:
        spark.conf.unset(PROVIDER)
        spark.conf.unset("spark.sql.session.timeZone")


def draw_rate(draw: random.Random) -> Rate:
    return draw.choice(["EUR", "EUR", "USD", None]), draw.choice([None, 0.0, 1.0, 2.0, 3.0]), draw.choice([None, 1, 2])
