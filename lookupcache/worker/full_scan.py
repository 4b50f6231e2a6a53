"""All rows of a lookup table, with the filters that its source applies: for a table that is read like any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lookupcache.connector import Connector, offers
from lookupcache.errors import ConnectorError
from lookupcache.expr import Expr
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.worker.source import Source


def plan_by_keys(table: LookupTable, key: Sequence[str]) -> LookupPlan:
    """Return the plan of an inner join by columns of these names, with all columns of a table."""
    source, code_unknown = table.identify()
    return LookupPlan(
        table=table.name,
        connector=table.connector_name,
        source=source,
        schema=table.schema,
        how="inner",
        keys=tuple(FieldKey(column=name, sql=f"l.`{name}`") for name in key),
        columns=tuple(table.schema.names),
        code_unknown=code_unknown,
        config=table.config.located(),
    )


@dataclass(frozen=True)
class TableScan:
    """A scan of a lookup table; ``pushed`` are filters that the connector has accepted."""

    plan: LookupPlan
    connector: Connector = field(repr=False)

    @classmethod
    def of(cls, table: LookupTable, pushed: Sequence[Expr] = ()) -> TableScan:
        """Return the scan of all columns of a table; raises ConnectorError where it cannot be scanned."""
        if not offers(table.connector, "scan"):
            raise ConnectorError(
                f"Table {table.name!r} cannot be read in full: connector {table.connector_name!r} has no scan.",
                hint="Join it by key: JOIN … FOR SYSTEM_TIME AS OF PROCTIME() AS … ON …",
            )
        # A plan has a key, which a scan does not use.
        key = next((f.name for f in table.schema if not pa.types.is_nested(f.type)), table.schema.names[0])
        return cls(replace(plan_by_keys(table, [key]), pushed=tuple(pushed)), table.connector)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Connect, read the table, disconnect, and yield its rows in the order of the schema."""
        yield from Source(self.plan, self.connector).scan().select(self.plan.schema.names).to_batches()
