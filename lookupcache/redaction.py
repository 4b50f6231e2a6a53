"""What must not be shown: options that hold secrets, and URLs with passwords in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SECRET_WORDS = (
    "password", "passwd", "pwd", "passphrase", "secret", "token", "credential", "authorization", "api-key", "apikey",
    "private-key",
)  # fmt: skip
_URL_PASSWORD = re.compile(r"(://[^/@:\s]*):(?!\d*[/?#])\S*@")
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
