"""Tables and table functions in a plan, and the parts that a run uses of them: the matrix of compile × restore.

| compile \\ restore | IDENTIFIER | ALL | ALL_ENFORCED |
|---|---|---|---|
| IDENTIFIER | the catalog's | the catalog's; missing is an error | an error |
| SCHEMA | the catalog's; other columns are an error | the plan's columns, the catalog's options | an error |
| ALL | the catalog's | the plan's; the table may no longer exist | the plan's |

The ``lookup.*`` options are not part of it: they are consumed by the nodes, which have them, whatever the catalog says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lookupcache.compiled.code import import_named, name_of
from lookupcache.compiled.document import Document, KeptDefinition
from lookupcache.compiled.lookup_fields import Columns, columns_of_schema, columns_text
from lookupcache.compiled.nodes import CallUse, LookupNode, TableUse, config_of
from lookupcache.config import LookupConfig, split_options
from lookupcache.connector import Connector, request_of
from lookupcache.errors import CompiledPlanError, LookupCacheError
from lookupcache.functions.table_function import TableFunction
from lookupcache.plan import LookupPlan
from lookupcache.redaction import hide_userinfo
from lookupcache.secrets import is_reference
from lookupcache.table import LookupTable

RESTORES = ("ALL", "ALL_ENFORCED", "IDENTIFIER")
"""The values of ``table.plan.restore.catalog-objects``."""

_KEEP = "table.plan.compile.catalog-objects"
_RESTORE = "table.plan.restore.catalog-objects"


# ── into a plan ──────────────────────────────────────────────────────────────────────────────────────────


def define_table(name: str, table: LookupTable, keeps: str, *, inline: bool = False) -> KeptDefinition:
    """Return the part of a table that a plan keeps: ``ALL``, ``SCHEMA`` or ``IDENTIFIER``.

    An ``inline`` table is of the DataFrame API, and in no catalog. Raises CompiledPlanError for secrets, and functions
    without a name.
    """
    if keeps == "IDENTIFIER":
        return KeptDefinition()
    if keeps == "SCHEMA":
        return KeptDefinition(columns=table.schema)
    function = table.function
    own = {key: str(value) for key, value in _own_options(table).items()}
    refuse_secrets(own, table.connector, f"Table {name!r}", inline=inline)
    if function is None:
        return KeptDefinition(columns=table.schema, options=own, inline=inline)
    return KeptDefinition(
        columns=table.schema,
        function=name_of(function.function, f"Table {name!r}"),
        key=function.key,
        batch=function.batch,
        inline=inline,
    )


def define_function(name: str, function: TableFunction, keeps: str) -> KeptDefinition:
    """Return the part of a table function that a plan keeps."""
    if keeps == "IDENTIFIER":
        return KeptDefinition()
    if keeps == "SCHEMA":
        return KeptDefinition(columns=function.columns())
    path = name_of(function.function, f"Table function {name!r}")
    return KeptDefinition(columns=function.columns(), function=path, batch=function.batch)


def refuse_secrets(options: Mapping[str, str], connector: Connector, what: str, *, inline: bool = False) -> None:
    """Raise CompiledPlanError where an option's value is, or has in it, a secret that is not a reference.

    ``what`` names the owner of the options, as the beginning of the sentence.
    """
    shown = connector.show_options(options)
    literal = [name for name, value in options.items() if shown[name] != value and not is_reference(value)]
    if literal:
        other = "" if inline else f" Or SET '{_KEEP}' = 'SCHEMA', so that options stay in the catalog."
        raise CompiledPlanError(
            f"{what} has a secret in option {', '.join(map(repr, literal))}, which would be written into the plan.",
            hint=f"Refer to it: 'env:NAME' for an environment variable of the workers, 'file:PATH' for a file.{other}",
        )


def refuse_secret_path(config: LookupConfig, what: str) -> None:
    """Raise CompiledPlanError where the path of dead letters has a password in it."""
    path = config.dead_letter_path
    if path is not None and hide_userinfo(path) != path:
        raise CompiledPlanError(
            f"{what} has a secret in option 'lookup.dead-letter.path', which would be written into the plan.",
            hint="Give the credentials in the settings of the file system, not in the path.",
        )


def hints_of(table: LookupTable, base: LookupTable) -> dict[str, str]:
    """Return the connector's options that a hint has set on a table; raises CompiledPlanError for secrets."""
    own, before = _own_options(table), _own_options(base)
    hints = {name: str(value) for name, value in own.items() if before.get(name) != value}
    refuse_secrets(hints, table.connector, "A hint", inline=True)
    return hints


