"""What stands left of the next lookup: Spark SQL, the sources in it, and the DataFrame that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.errors import PlanError, SchemaError
from lookupcache.schema import quote
from lookupcache.sql.dialect import span_of
from lookupcache.sql.query import Query, marked
from lookupcache.sql.scope import Scope, Source, unique_names


@dataclass
class Relation:
    """The relations of a FROM up to some join.

    ``text`` follows FROM, ``view`` is the last lookup join's result among them, ``fresh`` are relations of Spark's
    whose columns are not known yet.
    """

    query: Query
    scope: Scope
    with_text: str
    text: str = ""
    view: str | None = None
    fresh: list[Fresh] = field(default_factory=list)

    def frame(self) -> DataFrame:
        """Return the DataFrame, its columns named as the scope's sources say, which are then all known."""
        if not self.text:
            return self.query.setting.spark.sql("SELECT 1 AS one")
        if not self.fresh and self.view is not None:
            return self.query.views[self.view]
        if self.view is None and len(self.fresh) == 1:
            return self._alone(self.fresh[0])
        return self._together()

    def joined(self, view: str) -> None:
        """Go on from the view of a lookup join."""
        self.text, self.view, self.fresh = f"{marked(view)} AS {view}", view, []

    def _alone(self, fresh: Fresh) -> DataFrame:
        df = self._sql("*")
        self.scope.sources.append(self._source(fresh, df.schema))
        self.fresh = []
        return df

    def _together(self) -> DataFrame:
        """Name the columns of several relations apart."""
        seen = [fresh for fresh in self.fresh if fresh.visible]
        structs = self._sql(", ".join(f"struct({quote(f.path[-1])}.*) AS s{n}" for n, f in enumerate(seen)) or "1")
        old = [source for source in self.scope.sources if source.columns]
        now = {id(source): dict(source.columns) for source in old}
        for fresh, column in zip(seen, structs.schema, strict=False):
            assert isinstance(column.dataType, T.StructType)
            self.scope.sources.append(self._source(fresh, column.dataType))
        unique_names(self.scope.sources, self.scope.fold)
        items = []
        for source in self.scope.sources:
            for name, unique in source.columns.items():
                if not unique:
                    continue
                spelled = self.view if id(source) in now else quote(source.alias)
                here = now[id(source)][name] if id(source) in now else name
                items.append(f"{spelled}.{quote(here)} AS {quote(unique)}")
        self.fresh = []
        return self._sql(", ".join(items))

    def _sql(self, items: str) -> DataFrame:
        return self.query.sql(f"{self.with_text}SELECT {items} FROM {self.text}")

    def _source(self, fresh: Fresh, schema: T.StructType) -> Source:
        names = schema.names
        folded = [self.scope.fold(name) for name in names]
        for name in names:
            if folded.count(self.scope.fold(name)) > 1:
                raise SchemaError(
                    f"The left side of the lookup has two columns named {name!r}.",
                    hint="Name them apart in a sub-query.",
                    place=self.query.statement.place(span_of(fresh.node)),
                )
        types = {f.name: f.dataType.simpleString() for f in schema.fields}
        hidden = frozenset(n for n in names if self.scope.fold(n) in map(self.scope.fold, fresh.hidden))
        return Source(fresh.path, {name: name for name in names}, types, hidden=hidden, visible=fresh.visible)


@dataclass(frozen=True)
class Fresh:
    """A relation of Spark's in a FROM: its names, and the columns that USING hides."""

    node: exp.Expr
    path: tuple[str, ...]
    hidden: Sequence[str] = ()
    visible: bool = True


def fresh_of(node: exp.Expr, join: exp.Join | None = None) -> Iterator[Fresh]:
    """Yield the relations of Spark's that a part of a FROM is, more than one where it is joins in parentheses."""
    using = [name.name for name in (join.args.get("using") or [])] if join is not None else []
    visible = join is None or join.kind not in ("SEMI", "ANTI")
    if isinstance(node, exp.Subquery) and not node.alias and isinstance(node.this, exp.Table):
        yield from fresh_of(node.this)
    elif isinstance(node, exp.Table) and not node.alias:
        yield Fresh(node, tuple(part.name for part in node.parts), using, visible)
    else:
        yield Fresh(node, (node.alias_or_name,), using, visible)
    for inner in node.args.get("joins") or []:
        yield from fresh_of(inner.this, inner)


def refuse_loose_ends(query: Query, join: exp.Join) -> None:
    """Refuse joins that merge columns in ways that names after a lookup could not tell."""
    merged = join.method == "NATURAL" or (join.args.get("using") and join.side in ("RIGHT", "FULL"))
    if merged:
        raise PlanError(
            "A NATURAL, or a RIGHT or FULL join with USING, cannot stand beside a lookup join.",
            hint="Write the condition with ON.",
            place=query.statement.place(span_of(join)),
        )
