"""Flink's models: CREATE MODEL makes a lookup table of the connector `openai`, and ML_PREDICT looks rows up in it.

    FROM ML_PREDICT(TABLE reviews, MODEL moods, DESCRIPTOR(review))
─►  FROM (SELECT reviews.*, m.mood FROM reviews LEFT JOIN moods FOR SYSTEM_TIME AS OF … AS m ON reviews.review = m.text)

    FROM reviews AS i, LATERAL TABLE(ML_PREDICT('moods', i.review)) AS m

is a lookup join as that of a table function (`laterals`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pyarrow as pa

from lookupcache.errors import LookupCacheError, OptionError, Position, SchemaError, StatementError
from lookupcache.planner.clauses import Token, closing_of, split_arguments
from lookupcache.planner.coercion import CAST_IT
from lookupcache.schema import quote, to_ddl, type_name, upper_but_names
from lookupcache.sql.catalog import MODEL, SqlTable
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.model_calls import PREDICT, answers_of, config_of, model_named, unreadable
from lookupcache.sql.query import Args, Run, SqlContext
from lookupcache.sql.text import Edit, Edits, Span, Statement
from lookupcache.sql.token_reader import TokenReader, named_argument, words_of
from lookupcache.table import LookupTable

_ENDPOINTS = {"/chat/completions": "chat", "/embeddings": "embeddings"}
_OPTIONS = {"system-prompt": "system", "dimension": "dimensions", "retry-num": "lookup.max-retries"}
_ON_ERROR = {"IGNORE": "null", "FAILOVER": "fail", "RETRY": "fail"}


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
    is_called = (PREDICT, "(") in pairwise(words_of(statement.tokens))
    found = list(_predictions(context, statement, statement.tokens)) if is_called else []
    if not found:
        yield statement
        return
    edits = Edits(statement.sql, [Edit(Span(start, end), sql) for one in found for start, end, sql in one.edits])
    changed = statement.rewritten(edits.text(Span(0, len(statement.sql))))
    try:
        yield changed
    except LookupCacheError as error:
        names = {name: written for one in found for name, written in one.names.items()}
        cure = _CAST if error.hint and error.hint.startswith(CAST_IT) else error.hint
        fact, hint = (text and _as_written(text, names) for text in (error.fact, cure))
        position = error.position and statement.position(_span_as_written(statement, changed, edits, error.position))
        raise error.rewritten(str(fact), hint, position) from None


_CAST = f"Cast it in a query, as in {PREDICT}((SELECT *, CAST(id AS STRING) AS text FROM t), …, DESCRIPTOR(text))."


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
    """Yield each ML_PREDICT over a table, with TABLE ( … ) around it; those of LATERAL are joins, as of a function."""
    for number, (word, opening) in enumerate(pairwise(found)):
        if word.text != PREDICT or word.kind != "word" or opening.text != "(":
            continue
        with statement.located(statement.span_of(word)):
            closing = closing_of(found, number + 1)
            if closing is None:
                raise unreadable()
            around = [token.text for token in found[max(number - 2, 0) : number]] == ["TABLE", "("]
            first, last = (number - 2, closing + 1) if around else (number, closing)
            parts = [named_argument(part)[1] for part in split_arguments(found[number + 2 : closing])]
            if not first or found[first - 1].text != "LATERAL":
                alias = f"{MODEL}rows{number}"
                yield _relation(context, statement, alias, parts, found[first].start, found[last].end)


def _relation(
    context: SqlContext, statement: Statement, model: str, parts: Sequence[Sequence[Token]], start: int, end: int
) -> _Prediction:
    """Return the edits by which ML_PREDICT over a table becomes a query with a LEFT JOIN of the alias ``model``."""
    heads = [[token.text.upper() for token in part[:2]] for part in parts]
    is_table = bool(heads) and heads[0][:1] in (["TABLE"], ["("])
    is_rest = [head[:1] for head in heads[1:3]] == [["MODEL"], ["DESCRIPTOR"]]
    if not is_table or not is_rest or len(parts) > 4 or len(parts[1]) != 2:
        raise unreadable()
    written = parts[1][1].name
    with statement.located(statement.span_of(parts[1][1])):
        name, table = model_named(context.catalog, written)
    columns = [token.name for token in parts[2][2:-1] if token.text != ","]
    if len(columns) != len(table.key):
        raise unreadable()
    relation = parts[0][1:] if heads[0][0] == "TABLE" else parts[0]
    rows = "input" if relation[-1].text == ")" else relation[-1].name
    pairs = zip(columns, table.key, strict=True)
    keys = " AND ".join(f"{quote(rows)}.{quote(column)} = {model}.{quote(key)}" for column, key in pairs)
    answers = ", ".join(f"{model}.{quote(answer)}" for answer in answers_of(table))
    hint = ""
    if len(parts) > 3:
        with statement.located(statement.span_of(parts[3][0], parts[3][-1])):
            options = ", ".join(f"'{key}' = '{value}'" for key, value in config_of(parts[3]).items())
            hint = f"/*+ OPTIONS({options}) */ " if options else ""
    lookup = f" AS {quote(rows)} LEFT JOIN {quote(name)} {hint}FOR SYSTEM_TIME AS OF PROCTIME() AS {model} "
    edits = [
        (start, relation[0].start, f"(SELECT {quote(rows)}.*, {answers} FROM "),
        (relation[-1].end, parts[2][0].start, lookup),
        (parts[2][0].start, parts[2][-1].end, f"ON {keys}"),
        (parts[2][-1].end, end, ")"),
    ]
    return _Prediction(edits, {model: written, name: written})
