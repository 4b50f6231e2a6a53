"""The result's columns: the expressions of ``select``, with the names that Spark would give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from lookupcache.config import LookupConfig
from lookupcache.errors import PlanError, SchemaError
from lookupcache.plan import LETTER_COLUMNS, How, Output
from lookupcache.planner.argument_names import calls, naming_arguments
from lookupcache.planner.clauses import Token, closing_of, has_query, split_arguments, tokens, without_comments
from lookupcache.planner.grammar import prepare_for_sqlglot, split_names
from lookupcache.planner.naming import Fragment, VisibleColumns, column_name
from lookupcache.planner.settings import Analyst
from lookupcache.schema import quote


@dataclass(frozen=True)
class Result:
    """The result's columns, and the columns of both sides that they, or dead letters, read."""

    output: tuple[Output, ...]
    left: frozenset[str]
    right: frozenset[str]


@dataclass(frozen=True)
class _Item:
    """A selected column; if it has no name, ``unnamed`` is the expression that Spark names."""

    output: Output
    text: str
    left: frozenset[str]
    right: frozenset[str]
    unnamed: str | None = None


def result_of(
    scope: VisibleColumns,
    how: How,
    select: Sequence[str] | None,
    using: Sequence[str],
    config: LookupConfig,
    analyst: Analyst,
    name_of: Callable[[int], str | None] = lambda _: None,
) -> Result:
    """Resolve the select list.

    Without ``select``, the result has the columns of both sides. ``using`` are columns of the table that are equal to
    left columns of their names: as in Spark's join, those come first, and ``*`` has them once. ``name_of`` returns the
    name of an item without an alias by its number, None where its text decides. Raises PlanError for two
    columns with one name, those for age and error included, which follow the selected ones.
    """
    scope = scope.in_result(how)
    if select is None:
        items = list(_every(scope, how, using))
    else:
        _refuse_no_texts(select)
        texts = [scope.settings.readable(without_comments(text)) for text in select]
        found = _all_items(scope, how, texts, using)
        named = [_named(item, number, name_of) for number, items in enumerate(found) for item in items]
        items = _name_items(named, analyst)
    if not items:
        raise PlanError("The join selects nothing.", hint="Name at least one column in 'select'.")
    _refuse_clashes(scope, items)
    _refuse_marks(scope, items, config)
    return Result(
        tuple(item.output for item in items),
        _in_letters(scope, config).union(*(item.left for item in items)),
        frozenset().union(*(item.right for item in items)),
    )


def _refuse_no_texts(select: Sequence[str]) -> None:
    if isinstance(select, str) or not isinstance(select, Sequence):
        raise PlanError(f"'select' is {select!r}, and no list.", hint="Give a list, as in select=['o.id', 'c.name'].")
    for item in select:
        if not isinstance(item, str):
            raise PlanError(f"'select' has {item!r}, which is no text.", hint="Write SQL, as in 'upper(c.name) AS n'.")


def _every(scope: VisibleColumns, how: How, using: Sequence[str]) -> Iterator[_Item]:
    yield from _lefts(scope, using, scope.left_star())
    others = [name for name in scope.right.names if name not in using]
    yield from () if how in ("semi", "anti") else _rights(scope, others)


def _lefts(scope: VisibleColumns, using: Sequence[str], names: Sequence[str]) -> Iterator[_Item]:
    first = [name for name in (scope.of_left(column).name for column in using) if name in names]
    for name in dict.fromkeys([*first, *names]):
        yield _Item(Output(name=name, sql=column_name("left", name)), name, frozenset({name}), frozenset())


def _rights(scope: VisibleColumns, names: Iterable[str]) -> Iterator[_Item]:
    for name in names:
        text = f"{scope.table}.{name}"
        yield _Item(Output(name=name, sql=column_name("right", name)), text, frozenset(), frozenset({name}))


