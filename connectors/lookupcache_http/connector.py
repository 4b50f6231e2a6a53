"""The `http` connector: rows by key from a service that returns JSON, for one key or many keys per request.

keys ─► URL, body ─► request ─► JSON ─► rows ─► further pages ─► Arrow
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import re
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import distinct_rows, from_numpy, normalized, to_numpy
from lookupcache.connector import (
    Connector,
    LookupRequest,
    is_reference,
    is_secret,
    missing_argument_error,
    without_far_dates,
)
from lookupcache.errors import ConnectorError, SourceError, WrongRowsError
from lookupcache.formats.json_text import parse_json
from lookupcache.http.client import Client, HttpRequest, check_headers, retryable
from lookupcache.source_options import seconds
from lookupcache.tls import TlsOptions
from lookupcache_http.rows import RowReader, Rows, rows_at
from lookupcache_http.service import OPTIONS, SECONDS_TO_CONNECT, PageRequest, Service, family

T = TypeVar("T")

_MOST_KEYS = 1000
_MOST_TOGETHER = 10
_AUTHORIZATION = re.compile(r"header\..*authorization")


class HttpConnector(Connector):
    """Looks rows up in a service over HTTP that answers with JSON.

    With ``{id}`` in ``url`` it sends a GET per key, many concurrently (``lookup.async.capacity``). With ``body``, it
    sends a POST per key, or if the body contains ``{keys}``, per batch of keys (``lookup.batch.max-size``, at most
    1,000). Placeholders in braces are the names of columns that the join uses as keys or constants; ``{columns}``
    becomes the fields of the requested columns. ``{keys}`` becomes a list of the values of the column that option
    ``key`` names, or of objects if it names several. If other key columns have placeholders too, as in
    ``/{country}/people``, a batch is one request for each combination of their values, ten concurrently. They are one
    call, which is retried as a whole.

    The path ``rows`` leads to the rows in a response: a list of rows, one row, or null. A row is an object with a field
    for each column; `lookupcache.formats.json_values.json_array` says how values become the column's types. A row need
    not repeat values that are in the request. A row without any of the table's fields is an error, also with
    ``missing-field`` = ``null``: some services report errors like that.

    | status | means |
    |---|---|
    | 200 to 299 | rows; 204 and 205 none |
    | those in ``miss`` | no rows; by default 404 with a request per key, otherwise none |
    | 408, 425, 429, 500 to 599 | retried, after Retry-After; as are broken connections and invalid HTTP |
    | redirects | followed on the same scheme, host and port, refused elsewhere |
    | any other | the lookup fails |

    A key that would make a segment of the path empty, ``.`` or ``..`` has no rows and is not requested. One that
    contains the separator after it, as ``a-b`` in ``/{x}-{y}``, is an error: its URL would be another key's. Several
    rows for one key are a list. Responses may be compressed with gzip or deflate; ``max-bytes`` limits the decompressed
    size. The server's certificate is always checked.

    Connections are reused. A connection on which a second response to a request has arrived by the time of the next
    request is closed. One that arrives later cannot be recognized, since HTTP/1.1 responses have no identifier. If the
    service may send such responses, let it answer with ``Connection: close``. Or let its rows contain the key columns:
    rows of other keys are dropped.

    >>> HttpConnector(pa.schema([("id", pa.int64())]), {"url": "https://api/customers/{id}", "token": "env:API_TOKEN"})
    HttpConnector({'url': 'https://api/customers/{id}', 'token': '***'})
    """

    options: ClassVar[Mapping[str, str]] = OPTIONS
    renamed: ClassVar[Mapping[str, str]] = {"tls.cert": "tls.certificate"}
    exact_names = ("query.",)
    required = ("url",)
    _client: Client | None
    _reader: RowReader | None
    _loop: asyncio.AbstractEventLoop | None
    _runner: asyncio.Runner | None
    _opened: Service | None
    prefers_async = True

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        if importlib.util.find_spec("aiohttp") is None:
            raise ConnectorError("The http connector needs aiohttp.", hint="pip install 'lookupcache[http]'")
        if not self._refers:
            _ = Service.of(schema, self.settings)
        self._forget()

    @property
    def _refers(self) -> bool:
        """Whether the requests are not known on the driver, because an option is a reference."""
        return any(is_reference(self.settings.get(name, "")) for name in ("url", "body", "scan.url"))

    @property
    def secrets(self) -> Sequence[str]:  # type: ignore[override]
        """Headers and parameters may be credentials; a user without a password is often a token."""
        families = tuple(name for name in self.settings if name.startswith(("header.", "query.")))
        return families if self.settings.get("password") else (*families, "user")

    @property
    def batch_max_size(self) -> int | None:  # type: ignore[override]
        """The maximum number of keys in a call, which is one request, or one per combination of other columns."""
        return _MOST_KEYS if self.settings.get("key") else 1

    def secret_values(self) -> list[str]:
        """Return the values that must not be shown, including their encoding for basic authentication."""
        basic = [_basic(self.settings)] if "user" in self.settings else []
        in_body = [found[2] for found in _secrets_of_body(str(self.settings.get("body", "")))]
        return [*super().secret_values(), *basic, *in_body, *map(_unescaped, in_body)]

    def show_options(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return options as texts to show; members of the body whose names are those of secrets are hidden too."""
        shown = super().show_options(options)
        if "body" in shown:
            for found in reversed(list(_secrets_of_body(shown["body"]))):
                shown["body"] = f"{shown['body'][: found.start(2)]}***{shown['body'][found.end(2) :]}"
        return shown

    def environment(self) -> Mapping[str, Any]:
        """Return the values behind references, with the logins in headers such as ``Authorization``."""
        headers = {name.lower(): value for name, value in self.settings.items()}
        given = {name: _login_in(value) for name, value in headers.items() if _AUTHORIZATION.fullmatch(name)}
        return {**(super().environment() or {}), **{name: login for name, login in given.items() if login}}

    # ── connecting ───────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> Any:
        """Prepare to connect, on the running event loop, or without one on an own loop."""
        self._opened = Service.of(self.schema, self.settings)
        self._client = self._new_client()
        self._loop, self._runner = _running_loop(), None
        if self._loop is not None:
            return self._client.open()
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        return self._run(self._client.open())

    def close(self) -> Any:
        client, runner = self._client, self._runner
        if client is None or _running_loop() is not None:
            self._forget()
            return None if client is None else client.close()
        self._run(client.close())
        self._forget()
        if runner is not None:
            runner.close()
        return None

    def _forget(self) -> None:
        """Drop everything that was opened, and all that contains secrets."""
        self._client = self._reader = self._loop = self._runner = self._opened = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, from outside of it."""
        if self._loop is None:
            work.close()
            raise ConnectorError("The http connector is used before open().")
        if self._runner is not None:
            return self._runner.run(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def _service(self) -> Service:
        if self._opened is None:
            raise ConnectorError("The http connector is used before open().")
        return self._opened

    def _new_client(self) -> Client:
        settings = self.settings
        headers = {**family(settings, "header."), **_authorization(settings)}
        check_headers(headers)
        return Client(
            headers=headers,
            query=family(settings, "query."),
            miss=self._service.miss,
            most_bytes=self._service.most_bytes,
            tls=TlsOptions.of(settings, modes=("verify-full",)) if self._service.has_tls else None,
            connect_seconds=seconds(settings, "connect.timeout") or SECONDS_TO_CONNECT,
            hidden=self.hide,
        )

    # ── looking up ───────────────────────────────────────────────────────────────────────────────────────

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join that lacks a column of the URL, the body or the option 'key'."""
        if self._refers:
            return
        service = Service.of(self.schema, self.settings)
        given = {*request.key_columns, *request.constants}
        for name in dict.fromkeys((*(service.key if service.batched else ()), *service.placeholders)):
            if name not in given:
                raise missing_argument_error(request.table, name, service.placeholders)

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        return self._run(self.lookup_async(request, keys))

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, by one request or one per key."""
        sendable, wrong = without_far_dates(request, keys, (*self._service.key, *self._service.placeholders))
        table = await self._rows_of(_Given.of(self.schema, request, sendable), self._reader_of(request))
        if wrong:
            raise WrongRowsError.of(table, wrong)
        return table

    async def _rows_of(self, given: _Given, reader: RowReader) -> pa.Table:
        if self._service.batched:
            return await self._of_keys(given, reader)
        tables = [await self._of_key(given, reader, number) for number in range(len(given))]
        return tables[0] if len(tables) == 1 else pa.concat_tables([reader.empty, *tables])

    async def _of_key(self, given: _Given, reader: RowReader, number: int) -> pa.Table:
        """Request one key; if several are requested one by one, only rows of the own key count."""
        own = given.only(self._service.placeholders, number)
        sent = self._request(own, reader)
        if sent is None:
            return reader.empty
        table = reader.table(await self._rows(sent), own.columns)
        return own.rows_of(table) if len(given) > 1 else table

    async def _of_keys(self, given: _Given, reader: RowReader) -> pa.Table:
        """Request all keys together, or if other columns have placeholders, those with the same values of them.

        Only rows with the values of their request count.
        """
        groups = given.group_by(self._service.placeholders)
        requested = [group.distinct(self._service.key) for group in groups]
        placed = [group.only(self._service.placeholders, 0) for group in groups]
        both = zip(requested, placed, strict=True)
        tables = await _together(self._of_group(keys, place, reader) for keys, place in both)
        if len(tables) > 1:
            tables = [place.rows_of(table) for place, table in zip(placed, tables, strict=True)]
        return pa.concat_tables([reader.empty, *tables]) if len(tables) != 1 else tables[0]

    async def _of_group(self, requested: _Given, placed: _Given, reader: RowReader) -> pa.Table:
        sent = self._request(placed, reader, keys=requested.keys())
        if sent is None:
            return reader.empty
        rows = await self._rows(sent)
        if not self._service.rows_per_key:
            return reader.table(rows, placed.columns)
        counted, origin = self._by_position(rows, len(requested))
        return reader.table(counted, {**placed.repeat(len(requested)), **requested.columns}, origin)

    def _request(self, given: _Given, reader: RowReader, keys: Sequence[Any] = ()) -> HttpRequest | None:
        """Return the request for these values; None if no URL can contain them."""
        service = self._service
        values = {name: column[0].as_py() for name, column in given.columns.items()}
        values |= {"columns": reader.columns, "keys": keys}
        try:
            url = service.url.fill(values)
        except ValueError as error:
            raise SourceError(
                self.hide(f"{service.url.text} would be the URL of other values too, with {error}."),
                hint="Separate the placeholders in 'url' by a character that no value contains, such as '/' or ','.",
            ) from None
        body = None if service.body is None else service.body.fill(values)
        return None if url is None else HttpRequest(url, body, service.url.text)

    def _by_position(self, entries: Rows, keys: int) -> tuple[Rows, list[int]]:
        if len(entries) != keys:
            raise self._wrong(
                f"holds {len(entries)} entries for {keys} keys",
                hint="With 'rows-per-key' there must be one entry per key, in the order of the keys.",
            )
        lists = [entry if isinstance(entry, list) else [] if entry is None else [entry] for entry in entries]
        return [row for rows in lists for row in rows], [key for key, rows in enumerate(lists) for _ in rows]

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield all rows of ``scan.url``, page by page; constants are applied by the caller."""
        template, reader = self._service.scan, self._reader_of(request)
        if template is None:
            raise ConnectorError("'lookup.cache' = 'ALL' needs option 'scan.url'.", hint=self.options["scan.url"])
        url = template.fill({"columns": reader.columns})
        page: PageRequest | None = self._service.first_page(HttpRequest(str(url), None, template.text))
        while page is not None:
            rows, page, _ = self._run(self._page(page, self._service.most_bytes))
            yield from reader.table(rows).to_batches()

    def retryable(self, error: Exception) -> bool:
        return retryable(error)

    # ── pages ────────────────────────────────────────────────────────────────────────────────────────────

    async def _rows(self, request: HttpRequest) -> Rows:
        rows: Rows = []
        page: PageRequest | None = self._service.first_page(request)
        left = self._service.most_bytes
        while page is not None:
            more, page, size = await self._page(page, left)
            rows += more
            left -= size
        return rows

    async def _page(self, page: PageRequest, most_bytes: int) -> tuple[Rows, PageRequest | None, int]:
        """Return the rows of a page, the next page, and the bytes of this one."""
        assert self._client is not None
        answer = await self._client.send(page.request, most_bytes)
        if answer.body is None:
            return [], None, 0
        try:
            document = parse_json(answer.body)
        except ValueError as error:
            raise self._wrong(f"is not JSON: {error}") from None
        service = self._service
        rows, pages = rows_at(service.rows, document, service.lenient, self._wrong, self.hide), service.pages
        try:
            following = None if pages is None else pages.following(page, answer.following, document, rows)
        except ValueError as error:
            raise self._wrong(str(error), hint="Correct 'pages.next', or raise 'pages.max'.") from None
        return rows, following, len(answer.body)

    def _reader_of(self, request: LookupRequest) -> RowReader:
        """Return the reader for a request; all calls of a join have the same request."""
        if self._reader is None or self._reader.request is not request:
            service = self._service
            self._reader = RowReader(request, self.schema, service.fields, service.lenient, self._wrong, self.hide)
        return self._reader

    def _wrong(self, what: str, hint: str | None = None) -> SourceError:
        return SourceError(self.hide(f"The answer of {self._service.url.text} {what}."), hint=hint)


