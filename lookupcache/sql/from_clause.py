"""The relations of a FROM clause joined so far: as SQL for Spark, and as the left DataFrame of the next lookup.

The result of a lookup join is one DataFrame with unique column names. In SQL it is split into relations again:

    (SELECT struct(*) AS lookup_1 FROM {lookup_1}) AS lookup_1
    JOIN LATERAL (SELECT lookup_1.lookup_1.`o.id` AS `id`) AS `o`
    JOIN LATERAL (SELECT lookup_1.lookup_1.`c.id` AS `id`) AS `c`

so that `o` and `c` are the user's relations. Spark resolves every name in the rest of the statement, which stays as it
was written. Spark's optimizer turns this into a plain projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.errors import PlanError, SchemaError, StatementError
from lookupcache.planner.clauses import functions, with_words
from lookupcache.planner.constant_keys import NONDETERMINISTIC
from lookupcache.schema import quote, quote_path
from lookupcache.sql.dialect import span_of
from lookupcache.sql.query import Query, view_marker
from lookupcache.sql.scope import Fold, Relation, columns_in, star_columns, with_columns
from lookupcache.sql.text import Span
from lookupcache.versions import is_spark_3

ColumnNames = Mapping[tuple[Relation, str], str]
"""The name that a relation's column has in a DataFrame."""


Within = Callable[[str], str]
"""Returns a query with the WITH clauses that it sees."""


@dataclass(frozen=True, eq=False)
class Plain:
    """A Spark relation in a FROM, whose columns are not known yet; ``using`` are the columns of its USING."""

    node: exp.Expr
    names: tuple[str, ...]
    using: tuple[str, ...] = ()
    visible: bool = True
    merges_all: bool = False


@dataclass(frozen=True)
class FromClause:
    """The relations of a FROM clause up to some join.

    ``view`` is the result of the last lookup. Its relations are ``relations``, whose columns are named ``columns`` in
    it. ``match_columns`` are null only in rows that an outer join added. ``text`` is the SQL after the view, or without
    a view the full clause. The view has the inputs of computed columns; ``computed`` are those computed columns that
    the rest of the SELECT reads.
    """

    text: str = ""
    plain: tuple[Plain, ...] = ()
    view: str | None = None
    relations: tuple[Relation, ...] = ()
    columns: ColumnNames = field(default_factory=dict)
    match_columns: Mapping[Relation, str] = field(default_factory=dict)
    computed: frozenset[tuple[Relation, str]] = frozenset()

    @property
    def internal(self) -> list[str]:
        """Internal struct columns, which a star must leave out."""
        return [f"{self.view}.{self.view}"] if self.view is not None and not _is_alone(self) else []

    @property
    def merged(self) -> frozenset[str]:
        """Names that USING or NATURAL merged with those of an earlier relation."""
        return frozenset().union(*(relation.merged for relation in self.relations))


@dataclass(frozen=True)
class Frame:
    """The left side of a lookup: a DataFrame, the relations in it, and the names of their columns."""

    df: DataFrame
    relations: tuple[Relation, ...] = ()
    columns: ColumnNames = field(default_factory=dict)
    match_columns: Mapping[Relation, str] = field(default_factory=dict)


# ── as SQL ──────────────────────────────────────────────────────────────────────────────────────────────


def from_text(clause: FromClause) -> str:
    """Return the SQL after FROM."""
    if clause.view is None:
        return clause.text
    view = clause.view
    if _is_alone(clause):
        return f"{view_marker(view)} AS {quote(clause.relations[0].alias)}{clause.text}"
    base = f"(SELECT struct(*) AS {view} FROM {view_marker(view)}) AS {view}"
    return "\n  ".join([base, *_laterals(clause)]) + clause.text


def all_but(views: Sequence[str]) -> str:
    """Return a star that leaves out internal columns; raises StatementError where Spark has none that does."""
    if views and is_spark_3():
        raise StatementError(
            "SELECT * over a lookup join needs Spark 4.0: Spark 3.5 has no * EXCEPT.",
            hint="Write the stars of the relations, as in SELECT o.*, c.*.",
        )
    return f"* EXCEPT ({', '.join(views)})" if views else "*"


def _is_alone(clause: FromClause) -> bool:
    """Return whether the view is a single relation whose columns have their own names."""
    if len(clause.relations) != 1 or clause.relations[0].computed:
        return False
    relation = clause.relations[0]
    ordered = [(relation, name) for name in relation.column_names if (relation, name) in clause.columns]
    return list(clause.columns.items()) == [(key, key[1]) for key in ordered]


def _laterals(clause: FromClause) -> Iterator[str]:
    for relation in clause.relations:
        columns = [
            name
            for name in _qualified_star(clause, relation)
            if (relation, name) in (clause.computed if name in relation.computed else clause.columns)
        ]
        items = ", ".join(f"{_item(clause, relation, name)} AS {quote(name)}" for name in columns)
        if items:
            yield f"JOIN LATERAL (SELECT {items}) AS {quote(relation.alias)}"


