"""The `http` connector: rows by key from a service that speaks JSON, one key or many in a request.

keys ─► URL, body ─► request ─► JSON ─► rows ─► further pages ─► Arrow
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from lookupcache_http_client import Client, Request, Tls, check_headers, retryable
from lookupcache_http_json import parse_json
from lookupcache_http_rows import RowReader, Rows, rows_at
from lookupcache_http_service import OPTIONS, Place, Service, family

from lookupcache.connector import Connector, LookupRequest
from lookupcache.errors import ConnectorError, PlanError, SourceError

T = TypeVar("T")

_MOST_KEYS = 1000


class HttpConnector(Connector):
    """Looks rows up in a service over HTTP that answers with JSON.

    With ``{id}`` in ``url`` it sends a GET per key, many at a time (``lookup.async.capacity``); with ``body``, a
    POST, per key too, or where ``{keys}`` stands in it, per batch of keys (``lookup.batch.max-size``, at most 1,000).
    Places in braces may name the columns that the join gives, as keys or constants; ``{columns}`` are the fields of
    the wanted columns. ``{keys}`` holds the values of the one column that option ``key`` names, or an object for
    each key where it names several.

    An answer is what the path ``rows`` leads to: a list of rows, one row, or null. A row is an object with a field
    for each column; how values become the column's types is told by `lookupcache_http_json.json_array`. A row of a
    GET per key need not repeat the key.

    | status | means |
    |---|---|
    | 200 to 299 | rows; 204 and 205 none |
    | those of ``miss`` | no rows: 404 with a request per key, none otherwise |
    | 408, 425, 429, 500 to 599 | worth a retry, when Retry-After says; as are broken connections |
    | redirects | followed on the same scheme, host and port, refused elsewhere |
    | any other | the lookup fails |

    A key that would make a segment of the path empty, ``.`` or ``..`` has no rows, and is not asked for. Several rows
    for one key come as a list. The server's certificate is always checked.

    >>> HttpConnector(pa.schema([("id", pa.int64())]), {"url": "https://api/customers/{id}", "token": "env:API_TOKEN"})
    HttpConnector({'url': 'https://api/customers/{id}', 'token': '***'})
    """

    options: ClassVar[Mapping[str, str]] = OPTIONS
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
            _ = Service.of(schema, options)
        self._forget()

    @property
    def _refers(self) -> bool:
        """Whether what is asked is not known here."""
        return any(_is_reference(self.settings.get(name, "")) for name in ("url", "body", "scan.url"))

    @property
    def secrets(self) -> Sequence[str]:  # type: ignore[override]
        """Headers and parameters may be anything; a user without a password is often a key to the house."""
        families = tuple(name for name in self.settings if name.startswith(("header.", "query.")))
        return families if self.settings.get("password") else (*families, "user")

    @property
    def batch_max_size(self) -> int | None:  # type: ignore[override]
        """A call is one request, so that it alone is retried, timed and counted."""
        return _MOST_KEYS if self.settings.get("key") else 1

    def secret_values(self) -> list[str]:
        """Return the values that must not be shown, in every spelling in which they are sent."""
        plain = super().secret_values()
        basic = base64.b64encode(f"{self.settings.get('user', '')}:{self.settings.get('password', '')}".encode())
        spelled = [basic.decode()] if "user" in self.settings else []
        # Servers read headers as Latin-1, and may say so.
        as_read = [value.encode().decode("latin-1") for value in plain]
        return [*plain, *(quote(value, safe="") for value in plain), *as_read, *spelled]

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
        settings, tls = self.settings, {name: self.settings.get(f"tls.{name}", "") for name in ("ca", "cert", "key")}
        headers = {**family(settings, "header."), **_authorization(settings)}
        check_headers(headers)
        return Client(
            headers=headers,
            query=family(settings, "query."),
            miss=self._service.miss,
            most_bytes=self._service.most_bytes,
            tls=Tls(**tls, password=settings.get("tls.key-password", "")),
            hidden=self._hidden,
        )

    def _hidden(self, text: str) -> str:
        for secret in self.secret_values():
            text = text.replace(secret, "***")
        return text

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
        for name in own.columns if len(given) > 1 else ():
            table = table.filter(pc.equal(table.column(name), own.columns[name][0]))
        return table

    async def _of_keys(self, given: _Given, reader: RowReader) -> pa.Table:
        """Ask for all keys at once."""
        asked = given.distinct(self._service.key)
        if not len(asked):
            return reader.empty
        asking = self._asking(given.only(self._service.places, 0), reader, keys=asked.keys())
        if asking is None:
            return reader.empty
        rows = await self._rows(asking)
        if not self._service.rows_per_key:
            return reader.table(rows)
        counted, origin = self._by_position(rows, len(asked))
        return reader.table(counted, asked.columns, origin)

    def _asking(self, given: _Given, reader: RowReader, keys: Sequence[Any] = ()) -> Request | None:
        """Return the request for what is given; None where no URL can name it."""
        service = self._service
        values = {name: column[0].as_py() for name, column in given.columns.items()}
        values |= {"columns": reader.columns, "keys": keys}
        url = service.url.fill(values)
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
        rows, pages = rows_at(self._service.rows, document, self._wrong), self._service.pages
        try:
            return rows, None if pages is None else pages.following(place, answer.following, document, rows)
        except ValueError as error:
            raise self._wrong(str(error), hint="Correct 'pages.next', or raise 'pages.max'.") from None

    def _reader_of(self, request: LookupRequest) -> RowReader:
        """Return the reader for a request, which is the same for every call that a join makes."""
        if self._reader is None or self._reader.request is not request:
            service = self._service
            self._reader = RowReader(request, self.schema, service.fields, service.lenient, self._wrong)
        return self._reader

    def _wrong(self, what: str, hint: str | None = None) -> SourceError:
        return SourceError(self._hidden(f"The answer of {self._service.url.text} {what}."), hint=hint)


def _authorization(options: Mapping[str, str]) -> dict[str, str]:
    if "token" in options:
        return {"Authorization": f"Bearer {options['token'].strip()}"}
    if "user" in options:
        basic = base64.b64encode(f"{options['user']}:{options.get('password', '')}".encode())
        return {"Authorization": f"Basic {basic.decode()}"}
    return {}


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_reference(value: str) -> bool:
    return value.startswith(("env:", "file:")) and not value.startswith(("env::", "file::"))


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
