"""Checks of values: round trips of every type, keys of every type, many rows, no rows, and hostile strings."""

from __future__ import annotations

import math
from typing import Any

from lookupcache.errors import LookupCacheError
from lookupcache.testing.checks import ID, Checks, Load, fail_check, keys_of, table_of
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.testing.samples import HOSTILE_TEXTS, TYPES, field_of


class ValueChecks(Checks):
    """Checks of types, keys and rows."""

    def test_values_there_and_back(self, load: Load, spark_type: str) -> None:
        """A column of each type is returned as it was stored, including nulls."""
        values = [*self.supported.values(spark_type), *self.supported.null]
        rows = table_of({"id": ("bigint", range(len(values))), "v": (spark_type, values)})
        hint = (
            f"Return {spark_type.upper()} values unchanged, as Arrow's {TYPES[spark_type][0]}: no rounding, trimming, "
            "or change of time zone. List a type or trait (such as 'nan') that the source cannot store in "
            "`unsupported`."
        )
        self.expect_rows(rows, load(rows, ["id"]), ID, keys_of(rows, ["id"]), hint)

    def test_a_type_that_it_cannot_hold_is_refused(self, load: Load, unsupported_type: str) -> None:
        """A column of such a type raises an error that names it, on the driver or at the latest in the lookup."""
        rows = table_of({"id": ("bigint", [1])})
        schema = rows.schema.append(field_of("odd_one", unsupported_type))
        options = load(rows, ["id"])
        try:
            with LocalJoin(self.table(schema, options), ID) as join:
                join.rows([(1,)])
        except LookupCacheError as error:
            if "odd_one" in str(error):
                return
            fail_check(
                f"The error for a column of type {unsupported_type} does not name it: {error}", "Name the column."
            )
        fail_check(
            f"A column of type {unsupported_type} is listed in `unsupported`, but nothing refuses it.",
            "Raise SchemaError in __init__, with the column's name; or remove the type from the list.",
        )

    def test_keys_of_each_type(self, load: Load, key_type: str) -> None:
        """Rows are found by keys of each type, each only by its own key and not by a similar one."""
        values = [v for v in self.supported_keys.values(key_type) if not (self.unique_keys and _is_negative_zero(v))]
        rows = table_of({"k": (key_type, values), "n": ("bigint", range(len(values)))})
        hint = (
            f"Compare keys of type {key_type.upper()} exactly, with Spark's two exceptions: NaN equals NaN, and 0.0 "
            "equals -0.0. A row that is returned twice matched two keys that the source considers equal, such as 'a' "
            "and 'A'. List what cannot be a key of the source in `unsupported_keys`."
        )
        self.expect_rows(rows, load(rows, ["k"]), Wanted(key=("k",)), keys_of(rows, ["k"]), hint)

    def test_one_key(self, load: Load) -> None:
        """One key finds its row."""
        rows = table_of({"id": ("bigint", [1, 2, 3]), "name": ("string", ["ann", "bob", "cy"])})
        self.expect_rows(rows, load(rows, ["id"]), ID, [(2,)], "Return every row that matches any key.")

    def test_a_composite_key(self, load: Load) -> None:
        """Rows are found by all columns of the key together; keys whose concatenations are equal are distinguished."""
        parts = [
            ("a", "b", 1),
            ("a", "c", 1),
            ("b", "b", 1),
            ("a", "b", 2),
            ("a", "1", 1),
            ("a", "", 11),
            ("a1", "", 1),
            ("a:b", "c", 1),
            ("a", "b:c", 1),
            ("a,b", "c", 1),
            ("a", "b,c", 1),
            ("a/b", "c", 1),
            ("a", "b/c", 1),
        ]
        parts = [part for part in parts if part[1] or "empty string" not in self.supported_keys.unsupported]
        a, b, c = zip(*parts, strict=True)
        rows = table_of({"a": ("string", a), "b": ("string", b), "c": ("int", c), "n": ("bigint", range(len(parts)))})
        wanted = Wanted(key=("a", "b", "c"))
        hint = (
            "Match all columns of a key with the same row; do not concatenate them, nor match each column separately."
        )
        keys = [*keys_of(rows, wanted.key), ("b", "c", 1), ("c", "a", 1), ("b", "b", 2)]
        self.expect_rows(rows, load(rows, list(wanted.key)), wanted, keys, hint)

    def test_ten_thousand_keys_in_a_call(self, load: Load) -> None:
        """A call with 10,000 keys, or as many as ``batch_max_size`` allows, finds them all."""
        ids = range(0, 20_000, 2)
        rows = table_of({"id": ("bigint", ids), "name": ("string", [f"n{number}" for number in ids])})
        hint = "Accept any number of keys up to `batch_max_size`; set that if the source has a limit."
        options = load(rows, ["id"])
        for keys in (ids, range(10_000)):
            self.expect_rows(rows, options, ID, [(key,) for key in keys], hint)

    def test_no_rows(self, load: Load) -> None:
        """A table without rows returns none for any key."""
        rows = table_of({"id": ("bigint", []), "name": ("string", [])})
        hint = "Return a table without rows that has the columns of `request.fields`."
        self.expect_rows(rows, load(rows, ["id"]), ID, [(1,), (2,)], hint)

    def test_missing_keys(self, load: Load) -> None:
        """A missing key has no rows, both alone and in a call with existing keys."""
        rows = table_of({"id": ("bigint", [1, 3]), "name": ("string", ["ann", "cy"])})
        options = load(rows, ["id"])
        hint = "Return no row for a missing key; neither a row of nulls nor an error."
        for keys in ([(1,), (2,), (3,), (4,)], [(2,)]):
            self.expect_rows(rows, options, ID, keys, hint)

    def test_many_rows_of_a_key(self, load: Load) -> None:
        """All rows of a key are returned, however many."""
        ids = [1] * 1_500 + [2, 2, 3]
        rows = table_of({"id": ("bigint", ids), "n": ("bigint", range(len(ids)))})
        hint = "Return every matching row; for a source with at most one row per key, set `unique_keys = True`."
        self.expect_rows(rows, load(rows, ["id"]), ID, [(1,), (2,), (3,)], hint)

    def test_duplicates_are_kept(self, load: Load) -> None:
        """Equal rows are returned as often as they are stored."""
        rows = table_of({"id": ("bigint", [1, 1, 1, 2]), "name": ("string", ["ann", "ann", "bo", "bob"])})
        hint = "Do not drop equal rows: no DISTINCT, and no dict or set of rows."
        self.expect_rows(rows, load(rows, ["id"]), ID, [(1,), (2,)], hint)

    def test_hostile_texts(self, load: Load) -> None:
        """Strings that end a literal, a template or a line are valid keys, values and constants."""
        keys, texts = list(self.supported_keys.select(HOSTILE_TEXTS)), list(self.supported.select(HOSTILE_TEXTS))
        values = [texts[-number % len(texts)] for number in range(len(keys))]
        rows = table_of({"k": ("string", keys), "v": ("string", values)})
        options, wanted = load(rows, ["k"]), Wanted(key=("k",))
        hint = "Pass keys and constants to the source as parameters; never insert them into text."
        self.expect_rows(rows, options, wanted, keys_of(rows, ["k"]), hint)
        for key, value in zip(keys, values, strict=True):
            self.expect_rows(rows, options, Wanted(key=("k",), constants={"v": value}), [(key,), (keys[0],)], hint)
        self.expect_rows(rows, options, wanted, keys_of(rows, ["k"]), hint)

    def test_odd_column_names(self, load: Load) -> None:
        """Columns may have any names."""
        names = ["select", "two words", "it's", 'a"b', "a`b", "Ünï", "a.b", "1st", "x;--", "%s"]
        columns: dict[str, Any] = {name: ("bigint", [number, number + 10]) for number, name in enumerate(names)}
        rows = table_of(columns)
        hint = "Quote column names as the source requires; if it cannot, list 'odd names' in `unsupported`."
        self.expect_rows(rows, load(rows, names[:2]), Wanted(key=tuple(names[:2])), [(0, 1), (10, 11), (0, 11)], hint)


def _is_negative_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0 and math.copysign(1, value) < 0
