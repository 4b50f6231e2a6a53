"""Checks of what a join asks for: constants, filters, columns, the whole table, and much at the same time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lookupcache import expr
from lookupcache.connector import offers
from lookupcache.errors import ConnectorError, OptionError
from lookupcache.testing.checks import Checks, Load, keys_of, refuse, table_of
from lookupcache.testing.doubles import Recorder
from lookupcache.testing.filters import filters_of
from lookupcache.testing.join import LocalJoin, Wanted, difference, matching, tuples
from lookupcache.testing.samples import HOSTILE, TYPES

PEOPLE: dict[str, tuple[str, Sequence[Any]]] = {
    "id": ("bigint", [1, 2, 3, 4, 5, 6]),
    "name": ("string", ["ann", "bob", "cy", "dee", "ann", None]),
    "country": ("string", ["AT", "BE", "AT", None, "at", "BE"]),
    "age": ("int", [31, 17, None, 64, 17, 0]),
}
ID = Wanted(key=("id",))

_MANY_CALLS = {"lookup.async": "true", "lookup.async.capacity": "8", "lookup.batch.max-size": "7"}


class AskingChecks(Checks):
    """Requests of all kinds."""

    def people(self) -> pa.Table:
        """Return a small table; without nulls where the source cannot hold them."""
        columns = PEOPLE if self.held.null else {name: (type_, values[:2]) for name, (type_, values) in PEOPLE.items()}
        return table_of(columns)

    def test_constants(self, load: Load, constant_type: str) -> None:
        """A constant of each type that may be one keeps the rows that equal it."""
        values = self.held.values(constant_type)
        rows = table_of({"id": ("bigint", range(len(values))), "c": (constant_type, values)})
        options = load(rows, ["id"])
        cure = (
            "A row may only be dropped if it differs from `request.constants` as Spark compares: NaN equals NaN, 0.0 "
            "equals -0.0. Where the source compares otherwise, leave constants alone: they are compared again."
        )
        for value in values:
            wanted = Wanted(key=("id",), constants={"c": value})
            self.expect_rows(rows, options, wanted, keys_of(rows, ["id"]), cure)

    def test_a_constant_part_of_the_key(self, load: Load) -> None:
        """Of a composite key, a part may be the same for the whole join."""
        rows = table_of({"id": ("bigint", [1, 2, 1, 3]), "country": ("string", ["AT", "AT", "BE", "BE"]),
                         "name": ("string", ["ann", "bob", "cy", "dee"])})  # fmt: skip
        wanted = Wanted(key=("id",), constants={"country": "AT"})
        cure = "Take the columns of a key that are not in `keys` from `request.constants`."
        self.expect_rows(rows, load(rows, ["id", "country"]), wanted, [(1,), (2,), (3,), (4,)], cure)

    def test_filters(self, load: Load) -> None:
        """What `accept` takes means at the source what it means to Spark, in lookups and in scans."""
        rows = self._of_all_types()
        options = load(rows, ["id"])
        table = self.table(rows.schema, options)
        values = {name: [v for v in rows.column(name).to_pylist() if v is not None] for name in rows.column_names}
        if "v_string" in values:
            values["v_string"] += [text for text in self.held.among(HOSTILE) if len(text) < 100]
        filters = st.lists(filters_of(rows.schema, values), min_size=1, max_size=2)
        taken = [0]

        @settings(
            max_examples=self.filter_examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(filters)
        def check(drawn: list[expr.Expr]) -> None:
            taken[0] += self._check_filters(rows, table, drawn)

        check()
        if self.pushes_filters and not taken[0]:
            refuse(
                f"Of {self.filter_examples} filters, `accept` took none, but the suite says `pushes_filters = True`.",
                "Return from `accept` those filters that the source applies, or leave the claim out.",
            )

    def test_only_wanted_columns_are_answered(self, load: Load) -> None:
        """An answer holds the columns that were asked for, and no others that cost their way for nothing."""
        rows = self.people()
        options = load(rows, ["id"])
        for columns in (("name",), (), ("country", "age"), ("age", "name", "id")):
            table = self.table(rows.schema, options)
            recorder, wanted = Recorder(table.connector), Wanted(key=("id",), columns=columns)
            with LocalJoin(table, wanted, recorder) as join:
                found = join.table(keys_of(rows, ["id"]))
            self.compare(tuples(found) if columns else [()] * found.num_rows, rows, wanted, keys_of(rows, ["id"]),
                         "Answer with the columns `request.fields`, by their names.")  # fmt: skip
            for call in recorder.calls:
                if more := [name for name in call.answer.column_names if name not in call.request.fields]:
                    refuse(
                        f"The answer holds column {more[0]!r}; asked for were {', '.join(call.request.fields)}.",
                        "Fetch the columns `request.fields` only, or end with `.select(list(request.fields))`.",
                    )

    def test_sync_and_async_agree(self, load: Load) -> None:
        """`lookup`, in one thread or in several, and `lookup_async` find the same."""
        rows = self.people()
        options, cure = load(rows, ["id"]), "Let `lookup` and `lookup_async` share all but the waiting."
        for word in ("true", "false"):
            if word == "false" and not offers(self.kind, "lookup"):
                self._expect_no_sync(rows, options)
                continue
            self.expect_rows(rows, options, ID, [*keys_of(rows, ["id"]), (7,)], cure, {"lookup.async": word})

    def test_many_calls_at_a_time(self, load: Load) -> None:
        """Lookups that run at the same time, in coroutines or threads, do not mix up their rows."""
        rows = table_of({"id": ("bigint", range(600)), "name": ("string", [f"n{number}" for number in range(600)])})
        options = load(rows, ["id"])
        cure = (
            "Keep nothing of one call on `self` where another may find it. Threads share one connector only if it says "
            "`thread_safe = True`; else each has a copy, made before `open`: make clients there, not in __init__."
        )
        table = self.table(rows.schema, options, _MANY_CALLS)
        keys = [(key,) for key in range(700)]
        with _hasty_threads(), LocalJoin(table, ID) as join:
            for _ in range(3):
                self.compare(join.rows(keys), rows, ID, keys, cure)

    def test_the_whole_table(self, load: Load) -> None:
        """A scan gives the rows that lookups of all keys give, with constants, filters and columns as asked."""
        rows = self.people()
        options = load(rows, ["id"])
        cure = "Let `scan` yield every row once, with the columns `request.fields`, and apply the filters it accepted."
        old = expr.Call(">", (expr.Column("right", "age", pa.int32()), expr.literal(20, pa.int32())))
        for wanted in (
            ID, Wanted(key=("id",), constants={"country": "AT"}), Wanted(key=("id",), filters=(old,)),
            Wanted(key=("id",), columns=("name",)),
        ):  # fmt: skip
            self.expect_rows(rows, options, wanted, [*keys_of(rows, ["id"]), (7,)], cure, {"lookup.cache": "ALL"})
        many = table_of({"id": ("bigint", range(12_345)), "n": ("bigint", range(12_345))})
        self.expect_rows(many, load(many, ["id"]), ID, keys_of(many, ["id"]), cure, {"lookup.cache": "ALL"})

    def test_it_says_that_it_cannot_scan(self, load: Load) -> None:
        """Without `scan`, caching the whole table is refused before the job starts."""
        rows = self.people()
        try:
            self.table(rows.schema, load(rows, ["id"]), {"lookup.cache": "ALL"})
        except ConnectorError:
            return
        refuse("The connector writes `scan`, which was not checked.", "Claim it in the suite: `can_scan = True`.")

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────

    def _of_all_types(self) -> pa.Table:
        """Return a table with a column of every type that the source holds, its values in every row order."""
        count = 30
        columns: dict[str, tuple[str, Any]] = {"id": ("bigint", range(count))}
        for number, type_ in enumerate(self.held.types(TYPES)):
            if type_ == "json":
                continue
            values = [v for v in self.held.values(type_) if not (isinstance(v, str | bytes) and len(v) > 1_000)]
            values += self.held.null
            # Many databases keep no more than 63 letters of a name.
            name = "v_" + "".join(letter if letter.isalnum() else "_" for letter in type_)[:60]
            columns[name] = (type_, [values[(row * (1 + number % 2) + number) % len(values)] for row in range(count)])
            if type_ in ("int", "double", "string"):
                columns[f"w_{type_}"] = (type_, [values[(row * 3 + 1) % len(values)] for row in range(count)])
        return table_of(columns)

    def _check_filters(self, rows: pa.Table, table: Any, drawn: list[expr.Expr]) -> int:
        """Compare what the source makes of filters with what they mean; return how many it took."""
        taken = list(table.connector.accept(drawn))
        if strange := [one for one in taken if one not in drawn]:
            refuse(
                f"`accept` returned a filter that it was not offered: {expr.to_text(strange[0])}",
                "Return those of the filters that the source applies, unchanged.",
            )
        if taken and not self.pushes_filters:
            refuse(
                f"`accept` took {expr.to_text(taken[0])}, but the suite does not say `pushes_filters = True`.",
                "Make the claim, so that filters are checked.",
            )
        if not taken:
            return 0
        wanted, keys = Wanted(key=("id",), columns=("id",), filters=tuple(drawn)), keys_of(rows, ["id"])
        text = " AND ".join(map(expr.to_text, taken))
        cure = (
            f"Leave out of `accept` what the source does not mean as Spark does: {text}. "
            "Mind nulls (three-valued logic), NaN (equal to itself, above all numbers), collations and trailing blanks."
        )
        for cached in ("NONE", *(["ALL"] if self.can_scan else [])):
            with LocalJoin(table.with_options({"lookup.cache": cached}), wanted) as join:
                wrong = difference(join.rows(keys), matching(rows, wanted, keys), rows.select(["id"]).schema)
            if wrong is not None:
                refuse(f"A filter that the source took keeps other rows than Spark does.\n{wrong}", cure)
        return len(taken)

    def _expect_no_sync(self, rows: pa.Table, options: dict[str, Any]) -> None:
        try:
            self.table(rows.schema, options, {"lookup.async": "false"})
        except OptionError:
            return
        refuse("'lookup.async' = 'false' was taken, with nothing but `lookup_async`.", "Do not override `runs_async`.")


@contextmanager
def _hasty_threads() -> Iterator[None]:
    """Let threads take turns as often as they can, so that what one leaves for another is found."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