def _all_items(scope: VisibleColumns, how: How, texts: Sequence[str], using: Sequence[str]) -> list[list[_Item]]:
    """Return the columns of each text; raises PlanError for one that reads the alias of another."""
    found: list[list[_Item]] = []
    for text in texts:
        try:
            found.append(list(_items(scope, how, text, using)))
        except SchemaError:
            for item in (item for items in found for item in items):
                _refuse_alias(scope, text, item)
            raise
    return found


def _refuse_alias(scope: VisibleColumns, text: str, item: _Item) -> None:
    """Raise PlanError for an expression that reads the alias of an item before it."""
    names = [token.name for token in tokens(text) if token.kind in ("word", "quoted")]
    if any(scope.same(item.output.name, name) for name in names) and not scope.is_column(item.output.name):
        raise PlanError(
            f"{text!r} reads {item.output.name!r}, the name that another item of 'select' gives.",
            hint=f"Write its expression, {item.text}, or compute {text!r} after the join, with selectExpr.",
        )


def _items(scope: VisibleColumns, how: How, text: str, using: Sequence[str]) -> Iterator[_Item]:
    stars = column_stars(text)
    if [(star.start, star.end) for star in stars] == [(0, len(text))]:
        yield from _columns_of(scope, how, stars[0], using)
        return
    yield _item(scope, how, expand_stars(scope, how, text, using))


def expand_stars(scope: VisibleColumns, how: How, text: str, using: Sequence[str]) -> str:
    """Return an expression over the join's result with the columns that its stars stand for.

    Those that are no arguments, which Spark refuses, stay.
    """
    stars = [star for star in column_stars(text) if star.is_argument]
    if stars and has_query(text):
        scope.read(text)  # refuses it
    _refuse_numbered_fields(text, stars)
    for star in reversed(stars):
        columns = [_qualified(scope, item) for item in _columns_of(scope, how, star, using)]
        if not columns:
            raise PlanError(f"{text!r} has a star without columns.", hint="Leave it out.")
        text = text[: star.start] + ", ".join(columns) + text[star.end :]
    return text


def _refuse_numbered_fields(text: str, stars: Sequence[ColumnStar]) -> None:
    """Raise PlanError for a value without a name beside the star of a struct: Spark names it after its place before."""
    arguments, places = naming_arguments(text, by_parser=True), {(star.start, star.end) for star in stars}
    if places.isdisjoint(arguments):
        return
    for start, end in (span for span, name in arguments.items() if name is None):
        value = text[start:end]
        if not any(first <= start and end <= last for first, last in places) and not split_names(value)[1]:
            raise PlanError(
                f"{value!r} has no name beside the star in {text!r}.", hint=f"Give it one, as in {value} AS value."
            )


def _qualified(scope: VisibleColumns, item: _Item) -> str:
    """Return a column of a star, with its relation."""
    relation, [name] = (scope.left_qualifier, item.left) if item.left else (scope.table, item.right)
    return f"{quote(relation)}.{quote(name)}"


def _columns_of(scope: VisibleColumns, how: How, star: ColumnStar, using: Sequence[str]) -> list[_Item]:
    """Return the columns that a star stands for."""
    items = list(_expand_star(scope, how, star.qualifier, using))
    for path in star.without:
        found = [item for item in items if _is_named(scope, item, path)]
        if len(found) != 1:
            raise PlanError(
                f"EXCEPT ({'.'.join(path)}) does not name one column of '{'.'.join((*star.qualifier, '*'))}'.",
                hint="Qualify a name that both sides have; the fields of a struct cannot be left out.",
            )
        items.remove(found[0])
    return items


def _is_named(scope: VisibleColumns, item: _Item, path: tuple[str, ...]) -> bool:
    """Return whether a name, qualified or not, is that of a column of a star."""
    if len(path) == 1:
        return scope.same(item.output.name, path[0])
    found = scope.find(path)
    return found is not None and not found.fields and found.sql == item.output.sql


