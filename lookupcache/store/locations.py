"""Where a store is: the option ``lookup.cache.store`` as a store."""

from __future__ import annotations

from lookupcache.config.values import is_redis_url
from lookupcache.errors import OptionError
from lookupcache.redaction import hide_userinfo
from lookupcache.secrets import resolve_references
from lookupcache.store.contract import Store

OPTION = "lookup.cache.store"


def url_of(location: str) -> str:
    """Return the URL that a location is, or refers to; raises ConnectorError for a reference without a value here."""
    return str(resolve_references({OPTION: location})[OPTION])


def open_store(location: str, timeout: float) -> Store:
    """Return the store at a URL, or at one that a reference names; nothing is connected yet.

    Raises OptionError for a URL of another kind, and ConnectorError for a reference without a value here.
    """
    url = url_of(location)
    if is_redis_url(url):
        from lookupcache.store.redis_store import RedisStore  # A worker imports the client only if it uses it.

        try:
            return RedisStore(url, timeout)
        except OptionError as error:
            raise OptionError(error.fact.replace("Option 'url'", f"Option {OPTION!r}"), hint=error.hint) from None
    raise OptionError(
        f"Option {OPTION!r} is {hide_userinfo(url)!r}, which is no store.",
        hint="Write the URL of a Redis server, as in 'redis://host:6379/0'.",
    )
