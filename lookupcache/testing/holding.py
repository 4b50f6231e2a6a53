"""Checks of what a source holds: every type there and back, keys of every type, many rows, none, and hostile texts."""

from __future__ import annotations

import math
from typing import Any

from lookupcache.errors import LookupCacheError
from lookupcache.testing.checks import Checks, Load, keys_of, refuse, table_of
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.testing.samples import HOSTILE, TYPES, field_of

ID = Wanted(key=("id",))


class HoldingChecks(Checks):
    """Types, keys and rows."""

    def test_values_there_and_back(self, load: Load, spark_type: str) -> None:
        """A column of each type comes back as it was stored, nulls too."""
        values = [*self.held.values(spark_type), *self.held.null]
        rows = table_of({"id": ("bigint", range(len(values))), "v": (spark_type, values)})
        cure = (
            f"Return {spark_type.upper()} values unchanged, as Arrow's {TYPES[spark_type][0]}: no rounding, trimming, "
            "or change of zone. A source that cannot hold the type, or a trait such as 'nan', says so in `unsupported`."
        )
        self.expect_rows(rows, load(rows, ["id"]), ID, keys_of(rows, ["id"]), cure)

    def test_a_type_that_it_cannot_hold_is_refused(self, load: Load, unsupported_type: str) -> None:
        """A column of such a type is an error that names it, on the driver or at the latest when it is looked up."""
        rows = table_of({"id": ("bigint", [1])})
        schema = rows.schema.append(field_of("odd_one", unsupported_type))
        options = load(rows, ["id"])
        try:
            with LocalJoin(self.table(schema, options), ID) as join:
                join.rows([(1,)])
        except LookupCacheError as error:
            if "odd_one" in str(error):
                return
            refuse(f"The error for a column of type {unsupported_type} does not name it: {error}", "Name the column.")
        refuse(
            f"A column of type {unsupported_type} is listed in `unsupported`, but nothing refuses it.",
            "Raise SchemaError in __init__, with the column's name; or take the type off the list.",
        )

    def test_keys_of_each_type(self, load: Load, key_type: str) -> None:
        """Rows are found by keys of each type, each under its own key and no other that looks like it."""
        values = [v for v in self.keyed.values(key_type) if not (self.unique_keys and _is_negative_zero(v))]
        rows = table_of({"k": (key_type, values), "n": ("bigint", range(len(values)))})
        cure = (
            f"Compare keys of type {key_type.upper()} exactly, with two exceptions of Spark's: NaN equals NaN, and 0.0 "
            "equals -0.0. A row that comes twice was found by two keys that the source holds equal, as 'a' and 'A'. "
            "What can be no key of the source is listed in `unsupported_keys`."
        )
        self.expect_rows(rows, load(rows, ["k"]), Wanted(key=("k",)), keys_of(rows, ["k"]), cure)

    def test_one_key(self, load: Load) -> None:
        """One key finds its row."""
        rows = table_of({"id": ("bigint", [1, 2, 3]), "name": ("string", ["ann", "bob", "cy"])})
        self.expect_rows(rows, load(rows, ["id"]), ID, [(2,)], "Return every row that matches any key.")

    def test_a_composite_key(self, load: Load) -> None:
        """Rows are found by all columns of the key together; parts that run into each other are told apart."""
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
        parts = [part for part in parts if part[1] or "empty string" not in self.keyed.unsupported]
        a, b, c = zip(*parts, strict=True)
        rows = table_of({"a": ("string", a), "b": ("string", b), "c": ("int", c), "n": ("bigint", range(len(parts)))})
        wanted = Wanted(key=("a", "b", "c"))
        cure = "Match all key columns of one key with one row; do not paste them together, nor match each by itself."
        keys = [*keys_of(rows, wanted.key), ("b", "c", 1), ("c", "a", 1), ("b", "b", 2)]
        self.expect_rows(rows, load(rows, list(wanted.key)), wanted, keys, cure)

    def test_ten_thousand_keys_in_a_call(self, load: Load) -> None:
        """A call with 10,000 keys, or as many as ``batch_max_size`` allows, finds them all."""
        ids = range(0, 20_000, 2)
        rows = table_of({"id": ("bigint", ids), "name": ("string", [f"n{number}" for number in ids])})
        cure = "Take keys in any number up to `batch_max_size`; set that where the source has a limit."
        options = load(rows, ["id"])
        for keys in (ids, range(10_000)):
            self.expect_rows(rows, options, ID, [(key,) for key in keys], cure)

    def test_no_rows(self, load: Load) -> None:
        """A table without rows has none for any key."""
        rows = table_of({"id": ("bigint", []), "name": ("string", [])})
        cure = "Return a table without rows, but with the columns of `request.fields`."
        self.expect_rows(rows, load(rows, ["id"]), ID, [(1,), (2,)], cure)

    def test_missing_keys(self, load: Load) -> None:
        """A key that is not there has no row, beside others that are, and alone."""
        rows = table_of({"id": ("bigint", [1, 3]), "name": ("string", ["ann", "cy"])})
        options = load(rows, ["id"])
        cure = "Return no row for a key that the source does not have; not a row of nulls, and no error."
        for keys in ([(1,), (2,), (3,), (4,)], [(2,)]):
            self.expect_rows(rows, options, ID, keys, cure)

    def test_many_rows_of_a_key(self, load: Load) -> None:
        """All rows of a key come, however many."""
        ids = [1] * 1_500 + [2, 2, 3]
        rows = table_of({"id": ("bigint", ids), "n": ("bigint", range(len(ids)))})
        cure = "Return every row that matches; a source that has one row per key at most says `unique_keys = True`."
        self.expect_rows(rows, load(rows, ["id"]), ID, [(1,), (2,), (3,)], cure)

    def test_duplicates_are_kept(self, load: Load) -> None:
        """Equal rows come as often as they are there."""
        rows = table_of({"id": ("bigint", [1, 1, 1, 2]), "name": ("string", ["ann", "ann", "bo", "bob"])})
        cure = "Do not drop equal rows: no DISTINCT, and no dict or set of rows."
        self.expect_rows(rows, load(rows, ["id"]), ID, [(1,), (2,)], cure)

    def test_hostile_texts(self, load: Load) -> None:
        """Texts that end a literal, a template or a line are keys, values and constants as any."""
        keys, texts = list(self.keyed.among(HOSTILE)), list(self.held.among(HOSTILE))
        values = [texts[-number % len(texts)] for number in range(len(keys))]
        rows = table_of({"k": ("string", keys), "v": ("string", values)})
        options, wanted = load(rows, ["k"]), Wanted(key=("k",))
        cure = "Hand keys and constants to the source as parameters; never paste them into a text."
        self.expect_rows(rows, options, wanted, keys_of(rows, ["k"]), cure)
        for key, value in zip(keys, values, strict=True):
            self.expect_rows(rows, options, Wanted(key=("k",), constants={"v": value}), [(key,), (keys[0],)], cure)
        self.expect_rows(rows, options, wanted, keys_of(rows, ["k"]), cure)

    def test_odd_column_names(self, load: Load) -> None:
        """Columns may have any names."""
        names = ["select", "two words", "it's", 'a"b', "a`b", "Ünï", "a.b", "1st", "x;--", "%s"]
        columns: dict[str, Any] = {name: ("bigint", [number, number + 10]) for number, name in enumerate(names)}
        rows = table_of(columns)
        cure = "Quote the names of columns as the source does; if it cannot, list 'odd names' in `unsupported`."
        self.expect_rows(rows, load(rows, names[:2]), Wanted(key=tuple(names[:2])), [(0, 1), (10, 11), (0, 11)], cure)


def _is_negative_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0 and math.copysign(1, value) < 0
