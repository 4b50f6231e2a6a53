"""Errors of Redis: which of them a retry may cure, and what they say to users."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Iterator

from lookupcache.connector import hide_address, is_retryable
from lookupcache.errors import ConnectorError

_TEMPORARY = ("BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "UNBLOCKED", "NOREPLICAS")


def cluster_needed() -> ConnectorError:
    hint = "Write 'redis+cluster://' for a cluster."
    return ConnectorError("Option 'url': the server is part of a cluster.", hint=hint)


def check_driver() -> None:
    """Raise ConnectorError if redis-py is not installed."""
    if importlib.util.find_spec("redis") is None:
        raise ConnectorError("Connector 'redis' needs the package 'redis'.", hint="pip install 'lookupcache[redis]'")


def load_driver() -> None:
    """Import what a client needs of redis-py, which takes long on a host whose cores are busy."""
    import redis.cluster
    import redis.sentinel  # noqa: F401


def is_temporary(error: Exception) -> bool:
    """Return whether the same call may succeed later: the connection was lost or late, or the server busy."""
    from redis import exceptions as known

    if isinstance(error, known.AuthenticationError | known.AuthorizationError | known.NoPermissionError):
        return False
    if isinstance(error, known.ConnectionError | known.TimeoutError):
        return _refusal_of_tls(error) is None
    if isinstance(error, known.ReadOnlyError | known.AskError | known.TryAgainError | known.ClusterError):
        return True
    if isinstance(error, known.ResponseError):
        return str(error).startswith(_TEMPORARY)
    if isinstance(error, known.RedisClusterException):
        return "not enabled" not in str(error)
    return not isinstance(error, known.RedisError) and is_retryable(error)


def connect_error(error: Exception, url: str) -> Exception:
    """Return the error to raise for a failed connection attempt: a ConnectorError if it is not temporary."""
    from redis import exceptions as known

    if is_temporary(error):
        return error
    where = f"Option 'url' ({hide_address(url)!r})"
    if isinstance(error, known.AuthenticationError | known.AuthorizationError):
        hint = "Set the options 'user' and 'password'; 'env:NAME' and 'file:PATH' keep them out of the code."
        return ConnectorError(f"{where}: the server rejects the login: {str(error).rstrip('.')}.", hint=hint)
    if (reason := _refusal_of_tls(error)) is not None:
        hint = "Name the authority that signed the server's certificate in option 'tls.ca'."
        return ConnectorError(f"{where}: the server's certificate is not trusted: {reason}.", hint=hint)
    if isinstance(error, known.RedisClusterException):
        if (refused := _refusal_of_right(error)) is not None:
            return ConnectorError(
                f"{where}: the server rejects a command: {refused}.", hint="Let the user read the cluster's slots."
            )
        return ConnectorError(
            f"{where}: the server is not part of a cluster.", hint="Write 'redis://' for a single server."
        )
    if isinstance(error, known.InvalidResponse):
        return ConnectorError(f"{where}: the server does not speak the Redis protocol.", hint="Correct the URL.")
    if isinstance(error, known.ResponseError):
        hint = "Correct the URL, or let the server allow it."
        return ConnectorError(f"{where}: the server rejects a command: {error}.", hint=hint)
    return error


def _refusal_of_right(error: BaseException) -> str | None:
    """Return which right the user lacks, if that is the cause of the error."""
    for cause in _causes(error):
        if "no permissions" in str(cause).lower() or "noperm" in str(cause).lower():
            return str(cause).rstrip(".")
    return None


def _refusal_of_tls(error: BaseException) -> str | None:
    """Return why a certificate was not trusted, if that is the cause of the error."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        if "CERTIFICATE_VERIFY_FAILED" in str(cause):
            return str(cause).partition("CERTIFICATE_VERIFY_FAILED]")[2].strip(" .:") or "it cannot be verified"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from or during."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
