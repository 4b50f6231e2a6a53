"""Names in a SELECT: the relations of its FROM, and the column that a name refers to by Spark's rules.

Everything here is frozen: a name is bound once, to a relation and a column of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise

from sqlglot import exp

from lookupcache.errors import StatementError
from lookupcache.planner.argument_names import named_sql, naming_arguments
from lookupcache.planner.clauses import tokens
from lookupcache.planner.depth import deep_recursion
from lookupcache.planner.lambda_names import lambdas_among
from lookupcache.planner.naming import is_lambda_variable
from lookupcache.sql.dialect import name_span, parse, span_of
from lookupcache.sql.text import Edit, Span, Statement, edited

Fold = Callable[[str], str]


@dataclass(frozen=True, eq=False)
class Relation:
    """A relation of a FROM: the names that may qualify its columns, and its columns with Spark's type names.

    ``names`` is the path, of which the last part alone, or with those before it, qualifies a column. Columns that are
    ``merged`` by USING or NATURAL, in that order, are those of a relation before it, unless they are qualified.
    ``computed`` columns of a lookup table are SQL over the others, in which names in ``outside`` stand for parameters
    and session variables. ``shown`` are the columns that have names in the statement, in their order; None for all.
    ``fold`` is the session's rule for names in computed columns. A relation without an alias gets one that nothing
    else has.
    """

    names: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    merged: tuple[str, ...] = ()
    computed: Mapping[str, str] = field(default_factory=dict)
    shown: tuple[str, ...] | None = None
    fold: Fold = str.lower
    outside: Mapping[str, str] = field(default_factory=dict)
    _spelled: dict[Fold, dict[str, str]] = field(default_factory=dict, init=False, repr=False)

    @property
    def alias(self) -> str:
        """The name that qualifies its columns."""
        return self.names[-1]

    @property
    def column_names(self) -> list[str]:
        """The names of its columns in their order."""
        return [name for name, _ in self.columns] if self.shown is None else list(self.shown)

    def is_named(self, parts: Sequence[str], fold: Fold) -> bool:
        """Return whether these names qualify its columns."""
        return bool(parts) and [fold(n) for n in self.names][-len(parts) :] == [fold(part) for part in parts]

    def column(self, name: str, fold: Fold) -> str | None:
        """Return the column of that name as the relation spells it."""
        if fold not in self._spelled:
            self._spelled[fold] = {fold(known): known for known in reversed(self.column_names)}
        return self._spelled[fold].get(fold(name))

    def read_outside(self, sql: str) -> list[str]:
        """Return the SQL of the parameters and session variables that SQL over its columns reads."""
        words = {token.written for token in tokens(sql)} if self.outside else ()
        return [given for name, given in self.outside.items() if name in words]

    def stored(self, name: str) -> str | None:
        """Return the column of that name that a computed one may read, as the relation spells it."""
        return next((known for known, _ in self.columns if known.lower() == name.lower()), None)


@dataclass(frozen=True, eq=False)
class Name:
    """A column, or ``alias.*``, in the text: the parts of its name and their positions.

    ``nested`` says that it stands in a query inside of the SELECT, where a relation of that query comes first.
    """

    parts: tuple[str, ...]
    spans: tuple[Span, ...]
    node: exp.Expr
    nested: bool = False
    is_star: bool = False

    @functools.cached_property
    def span(self) -> Span:
        """The span of all its parts."""
        return Span(self.spans[0].start, self.spans[-1].end) if self.spans else span_of(self.node)

    @property
    def start(self) -> int:
        """The offset at which the name starts."""
        return self.span.start


@dataclass(frozen=True, eq=False)
class Bound:
    """A resolved name: its relation, the column as the relation spells it, and the span from qualifier to column."""

    relation: Relation
    column: str
    span: Span


def names_in(node: exp.Expr, fold: Fold) -> list[Name]:
    """Return the columns and stars that a part of a statement names, in the order of the text.

    Periods and hints are left out, and so are the variables of lambdas. Of stars in a query inside, only those with a
    qualifier are there.
    """
    return sorted(_names_in(node, fold, False), key=lambda name: name.start)


def _names_in(node: exp.Expr, fold: Fold, nested: bool) -> Iterator[Name]:
    if isinstance(node, exp.Version | exp.Hint):
        return
    if isinstance(node, exp.Star):
        if not nested:
            yield Name((), (), node, is_star=True)
        return
    if isinstance(node, exp.Column):
        parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
        if parts and not is_lambda_variable(node, parts[0].name, fold):
            texts, spans = tuple(part.name for part in parts), tuple(name_span(part) for part in parts)
            yield Name(texts, spans, node, nested, isinstance(node.this, exp.Star))
        return
    for inner in node.iter_expressions():
        if is_count_of_rows(node, inner) or _is_unit(node, inner):
            continue
        # A star of a SELECT without a FROM, in a lateral sub-query, means the relations before it.
        is_query = isinstance(inner, exp.Select) and inner.args.get("from_") is not None
        yield from _names_in(inner, fold, nested or is_query)


_WITH_UNIT = {"TIMESTAMPADD", "DATEADD", "DATE_ADD", "TIMESTAMPDIFF", "DATEDIFF", "DATE_DIFF", "TIMEDIFF"}


def _is_unit(node: exp.Expr, part: exp.Expr) -> bool:
    """Return whether a part of a call is the unit of a function such as ``timestampadd(DAY, 1, d)``."""
    called = isinstance(node, exp.Anonymous) and node.name.upper() in _WITH_UNIT and len(node.expressions) == 3
    return called and node.expressions[0] is part and isinstance(part, exp.Column) and not part.table


def is_count_of_rows(node: exp.Expr, star: exp.Expr) -> bool:
    """Return whether a star is that of ``count(*)``, which reads no column."""
    return isinstance(node, exp.Count) and isinstance(star, exp.Star) and not star.args.get("except_")


@functools.lru_cache(maxsize=512)
def columns_in(sql: str, fold: Fold = str.lower) -> tuple[tuple[str, Span], ...]:
    """Return the names of columns in an expression over one relation, without the fields of structs behind them."""
    select = "SELECT "
    names = deep_recursion(lambda: names_in(parse(Statement.of(select + sql)), fold))
    found = ((name.parts[0], name.spans[0]) for name in names if name.spans)
    return tuple((name, Span(start - len(select), end - len(select))) for name, (start, end) in found)


_OF_ROWS = {exp.Query: "a sub-query", exp.Window: "a window", exp.AggFunc: "an aggregate", exp.UDTF: "a generator"}
_GENERATORS = re.compile(r"((POS)?EXPLODE|INLINE)(_OUTER)?|STACK|JSON_TUPLE", re.IGNORECASE)


def part_of_rows(nodes: Sequence[exp.Expr]) -> str | None:
    """Return what expressions have that reads or makes several rows, as "an aggregate"; None without such a part.

    >>> [part_of_rows([item]) for item in parse(Statement.of("SELECT 1 + sum(k) OVER (), explode(k), k")).expressions]
    ['a window', 'a generator', None]
    """
    found = next((what for kind, what in _OF_ROWS.items() if any(node.find(kind) for node in nodes)), None)
    calls = (call.name for node in nodes for call in node.find_all(exp.Anonymous))
    return found or next((_OF_ROWS[exp.UDTF] for name in calls if _GENERATORS.fullmatch(name)), None)


def lambdas_in(sql: str) -> list[tuple[Span, frozenset[str]]]:
    """Return the lambdas in an expression, each with the names of its variables.

    >>> sql = "f(a, (x, y) -> x + g(z -> z, y), 1)"
    >>> [(sql[start:end], sorted(names)) for (start, end), names in lambdas_in(sql)]
    [('(x, y) -> x + g(z -> z, y)', ['x', 'y']), ('z -> z', ['z'])]
    """
    found = list(tokens(sql))
    return [
        (Span(found[place.start].start, found[place.stop - 1].end), frozenset(one.name.lower() for one in variables))
        for variables, place in lambdas_among(found)
    ]


def refuse_capture(lambdas: Sequence[tuple[Span, frozenset[str]]], place: tuple[int, int], sql: str) -> None:
    """Raise StatementError for SQL that is put within a lambda, and names a column as the lambda names a variable."""
    around = {name for span, names in lambdas if span.holds(Span(*place)) for name in names}
    if not around:
        return
    read = [one for before, one in pairwise([None, *tokens(sql)]) if one and (before is None or before.text != ".")]
    for token in read:
        if token.kind in ("word", "quoted") and token.name.lower() in around:
            raise StatementError(
                f"Variable {token.name!r} of a lambda has the name of a column that a column within it reads.",
                hint="Give the variable another name.",
            )


def naming_edits(statement: Statement, whole: Span, *, is_users: bool = True) -> Callable[[Span, str], Edit]:
    """Return a function that makes edits of an expression, which leave a struct the names of its fields.

    Errors have positions in the statement if it is the user's.
    """
    fields, lambdas = naming_arguments(statement[whole]), lambdas_in(statement[whole])

    def edit(span: Span, sql: str) -> Edit:
        place = (span.start - whole.start, span.end - whole.start)
        with statement.located(span) if is_users else nullcontext():
            refuse_capture(lambdas, place, sql)
        if place not in fields:
            return Edit(span, sql)
        name = fields[place]
        return Edit(span, f"coalesce({sql})" if name is None else named_sql(sql, name))

    return edit


def with_columns(sql: str, column: Callable[[str], str | None], fold: Fold = str.lower) -> str:
    """Return an expression with other SQL in place of the columns in it; None leaves a name as it is.

    A struct keeps the names of its fields.

    >>> with_columns("upper(name) || s.f", {"name": "c.name", "s": "c.s"}.get)
    'upper(c.name) || c.s.f'
    """
    statement = Statement.of(sql)
    edit = naming_edits(statement, statement.span, is_users=False)
    return edited(sql, (edit(span, new) for name, span in columns_in(sql, fold) if (new := column(name)) is not None))


class Scope:
    """The relations that are visible in a condition, and the resolution of names; earlier groups take precedence.

    Spark takes the longest qualifier that fits, then looks at the name alone, whose other parts are fields of a struct.

    >>> orders = Relation(("db", "o"), (("id", "bigint"), ("c", "struct<id:int>")))
    >>> scope = Scope([[orders, Relation(("c",), (("id", "bigint"),))]], str.lower)
    >>> [bound and (bound[0].alias, bound[1]) for bound in map(scope.find, [["db", "o", "ID"], ["c", "id"], ["id"]])]
    [('o', 'id'), ('c', 'id'), None]
    """

    def __init__(self, groups: Sequence[Sequence[Relation]], fold: Fold) -> None:
        self.groups = [list(group) for group in groups]
        self.fold = fold

    @property
    def relations(self) -> list[Relation]:
        """All relations."""
        return [relation for group in self.groups for relation in group]

    def bind(self, name: Name) -> Bound | None:
        """Return the column that a name refers to; None if it belongs to no relation here, or may belong to several."""
        found = None if name.is_star else self.find(name.parts)
        if found is None:
            return None
        relation, column, position = found
        return Bound(relation, column, Span(name.spans[0].start, name.spans[position].end))

    def find(self, parts: Sequence[str]) -> tuple[Relation, str, int] | None:
        """Return relation, column, and which of the parts is the column's name."""
        for group in self.groups:
            for hidden in (False, True):  # a column that USING hides comes after a field of a struct
                for depth in range(min(len(parts) - 1, 3), -1, -1):
                    found = list(self._find(group, parts, depth, hidden))
                    if found:
                        return found[0] if len(found) == 1 else None
        return None

    def _find(
        self, group: list[Relation], parts: Sequence[str], depth: int, hidden: bool
    ) -> Iterator[tuple[Relation, str, int]]:
        for relation in group:
            seen = relation.is_named(parts[:depth], self.fold) if depth else True
            column = relation.column(parts[depth], self.fold) if seen else None
            if column is not None and ((depth and hidden) or self.fold(column) not in relation.merged):
                yield relation, column, depth


