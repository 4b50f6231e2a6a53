"""What a call of ML_PREDICT names: a model of the catalog, and options of the lookup."""

from __future__ import annotations

from collections.abc import Sequence

from lookupcache.errors import OptionError, StatementError, nearest
from lookupcache.planner.clauses import Token
from lookupcache.sql.catalog import MODEL, Catalog, SqlTable
from lookupcache.sql.token_reader import unquote

PREDICT = "ML_PREDICT"
CALL = f"{PREDICT}(TABLE t, MODEL m, DESCRIPTOR(column))"
_CONFIG = {
    "async": "lookup.async", "timeout": "lookup.timeout", "max-concurrent-operations": "lookup.async.capacity",
    "output-mode": "lookup.async.output-mode",
}  # fmt: skip


def model_named(catalog: Catalog, name: str) -> tuple[str, SqlTable]:
    """Return the lookup table of a model, and its name in the catalog; raises StatementError for an unknown model."""
    table = catalog.tables.get(f"{MODEL}{name}")
    if table is None:
        raise StatementError(
            f"There is no model {name!r}.",
            hint="Make it with CREATE MODEL name INPUT (…) OUTPUT (…) WITH ('provider' = 'openai', …).",
        )
    return f"{MODEL}{name}", table


def answers_of(table: SqlTable) -> list[str]:
    """Return the columns that a model fills in."""
    return [name for name in table.table.schema.names if name not in table.key]


def config_of(part: Sequence[Token]) -> dict[str, str]:
    """Return ``MAP['async', 'true', …]`` as options of the lookup; raises OptionError for an unknown one."""
    given = [unquote(token.written) for token in part if token.kind == "string"]
    options = dict(zip(map(str.lower, given[::2]), map(str.lower, given[1::2]), strict=False))
    for name in options:
        if name not in _CONFIG:
            raise OptionError(f"{PREDICT} has no option {name!r}.", hint=nearest(name, _CONFIG, what="options"))
    return {_CONFIG[name]: value for name, value in options.items()}


def unreadable() -> StatementError:
    """Return the error for a call with other arguments."""
    return StatementError(
        f"{PREDICT} has other arguments than a table, a model, and a column for each of the model's inputs.",
        hint=f"Write FROM {CALL}.",
    )
