"""What has been joined so far in a FROM: as text for Spark, and as the left DataFrame of the next lookup.

The result of a lookup join is one DataFrame, whose columns have unique names. In Spark's text it is taken apart again:

    (SELECT struct(*) AS lookup_1 FROM {lookup_1}) AS lookup_1
    JOIN LATERAL (SELECT lookup_1.lookup_1.`o.id` AS `id`) AS `o`
    JOIN LATERAL (SELECT lookup_1.lookup_1.`c.id` AS `id`) AS `c`

so that `o` and `c` are relations as the user wrote them, and Spark resolves every name in the rest of the statement,
which stays as it is written. Spark's optimizer makes a plain projection of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sqlglot
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.errors import PlanError, SchemaError
from lookupcache.schema import quote
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.query import Query, marked
from lookupcache.sql.scope import Fold, Relation
from lookupcache.sql.text import Edits, Span

Columns = Mapping[tuple[Relation, str], str]
"""The name that a relation's column has in a DataFrame."""


@dataclass(frozen=True, eq=False)
class Plain:
    """A relation of Spark's in a FROM, whose columns are not known yet; ``using`` are the columns that it merges."""

    node: exp.Expr
    names: tuple[str, ...]
    using: tuple[str, ...] = ()
    visible: bool = True
    merges_all: bool = False


@dataclass(frozen=True)
class Front:
    """The relations of a FROM up to some join.

    ``view`` is the result of the last lookup, of ``relations``, whose columns it has under the names in ``columns``;
    ``witnesses`` are columns that are null only in rows that an outer join added. ``text`` follows it, or is all;
    ``inner_views`` are those of lookups in parentheses in it. Of computed columns the view has the inputs; ``computed``
    are those that the rest of the SELECT reads.
    """

    text: str = ""
    plain: tuple[Plain, ...] = ()
    view: str | None = None
    relations: tuple[Relation, ...] = ()
    columns: Columns = field(default_factory=dict)
    witnesses: Mapping[Relation, str] = field(default_factory=dict)
    inner_views: tuple[str, ...] = ()
    computed: frozenset[tuple[Relation, str]] = frozenset()

    @property
    def internal(self) -> list[str]:
        """Columns that are there for the relations only, and that a star must leave out."""
        own = [self.view] if self.view is not None and not _is_alone(self) else []
        return [f"{view}.{view}" for view in (*own, *self.inner_views)]

    @property
    def merged(self) -> frozenset[str]:
        """Names that a relation of the view shares with one before it."""
        return frozenset().union(*(relation.merged for relation in self.relations))

    def is_carried(self, relation: Relation, column: str) -> bool:
        """Return whether the view has what a column needs."""
        return (relation, column) in (self.computed if column in relation.computed else self.columns)


@dataclass(frozen=True)
class Frame:
    """The left side of a lookup: a DataFrame, the relations in it, and the names of their columns."""

    df: DataFrame
    relations: tuple[Relation, ...] = ()
    columns: Columns = field(default_factory=dict)
    witnesses: Mapping[Relation, str] = field(default_factory=dict)


# ── as text ──────────────────────────────────────────────────────────────────────────────────────────────


def from_text(front: Front) -> str:
    """Return what follows FROM."""
    if front.view is None:
        return front.text
    view = front.view
    if _is_alone(front):
        return f"{marked(view)} AS {quote(front.relations[0].alias)}{front.text}"
    base = f"(SELECT struct(*) AS {view} FROM {marked(view)}) AS {view}"
    return "\n  ".join([base, *_laterals(front)]) + front.text


def _is_alone(front: Front) -> bool:
    """Return whether the view is one relation with its own names for its columns."""
    if len(front.relations) != 1 or front.relations[0].computed:
        return False
    relation = front.relations[0]
    ordered = [(relation, name) for name in relation.column_names if (relation, name) in front.columns]
    return list(front.columns.items()) == [(key, key[1]) for key in ordered]


def _laterals(front: Front) -> Iterator[str]:
    for relation in front.relations:
        columns = [name for name in relation.column_names if front.is_carried(relation, name)]
        items = ", ".join(f"{_item(front, relation, name)} AS {quote(name)}" for name in columns)
        if items:
            yield f"JOIN LATERAL (SELECT {items}) AS {quote(relation.alias)}"


