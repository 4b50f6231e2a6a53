"""From sqlglot's trees to expressions that a worker evaluates with exactly Spark's meaning, or to None.

Spark's coercions are written out as casts, and only those that Arrow makes the same way. A guess is worse than
None: what has no translation is evaluated by Spark itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

import pyarrow as pa
from sqlglot import exp

from lookupcache import expr
from lookupcache.expr import Call, Expr, Literal
from lookupcache.planner.coercion import common_type
from lookupcache.planner.literals import convert, read_literal
from lookupcache.planner.naming import Fragment
from lookupcache.planner.settings import MOMENT_AS_STRING, Settings
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
_MOST_ALTERNATIVES = 100
_MOST_LEVELS = 50
"""How deep a worker's expression may be: it is pickled, sent and evaluated recursively, four frames a level."""

Moment = Callable[[str, pa.DataType], Literal | None]
"""What `Translation.moment` is: the value of a timestamp written as a string, which depends on the session's zone."""


def _unknown(_text: str, _type: pa.DataType) -> Literal | None:
    return None


class _NoTranslation(Exception):
    """Part of the tree has no exact counterpart."""


def translate(
    fragment: Fragment,
    column: Callable[[expr.Side, str], expr.Column | None],
    *,
    ansi: bool = True,
    moment: Moment = _unknown,
    settings: Settings | None = None,
) -> Expr | None:
    """Return a condition as a worker's expression, or None where that would not be exact.

    ``column`` gives the column of a side and name, None where its type is unknown to Arrow; ``moment``
    gives the value of a string as a timestamp; ``settings`` are the session's.

    >>> from lookupcache.planner.naming import LeftColumn, Scope
    >>> scope = Scope([LeftColumn("id", "bigint")], "c", pa.schema([("age", pa.int32())]))
    >>> age = expr.Column("right", "age", pa.int32())
    >>> expr.to_text(translate(scope.read("NOT (c.age BETWEEN 18 AND 67.5)"), lambda side, name: age))
    'NOT (age >= 18 AND CAST(age AS DECIMAL(11,1)) <= 67.5)'
    >>> translate(scope.read("sqrt(c.age) > 4"), lambda side, name: age) is None
    True
    """
    if fragment.doubtful:
        return None
    try:
        found = _Translation(fragment, column, ansi, moment, settings or Settings()).condition(fragment.tree)
    except (_NoTranslation, RecursionError):
        return None
    return found if _depth(found) <= _MOST_LEVELS else None