def _own_options(table: LookupTable) -> dict[str, str]:
    return split_options(table.options)[1]


# ── out of a plan ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Objects:
    """Finds the tables and functions of a plan, by the matrix.

    ``registered_table`` and ``registered_function`` return those that are registered where the plan runs, by name; None
    for a missing one.
    """

    document: Document
    restore: str = "ALL"
    registered_table: Callable[[str], LookupTable | None] = lambda _: None
    registered_function: Callable[[str], TableFunction | None] = lambda _: None

    def lookup_table(self, node: LookupNode) -> LookupTable:
        """Return the table of a lookup join, with the options of its node; raises CompiledPlanError."""
        config = config_of(node.configuration, self.document.defaults)
        if isinstance(node.use, CallUse):
            columns = node.use.columns
            made = self._function(node.use.function).table(node.alias, columns, node.use.arguments)
            return self._with_config(made, config)
        return self._with_config(self.table(node.use), config).renamed(node.alias)

    def table(self, use: TableUse) -> LookupTable:
        """Return a table of the plan, with the connector's options of hints."""
        table = self._table(use.table)
        return self._make(f"table {use.table!r}", lambda: table.with_options(use.hints)) if use.hints else table

    def with_config(self, use: TableUse, configuration: Mapping[str, Any]) -> LookupTable:
        """Return a table with the options of a node."""
        return self._with_config(self.table(use), config_of(configuration, self.document.defaults))

    def _with_config(self, table: LookupTable, config: LookupConfig) -> LookupTable:
        return self._make(f"table {table.name!r}", lambda: table.with_config(config))

    def _table(self, name: str) -> LookupTable:
        definition = self.document.tables[name]
        if definition.inline:
            return self._complete_table(name, definition)
        self._refuse_incomplete("Table", name, definition)
        if definition.is_complete and self.restore != "IDENTIFIER":
            return self._complete_table(name, definition)
        found = self.registered_table(name)
        if found is None:
            raise self._missing("lookup table", name, "CREATE TABLE")
        if definition.columns is None or definition.is_complete:
            return found
        if self.restore == "IDENTIFIER":
            self._compare(f"table {name!r}", definition.columns, found.schema)
            return found
        return self._make(f"table {name!r}", lambda: found.with_schema(definition.columns))

    def _complete_table(self, name: str, definition: KeptDefinition) -> LookupTable:
        def build() -> LookupTable:
            if definition.function is None:
                return LookupTable(name, definition.columns, definition.options or {})
            function = import_named(definition.function, self.document.source)
            key, batch = definition.key, definition.batch
            return LookupTable.from_function(name, definition.columns, key=key, function=function, batch=batch)

        return self._make(f"table {name!r}", build)

    def _function(self, name: str) -> TableFunction:
        definition = self.document.functions[name]
        self._refuse_incomplete("Table function", name, definition)
        if definition.is_complete and self.restore != "IDENTIFIER":
            function = import_named(str(definition.function), self.document.source)
            return TableFunction(name=name, function=function, returns=definition.columns, batch=definition.batch)
        found = self.registered_function(name)
        if found is None:
            raise self._missing("table function", name, "CREATE FUNCTION")
        if definition.columns is None or definition.is_complete:
            return found
        if self.restore == "IDENTIFIER":
            self._compare(f"table function {name!r}", definition.columns, found.columns())
            return found
        return replace(found, returns=definition.columns)

    def _refuse_incomplete(self, what: str, name: str, definition: KeptDefinition) -> None:
        if self.restore == "ALL_ENFORCED" and not definition.is_complete:
            raise CompiledPlanError(
                f"{what} {name!r} is not complete in compiled plan {self.document.source}, and '{_RESTORE}' is "
                "ALL_ENFORCED.",
                hint=f"Compile with '{_KEEP}' = 'ALL', or execute with '{_RESTORE}' = 'ALL' or 'IDENTIFIER'.",
            )

    def _missing(self, what: str, name: str, statement: str) -> CompiledPlanError:
        return CompiledPlanError(
            f"There is no {what} {name!r}, which compiled plan {self.document.source} reads from the catalog.",
            hint=f"Run {statement} {name} before the plan, or compile with '{_KEEP}' = 'ALL' and execute with "
            f"'{_RESTORE}' = 'ALL'.",
        )

    def _compare(self, what: str, planned: pa.Schema, found: pa.Schema) -> None:
        before, here = columns_of_schema(planned), columns_of_schema(found)
        if set(before) != set(here):
            raise differs(f"The columns of {what}", before, here, self.document.source)

    def _make(self, what: str, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except CompiledPlanError:
            raise
        except LookupCacheError as error:
            fact = f"Compiled plan {self.document.source}, {what}: {error.fact}"
            raise CompiledPlanError(fact, hint=error.hint) from None


def differs(what: str, planned: Columns, found: Columns, source: str) -> CompiledPlanError:
    """Return the error for columns that are not those of the plan: it shows both, and the names that differ.

    ``what`` names the columns, as the beginning of the sentence; ``source`` is the path of the plan, or its origin.
    """
    changed = list(dict.fromkeys(name for name, _ in {*planned} ^ {*found}))
    changed.sort(key=[name for name, _ in (*planned, *found)].index)
    what_differs = f"{', '.join(map(repr, changed[:5]))} differ" if changed else "their order differs"
    return CompiledPlanError(
        f"{what} are not those of compiled plan {source}: {what_differs}.\n"
        f"  plan: {columns_text(planned)}\n"
        f"  here: {columns_text(found)}",
        hint="Change it back, or compile the statement again; `lookupcache plan diff` compares both plans.",
    )


def planned_lookup(node: LookupNode, table: LookupTable, source: str) -> LookupPlan:
    """Return the lookup of a node over a table, as it was planned.

    Raises CompiledPlanError where the table has not the columns that it reads, or its connector does not apply the
    filters that were pushed.
    """
    here, reads = columns_of_schema(table.schema), columns_of_schema(node.reads)
    found = tuple(column for column in here if column[0] in node.reads.names)
    if set(found) != set(reads):
        raise differs(f"The columns that are looked up in {table.name!r}", reads, found, source)
    identity, code_unknown = table.identify()
    lookup = replace(
        node.lookup,
        table=node.alias,
        connector=table.connector_name,
        source=identity,
        code_unknown=code_unknown,
        schema=table.schema,
        config=table.config.located(),
    )
    _refuse_unpushed(lookup, table, source)
    return lookup


def _refuse_unpushed(lookup: LookupPlan, table: LookupTable, source: str) -> None:
    accepted = list(table.connector.accept(list(lookup.pushed))) if lookup.pushed else []
    if any(one not in accepted for one in lookup.pushed):
        raise CompiledPlanError(
            f"Connector {table.connector_name!r} of table {table.name!r} does not apply a filter that compiled plan "
            f"{source} pushes to it.",
            hint="Use the version of the connector that the plan was compiled with, or compile the statement again.",
        )
    if lookup.config.cache != "ALL":
        table.connector.check(request_of(lookup))