def star_columns(relations: Sequence[Relation], fold: Fold) -> list[tuple[Relation, str]]:
    """Return the columns of ``*``: each join puts the columns that it merges first.

    >>> orders = Relation(("o",), (("a", ""), ("id", "")))
    >>> customers = Relation(("c",), (("id", ""), ("b", "")), merged=("id",))
    >>> [(relation.alias, name) for relation, name in star_columns([orders, customers], str)]
    [('o', 'id'), ('o', 'a'), ('c', 'b')]
    """
    found: list[tuple[Relation, str]] = []
    for relation in relations:
        names = {fold(key[1]): key for key in reversed(found)}  # of several columns of a name, the first is merged
        first = [names[name] for name in relation.merged if name in names]
        own = [(relation, name) for name in relation.column_names if fold(name) not in relation.merged]
        found = [*first, *(key for key in found if key not in first), *own]
    return found


def aliases(select: exp.Select) -> list[str]:
    """Return the names by which a SELECT's relations qualify columns."""
    first = select.args.get("from_")
    joined = [join.this for join in select.args.get("joins") or []]
    relations = [*([first.this] if first else []), *joined, *(select.args.get("laterals") or [])]
    return [name for relation in relations for name in _aliases(relation)]


def _aliases(relation: exp.Expr) -> Iterator[str]:
    yield relation.alias_or_name
    if isinstance(relation, exp.Subquery) and isinstance(relation.this, exp.Table):  # joins in parentheses
        yield from _aliases(relation.this)
    for inner in relation.args.get("joins") or []:
        yield from _aliases(inner.this)
