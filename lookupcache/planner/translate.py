"""From sqlglot's trees to expressions that a worker evaluates with exactly Spark's meaning, or to None.

Spark's coercions are written out as casts, and only those that Arrow makes the same way. A guess is worse than
None: Spark itself evaluates expressions without a translation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import exp

from lookupcache import expr
from lookupcache.errors import SchemaError
from lookupcache.expr import Call, Expr, Literal, can_fail
from lookupcache.planner.coercion import common_type, is_exact
from lookupcache.planner.literals import convert, read_literal
from lookupcache.planner.naming import Fragment, Reference
from lookupcache.planner.settings import ANSI, MOMENT_AS_STRING, Settings
from lookupcache.schema import parse_type, type_name

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.NullSafeNEQ: "not <=>",
}  # fmt: skip
_ORDERS = ("<", "<=", ">", ">=")
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
T = TypeVar("T")
_PARTS: dict[type[exp.Expr], str] = {
    exp.StartsWith: "starts with", exp.EndsWith: "ends with", exp.Contains: "contains",
}  # fmt: skip
MOST_ALTERNATIVES = 100
_MOST_LEVELS = 50
"""How deep a worker's expression may be: it is pickled, sent and evaluated recursively, four frames a level."""

Moment = Callable[[str, pa.DataType], Literal | None]
"""Returns the value of a timestamp that is written as a string, which depends on the session's zone."""


class NoTranslationError(Exception):
    """Part of the tree has no exact counterpart."""


def translate(
    fragment: Fragment,
    column: Callable[[expr.Side, str], expr.Column | None],
    *,
    moment: Moment = lambda *_: None,
    settings: Settings | None = None,
    is_condition: bool = True,
) -> Expr | None:
    """Return a condition, or any other expression, as a worker's, or None where that would not be exact.

    ``column`` returns the column of a side and name, None if Arrow does not have its type. ``moment`` returns the value
    of a string as a timestamp. An expression that is no condition is offered to no source; it may have casts, CASE,
    COALESCE and CONCAT as well.

    >>> from lookupcache.planner.naming import LeftColumn, VisibleColumns
    >>> scope = VisibleColumns([LeftColumn("id", "bigint")], "c", pa.schema([("age", pa.int32())]))
    >>> age = expr.Column("right", "age", pa.int32())
    >>> expr.to_text(translate(scope.read("NOT (c.age BETWEEN 18 AND 67.5)"), lambda side, name: age))
    'NOT (age >= 18 AND CAST(age AS DECIMAL(11,1)) <= 67.5)'
    >>> translate(scope.read("sqrt(c.age) > 4"), lambda side, name: age) is None
    True
    >>> value = scope.read("coalesce(CAST(c.age AS BIGINT), 7L)")
    >>> expr.to_text(translate(value, lambda side, name: age, is_condition=False))
    'coalesce(CAST(age AS BIGINT), 7)'
    """
    if fragment.doubtful:
        return None
    reader = (_Translation if is_condition else _ValueTranslation)(fragment, column, moment, settings or Settings())
    try:
        found = reader.condition(fragment.tree) if is_condition else reader.any(fragment.tree)
    except (NoTranslationError, RecursionError):
        return None
    return None if is_too_deep(found) else found


