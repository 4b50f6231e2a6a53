"""CREATE TABLE with a connector: columns, key, computed columns and options, in Flink's or Spark's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lookupcache.errors import LookupCacheError, SchemaError, StatementError
from lookupcache.jdbc import changed_options
from lookupcache.planner.clauses import WORD_CALLS, Token, closing_of, split_arguments, string_sql
from lookupcache.planner.depth import deep_recursion
from lookupcache.planner.output import column_stars
from lookupcache.schema import check_names, parse_ddl, quote, to_ddl
from lookupcache.sql.catalog import Catalog, SqlTable
from lookupcache.sql.dialect import parse
from lookupcache.sql.scope import columns_in, part_of_rows, with_columns
from lookupcache.sql.text import Edit, Span, Statement, edited, with_spark_time
from lookupcache.sql.token_reader import TokenReader, unquote
from lookupcache.table import LookupTable

_LOCAL = ("WITH", "LOCAL", "TIME", "ZONE")
_PLAIN = ("WITHOUT", "TIME", "ZONE")

PERIOD = "lookup.as-of.period"
"""The option that ``PERIOD FOR SYSTEM_TIME`` sets."""

_LIKE = ("ALL", "CONSTRAINTS", "GENERATED", "METADATA", "OPTIONS", "PARTITIONS", "WATERMARKS", "DISTRIBUTION")


_NO_CLAUSES = {"TBLPROPERTIES", "PARTITIONED", "OPTIONS", "LOCATION", "CLUSTERED", "CLUSTER", "DISTRIBUTED", "STORED",
               "ROW", "SKEWED", "USING", "DEFAULT"}  # fmt: skip
"""Keywords of clauses of Spark and Flink that a lookup table does not support."""


@dataclass
class Definition:
    """A table as defined by a statement; ``columns`` is None if the connector infers them."""

    name: str
    name_span: Span
    replace: bool = False
    keep: bool = False
    columns: pa.Schema | None = None
    computed: dict[str, str] = field(default_factory=dict)
    declared: list[str] = field(default_factory=list)
    key: tuple[str, ...] = ()
    period: tuple[str, ...] = ()
    comments: dict[str, str] = field(default_factory=dict)
    inherited: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    options_span: Span | None = None
    comment: str | None = None


class CreateTable:
    """Parses ``CREATE TABLE … (…) WITH (…) LIKE …`` by keywords and parentheses."""

    def __init__(self, statement: Statement, catalog: Catalog) -> None:
        self.statement = statement
        self.catalog = catalog
        self.tokens = list(statement.tokens)

    def is_ours(self) -> bool:
        """Return whether it creates a lookup table: it names a connector, or is LIKE a lookup table."""
        words = [token.text for token in self.tokens if token.kind == "word"]
        if words[:1] != ["CREATE"] or "TABLE" not in words[1:5] or (self._top("AS") and not self._top("WITH")):
            return False
        return self.option("connector") is not None or self._base() in self.catalog.tables

    def refuse_broken(self) -> None:
        """Raise StatementError for a statement that seems to create a lookup table, but cannot be parsed.

        Spark must not see the statement: its error would show the full text with the secrets in its options.
        """
        words = [token.text for token in self.tokens]
        if self.is_ours() or words[:1] != ["CREATE"] or "TABLE" not in words[1:5] or "USING" in words:
            return
        meant = re.search(r"\bconnector\b", self.statement.sql, re.IGNORECASE)
        if meant is None or (self._top("AS") is not None and self._top("WITH") is None):
            return
        if self._group("WITH") is not None and re.search(r"'connector\.\w+'", self.statement.sql):
            raise StatementError(
                "The table's options have no 'connector'.",
                hint="Write WITH ('connector' = 'sql', 'url' = '…', 'table' = '…'): names such as 'connector.type' are "
                "those of older versions of Flink.",
                position=self.statement.position(self.statement.span_within(meant.start(), meant.end())),
            )
        stray = next((token for token in self.tokens if token.kind == "symbol" and token.text in "'\"`"), None)
        span = self.statement.span_within(meant.start(), meant.end())
        raise StatementError(
            "The table's definition cannot be read"
            + (": its options are not in WITH (…)." if stray is None else ": a quote is not closed."),
            hint="Write CREATE TABLE name (…) WITH ('connector' = '…', 'key' = 'value', …).",
            position=self.statement.position(span if stray is None else self.statement.span_of(stray)),
        )

    def run(self) -> None:
        """Add the table to the catalog; raises errors with the position in the statement."""
        made = self._definition()

        def build() -> SqlTable:
            try:
                columns = None if made.columns is None else to_ddl(made.columns)
                changes = changed_options(made.inherited, made.options, made.name)
                table = LookupTable(made.name, columns, {**made.inherited, **changes})
                _ = SqlTable(table, made.computed).marks  # Raises an error for the name of another column.
            except LookupCacheError as error:
                raise error.at(self.statement.position(self._error_span(error, made))) from None
            self._refuse_unknown(made, table)
            inferred = [name for name in table.schema.names if name not in made.declared]
            declared = (*inferred, *made.declared) if made.computed else ()
            return SqlTable(table, made.computed, declared, made.key, made.comments, made.comment)

        with self.statement.located(made.name_span):
            self.catalog.tables.create(made.name, build, replace=made.replace, keep=made.keep)

    def option(self, key: str) -> str | None:
        """Return the value of an option in WITH, or None."""
        group = self._group("WITH")
        inside = [token for token in self.tokens if group is not None and self._in(token, group)]
        found = (b.text for a, _, b in zip(inside, inside[1:], inside[2:], strict=False) if unquote(a.text) == key)
        return next((unquote(text) for text in found), None)

    def spark_files(self) -> str:
        """Return a table of Flink's connector ``filesystem`` as a table of Spark's; raises errors for other parts."""
        made, _, after = self._head()
        self._take_columns(made, after)
        if made.columns is None or made.computed:
            raise StatementError("A table of files has columns that Spark cannot compute.", hint="Name its columns.")
        kind, path = self.option("format"), self.option("path")
        if kind is None or path is None:
            raise StatementError("A table of files has no 'format' or no 'path'.", hint="Set both options.")
        parts = self._group("PARTITIONED", behind=1)
        partitioned = "" if parts is None else f" PARTITIONED BY {self.statement[parts]}"
        columns = to_ddl(made.columns)
        return (
            f"CREATE TABLE IF NOT EXISTS {quote(made.name)} ({columns}) USING {kind}{partitioned} "
            f"LOCATION {string_sql(path)}"
        )

    def model(self, name: str) -> tuple[list[str], Definition]:
        """Return the columns of INPUT in CREATE MODEL, and the table of those and of OUTPUT; raises StatementError."""
        made, inputs = Definition(name, self.statement.span), list[str]()
        for word in ("INPUT", "OUTPUT"):
            token = self._top(word)
            if token is None or self._group(word) is None:
                raise StatementError(
                    f"The model has no {word}.",
                    hint="Write CREATE MODEL name INPUT (…) OUTPUT (…) WITH ('provider' = 'openai', …).",
                    position=self.statement.position(self.statement.span),
                )
            self._take_columns(made, self.tokens[self.tokens.index(token) + 1 :])
            inputs = inputs or [field.name for field in made.columns or ()]
        self._take_options(made)
        return inputs, made

    # ── parts of the statement ───────────────────────────────────────────────────────────────────────────

    def _definition(self) -> Definition:
        made, name, after = self._head()
        if name.kind == "word" and name.text in ("LIKE", "WITH", "AS", "USING", "PARTITIONED", "COMMENT"):
            raise StatementError(
                f"The table has no name: {name.text} is a keyword of the statement.",
                hint="Write CREATE TABLE name …, with the name in backquotes if it is a keyword.",
                position=self.statement.position(made.name_span),
            )
        if after and after[0].text == ".":
            raise StatementError(
                "A lookup table's name cannot have a schema.",
                hint="Lookup tables belong to the session: write the name alone.",
                position=self.statement.position(made.name_span),
            )
        if (base := self._base()) is not None:
            self._take_base(made, base)
        self._take_columns(made, after)
        self._take_options(made)
        self._take_clauses(made, name, after)
        return made

    def _head(self) -> tuple[Definition, Token, list[Token]]:
        """Return a definition with its name, the token of that, and those behind it."""
        words = [token.text for token in self.tokens]
        index = words.index("TABLE") + 1
        keep = words[index : index + 3] == ["IF", "NOT", "EXISTS"]
        name, *after = self.tokens[index + 3 * keep :]
        return Definition(name.name, self.statement.span_of(name), "REPLACE" in words[:3], keep), name, after

    def _take_clauses(self, made: Definition, name: Token, after: Sequence[Token]) -> None:
        """Read COMMENT; raise StatementError for clauses that a lookup table does not support."""
        before = self.tokens[: self.tokens.index(name)]
        external = next((token for token in before if token.text == "EXTERNAL"), None)
        if external is not None:
            raise self._no_clause(external)
        top = [token for token in after if not token.depth]
        for number, token in enumerate(top):
            if token.kind != "word":
                continue
            comment = TokenReader(top[number + 1 :]).literal() if token.text == "COMMENT" else None
            if comment is not None:
                made.comment = comment
            elif token.text in _NO_CLAUSES:
                raise self._no_clause(token)

    def _no_clause(self, token: Token) -> StatementError:
        return StatementError(
            f"A lookup table cannot have {token.text}.",
            hint="Leave it out, or set options of the connector in WITH ('key' = 'value', …).",
            position=self.statement.position_of(token),
        )

    def _take_base(self, made: Definition, name: str) -> None:
        token = self._after("LIKE")
        with self.statement.located(self.statement.span_of(token)):
            base = self.catalog.tables[name]
        excluded = self._excluded_parts()
        made.columns = base.table.schema
        if "CONSTRAINTS" not in excluded:
            made.key = base.key
        if "GENERATED" not in excluded:
            made.computed = dict(base.computed)
        made.declared = [name for name in base.names if name in made.computed or name in base.table.schema.names]
        if "OPTIONS" not in excluded:
            made.inherited = {key: str(value) for key, value in base.table.options.items()}
        made.comments = dict(base.comments)

    def _excluded_parts(self) -> set[str]:
        group = self._group("LIKE", behind=1)
        words = [t.text for t in self.tokens if group and self._in(t, group) and t.kind in ("word", "quoted")]
        excluded: set[str] = set()
        for kind, what in zip(words[::2], words[1::2], strict=False):
            if kind == "EXCLUDING":
                excluded |= set(_LIKE) if what == "ALL" else {what}
            elif kind in ("INCLUDING", "OVERWRITING"):
                excluded -= set(_LIKE) if what == "ALL" else {what}
        return excluded

    def _take_columns(self, made: Definition, after: Sequence[Token]) -> None:
        if not after or after[0].text != "(":
            return
        fields = [] if made.columns is None else list(made.columns)
        own: list[str] = []
        for part in self._items(after[1 : closing_of(after, 0)], has_types=True):
            words = [token.text for token in part]
            if words[:2] == ["WATERMARK", "FOR"]:
                continue
            if words[:3] == ["PERIOD", "FOR", "SYSTEM_TIME"]:
                self._take_period(made, part)
            elif words[2 * (words[0] == "CONSTRAINT") :][:3] == ["PRIMARY", "KEY", "("]:
                self._take_key(made, part)
            elif len(part) > 1 and words[1] == "AS" and part[1].kind == "word":
                self._take_computed(made, part)
                own.append(part[0].name)
                if own[-1] not in made.declared:
                    made.declared.append(own[-1])
            else:
                fields.append(self._column(made, part))
                made.declared.append(fields[-1].name)
        with self.statement.located(self.statement.span_of(after[0])):
            made.columns = check_names(pa.schema(fields)) if fields else made.columns
            computed = [*own, *(name for name in made.computed if name not in own)]
            check_names(pa.schema([*(made.columns or ()), *(pa.field(name, pa.null()) for name in computed)]))

    def _take_key(self, made: Definition, part: Sequence[Token]) -> None:
        words = [token.text for token in part]
        self._refuse_enforced(part)
        first = words.index("(")
        made.key = tuple(t.name for t in part[first + 1 :] if t.kind in ("word", "quoted") and t.depth > part[0].depth)

    def _take_period(self, made: Definition, part: Sequence[Token]) -> None:
        """Read ``PERIOD FOR SYSTEM_TIME (valid_from, valid_to)``, which sets the option of that meaning."""
        names = [token for token in part[3:] if token.kind in ("word", "quoted")]
        if [token.text for token in part[3:] if token.kind == "symbol"] != ["(", ",", ")"] or len(names) != 2:
            raise StatementError(
                "The period of a table has two columns.",
                hint="Write PERIOD FOR SYSTEM_TIME (valid_from, valid_to).",
                position=self.statement.position_of(part[0], part[-1]),
            )
        if made.period:
            raise self._second_period(part)
        made.period = (names[0].name, names[1].name)
        made.options[PERIOD] = ", ".join(quote(name) for name in made.period)

    def _second_period(self, part: Sequence[Token]) -> StatementError:
        return StatementError(
            "The table has a second period.",
            hint=f"Write one PERIOD FOR SYSTEM_TIME (valid_from, valid_to), and then no option {PERIOD!r}.",
            position=self.statement.position_of(part[0], part[-1]),
        )

    def _refuse_enforced(self, part: Sequence[Token]) -> None:
        words = [token.text for token in part]
        if words[-2:] != ["NOT", "ENFORCED"]:
            raise StatementError(
                "A lookup table's primary key is not enforced.",
                hint="Write PRIMARY KEY (…) NOT ENFORCED.",
                position=self.statement.position_of(part[0], part[-1]),
            )

    def _take_computed(self, made: Definition, part: Sequence[Token]) -> None:
        end = next((n for n, t in enumerate(part) if t.text == "COMMENT" and t.depth == part[0].depth), len(part))
        if end < len(part) - 1:
            made.comments[part[0].name] = unquote(part[-1].text)
        if end < 3:
            raise StatementError(
                f"The computed column {part[0].name!r} has no expression.",
                hint="Write name AS expression.",
                position=self.statement.position_of(part[0], part[-1]),
            )
        span = self.statement.span_of(part[2], part[end - 1])
        self._refuse_options_in(span)
        text = self.statement[span]
        with self.statement.located(span):
            made.computed[part[0].name] = _with_computed(with_spark_time(text), made.computed)
            for found, cure in _unsuitable(text):
                raise StatementError(f"The computed column {part[0].name!r} has {found}.", hint=cure)

    def _column(self, made: Definition, part: Sequence[Token]) -> pa.Field:
        span = self.statement.span_of(part[0], part[-1])
        column_tokens = _ColumnTokens(part)
        edits = list(column_tokens.spark_types())
        if part[0].kind == "word" and len(part) > 1:  # It may be a word of SQL, as CONSTRAINT.
            edits.append(Edit(Span(part[0].start, part[0].end), quote(part[0].name)))
        if column_tokens.clause("METADATA") is not None:
            raise StatementError(
                "A lookup table cannot have METADATA columns.",
                hint="Leave the column out.",
                position=self.statement.position(span),
            )
        if "MULTISET" in column_tokens.words:
            raise StatementError(
                "A lookup table cannot have a MULTISET, a type that Spark lacks.",
                hint="Write MAP<STRING, INT>, as in MAP<element, count>, or leave the column out.",
                position=self.statement.position(span),
            )
        end = part[-1].end
        key = column_tokens.clause("PRIMARY", "KEY")
        if key is not None:
            self._refuse_enforced(part)
            made.key = (part[0].name,)
            end = part[key].start
        self._refuse_options_in(span)
        comment = _comment_of(part, column_tokens.clause("COMMENT"))
        if comment:
            edits.append(Edit(Span(comment[1], comment[2]), " "))
        first = part[0].start
        inside = ((Span(one.span.start - first, one.span.end - first), one.new) for one in edits if one.span.end <= end)
        text = edited(self.statement[self.statement.span_within(first, end)], inside)
        with self.statement.located(span):
            [column] = parse_ddl(text)
        if comment:
            made.comments[column.name] = comment[0]
        return column

    def _items(self, inside: Sequence[Token], *, has_types: bool = False) -> list[list[Token]]:
        """Return what commas separate; raises StatementError for a comma too many."""
        items = split_arguments(inside, has_types=has_types)
        if inside and [] in items:
            before = items[: items.index([])]
            comma = inside[min(sum(len(item) + 1 for item in before), len(inside) - 1)]
            raise StatementError(
                "A comma has nothing before or behind it.",
                hint="Remove it.",
                position=self.statement.position_of(comma),
            )
        return items if inside else []

    def _refuse_options_in(self, span: Span) -> None:
        """Raise StatementError if options are among the columns: an error about a column shows its text."""
        if self.statement.hides(span):
            raise StatementError(
                "A column cannot be read here: it has options in it.",
                hint="Close the parenthesis of the columns before WITH (…). If it is an expression with a text such as "
                "'token=', compute it in a view.",
                position=self.statement.position(span),
            )

    def _take_options(self, made: Definition) -> None:
        group = self._group("WITH")
        if group is None:
            return
        made.options_span = group
        if self.statement[group][-1:] != ")":
            raise StatementError(
                "The options are not closed.",
                hint="Write WITH ('key' = 'value', …).",
                position=self.statement.position(Span(group.start, group.start + 1)),
            )
        inside = [token for token in self.tokens if self._in(token, group) and token.text not in "()"]
        for pair in self._items(inside):
            option = _option_of(pair)
            if option is None:
                raise StatementError(
                    "An option cannot be read here.",
                    hint="Write WITH ('key' = 'value', …).",
                    position=self.statement.position_of(pair[0], pair[-1]),
                )
            key, value = option
            if made.period and key == PERIOD:
                raise self._second_period(pair)
            made.options[key] = value

    def _refuse_unknown(self, made: Definition, table: LookupTable) -> None:
        known = [name.lower() for name in table.schema.names]
        named = [("primary key", name) for name in made.key] + [("period", name) for name in made.period]
        for part, name in named:
            if name.lower() not in known:
                raise SchemaError(
                    f"The {part} names a column {name!r}, which is no column of the table.",
                    hint=f"Its columns are {', '.join(table.schema.names)}.",
                    position=self.statement.position(made.name_span),
                )
        for name, sql in made.computed.items():
            for column, _ in _columns_of(sql):
                if column.lower() not in known:
                    raise SchemaError(
                        f"Computed column {name!r} reads {column!r}, which is no column of the table.",
                        hint=f"Its columns are {', '.join(table.schema.names)}.",
                        position=self.statement.position(made.name_span),
                    )

    def _error_span(self, error: LookupCacheError, made: Definition) -> Span:
        """Return the span of the option that an error names, or of all options."""
        strings = [token for token in self.tokens if token.kind == "string"]
        named = {error.fact.rfind(repr(unquote(token.text))): token for token in strings}
        last = max(named, default=-1)
        return self.statement.span_of(named[last]) if last >= 0 else made.options_span or made.name_span

    # ── keywords and parentheses ───────────────────────────────────────────────────────────────────────────────

    def _in(self, token: Token, span: Span) -> bool:
        return span.holds(self.statement.span_of(token))

    def _top(self, word: str) -> Token | None:
        found = [t for t in self.tokens if t.kind == "word" and t.text == word and not t.depth]
        return found[0] if found else None

    def _after(self, word: str, behind: int = 0) -> Token:
        at = self.tokens.index(self._top(word))  # type: ignore[arg-type]
        return self.tokens[min(at + 1 + behind, len(self.tokens) - 1)]

    def _base(self) -> str | None:
        return self._after("LIKE").name if self._top("LIKE") is not None else None

    def _group(self, word: str, behind: int = 0) -> Span | None:
        """Return the parentheses after a word, or after the token ``behind`` positions further."""
        if self._top(word) is None or self._after(word, behind).text != "(":
            return None
        opening = self._after(word, behind)
        closing = closing_of(self.tokens, self.tokens.index(opening))
        return self.statement.span_of(opening, self.tokens[-1 if closing is None else closing])


def _comment_of(part: Sequence[Token], start: int | None) -> tuple[str, int, int] | None:
    """Return the comment of a column, and where COMMENT, which is at ``start``, starts and ends with it."""
    reader = TokenReader(part[len(part) if start is None else start + 1 :])
    comment = reader.literal()
    if start is None or comment is None:
        return None
    return comment, part[start].start, part[start + reader.position].end


class _ColumnTokens:
    """The tokens of a column's definition behind its name, without the names of the fields in its type.

    ``words`` has an empty text in place of all that is no word of the type or of a clause; ``depths`` says in how many
    brackets a token is.
    """

    def __init__(self, part: Sequence[Token]) -> None:
        self.tokens = part
        self.words: list[str] = []
        self.depths: list[int] = []
        self.in_struct: list[bool] = []
        opened: list[bool] = []  # For each bracket that is open, whether names of fields are inside.
        names_follow = True
        for number, token in enumerate(part):
            is_symbol = token.kind == "symbol"
            closes = token.text.count(">") + token.text.count(")") if is_symbol else 0
            opened = opened[: len(opened) - closes]
            self.words.append("" if names_follow or token.kind != "word" else token.text)
            self.depths.append(len(opened))
            self.in_struct.append(bool(opened) and opened[-1])
            names_follow = False
            if is_symbol and token.text in ("<", "("):
                opened.append(number > 0 and self.words[number - 1] in ("STRUCT", "ROW"))
                names_follow = opened[-1]
            elif is_symbol and token.text == ",":
                names_follow = bool(opened) and opened[-1]

    def clause(self, *words: str) -> int | None:
        """Return the position of a clause that begins with these words, outside of the type's brackets; else None."""
        return next((n for n, depth in enumerate(self.depths) if not depth and self._has(n, *words)), None)

    def _has(self, start: int, *words: str) -> bool:
        return self.words[start : start + len(words)] == list(words)

    def spark_types(self) -> Iterator[Edit]:
        """Yield edits that replace Flink's types by Spark's.

        Flink's TIMESTAMP(3) has no time zone; Spark's TIMESTAMP has the session's. Spark's elements of an array and
        values of a map may all be null.
        """
        for number, word in enumerate(self.words):
            if word in ("TIMESTAMP", "TIMESTAMP_LTZ"):
                end = self._behind_length(number)
                is_local, is_plain = self._has(end, *_LOCAL), self._has(end, *_PLAIN)
                if end > number + 1 or is_local or is_plain:
                    of_flink = "TIMESTAMP_NTZ" if word == "TIMESTAMP" and not is_local else "TIMESTAMP_LTZ"
                    yield self._edit(number, end + len(_LOCAL) * is_local + len(_PLAIN) * is_plain, of_flink)
            elif self.depths[number] and not self.in_struct[number] and self._has(number, "NOT", "NULL"):
                yield self._edit(number, number + 2, "")
            elif word in ("BYTES", "VARBINARY"):
                yield self._edit(number, self._behind_length(number), "BINARY")
            elif word == "ROW" and number and number + 1 < len(self.tokens):
                yield self._edit(number, number + 1, "STRUCT")
                closing = closing_of(self.tokens, number + 1) if self.tokens[number + 1].text == "(" else None
                if closing is not None:
                    yield self._edit(number + 1, number + 2, "<")
                    yield self._edit(closing, closing + 1, ">")

    def _behind_length(self, number: int) -> int:
        """Return the position behind a word and a length in parentheses, as in ``(3)``."""
        texts = [token.text for token in self.tokens[number + 1 : number + 4]]
        has_length = texts[:1] == ["("] and texts[2:] == [")"] and texts[1].isdigit()
        return number + 4 if has_length else number + 1

    def _edit(self, start: int, end: int, new: str) -> Edit:
        return Edit(Span(self.tokens[start].start, self.tokens[end - 1].end), new)


