"""Flink's models: CREATE MODEL makes a lookup table of the connector `openai`, and ML_PREDICT looks rows up in it.

    FROM ML_PREDICT(TABLE reviews, MODEL moods, DESCRIPTOR(review))
─►  FROM (SELECT reviews.*, m.mood FROM reviews LEFT JOIN moods FOR SYSTEM_TIME AS OF … AS m ON reviews.review = m.text)

    FROM reviews AS i, LATERAL TABLE(ML_PREDICT('moods', i.review)) AS m
─►  FROM reviews AS i LEFT JOIN (SELECT text AS lookup_in0, mood FROM moods) FOR SYSTEM_TIME AS OF … AS m ON …
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pyarrow as pa

from lookupcache.errors import LookupCacheError, OptionError, Position, SchemaError, StatementError, nearest
from lookupcache.planner.clauses import Token, closing_of, split_arguments
from lookupcache.schema import quote, to_ddl, type_name, upper_but_names
from lookupcache.sql.catalog import MODEL, SqlTable
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.query import Args, Run, SqlContext
from lookupcache.sql.text import Edit, Edits, Span, Statement
from lookupcache.sql.token_reader import TokenReader, named_argument, unquote, words_of
from lookupcache.table import LookupTable

_ENDPOINTS = {"/chat/completions": "chat", "/embeddings": "embeddings"}
_OPTIONS = {"system-prompt": "system", "dimension": "dimensions", "retry-num": "lookup.max-retries"}
_ON_ERROR = {"IGNORE": "null", "FAILOVER": "fail", "RETRY": "fail"}
_CONFIG = {
    "async": "lookup.async", "timeout": "lookup.timeout", "max-concurrent-operations": "lookup.async.capacity",
    "output-mode": "lookup.async.output-mode",
}  # fmt: skip
_CALL = "ML_PREDICT(TABLE t, MODEL m, DESCRIPTOR(column))"


# ── CREATE MODEL, DROP MODEL ─────────────────────────────────────────────────────────────────────────────


def read_model(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs CREATE MODEL or DROP MODEL."""
    reader = TokenReader(statement.tokens)
    drops = reader.take("DROP")
    if not (drops or reader.take("CREATE")):
        return None
    reader.skip("OR", "REPLACE", "TEMPORARY")
    return partial(_run_model, context, statement, reader, drops) if reader.take("MODEL") else None


def _run_model(context: SqlContext, statement: Statement, reader: TokenReader, drops: bool) -> None:
    keep = reader.take("IF", "NOT", "EXISTS") or reader.take("IF", "EXISTS")
    name = reader.name()
    if name is None or name.plain is None:
        raise StatementError("The model has no name.", hint="Write CREATE MODEL name INPUT (…) OUTPUT (…) WITH (…).")
    span = statement.span_of(name)
    tables, known = context.catalog.tables, f"{MODEL}{name.plain}"
    with statement.located(span):
        if drops:
            tables.drop(known, missing_ok=keep)
        else:
            replace = "REPLACE" in words_of(statement.tokens)[:3]
            tables.create(known, lambda: _model(context, statement, known), replace=replace, keep=keep)


def _model(context: SqlContext, statement: Statement, name: str) -> SqlTable:
    inputs, made = CreateTable(statement, context.catalog).model(name)
    options = from_flink_model(made.options, inputs)
    assert made.columns is not None
    for field in made.columns:
        if field.name in inputs and pa.types.is_nested(field.type):
            raise SchemaError(
                f"Input {field.name!r} of the model is {upper_but_names(type_name(field.type))}, which a lookup key "
                "cannot be.",
                hint="Declare it as STRING, and pass to_json(…) of the value.",
            )
    return SqlTable(LookupTable(name, to_ddl(made.columns), options), key=tuple(inputs))


