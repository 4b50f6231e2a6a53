"""The `openai` connector: a language model as a table, by the protocol of OpenAI, which many services speak.

keys ─► prompts ─► reserve tokens ─► request ─► check ─► rows, and an error for each key without a proper answer
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache.connector import Connector, LookupRequest, is_reference
from lookupcache.errors import ConnectorError, OptionError, PlanError, SourceError, WrongRowsError
from lookupcache.formats.json_text import json_text, shorten
from lookupcache.http.client import Client, HttpRequest, HttpStatusError, retryable
from lookupcache.schema import to_ddl
from lookupcache.source_options import seconds
from lookupcache.tls import TlsOptions
from lookupcache_openai.answers import AnswerError, columns_of, content_of, parse_document, vectors
from lookupcache_openai.options import OPTIONS, SECONDS_TO_CONNECT, Model, texts_per_request
from lookupcache_openai.usage import Ledger, Tokens, expected_tokens

_TOKENS_AROUND_A_TEXT = 16
"""An upper bound of the tokens that a service adds to each text: roles, beginnings and ends."""

Answer = Mapping[str, pa.Array] | AnswerError


class OpenAIConnector(Connector):
    """Looks up a model's answer for a key: a vector (``task`` = ``embeddings``) or columns (``chat``).

    The columns in ``prompt`` are the key; the others are the model's answer. For embeddings that is one vector, and a
    request is for up to ``batch-size`` texts. For a chat the other columns become a JSON Schema that the service must
    follow, and a request is for one key. ``lookup.async.capacity`` requests run concurrently. All columns are requested
    whichever a query reads, so that the answer does not depend on the query.

    | an answer that is | means |
    |---|---|
    | a refusal, cut off, not JSON, not of the schema, without the text's index | an error of the key, not retried |
    | 408, 425, 429, 500 to 599, a broken connection, a part of a document | retried, after Retry-After |
    | any other status, such as 401; 429 with ``insufficient_quota`` | the lookup fails, without a retry |
    | a redirect | followed on the same scheme, host and port, refused elsewhere |

    An error is never a miss, and never cached. Counts in `LookupMetrics.source_counts`: ``prompt_tokens``,
    ``completion_tokens``, ``price``, ``requests_without_usage``, ``waited_seconds`` for ``tokens-per-minute``.

    >>> schema = pa.schema([("text", pa.string()), ("v", pa.list_(pa.float32()))])
    >>> options = {"url": "http://h/v1", "task": "embeddings", "model": "m", "prompt": "{text}", "api-key": "sk-1"}
    >>> OpenAIConnector(schema, options)
    OpenAIConnector({'url': 'http://h/v1', 'task': 'embeddings', 'model': 'm', 'prompt': '{text}', 'api-key': '***'})
    """

    one_row_per_key: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str]] = OPTIONS
    required = ("url", "task", "model", "prompt")
    secrets = ("api-key",)
    prefers_async = True
    _client: Client | None = None
    _opened: Model | None = None
    _ledger: Ledger | None = None

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        if importlib.util.find_spec("aiohttp") is None:
            raise ConnectorError("The openai connector needs aiohttp.", hint="pip install 'lookupcache[openai]'")
        if not self._refers:
            _ = Model.of(schema, self.settings)

    @property
    def _refers(self) -> bool:
        """Whether the options cannot be checked on the driver, because one of them is a reference."""
        unchecked = ("api-key", "model", "system", "tls.")
        return any(is_reference(value) for name, value in self.settings.items() if not name.startswith(unchecked))

    @property
    def batch_max_size(self) -> int | None:  # type: ignore[override]
        """The maximum number of keys in a call, which is one request."""
        if self.settings.get("task") != "embeddings":
            return 1
        return texts_per_request({} if is_reference(self.settings.get("batch-size", "")) else self.settings)

    def identity(self) -> Mapping[str, Any]:
        """Return the options and all columns: the model is asked for each of them, which changes its answers."""
        return {**self.settings, "columns": to_ddl(self.schema)}

    # ── connecting ───────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Prepare to connect, on the running event loop."""
        self._opened = model = Model.of(self.schema, self.settings)
        self._ledger = Ledger.of_process(model.limits, (model.url, model.model, self.settings.get("api-key", "")))
        self._client = Client(
            headers=_authorization(self.settings),
            query={},
            miss=frozenset(),
            most_bytes=model.most_bytes,
            tls=TlsOptions.of(self.settings, modes=("verify-full",)) if model.has_tls else None,
            connect_seconds=seconds(self.settings, "connect.timeout") or SECONDS_TO_CONNECT,
            hidden=self.hide,
        )
        await self._client.open()

    async def close(self) -> None:
        client, self._client = self._client, None
        self._opened = self._ledger = None
        if client is not None:
            await client.close()

    @property
    def _model(self) -> Model:
        if self._opened is None:
            raise ConnectorError("The openai connector is used before open().")
        return self._opened

    def retryable(self, error: Exception) -> bool:
        # Some services answer 429 when an account has no money left, which waiting does not change.
        return retryable(error) and "insufficient_quota" not in str(error)

    # ── looking up ───────────────────────────────────────────────────────────────────────────────────────

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join that lacks a column of the prompt."""
        if not self._refers:
            _check_columns(request, Model.of(self.schema, self.settings))

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return the model's answer for each key; raises WrongRowsError for keys without a proper answer."""
        _check_columns(request, self._model)
        prompts = self._prompts(request, keys)
        texts = list(dict.fromkeys(prompts))
        of_text = dict(zip(texts, await self._answers(texts), strict=True))
        answers = [of_text[prompt] for prompt in prompts]
        table = self._table(request, keys, answers)
        wrong = {
            key: self._error_of_key(request, keys, key, answer)
            for key, answer in enumerate(answers)
            if isinstance(answer, AnswerError)
        }
        if wrong:
            raise WrongRowsError.of(table, wrong)
        return table

    def _prompts(self, request: LookupRequest, keys: pa.RecordBatch) -> list[str]:
        prompt = self._model.prompt
        columns = [
            keys.column(name).to_pylist() if name in request.key_columns else [request.constants[name]] * keys.num_rows
            for name in prompt.names
        ]
        return [prompt.fill(dict(zip(prompt.names, row, strict=True))) for row in zip(*columns, strict=True)]

    async def _answers(self, texts: Sequence[str]) -> list[Answer]:
        if self._model.task == "embeddings":
            return await self._embeddings(texts)
        return [await self._chat(text) for text in texts]

    def _table(self, request: LookupRequest, keys: pa.RecordBatch, answers: Sequence[Answer]) -> pa.Table:
        """Return the rows of all proper answers; columns of the prompt are those of their key."""
        found = [(key, answer) for key, answer in enumerate(answers) if not isinstance(answer, AnswerError)]
        sizes = [len(next(iter(answer.values()))) for _, answer in found]
        origin = pa.array([key for (key, _), size in zip(found, sizes, strict=True) for _ in range(size)], pa.int64())
        columns = []
        for name in request.fields:
            type_ = self.schema.field(name).type
            if name in self._model.columns.names:
                columns.append(pa.chunked_array([answer[name] for _, answer in found], type_))
            elif name in request.key_columns:
                columns.append(pa.chunked_array([keys.column(name).take(origin)]))
            else:
                columns.append(pa.chunked_array([pa.repeat(pa.scalar(request.constants[name], type_), len(origin))]))
        return pa.Table.from_arrays(columns, names=list(request.fields))

    def _error_of_key(
        self, request: LookupRequest, keys: pa.RecordBatch, position: int, error: AnswerError
    ) -> SourceError:
        values = {name: keys.column(name)[position].as_py() for name in request.key_columns}
        key = ", ".join(f"{name} = {shorten(value)}" for name, value in values.items())
        fact = f"Table {request.table!r}, key {key}: the answer of model {self._model.model!r} {error}."
        return SourceError(self.hide(fact), hint=error.hint)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────

    async def _embeddings(self, texts: Sequence[str]) -> list[Answer]:
        model, type_ = self._model, self._model.columns.field(0).type
        # Services refuse a request with an empty text altogether, with the other texts in it.
        sent = [text for text in texts if text]
        found = iter(await self._vectors(sent) if sent else [])
        answers = [next(found) if text else AnswerError("was not requested, as its text is empty") for text in texts]
        name = model.columns.names[0]
        return [answer if isinstance(answer, AnswerError) else {name: pa.array([answer], type_)} for answer in answers]

    async def _vectors(self, texts: Sequence[str]) -> list[Any]:
        model = self._model
        body: dict[str, Any] = {"model": model.model, "input": list(texts), "encoding_format": "float"}
        if model.dimensions is not None:
            body["dimensions"] = model.dimensions
        document = await self._send(body, list(texts), 0)
        try:
            return vectors(document, len(texts), model.columns.field(0).type, model.dimensions)
        except AnswerError as error:
            raise SourceError(self.hide(f"The answer of {self._shown} {error}."), hint=error.hint) from None

    async def _chat(self, text: str) -> Answer:
        model = self._model
        schema = {"name": "row", "strict": True, "schema": model.answer_schema}
        system = [{"role": "system", "content": model.system}] if model.system else []
        body: dict[str, Any] = {
            "model": model.model,
            "messages": [*system, {"role": "user", "content": text}],
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
        if model.temperature is not None:
            body["temperature"] = model.temperature
        if model.max_tokens is not None:
            body[model.max_tokens_name] = model.max_tokens
        document = await self._send(body, [model.system, text, json_text(schema)], model.max_tokens or 0)
        try:
            return columns_of(content_of(document), model.answer_schema, model.columns, model.has_many_rows)
        except AnswerError as error:
            return error

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────

    async def _send(self, body: Mapping[str, Any], texts: list[str], completion: int) -> dict[str, Any]:
        """Send a request within the limits; count its usage.

        No tokenizer makes more tokens than a text has bytes. With the tokens that the service adds, these are the upper
        bound.
        """
        import aiohttp

        assert self._ledger is not None
        ledger, expected = self._ledger, expected_tokens(texts, completion)
        bound = Tokens(sum(len(text.encode()) + _TOKENS_AROUND_A_TEXT for text in texts), completion)
        wait, used = await ledger.reserve(bound, expected), Tokens()
        try:
            if wait > 0:
                self.add_count("waited_seconds", wait)
                await asyncio.sleep(wait)
            # If the answer is lost, the service may have charged for it.
            used = bound
            document = await self._document(body)
            used = self._count(Tokens.reported_in(document), bound)
            return document
        except (HttpStatusError, aiohttp.ClientConnectorError):
            used = Tokens()
            raise
        finally:
            ledger.settle(bound, expected, used)

    async def _document(self, body: Mapping[str, Any]) -> dict[str, Any]:
        assert self._client is not None
        model = self._model
        request = HttpRequest(f"{model.url}{model.path}{model.query}", json_text(body), self._shown)
        return parse_document((await self._client.send(request)).body, self._shown)

    @property
    def _shown(self) -> str:
        return f"{self._model.url}{self._model.path}"

    def _count(self, reported: Tokens | None, bound: Tokens) -> Tokens:
        """Count the tokens that a response reports; return them, or if it does not report them, the upper bound."""
        if reported is None:
            self.add_count("requests_without_usage")
            return bound
        self.add_count("prompt_tokens", reported.prompt)
        self.add_count("completion_tokens", reported.completion)
        if self._model.limits.prices is not None:
            self.add_count("price", self._model.limits.prices.of(reported))
        return reported


def _authorization(options: Mapping[str, str]) -> dict[str, str]:
    key = options.get("api-key", "").strip()
    if not key.isascii() or any(letter in key for letter in "\r\n\0"):
        raise OptionError("Option 'api-key' is not one line of ASCII.", hint="Does the file contain something else?")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _check_columns(request: LookupRequest, model: Model) -> None:
    given = {*request.key_columns, *request.constants}
    for name in model.prompt.names:
        if name not in given:
            names = ", ".join(model.prompt.names)
            raise PlanError(
                f"The prompt of table {request.table!r} is made of {names}; the join has no {name!r}.",
                hint=f"Join by {names}.",
            )