def _item(front: Front, relation: Relation, column: str) -> str:
    def spelled(name: str) -> str:
        return f"{front.view}.{front.view}.{quote(front.columns[relation, name])}"

    if column not in relation.computed:
        return spelled(column)
    return computed_sql(relation, column, spelled, front.witnesses.get(relation))


# ── as a DataFrame ───────────────────────────────────────────────────────────────────────────────────────


def frame_of(query: Query, front: Front, with_text: str, extras: Sequence[str] = ()) -> Frame:
    """Return the DataFrame; ``extras`` are further columns of it, as expressions with names of their own."""
    if not front.text and front.view is None:
        items = ", ".join(["1 AS one", *extras])
        return Frame(query.sql(f"{with_text}SELECT {items}"))
    if front.view is not None and not front.plain and not extras:
        return Frame(query.views[front.view], front.relations, front.columns, front.witnesses)
    if front.view is None and len(front.plain) == 1:
        return _alone(query, front, with_text, extras)
    return _together(query, front, with_text, extras)


def _alone(query: Query, front: Front, with_text: str, extras: Sequence[str]) -> Frame:
    [plain] = front.plain
    df = query.sql(f"{with_text}SELECT {', '.join(['*', *extras])} FROM {front.text}")
    fields = df.schema.fields[: len(df.schema.fields) - len(extras)]
    relation = Relation(plain.names, tuple((f.name, f.dataType.simpleString()) for f in fields))
    names = unique_names([(relation, f.name) for f in fields], query.fold)
    if names != [f.name for f in fields]:
        df = query.renamed(df, [*names, *(f.name for f in df.schema.fields[len(fields) :])])
    relations = (relation,) if plain.visible else ()
    return Frame(df, relations, _by_column(query, plain, relation, fields, names))


def _by_column(
    query: Query, plain: Plain, relation: Relation, fields: Sequence[T.StructField], names: Sequence[str]
) -> Columns:
    """Return the columns of a relation by name; two of one name cannot be told apart."""
    folded = [query.fold(f.name) for f in fields]
    twice = next((f.name for f in fields if folded.count(query.fold(f.name)) > 1), None)
    if twice is not None:
        raise SchemaError(
            f"The left side of the lookup has two columns named {twice!r}.",
            hint="Name them apart in a sub-query.",
            place=query.statement.place(span_of(plain.node)),
        )
    return {(relation, f.name): name for f, name in zip(fields, names, strict=True)}


def _together(query: Query, front: Front, with_text: str, extras: Sequence[str]) -> Frame:
    """Give the columns of several relations unique names."""
    known = _known(query, front, with_text)
    relations = (*front.relations, *known)
    columns = [*front.columns, *((one, name) for one in known for name, _ in one.columns)]
    names = unique_names(columns, query.fold)
    items = [
        f"{front.view}.{front.view}.{quote(front.columns[relation, column])} AS {quote(name)}"
        if (relation, column) in front.columns and not _is_alone(front)
        else f"{_path(relation)}.{quote(column)} AS {quote(name)}"
        for (relation, column), name in zip(columns, names, strict=True)
    ]
    df = query.sql(f"{with_text}SELECT {', '.join([*items, *extras])} FROM {from_text(front)}")
    return Frame(df, relations, dict(zip(columns, names, strict=True)), front.witnesses)


def _known(query: Query, front: Front, with_text: str) -> list[Relation]:
    """Return the plain relations with the columns that Spark gives them."""
    visible = [plain for plain in front.plain if plain.visible]
    if not visible:
        return []
    items = ", ".join(f"struct({_quoted(plain.names)}.*) AS s{n}" for n, plain in enumerate(visible))
    structs = query.sql(f"{with_text}SELECT {items} FROM {from_text(front)}").schema
    found: list[Relation] = []
    for plain, column in zip(visible, structs, strict=True):
        assert isinstance(column.dataType, T.StructType)
        fields = column.dataType.fields
        before = {query.fold(name) for one in (*front.relations, *found) for name in one.column_names}
        using = before if plain.merges_all else set(map(query.fold, plain.using))
        merged = {query.fold(f.name) for f in fields} & using
        types = tuple((f.name, f.dataType.simpleString()) for f in fields)
        relation = Relation(plain.names, types, frozenset(merged))
        _by_column(query, plain, relation, fields, [f.name for f in fields])
        found.append(relation)
    return found


