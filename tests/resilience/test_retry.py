"""Which errors are worth a retry, what wait a server asks for, and how long the waits are."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookupcache.config import LookupConfig
from lookupcache.errors import LookupFailedError, OptionError, SourceError
from lookupcache.resilience.retry import RetryPolicy, retry_after_of


class Busy(HTTPServer):
    """Asks callers to come back after ``wait``."""

    wait = ""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(429)
        self.send_header("Retry-After", self.server.wait)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def busy() -> Iterator[Busy]:
    """Return a server that is too busy."""
    with Busy(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def refused_by_urllib(url: str) -> Exception:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url)
    refusal.value.close()
    return refusal.value


def refused_by_aiohttp(url: str) -> Exception:
    async def get() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            await session.get(url)

    with pytest.raises(aiohttp.ClientResponseError) as refusal:
        asyncio.run(get())
    return refusal.value


@pytest.mark.parametrize("refused_by", [refused_by_urllib, refused_by_aiohttp])
@pytest.mark.parametrize("ahead", [30, -30], ids=["ahead", "past"])
def test_a_servers_wish_is_heard(busy: Busy, refused_by: Any, ahead: int) -> None:
    url = f"http://127.0.0.1:{busy.server_port}/"
    busy.wait = "2.5"
    assert retry_after_of(refused_by(url)) == 2.5
    busy.wait = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
    assert retry_after_of(refused_by(url)) == pytest.approx(max(ahead, 0), abs=5)


HINTS = {
    "seconds": ({"retry_after": 3}, 3.0),
    "a timedelta": ({"retry_after": timedelta(minutes=1)}, 60.0),
    "seconds below zero": ({"retry_after": -1}, 0.0),
    "no wish": ({"retry_after": None}, None),
    "a flag": ({"retry_after": True}, None),
    "not finite": ({"retry_after": float("inf")}, None),
    "a header of the response": ({"response": SimpleNamespace(headers={"Retry-After": "7"})}, 7.0),
    "a header in lower case": ({"headers": {"retry-after": "7"}}, 7.0),
    "a header that is no time": ({"headers": {"Retry-After": "soon"}}, None),
    "a date with an absurd zone": (
        {"headers": {"Retry-After": "Fri, 31 Dec 2026 23:59:59 +99999999999999"}},
        None,
    ),
    "a date with an absurd year": (
        {"headers": {"Retry-After": "Fri, 31 Dec 10000000000000000000000 23:59:59 GMT"}},
        None,
    ),
    "a date without a zone": ({"headers": {"Retry-After": "Wed, 21 Oct 2015 07:28:00 -0000"}}, 0.0),
    "other headers": ({"headers": {"Age": "7"}}, None),
    "a date at the end of time": (
        {"headers": {"Retry-After": "Fri, 31 Dec 9999 23:59:59 -2359"}},
        pytest.approx(2.5e11, rel=0.1),
    ),
    "a whole number beyond all floats": ({"retry_after": 10**400}, None),
    "headers of another kind": ({"headers": [("Retry-After", "7")]}, None),
    "a response without headers": ({"response": {"Error": {}}}, None),
    "the attribute before the header": ({"retry_after": 3, "headers": {"Retry-After": "7"}}, 3.0),
}


@pytest.mark.parametrize(("attributes", "seconds"), HINTS.values(), ids=HINTS)
def test_a_hint_is_found_or_is_none(attributes: dict[str, Any], seconds: float | None) -> None:
    error = OSError("busy")
    for name, value in attributes.items():
        setattr(error, name, value)
    assert retry_after_of(error) == seconds


@given(
    st.text()
    | st.builds(
        "{}, {} Jan {} {}:{}:{} {}".format,
        st.sampled_from(["Mon", ""]),
        *[st.integers(-1, 10**6)] * 5,
        st.integers(-(10**15), 10**15) | st.text(max_size=5),
    )
)
def test_no_hint_is_a_separate_error(text: str) -> None:
    error = OSError("busy")
    error.headers = {"Retry-After": text}  # type: ignore[attr-defined]
    wait = retry_after_of(error)
    assert wait is None or wait >= 0


class Throttled(OSError):
    """An error class of the test's own."""


def everything(_: Exception) -> bool:
    return True


WORTH = [
    # lookup.retry.on, error, worth it
    (None, Throttled(), True),
    (None, SourceError("short"), True),
    (None, OptionError("wrong"), False),
    (None, KeyboardInterrupt(), False),
    ("Throttled", Throttled(), True),
    ("Throttled", OSError(), False),
    ("KeyError, OSError", Throttled(), True),
    ("test_retry.Throttled", Throttled(), True),
    ("other.Throttled", Throttled(), False),
    ("aiohttp.ClientError", aiohttp.ClientPayloadError(), True),
    ("asyncio.TimeoutError", TimeoutError(), True),
    ("Exception", KeyError(), True),
    ("Exception", OptionError("wrong"), False),
    ("ValueError", OptionError("wrong"), False),
    ("OptionError", OptionError("wrong"), True),
    ("lookupcache.OptionError", OptionError("wrong"), True),
    ("LookupFailedError", LookupFailedError("down"), True),
    ("*", KeyError(), True),
    ("*", LookupFailedError("down"), True),
    ("*", OptionError("wrong"), False),
    ("*", asyncio.CancelledError(), False),
    ("BaseException", asyncio.CancelledError(), False),
]


@pytest.mark.parametrize(("names", "error", "should_retry"), WORTH, ids=lambda case: repr(case))
def test_an_error_is_worth_a_retry(names: str | None, error: BaseException, should_retry: bool) -> None:
    policy = RetryPolicy(LookupConfig(retry_on=names), everything)
    assert policy.should_retry(error) is should_retry


def test_the_connectors_word_counts_where_the_option_is_silent() -> None:
    policy = RetryPolicy(LookupConfig(), lambda error: isinstance(error, KeyError))
    assert policy.should_retry(KeyError())
    assert not policy.should_retry(OSError())


WAITS = {
    "exponential": ({}, [1, 2, 4, 8, 10, 10]),
    "longest": ({"retry_max_delay": 3}, [1, 2, 3, 3, 3, 3]),
    "fixed-delay": ({"retry_strategy": "fixed-delay"}, [1] * 6),
}


@pytest.mark.parametrize(("options", "waits"), WAITS.values(), ids=WAITS)
def test_waits_grow_as_the_strategy_says(options: dict[str, Any], waits: list[float]) -> None:
    policy = RetryPolicy(LookupConfig(retry_delay=1, retry_jitter=0, **options))
    assert [policy.wait(OSError(), attempt) for attempt in range(1, 7)] == waits


@given(attempt=st.integers(1, 10**9), jitter=st.floats(0, 1), wish=st.none() | st.floats(0, 100))
def test_a_wait_is_within_its_jitter_and_not_below_retry_after(attempt, jitter, wish) -> None:
    config = LookupConfig(retry_delay=0.1, retry_max_delay=10, retry_jitter=jitter)
    wait = RetryPolicy(config, retry_after=lambda _: wish).wait(OSError(), attempt)
    plain = min(0.1 * 2 ** min(attempt - 1, 10), 10)
    assert max(plain, wish or 0) <= wait <= max(plain * (1 + jitter), wish or 0)
