"""A feature store from the text of its feature_store.yaml, which workers need no file for."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lookupcache.connector import is_credential, is_secret, url_secrets, without_credentials
from lookupcache.environment import certificate, libpq_settings, real_sockets
from lookupcache.errors import ConnectorError, OptionError

FILE = "feature_store.yaml"
_PAIR = re.compile(r"([\w.-]+)=(([^,;&\s]*)[^,]*)")
"""A setting in a connection string, as in ``db:6379,password=s3cret``: up to a comma, or to any separator."""
_SOCKET, _CERTIFICATE = re.compile("((?:^|,)unix_socket_path=)(/[^,]*)"), re.compile("(?:^|,)ssl_certfile=([^,]*)")
"""Paths in a connection string of Redis."""


def read_config(repo: str) -> str:
    """Return the text of a repository's feature_store.yaml; raises OptionError."""
    try:
        return (Path(repo) / FILE).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not valid UTF-8"
        raise OptionError(
            f"Option 'repo' is {repo!r}, where {FILE} cannot be read: {reason}.",
            hint=f"Name the folder that contains {FILE}, or pass the file's text as 'config'.",
        ) from None


def open_store(raw: Mapping[str, Any], repo: str | None) -> Any:
    """Return the FeatureStore of a configuration, whose relative paths start at ``repo``.

    Raises ConnectorError without any of its texts.
    """
    with warnings.catch_warnings():
        # Feast and modules that it imports use deprecated functions of their dependencies.
        warnings.simplefilter("ignore")
        from feast import FeatureStore
        from feast.repo_config import RepoConfig
    try:
        config = RepoConfig(**raw)
    except Exception as error:
        # The error of pydantic contains the values, some of which are secrets.
        raise ConnectorError(f"{FILE} is not valid: {_wrong_settings(error)}.", hint="See Feast's reference.") from None
    config.repo_path = Path(repo or ".")
    _refuse_missing_registry(config)
    return FeatureStore(repo_path=str(config.repo_path), config=config)


def parse_config(text: str) -> Mapping[str, Any]:
    """Return a configuration with the environment variables of this process; raises ConnectorError."""
    parsed = _parse(os.path.expandvars(text))
    if not isinstance(parsed, Mapping):
        raise ConnectorError("Option 'config' is not the text of a feature_store.yaml.", hint="See Feast's reference.")
    return parsed


def online_store_of(config: Mapping[str, Any]) -> str:
    """Return the type of the online store, an empty text for one that the provider chooses in the cloud."""
    store = config.get("online_store")
    chosen = store if isinstance(store, str) else _online_store(config).get("type")
    return str(chosen or ("sqlite" if config.get("provider", "local") == "local" else ""))


def contents_of(config: Mapping[str, Any]) -> Any:
    """Return a configuration as JSON data without credentials, also without those in connection strings."""
    return _without_pairs(json.loads(json.dumps(without_credentials(config), default=str)))


def meaning_of(text: str) -> Any:
    """Return what a configuration says without credentials, with its variables' names; if it is invalid, its text."""
    try:
        parsed = _parse(text)
    except ConnectorError:
        return text
    return contents_of(parsed) if isinstance(parsed, Mapping) else text


def files_of(config: Mapping[str, Any], folder: str) -> list[str]:
    """Return the files that the paths of SQLite's store and of the registry lead to now, by links."""
    path, registry = _online_store(config).get("path"), config.get("registry")
    paths = [path or "data/online.db", registry.get("path") if isinstance(registry, Mapping) else registry]
    return [os.path.realpath(os.path.join(folder, path)) for path in map(str, paths) if "://" not in path]


def with_real_sockets(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with the paths that links to its online store's Unix sockets lead to now."""
    store = _online_store(config)
    host, pairs = str(store.get("host", "")), str(store.get("connection_string", ""))
    real = {"host": os.path.realpath(host)} if host.startswith("/") else {}
    if _SOCKET.search(pairs):
        real["connection_string"] = _SOCKET.sub(lambda found: found[1] + os.path.realpath(found[2]), pairs)
    return {**config, "online_store": {**store, **real}} if real else config


def login_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return by which certificate and socket the online store is read, and what PostgreSQL's library reads here."""
    store = _online_store(config)
    found = _CERTIFICATE.search(str(store.get("connection_string", "")))
    return {
        "libpq": libpq_settings(str(store.get("sslcert_path") or "")),
        "sockets": real_sockets(str(store.get("host", "")), str(store.get("port", ""))),
        "certificate": certificate(found[1]) if found else {},
    }


def _online_store(config: Mapping[str, Any]) -> Mapping[str, Any]:
    store = config.get("online_store")
    return store if isinstance(store, Mapping) else {}


def _without_pairs(data: Any) -> Any:
    """Leave out the credentials of connection strings, each up to the first letter that may separate two settings."""
    if isinstance(data, dict):
        return {name: _without_pairs(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_without_pairs(value) for value in data]
    if not isinstance(data, str):
        return data
    return _PAIR.sub(lambda one: one[1] + one[2][len(one[3]) :] if is_credential(one[1], one[3]) else one[0], data)


def close_store(store: Any) -> None:
    """Close the connections of a store's online store; Feast itself closes only async clients."""
    online_store = getattr(getattr(store, "_provider", None), "online_store", None)
    for name in ("_conn", "_client"):
        client = getattr(online_store, name, None)
        if client is not None:
            client.close()
            setattr(online_store, name, None)


def secrets_of(text: str) -> Iterator[str]:
    """Yield the secrets in a configuration, before and after environment variables are inserted."""
    for one in dict.fromkeys((text, os.path.expandvars(text))):
        try:
            parsed = _parse(one)
        except ConnectorError:
            parsed = None
        yield from _secrets_within("", parsed) if isinstance(parsed, Mapping) else [one]


def _parse(text: str) -> Any:
    import yaml  # Feast requires it.

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConnectorError(f"{FILE} is not valid YAML.", hint="Check it with `feast configuration`.") from None


def _wrong_settings(error: Exception) -> str:
    """Name the settings that Feast refuses, without their values."""
    if not hasattr(error, "errors"):
        return type(error).__name__
    found = (".".join(map(str, one["loc"])) or one["type"] for one in error.errors(include_input=False))
    return ", ".join(dict.fromkeys(found)) or type(error).__name__


def _refuse_missing_registry(config: Any) -> None:
    """Raise ConnectorError if the registry is a file that is not there: Feast would create an empty one."""
    registry = config.registry
    path = str(getattr(registry, "path", ""))
    if getattr(registry, "registry_type", "file") != "file" or not path or "://" in path:
        return
    if not (config.repo_path / path).is_file():
        raise ConnectorError(
            f"The registry {path!r} of {FILE} is not a file in this process.",
            hint="Use a registry that all workers reach: a path on a shared file system, s3://, gs:// or SQL.",
        )


def _secrets_within(name: str, value: Any) -> Iterator[str]:
    hidden = is_secret(name)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets_within(name if hidden else str(key), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets_within(name, inner)
    elif value is not None and hidden:
        yield str(value)
    elif isinstance(value, str):
        yield from url_secrets(value)
        yield from _secrets_of_pairs(value)


def _secrets_of_pairs(text: str) -> Iterator[str]:
    """Yield the values of secret settings in a connection string, by each separator that it may have."""
    position = 0
    while pair := _PAIR.search(text, position):
        position = pair.end(3)
        if is_secret(pair[1]):
            yield from filter(None, dict.fromkeys((pair[2], pair[3])))
