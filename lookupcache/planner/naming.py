"""Names in conditions: the side of a column, and how a plan writes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from lookupcache.ddl import ExpressionParser, SparkTokenizer, parser_fact
from lookupcache.errors import HIDDEN_COLUMN, PlanError, SchemaError, nearest
from lookupcache.expr import Column, Side
from lookupcache.plan import OWN_PREFIX, How
from lookupcache.planner.argument_names import named_sql, naming_arguments
from lookupcache.planner.clauses import WORD_CALLS, functions, splice, tokens
from lookupcache.planner.grammar import Parenthesised, prepare_for_sqlglot, read
from lookupcache.planner.lambda_names import SIDES, rename_variables
from lookupcache.planner.settings import CASE_SENSITIVE, RESERVED_KEYWORDS, Settings
from lookupcache.schema import parse_type, quote, quote_path, type_name


@dataclass(frozen=True)
class LeftColumn:
    """A column of the left side; ``type`` is Spark's name of its type, with quoted names in a struct."""

    name: str
    type: str


@dataclass(frozen=True)
class Reference:
    """A column in a text: its side and name, the fields taken from it, and the position of its name."""

    side: Side
    name: str
    fields: tuple[str, ...]
    start: int
    end: int

    @property
    def sql(self) -> str:
        """The column as a plan writes it."""
        return column_name(self.side, self.name)


def column_name(side: Side, name: str) -> str:
    """Return a column as plans write it.

    >>> column_name("right", "id")
    'r.`id`'
    """
    return f"{side[0]}.{quote(name)}"


def left_qualifier(taken: Iterable[str]) -> str:
    """Return a qualifier for left columns that is no name in use: those of tables and columns mean these.

    >>> left_qualifier(["id", "c"]), left_qualifier(["Left", "left_0"])
    ('left', 'left_1')
    """
    used = {name.lower() for name in taken}
    return next(name for name in ("left", *map("left_{}".format, range(len(used) + 1))) if name not in used)


Names = Mapping[tuple[str, ...], tuple[Side, str, int]]
"""The reference behind each name, by its parts: the side, the column, and which part is the column's name."""


@dataclass(frozen=True, eq=False)
class Fragment:
    """An expression: the original text, sqlglot's tree, and the text as a plan writes it.

    ``doubtful`` means that Spark may parse the text differently from the tree: only its columns are certain.
    """

    text: str
    tree: exp.Expr
    references: dict[int, Reference]
    sql: str
    doubtful: bool = False

    @cached_property
    def sides(self) -> frozenset[Side]:
        """The sides whose columns it reads."""
        return frozenset(reference.side for reference in self.references.values())

    @cached_property
    def functions(self) -> frozenset[str]:
        """The names of the functions that it calls, in lower case."""
        return functions(self.text)

    @property
    def column(self) -> Reference | None:
        """The column, if the expression is a plain column."""
        reference = self.reference(self.tree.unnest())
        return reference if reference and not reference.fields and isinstance(self.tree.unnest(), exp.Column) else None

    def reference(self, node: exp.Expr) -> Reference | None:
        """Return the column that a node of the tree names."""
        return self.references.get(id(node))

    @property
    def as_named(self) -> str:
        """Its text with each column qualified with the letter of its side, and its name as written."""
        return respell(self.text, self.references, lambda r: f"{r.side[0]}.{_last_name(self.text[r.start : r.end])}")

    def names(self, side: Side) -> set[str]:
        """Return the columns of one side that it reads."""
        return {reference.name for reference in self.references.values() if reference.side == side}