def _with_computed(sql: str, computed: Mapping[str, str]) -> str:
    """Return an expression with the SQL of other computed columns in place of their names; fields keep the names.

    >>> _with_computed("struct(a, B, 'a')", {"a": "id + 1"})
    "struct(named_struct('a', (id + 1)).`a`, B, 'a')"
    """
    known = {name.lower(): f"({of})" for name, of in computed.items()}
    _ = _columns_of(sql)  # refuses what cannot be read
    return with_columns(sql, lambda name: known.get(name.lower()))


def _unsuitable(sql: str) -> Iterator[tuple[str, str]]:
    """Yield what the expression of a computed column cannot have, and the cure."""
    if "${" in sql:
        yield "a variable", "Write its value: CREATE TABLE with a connector reads no variables."
    if column_stars(sql):
        yield "a star", "Write the columns, as in struct(id, name)."
    found = part_of_rows(deep_recursion(lambda: parse(Statement.of(f"SELECT {sql}"))).expressions)
    if found is not None:
        yield found, "Compute it in the query that joins the table: a computed column reads one row of the table."


def _option_of(pair: Sequence[Token]) -> tuple[str, str] | None:
    """Return key and value of ``'key' = 'value'``; None for other tokens, and for a key as of a missing quote."""
    sign = next((number for number, token in enumerate(pair) if token.text in ("=", "==")), len(pair))
    sides = TokenReader(pair[:sign]), TokenReader(pair[sign + 1 :])
    key, value = (side.literal() for side in sides)
    if key is None or value is None or any(side.rest for side in sides) or re.search(r"['\"\s=,()]", key):
        return None
    return key, value


def _columns_of(sql: str) -> list[tuple[str, Span]]:
    try:
        return [(name, span) for name, span in columns_in(sql) if name.lower() not in WORD_CALLS]
    except StatementError as error:
        raise StatementError(
            f"The computed column {sql!r} cannot be read.", hint="Write name AS expression, or compute it in a view."
        ) from error