def _qualified_star(clause: FromClause, relation: Relation) -> list[str]:
    """Return the columns of ``relation.*``: those that USING hides, then the others in the order of ``*``."""
    if not clause.merged:
        return relation.column_names
    hidden = [known for name in relation.merged if (known := relation.column(name, str.lower)) is not None]
    shown = [name for one, name in star_columns(clause.relations, str.lower) if one is relation]
    return list(dict.fromkeys([*hidden, *shown, *relation.column_names]))


def _item(clause: FromClause, relation: Relation, column: str) -> str:
    def spell(name: str) -> str:
        return f"{clause.view}.{clause.view}.{quote(clause.columns[relation, name])}"

    if column not in relation.computed:
        return spell(column)
    chance = sorted(functions(relation.computed[column]) & NONDETERMINISTIC)
    if chance:  # Spark refuses it in a lateral query.
        raise PlanError(
            f"Column {column!r} of {relation.alias!r} calls {chance[0]}, whose value differs in each call.",
            hint=f"Leave it out, and call {chance[0]} in the SELECT list of the query with the lookup.",
        )
    return computed_sql(relation, column, spell, clause.match_columns.get(relation))


# ── as a DataFrame ───────────────────────────────────────────────────────────────────────────────────────


def frame_of(query: Query, clause: FromClause, within: Within, extras: Sequence[str] = ()) -> Frame:
    """Return the relations as a DataFrame, with ``extras`` as further columns: expressions with aliases."""
    if not clause.text and clause.view is None:
        items = ", ".join(["1 AS one", *extras])
        return Frame(query.sql(within(f"SELECT {items}")))
    if clause.view is not None and not clause.plain and not extras:
        return Frame(query.views[clause.view], clause.relations, clause.columns, clause.match_columns)
    if clause.view is None and len(clause.plain) == 1:
        return _frame_of_relation(query, clause, within, extras)
    return _frame_of_relations(query, clause, within, extras)


def _frame_of_relation(query: Query, clause: FromClause, within: Within, extras: Sequence[str]) -> Frame:
    [plain] = clause.plain
    df = query.sql(within(f"SELECT {', '.join([all_but(clause.internal), *extras])} FROM {clause.text}"))
    fields = df.schema.fields[: len(df.schema.fields) - len(extras)]
    relation = Relation(plain.names, tuple((f.name, f.dataType.simpleString()) for f in fields))
    names = unique_names([(relation, f.name) for f in fields], query.fold)
    if names != [f.name for f in fields]:
        df = query.rename_columns(df, [*names, *(f.name for f in df.schema.fields[len(fields) :])])
    relations = (relation,) if plain.visible else ()
    return Frame(df, relations, _by_column(query, plain, relation, fields, names))


def _by_column(
    query: Query, plain: Plain, relation: Relation, fields: Sequence[T.StructField], names: Sequence[str]
) -> ColumnNames:
    """Return the columns of a relation by name; raises SchemaError for two columns of the same name."""
    folded = [query.fold(f.name) for f in fields]
    twice = next((f.name for f in fields if folded.count(query.fold(f.name)) > 1), None)
    if twice is not None:
        raise SchemaError(
            f"The left side of the lookup has two columns named {twice!r}.",
            hint="Name them apart in a sub-query.",
            position=query.statement.position(span_of(plain.node)),
        )
    return {(relation, f.name): name for f, name in zip(fields, names, strict=True)}


def _frame_of_relations(query: Query, clause: FromClause, within: Within, extras: Sequence[str]) -> Frame:
    """Return the DataFrame of several relations, with unique column names."""
    known = resolve_relations(query, clause, within)
    relations = (*clause.relations, *known)
    columns = [*clause.columns, *((one, name) for one in known for name, _ in one.columns)]
    names = unique_names(columns, query.fold)
    items = [
        f"{clause.view}.{clause.view}.{quote(clause.columns[relation, column])} AS {quote(name)}"
        if (relation, column) in clause.columns and not _is_alone(clause)
        else f"{_column(query, relation, column, columns)} AS {quote(name)}"
        for (relation, column), name in zip(columns, names, strict=True)
    ]
    df = query.sql(within(f"SELECT {', '.join([*items, *extras])} FROM {from_text(clause)}"))
    return Frame(df, relations, dict(zip(columns, names, strict=True)), clause.match_columns)


def resolve_relations(query: Query, clause: FromClause, within: Within) -> list[Relation]:
    """Return the Spark relations after the view with the columns that Spark resolves for them."""
    visible = [plain for plain in clause.plain if plain.visible]
    items = ", ".join(f"struct({quote_path(plain.names)}.*) AS s{n}" for n, plain in enumerate(visible))
    structs = query.sql(within(f"SELECT {items} FROM {from_text(clause)}")).schema if visible else ()
    found: list[Relation] = []
    columns = iter(structs)
    for plain in clause.plain:
        if not plain.visible:  # its columns are not there, but those that it merges come first in *
            found += [Relation(("",), (), tuple(map(query.fold, plain.using)))] if plain.using else []
            continue
        column = next(columns)
        assert isinstance(column.dataType, T.StructType)
        fields = column.dataType.fields
        before = [query.fold(name) for _, name in star_columns((*clause.relations, *found), query.fold)]
        using = before if plain.merges_all else list(map(query.fold, plain.using))
        own = {query.fold(f.name) for f in fields}
        merged = dict.fromkeys(name for name in using if name in own)
        types = tuple((f.name, f.dataType.simpleString()) for f in fields)
        relation = Relation(plain.names, types, tuple(merged))
        _by_column(query, plain, relation, fields, [f.name for f in fields])
        found.append(relation)
    return found