class VisibleColumns:
    """The columns that are visible in a condition, and the rules for their names.

    Args:
        left: The columns of the left side.
        table: The name of the lookup table.
        right: The schema of the lookup table.
        case_sensitive: Whether names are distinguished by case, also if the session does not.
        settings: The session's settings.
        bound: The columns of names that a statement has bound already; all others are found among the columns.
        star: Returns the left columns that a qualifier's star stands for; None for a qualifier that Spark does not
            know.

    >>> scope = VisibleColumns([LeftColumn("id", "bigint")], "c", pa.schema([("ID", pa.int64()), ("age", pa.int32())]))
    >>> scope.read("o.id = c.id AND age > 18").sql
    'l.`id` = r.`ID` AND r.`age` > 18'
    """

    def __init__(
        self,
        left: Sequence[LeftColumn],
        table: str,
        right: pa.Schema,
        *,
        case_sensitive: bool = False,
        settings: Settings | None = None,
        bound: Names | None = None,
        star: Callable[[str], Sequence[str] | None] = lambda _: None,
    ) -> None:
        self.table = table
        self._bound = bound or {}
        self._star = cache(star)
        self.settings = settings or Settings()
        self.left = tuple(left)
        self.right = right
        exact = case_sensitive or self.settings.on(CASE_SENSITIVE)
        self._fold: Callable[[str], str] = str if exact else str.lower
        self._left: dict[str, list[LeftColumn]] = {}
        for column in left:
            self._left.setdefault(self._fold(column.name), []).append(column)
        self._right = {self._fold(name): name for name in right.names}
        self._merged: frozenset[str] = frozenset()

    def same(self, a: str, b: str) -> bool:
        """Return whether two names are equal under the session's rule."""
        return self._fold(a) == self._fold(b)

    def read(self, text: str) -> Fragment:
        """Parse an expression and resolve its columns; raises PlanError or SchemaError."""
        text = rename_variables(text, self._fold)
        as_shown = prepare_for_sqlglot(text)
        tree, named = _parse(as_shown.text, text)
        columns = [node for node in named if not is_lambda_variable(node, node.parts[0].name, self._fold)]
        references = {id(node): found for node in columns if (found := self._resolve(node, text, as_shown))}
        doubtful = read(text) is None or self.settings.doubtful(text)
        return Fragment(text, tree, references, _plan_sql(text, references), doubtful)

    def pair(self, name: str) -> tuple[Fragment, Fragment]:
        """Return a left column, and the equality with the table's column of the same name, as if it were written."""
        alone, right = self.left_column(name), self.of_right(name)
        tree = exp.EQ(this=exp.column(alone.text), expression=exp.column(right))
        left_column, right_column = Reference("left", alone.text, (), 0, 0), Reference("right", right, (), 0, 0)
        references = {id(tree.left): left_column, id(tree.right): right_column}
        whole = Fragment(f"{alone.text} = {self.table}.{right}", tree, references, f"{alone.sql} = {right_column.sql}")
        return alone, whole

    def left_column(self, name: str) -> Fragment:
        """Return a left column as an expression; raises SchemaError if no column or several have the name."""
        found = self.of_left(name).name
        tree = exp.column(found)
        reference = Reference("left", found, (), 0, len(found))
        return Fragment(found, tree, {id(tree): reference}, reference.sql)

    def find(self, names: tuple[str, ...]) -> Reference | None:
        """Return the column, or the field of one, that has these names, without a position; or None."""
        try:
            side, position, name = self._find(names)
        except SchemaError:
            return None
        return Reference(side, name, names[position + 1 :], 0, 0)

    def typed(self, side: Side, name: str) -> Column | None:
        """Return a column as a worker's expression; None if Arrow does not have its type."""
        if side == "right":
            return Column("right", name, self.right.field(name).type)
        try:
            return Column("left", name, parse_type(self.of_left(name).type))
        except SchemaError:
            return None

    def has_left(self, name: str) -> bool:
        """Return whether the left side has a column of this name."""
        return self._fold(name) in self._left

    def has_right(self, name: str) -> bool:
        """Return whether the table has a column of this name."""
        return self._fold(name) in self._right

    def with_names(self, bound: Names) -> VisibleColumns:
        """Return the same columns, with names that refer to certain ones."""
        scope = copy(self)
        scope._bound = bound
        return scope

    def merging(self, names: Iterable[str]) -> VisibleColumns:
        """Return the same columns after an equality of those with these names: a bare name is that of the left one."""
        scope = copy(self)
        scope._merged = frozenset(map(self._fold, names))
        return scope

    def in_result(self, how: How) -> VisibleColumns:
        """Return the columns of the join's result: after a semi or anti join, a bare name is that of the left side."""
        return self.merging(self.right.names) if how in ("semi", "anti") else self

    def of_left(self, name: str) -> LeftColumn:
        """Find a left column by name; raises SchemaError if no column or several have the name."""
        found = self._left.get(self._fold(name), [])
        if len(found) > 1:
            raise SchemaError(
                f"The left side has {len(found)} columns named {name!r}.",
                hint="Rename one of them before the join, with withColumnRenamed or an alias.",
            )
        if not found:
            known = [column.name for column in self.left]
            raise SchemaError(
                f"The left side has no column {name!r}.", hint=nearest(name, known, what="columns of the left side")
            )
        return found[0]

    def of_right(self, name: str) -> str:
        """Find a column of the lookup table by name; raises SchemaError if no column has it."""
        if self._fold(name) not in self._right:
            raise SchemaError(
                f"Table {self.table!r} has no column {name!r}.",
                hint=nearest(name, self.right.names, what=f"columns of {self.table!r}"),
            )
        return self._right[self._fold(name)]

    @cached_property
    def left_qualifier(self) -> str:
        """A qualifier of left columns only."""
        return left_qualifier([self.table, *(column.name for column in self.left), *self.right.names])

    def left_star(self, qualifier: Sequence[str] = ()) -> list[str]:
        """Return the left columns that a star stands for; an unknown qualifier means the left side, as with names."""
        known = self._star(quote_path(qualifier)) if qualifier else None
        names = [column.name for column in self.left] if known is None else known
        return [self.of_left(name).name for name in names]

    # ── one column ───────────────────────────────────────────────────────────────────────────────────────

    def _resolve(self, node: exp.Column, text: str, as_shown: Parenthesised) -> Reference | None:
        parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
        names = tuple(part.name for part in parts)
        start = as_shown.original_start(parts[0].meta["start"])
        quoted = text.startswith("`", start)
        if len(names) == 1 and names[0].lower() in WORD_CALLS and self._is_call(names[0], quoted=quoted):
            return None
        side, position, name = self._find(names)
        end = as_shown.original(parts[position].meta["end"]) + 1
        return Reference(side, name, names[position + 1 :], start, end)

    def _find(self, names: tuple[str, ...]) -> tuple[Side, int, str]:
        """Return the side, which part is the column's name, and its name in the schema."""
        if names in self._bound:
            side, name, position = self._bound[names]
            return side, position, name
        if len(names) > 1 and self.same(names[0], self.table) and self._is_right_qualified(names):
            return "right", 1, self.of_right(names[1])
        if len(names) == 1:
            return self._find_bare(names[0])
        if self._is_nested(names[0], names[1]) and not self._has_relation(names[0], names[1]):
            return self._find_bare(names[0])
        if self._is_variable(names):
            raise session_variable(".".join(names))
        for position, name in enumerate(names):
            if (position and self._fold(name) in self._left) or self.same(name, HIDDEN_COLUMN):
                return "left", position, self.of_left(name).name
        if self.is_column(names[0]):
            return self._find_bare(names[0])
        try:
            return "left", 1, self.of_left(names[1]).name
        except SchemaError as error:
            hint = f"{error.hint} {names[0]!r} is not the table {self.table!r}, and so means the left side."
            raise SchemaError(error.fact, hint=hint) from None

    def _find_bare(self, name: str) -> tuple[Side, int, str]:
        left, right = self._fold(name) in self._left, self._fold(name) in self._right
        if left and right and self._fold(name) not in self._merged:
            raise SchemaError(
                f"Column {name!r} is ambiguous: the left side has {self._left[self._fold(name)][0].name!r}, "
                f"and table {self.table!r} has {self._right[self._fold(name)]!r}.",
                hint=f"Write {self.table}.{name} for the table's column, or left.{name} for the other.",
            )
        if right and not left:
            return "right", 0, self.of_right(name)
        if not left:
            known = [*(column.name for column in self.left), *(f"{self.table}.{n}" for n in self.right.names)]
            error = SchemaError(f"There is no column {name!r}.", hint=nearest(name, known, what="columns"))
            error.unknown = name
            raise error
        return "left", 0, self.of_left(name).name

    def _is_variable(self, names: tuple[str, ...]) -> bool:
        """Return whether Spark finds a session variable: an unknown qualifier means the left side, but not this one."""
        qualifier = tuple(map(str.lower, names[:-1]))
        is_session = qualifier[:1] == ("session",) or qualifier[:2] == ("system", "session")
        return is_session and not self.is_column(names[0]) and self.relation(names[0]) is None

    def _is_right_qualified(self, names: tuple[str, ...]) -> bool:
        return self._fold(names[1]) in self._right or not self._is_nested(names[0], names[1])

    def _is_nested(self, name: str, field: str) -> bool:
        """Return whether there is a column ``name`` with a field ``field``, which any key of a map is."""
        is_map = any(type_.startswith("map<") for type_ in self._types(name))
        return is_map or any(self._fold(field) in map(self._fold, fields) for fields in self.structs(name))

    def structs(self, name: str) -> list[list[str]]:
        """Return the fields of each column of this name that is a struct."""
        return [fields for type_ in self._types(name) if (fields := struct_fields(type_))]

    def _types(self, name: str) -> list[str]:
        """Return the type of each column of this name."""
        right = self._right.get(self._fold(name))
        types = [column.type for column in self._left.get(self._fold(name), [])]
        return types if right is None else [*types, type_name(self.right.field(right).type)]

    def _has_relation(self, name: str, column: str) -> bool:
        """Return whether ``name`` qualifies a left column, which Spark then takes instead of a field of a struct."""
        return self._fold(column) in self._left and any(self.same(column, found) for found in self.relation(name) or ())

    def relation(self, name: str) -> Sequence[str] | None:
        """Return the left columns that Spark qualifies with a name; None where it is that of a struct, or unknown."""
        found = self._star(quote(name))
        return None if found is None or list(found) in self.structs(name) else found

    def _is_call(self, word: str, *, quoted: bool) -> bool:
        """Return whether a keyword that may call a function does so here, and is not the name of a column."""
        reserved = not quoted and self.settings.on(RESERVED_KEYWORDS)
        return reserved or not ((word,) in self._bound or self.is_column(word))

    def is_column(self, name: str) -> bool:
        """Return whether a column of either side has this name."""
        return self._fold(name) in self._left or self._fold(name) in self._right


