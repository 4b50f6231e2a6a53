"""Secrets by reference: option values that say where a secret lies, and are read where it is needed.

``env:NAME`` is an environment variable, ``file:PATH`` a text file, of the worker that connects. A value that
begins so by chance has its colon doubled: ``env::x`` stands for the text ``env:x``.
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
    """Return whether an option's value says where the value lies.

    >>> is_reference("env:DB_PASSWORD"), is_reference("file:/run/secrets/db"), is_reference("env::x")
    (True, True, False)
    """
    return isinstance(value, str) and _REFERENCE.match(value) is not None


def resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with what their references stand for, and without the escape of those that are none.

    A file's last line break is not part of the value. Raises ConnectorError for a variable that is not set, or a
    file that cannot be read as UTF-8, with the option's name, and nothing of the value.

    >>> resolved({"url": "db://shop", "user": "env::ann"})
    {'url': 'db://shop', 'user': 'env:ann'}
    >>> resolved({"password": "env:NO_SUCH_VARIABLE"})
    Traceback (most recent call last):
    lookupcache.errors.ConnectorError: Option 'password' is 'env:NO_SUCH_VARIABLE', which is not set in this process.
    <BLANKLINE>
    Hint: Set the variable for the workers, as with spark.executorEnv.NO_SUCH_VARIABLE. A text that only looks like
    a reference is written with two colons: 'env::…'.
    """
    return {option: _resolved(option, value) for option, value in settings.items()}


def _resolved(option: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = _REFERENCE.match(value)
    if found is None:
        return _ESCAPED.sub(r"\1:", value, count=1) if _ESCAPED.match(value) else value
    kind, place = found.groups()
    return _variable(option, place) if kind == "env" else _content(option, place)


def _variable(option: str, name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConnectorError(
            f"Option {option!r} is 'env:{name}', which is not set in this process.",
            hint=f"Set the variable for the workers, as with spark.executorEnv.{name}. "
            "A text that only looks like a reference is written with two colons: 'env::…'.",
        )
    return value


def _content(option: str, path: str) -> str:
    try:
        text = Path(path).read_bytes().decode()
    except UnicodeDecodeError:
        # Its text would show bytes of the secret, and so would the error itself, as the cause.
        raise _unreadable(option, path, "it is no text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise _unreadable(option, path, getattr(error, "strerror", None) or str(error)) from None
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _unreadable(option: str, path: str, why: str) -> ConnectorError:
    return ConnectorError(
        f"Option {option!r} is 'file:{path}', which cannot be read in this process: {why}.",
        hint="The file must be on every worker, under a full path. A text that only looks like a reference is "
        "written with two colons: 'file::…'.",
    )