def from_flink_model(options: dict[str, str], inputs: Sequence[str]) -> dict[str, str]:
    """Return the options of Flink's provider ``openai`` as those of the connector of that name.

    >>> from_flink_model({"provider": "openai", "endpoint": "https://api.openai.com/v1/chat/completions",
    ...     "model": "gpt-4o", "system-prompt": "Be brief."}, ["text"])
    {'connector': 'openai', 'url': 'https://api.openai.com/v1', 'task': 'chat', 'prompt': '{text}', 'model': 'gpt-4o', \
'system': 'Be brief.'}
    """
    provider, endpoint = options.get("provider"), options.get("endpoint", "").rstrip("/")
    if provider != "openai":
        raise OptionError(f"A model has the provider {provider!r}.", hint="Write 'provider' = 'openai'.")
    path = next((path for path in _ENDPOINTS if endpoint.endswith(path)), None)
    if path is None:
        paths = " or ".join(_ENDPOINTS)
        raise OptionError("The model's endpoint has no task.", hint=f"Write 'endpoint' = 'https://…/v1…' with {paths}.")
    own = ("provider", "endpoint", "error-handling-strategy")
    kept = {key: value for key, value in options.items() if key not in own}
    made = {"connector": "openai", "url": endpoint.removesuffix(path), "task": _ENDPOINTS[path]}
    made["prompt"] = "\n".join(f"{{{name}}}" for name in inputs)
    made |= {_OPTIONS.get(key, key): value for key, value in kept.items()}
    strategy = options.get("error-handling-strategy")
    return made if strategy is None else made | {"lookup.on-error": _ON_ERROR.get(strategy.upper(), strategy)}


# ── ML_PREDICT ───────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def predicting(context: SqlContext, statement: Statement) -> Iterator[Statement]:
    """Yield a statement with a lookup in place of each ML_PREDICT; errors show the statement as it was written."""
    if ("ML_PREDICT", "(") not in pairwise(words_of(statement.tokens)):
        yield statement
        return
    found = list(_predictions(context, statement, statement.tokens))
    edits = Edits(statement.sql, [Edit(Span(start, end), sql) for one in found for start, end, sql in one.edits])
    changed = statement.rewritten(edits.text(Span(0, len(statement.sql))))
    try:
        yield changed
    except LookupCacheError as error:
        names = {name: written for one in found for name, written in one.names.items()}
        fact, hint = (text and _as_written(text, names) for text in (error.fact, error.hint))
        position = error.position and statement.position(_span_as_written(statement, changed, edits, error.position))
        raise error.rewritten(str(fact), hint, position) from None


def _as_written(text: str, names: Mapping[str, str]) -> str:
    """Return a text with names of the statement as written in place of those of the lookups."""
    every = "|".join(map(re.escape, names))
    return re.sub(rf"`?(?<!\w)({every})(?!\w)`?", lambda found: names[found[1]], text)


def _span_as_written(statement: Statement, changed: Statement, edits: Edits, position: Position) -> Span:
    """Return the span of a position in the statement as written; of text that we made, that which it replaces."""
    before = changed.text.split("\n")[: position.line - 1]
    start = sum(len(line) + 1 for line in before) + position.column - 1 - changed.span.start
    whole = Span(0, len(statement.sql))
    first, last = edits.replaced(whole, start), edits.replaced(whole, start + position.length - 1)
    return statement.span_within(first.start, max(last.end, first.end))


@dataclass(frozen=True)
class _Prediction:
    """An ML_PREDICT as a lookup: the edits that make it one, and names in them with those that the user wrote."""

    edits: Sequence[tuple[int, int, str]]
    names: Mapping[str, str]


def _predictions(context: SqlContext, statement: Statement, found: Sequence[Token]) -> Iterator[_Prediction]:
    """Yield each ML_PREDICT, with TABLE ( … ) around it."""
    for number, (word, opening) in enumerate(pairwise(found)):
        if word.text != "ML_PREDICT" or word.kind != "word" or opening.text != "(":
            continue
        closing = closing_of(found, number + 1)
        if closing is None:
            raise _unreadable(statement, word)
        around = [token.text for token in found[max(number - 2, 0) : number]] == ["TABLE", "("]
        first, last = (number - 2, closing + 1) if around else (number, closing)
        parts = [named_argument(part)[1] for part in split_arguments(found[number + 2 : closing])]
        if first and found[first - 1].text == "LATERAL":
            yield _lateral(context, statement, word, parts, found, range(first - 1, last + 1))
        else:
            yield _relation(context, statement, word, parts, found[first].start, found[last].end)