def _expand_star(scope: VisibleColumns, how: How, qualifier: tuple[str, ...], using: Sequence[str]) -> Iterator[_Item]:
    name = ".".join(qualifier)
    right = len(qualifier) == 1 and scope.same(name, scope.table)
    if not right and qualifier and _may_be_struct(scope, qualifier):
        raise PlanError(f"'{name}.*' would split a struct.", hint="Name the fields one by one.")
    if right and how in ("semi", "anti"):
        _refuse_right(scope, how, f"{name}.*")
    if right:
        yield from _rights(scope, dict.fromkeys([*using, *scope.right.names]))
    else:
        yield from _lefts(scope, using, scope.left_star(qualifier)) if qualifier else _every(scope, how, using)


def _may_be_struct(scope: VisibleColumns, qualifier: tuple[str, ...]) -> bool:
    """Return whether a name before a star is that of a struct, and not of a relation."""
    if len(qualifier) > 1:
        return scope.find(qualifier) is not None
    return bool(scope.structs(qualifier[0])) and scope.relation(qualifier[0]) is None


def _item(scope: VisibleColumns, how: How, text: str) -> _Item:
    fragment = scope.read(text)
    written, name = split_alias(fragment, text)
    fragment = fragment if name is None else scope.read(written)
    if "right" in fragment.sides and how in ("semi", "anti"):
        _refuse_right(scope, how, text)
    name = _own_name(fragment) if name is None else name
    output = Output(name=name or "", sql=fragment.sql)
    left, right = frozenset(fragment.names("left")), frozenset(fragment.names("right"))
    return _Item(output, written, left, right, fragment.as_named if name is None else None)


def _named(item: _Item, number: int, name_of: Callable[[int], str | None]) -> _Item:
    """Give a column without a name the one of its place in the select list, if there is one."""
    name = None if item.unnamed is None else name_of(number)
    return item if name is None else replace(_with_name(item, name), unnamed=None)


def _with_name(item: _Item, name: str) -> _Item:
    return replace(item, output=replace(item.output, name=name))


def _name_items(items: Sequence[_Item], analyst: Analyst) -> list[_Item]:
    """Give columns without a name the name that Spark gives them."""
    unnamed = [item for item in items if item.unnamed is not None]
    found = analyst.names([str(item.unnamed) for item in unnamed]) if unnamed else []
    for item, names in zip(unnamed, found, strict=True):
        if len(names) != 1:
            raise PlanError(f"{item.text!r} gives several columns.", hint="Select it after the join.")
    given = iter(found)
    return [item if item.unnamed is None else _with_name(item, next(given)[0]) for item in items]


def split_alias(fragment: Fragment, text: str) -> tuple[str, str | None]:
    """Split an expression from its alias."""
    tree = fragment.tree
    if not isinstance(tree, exp.Alias):
        return text, None
    start = prepare_for_sqlglot(text).original(tree.args["alias"].meta["start"])
    if text[start] in "'\"":
        raise PlanError(f"{text!r} ends in a string, where a name belongs.", hint="Write the name in backticks.")
    before = [token for token in tokens(text) if token.end <= start]
    end = before[-1].start if before[-1].kind == "word" and before[-1].text == "AS" else start
    return text[:end].strip(), tree.alias


def _own_name(fragment: Fragment) -> str | None:
    node = path = fragment.tree.unnest()
    while isinstance(path, exp.Dot) and isinstance(path.expression, exp.Identifier):  # A path of many names.
        path = path.this
    if path is not node and isinstance(path, exp.Column):
        return node.expression.name
    if isinstance(node, exp.Column) and fragment.references:
        return node.name
    return None


def _refuse_right(scope: VisibleColumns, how: How, text: str) -> None:
    raise PlanError(
        f"{text!r} reads table {scope.table!r}, of which the {how} join returns no columns.",
        hint="Select columns of the left side, or use an inner or left join.",
    )


def _refuse_clashes(scope: VisibleColumns, items: Sequence[_Item]) -> None:
    for number, item in enumerate(items):
        for earlier in items[:number]:
            if scope.same(item.output.name, earlier.output.name):
                renamed = earlier if earlier.right and not item.right else item
                name = f"{scope.table if renamed.right else 'left'}_{item.output.name}"
                name = name if re.fullmatch(r"\w+", name, re.ASCII) else quote(name)
                raise PlanError(
                    f"The result would have two columns named {item.output.name!r}: {earlier.text} and {item.text}.",
                    hint=f"Name one of them in 'select': \"{renamed.text} AS {name}\".",
                )