def struct_fields(type_: str) -> list[str]:
    """Return the names of the fields of a struct, or of an array's structs; none for any other type.

    >>> struct_fields("struct<a:int,b:struct<c:decimal(3,1),d:int>>"), struct_fields("bigint")
    (['a', 'b'], [])
    >>> struct_fields("array<array<struct<a:int>>>"), struct_fields("struct<`x,y`:int,`a``b:c<`:map<int,int>>")
    (['a'], ['x,y', 'a`b:c<'])
    """
    while type_.startswith("array<"):
        type_ = type_[len("array<") : -1]
    if not type_.startswith("struct<"):
        return []
    fields: list[str] = []
    depth = 0
    for before, token in pairwise(tokens(f",{type_[len('struct<') : -1]}")):
        if before.text == "," and not depth:
            fields.append(token.name)
        depth += (token.text in ("<", "(")) - (token.text in (">", ")"))
    return fields


def respell(text: str, references: dict[int, Reference], spelling: Callable[[Reference], str]) -> str:
    """Return a text with its columns rewritten."""
    found = sorted({(r.start, r.end): r for r in references.values()}.values(), key=lambda r: r.start)
    return splice(text, ((r.start, r.end, spelling(r)) for r in found))


def _plan_sql(text: str, references: dict[int, Reference]) -> str:
    """Return a text as a plan writes it: its columns by the plan's names, and by the user's where Spark takes them."""
    named = naming_arguments(text)

    def spell(reference: Reference) -> str:
        name = named.get((reference.start, reference.end))
        return reference.sql if name is None else named_sql(reference.sql, name)

    return respell(text, references, spell)


