"""The HTTP client of one service: connections, TLS, redirects, content codings, and the meaning of statuses.

request ─► redirects, on the same host only ─► `HttpAnswer`: a body, or None for a miss; or an error, with Retry-After
"""

from __future__ import annotations

import asyncio
import functools
import select
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from lookupcache.connector import is_retryable
from lookupcache.errors import ConnectorError, OptionError, SourceError
from lookupcache.http.coding import CODINGS, Decoder
from lookupcache.tls import TlsOptions

if TYPE_CHECKING:
    import ssl

    import aiohttp
    from yarl import URL

RETRYABLE = frozenset({408, 425, 429, *range(500, 600)})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WITHOUT_BODY = frozenset({204, 205})
_MOST_REDIRECTS = 5
_MOST_SHOWN = 200
_MOST_BYTES_OF_AN_ERROR = 1 << 16
_MOST_OVERHEAD = 1 << 16
_SECONDS_OF_SILENCE = 600
_SECONDS_IDLE = 60


class HttpStatusError(Exception):
    """The service answered with a status that is neither rows nor a miss.

    ``headers`` contains Retry-After, if the service sent it.
    """

    def __init__(self, text: str, status: int = 0, retry_after: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = {} if retry_after is None else {"Retry-After": retry_after}


class HttpProtocolError(Exception):
    """The response is not valid HTTP, or incomplete; a retry may succeed."""


@dataclass(frozen=True)
class HttpRequest:
    """A request; ``shown`` is its name in errors: the template, since values in the URL may be confidential."""

    url: str
    body: str | None
    shown: str

    @property
    def method(self) -> str:
        """GET, or POST if there is a body."""
        return "GET" if self.body is None else "POST"


@dataclass(frozen=True)
class HttpAnswer:
    """A response: ``body`` is None for a miss, ``following`` the URL of the header ``Link: <…>; rel=next``.

    ``following`` is a ValueError where that header cannot be read: whether there are more rows is then unknown.
    """

    url: str
    body: bytes | None
    following: str | ValueError | None = None


class Client:
    """Sends requests to one service, over persistent connections; open and use it on one event loop.

    Every request has the ``headers``, every URL the parameters ``query``. The statuses ``miss`` mean that there is no
    row. ``tls`` is None if no URL is one of https. ``hidden`` removes secrets from a text.
    """

    def __init__(
        self,
        *,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        miss: frozenset[int],
        most_bytes: int,
        tls: TlsOptions | None,
        connect_seconds: float,
        hidden: Callable[[str], str],
    ) -> None:
        own = {"Accept": "application/json", "Accept-Encoding": CODINGS, "User-Agent": "lookupcache"}
        given = {name.lower() for name in headers}
        self._headers = {name: value for name, value in own.items() if name.lower() not in given} | dict(headers)
        self._query = query
        self._miss = miss
        self._most_bytes = most_bytes
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._hidden = hidden
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Prepare the session; connections are made on demand."""
        import aiohttp

        self._session = aiohttp.ClientSession(
            # The core bounds the calls under way; a second bound here would only hide waiting from its clock.
            connector=_pool_class()(ssl=self._context(), limit=0, keepalive_timeout=_SECONDS_IDLE),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._connect_seconds, sock_read=_SECONDS_OF_SILENCE
            ),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            # Several versions of aiohttp decompress a chunk in full, however large the result is.
            auto_decompress=False,
        )

    def _context(self) -> ssl.SSLContext | bool:
        # True means the context that aiohttp has made when it was imported, which is that of the default options.
        # Reading the system's authorities takes long, and http does without.
        return True if self._tls in (None, TlsOptions()) else self._tls.context(trust_system=True)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def send(self, request: HttpRequest, most_bytes: int | None = None) -> HttpAnswer:
        """Return the response to a request; raises one of this module's errors, SourceError, or aiohttp's errors.

        ``most_bytes`` is what is left of the maximum size after earlier pages.
        """
        url, most = self._complete(request.url), self._most_bytes if most_bytes is None else most_bytes
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._send_once(request, url, most)
            if isinstance(answer, HttpAnswer):
                return answer
            url = answer
        raise HttpStatusError(f"{self._name(request)} redirects more than {_MOST_REDIRECTS} times.")

    async def _send_once(self, request: HttpRequest, url: URL, most: int) -> HttpAnswer | URL:
        """Send once; return the response, or the URL that the server redirects to."""
        import aiohttp

        if self._session is None:
            raise ConnectorError("The HTTP client is used before open().")
        kind = {} if request.body is None else {"Content-Type": "application/json"}
        body = None if request.body is None else request.body.encode()
        try:
            async with self._session.request(
                request.method, url, data=body, headers=kind, allow_redirects=False
            ) as response:
                return await self._interpret(request, url, response, most)
        except aiohttp.ClientResponseError as error:
            # The error's own text contains the full URL.
            reason = self._brief(error.message)
            raise HttpProtocolError(f"{self._name(request)} was not answered in HTTP: {reason}") from None
        except aiohttp.InvalidURL:
            raise HttpStatusError(f"{self._name(request)} failed: the URL is invalid.") from None

    async def _interpret(
        self, request: HttpRequest, url: URL, response: aiohttp.ClientResponse, most: int
    ) -> HttpAnswer | URL:
        status = response.status
        if status in self._miss or status in _WITHOUT_BODY:
            await _read(response, Decoder(""), self._most_bytes)
            return HttpAnswer(str(url), None)
        if 200 <= status < 300:
            return HttpAnswer(str(url), await self._body(request, response, most), _following(response))
        if status in _REDIRECTS and "Location" in response.headers:
            return self._redirect_target(request, url, response)
        raise self._status_error(request, response, await _text(response))

    async def _body(self, request: HttpRequest, response: aiohttp.ClientResponse, most: int) -> bytes:
        """Return the body with rows; raises SourceError, or HttpProtocolError if it is incomplete or corrupt."""
        coding = response.headers.get("Content-Encoding", "")
        try:
            decoder = Decoder(coding)
            body, over = await _read(response, decoder, most)
        except zlib.error:
            raise HttpProtocolError(f"{self._name(request)} answered with invalid {coding} data.") from None
        except ValueError:
            raise SourceError(
                f"{self._name(request)} answered in the content coding {self._brief(coding)!r}.",
                hint="Only gzip and deflate are supported and requested; does an option 'header.…' request others?",
            ) from None
        if over:
            raise self._too_large(request)
        if not decoder.complete:
            raise HttpProtocolError(f"{self._name(request)} answered with incomplete {coding} data.")
        return body

    def _redirect_target(self, request: HttpRequest, url: URL, response: aiohttp.ClientResponse) -> URL:
        target = resolve_url(url, response.headers["Location"])
        if request.body is not None and response.status not in (307, 308):
            raise self._status_error(request, response, b"a POST would become a GET there")
        if target is None:
            raise self._status_error(
                request, response, b"to another host or none; if that is right, name it in option 'url'"
            )
        return target

    def _status_error(self, request: HttpRequest, response: aiohttp.ClientResponse, body: bytes) -> HttpStatusError:
        message, reason = self._brief(body.decode(errors="replace")), self._brief(response.reason or "")
        text = f"{self._name(request)} answered {response.status} {reason}".rstrip() + (
            f": {message}" if message else "."
        )
        return HttpStatusError(text, response.status, response.headers.get("Retry-After"))

    def _brief(self, text: str) -> str:
        """Return the start of a text; secrets are hidden first, since a part of one would not be recognised."""
        shown = " ".join(self._hidden(text).split())
        return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"

    def _too_large(self, request: HttpRequest) -> SourceError:
        return SourceError(
            f"{self._name(request)} answered with more than {self._most_bytes:,} bytes, all pages together.",
            hint="Raise option 'max-bytes', or request fewer keys per call with 'lookup.batch.max-size'.",
        )

    def _name(self, request: HttpRequest) -> str:
        return self._hidden(f"{request.method} {request.shown}")

    def _complete(self, text: str) -> URL:
        from yarl import URL

        return URL(with_parameters(text, self._query), encoded=True)


@functools.cache
def _pool_class() -> type[aiohttp.TCPConnector]:
    """Return a connection pool that does not reuse a connection on which a second response has been noticed."""
    import aiohttp

    class CheckedPool(aiohttp.TCPConnector):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._known: WeakSet[Any] = WeakSet()

        async def connect(self, *args: Any, **kwargs: Any) -> Any:
            while True:
                connection = await super().connect(*args, **kwargs)
                if connection.protocol not in self._known:
                    self._known.add(connection.protocol)
                    return connection
                # aiohttp would read it as the response to the next request, which is for another key.
                if not await _has_unread_data(connection):
                    return connection
                connection.close()

    return CheckedPool


async def _has_unread_data(connection: Any) -> bool:
    """Return whether an idle connection has a response to read, or was closed; what arrives later is not noticed."""
    if not _is_idle(connection):
        return True
    if not _is_readable(connection.transport.get_extra_info("socket")):
        return False
    if connection.transport.get_extra_info("sslcontext") is None:
        return True
    # On TLS this is often a session ticket and no response: let the event loop decrypt it. The loop reads sockets
    # after it has run what was ready, so that takes two turns.
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    except BaseException:
        connection.close()
        raise
    return not _is_idle(connection)


def _is_idle(connection: Any) -> bool:
    """Return whether a connection is open and aiohttp has received nothing since the last response."""
    protocol = connection.protocol
    return protocol is not None and protocol.is_connected() and not protocol.should_close


def _is_readable(socket: Any) -> bool:
    """Return whether bytes, or the end, have arrived that the event loop has not seen yet."""
    if socket is None or socket.fileno() < 0 or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


async def _read(response: aiohttp.ClientResponse, decoder: Decoder, most: int) -> tuple[bytes, bool]:
    """Return at most ``most`` bytes of the body, and whether there is more, which is not read."""
    body, received = bytearray(), 0
    async for piece in response.content.iter_any():
        received += len(piece)
        body += decoder.decode(piece, most + 1 - len(body))
        # A compressed response may be long and decode to nothing.
        if len(body) > most or received > most + _MOST_OVERHEAD:
            return bytes(body[:most]), True
    return bytes(body), False


async def _text(response: aiohttp.ClientResponse) -> bytes:
    """Return the start of an error's body, empty if its coding is not supported."""
    try:
        body, _ = await _read(response, Decoder(response.headers.get("Content-Encoding", "")), _MOST_BYTES_OF_AN_ERROR)
    except (ValueError, zlib.error):
        return b""
    return body


def retryable(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, HttpStatusError):
        return error.status in RETRYABLE
    return is_retryable(error)


def resolve_url(base: URL | str, reference: str) -> Any:
    """Resolve a reference against a URL; return None if the result has another scheme, host or port.

    >>> resolve_url("https://api/customers?page=1", "?page=2")
    URL('https://api/customers?page=2')
    >>> resolve_url("https://api/customers", "//evil/customers"), resolve_url("https://api/", "http://api/")
    (None, None)
    """
    from yarl import URL

    base = URL(base, encoded=True) if isinstance(base, str) else base
    try:
        target = base.join(URL(reference))
        return target.with_fragment(None) if target.origin() == base.origin() and not target.user else None
    except ValueError:
        return None


def with_parameters(url: str, parameters: Mapping[str, Any]) -> str:
    """Return the URL with parameters added to its query, except those that it already has.

    >>> with_parameters("https://api/customers?page=2", {"key": "a&b", "page": "1"})
    'https://api/customers?page=2&key=a%26b'
    >>> with_parameters("https://api/customers?", {"key": "a"})
    'https://api/customers?key=a'
    """
    from urllib.parse import parse_qsl, urlencode

    if not parameters:
        return url
    _, mark, query = url.partition("?")
    there = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    added = urlencode({name: value for name, value in parameters.items() if name not in there})
    between = "?" if not mark else "&" if query and not query.endswith("&") else ""
    return f"{url}{between}{added}" if added else url


def _following(response: aiohttp.ClientResponse) -> str | ValueError | None:
    malformed = ValueError("has a header 'Link' that cannot be read")
    try:
        links = response.links
    except ValueError:
        return malformed
    if not links and response.headers.get("Link", "").strip():
        return malformed
    # A link may have several relations, as in rel="next last", in any case.
    return next((str(link["url"]) for rel, link in links.items() if "next" in rel.lower().split()), None)


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise OptionError for a header that contains line breaks, without showing its value."""
    for name, value in headers.items():
        if not name.isascii() or any(c in f"{name}{value}" for c in "\r\n\0"):
            raise OptionError(f"Option 'header.{name}': a header is one line of text.", hint="Remove the line breaks.")