@dataclass(frozen=True)
class _Translation:
    fragment: Fragment
    column: Callable[[expr.Side, str], expr.Column | None]
    ansi: bool
    moment: Moment
    settings: Settings

    def condition(self, node: exp.Expr) -> Expr:
        return _boolean(self.any(node))

    def any(self, node: exp.Expr) -> Expr:
        node = node.unnest()
        if (constant := read_literal(node, self.fragment.text)) is not None:
            return constant
        if (moment := self._written_moment(node)) is not None:
            return moment
        if type(node) in _COMPARISONS:
            return self._compared(_COMPARISONS[type(node)], self.any(node.this), self.any(node.expression))
        if type(node) in _ARITHMETIC:
            return self._computed(_ARITHMETIC[type(node)], self.any(node.this), self.any(node.expression))
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise _NoTranslation
        return handler(self, node)

    def _column(self, node: exp.Expr) -> Expr:
        reference = self.fragment.reference(node)
        if reference is None or reference.fields:
            raise _NoTranslation
        return _known(self.column(reference.side, reference.name))

    def _written_moment(self, node: exp.Expr) -> Literal | None:
        """Read ``TIMESTAMP '…'`` with the session's help."""
        if not isinstance(node, exp.Cast) or not isinstance(node.this, exp.Literal) or not node.this.is_string:
            return None
        type_ = _WRITTEN_MOMENTS.get(node.to.this)
        if type_ is None or "\\" in self.fragment.text or "'" in node.this.name:
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
            raise _NoTranslation
        return _balanced("and" if kind is exp.And else "or", [first, *others])

    def _not(self, node: exp.Expr) -> Expr:
        return Call("not", (self.condition(node.this),))

    def _is(self, node: exp.Expr) -> Expr:
        value = node.expression
        if isinstance(value, exp.Null):
            return Call("is null", (_typed(self.any(node.this)),))
        if isinstance(value, exp.Boolean):
            return Call("<=>", (self.condition(node.this), Literal(bool(value.this), pa.bool_())))
        raise _NoTranslation

    # ── comparisons ──────────────────────────────────────────────────────────────────────────────────────

    def _compared(self, op: str, a: Expr, b: Expr) -> Expr:
        if op in _ORDERS and (_is_beyond(a, b) or _is_beyond(b, a)):
            raise _NoTranslation
        a, b = self._alike(a, b)
        if op == "<>":
            return Call("not", (Call("=", (a, b)),))
        if op == "not <=>":
            return Call("not", (Call("<=>", (a, b)),))
        return Call(op, (a, b))

    def _between(self, node: exp.Expr) -> Expr:
        if node.args.get("symmetric"):
            raise _NoTranslation
        value, low, high = (self.any(node.args[name]) for name in ("this", "low", "high"))
        return Call("and", (self._compared(">=", value, low), self._compared("<=", value, high)))

    def _in(self, node: exp.Expr) -> Expr:
        value, items = self.any(node.this), [self.any(item) for item in node.expressions]
        if set(node.args) - {"this", "expressions"} and any(node.args.get(k) for k in ("query", "unnest", "field")):
            raise _NoTranslation
        if not items or len(items) > _MOST_ALTERNATIVES or not all(isinstance(item, Literal) for item in items):
            raise _NoTranslation
        type_ = self._type_of_all([value, *items])
        value = _cast(value, type_)
        return _balanced("or", [Call("=", (value, _cast(item, type_))) for item in items])

    def _type_of_all(self, items: list[Expr]) -> pa.DataType:
        """Return the type that Spark takes for a whole list; where the order might matter there is none."""
        types = list({item.type for item in items if not pa.types.is_null(item.type)})
        if not types:
            raise _NoTranslation
        names = [type_name(type_) for type_ in types]
        whole = names[0]
        for name in names[1:]:
            whole = _known(common_type(whole, name, ansi=self.ansi))
        if len(types) > 1 and not (all(map(_is_number, types)) and _same_kind(types)):
            raise _NoTranslation
        return parse_type(whole)

    def _like(self, node: exp.Expr) -> Expr:
        value, pattern = _typed(self.any(node.this)), node.expression.unnest()
        if not (pa.types.is_string(value.type) and isinstance(pattern, exp.Literal) and pattern.is_string):
            raise _NoTranslation
        found = read_literal(pattern, self.fragment.text)
        text = str(_known(found).value)
        inner = text[text.startswith("%") : len(text) - (text.endswith("%") and len(text) > 1)]
        if "%" in inner or "_" in inner or "\\" in inner:
            raise _NoTranslation
        op = {(False, False): "=", (False, True): "starts with", (True, False): "ends with", (True, True): "contains"}
        like = Call(op[text.startswith("%"), text.endswith("%")], (value, Literal(inner, pa.string())))
        return Call("not", (like,)) if node.args.get("negate") else like

    def _part(self, node: exp.Expr) -> Expr:
        """Read startswith, endswith and contains."""
        value, part = self.any(node.this), self.any(node.expression)
        if not (pa.types.is_string(value.type) and _is_string(part)) or set(node.args) - {"this", "expression"}:
            raise _NoTranslation
        assert isinstance(part, Literal)
        if part.value is None:
            return Literal(None, pa.bool_())
        return Call(_PARTS[type(node)], (value, part))

    def _alike(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Return both in the type in which Spark compares them."""
        if pa.types.is_null(a.type) and pa.types.is_null(b.type):
            raise _NoTranslation
        if moments := self._string_as_moment(a, b):
            return moments
        type_ = parse_type(_known(common_type(_name(a), _name(b), ansi=self.ansi)))
        if pa.types.is_nested(type_):
            raise _NoTranslation
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
            raise _NoTranslation
        return _known(convert(node, type_) if pa.types.is_date(type_) else self.moment(text, type_))

    # ── arithmetic ───────────────────────────────────────────────────────────────────────────────────────

    def _computed(self, op: str, a: Expr, b: Expr) -> Expr:
        if not (_is_number(a.type) and _is_number(b.type)):
            raise _NoTranslation
        type_ = parse_type(_known(common_type(_name(a), _name(b), ansi=self.ansi)))
        if pa.types.is_decimal(type_) or (pa.types.is_integer(type_) and not self.ansi):
            raise _NoTranslation
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
_WRITTEN_MOMENTS = {
    exp.DataType.Type.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPLTZ: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPNTZ: pa.timestamp("us"),
}


def can_fail(expression: Expr) -> bool:
    """Return whether evaluation may end in an error: an overflow."""
    if not isinstance(expression, Call):
        return False
    return (expression.op in ("+", "-", "*") and pa.types.is_integer(expression.type)) or any(
        can_fail(argument) for argument in expression.args
    )


def _cast(node: Expr, type_: pa.DataType) -> Expr:
    """Return the node in another type, if Arrow's cast is Spark's."""
    if node.type == type_:
        return node
    if isinstance(node, Literal):
        return _known(convert(node, type_))
    castable = (
        (pa.types.is_integer(node.type) and _is_number(type_))
        or (pa.types.is_floating(node.type) and pa.types.is_floating(type_))
        or (pa.types.is_decimal(node.type) and pa.types.is_decimal(type_))
    )
    if not castable:
        raise _NoTranslation
    return Call("cast", (node,), type_)


def _known(value: T | None) -> T:
    if value is None:
        raise _NoTranslation
    return value


def _typed(node: Expr) -> Expr:
    if pa.types.is_null(node.type):
        raise _NoTranslation
    return node


def _boolean(node: Expr) -> Expr:
    if isinstance(node, Literal) and node.value is None:
        return Literal(None, pa.bool_())
    if not pa.types.is_boolean(node.type):
        raise _NoTranslation
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


def _balanced(op: str, items: list[Expr]) -> Expr:
    """Join by AND or OR, as a balanced tree, so that a long list makes no deep one."""
    if len(items) == 1:
        return items[0]
    middle = (len(items) + 1) // 2
    return Call(op, (_balanced(op, items[:middle]), _balanced(op, items[middle:])))


def _depth(expression: Expr) -> int:
    """Return how many levels an expression has."""
    deepest, found = 0, [(expression, 1)]
    while found:
        node, level = found.pop()
        deepest = max(deepest, level)
        found += [(argument, level + 1) for argument in (node.args if isinstance(node, Call) else ())]
    return deepest