def session_variable(name: str) -> SchemaError:
    """Return the error for a session variable in a condition."""
    return SchemaError(
        f"{name!r} is a session variable, which the condition of a lookup cannot read.",
        hint="Write its value, or add it to the left side as a column.",
    )


def _last_name(path: str) -> str:
    return quote(list(tokens(path))[-1].name)


class ExpressionSql(Spark):
    """The dialect of expressions."""

    Tokenizer = SparkTokenizer

    class Parser(ExpressionParser):
        """Spark's parser, with the operator that takes a value out of a variant."""

        COLON_IS_VARIANT_EXTRACT = True

        def _warn_unsupported(self) -> None:
            """Log nothing: the message would contain the expression, which may have secrets in it."""


@lru_cache(maxsize=512)
def _parse(shown: str, text: str) -> tuple[exp.Expr, tuple[exp.Column, ...]]:
    """Parse a text after its preparation for sqlglot; return it with the names of columns and lambda variables."""
    try:
        tree = sqlglot.parse_one(shown, dialect=ExpressionSql)
    except SqlglotError as error:
        raise _unreadable(text, parser_fact(str(error))) from error
    if any(token.text == ";" for token in tokens(text)):
        raise _unreadable(text, "It has a semicolon.")
    if isinstance(tree, exp.Command):
        raise _unreadable(text, f"It begins as a statement, with {tree.name}.")
    if tree.find(exp.Query):
        raise PlanError(f"{text!r} contains a sub-query.", hint="Join the sub-query's result before the lookup join.")
    variables = [one.name for found in tree.find_all(exp.Lambda) for one in found.expressions]
    # Such a variable could hide a column inside the job.
    if taken := [name for name in variables if name in SIDES or name.lower().startswith(OWN_PREFIX)]:
        raise PlanError(
            f"{text!r} has a lambda variable {taken[0]!r}: names in {OWN_PREFIX}… are reserved.",
            hint="Give it another name, such as x.",
        )
    if tree.find(exp.AggFunc, exp.Window):
        raise PlanError(
            f"{text!r} contains an aggregate or window function.",
            hint="Compute it as a column of the left side first, or from the join's result.",
        )
    if "identifier" in functions(text):
        raise PlanError(f"{text!r} calls IDENTIFIER, and Spark alone knows which name that is.", hint="Write the name.")
    if tree.find(exp.Star):
        raise PlanError(f"{text!r} cannot be used here: * is no column.", hint="Name the columns.")
    # The name of a collation in a type looks like a column.
    return tree, tuple(node for node in tree.find_all(exp.Column) if not node.find_ancestor(exp.DataType))


def _unreadable(text: str, fact: str) -> PlanError:
    keyword = ", and a column named case or end in backticks" if re.search(r"\bcase\b", text, re.IGNORECASE) else ""
    return PlanError(
        f"{text!r} is not an expression that can be read: {fact}",
        hint=f'Write it as Spark SQL, as in "o.id = c.id AND c.age > 18"{keyword}.',
    )


def is_lambda_variable(node: exp.Expr, name: str, fold: Callable[[str], str]) -> bool:
    """Return whether a name in a tree is that of a variable of a lambda around it; ``fold`` is the session's rule."""
    above = node.find_ancestor(exp.Lambda)
    while above is not None:
        if any(fold(variable.name) == fold(name) for variable in above.expressions):
            return True
        above = above.find_ancestor(exp.Lambda)
    return False