def _authorization(options: Mapping[str, str]) -> dict[str, str]:
    if "token" in options:
        return {"Authorization": f"Bearer {options['token'].strip()}"}
    if "user" in options:
        return {"Authorization": f"Basic {_basic(options)}"}
    return {}


def _basic(options: Mapping[str, str]) -> str:
    return base64.b64encode(f"{options['user']}:{options.get('password', '')}".encode()).decode()


def _login_in(header: str) -> str:
    """Return the part of a header ``Authorization`` that is no token: the user of Basic; all of an unknown scheme.

    >>> bytes.fromhex(_login_in("Basic YW5uOmt4Ng")), _login_in("Bearer kx6"), _login_in("Digest username=ann")
    (b'ann', '', 'Digest username=ann')
    """
    kind, _, value = " ".join(header.split()).partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(f"{value}{'=' * (-len(value) % 4)}", validate=True).partition(b":")[0].hex()
        except ValueError:
            return header
    return header if "=" in value.rstrip("=") else ""


async def _together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines, with limited concurrency; the first error cancels the others."""
    permits = asyncio.Semaphore(_MOST_TOGETHER)

    async def run_with_permit(one: Coroutine[Any, Any, T]) -> T:
        async with permits:
            return await one

    some = list(work)
    if len(some) == 1:
        return [await some[0]]
    tasks = [asyncio.ensure_future(run_with_permit(one)) for one in some]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in some:
            one.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# ── secrets of a body ─────────────────────────────────────────────────────────────────────────────────────


_MEMBER = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*"((?:[^"\\]|\\.)+)"')
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def _secrets_of_body(body: str) -> Iterator[re.Match[str]]:
    """Yield the members of a JSON text, name and value, whose names are those of secrets; placeholders are not."""
    for found in _MEMBER.finditer(body):
        if is_secret(_unescaped(found[1])) and not _PLACEHOLDER.fullmatch(found[2]):
            yield found


def _unescaped(text: str) -> str:
    """Return the text that the inside of a JSON string stands for: a service receives it, and may repeat it."""
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


# ── values of a call ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Given:
    """The values of a call: the columns of its keys, and the join's constants."""

    columns: Mapping[str, pa.Array]
    rows: int
    table: str

    @classmethod
    def of(cls, schema: pa.Schema, request: LookupRequest, keys: pa.RecordBatch) -> _Given:
        columns = {name: keys.column(name) for name in request.key_columns}
        for name, value in request.constants.items():
            columns[name] = pa.repeat(pa.scalar(value, schema.field(name).type), keys.num_rows)
        return cls(columns, keys.num_rows, request.table)

    def __len__(self) -> int:
        return self.rows

    def only(self, names: Sequence[str], row: int) -> _Given:
        """Return one row of some columns; raises PlanError for a column without a value."""
        columns = {name: self._column(name, names) for name in names}
        if self.rows > 1:
            columns = {name: column.slice(row, 1) for name, column in columns.items()}
        return _Given(columns, 1, self.table)

    def group_by(self, names: Sequence[str]) -> list[_Given]:
        """Return the rows grouped by the values of some columns; raises PlanError for a column without a value."""
        columns = {name: self._column(name, names) for name in names}
        group = np.zeros(self.rows, np.int64)
        for column in columns.values():
            codes = column.dictionary_encode()
            group = np.unique(group * len(codes.dictionary) + to_numpy(codes.indices), return_inverse=True)[1]
        if not group.any():
            return [self] if self.rows else []
        order = np.argsort(group, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
        return [self._take(pa.array(part)) for part in parts]

    def repeat(self, rows: int) -> dict[str, pa.Array]:
        """Return the columns of the only row, repeated."""
        return {name: pa.repeat(column[0], rows) for name, column in self.columns.items()}

    def rows_of(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table with the values of the only row; NaN equals NaN."""
        for name, column in self.columns.items():
            if name in table.column_names:
                found, value = table.column(name), column[0]
                nan = pa.types.is_floating(column.type) and bool(pc.is_nan(value).as_py())
                table = table.filter(pc.is_nan(found) if nan else pc.equal(found, value))
        return table

    def _take(self, rows: pa.Array) -> _Given:
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return _Given(columns, len(rows), self.table)

    def distinct(self, names: Sequence[str]) -> _Given:
        """Return the distinct values of some columns; raises PlanError for a column without a value."""
        columns = {name: self._column(name, names) for name in names}
        first = distinct_rows([normalized(column, column.type) for column in columns.values()]).first
        rows = from_numpy(first)
        return _Given({name: column.take(rows) for name, column in columns.items()}, len(first), self.table)

    def keys(self) -> list[Any]:
        """Return the rows as in a request's list: values of one column, or objects of several."""
        if len(self.columns) == 1:
            return next(iter(self.columns.values())).to_pylist()
        return pa.table(dict(self.columns)).to_pylist()

    def _column(self, name: str, names: Sequence[str]) -> pa.Array:
        if name not in self.columns:
            raise missing_argument_error(self.table, name, names)
        return self.columns[name]
