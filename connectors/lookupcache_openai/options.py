"""The options of the `openai` connector, checked on the driver.

options, schema ─► `Model`: the service, the prompt, the columns that are answered, the limits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from lookupcache.errors import OptionError, SchemaError, nearest
from lookupcache.schema import shown_type
from lookupcache.source_options import one_of, seconds, whole_number
from lookupcache.tls import TLS_OPTIONS, TlsOptions, check_encrypted
from lookupcache_openai.answer_schema import list_schema, object_schema
from lookupcache_openai.prompt import Prompt
from lookupcache_openai.usage import LedgerLimits, Prices

SECONDS_TO_CONNECT = 30
MOST_TEXTS = 2048
_TEXTS = 256
_TASKS = ("embeddings", "chat")

OPTIONS: Mapping[str, str] = {
    "url": "The service's base URL, as in 'https://api.openai.com/v1'; '/embeddings' or '/chat/completions' is added.",
    "task": "'embeddings': the one column that is not in the prompt is a vector; 'chat': a model fills in others.",
    "model": "The model's name.",
    "prompt": "The text for a key, with key columns in braces, as in 'Classify: {text}'; '{{' and '}}' are braces.",
    "system": "chat: the system message.",
    "rows": "chat: 'one', the default: a key has one row; 'many': a list of rows, which may be empty.",
    "api-key": "The bearer token; 'env:NAME' or 'file:PATH' keep it out of the code.",
    "dimensions": "embeddings: the length of the vectors, for models that have several.",
    "batch-size": f"embeddings: texts per request, {_TEXTS} by default, at most {MOST_TEXTS}.",
    "temperature": "chat: the temperature; the model's default if it is not set.",
    "max-tokens": "chat: the maximum number of tokens of an answer; a longer one is an error.",
    "max-tokens.parameter": "The service's name for it: 'max_completion_tokens', the default, or 'max_tokens'.",
    "tokens-per-minute": "Requests wait so that they use no more tokens per minute, each worker process for itself.",
    "price.input": "Price of a million tokens of prompts.",
    "price.output": "Price of a million tokens of answers.",
    "budget": "Fails the job before more is spent by a worker process: in the currency of the prices, or in tokens.",
    "usage.path": "A file in which processes share 'budget' and 'tokens-per-minute'; it counts until it is removed.",
    "max-bytes": "The maximum number of bytes of a response; by default 67108864.",
    "connect.timeout": f"Seconds to connect; {SECONDS_TO_CONNECT} by default.",
    **TLS_OPTIONS,
    "tls.ca": "A PEM file of authorities to trust in addition to the system's, or its text, as by 'file:PATH'.",
}


@dataclass(frozen=True)
class Model:
    """A model of a service, as the options describe it."""

    url: str
    query: str
    task: str
    model: str
    prompt: Prompt
    system: str
    columns: pa.Schema
    has_many_rows: bool
    dimensions: int | None
    temperature: float | None
    max_tokens: int | None
    max_tokens_name: str
    batch_size: int
    most_bytes: int
    limits: LedgerLimits

    @classmethod
    def of(cls, schema: pa.Schema, options: Mapping[str, str]) -> Model:
        """Read the options; raises OptionError or SchemaError that names the wrong one."""
        url, query = _split_url(options.get("url", ""))
        prompt = _prompt(options, schema)
        model = cls(
            url=url,
            query=query,
            task=one_of(options, "task", _TASKS),
            model=options.get("model", ""),
            prompt=prompt,
            system=options.get("system", ""),
            columns=pa.schema([field for field in schema if field.name not in prompt.names]),
            has_many_rows=one_of(options, "rows", ("one", "many")) == "many",
            dimensions=_whole(options, "dimensions"),
            temperature=_number(options, "temperature"),
            max_tokens=_whole(options, "max-tokens"),
            max_tokens_name=one_of(options, "max-tokens.parameter", ("max_completion_tokens", "max_tokens")),
            batch_size=texts_per_request(options),
            most_bytes=whole_number(options, "max-bytes", 64 << 20),
            limits=_limits(options),
        )
        _ = seconds(options, "connect.timeout"), TlsOptions.of(options, modes=("verify-full",))
        model._check(options)
        return model

    @property
    def has_tls(self) -> bool:
        """Whether the URL is one of https."""
        return self.url.lower().startswith("https:")

    @property
    def path(self) -> str:
        """What the base URL is followed by."""
        return "/embeddings" if self.task == "embeddings" else "/chat/completions"

    @cached_property
    def answer_schema(self) -> dict[str, Any]:
        """The JSON Schema of an answer of a chat; raises SchemaError."""
        row = object_schema(self.columns)
        return list_schema(row) if self.has_many_rows else row

    def _check(self, options: Mapping[str, str]) -> None:
        own = _CHAT_OPTIONS if self.task == "embeddings" else _EMBEDDING_OPTIONS
        for name in own:
            if name in options:
                raise OptionError(f"Option {name!r} is not for task {self.task!r}.", hint="Leave it out.")
        check_encrypted(options, self.url)
        self._check_columns()
        self._check_limits(options)

    def _check_columns(self) -> None:
        if self.task == "chat" and len(self.columns):
            _ = self.answer_schema
            return
        named = ", ".join(f"{field.name} {shown_type(field.type)}" for field in self.columns)
        if not len(self.columns):
            raise SchemaError("The prompt has every column of the table.", hint="Add a column for the answer.")
        if len(self.columns) > 1 or not _is_vector(self.columns.field(0).type):
            raise SchemaError(
                f"In addition to the columns of the prompt, the table has {named}, which is not one vector.",
                hint="For 'embeddings' it is one column ARRAY<FLOAT> or ARRAY<DOUBLE>.",
            )

    def _check_limits(self, options: Mapping[str, str]) -> None:
        if self.task == "chat" and ("price.input" in options) != ("price.output" in options):
            raise OptionError("Of 'price.input' and 'price.output' only one is set.", hint="Set both.")
        if self.task == "chat" and self.limits.budget is not None and self.max_tokens is None:
            raise OptionError(
                "Option 'budget' needs 'max-tokens'.", hint="Without it, no request has an upper bound of its cost."
            )
        if self.limits.path and self.limits.budget is None and self.limits.per_minute is None:
            raise OptionError(
                "Option 'usage.path' is for 'budget' and 'tokens-per-minute'.", hint="Set one of them, or leave it out."
            )


_CHAT_OPTIONS = (
    "system", "rows", "temperature", "max-tokens", "max-tokens.parameter", "price.output",
)  # fmt: skip
_EMBEDDING_OPTIONS = ("dimensions", "batch-size")


def texts_per_request(options: Mapping[str, str]) -> int:
    """Return the maximum number of texts in a request for embeddings; raises OptionError."""
    size = whole_number(options, "batch-size", _TEXTS)
    if size > MOST_TEXTS:
        raise OptionError(f"Option 'batch-size' is {size}.", hint=f"It is {MOST_TEXTS} at most.")
    return size


def _is_vector(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) and pa.types.is_floating(type_.value_type)


def _split_url(url: str) -> tuple[str, str]:
    """Return a base URL and its query, with the question mark."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise OptionError("Option 'url' is not a URL that starts with 'http://' or 'https://' and a host.",
                          hint=OPTIONS["url"])  # fmt: skip
    if parts.username is not None or parts.fragment:
        raise OptionError("Option 'url' has a user, a password or a '#'.", hint="Set the key with 'api-key'.")
    base, mark, query = url.partition("?")
    return base.rstrip("/"), mark + query