def _relation(
    context: SqlContext, statement: Statement, word: Token, parts: Sequence[Sequence[Token]], start: int, end: int
) -> _Prediction:
    """Return the edits by which ML_PREDICT over a table becomes a query with a LEFT JOIN."""
    heads = [[token.text.upper() for token in part[:2]] for part in parts]
    is_table = bool(heads) and heads[0][:1] in (["TABLE"], ["("])
    is_rest = [head[:1] for head in heads[1:3]] == [["MODEL"], ["DESCRIPTOR"]]
    if not is_table or not is_rest or len(parts) > 4 or len(parts[1]) != 2:
        raise _unreadable(statement, word)
    name, table = _model_named(context, statement, parts[1][1], parts[1][1].name)
    columns = [token.name for token in parts[2][2:-1] if token.text != ","]
    if len(columns) != len(table.key):
        raise _unreadable(statement, word)
    relation = parts[0][1:] if heads[0][0] == "TABLE" else parts[0]
    rows = "input" if relation[-1].text == ")" else relation[-1].name
    model = f"{MODEL}rows"
    pairs = zip(columns, table.key, strict=True)
    keys = " AND ".join(f"{quote(rows)}.{quote(column)} = {model}.{quote(key)}" for column, key in pairs)
    answers = ", ".join(f"{model}.{quote(answer)}" for answer in _answers(table))
    hint = _hint(statement, parts[3]) if len(parts) > 3 else ""
    lookup = f" AS {quote(rows)} LEFT JOIN {quote(name)} {hint}FOR SYSTEM_TIME AS OF PROCTIME() AS {model} "
    edits = [
        (start, relation[0].start, f"(SELECT {quote(rows)}.*, {answers} FROM "),
        (relation[-1].end, parts[2][0].start, lookup),
        (parts[2][0].start, parts[2][-1].end, f"ON {keys}"),
        (parts[2][-1].end, end, ")"),
    ]
    written = parts[1][1].name
    return _Prediction(edits, {model: written, name: written})


def _model_named(context: SqlContext, statement: Statement, token: Token, name: str) -> tuple[str, SqlTable]:
    """Return the lookup table of a model, and its name; raises StatementError for an unknown model."""
    table = context.catalog.tables.get(f"{MODEL}{name}")
    if table is None:
        raise StatementError(
            f"There is no model {name!r}.",
            hint="Make it with CREATE MODEL name INPUT (…) OUTPUT (…) WITH ('provider' = 'openai', …).",
            position=statement.position_of(token),
        )
    return f"{MODEL}{name}", table


def _answers(table: SqlTable) -> list[str]:
    return [f.name for f in table.table.schema if f.name not in table.key]