@dataclass(frozen=True)
class _Translation:
    fragment: Fragment
    column: Callable[[expr.Side, str], expr.Column | None]
    moment: Moment
    settings: Settings

    @property
    def ansi(self) -> bool:
        return self.settings.on(ANSI)

    def condition(self, node: exp.Expr) -> Expr:
        return _boolean(self.any(node))

    def any(self, node: exp.Expr) -> Expr:
        node = node.unnest()
        if (constant := read_literal(node, self.fragment.text)) is not None:
            return constant
        if (moment := self._written_moment(node)) is not None:
            return moment
        if type(node) in _COMPARISONS:
            return self._compare(_COMPARISONS[type(node)], self.any(node.this), self.any(node.expression))
        if type(node) in _ARITHMETIC:
            return self._compute(_ARITHMETIC[type(node)], self.any(node.this), self.any(node.expression))
        handler = self.handler(node)
        if handler is None:
            raise NoTranslationError
        return handler(self, node)

    def handler(self, node: exp.Expr) -> Callable[[Any, exp.Expr], Expr] | None:
        """Return the method that reads this kind of node."""
        return _HANDLERS.get(type(node))

    def _column(self, node: exp.Expr) -> Expr:
        reference = self.fragment.reference(node)
        if reference is None or reference.fields:
            raise NoTranslationError
        return _require_known(self.column(reference.side, reference.name))

    def _written_moment(self, node: exp.Expr) -> Literal | None:
        """Read ``TIMESTAMP '…'`` with the session's help."""
        if not isinstance(node, exp.Cast) or not isinstance(node.this, exp.Literal) or not node.this.is_string:
            return None
        type_ = _WRITTEN_MOMENTS.get(node.to.this)
        if type_ is None or "\\" in self.fragment.text or "'" in node.this.name:
            return None
        is_cast = isinstance(node, exp.TryCast) and node.to.this == exp.DataType.Type.TIMESTAMPTZ
        if is_cast and self.settings.without_zone:  # Unlike TIMESTAMP '…', it then ignores a zone in the string.
            return None
        return self.moment(node.this.name, type_)

    # ── logic ────────────────────────────────────────────────────────────────────────────────────────────

    def _all_of(self, node: exp.Expr) -> Expr:
        """Read a chain of ANDs or ORs, which sqlglot's tree has as deep as it is long."""
        kind, parts = type(node), []
        while type(node) is kind:
            parts.append(node.expression)
            node = node.this.unnest()
        first, *others = [self.condition(part) for part in (node, *reversed(parts))]
        if any(can_fail(other) for other in others):  # Spark may never get there; a worker would
            raise NoTranslationError
        return balance("and" if kind is exp.And else "or", [first, *others])

    def _not(self, node: exp.Expr) -> Expr:
        return Call("not", (self.condition(node.this),))

    def _is(self, node: exp.Expr) -> Expr:
        value = node.expression
        if isinstance(value, exp.Null):
            return Call("is null", (_require_type(self.any(node.this)),))
        if isinstance(value, exp.Boolean):
            return Call("<=>", (self.condition(node.this), Literal(bool(value.this), pa.bool_())))
        raise NoTranslationError

    # ── comparisons ──────────────────────────────────────────────────────────────────────────────────────

    def _compare(self, op: str, a: Expr, b: Expr) -> Expr:
        if op in _ORDERS and (_is_beyond(a, b) or _is_beyond(b, a)):
            raise NoTranslationError
        a, b = self._alike(a, b)
        if op == "<>":
            return Call("not", (Call("=", (a, b)),))
        if op == "not <=>":
            return Call("not", (Call("<=>", (a, b)),))
        return Call(op, (a, b))

    def _between(self, node: exp.Expr) -> Expr:
        if node.args.get("symmetric"):
            raise NoTranslationError
        value, low, high = (self.any(node.args[name]) for name in ("this", "low", "high"))
        if can_fail(high):  # Spark may never get there.
            raise NoTranslationError
        return Call("and", (self._compare(">=", value, low), self._compare("<=", value, high)))

    def _in(self, node: exp.Expr) -> Expr:
        value, items = self.any(node.this), [self.any(item) for item in node.expressions]
        if set(node.args) - {"this", "expressions"} and any(node.args.get(k) for k in ("query", "unnest", "field")):
            raise NoTranslationError
        if not items or len(items) > MOST_ALTERNATIVES or not all(isinstance(item, Literal) for item in items):
            raise NoTranslationError
        type_ = self._type_of_all([value, *items])
        value = _cast(value, type_)
        return balance("or", [Call("=", (value, _cast(item, type_))) for item in items])

    def _type_of_all(self, items: list[Expr]) -> pa.DataType:
        """Return the type that Spark takes for a full list, None where the order of the list might matter."""
        types = list({item.type for item in items if not pa.types.is_null(item.type)})
        if not types:
            raise NoTranslationError
        names = [type_name(type_) for type_ in types]
        whole = names[0]
        for name in names[1:]:
            whole = _require_known(common_type(whole, name, ansi=self.ansi))
        if len(types) > 1 and not (all(map(_is_number, types)) and _same_kind(types)):
            raise NoTranslationError
        return parse_type(whole)

    def _like(self, node: exp.Expr) -> Expr:
        value, pattern = _require_type(self.any(node.this)), node.expression.unnest()
        if not (pa.types.is_string(value.type) and isinstance(pattern, exp.Literal) and pattern.is_string):
            raise NoTranslationError
        found = like(value, _require_known(read_literal(pattern, self.fragment.text)))
        return Call("not", (found,)) if node.args.get("negate") else found

    def _part(self, node: exp.Expr) -> Expr:
        """Read startswith, endswith and contains."""
        value, part = self.any(node.this), self.any(node.expression)
        if not (pa.types.is_string(value.type) and _is_string(part)) or set(node.args) - {"this", "expression"}:
            raise NoTranslationError
        assert isinstance(part, Literal)
        if part.value is None:
            return Literal(None, pa.bool_())
        return Call(_PARTS[type(node)], (value, part))

    def _alike(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Return both in the type in which Spark compares them."""
        if pa.types.is_null(a.type) and pa.types.is_null(b.type):
            raise NoTranslationError
        if moments := self._string_as_moment(a, b):
            return moments
        type_ = parse_type(_require_known(common_type(_name(a), _name(b), ansi=self.ansi)))
        if pa.types.is_nested(type_):
            raise NoTranslationError
        return _cast(a, type_), _cast(b, type_)

    def _string_as_moment(self, a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
        """Read a string literal as the date or timestamp it is compared with."""
        if not self.ansi and self.settings.on(MOMENT_AS_STRING):
            return None
        if _is_string(a) and pa.types.is_temporal(b.type):
            return self._moment(a, b.type), b
        if _is_string(b) and pa.types.is_temporal(a.type):
            return a, self._moment(b, a.type)
        return None

    def _moment(self, node: Expr, type_: pa.DataType) -> Literal:
        assert isinstance(node, Literal)
        if node.value is None:
            return Literal(None, type_)
        text = str(node.value)
        if "'" in text or "\\" in text:
            raise NoTranslationError
        return _require_known(convert(node, type_) if pa.types.is_date(type_) else self.moment(text, type_))

    # ── arithmetic ───────────────────────────────────────────────────────────────────────────────────────

    def _compute(self, op: str, a: Expr, b: Expr) -> Expr:
        if not (_is_number(a.type) and _is_number(b.type)):
            raise NoTranslationError
        type_ = parse_type(_require_known(common_type(_name(a), _name(b), ansi=self.ansi)))
        if pa.types.is_decimal(type_) or (pa.types.is_integer(type_) and not self.ansi):
            raise NoTranslationError
        return Call(op, (_cast(a, type_), _cast(b, type_)), type_)


_HANDLERS: dict[type[exp.Expr], Callable[[_Translation, exp.Expr], Expr]] = {
    exp.Column: _Translation._column,
    exp.And: _Translation._all_of,
    exp.Or: _Translation._all_of,
    exp.Not: _Translation._not,
    exp.Is: _Translation._is,
    exp.Between: _Translation._between,
    exp.In: _Translation._in,
    exp.Like: _Translation._like,
    exp.StartsWith: _Translation._part,
    exp.EndsWith: _Translation._part,
    exp.Contains: _Translation._part,
}


class _ValueTranslation(_Translation):
    """Reads expressions that only computed columns have."""

    def handler(self, node: exp.Expr) -> Callable[[Any, exp.Expr], Expr] | None:
        return _VALUE_HANDLERS.get(type(node)) or super().handler(node)

    def _cast(self, node: exp.Expr) -> Expr:
        try:
            type_ = parse_type(node.args["to"].sql("spark"))
            return cast_to(self.any(node.this), type_, trying=bool(node.args.get("safe")))
        except SchemaError:
            raise NoTranslationError from None

    def _coalesce(self, node: exp.Expr) -> Expr:
        return choice("coalesce", [self.any(node.this), *(self.any(other) for other in node.expressions)])

    def _concat(self, node: exp.Expr) -> Expr:
        return concat([self.any(part) for part in node.expressions])

    def _case(self, node: exp.Expr) -> Expr:
        if node.this is not None:
            raise NoTranslationError
        branches = [(self.condition(branch.this), self.any(branch.args["true"])) for branch in node.args["ifs"]]
        default = node.args.get("default")
        return case(branches, None if default is None else self.any(default))

    def _if(self, node: exp.Expr) -> Expr:
        otherwise = node.args.get("false")
        branch = self.condition(node.this), self.any(node.args["true"])
        return case([branch], None if otherwise is None else self.any(otherwise))


_VALUE_HANDLERS: dict[type[exp.Expr], Callable[[_ValueTranslation, exp.Expr], Expr]] = {
    exp.Cast: _ValueTranslation._cast,
    exp.TryCast: _ValueTranslation._cast,
    exp.Coalesce: _ValueTranslation._coalesce,
    exp.Concat: _ValueTranslation._concat,
    exp.Case: _ValueTranslation._case,
    exp.If: _ValueTranslation._if,
}
_WRITTEN_MOMENTS = {
    exp.DataType.Type.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPLTZ: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPNTZ: pa.timestamp("us"),
}


def like(value: Expr, pattern: Literal) -> Call:
    """Return whether a text is like a pattern of one fixed part; raises NoTranslationError for other patterns."""
    if pattern.value is None:
        raise NoTranslationError
    text = str(pattern.value)
    inner = text[text.startswith("%") : len(text) - (text.endswith("%") and len(text) > 1)]
    if "%" in inner or "_" in inner or "\\" in inner:
        raise NoTranslationError
    op = {(False, False): "=", (False, True): "starts with", (True, False): "ends with", (True, True): "contains"}
    return Call(op[text.startswith("%"), text.endswith("%")], (value, Literal(inner, pa.string())))


def choice(op: str, items: Sequence[Expr], *conditions: Expr) -> Call:
    """Return an operator that takes one of several values of the same type; raises NoTranslationError.

    Spark does not compute the values that it does not take, so only the first value may end in an error.
    """
    types = list({item.type for item in items if not pa.types.is_null(item.type)})
    if len(types) != 1 or pa.types.is_nested(types[0]) or any(map(can_fail, items if conditions else items[1:])):
        raise NoTranslationError
    return Call(op, (*conditions, *(_cast(item, types[0]) for item in items)), types[0])


def case(branches: Sequence[tuple[Expr, Expr]], otherwise: Expr | None) -> Expr:
    """Return the value of the first branch whose condition is true; raises NoTranslationError."""
    if any(can_fail(condition) for condition, _ in branches[1:]):
        raise NoTranslationError
    values = [value for _, value in branches]
    found = otherwise or Literal(None, next((v.type for v in values if not pa.types.is_null(v.type)), pa.null()))
    for condition, value in reversed(branches):
        found = choice("if", [value, found], condition)
    return found


def concat(parts: Sequence[Expr]) -> Call:
    """Return texts one after the other; raises NoTranslationError."""
    if not parts or not all(pa.types.is_string(part.type) for part in parts):
        raise NoTranslationError
    return Call("concat", tuple(parts), pa.string())


def cast_to(node: Expr, type_: pa.DataType, *, trying: bool = False) -> Expr:
    """Return a cast that was written; raises NoTranslationError where it may fail, or is not Arrow's."""
    if isinstance(node, Literal) or node.type == type_:
        return _cast(node, type_)
    integers = pa.types.is_integer(node.type) and pa.types.is_integer(type_)
    if trying and integers and type_.bit_width < node.type.bit_width:
        return Call("try_cast", (node,), type_)
    if not _is_wider(node.type, type_):
        raise NoTranslationError
    return _cast(node, type_)


def _is_wider(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast between numbers never fails and is Arrow's; a large integer loses digits in a DOUBLE."""
    if pa.types.is_integer(source) and pa.types.is_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if pa.types.is_floating(target):
        return pa.types.is_integer(source) or source == pa.float32()
    return is_exact(type_name(source), type_name(target))


def may_fail(fragment: Fragment, is_text: Callable[[Reference], bool]) -> bool:
    """Return whether Spark's evaluation of an expression may end in an error in ANSI mode.

    That is arithmetic, a conversion, or a text that is compared with something else. ``is_text`` returns whether a
    column has strings.
    """
    texts = {key: is_text(reference) for key, reference in fragment.references.items()}

    def fails(node: exp.Expr) -> bool:
        parts = [part.unnest() for part in node.iter_expressions()]
        if type(node) in _COMPARISONS or isinstance(node, exp.In | exp.Between):
            return {True, False} <= {False if _is_number_literal(part) else texts.get(id(part)) for part in parts}
        if isinstance(node, exp.Cast) and not node.args.get("safe"):
            to_number = node.to.this in exp.DataType.NUMERIC_TYPES
            of_text = any(texts.values()) and node.to.this != exp.DataType.Type.TEXT
            return not isinstance(parts[0], exp.Literal) and (to_number or of_text)
        return isinstance(node, exp.Bracket) or _computes(node, parts)

    moment = bool(fragment.functions & {"date", "timestamp"}) and any(texts.values())
    return moment or bool(fragment.functions & _FAILING) or any(map(fails, fragment.tree.walk()))


def _computes(node: exp.Expr, parts: Sequence[exp.Expr]) -> bool:
    """Return whether a node is arithmetic that may overflow, or divide by zero."""
    if isinstance(node, exp.Div | exp.IntDiv | exp.Mod):
        divisor = read_literal(parts[-1], "")
        return divisor is None or not divisor.value
    if isinstance(node, exp.Neg):
        return not isinstance(parts[0], exp.Literal | exp.Cast)
    return isinstance(node, exp.Add | exp.Sub | exp.Mul) and not any(isinstance(part, exp.Interval) for part in parts)


def _is_number_literal(node: exp.Expr) -> bool:
    literal = node.this if isinstance(node, exp.Neg) else node
    return isinstance(literal, exp.Literal) and not literal.is_string


_FAILING = frozenset({
    "abs", "assert_true", "bigint", "conv", "decimal", "double", "element_at", "elt", "float", "int", "make_date",
    "make_interval", "make_timestamp", "mod", "negative", "next_day", "parse_json", "pmod", "raise_error", "sequence",
    "smallint", "tinyint", "to_binary", "to_date", "to_number", "to_timestamp", "unhex",
})  # fmt: skip
"""Functions of Spark's that end in an error for some values, in ANSI mode."""


def _cast(node: Expr, type_: pa.DataType) -> Expr:
    """Return the node in another type, if Arrow's cast is Spark's."""
    if node.type == type_:
        return node
    if isinstance(node, Literal):
        return _require_known(convert(node, type_))
    castable = (
        (pa.types.is_integer(node.type) and _is_number(type_))
        or (pa.types.is_floating(node.type) and pa.types.is_floating(type_))
        or (pa.types.is_decimal(node.type) and pa.types.is_decimal(type_))
    )
    if not castable:
        raise NoTranslationError
    return Call("cast", (node,), type_)


def _require_known(value: T | None) -> T:
    if value is None:
        raise NoTranslationError
    return value


def _require_type(node: Expr) -> Expr:
    if pa.types.is_null(node.type):
        raise NoTranslationError
    return node


def _boolean(node: Expr) -> Expr:
    if isinstance(node, Literal) and node.value is None:
        return Literal(None, pa.bool_())
    if not pa.types.is_boolean(node.type):
        raise NoTranslationError
    return node


def _name(node: Expr) -> str:
    return "void" if pa.types.is_null(node.type) else type_name(node.type)


def _is_string(node: Expr) -> bool:
    return isinstance(node, Literal) and pa.types.is_string(node.type)


def _is_beyond(literal: Expr, other: Expr) -> bool:
    """Return whether no BIGINT is as large as a decimal literal: Spark then takes TRUE or FALSE, for a null too."""
    if not (isinstance(literal, Literal) and pa.types.is_decimal(literal.type) and pa.types.is_integer(other.type)):
        return False
    return literal.value is not None and not -(2**63) <= Decimal(str(literal.value)) < 2**63


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)


def _same_kind(types: list[pa.DataType]) -> bool:
    floating = [pa.types.is_floating(type_) for type_ in types]
    return all(floating) or not any(floating) or (types.count(pa.float64()) == 1 and pa.float32() not in types)


def balance(op: str, items: list[Expr]) -> Expr:
    """Join by AND or OR, as a balanced tree, so that a long list makes no deep one."""
    if len(items) == 1:
        return items[0]
    middle = (len(items) + 1) // 2
    return Call(op, (balance(op, items[:middle]), balance(op, items[middle:])))


def is_too_deep(expression: Expr) -> bool:
    """Return whether an expression has more levels than a worker's may have."""
    return _depth(expression) > _MOST_LEVELS


def _depth(expression: Expr) -> int:
    deepest, found = 0, [(expression, 1)]
    while found:
        node, level = found.pop()
        deepest = max(deepest, level)
        found += [(argument, level + 1) for argument in (node.args if isinstance(node, Call) else ())]
    return deepest
