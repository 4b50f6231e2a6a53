"""Spark SQL with Flink's additions, parsed by sqlglot, with the span of each part of the tree.

A statement is passed to Spark as the user wrote it, except for the parts that are lookups. So the parser records for
relations, joins, clauses, stars and expressions where they begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError, TokenError

from lookupcache.ddl import ExpressionParser, SparkParser, SparkTokenizer, SqlglotNode, parser_fact
from lookupcache.errors import StatementError
from lookupcache.planner.depth import LEVELS, deep_recursion
from lookupcache.sql.text import Span, Statement

SPAN = "span"
"""The key of a node's span in its ``meta``."""
_AGGREGATES = {name for name, kind in exp.FUNCTION_BY_NAME.items() if issubclass(kind, exp.AggFunc)}
_ONLY_SPARKS = (
    (
        "bit_and bit_or bit_xor bitmap_and_agg collect_list collect_set collect_union count_min_sketch every "
        "histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float "
        "kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float mean measure percentile percentile_approx "
        "approx_percentile std theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum "
        "tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer "
        "tuple_union_agg_double tuple_union_agg_integer"
    )
    .upper()
    .split()
)
"""Aggregates of Spark's that the parser does not know as such."""
_NOTED = (
    "_parse_table", "_parse_join", "_parse_from", "_parse_where", "_parse_cte", "_parse_lateral", "_parse_paren",
    "_parse_expression", "_parse_lambda", "_parse_function", "_parse_version", "_parse_disjunction", "_parse_with",
    "_parse_placeholder", "_parse_pivot",
)  # fmt: skip


