"""Where a store is: the option ``lookup.cache.store`` as a store."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from lookupcache.config import LookupConfig
from lookupcache.config.values import is_folder_url, is_redis_url
from lookupcache.errors import OptionError
from lookupcache.redaction import hide_address, without_credentials
from lookupcache.secrets import resolve_references
from lookupcache.store.contract import Store

OPTION = "lookup.cache.store"


def url_of(location: str) -> str:
    """Return the URL that a location is, or refers to; raises ConnectorError for a reference without a value here."""
    if is_folder_url(location):
        return location  # "file:///mnt/cache" is no reference to a file with a URL.
    return str(resolve_references({OPTION: location})[OPTION])


def entries_of(config: LookupConfig) -> list[Any]:
    """Return which entries of which store options mean: its URL without a password, and their name, if it has one.

    Files of a host that lie before a store are of no other entries: a store or a name may be that of one tenant. An
    object store is known by the environment too, which may name its endpoint.

    >>> entries_of(LookupConfig(cache="LRU", store="redis://cache:6379/0", store_name="ann"))
    ['redis://cache:6379/0', 'ann']
    """
    assert config.store is not None
    url = url_of(config.store)
    found: list[Any] = [without_credentials(url), *filter(None, [config.store_name])]
    if is_folder_url(url) and local_path(url) is None:
        from lookupcache.environment import cloud_settings  # Most workers do without.

        found.append(cloud_settings())
    return found


def open_store(location: str, timeout: float, most: float | None = None) -> Store:
    """Return the store at a URL, or at one that a reference names; nothing is connected yet.

    ``timeout`` and ``most`` are as those of `RedisClient`; a folder has no queue.

    Raises OptionError for a URL of another kind, and ConnectorError for a reference without a value here.
    """
    url = url_of(location)
    if is_redis_url(url):
        from lookupcache.store.redis_store import RedisStore  # A worker imports the client only if it uses it.

        try:
            return RedisStore(url, timeout, most)
        except OptionError as error:
            raise OptionError(error.fact.replace("Option 'url'", f"Option {OPTION!r}"), hint=error.hint) from None
    if is_folder_url(url):
        return _folder_store(url, timeout)
    raise OptionError(
        f"Option {OPTION!r} is {hide_address(location)!r}, which is no store.",
        hint="Write the URL of a Redis server, as in 'redis://host:6379/0', or of a folder, as in '/mnt/cache'.",
    )


def local_path(url: str) -> str | None:
    """Return the path of a folder that is mounted here, None for one in an object store; raises OptionError.

    >>> local_path("/mnt/cache"), local_path("file:///mnt/my%20cache"), local_path("s3://bucket/cache")
    ('/mnt/cache', '/mnt/my cache', None)
    """
    if url.startswith("/"):
        return url
    parts = urlsplit(url)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost") or not os.path.isabs(unquote(parts.path)):
        raise OptionError(
            f"Option {OPTION!r} is {hide_address(url)!r}, which names no folder of this host.",
            hint="Write three slashes and an absolute path, as in 'file:///mnt/cache'.",
        )
    return unquote(parts.path)


def _folder_store(url: str, timeout: float) -> Store:
    from lookupcache.store.folder_files import Files, LocalFiles  # A worker imports them only if it uses them.
    from lookupcache.store.folder_store import FolderStore
    from lookupcache.store.timed_store import TimedStore

    files: Files
    path = local_path(url)
    if path is not None:
        files = LocalFiles(path)
    else:
        from lookupcache.store.object_files import ObjectFiles

        files = ObjectFiles.at(url)
    return TimedStore(FolderStore(files, hide_address(url)), timeout)