def unique_names(columns: Sequence[tuple[Relation, str]], fold: Fold, taken: Sequence[str] = ()) -> list[str]:
    """Return a unique name for each column, none of them in ``taken``: its own name where possible.

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


def _column(query: Query, relation: Relation, column: str, columns: Sequence[tuple[Relation, str]]) -> str:
    """Return a column of a Spark relation as SQL.

    For Spark, one that USING hides comes after a field of a column that has the relation's name.
    """
    names = {query.fold(name) for _, name in columns}
    if query.fold(column) in relation.merged and query.fold(relation.alias) in names:
        return f"struct({quote_path(relation.names)}.*).{quote(column)}"
    return f"{quote_path(relation.names)}.{quote(column)}"


# ── computed columns ─────────────────────────────────────────────────────────────────────────────────────


def computed_sql(
    relation: Relation,
    name: str,
    column: Callable[[str], str],
    match_column: str | None = None,
    outside: Callable[[str], str] = str,
) -> str:
    """Return the SQL of a computed column; ``column`` returns the SQL of a column that it reads.

    ``outside`` returns how a parameter or session variable is written there. Where ``match_column`` is null, in rows
    that an outer join added, the value is null too.
    """

    def read(one: str) -> str | None:
        stored = relation.stored(one)
        return None if stored is None else column(stored)

    text = with_columns(relation.computed[name], read, relation.fold)
    read_outside = relation.read_outside(relation.computed[name])
    text = with_words(text, {one: outside(sql) for one, sql in relation.outside.items() if sql in read_outside})
    return f"({text})" if match_column is None else f"(CASE WHEN {column(match_column)} IS NOT NULL THEN {text} END)"


def inputs_of(relation: Relation, name: str) -> list[str]:
    """Return the columns that a computed column reads."""
    found = columns_in(relation.computed[name], relation.fold)
    return [known for one, _ in found if (known := relation.stored(one)) is not None]


def stored_column(relation: Relation, name: str) -> str | None:
    """Return the column that a column is, perhaps under another name; None for one that is computed."""
    if name not in relation.computed:
        return name
    sql = relation.computed[name]
    whole = [one for one, span in columns_in(sql) if span == (0, len(sql))]
    return relation.stored(whole[0]) if whole else None


# ── Spark relations ─────────────────────────────────────────────────────────────────────────────────


def plain_of(query: Query, node: exp.Expr, join: exp.Join | None = None) -> Iterator[Plain]:
    """Yield the Spark relations of a part of a FROM; joins in parentheses are more than one."""
    if is_group(node):
        yield from plain_of(query, node.this, join)
    else:
        yield plain_relation(query, node, join)
    for inner in node.args.get("joins") or []:
        yield from plain_of(query, inner.this, inner)


def is_group(node: exp.Expr) -> bool:
    """Return whether a relation is joins in parentheses without an alias."""
    return isinstance(node, exp.Subquery) and not node.alias and isinstance(node.this, exp.Table | exp.Subquery)


def plain_relation(query: Query, node: exp.Expr, join: exp.Join | None = None) -> Plain:
    """Return a Spark relation, without those that are joined to it in parentheses."""
    using = tuple(name.name for name in (join.args.get("using") or [])) if join is not None else ()
    visible = join is None or join.kind not in ("SEMI", "ANTI")
    natural = join is not None and join.method == "NATURAL"
    if isinstance(node, exp.Table) and not node.alias and isinstance(node.this, exp.Identifier):
        return Plain(node, tuple(part.name for part in node.parts), using, visible, natural)
    return Plain(node, (node.alias or _new_alias(query, node),), using, visible, natural)


def _new_alias(query: Query, node: exp.Expr) -> str:
    """Add a unique alias to a relation without a name."""
    end = span_of(node).end
    name = f"lookup_at_{end}"
    # With its last letter, so that an edit of the full FROM clause, which ends here too, includes it.
    query.edits.replace(Span(end - 1, end), f"{query.statement.code[end - 1]} AS {name}")
    return name


def refuse_merged(query: Query, join: exp.Join) -> None:
    """Raise PlanError for joins whose merged columns are computed from both sides, and so belong to no relation."""
    if join.side in ("RIGHT", "FULL") and (join.method == "NATURAL" or join.args.get("using")):
        raise PlanError(
            f"A {join.side} join with USING, or a NATURAL one, cannot be combined with a lookup join.",
            hint="Write the condition with ON.",
            position=query.statement.position(span_of(join)),
        )
