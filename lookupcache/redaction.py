"""What must not be shown: options that hold secrets, and URLs with passwords in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

_SECRET_WORDS = (
    "password", "passwd", "pwd", "passphrase", "secret", "token", "credential", "authorization", "api-key", "apikey",
    "private-key",
)  # fmt: skip
_URL_PASSWORD = re.compile(r"(://[^/@:\s]*):(?!\d*[/?#])(\S*)@")
_URL_SECRET = re.compile(rf"([?&;][^=&;\s]*(?:{'|'.join(_SECRET_WORDS).replace('-', '[-_]')})[^=&;\s]*=)[^&;\s]+", re.I)


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
    """Star secrets in a text, and those in its URLs.

    >>> hidden("ann:s3cret-2 and s3cret at db://ann:pw@h", ["s3cret", "s3cret-2"])
    'ann:*** and *** at db://ann:***@h'
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, "***")
    return hide_userinfo(text)


def url_passwords(text: str) -> list[str]:
    """Return the password of a URL, as it stands there and as it is meant.

    >>> url_passwords("postgresql://ann:p%40w@db:5432/shop")
    ['p%40w', 'p@w']
    """
    found = [match[2] for match in _URL_PASSWORD.finditer(text)]
    return list(dict.fromkeys(form for secret in found for form in (secret, unquote(secret))))
