"""References to secrets: option values that name the location of a secret, which is read on the worker.

``env:NAME`` refers to an environment variable, ``file:PATH`` to a text file, on the worker that connects. A literal
value that starts with such a prefix is written with two colons: ``env::x`` is the text ``env:x``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lookupcache.errors import ConnectorError

_REFERENCE = re.compile(r"(env|file):(?!:)(.*)", re.DOTALL)
_ESCAPED = re.compile(r"(env|file)::")


def is_reference(value: Any) -> bool:
    """Return whether an option's value is a reference to a secret.

    >>> is_reference("env:DB_PASSWORD"), is_reference("file:/run/secrets/db"), is_reference("env::x")
    (True, True, False)
    """
    return isinstance(value, str) and _REFERENCE.match(value) is not None


def resolve_references(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with references replaced by the secrets, and with escaped prefixes unescaped.

    A file's last line break is not part of the value. Raises ConnectorError for a variable that is not set, or a file
    that cannot be read as UTF-8. The error has the option's name but no part of the value.

    >>> resolve_references({"url": "db://shop", "user": "env::ann"})
    {'url': 'db://shop', 'user': 'env:ann'}
    >>> resolve_references({"password": "env:NO_SUCH_VARIABLE"})
    Traceback (most recent call last):
    lookupcache.errors.ConnectorError: Option 'password' is 'env:NO_SUCH_VARIABLE', which is not set in this process.
    <BLANKLINE>
    Hint: Set the variable for the workers, for example with spark.executorEnv.NO_SUCH_VARIABLE. A value that
    only looks like a reference is written with two colons: 'env::…'.
    """
    return {option: _resolve(option, value) for option, value in settings.items()}


def _resolve(option: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = _REFERENCE.match(value)
    if found is None:
        return _ESCAPED.sub(r"\1:", value, count=1) if _ESCAPED.match(value) else value
    kind, location = found.groups()
    return _read_variable(option, location) if kind == "env" else _read_file(option, location)


def _read_variable(option: str, name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConnectorError(
            f"Option {option!r} is 'env:{name}', which is not set in this process.",
            hint=f"Set the variable for the workers, for example with spark.executorEnv.{name}. "
            "A value that only looks like a reference is written with two colons: 'env::…'.",
        )
    return value


def _read_file(option: str, path: str) -> str:
    try:
        text = Path(path).read_bytes().decode()
    except UnicodeDecodeError:
        # The error's text contains bytes of the secret, so it may not be chained as the cause either.
        raise _unreadable_file(option, path, "it is not valid UTF-8") from None
    except (OSError, ValueError) as error:
        raise _unreadable_file(option, path, getattr(error, "strerror", None) or str(error)) from None
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _unreadable_file(option: str, path: str, reason: str) -> ConnectorError:
    return ConnectorError(
        f"Option {option!r} is 'file:{path}', which cannot be read in this process: {reason}.",
        hint="The file must exist on every worker, under an absolute path. A value that only looks like a reference is "
        "written with two colons: 'file::…'.",
    )