def _prompt(options: Mapping[str, str], schema: pa.Schema) -> Prompt:
    try:
        prompt = Prompt.parse(options.get("prompt", ""))
    except ValueError as error:
        raise OptionError(f"Option 'prompt' {error}.", hint=OPTIONS["prompt"]) from None
    for name in prompt.names:
        if name not in schema.names:
            hint = nearest(name, schema.names, what="columns") + " '{{' and '}}' stand for braces."
            raise OptionError(f"Option 'prompt' names {name!r}, which is no column.", hint=hint)
    if not prompt.names:
        raise OptionError("Option 'prompt' names no column.", hint=OPTIONS["prompt"])
    return prompt


def _whole(options: Mapping[str, str], name: str) -> int | None:
    return whole_number(options, name, 1) if name in options else None


def _number(options: Mapping[str, str], name: str) -> float | None:
    if name not in options:
        return None
    try:
        value = float(options[name])
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise OptionError(f"Option {name!r} is {options[name]!r}.", hint="It is a number, 0 or more.")
    return value


def _limits(options: Mapping[str, str]) -> LedgerLimits:
    prices = _number(options, "price.input"), _number(options, "price.output")
    return LedgerLimits(
        budget=_number(options, "budget"),
        prices=None if prices == (None, None) else Prices(*(price or 0.0 for price in prices)),
        per_minute=_whole(options, "tokens-per-minute"),
        path=options.get("usage.path", ""),
    )
