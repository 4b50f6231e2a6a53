"""Exported metrics, read from an endpoint again."""

from __future__ import annotations

import base64
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from urllib.parse import unquote, urlsplit

from lookupcache.errors import LookupCacheError, OptionError
from lookupcache.monitoring.server import PATH
from lookupcache.monitoring.totals import Series
from lookupcache.redaction import hidden, url_secrets

_TIMEOUT_SECONDS = 5.0
_MOST_BYTES = 32 << 20

Sample = dict[str, float]
"""The values of a series by name; where there is an additional label, ``name:value of the label``."""


class EndpointError(LookupCacheError):
    """An endpoint that does not answer, or not with metrics."""


def metrics_url(text: str) -> str:
    """Return the URL of an endpoint; scheme and path may be left out.

    >>> metrics_url("driver:9477"), metrics_url("https://driver/proxy/metrics")
    ('http://driver:9477/metrics', 'https://driver/proxy/metrics')
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        shown = hidden(text, url_secrets(url))
        raise OptionError(f"{shown!r} is no HTTP address.", hint="As in http://127.0.0.1:9477/metrics.")
    return url if parts.path not in ("", "/") else parts._replace(path=PATH).geturl()


def fetch(url: str) -> str:
    """Return the text of an endpoint; raises EndpointError."""
    shown = hidden(url, url_secrets(url))
    try:
        with _opener(url).open(_request(url), timeout=_TIMEOUT_SECONDS) as answer:
            body = answer.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        fact = f"{shown} answers with HTTP status {error.code}."
        error.close()
        raise EndpointError(fact, hint="Pass the URL that `export_metrics` returned.") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise EndpointError(
            f"Nothing answers at {shown}: {hidden(str(reason), url_secrets(url))}.",
            hint="Call lookupcache.export_metrics() in the program that runs the joins, and pass the `url` of its "
            "result.",
        ) from None
    return body.decode("utf-8", "replace")


def _request(url: str) -> urllib.request.Request:
    """Return a request with the user and password of a URL, which urllib takes for a part of the host."""
    parts = urlsplit(url)
    user, sign, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if sign:
        name, _, password = user.partition(":")
        login = f"{unquote(name)}:{unquote(password)}".encode()
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
    return request


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Return what opens a URL: a proxy, if one is configured, cannot reach what only this machine can."""
    host = urlsplit(url).hostname or ""
    is_here = host in ("localhost", "::1") or host.startswith("127.")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_here else []))


def samples(text: str, where: str = "The answer") -> dict[Series, Sample]:
    """Return the values in the text of an endpoint, by series; raises EndpointError if it is no such text.

    >>> samples('lookupcache_hits_total{table="t",join="j",query="",tier="host"} 7.0')
    {Series(table='t', join='j', query=''): {'lookupcache_hits_total:host': 7.0}}
    """
    found: dict[Series, Sample] = {}
    try:
        for name, labels, value in _values(text):
            series = Series(labels.pop("table", ""), labels.pop("join", ""), labels.pop("query", ""))
            of_connector = labels.get("tier", labels.get("count"))
            found.setdefault(series, {})[name if of_connector is None else f"{name}:{of_connector}"] = value
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EndpointError(
            f"{where} is not the text format of Prometheus.", hint="Pass the URL that `export_metrics` returned."
        ) from error
    return found


def _values(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise LookupCacheError(
            "prometheus_client is not installed.", hint="pip install 'lookupcache[prometheus]'"
        ) from error
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # NaN is no count: Prometheus marks series that have ended so.
            if sample.name.startswith("lookupcache_") and math.isfinite(sample.value):
                yield sample.name, dict(sample.labels), sample.value
