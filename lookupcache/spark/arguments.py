"""The arguments of a join: Columns become SQL text, and misplaced arguments are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lookupcache.errors import PlanError
from lookupcache.planner.column import column_sql, named_column_sql
from lookupcache.planner.settings import ESCAPED_STRINGS, Settings
from lookupcache.spark.planned import PendingResult
from lookupcache.table import LookupTable
from lookupcache.versions import is_column, is_dataframe


class ColumnTexts:
    """Replaces Columns in the arguments of a join by SQL that means the same in the session; the rest stays as it is.

    ``left`` is a qualifier of left columns only. ``is_foreign`` returns whether a column was taken from a DataFrame
    other than the left side. ``with_variables`` puts the values of ``${name}`` into SQL text.
    """

    def __init__(
        self,
        settings: Settings,
        left: str,
        is_foreign: Callable[[Any], bool],
        with_variables: Callable[[str], str] = str,
    ) -> None:
        self._rules: dict[str, Any] = {
            "escapes": not settings.on(ESCAPED_STRINGS),
            "null_in_nothing": settings.null_in_nothing,
            "left": left,
            "is_foreign": is_foreign,
            "with_variables": with_variables,
        }
        self._with_variables = with_variables

    def expression(self, given: Any) -> Any:
        """Return a condition or a value; of several conditions all must be true, as in Spark's join."""
        if is_column(given):
            return column_sql(given, **self._rules)
        if isinstance(given, Sequence) and given and all(map(is_column, given)):
            return " AND ".join(f"({column_sql(one, **self._rules)})" for one in given)
        return self._text(given)

    def select(self, given: Any) -> Any:
        """Return a select list, in which Columns keep their aliases."""
        if isinstance(given, str) or not isinstance(given, Sequence):
            return given
        return [named_column_sql(one, **self._rules) if is_column(one) else self._text(one) for one in given]

    def _text(self, given: Any) -> Any:
        return self._with_variables(given) if isinstance(given, str) else given


# ── arguments in the wrong place ─────────────────────────────────────────────────────────────────────────

_TAKES = {
    "on": "SQL text, names of columns, or a Column, as in on=['id']",
    "select": "a list of SQL texts or Columns, as in select=['left.id', 'c.name']",
    "where": "SQL text or a Column, as in where='c.age > 18'",
    "as_of": "SQL text or a Column, as in as_of='o.ts'",
    "how": "'inner', 'left', 'semi' or 'anti'",
    "options": "a dict, as in options={'lookup.cache': 'LRU'}",
}
_FRAMES = ("DataFrame", "LazyFrame", "Series", "Table", "RecordBatch")
"""The names of the classes of Spark, pandas, polars and Arrow that hold rows."""


def refuse_misplaced(left: Any, table: Any, **others: Any) -> None:
    """Raise PlanError for a left side or table that is something else, and for rows in place of another argument."""
    if not (is_dataframe(left) or isinstance(left, PendingResult)):
        swapped = isinstance(left, LookupTable) and is_dataframe(table)
        hint = "Make it one, as in spark.createDataFrame(rows)." if _has_rows(left) else "Pass the left side first."
        hint = "Swap them: the left side is the first argument, the table the second." if swapped else hint
        raise PlanError(f"Argument 'left' is {_kind(left)}, not a DataFrame of Spark.", hint=hint)
    refuse_other_table(table)
    for name, value in others.items():
        wrong = {"how": not isinstance(value, str), "options": not isinstance(value, Mapping | None)}
        if _has_rows(value) or isinstance(value, LookupTable) or wrong.get(name, False):
            raise PlanError(f"Argument {name!r} is {_kind(value)}.", hint=f"It takes {_TAKES[name]}.")


def refuse_other_table(table: Any) -> None:
    """Raise PlanError for another object than a lookup table."""
    if isinstance(table, LookupTable):
        return
    hint = "Describe it, as in LookupTable('c', schema, {'connector': 'sql', 'url': …, 'table': …})."
    if is_dataframe(table):
        hint = "Join it with left.join(right, on); if it is a stream of changes, use LookupTable.from_stream."
    elif _has_rows(table):
        hint = "Join it with left.join(spark.createDataFrame(rows), on)."
    elif isinstance(table, str):
        hint = "Pass the LookupTable itself. LookupSession.sql knows tables by name."
    raise PlanError(f"Argument 'table' is {_kind(table)}, not a LookupTable.", hint=hint)


def _has_rows(value: Any) -> bool:
    return type(value).__name__ in _FRAMES


def _kind(value: Any) -> str:
    """Return the class of a value, with its library, as an error names them.

    >>> import pandas as pd
    >>> _kind(pd.DataFrame()), _kind(["a"]), _kind(5), _kind(None)
    ('a DataFrame of pandas', 'a list', 'an int', 'None')
    """
    kind = type(value)
    if value is None:
        return "None"
    package = kind.__module__.partition(".")[0]
    package = {"pyspark": "pandas on Spark" if "pandas" in kind.__module__ else "Spark"}.get(package, package)
    article = "an" if kind.__name__[0] in "aeiouAEIOU" else "a"
    return f"{article} {kind.__name__}{'' if package in ('builtins', 'lookupcache') else f' of {package}'}"
