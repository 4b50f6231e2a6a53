"""Names in a SELECT: which relation of its FROM a column is of, and what it is called there now.

The relations left of a lookup join become one DataFrame, so a column that two of them have gets a name of its own:
`o.id` becomes a column named "o.id". All text after the join is rewritten by what `Source.columns` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from lookupcache.errors import SchemaError, nearest
from lookupcache.planner.naming import is_lambda_variable
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.text import Span, Statement

Fold = Callable[[str], str]


@dataclass(eq=False)
class Source:
    """A relation of FROM: ``columns`` maps its column names to their names in the joined relation.

    ``path`` are the names that may qualify its columns, the last alone or with those before. ``hidden`` columns are
    seen only with a qualifier, as those of the right side that USING names. ``computed`` columns are SQL over the
    others; ``witness`` is a column that is null only in rows that an outer join made up, where that matters.
    A column whose name is empty is not carried along, since nothing after the join reads it.
    """

    path: tuple[str, ...]
    columns: dict[str, str]
    types: Mapping[str, str] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    computed: Mapping[str, str] = field(default_factory=dict)
    witness: str | None = None
    visible: bool = True

    @property
    def alias(self) -> str:
        """The name that qualifies its columns."""
        return self.path[-1]

    @property
    def names(self) -> list[str]:
        """Its columns, computed ones last."""
        return [*self.columns, *self.computed]


@dataclass(frozen=True)
class Found:
    """A column that a reference in the text means."""

    source: Source
    name: str
    qualifier: Span | None
    written: Span

    @property
    def span(self) -> Span:
        """The text from the qualifier to the column's name."""
        return self.written if self.qualifier is None else Span(self.qualifier.start, self.written.end)


@dataclass(frozen=True)
class Reference:
    """A column, or ``alias.*``, in the text of a SELECT; ``nested`` where it stands in a query inside of it."""

    node: exp.Column
    nested: bool
    shadowed: frozenset[str]

    @property
    def names(self) -> list[exp.Expr]:
        """The parts of the name."""
        return [part for part in self.node.parts if isinstance(part, exp.Identifier)]

    @property
    def is_star(self) -> bool:
        """Whether it means all columns."""
        return isinstance(self.node.this, exp.Star)

    @property
    def position(self) -> int:
        """Where it begins."""
        return name_span(self.names[0]).start if self.names else span_of(self.node).start


def references(node: exp.Expr, skipped: Sequence[exp.Expr] = ()) -> list[Reference]:
    """Return the columns that a part of a SELECT reads, in the order of the text.

    Periods, hints and ``skipped`` parts are left out, and so are the variables of lambdas.
    """
    found = _references(node, {id(part) for part in skipped}, frozenset(), False)
    return sorted(found, key=lambda reference: reference.position)


def _references(node: exp.Expr, skipped: set[int], shadowed: frozenset[str], nested: bool) -> Iterator[Reference]:
    if id(node) in skipped or isinstance(node, exp.Version | exp.Hint):
        return
    if isinstance(node, exp.Column):
        if not is_lambda_variable(node, node.parts[0].name):
            yield Reference(node, nested, shadowed)
        return
    for inner in node.iter_expressions():
        if isinstance(inner, exp.Select):
            own = frozenset(alias.lower() for alias in aliases(inner))
            yield from _references(inner, skipped, shadowed | own, True)
        else:
            yield from _references(inner, skipped, shadowed, nested)


def relations(select: exp.Select) -> list[exp.Expr]:
    """Return what stands in a SELECT's FROM: tables, sub-queries, laterals; in parentheses too."""
    first = select.args.get("from_")
    joins = [join.this for join in select.args.get("joins") or []]
    return [*([first.this] if first else []), *joins, *(select.args.get("laterals") or [])]


def aliases(select: exp.Select) -> list[str]:
    """Return the names by which a SELECT's relations qualify columns."""
    found = []
    for relation in relations(select):
        found.append(relation.alias_or_name)
        found += [inner.this.alias_or_name for inner in relation.args.get("joins") or []]
    return found