def _lateral(
    context: SqlContext,
    statement: Statement,
    word: Token,
    parts: list[list[Token]],
    found: Sequence[Token],
    lateral: range,
) -> _Prediction:
    """Return the edits by which LATERAL TABLE(ML_PREDICT('model', expression, …)) becomes a LEFT JOIN.

    The tokens in ``lateral`` are those from LATERAL on. Stars of the SELECT leave out the columns of the join.
    """
    options = parts.pop() if parts[-1][0].text == "MAP" else []
    if parts[0][0].kind != "string" or len(parts[0]) > 1:
        raise StatementError(
            "LATERAL with a table in ML_PREDICT joins each row with the predictions of all rows.",
            hint=f"Write FROM {_CALL} alone, or FROM t, LATERAL TABLE(ML_PREDICT('m', t.column)).",
            position=statement.position_of(word),
        )
    written = unquote(parts[0][0].written).split(".")[-1].strip("`")
    name, table = _model_named(context, statement, parts[0][0], written)
    first, last, alias, names = _around_lateral(found, lateral)
    answers = _answers(table)
    if len(parts) != 1 + len(table.key) or (names and len(names) != len(answers)):
        raise _unreadable(statement, word)
    keys = [f"lookup_in{number}" for number in range(len(table.key))]
    items = [*map(_alias, table.key, keys), *map(_alias, answers, names or answers)]
    derived = f"(SELECT {', '.join(items)} FROM {quote(name)} {_hint(statement, options) if options else ''})"
    before = f" LEFT JOIN {derived} FOR SYSTEM_TIME AS OF PROCTIME() AS {quote(alias)} ON ("
    start, edits = found[first].start, list(_without_keys(found, first, alias, keys))
    for argument, key in zip(parts[1:], keys, strict=True):
        edits.append((start, argument[0].start, before))
        start, before = argument[-1].end, f") = {quote(alias)}.{key} AND ("
    edits.append((start, found[last].end, before.removesuffix(" AND (")))
    return _Prediction(edits, dict(zip(keys, table.key, strict=True)) | {name: written})


def _alias(column: str, name: str) -> str:
    return f"{quote(column)} AS {quote(name)}"


def _around_lateral(found: Sequence[Token], lateral: range) -> tuple[int, int, str, list[str]]:
    """Return the first and last token of a join with LATERAL, its alias, and the names of its columns."""
    first, last = lateral.start - 1, lateral.stop - 1
    while first and found[first].text in ("JOIN", "OUTER", "CROSS", "INNER", "LEFT"):
        first -= 1
    first += found[first].text != ","
    reader = TokenReader(found[lateral.stop :])
    reader.take("AS")
    ends = (*_BEHIND, "ON", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "UNION")
    name = None if reader.words[:1] and reader.words[0] in ends else reader.name()
    names: list[str] = []
    if name is not None and reader.rest and reader.rest[0].text == "(":
        closing = closing_of(reader.found, reader.position) or reader.position
        names = [token.name for token in reader.found[reader.position + 1 : closing] if token.text != ","]
        reader.position = closing + 1
    reader.take("ON", "TRUE")
    last += reader.position
    alias = f"lookup_m{lateral.start}" if name is None or name.plain is None else name.plain
    return first, last, alias, names


_BEHIND = ("JOIN", "CROSS", "INNER", "LEFT", "RIGHT", "FULL", "LATERAL")


def _without_keys(
    found: Sequence[Token], first: int, alias: str, keys: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """Yield edits of the stars in the SELECT before a token."""
    depth = found[first].depth
    select = max((n for n in range(first) if found[n].text == "SELECT" and found[n].depth == depth), default=first)
    for number in range(select + 1, first):
        before = found[number - 1].text
        if found[number].text != "*" or found[number].depth != depth or before not in ("SELECT", ",", "."):
            continue
        own = found[number - 2].name.lower() if before == "." else alias.lower()
        if own == alias.lower():
            left_out = keys if before == "." else [f"{quote(alias)}.{key}" for key in keys]
            yield found[number].start, found[number].end, f"* EXCEPT ({', '.join(left_out)})"


def _hint(statement: Statement, part: Sequence[Token]) -> str:
    """Return ``MAP['async', 'true', …]`` as options of the lookup."""
    given = [token for token in part if token.kind == "string"]
    options = {}
    for key, value in zip(given[::2], given[1::2], strict=False):
        name = unquote(key.written).lower()
        if name not in _CONFIG:
            raise OptionError(
                f"ML_PREDICT has no option {name!r}.",
                hint=nearest(name, _CONFIG, what="options"),
                position=statement.position_of(key),
            )
        options[_CONFIG[name]] = unquote(value.written).lower()
    pairs = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"/*+ OPTIONS({pairs}) */ " if pairs else ""


def _unreadable(statement: Statement, word: Token) -> StatementError:
    return StatementError(
        "ML_PREDICT has other arguments than a table, a model, and a column for each of the model's inputs.",
        hint=f"Write FROM {_CALL}.",
        position=statement.position_of(word),
    )
