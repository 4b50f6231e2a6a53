"""A lookup join on its way into a compiled plan."""

from __future__ import annotations

from pyspark.sql import DataFrame

from lookupcache.compiled.catalog_objects import define_table, refuse_secret_path
from lookupcache.compiled.document import Document
from lookupcache.compiled.lookup_fields import Columns, columns_read
from lookupcache.compiled.nodes import CallUse, LeftSideNode, LookupNode, TableUse, defaults_now, lookup_kind
from lookupcache.compiled.settings import settings_of
from lookupcache.errors import CompiledPlanError
from lookupcache.spark.planned import PlannedJoin


def columns_of(df: DataFrame) -> Columns:
    """Return the columns of a DataFrame with the names of their types."""
    return tuple((field.name, field.dataType.simpleString()) for field in df.schema.fields)


def refuse_stream(join: PlannedJoin) -> None:
    """Raise CompiledPlanError for a join with the latest values of a stream."""
    if join.table.stream is not None:
        raise CompiledPlanError(
            f"Table {join.table.name!r} has the latest values of a stream, which a compiled plan cannot contain.",
            hint="Plan the join where it runs.",
        )


def lookup_node(join: PlannedJoin, use: TableUse | CallUse, left: int, stage: tuple[int, ...]) -> LookupNode:
    """Return a join as a node; ``left`` is the number of its left side's node, ``stage`` those of its stage's joins."""
    refuse_secret_path(join.table.config, f"Table {join.table.name!r}")
    return lookup_kind(join.plan)(
        use=use,
        alias=join.plan.table,
        input=left,
        reads=columns_read(join.plan),
        lookup=join.plan,
        form=join.choice.form,
        stage=stage if join.choice.form == "worker" else (),
        configuration=join.table.config.to_json(),
        output=columns_of(join.df),
    )


def join_document(join: PlannedJoin) -> Document:
    """Return the plan of a lookup join alone; its left side is given when it runs."""
    name = join.plan.table
    return Document(
        settings=settings_of(join.spark),
        defaults=defaults_now(),
        tables={name: define_table(name, join.table, "ALL", inline=True)},
        nodes=(
            LeftSideNode(output=columns_of(join.left)),
            lookup_node(join, TableUse(table=name), 1, (1,) if join.shares_stage else ()),
        ),
    )