def _keep_positions(name: str) -> Callable[..., Any]:
    parse = getattr(LookupSql.Parser, name)

    def keep_position(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._curr
        node = parse(self, *args, **kwargs)
        if isinstance(node, SqlglotNode) and first and self._prev and self._prev.end >= first.start:
            node.meta[SPAN] = Span(first.start, self._prev.end + 1)
        return node

    return keep_position


def _aggregate(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    # A sqlglot before 30 takes no `partial`.
    return lambda args: exp.AnonymousAggFunc(this=name, expressions=args)


class LookupSql(Spark):
    """The dialect that `parse` reads with."""

    class Tokenizer(SparkTokenizer):
        """Spark's tokens; FETCH is a name, which the parser would read as a limit and so lose."""

        KEYWORDS = {word: kind for word, kind in SparkTokenizer.KEYWORDS.items() if word != "FETCH"}  # noqa: RUF012
        KEYWORDS |= {"!>": TokenType.LTE, "!<": TokenType.GTE}
        if not hasattr(SparkParser, "VERSION_PHRASES"):  # An older sqlglot knows versions of tables by their token.
            KEYWORDS["FOR SYSTEM_TIME"] = getattr(TokenType, "TIMESTAMP_SNAPSHOT")  # noqa: B009

    class Parser(ExpressionParser):
        """Spark's parser, which also records the span of each node.

        The parser knows aggregates only, and does not interpret the arguments of other functions.
        """

        COLON_IS_VARIANT_EXTRACT = True
        # To Spark, it is a name behind AS.
        RESERVED_TOKENS = SparkParser.RESERVED_TOKENS - {TokenType.SELECT}
        # A name such as current_user is a column, where there is one; Spark, which resolves it, knows.
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012
        FUNCTIONS = {  # noqa: RUF012
            **{name: build for name, build in SparkParser.FUNCTIONS.items() if name in _AGGREGATES},
            **{name: _aggregate(name) for name in _ONLY_SPARKS},
        }

        def _warn_unsupported(self) -> None:
            """Log nothing: the message would contain the statement, which may have secrets in it."""

        def _parse_colon_as_variant_extract(self, this: Any) -> Any:
            found = super()._parse_colon_as_variant_extract(this)
            if this is not None and found is not None and found is not this:
                span = Span(span_of(this).start, self._prev.end + 1)
                for node in found.find_all(exp.JSONExtract, exp.Cast):
                    node.meta[SPAN] = span
            return found

        def _parse_from(self, joins: bool = False, *args: Any, **options: Any) -> Any:
            found: Any = super()._parse_from(joins, *args, **options)
            for join in self._parse_joins() if joins and found is not None else ():
                found.this.append("joins", join)  # sqlglot reads none behind VALUES
            return found

        def _parse_pivot_aggregation(self) -> Any:
            """Return an aggregation of PIVOT, which may be an expression over several aggregates."""
            return self._parse_alias(self._parse_bitwise())

        def _parse_version(self) -> Any:
            first = self._index
            version = super()._parse_version()
            words = [token.text.upper() for token in self._tokens[first : self._index]]
            if version is not None and version.args["kind"] == "AS OF" and "OF" in words:
                # An older sqlglot reads the first operand of the time only.
                self._retreat(first + words.index("OF") + 1)
                version.set("expression", self._parse_bitwise())
            return version

        def _parse_star_ops(self) -> Any:
            first = self._prev
            star = super()._parse_star_ops()
            if isinstance(star, SqlglotNode):
                star.meta[SPAN] = Span(first.start, self._prev.end + 1)
            return star

        def _parse_hint(self) -> Any:
            hint = super()._parse_hint()
            if hint is not None:
                hint.meta[SPAN] = Span(self._prev.start, self._prev.end + 1)
            return hint


for _name in _NOTED:
    setattr(LookupSql.Parser, _name, _keep_positions(_name))


def parse(statement: Statement) -> exp.Expr:
    """Read one statement into a tree; raises StatementError, with the position, for syntax that it does not know."""
    try:
        tree = deep_recursion(lambda: sqlglot.parse_one(statement.parser_input, dialect=LookupSql))
    except SqlglotError as error:
        raise _unreadable(statement, error) from None
    except RecursionError:
        raise too_deep(statement) from None
    nodes = list(tree.walk())
    _refuse_keywords(statement, [node for node in nodes if isinstance(node, exp.Column)])
    _refuse_variables(statement, [node for node in nodes if isinstance(node, exp.Table)])
    for node in nodes:
        if isinstance(node, exp.Select):
            _take_joins(node)
    for outer in list(tree.find_all(exp.Subquery)):
        if _is_doubled(outer):
            outer.replace(outer.this)
    return tree


def too_deep(statement: Statement) -> StatementError:
    """Return the error for a statement that is nested too deeply, with the position of its innermost part."""
    innermost = max(statement.tokens, key=lambda token: token.depth)
    return StatementError(
        f"The statement is nested too deeply: brackets, calls, CASE and operators may be nested about {LEVELS} times.",
        hint="Compute part of it in a sub-query or a temporary view.",
        position=statement.position_of(innermost),
    )


def _refuse_keywords(statement: Statement, columns: Iterable[exp.Column]) -> None:
    """Raise StatementError for a name such as ``o.true``, of which the parser keeps no position."""
    for column in columns:
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
        known = [name_span(part) for part in parts if "start" in part.meta]
        if known and len(known) < len(parts):
            raise StatementError(
                "The statement cannot be read: a keyword stands for the name of a column.",
                hint="Write the name in backticks.",
                position=statement.position(Span(known[0].start, known[-1].end)),
            )


def _refuse_variables(statement: Statement, tables: Iterable[exp.Table]) -> None:
    """Raise StatementError for a variable that Spark alone knows, as ``${env:NAME}``, in place of a relation's name."""
    for table in tables:
        if isinstance(table.this, exp.Parameter):
            raise StatementError(
                "The statement cannot be read: a variable stands for the name of a relation.",
                hint="Write the name.",
                position=statement.position(span_of(table)),
            )


def _is_doubled(node: exp.Subquery) -> bool:
    """Return whether a scalar sub-query stands in one more pair of parentheses, which mean nothing there."""
    relation = isinstance(
        node.parent, exp.From | exp.Join | exp.CTE | exp.SetOperation | exp.Lateral | exp.Subquery | None
    )
    if relation or node.arg_key == "query" or not isinstance(node.this, exp.Subquery):
        return False
    return not any(value for one in (node, node.this) for name, value in one.args.items() if name != "this")


def _take_joins(select: exp.Select) -> None:
    """Give a SELECT its joins, which the parser keeps with the first relation where FROM stands before SELECT."""
    first = select.args.get("from_")
    joins = None if first is None else first.this.args.get("joins")
    if first is not None and joins:
        first.this.set("joins", None)
        select.set("joins", [*joins, *(select.args.get("joins") or [])])


OF_A_QUERY = (
    "A query over one lookup table may filter it and select columns. What joins or aggregates rows is read completely: "
    "leave FOR SYSTEM_TIME AS OF out, or join the lookup table itself, and aggregate the result."
)
_NO_NEAREST = (
    "Read the full table in a temporary view, CREATE TEMPORARY VIEW v AS SELECT * FROM name, and join the view."
)


_IN_A_VIEW = "Write a part without lookups in a temporary view, CREATE TEMPORARY VIEW v AS …, and read the view here."


class UnreadableError(StatementError):
    """The parser cannot read a statement; ``offset`` is where in the text, None where that is not known."""

    offset: int | None = None


def _unreadable(statement: Statement, error: SqlglotError) -> UnreadableError:
    if isinstance(error, TokenError):
        # Its text is a piece of the statement, which may hold secrets.
        return UnreadableError(
            "The statement cannot be read: a quote or a comment in it is not closed.",
            hint="Close it; a quote inside of a text is doubled.",
        )
    details = (getattr(error, "errors", None) or [{}])[0]
    fact = parser_fact(str(details.get("description") or error))
    before, marked = str(details.get("start_context") or ""), str(details.get("highlight") or "")
    start = statement.parser_input.find(before + marked) + len(before) if marked else -1
    position = statement.position(Span(start, start + len(marked))) if start >= len(before) else None
    is_name = marked.isidentifier() and not statement.hidden
    hint = "Write a name that is a keyword in backticks." if is_name else _IN_A_VIEW
    if marked.upper() in ("APPROX", "EXACT"):
        fact, hint = "a join by NEAREST reads the full table, which a lookup cannot", _NO_NEAREST
    made = UnreadableError(f"The statement cannot be read: {fact.rstrip('.')}.", hint=hint, position=position)
    made.offset = start if position is not None else None
    return made


def span_of(node: exp.Expr) -> Span:
    """Return the span of a node in the text: as recorded, or from its first name to its last."""
    if SPAN in node.meta:
        found: Span = node.meta[SPAN]
        return found
    spans = [name_span(name) for name in node.find_all(exp.Identifier) if "start" in name.meta]
    spans += [inner.meta[SPAN] for inner in node.walk() if SPAN in inner.meta]
    return Span(min(s.start for s in spans), max(s.end for s in spans)) if spans else Span(0, 0)


def name_span(name: exp.Expr) -> Span:
    """Return the span of a name, quotes included."""
    return Span(name.meta["start"], name.meta["end"] + 1)