def _refuse_marks(scope: VisibleColumns, items: Sequence[_Item], config: LookupConfig) -> None:
    """Raise PlanError for an age or error column whose name another column of the result has."""
    taken = {item.output.name: item.text for item in items}
    for key, name in config.marks.items():
        for other in taken:
            if scope.same(name, other):
                raise PlanError(
                    f"The result would have two columns named {other!r}: {taken[other]} and that of option {key!r}.",
                    hint=f"Give {key!r} another name.",
                )
        taken[name] = f"that of option {key!r}"


def _in_letters(scope: VisibleColumns, config: LookupConfig) -> frozenset[str]:
    """Return the columns of dead letters: the full left row, in which names must be unique."""
    if config.on_error != "dead-letter":
        return frozenset()
    taken = {name: f"dead letters have a column {name!r} of their own" for name in LETTER_COLUMNS}
    for column in scope.left:
        for other, fact in taken.items():
            if scope.same(other, column.name):
                raise PlanError(
                    f"Left column {column.name!r} cannot be written to a dead letter: {fact}.",
                    hint="Rename it before the join, with withColumnRenamed or toDF, or choose another "
                    "'lookup.on-error'.",
                )
        taken[column.name] = f"the left side has a column {column.name!r} already"
    return frozenset(column.name for column in scope.left)


# ── stars ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ColumnStar:
    """A star: the names before it, those that EXCEPT leaves out, each by its parts, and its position in the text.

    Brackets around it alone are part of it. ``is_argument`` says that it is one of a call, or of a row.
    """

    qualifier: tuple[str, ...]
    without: tuple[tuple[str, ...], ...]
    start: int
    end: int
    is_argument: bool


def column_stars(text: str) -> list[ColumnStar]:
    """Return the stars that stand for columns; those of a product and of ``count(*)`` are not.

    >>> [(star.qualifier, star.without) for star in column_stars("struct(a * 2, o.n.*, * EXCEPT (b, c.d)), count(*)")]
    [(('o', 'n'), ()), ((), (('b',), ('c', 'd')))]
    """
    found = list(tokens(text))
    return [_star(found, number) for number, token in enumerate(found) if token.text == "*" and _is_star(found, number)]


def _is_star(found: Sequence[Token], number: int) -> bool:
    """Return whether a star stands where an operand does; ``count(*)`` counts rows."""
    before, after = _text(found, number - 1), _text(found, number + 1)
    counts = before == "(" and after == ")" and number > 1 and found[number - 2].text.upper() == "COUNT"
    return not counts and before in ("", "(", ",", ".") and after in ("", ")", ",", "EXCEPT")


def _star(found: Sequence[Token], number: int) -> ColumnStar:
    first = number
    while first > 1 and found[first - 1].text == ".":
        first -= 2
    names = tuple(token.name for token in found[first:number:2])
    has_except = [token.text for token in found[number + 1 : number + 3]] == ["EXCEPT", "("]
    inside = found[number + 3 : closing_of(found, number + 2)] if has_except else []
    last = number + (len(inside) + 3 if inside else 0)
    paths = (tuple(token.name for token in part if token.text != ".") for part in split_arguments(inside) if part)
    without, last = tuple(paths), min(last, len(found) - 1)
    while _text(found, first - 1) == "(" and _text(found, last + 1) == ")" and not calls(found, first - 1):
        first, last = first - 1, last + 1
    is_argument = _text(found, first - 1) in ("(", ",") and _text(found, last + 1) in (")", ",")
    return ColumnStar(names, without, found[first].start, found[last].end, is_argument)


def _text(found: Sequence[Token], number: int) -> str:
    return found[number].text if 0 <= number < len(found) else ""
