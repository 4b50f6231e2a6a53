"""Flink's models: CREATE MODEL makes a lookup table of the connector `openai`, and ML_PREDICT looks rows up in it.

    FROM ML_PREDICT(TABLE reviews, MODEL moods, DESCRIPTOR(review))
─►  FROM (SELECT i.*, m.mood FROM reviews AS i LEFT JOIN moods FOR SYSTEM_TIME AS OF … AS m ON i.review = m.text)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.errors import LookupCacheError, OptionError, StatementError
from lookupcache.planner.clauses import Token, closing_of
from lookupcache.schema import quote, to_ddl
from lookupcache.sql.catalog import MODEL, SqlTable
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.hints import unquote
from lookupcache.sql.query import Args, Setting, nothing
from lookupcache.sql.statement_target import TokenReader, arguments_of, words_of
from lookupcache.sql.text import Statement
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


def is_model(found: Sequence[Token], *_: Any) -> bool:
    """Return whether a statement creates or drops a model."""
    reader = TokenReader(found)
    if not (reader.take("CREATE") or reader.take("DROP")):
        return False
    reader.skip("OR", "REPLACE", "TEMPORARY")
    return reader.take("MODEL")


def run_model(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run CREATE MODEL or DROP MODEL."""
    reader = TokenReader(found)
    drops = not reader.take("CREATE")
    reader.skip("DROP", "OR", "REPLACE", "TEMPORARY", "MODEL")
    keep = reader.take("IF", "NOT", "EXISTS") or reader.take("IF", "EXISTS")
    name = reader.name()
    if name is None or name.plain is None:
        raise StatementError("The model has no name.", hint="Write CREATE MODEL name INPUT (…) OUTPUT (…) WITH (…).")
    span = statement.span_within(name.start, name.end)
    tables, known = setting.catalog.tables, f"{MODEL}{name.plain}"
    try:
        if drops:
            tables.drop(known, missing_ok=keep)
        else:
            replace = "REPLACE" in words_of(found)[:3]
            tables.create(known, lambda: _model(setting, statement, known), replace=replace, keep=keep)
    except LookupCacheError as error:
        raise error.at(statement.position(span)) from None
    return nothing(setting)


def _model(setting: Setting, statement: Statement, name: str) -> SqlTable:
    inputs, made = CreateTable(statement, setting.catalog).model(name)
    options = from_flink_model(made.options, inputs)
    assert made.columns is not None
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


def has_predictions(found: Sequence[Token]) -> bool:
    """Return whether a statement calls ML_PREDICT."""
    return ("ML_PREDICT", "(") in pairwise(token.text for token in found)


def with_predictions(setting: Setting, statement: Statement) -> Statement:
    """Return a statement with a lookup in place of each ML_PREDICT; positions on later lines stay as they are."""
    found = statement.words
    pieces, done = [], 0
    for start, end, sql in _predictions(setting, statement, found):
        pieces += [statement.sql[done:start], sql]
        done = end
    if not pieces:
        return statement
    own = "".join([*pieces, statement.sql[done:]])
    return statement.rewritten(own)


def _predictions(setting: Setting, statement: Statement, found: Sequence[Token]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and SQL of each ML_PREDICT, TABLE ( … ) around it included."""
    for number, (word, opening) in enumerate(pairwise(found)):
        if word.text != "ML_PREDICT" or word.kind != "word" or opening.text != "(":
            continue
        closing = closing_of(found, number + 1)
        if closing is None:
            raise _unreadable(statement, word)
        around = [token.text for token in found[max(number - 2, 0) : number]] == ["TABLE", "("]
        first, last = (number - 2, closing + 1) if around else (number, closing)
        sql = _sql(setting, statement, word, list(map(_without_name, arguments_of(found[number + 2 : closing]))))
        yield found[first].start, found[last].end, sql


def _without_name(part: list[Token]) -> list[Token]:
    """Return an argument without the name that it may have."""
    return part[2:] if len(part) > 2 and part[1].text == "=>" else part


def _sql(setting: Setting, statement: Statement, word: Token, parts: Sequence[Sequence[Token]]) -> str:
    heads = [[token.text.upper() for token in part[:2]] for part in parts]
    is_table = bool(heads) and heads[0][:1] in (["TABLE"], ["("])
    is_rest = [head[:1] for head in heads[1:3]] == [["MODEL"], ["DESCRIPTOR"]]
    if not is_table or not is_rest or len(parts) > 4 or len(parts[1]) != 2:
        raise _unreadable(statement, word)
    name = f"{MODEL}{parts[1][1].name}"
    table = setting.catalog.tables.get(name)
    if table is None:
        span = statement.span_within(parts[1][1].start, parts[1][1].end)
        raise StatementError(
            f"There is no model {parts[1][1].name!r}.",
            hint="Make it with CREATE MODEL name INPUT (…) OUTPUT (…) WITH ('provider' = 'openai', …).",
            position=statement.position(span),
        )
    columns = [token.name for token in parts[2][2:-1] if token.text != ","]
    if len(columns) != len(table.key):
        raise _unreadable(statement, word)
    relation = parts[0][1:] if heads[0][0] == "TABLE" else parts[0]
    text = statement.sql[relation[0].start : relation[-1].end]
    keys = " AND ".join(f"lookup_i.{quote(a)} = lookup_m.{quote(b)}" for a, b in zip(columns, table.key, strict=True))
    answers = ", ".join(f"lookup_m.{quote(f.name)}" for f in table.table.schema if f.name not in table.key)
    hint = _hint(parts[3]) if len(parts) > 3 else ""
    return (
        f"(SELECT lookup_i.*, {answers} FROM {text} AS lookup_i LEFT JOIN {quote(name)} {hint}"
        f"FOR SYSTEM_TIME AS OF PROCTIME() AS lookup_m ON {keys})"
    )


def _hint(part: Sequence[Token]) -> str:
    """Return ``MAP['async', 'true', …]`` as options of the lookup."""
    given = [unquote(token.written) for token in part if token.kind == "string"]
    options = zip(map(str.lower, given[::2]), given[1::2], strict=False)
    pairs = ", ".join(f"'{_CONFIG[key]}' = '{value.lower()}'" for key, value in options if key in _CONFIG)
    return f"/*+ OPTIONS({pairs}) */ " if pairs else ""


def _unreadable(statement: Statement, word: Token) -> StatementError:
    return StatementError(
        "ML_PREDICT has other arguments than a table, a model, and a column for each of the model's inputs.",
        hint=f"Write FROM {_CALL}.",
        position=statement.position(statement.span_within(word.start, word.end)),
    )
