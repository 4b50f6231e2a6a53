"""Lookup functions over the tests' HTTP service, as users write them: sync and async, for one key and for many."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import aiohttp


def sync_one(url: str) -> Callable[..., Any]:
    """`def f(key)`."""

    def lookup(key):
        return _request(f"{url}/rows/{key}")

    return lookup


def sync_many(url: str) -> Callable[..., Any]:
    """`def f(keys)`."""

    def lookup(keys):
        return _request(Request(f"{url}/rows", json.dumps(list(keys)).encode()))

    return lookup


def async_one(url: str) -> Callable[..., Any]:
    """`async def f(key)`."""

    async def lookup(key):
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.get(f"{url}/rows/{key}") as response,
        ):
            return await response.json()

    return lookup


def async_many(url: str) -> Callable[..., Any]:
    """`async def f(keys)`."""

    async def lookup(keys):
        return await _request_async("POST", f"{url}/rows", json=list(keys))

    return lookup


def _request(request: str | Request) -> Any:
    try:
        with urlopen(request) as response:
            return json.load(response)
    except HTTPError as error:
        error.close()
        raise


async def _request_async(method: str, url: str, **body: Any) -> Any:
    async with aiohttp.request(method, url, raise_for_status=True, **body) as response:
        return await response.json()


class SyncKept:
    """Looks up one key at a time over a connection that is open from `open` to `close`."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc

    def open(self) -> None:
        """Create a connection, which connects on first use and reconnects after a failure."""
        self.connection = HTTPConnection(self.address)

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()

    def __call__(self, key):
        """Return the rows of a key."""
        try:
            self.connection.request("GET", f"/rows/{key}")
            return json.loads(self.connection.getresponse().read())
        except OSError:
            self.connection.close()
            raise


class AsyncKept:
    """Looks up one key at a time on an event loop, in a session that is open from `open` to `close`."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> None:
        """Create the session on the loop where it is used."""
        self.session = aiohttp.ClientSession(raise_for_status=True)

    async def close(self) -> None:
        """Disconnect."""
        await self.session.close()

    async def __call__(self, key):
        """Return the rows of a key."""
        async with self.session.get(f"{self.url}/rows/{key}") as response:
            return await response.json()


KINDS = {"sync": sync_one, "async": async_one, "batch": sync_many, "async batch": async_many}