def unique_names(columns: Sequence[tuple[Relation, str]], fold: Fold, taken: Sequence[str] = ()) -> list[str]:
    """Return a name for each column that no other has, nor is ``taken``: its own where that is possible.

    >>> orders, books = Relation(("o",), ()), Relation(("b",), ())
    >>> unique_names([(orders, "id"), (orders, "total"), (books, "id")], str.lower)
    ['o.id', 'total', 'b.id']
    """
    every = [*map(fold, taken), *(fold(name) for _, name in columns)]
    names: list[str] = []
    for relation, name in columns:
        unique = name if every.count(fold(name)) == 1 else f"{relation.alias}.{name}"
        while fold(unique) in map(fold, names) or (unique != name and fold(unique) in every):
            unique += "'"
        names.append(unique)
    return names


def _path(relation: Relation) -> str:
    return _quoted(relation.names)


def _quoted(names: Sequence[str]) -> str:
    return ".".join(map(quote, names))


# ── computed columns ─────────────────────────────────────────────────────────────────────────────────────


def computed_sql(relation: Relation, name: str, column: Callable[[str], str], witness: str | None = None) -> str:
    """Return a computed column over the columns that it reads, which ``column`` spells.

    With a ``witness`` it is null in rows that an outer join added.
    """
    sql = relation.computed[name]
    edits = Edits(sql)
    for part in _columns_in(sql):
        if (known := relation.column(part.name, str.lower)) is not None:
            edits.replace(name_span(part.this), column(known))
    text = edits.text(Span(0, len(sql)))
    return f"({text})" if witness is None else f"(CASE WHEN {column(witness)} IS NOT NULL THEN {text} END)"


def inputs_of(relation: Relation, name: str) -> list[str]:
    """Return the columns that a computed column reads."""
    read = _columns_in(relation.computed[name])
    return [known for part in read if (known := relation.column(part.name, str.lower)) is not None]


def _columns_in(sql: str) -> list[exp.Column]:
    found = sqlglot.parse_one(sql, read="spark").find_all(exp.Column)
    return sorted(found, key=lambda column: name_span(column.this).start)


# ── relations of Spark's ─────────────────────────────────────────────────────────────────────────────────


def plain_of(query: Query, node: exp.Expr, join: exp.Join | None = None) -> Iterator[Plain]:
    """Yield the relations of Spark's that a part of a FROM is, more than one where it is joins in parentheses."""
    if isinstance(node, exp.Subquery) and not node.alias and isinstance(node.this, exp.Table):
        yield from plain_of(query, node.this, join)
    else:
        yield plain_alone(query, node, join)
    for inner in node.args.get("joins") or []:
        yield from plain_of(query, inner.this, inner)


def plain_alone(query: Query, node: exp.Expr, join: exp.Join | None = None) -> Plain:
    """Return a relation of Spark's, without those that are joined to it in parentheses."""
    using = tuple(name.name for name in (join.args.get("using") or [])) if join is not None else ()
    visible = join is None or join.kind not in ("SEMI", "ANTI")
    natural = join is not None and join.method == "NATURAL"
    if isinstance(node, exp.Table) and not node.alias and isinstance(node.this, exp.Identifier):
        return Plain(node, tuple(part.name for part in node.parts), using, visible, natural)
    return Plain(node, (node.alias or _new_alias(query, node),), using, visible, natural)


def _new_alias(query: Query, node: exp.Expr) -> str:
    """Give a relation without a name one that no text of the user's has."""
    end = span_of(node).end
    name = f"lookup_at_{end}"
    query.edits.replace(Span(end, end), f" AS {name}")
    return name


def refuse_merged(query: Query, join: exp.Join) -> None:
    """Refuse joins that compute the columns that they merge, which no relation has."""
    if join.side in ("RIGHT", "FULL") and (join.method == "NATURAL" or join.args.get("using")):
        raise PlanError(
            f"A {join.side} join with USING, or a NATURAL one, cannot stand beside a lookup join.",
            hint="Write the condition with ON.",
            place=query.statement.place(span_of(join)),
        )
