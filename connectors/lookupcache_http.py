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
from lookupcache_http_json import ABSENT, Misfit, Path, json_array, parse_json, shortened
from lookupcache_http_service import OPTIONS, Place, Service, family

from lookupcache.connector import Connector, LookupRequest
from lookupcache.errors import ConnectorError, PlanError, SourceError, nearest
from lookupcache.schema import type_name

T = TypeVar("T")
Rows = list[Any]

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
    prefers_async = True

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        if importlib.util.find_spec("aiohttp") is None:
            raise ConnectorError("The http connector needs aiohttp.", hint="pip install 'lookupcache[http]'")
        if not any(_is_reference(options.get(name, "")) for name in ("url", "body", "scan.url")):
            _ = Service.of(schema, options)
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Runner | None = None

    @property
    def secrets(self) -> Sequence[str]:  # type: ignore[override]
        """Headers and parameters may be anything; a user without a password is often a key to the house."""
        families = tuple(name for name in self.settings if name.startswith(("header.", "query.")))
        return families if self.settings.get("password") else (*families, "user")

    @property
    def batch_max_size(self) -> int | None:  # type: ignore[override]
        """A call is one request, so that it alone is retried, timed and counted."""
        return _MOST_KEYS if "{keys}" in self.settings.get("body", "") else 1

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
        self._service = Service.of(self.schema, self.settings)
        self._client = self._new_client()
        self._loop, self._runner = _running_loop(), None
        if self._loop is not None:
            return self._client.open()
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        return self._run(self._client.open())

    def close(self) -> Any:
        """Disconnect."""
        client, self._client = self._client, None
        if client is None:
            return None
        if _running_loop() is not None:
            return client.close()
        self._run(client.close())
        if self._runner is not None:
            self._runner.close()
        self._loop = None
        return None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from outside of the loop."""
        if self._loop is None:
            work.close()
            raise ConnectorError("The http connector is used before open().")
        if self._runner is not None:
            return self._runner.run(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

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

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key."""
        return self._run(self.lookup_async(request, keys))

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, by one request or one per key."""
        given = _Given.of(self.schema, request, keys)
        if self._service.batched:
            return await self._of_keys(request, given)
        parts = [await self._of_key(request, given, number) for number in range(keys.num_rows)]
        return pa.concat_tables([self._empty(request), *parts])

    async def _of_key(self, request: LookupRequest, given: _Given, number: int) -> pa.Table:
        """Ask for one key; where several are asked for one by one, a row counts for its own key alone."""
        service = self._service
        names = given.check([*service.url.names, *service.body_names], request)
        values = {name: given.columns[name][number].as_py() for name in names} | self._columns(request)
        url = service.url.fill(values)
        if url is None:
            return self._empty(request)
        body = None if service.body is None else service.body.fill(values)
        rows = await self._rows(Request(url, body, service.url.text))
        table = self._table(request, rows, {name: given.columns[name].slice(number, 1) for name in names})
        for name in names if len(given) > 1 else ():
            table = table.filter(pc.equal(table.column(name), given.columns[name][number]))
        return table

    async def _of_keys(self, request: LookupRequest, given: _Given) -> pa.Table:
        """Ask for all keys at once."""
        service = self._service
        names = given.check([*service.url.names, *service.body_names], request)
        given.check(service.key, request)
        if not len(given):
            return self._empty(request)
        first = given.distinct(service.key)
        columns = [given.columns[name].take(first).to_pylist() for name in service.key]
        keys = (
            columns[0]
            if len(columns) == 1
            else [dict(zip(service.key, key, strict=True)) for key in zip(*columns, strict=True)]
        )
        values = {name: given.columns[name][0].as_py() for name in names} | self._columns(request) | {"keys": keys}
        url = service.url.fill(values)
        if url is None or service.body is None:
            return self._empty(request)
        rows = await self._rows(Request(url, service.body.fill(values), service.url.text))
        if not service.rows_per_key:
            return self._table(request, rows, {})
        counted, origin = self._by_position(rows, len(keys))
        return self._table(request, counted, {name: given.columns[name].take(first) for name in service.key}, origin)

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
        template = self._service.scan
        if template is None:
            raise ConnectorError("'lookup.cache' = 'ALL' needs option 'scan.url'.", hint=self.options["scan.url"])
        url = template.fill(self._columns(request))
        place = None if url is None else self._service.first_place(Request(url, None, template.text))
        while place is not None:
            rows, place = self._run(self._page(place))
            yield from self._table(request, rows, {}).to_batches()

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
        if self._client is None:
            raise ConnectorError("The http connector is used before open().")
        answer = await self._client.send(place.request)
        if answer.body is None:
            return [], None
        try:
            document = parse_json(answer.body)
        except ValueError as error:
            raise self._wrong(f"is no JSON: {error}") from None
        rows, pages = self._selected(document), self._service.pages
        try:
            return rows, None if pages is None else pages.following(place, answer.following, document, rows)
        except ValueError as error:
            raise self._wrong(str(error), hint="Correct 'pages.next', or raise 'pages.max'.") from None

    def _selected(self, document: Any) -> Rows:
        path = self._service.rows
        if path.start().find(document) is ABSENT:
            told = f"; it has {shortened(document, 100)}" if isinstance(document, dict) else ""
            raise self._wrong(f"has nothing at {path.text!r}{self._hidden(told)}", hint="Correct option 'rows'.")
        nodes = path.nodes(document)
        return [row for node in nodes for row in (node if isinstance(node, list) else [node]) if node is not None]

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────

    def _columns(self, request: LookupRequest) -> dict[str, Any]:
        return {"columns": tuple(self._service.fields[name].name for name in request.fields)}

    def _empty(self, request: LookupRequest) -> pa.Table:
        return pa.schema([self.schema.field(name) for name in request.fields]).empty_table()

    def _table(
        self, request: LookupRequest, rows: Rows, given: Mapping[str, pa.Array], origin: Sequence[int] | None = None
    ) -> pa.Table:
        """Return rows as Arrow; ``given`` holds columns that they need not repeat, ``origin`` their row in these."""
        columns = {name: self._column(request, name, rows, given.get(name), origin) for name in request.fields}
        return pa.table(columns, schema=self._empty(request).schema)

    def _column(
        self,
        request: LookupRequest,
        name: str,
        rows: Rows,
        given: pa.Array | None,
        origin: Sequence[int] | None,
    ) -> pa.Array:
        field, values = self.schema.field(name), _values(self._service.fields[name], rows)
        if ABSENT in values:
            if given is not None and all(value is ABSENT for value in values):
                return given.take(pa.array([0] * len(rows) if origin is None else origin, pa.int64()))
            if name in request.key_columns or not self._service.lenient:
                raise self._without_field(name, rows[values.index(ABSENT)])
            values = [None if value is ABSENT else value for value in values]
        try:
            return json_array(values, field.type)
        except Misfit as misfit:
            raise self._wrong(
                f"holds {self._hidden(str(misfit))} for column {name!r}, which is no {type_name(field.type).upper()}",
                hint="Give the column another type in the table's schema, or another field with 'field.…'.",
            ) from None

    def _without_field(self, name: str, row: Any) -> SourceError:
        path = self._service.fields[name]
        hint = f"Name the right one with 'field.{name}', or say that it may be missing: 'missing-field' = 'null'."
        if isinstance(row, dict) and path.name not in row:
            hint = f"{nearest(path.name, row, what='fields')} {hint}"
        return self._wrong(f"has a row without {path.text!r}, which is column {name!r}", hint=hint)

    def _wrong(self, what: str, hint: str | None = None) -> SourceError:
        return SourceError(f"The answer of {self._service.url.text} {what}.", hint=hint)


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
    return value.startswith(("env:", "file:"))


# ── what the join gives ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Given:
    """The columns that a join gives values for: those of its keys, and its constants."""

    columns: Mapping[str, pa.Array]
    rows: int

    @classmethod
    def of(cls, schema: pa.Schema, request: LookupRequest, keys: pa.RecordBatch) -> _Given:
        columns = {name: keys.column(name) for name in request.key_columns}
        for name, value in request.constants.items():
            columns[name] = pa.repeat(pa.scalar(value, schema.field(name).type), keys.num_rows)
        return cls(columns, keys.num_rows)

    def __len__(self) -> int:
        return self.rows

    def check(self, names: Sequence[str], request: LookupRequest) -> list[str]:
        """Return the names that stand for columns; raises PlanError for one that the join gives no value for."""
        names = [name for name in dict.fromkeys(names) if name not in ("keys", "columns")]
        for name in names:
            if name not in self.columns:
                raise PlanError(
                    f"Table {request.table!r} is a function of {', '.join(names)}; the join gives no {name!r}.",
                    hint=f"Join by {', '.join(names)}.",
                )
        return names

    def distinct(self, names: Sequence[str]) -> pa.Array:
        """Return the first row of each distinct key, by these columns."""
        seen: dict[Any, int] = {}
        for row, key in enumerate(zip(*(self.columns[name].to_pylist() for name in names), strict=True)):
            seen.setdefault(key, row)
        return pa.array(list(seen.values()), pa.int64())


def _values(path: Path, rows: Rows) -> list[Any]:
    if len(path.steps) == 1:
        [step] = path.steps
        try:
            return [row[step] for row in rows]
        except (KeyError, TypeError, IndexError):
            pass
    return [path.find(row) for row in rows]
