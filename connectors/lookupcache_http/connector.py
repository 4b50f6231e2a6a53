"""The `http` connector: rows by key from a service that speaks JSON, one key or many in a request.

keys ─► URL, body ─► request ─► JSON ─► rows ─► further pages ─► Arrow
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import Connector, LookupRequest, hidden, is_reference
from lookupcache.errors import ConnectorError, PlanError, SourceError
from lookupcache.formats.json_text import parse_json
from lookupcache.source_options import seconds
from lookupcache.tls import TlsOptions
from lookupcache_http.client import Client, Request, check_headers, retryable
from lookupcache_http.rows import RowReader, Rows, rows_at
from lookupcache_http.service import OPTIONS, SECONDS_TO_CONNECT, Place, Service, family

T = TypeVar("T")

_MOST_KEYS = 1000
_MOST_TOGETHER = 10


class HttpConnector(Connector):
    """Looks rows up in a service over HTTP that answers with JSON.

    With ``{id}`` in ``url`` it sends a GET per key, many at a time (``lookup.async.capacity``); with ``body``, a
    POST, per key too, or where ``{keys}`` stands in it, per batch of keys (``lookup.batch.max-size``, at most 1,000).
    Places in braces may name the columns that the join gives, as keys or constants; ``{columns}`` are the fields of
    the wanted columns. ``{keys}`` holds the values of the one column that option ``key`` names, or an object for
    each key where it names several. Where other key columns have places too, as in ``/{country}/people``, a batch is
    one request for each combination of their values, ten at a time; these are one call, which is retried as a whole.

    An answer is what the path ``rows`` leads to: a list of rows, one row, or null. A row is an object with a field
    for each column; `lookupcache.formats.json_values.json_array` says how values become the column's types. A row need
    not repeat values that are in the request. A row without any of the table's fields is an error, whatever
    ``missing-field`` says: some services report errors like that.

    | status | means |
    |---|---|
    | 200 to 299 | rows; 204 and 205 none |
    | those of ``miss`` | no rows: 404 with a request per key, none otherwise |
    | 408, 425, 429, 500 to 599 | worth a retry, when Retry-After says; as are broken connections and what is no HTTP |
    | redirects | followed on the same scheme, host and port, refused elsewhere |
    | any other | the lookup fails |

    A key that would make a segment of the path empty, ``.`` or ``..`` has no rows, and is not asked for. One that holds
    the separator behind it, as ``a-b`` in ``/{x}-{y}``, is an error: its URL would be another key's. Several rows for
    one key come as a list. Answers may be compressed, by gzip or deflate; ``max-bytes`` bounds what they become. The
    server's certificate is always checked.

    >>> HttpConnector(pa.schema([("id", pa.int64())]), {"url": "https://api/customers/{id}", "token": "env:API_TOKEN"})
    HttpConnector({'url': 'https://api/customers/{id}', 'token': '***'})
    """

    options: ClassVar[Mapping[str, str]] = OPTIONS
    renamed: ClassVar[Mapping[str, str]] = {"tls.cert": "tls.certificate"}
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
        """Whether what is asked is not known here."""
        return any(is_reference(self.settings.get(name, "")) for name in ("url", "body", "scan.url"))

    @property
    def secrets(self) -> Sequence[str]:  # type: ignore[override]
        """Headers and parameters may be anything; a user without a password is often a key to the house."""
        families = tuple(name for name in self.settings if name.startswith(("header.", "query.")))
        return families if self.settings.get("password") else (*families, "user")

    @property
    def batch_max_size(self) -> int | None:  # type: ignore[override]
        """A call is one request, or one per combination of other columns: so it is retried, timed and counted."""
        return _MOST_KEYS if self.settings.get("key") else 1

    def secret_values(self) -> list[str]:
        """Return the values that must not be shown, with what basic authentication makes of them."""
        return [*super().secret_values(), *([_basic(self.settings)] if "user" in self.settings else [])]

    # ── connecting ───────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> Any:
        """Make ready to connect, on the running event loop, or without one on a loop of this connector's own."""
        self._opened = Service.of(self.schema, self.settings)
        self._client = self._new_client()
        self._loop, self._runner = _running_loop(), None
        if self._loop is not None:
            return self._client.open()
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        return self._run(self._client.open())

    def close(self) -> Any:
        """Disconnect."""
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
        """Hold nothing that was opened, nor what secrets went into."""
        self._client = self._reader = self._loop = self._runner = self._opened = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from outside of the loop."""
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
            tls=TlsOptions.of(settings, modes=("verify-full",)),
            connect_seconds=seconds(settings, "connect.timeout") or SECONDS_TO_CONNECT,
            hidden=self._hidden,
        )

    def _hidden(self, text: str) -> str:
        return hidden(text, self.secret_values())

    # ── looking up ───────────────────────────────────────────────────────────────────────────────────────

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join that gives less than the URL, the body and the option 'key' name."""
        if self._refers:
            return
        service = Service.of(self.schema, self.settings)
        given = {*request.key_columns, *request.constants}
        for name in dict.fromkeys((*(service.key if service.batched else ()), *service.places)):
            if name not in given:
                raise _not_given(request.table, name, service.places)

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key."""
        return self._run(self.lookup_async(request, keys))

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, by one request or one per key."""
        given, reader = _Given.of(self.schema, request, keys), self._reader_of(request)
        if self._service.batched:
            return await self._of_keys(given, reader)
        tables = [await self._of_key(given, reader, number) for number in range(len(given))]
        return tables[0] if len(tables) == 1 else pa.concat_tables([reader.empty, *tables])

    async def _of_key(self, given: _Given, reader: RowReader, number: int) -> pa.Table:
        """Ask for one key; where several are asked for one by one, a row counts for its own key alone."""
        own = given.only(self._service.places, number)
        asking = self._asking(own, reader)
        if asking is None:
            return reader.empty
        table = reader.table(await self._rows(asking), own.columns)
        return own.rows_of(table) if len(given) > 1 else table

    async def _of_keys(self, given: _Given, reader: RowReader) -> pa.Table:
        """Ask for all keys at once, or where columns have places beside ``{keys}``, for those of the same values there.

        A row counts for the values that it was asked for with.
        """
        groups = given.grouped(self._service.places)
        asked = [group.distinct(self._service.key) for group in groups]
        placed = [group.only(self._service.places, 0) for group in groups]
        both = zip(asked, placed, strict=True)
        tables = await _together(self._of_group(keys, place, reader) for keys, place in both)
        if len(tables) > 1:
            tables = [place.rows_of(table) for place, table in zip(placed, tables, strict=True)]
        return pa.concat_tables([reader.empty, *tables]) if len(tables) != 1 else tables[0]

    async def _of_group(self, asked: _Given, placed: _Given, reader: RowReader) -> pa.Table:
        asking = self._asking(placed, reader, keys=asked.keys())
        if asking is None:
            return reader.empty
        rows = await self._rows(asking)
        if not self._service.rows_per_key:
            return reader.table(rows, placed.columns)
        counted, origin = self._by_position(rows, len(asked))
        return reader.table(counted, {**placed.repeated(len(asked)), **asked.columns}, origin)

    def _asking(self, given: _Given, reader: RowReader, keys: Sequence[Any] = ()) -> Request | None:
        """Return the request for what is given; None where no URL can name it."""
        service = self._service
        values = {name: column[0].as_py() for name, column in given.columns.items()}
        values |= {"columns": reader.columns, "keys": keys}
        try:
            url = service.url.fill(values)
        except ValueError as error:
            raise SourceError(
                self._hidden(f"{service.url.text} would be the URL of other values too, with {error}."),
                hint="Put what no value can hold between the places in 'url', as '/' or ','.",
            ) from None
        body = None if service.body is None else service.body.fill(values)
        return None if url is None else Request(url, body, service.url.text)

    def _by_position(self, entries: Rows, keys: int) -> tuple[Rows, list[int]]:
        if len(entries) != keys:
            raise self._wrong(
                f"holds {len(entries)} entries for {keys} keys",
                hint="With 'rows-per-key' there must be one entry per key, in the order of the keys.",
            )
        lists = [entry if isinstance(entry, list) else [] if entry is None else [entry] for entry in entries]
        return [row for rows in lists for row in rows], [key for key, rows in enumerate(lists) for _ in rows]

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield all rows of ``scan.url``, page by page; constants are left to whoever asks."""
        template, reader = self._service.scan, self._reader_of(request)
        if template is None:
            raise ConnectorError("'lookup.cache' = 'ALL' needs option 'scan.url'.", hint=self.options["scan.url"])
        url = template.fill({"columns": reader.columns})
        place: Place | None = self._service.first_place(Request(str(url), None, template.text))
        while place is not None:
            rows, place = self._run(self._page(place))
            yield from reader.table(rows).to_batches()

    def retryable(self, error: Exception) -> bool:
        """Return whether the status or the failed connection may be better next time."""
        return retryable(error)

    # ── pages ────────────────────────────────────────────────────────────────────────────────────────────

    async def _rows(self, request: Request) -> Rows:
        rows: Rows = []
        place: Place | None = self._service.first_place(request)
        while place is not None:
            page, place = await self._page(place)
            rows += page
        return rows

    async def _page(self, place: Place) -> tuple[Rows, Place | None]:
        """Return the rows of a page, and the place of the next."""
        assert self._client is not None
        answer = await self._client.send(place.request)
        if answer.body is None:
            return [], None
        try:
            document = parse_json(answer.body)
        except ValueError as error:
            raise self._wrong(f"is no JSON: {error}") from None
        rows, pages = rows_at(self._service.rows, document, self._wrong, self._hidden), self._service.pages
        try:
            return rows, None if pages is None else pages.following(place, answer.following, document, rows)
        except ValueError as error:
            raise self._wrong(str(error), hint="Correct 'pages.next', or raise 'pages.max'.") from None

    def _reader_of(self, request: LookupRequest) -> RowReader:
        """Return the reader for a request, which is the same for every call that a join makes."""
        if self._reader is None or self._reader.request is not request:
            service = self._service
            self._reader = RowReader(request, self.schema, service.fields, service.lenient, self._wrong, self._hidden)
        return self._reader

    def _wrong(self, what: str, hint: str | None = None) -> SourceError:
        return SourceError(self._hidden(f"The answer of {self._service.url.text} {what}."), hint=hint)


def _authorization(options: Mapping[str, str]) -> dict[str, str]:
    if "token" in options:
        return {"Authorization": f"Bearer {options['token'].strip()}"}
    if "user" in options:
        return {"Authorization": f"Basic {_basic(options)}"}
    return {}


def _basic(options: Mapping[str, str]) -> str:
    return base64.b64encode(f"{options['user']}:{options.get('password', '')}".encode()).decode()


async def _together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines, some of which run at a time; the first error ends the others."""
    places = asyncio.Semaphore(_MOST_TOGETHER)

    async def placed(one: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await one

    some = list(work)
    if len(some) == 1:
        return [await some[0]]
    tasks = [asyncio.ensure_future(placed(one)) for one in some]
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


# ── what the join gives ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Given:
    """The columns that a join gives values for: those of its keys, and its constants."""

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
        """Return one row of some columns; raises PlanError for one that the join gives no value for."""
        columns = {name: self._column(name, names) for name in names}
        if self.rows > 1:
            columns = {name: column.slice(row, 1) for name, column in columns.items()}
        return _Given(columns, 1, self.table)

    def grouped(self, names: Sequence[str]) -> list[_Given]:
        """Return the rows by combination of the values of some columns; raises PlanError too."""
        columns = {name: self._column(name, names) for name in names}
        group = np.zeros(self.rows, np.int64)
        for column in columns.values():
            codes = column.dictionary_encode()
            group = np.unique(group * len(codes.dictionary) + codes.indices.to_numpy(), return_inverse=True)[1]
        if not group.any():
            return [self] if self.rows else []
        order = np.argsort(group, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
        return [self._taken(pa.array(part)) for part in parts]

    def repeated(self, rows: int) -> dict[str, pa.Array]:
        """Return the columns of a single row so many times."""
        return {name: pa.repeat(column[0], rows) for name, column in self.columns.items()}

    def rows_of(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table with the values of this single row, NaN being one."""
        for name, column in self.columns.items():
            if name in table.column_names:
                found, value = table.column(name), column[0]
                nan = pa.types.is_floating(column.type) and bool(pc.is_nan(value).as_py())
                table = table.filter(pc.is_nan(found) if nan else pc.equal(found, value))
        return table

    def _taken(self, rows: pa.Array) -> _Given:
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return _Given(columns, len(rows), self.table)

    def distinct(self, names: Sequence[str]) -> _Given:
        """Return some columns, each combination of their values once; raises PlanError too."""
        columns = [self._column(name, names) for name in names]
        first: dict[Any, int] = {}
        for row, key in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
            first.setdefault(key, row)
        rows = pa.array(list(first.values()), pa.int64())
        taken = {name: column.take(rows) for name, column in zip(names, columns, strict=True)}
        return _Given(taken, len(first), self.table)

    def keys(self) -> list[Any]:
        """Return the rows as a request lists them: bare values of one column, objects of several."""
        if len(self.columns) == 1:
            return next(iter(self.columns.values())).to_pylist()
        return pa.table(dict(self.columns)).to_pylist()

    def _column(self, name: str, names: Sequence[str]) -> pa.Array:
        if name not in self.columns:
            raise _not_given(self.table, name, names)
        return self.columns[name]


def _not_given(table: str, name: str, names: Sequence[str]) -> PlanError:
    return PlanError(
        f"Table {table!r} is a function of {', '.join(names)}; the join gives no {name!r}.",
        hint=f"Join by {', '.join(names)}.",
    )
