"""Checks of requests: constants, filters, columns, scans of the full table, and concurrent calls."""

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
from lookupcache.testing.checks import ID, Checks, Load, fail_check, keys_of, table_of
from lookupcache.testing.doubles import Recorder
from lookupcache.testing.filters import filters_of
from lookupcache.testing.join import LocalJoin, Wanted, difference, expected_rows, tuples
from lookupcache.testing.samples import HOSTILE_TEXTS, TYPES

PEOPLE: dict[str, tuple[str, Sequence[Any]]] = {
    "id": ("bigint", [1, 2, 3, 4, 5, 6]),
    "name": ("string", ["ann", "bob", "cy", "dee", "ann", None]),
    "country": ("string", ["AT", "BE", "AT", None, "at", "BE"]),
    "age": ("int", [31, 17, None, 64, 17, 0]),
}
_CONCURRENT_CALLS = {"lookup.async": "true", "lookup.async.capacity": "8", "lookup.batch.max-size": "7"}


class RequestChecks(Checks):
    """Checks of all kinds of requests."""

    def people(self) -> pa.Table:
        """Return a small table; without nulls if the source cannot store them."""
        columns = PEOPLE if self.supported.null else {name: (type_, some[:2]) for name, (type_, some) in PEOPLE.items()}
        return table_of(columns)

    def test_constants(self, load: Load, constant_type: str) -> None:
        """A constant keeps the rows that equal it, for each type that constants may have."""
        values = self.supported.values(constant_type)
        rows = table_of({"id": ("bigint", range(len(values))), "c": (constant_type, values)})
        options = load(rows, ["id"])
        hint = (
            "Drop a row only if it differs from `request.constants` by Spark's comparison: NaN equals NaN, 0.0 equals "
            "-0.0. If the source compares differently, ignore constants: they are compared again."
        )
        for value in values:
            wanted = Wanted(key=("id",), constants={"c": value})
            self.expect_rows(rows, options, wanted, keys_of(rows, ["id"]), hint)

    def test_a_constant_part_of_the_key(self, load: Load) -> None:
        """A part of a composite key may be constant for the entire join."""
        rows = table_of({"id": ("bigint", [1, 2, 1, 3]), "country": ("string", ["AT", "AT", "BE", "BE"]),
                         "name": ("string", ["ann", "bob", "cy", "dee"])})  # fmt: skip
        wanted = Wanted(key=("id",), constants={"country": "AT"})
        hint = "Read key columns that are not in `keys` from `request.constants`."
        self.expect_rows(rows, load(rows, ["id", "country"]), wanted, [(1,), (2,), (3,), (4,)], hint)

    def test_a_key_and_another_column(self, load: Load) -> None:
        """A join may be by a key and one more column; of a key that has several values of it, each row comes once."""
        rows = self.people()
        ids, countries = (rows.column(name).to_pylist() for name in ("id", "country"))
        keys = [(key, country) for key in ids for country in dict.fromkeys(countries) if country is not None]
        hint = (
            "Look each key of the source up once, and return its rows once, also if `keys` has it with several values "
            "of another column. Rows whose other column differs may be left in the result."
        )
        self.expect_rows(rows, load(rows, ["id"]), Wanted(key=("id", "country")), keys, hint)

    def test_filters(self, load: Load) -> None:
        """Filters that `accept` returns have Spark's semantics at the source, in lookups and in scans."""
        rows = self._table_of_all_types()
        options = load(rows, ["id"])
        table = self.table(rows.schema, options)
        values = {name: [v for v in rows.column(name).to_pylist() if v is not None] for name in rows.column_names}
        if "v_string" in values:
            values["v_string"] += [text for text in self.supported.select(HOSTILE_TEXTS) if len(text) < 100]
        filters = st.lists(filters_of(rows.schema, values), min_size=1, max_size=2)
        accepted = [0]

        @settings(
            max_examples=self.filter_examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(filters)
        def check(drawn: list[expr.Expr]) -> None:
            accepted[0] += self._check_filters(rows, table, drawn)

        check()
        if self.pushes_filters and not accepted[0]:
            fail_check(
                f"`accept` returned none of {self.filter_examples} filters, but the suite sets `pushes_filters`.",
                "Return from `accept` the filters that the source applies, or remove the claim.",
            )

    def test_only_wanted_columns_are_answered(self, load: Load) -> None:
        """A result has the requested columns and no others, which would be transferred without need."""
        rows = self.people()
        options = load(rows, ["id"])
        for columns in (("name",), (), ("country", "age"), ("age", "name", "id")):
            table = self.table(rows.schema, options)
            recorder, wanted = Recorder(table.connector), Wanted(key=("id",), columns=columns)
            with LocalJoin(table, wanted, recorder) as join:
                found = join.table(keys_of(rows, ["id"]))
            self.compare(tuples(found) if columns else [()] * found.num_rows, rows, wanted, keys_of(rows, ["id"]),
                         "Return the columns `request.fields`, under these names.")  # fmt: skip
            for call in recorder.calls:
                if more := [name for name in call.answer.column_names if name not in call.request.fields]:
                    fail_check(
                        f"The result has column {more[0]!r}; the request was for {', '.join(call.request.fields)}.",
                        "Fetch only the columns `request.fields`, or end with `.select(list(request.fields))`.",
                    )

    def test_sync_and_async_agree(self, load: Load) -> None:
        """`lookup`, in one thread or in several, and `lookup_async` return the same rows."""
        rows = self.people()
        options, hint = load(rows, ["id"]), "Let `lookup` and `lookup_async` share all code except for the I/O."
        for value in ("true", "false"):
            if value == "false" and not offers(self.kind, "lookup"):
                self._expect_no_sync(rows, options)
                continue
            self.expect_rows(rows, options, ID, [*keys_of(rows, ["id"]), (7,)], hint, {"lookup.async": value})

    def test_many_calls_at_a_time(self, load: Load) -> None:
        """Concurrent lookups, in coroutines or threads, do not mix up their rows."""
        rows = table_of({"id": ("bigint", range(600)), "name": ("string", [f"n{number}" for number in range(600)])})
        options = load(rows, ["id"])
        hint = (
            "Store nothing of a call on `self`, which concurrent calls share. Threads share one connector only if it "
            "sets `thread_safe = True`; otherwise each has a copy, made before `open`: create clients there."
        )
        table = self.table(rows.schema, options, _CONCURRENT_CALLS)
        keys = [(key,) for key in range(700)]
        with _frequent_thread_switches(), LocalJoin(table, ID) as join:
            for _ in range(3):
                self.compare(join.rows(keys), rows, ID, keys, hint)

    def test_the_whole_table(self, load: Load) -> None:
        """A scan returns the rows that lookups of all keys return, with constants, filters and columns as requested."""
        rows = self.people()
        options = load(rows, ["id"])
        hint = "Yield every row once from `scan`, with the columns `request.fields`, and apply the accepted filters."
        old = expr.Call(">", (expr.Column("right", "age", pa.int32()), expr.literal(20, pa.int32())))
        for wanted in (
            ID, Wanted(key=("id",), constants={"country": "AT"}), Wanted(key=("id",), filters=(old,)),
            Wanted(key=("id",), columns=("name",)),
        ):  # fmt: skip
            self.expect_rows(rows, options, wanted, [*keys_of(rows, ["id"]), (7,)], hint, {"lookup.cache": "ALL"})
        many = table_of({"id": ("bigint", range(12_345)), "n": ("bigint", range(12_345))})
        self.expect_rows(many, load(many, ["id"]), ID, keys_of(many, ["id"]), hint, {"lookup.cache": "ALL"})

    def test_it_says_that_it_cannot_scan(self, load: Load) -> None:
        """Without `scan`, caching the full table is refused before the job starts."""
        rows = self.people()
        try:
            self.table(rows.schema, load(rows, ["id"]), {"lookup.cache": "ALL"})
        except ConnectorError:
            return
        fail_check("The connector implements `scan`, which was not checked.", "Set `can_scan = True` in the suite.")

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────

    def _table_of_all_types(self) -> pa.Table:
        """Return a table with a column of every type that the source can store, its values in varying row order."""
        count = 30
        columns: dict[str, tuple[str, Any]] = {"id": ("bigint", range(count))}
        for number, type_ in enumerate(self.supported.types(TYPES)):
            if type_ == "json":
                continue
            values = [v for v in self.supported.values(type_) if not (isinstance(v, str | bytes) and len(v) > 1_000)]
            values += self.supported.null
            # Many databases truncate names to 63 characters.
            name = "v_" + "".join(letter if letter.isalnum() else "_" for letter in type_)[:60]
            columns[name] = (type_, [values[(row * (1 + number % 2) + number) % len(values)] for row in range(count)])
            if type_ in ("int", "double", "string"):
                columns[f"w_{type_}"] = (type_, [values[(row * 3 + 1) % len(values)] for row in range(count)])
        return table_of(columns)

    def _check_filters(self, rows: pa.Table, table: Any, drawn: list[expr.Expr]) -> int:
        """Compare the rows that the source returns under filters with the expected ones; return how many are pushed."""
        accepted = list(table.connector.accept(drawn))
        if unknown := [one for one in accepted if one not in drawn]:
            fail_check(
                f"`accept` returned a filter that it was not passed: {expr.to_text(unknown[0])}",
                "Return the filters that the source applies, unchanged.",
            )
        if accepted and not self.pushes_filters:
            fail_check(
                f"`accept` returned {expr.to_text(accepted[0])}, but the suite does not set `pushes_filters = True`.",
                "Set it, so that filters are checked.",
            )
        if not accepted:
            return 0
        wanted, keys = Wanted(key=("id",), columns=("id",), filters=tuple(drawn)), keys_of(rows, ["id"])
        text = " AND ".join(map(expr.to_text, accepted))
        hint = (
            f"Do not accept filters that the source evaluates differently than Spark: {text}. "
            "Consider nulls (three-valued logic), NaN (equal to itself, greater than all numbers), collations and "
            "trailing blanks."
        )
        for cached in ("NONE", *(["ALL"] if self.can_scan else [])):
            with LocalJoin(table.with_options({"lookup.cache": cached}), wanted) as join:
                wrong = difference(join.rows(keys), expected_rows(rows, wanted, keys), rows.select(["id"]).schema)
            if wrong is not None:
                fail_check(f"An accepted filter does not keep the same rows as in Spark.\n{wrong}", hint)
        return len(accepted)

    def _expect_no_sync(self, rows: pa.Table, options: dict[str, Any]) -> None:
        try:
            self.table(rows.schema, options, {"lookup.async": "false"})
        except OptionError:
            return
        fail_check("'lookup.async' = 'false' was accepted without a `lookup` method.", "Do not override `runs_async`.")


@contextmanager
def _frequent_thread_switches() -> Iterator[None]:
    """Switch threads as often as possible, so that shared state of concurrent calls is detected."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