class Scope:
    """The sources of a SELECT that are known so far, or one ``alone``; resolves references to their columns.

    Raises SchemaError, with the place, for a column that a known alias has not, and for one that two sources have.
    """

    def __init__(self, statement: Statement, fold: Fold, alone: Source | None = None) -> None:
        self.statement = statement
        self.fold = fold
        self.sources: list[Source] = [] if alone is None else [alone]
        self._alone = alone

    def _sees(self, source: Source) -> bool:
        return source.visible or source is self._alone

    def find(self, reference: Reference) -> Found | None:
        """Return the column that a reference means; None where it is of no known source."""
        parts = reference.names
        if reference.is_star or not parts:
            return None
        names = [part.name for part in parts]
        for depth in (1, 2, 3):
            source = self.qualified(names[:depth]) if len(names) > depth else None
            if source is None or self.fold(source.alias) in map(self.fold, reference.shadowed):
                continue
            if (name := self.column(source, names[depth])) is not None:
                qualifier = Span(name_span(parts[0]).start, name_span(parts[depth - 1]).end)
                return Found(source, name, qualifier, name_span(parts[depth]))
            if not self._bare(names[0]) and not reference.nested:
                raise self._no_column(source, names[depth], name_span(parts[depth]))
        return self._find_bare(reference, parts[0])

    def stars(self, reference: Reference) -> Source | None:
        """Return the source of which ``alias.*`` means all columns."""
        names = [part.name for part in reference.names]
        shadowed = [self.fold(name) for name in reference.shadowed]
        return None if names and self.fold(names[-1]) in shadowed else self.qualified(names)

    def qualified(self, names: Sequence[str]) -> Source | None:
        """Return the source that these names qualify columns of."""
        wanted = tuple(map(self.fold, names))
        for source in self.sources:
            if self._sees(source) and wanted and tuple(map(self.fold, source.path))[-len(wanted) :] == wanted:
                return source
        return None

    def column(self, source: Source, name: str) -> str | None:
        """Return a source's column as the source spells it."""
        return next((known for known in source.names if self.fold(known) == self.fold(name)), None)

    def _find_bare(self, reference: Reference, part: exp.Expr) -> Found | None:
        owners = self._bare(part.name)
        if len(owners) > 1 and not reference.nested:
            first, second = (f"{source.alias}.{name}" for source, name in owners[:2])
            raise SchemaError(
                f"Column {part.name!r} is ambiguous: there are {first} and {second}.",
                hint=f"Write {first} or {second}.",
                place=self.statement.place(name_span(part)),
            )
        return Found(*owners[0], None, name_span(part)) if owners else None

    def _bare(self, name: str) -> list[tuple[Source, str]]:
        """Return the columns that a name without qualifier may mean."""
        found = []
        for source in self.sources:
            column = self.column(source, name) if self._sees(source) else None
            if column is not None and column not in source.hidden:
                found.append((source, column))
        return found

    def _no_column(self, source: Source, name: str, span: Span) -> SchemaError:
        return SchemaError(
            f"Table {source.alias!r} has no column {name!r}.",
            hint=nearest(name, source.names, what=f"columns of {source.alias!r}"),
            place=self.statement.place(span),
        )


def unique_names(sources: Sequence[Source], fold: Fold) -> list[str]:
    """Give each column of the sources, in order, a name that no other has, and return them.

    >>> sources = [Source(("o",), {"id": "id", "total": "total"}), Source(("b",), {"id": "id"})]
    >>> unique_names(sources, str.lower)
    ['o.id', 'total', 'b.id']
    """
    carried = [fold(name) for source in sources for name, now in source.columns.items() if now]
    for source in sources:
        for name, now in source.columns.items():
            if now:
                source.columns[name] = name if carried.count(fold(name)) == 1 else f"{source.alias}.{name}"
    return [now for source in sources for now in source.columns.values() if now]
