"""DDL text and type names as Arrow types, read by sqlglot.

A module apart from `schema`, which imports it only when a text is read: workers read none, and sqlglot takes longer to
import than all that a worker needs of this package.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from lookupcache.errors import SchemaError

if TYPE_CHECKING:
    from sqlglot.parsers.spark import SparkParser as SparkParser
else:
    SparkParser = Spark.parser_class  # Where its module is has changed between versions of sqlglot.

SqlglotNode: type[exp.Expr] = getattr(exp, "Expr", exp.Expression)
"""The base class of a tree's nodes, which has had its name since sqlglot 30."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_TYPES: dict[Any, pa.DataType] = {
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.FLOAT: pa.float32(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.VARCHAR: pa.string(),
    exp.DataType.Type.BINARY: pa.binary(),
    exp.DataType.Type.VARBINARY: pa.binary(),
    exp.DataType.Type.DATE: pa.date32(),
    exp.DataType.Type.TIMESTAMP: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPLTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


class SparkTokenizer(Spark.Tokenizer):
    """Spark's tokens, with the type VOID, which sqlglot knows for Databricks only."""

    KEYWORDS = {**Spark.Tokenizer.KEYWORDS, "VOID": TokenType.VOID}  # noqa: RUF012


# These builders raise IndexError or ValueError for some numbers of arguments; without them, Spark raises its error.
_FUNCTIONS = {
    name: build for name, build in SparkParser.FUNCTIONS.items() if name not in ("DATE_TRUNC", "MAP", "VAR_MAP")
}


class ExpressionParser(SparkParser):
    """Spark's parser, which reads an argument's name without AS too, as in ``struct(c.id key, c.name)``."""

    FUNCTIONS = _FUNCTIONS
    # The parser would take array(a, b)[0] for the array of 0, and so the subscript of a column named array or list.
    ARRAY_CONSTRUCTORS = {}  # noqa: RUF012

    def _parse_select_or_expression(self, alias: bool = False) -> Any:
        found: Any = super()._parse_select_or_expression(alias)
        word, after = self._curr, self._next
        if not alias or found is None or word is None or after is None:
            return found
        if after.token_type not in (TokenType.COMMA, TokenType.R_PAREN) or not _is_name(word):
            return found
        name = self._parse_id_var()
        return found if name is None else self.expression(exp.Alias(this=found, alias=name))


def _is_name(token: Any) -> bool:
    return token.token_type == TokenType.IDENTIFIER or token.text.replace("_", "").isalnum()


def parser_fact(message: str) -> str:
    """Return what the parser says, without its own objects.

    >>> parser_fact("Required keyword: 'this' missing for <class 'sqlglot.x.Column'>. Line 1, Col: 4." + chr(10) + "c.")
    "Required keyword: 'this' missing. Line 1, Col: 4."
    """
    return re.sub(r" (?:but got|for) <.*?(?=\.? Line \d+, Col|\Z)", "", message.splitlines()[0])


class ColumnsSql(Spark):
    """The dialect of a list of columns: a name may be a word that is a value elsewhere, such as CURRENT_USER."""

    class Parser(SparkParser):
        """Spark's parser without those values."""

        FUNCTIONS = _FUNCTIONS
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012
        NO_PAREN_FUNCTION_PARSERS = {}  # noqa: RUF012
        PRIMARY_PARSERS = {  # noqa: RUF012
            kind: parse
            for kind, parse in SparkParser.PRIMARY_PARSERS.items()
            if kind.name not in ("NULL", "TRUE", "FALSE")
        }

        def _warn_unsupported(self) -> None:
            """Log nothing: the caller raises an error."""


def read_columns(text: str) -> list[pa.Field]:
    """Return the columns of a list such as ``"id BIGINT, name STRING"``; raises SchemaError for another text."""
    _refuse_without_zone(text)
    try:  # With a new line, which ends a comment.
        tree = sqlglot.parse_one(f"CREATE TABLE t ({text}\n)", dialect=ColumnsSql)
    except (SqlglotError, ValueError) as error:
        raise _unreadable(text) from error
    if "," in text and "" in _parts(text)[:-1]:
        raise SchemaError(f"The schema {text!r} has a comma without a column before it.", hint=_AS_IN)
    if not isinstance(tree, exp.Create) or any(value for name, value in tree.args.items() if name not in _OF_CREATE):
        # A closing parenthesis in the text would end the list, and hide what follows.
        raise _no_list(text)
    table = tree.find(exp.Schema)
    if table is None or not table.expressions:
        raise SchemaError("The schema has no columns.", hint=_AS_IN)
    return [_field(definition) for definition in table.expressions]


_OF_CREATE = ("this", "kind", "replace")
_AS_IN = "Write it as in CREATE TABLE: 'id BIGINT, name STRING'."
_KNOWN = (
    "Known types: BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, "
    "TIMESTAMP, TIMESTAMP_NTZ, ARRAY<…>, MAP<…>, STRUCT<…>."
)


_CURES: dict[Any, str] = {
    exp.DataType.Type.CHAR: "Write STRING: a source may have the values padded or not, and a lookup takes them as they "
    "are."
}
"""What to write for a type that Spark has, but a lookup table cannot."""


def _no_list(text: str) -> SchemaError:
    return SchemaError(f"The schema {text!r} is not a list of columns.", hint=_AS_IN)


def _unreadable(text: str) -> SchemaError:
    """Return the error for a text that cannot be parsed, with the first column that is the reason."""
    for part in _parts(text):
        try:
            sqlglot.parse_one(f"CREATE TABLE t ({part}\n)", dialect=ColumnsSql)
        except (SqlglotError, ValueError):
            return SchemaError(f"{part!r} in the schema is not a column with a type.", hint=f"{_AS_IN} {_KNOWN}")
    return _no_list(text)


_OPENING = (TokenType.L_PAREN, TokenType.LT)
_CLOSING = (TokenType.R_PAREN, TokenType.GT)


def _parts(text: str) -> list[str]:
    """Return the texts between the commas that are in no brackets; none of a text without tokens."""
    try:
        tokens = sqlglot.tokenize(text, dialect=ColumnsSql)
    except SqlglotError:
        return []
    ends, depth = [], 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if token.token_type == TokenType.COMMA and depth <= 0:
            ends.append(token.start)
    starts = [0, *(end + 1 for end in ends)]
    return [text[start:end].strip() for start, end in zip(starts, [*ends, len(text)], strict=True)]


def _refuse_without_zone(text: str) -> None:
    """Raise SchemaError for TIMESTAMP WITHOUT TIME ZONE, which sqlglot reads as TIMESTAMP."""
    if "without" not in text.lower():
        return
    with suppress(SqlglotError):
        tokens = sqlglot.tokenize(text, dialect=ColumnsSql)
        words = ["" if token.token_type in _QUOTED else token.text.upper() for token in tokens]
        if ["WITHOUT", "TIME", "ZONE"] in [words[n : n + 3] for n in range(len(words))]:
            raise SchemaError("Type TIMESTAMP WITHOUT TIME ZONE is not supported.", hint="Write TIMESTAMP_NTZ.")


_QUOTED = (TokenType.IDENTIFIER, TokenType.STRING)
_COLLATED = re.compile(r"\bstring collate\b", re.IGNORECASE)


def read_type(text: str) -> pa.DataType:
    """Return the type of a name such as ``decimal(10,2)``; raises SchemaError for another text."""
    if _COLLATED.search(text):  # sqlglot leaves the collation out.
        raise SchemaError(f"Type {text} is not supported: its values are not compared by their bytes.")
    _refuse_without_zone(text)
    try:
        return _arrow(exp.DataType.build(text, dialect="spark"))
    except SchemaError:
        raise
    except (SqlglotError, ValueError) as error:
        if isinstance(error.__context__, RecursionError):  # Called from deep below: the type itself may be fine.
            raise error.__context__ from None
        raise SchemaError(f"{text!r} is not a type.") from error


def _field(definition: exp.Expression) -> pa.Field:
    if not isinstance(definition, exp.ColumnDef) or definition.args.get("kind") is None:
        written = "A part of the schema"
        with suppress(ValueError):  # sqlglot reads more than it can write
            written = repr(definition.sql(dialect="spark"))
        raise SchemaError(f"{written} is not a column with a type.", hint="Write each column as NAME TYPE.")
    # Some constraints, such as IN of PL/SQL, have no kind.
    kinds = [constraint.args.get("kind") for constraint in definition.constraints]
    if not all(isinstance(kind, exp.NotNullColumnConstraint | exp.CommentColumnConstraint) for kind in kinds):
        raise SchemaError(f"Column {definition.name!r}: only NOT NULL and COMMENT may follow the type.")
    # sqlglot reads NULL as NOT NULL that allows it.
    nulls = {bool(kind.args.get("allow_null")) for kind in kinds if isinstance(kind, exp.NotNullColumnConstraint)}
    if len(nulls) > 1:
        raise SchemaError(f"Column {definition.name!r} is both NULL and NOT NULL.")
    name = _name(definition)
    try:
        return pa.field(name, _arrow(definition.args["kind"]), nulls != {False})
    except SchemaError as error:
        raise SchemaError(f"Column {name!r}: {error.fact}", hint=error.hint) from None


def _name(definition: exp.ColumnDef) -> str:
    if not isinstance(definition.this, exp.Identifier) or not definition.name:
        written = definition.this.sql()
        raise SchemaError(
            f"{written!r} is no name of a column.", hint=f"Put a name that is no word in backticks. {_AS_IN}"
        )
    return str(definition.name)


def _arrow(kind: exp.DataType) -> pa.DataType:
    this, inner = kind.this, kind.expressions
    if this in _TYPES:
        return _TYPES[this]
    if this == exp.DataType.Type.DECIMAL and len(inner) <= 2:
        return _decimal(*map(_digits, inner))
    if this == exp.DataType.Type.ARRAY and inner:
        return pa.list_(_arrow(inner[0]))
    if this == exp.DataType.Type.MAP and len(inner) == 2:
        return pa.map_(_arrow(inner[0]), _arrow(inner[1]))
    if this == exp.DataType.Type.STRUCT and inner:
        return pa.struct([_field(member).with_nullable(True) for member in inner])
    # As it was written: in SQL, sqlglot writes some types as others.
    length = f"({', '.join(one.sql(dialect='spark') for one in inner)})" if inner else ""
    name = f"{this.value}{length}" if isinstance(this, exp.DataType.Type) else kind.sql(dialect="spark")
    raise SchemaError(f"Type {name} is not supported.", hint=_CURES.get(this, _KNOWN))


def _digits(parameter: exp.Expression) -> int:
    if not (parameter.name.isascii() and parameter.name.isdigit() and len(parameter.name) < 4):
        raise SchemaError(f"{parameter.sql(dialect='spark')!r} is not a number of digits.")
    return int(parameter.name)


def _decimal(precision: int = 10, scale: int = 0) -> pa.DataType:
    if not 0 <= scale <= precision <= 38 or not precision:
        raise SchemaError(
            f"Type DECIMAL({precision},{scale}) is not supported.",
            hint="The precision is from 1 to 38, and the scale from 0 to the precision.",
        )
    return pa.decimal128(precision, scale)
