"""What may be shown: no options that hold secrets, no URLs with passwords in them, of errors only what can be sent.

An error leaves a worker as text, for Spark's driver, for a column of the result or for a file. `hidden` is where all
such text comes through: it stars secrets, escapes what UTF-8 cannot hold, and cuts what is too long. `presentable` does
so for an error and all that led to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import unquote

from lookupcache import errors
from lookupcache.errors import LookupCacheError

Ours = TypeVar("Ours", bound=LookupCacheError)

_SECRET_WORDS = (
    "password", "passwd", "pwd", "passphrase", "secret", "token", "credential", "authorization", "api-key", "apikey",
    "private-key",
)  # fmt: skip
_URL_PASSWORD = re.compile(r"(://[^/@:\s]*):(?!\d*[/?#])(\S*)@")
_URL_SECRET = re.compile(rf"([?&;][^=&;\s]*(?:{'|'.join(_SECRET_WORDS).replace('-', '[-_]')})[^=&;\s]*=)[^&;\s]+", re.I)


MOST_LETTERS = 10_000
"""How long a text may be that is shown: it may stand in every row of a result."""


def is_secret(key: str, secrets: Sequence[str] = ()) -> bool:
    """Return whether an option's value must be hidden, by its name."""
    return key in secrets or any(word in key.lower().replace("_", "-") for word in _SECRET_WORDS)


def hide_userinfo(text: str) -> str:
    """Star the password of a URL, and what its query says of passwords and tokens.

    >>> hide_userinfo("postgresql://ann:s3cret@db:5432/shop?token=abc&ssl=on")
    'postgresql://ann:***@db:5432/shop?token=***&ssl=on'
    """
    return _URL_SECRET.sub(r"\1***", _URL_PASSWORD.sub(r"\1:***@", text))


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Star secrets in a text, and those in its URLs; escape lone surrogates, and cut it where it is long.

    >>> hidden("ann:s3cret-2 and s3cret at db://ann:pw@h", ["s3cret", "s3cret-2"])
    'ann:*** and *** at db://ann:***@h'
    >>> hidden("bad name: \\udcff", [])
    'bad name: \\\\udcff'
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, "***")
    return _cut(hide_userinfo(text).encode("utf-8", "backslashreplace").decode())


def _cut(text: str) -> str:
    if len(text) <= MOST_LETTERS:
        return text
    more = f"… ({len(text):,} letters in all)"
    return text[: MOST_LETTERS - len(more)] + more


def text_of(error: BaseException) -> str:
    """Return what an error says, or that it cannot tell.

    >>> class Mute(Exception):
    ...     def __str__(self):
    ...         raise ValueError
    >>> text_of(OSError("down")), text_of(Mute())
    ('down', '(an error whose text cannot be read)')
    """
    try:
        return str(error)
    except Exception:
        return "(an error whose text cannot be read)"


def shown_with(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and every other that its traceback shows: what it came of, and the members of groups."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.append(one.__cause__ if one.__suppress_context__ else one.__context__)
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def is_presentable(error: BaseException, hide: Callable[[str], str]) -> bool:
    """Return whether an error can be shown as it is, with all that led to it: ``hide`` leaves its texts unchanged."""
    return all(hide(text) == text for one in shown_with(error) for text in (text_of(one), *_notes(one)))


def presentable(error: Exception, hide: Callable[[str], str]) -> Exception:
    """Return an error that can be shown: itself, or one like it, without what led to it.

    What is none of lookupcache's becomes a RuntimeError.
    """
    if is_presentable(error, hide):
        return error
    if isinstance(error, LookupCacheError):
        return shown_as(error, hide).with_traceback(error.__traceback__)
    return RuntimeError(f"{type(error).__name__}: {hide(text_of(error))}").with_traceback(error.__traceback__)


def rebuilt(error: Ours, fact: str, hint: str | None) -> Ours:
    """Return an error of the same kind of ours, with another text; a class of others' may take other arguments."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    made: Ours = kind(fact, hint=hint)
    return made


def shown_as(error: Ours, hide: Callable[[str], str]) -> Ours:
    """Return an error of the same kind of ours, with its texts as ``hide`` leaves them, and nothing that led to it."""
    shown = rebuilt(error, hide(error.fact), None if error.hint is None else hide(error.hint))
    shown.__cause__ = None
    return shown


def _notes(error: BaseException) -> list[str]:
    notes: list[str] = []
    with suppress(Exception):
        notes += map(str, getattr(error, "__notes__", ()))
    return notes


def url_passwords(text: str) -> list[str]:
    """Return the password of a URL, as it stands there and as it is meant.

    >>> url_passwords("postgresql://ann:p%40w@db:5432/shop")
    ['p%40w', 'p@w']
    """
    found = [match[2] for match in _URL_PASSWORD.finditer(text)]
    return list(dict.fromkeys(form for secret in found for form in (secret, unquote(secret))))
