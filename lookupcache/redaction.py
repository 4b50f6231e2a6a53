"""What must not be shown: options that hold secrets, and URLs with passwords in them.

A source echoes a secret as it was sent, percent-encoded, with JSON's escapes, in base64 or cut short. `hidden` undoes
the encodings of the secret and of the text, compares, and stars what stood there.
"""

from __future__ import annotations

import base64
import functools
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

_SECRET_WORDS = (
    "password", "passwd", "pwd", "passphrase", "secret", "token", "credential", "authorization", "api-key", "apikey",
    "private-key",
)  # fmt: skip
_SECRET_PARAMETERS = re.compile(
    "code|pass|passcode|session|.*sess(ion)?-?id|appid|hmac|t?otp|bearer|(.*-)?(key|sig|signature|auth|jwt|sas)"
    "|.*(access|account|app|shared|subscription)key"
)
SECRET_NAME = "passcode|" + "|".join(
    word.replace("-", "[-_.]?") for word in (*_SECRET_WORDS, "access-key", "account-key")
)
"""What is in the names of secrets, as a pattern."""
# Digits before a slash are a port, unless they stand before an @ in the URL of a database.
_URL_PASSWORD = re.compile(
    r"((?:(?P<http>https?)|(?<!http)(?<!https))://[^/@:\s]*):"
    r"(?(http)(?!\d{0,5}[/?#])|(?!\d{0,5}[/?#](?![^?=\s]*@)))(?P<password>\S*)@",
    re.IGNORECASE,
)
_URL_TOKEN = re.compile(r"(\bhttps?://)(?P<token>[^/?#@:\s]+)@", re.IGNORECASE)
"""A user without a password, of HTTP: a token."""
_PARAMETER = re.compile(r"([?&;#]([^=&;?#\s]+)=)([^&;#\s]+(?:#(?![^=&;?#\s]+=)[^&;#\s]*)*)")
_PLACE = re.compile(r"\{\w+\}['\"]?")

_SHORTEST_KEY = 8
_SHORTEST_PIECE = 10
_SHORTEST_BASE64 = 6


MOST_LETTERS = 10_000
"""How long a text may be that is shown: it may stand in every row of a result."""


def is_secret(key: str, secrets: Sequence[str] = ()) -> bool:
    """Return whether an option's value must be hidden, by its name."""
    return key in secrets or any(word in key.lower().replace("_", "-") for word in _SECRET_WORDS)


def hide_userinfo(text: str) -> str:
    """Star the password of a URL, and what its query says of passwords, tokens, keys and signatures.

    A user without a password is shown, but not in HTTP, where it is a token.

    >>> hide_userinfo("postgresql://ann:s3cret@db:5432/shop?token=abc&ssl=on")
    'postgresql://ann:***@db:5432/shop?token=***&ssl=on'
    >>> hide_userinfo("https://api/{id}?key={id}&sig=abc")
    'https://api/{id}?key={id}&sig=***'
    """
    shown = text
    if "@" in text:
        shown = _URL_TOKEN.sub(_hidden_token, _URL_PASSWORD.sub(r"\1:***@", text))
    return _PARAMETER.sub(_hidden_parameter, shown)


def url_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield from where to where `hide_userinfo` stars a text."""
    if "@" in text:
        yield from (match.span("password") for match in _URL_PASSWORD.finditer(text))
        yield from (match.span("token") for match in _URL_TOKEN.finditer(text) if _hidden_token(match) != match[0])
    yield from (match.span(3) for match in _PARAMETER.finditer(text) if _hidden_parameter(match) != match[0])


def hidden(text: str, secrets: Iterable[str]) -> str:
    r"""Star secrets in a text, however they are encoded there, and those in its URLs; escape what UTF-8 cannot hold.

    A piece of a secret is starred too, from ten characters on, unless the secret is a URL, whose pieces are in many
    texts. So a text is cut to its final length after this, never before.

    >>> hidden("ann:s3cret-2 and s3cret at db://ann:pw@h", ["s3cret", "s3cret-2"])
    'ann:*** and *** at db://ann:***@h'
    >>> hidden(r'{"key": "a\/b\u002bc"} for /x?k=a%2Fb%2Bc', ["a/b+c"])
    '{"key": "***"} for /x?k=***'
    >>> hidden("bad name: \udcff", [])
    'bad name: \\udcff'
    """
    # What is far beyond the final length is not looked at: a source may answer with megabytes.
    length, text = len(text), text[: 10 * MOST_LETTERS]
    spans = sorted(_Plain.of(text).spans(_wanted(frozenset(secrets))))
    shown, last = list[str](), 0
    for start, end in spans:
        if start > last or not shown:
            shown += [text[last:start], "***"]
        last = max(last, end)
    starred = hide_userinfo("".join([*shown, text[last:]]))
    return _cut(starred.encode("utf-8", "backslashreplace").decode(), length)


def _cut(text: str, length: int) -> str:
    """Cut a text; ``length`` is that of the text before anything was starred."""
    if len(text) <= MOST_LETTERS:
        return text
    more = f"… ({length:,} letters in all)"
    return text[: MOST_LETTERS - len(more)] + more


def url_secrets(text: str) -> list[str]:
    """Return a URL's password, and the tokens and keys in its query, as they stand there and as they are meant.

    A key without a digit, or of few characters, may be any word, and is none.

    >>> url_secrets("https://ann:p%40w@db/shop?sort_key=customer&sig=8a6f0c31")
    ['p%40w', 'p@w', '8a6f0c31']
    """
    found = [match["password"] for match in _URL_PASSWORD.finditer(text)]
    tokens = (match["token"] for match in _URL_TOKEN.finditer(text))
    found += [token for token in tokens if len(token) >= _SHORTEST_KEY and re.search(r"\d", token)]
    for match in _PARAMETER.finditer(text) if "://" in text else ():
        word = len(match[3]) < _SHORTEST_KEY or not re.search(r"\d", match[3])
        if _hidden_parameter(match) != match[0] and (is_secret(unquote(match[2])) or not word):
            found.append(match[3])
    return list(dict.fromkeys(form for secret in found for form in (secret, unquote(secret))))


def _hidden_token(match: re.Match[str]) -> str:
    return match[0] if _PLACE.fullmatch(match["token"]) else f"{match[1]}***@"


def _hidden_parameter(match: re.Match[str]) -> str:
    """Return a parameter of a URL, its value starred if its name says so; a place, as in ``?key={id}``, holds none."""
    name = unquote(match[2]).lower().replace("_", "-").replace(".", "-")
    secret = is_secret(name) or _SECRET_PARAMETERS.fullmatch(name)
    return f"{match[1]}***" if secret and not _PLACE.fullmatch(match[3]) else match[0]


# ── spellings ────────────────────────────────────────────────────────────────────────────────────────────────

_ESCAPE = re.compile(
    r"%(?P<percent>[0-9a-fA-F]{2})"
    r"|&(?:#(?P<number>\d{1,7})|#[xX](?P<hex>[0-9a-fA-F]{1,6})|(?P<entity>amp|lt|gt|quot|apos));"
    # From the first backslash on, all or none: many of them would take long.
    r"|(?<!\\)\\++(?:u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|x(?P<x>[0-9a-fA-F]{2})|(?P<letter>[nrtbf]))"
)
_BACKSLASHES = re.compile(r"\\++(.?)", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_UTF8_READ_AS_LATIN1 = re.compile("[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
"""Lower case of the same length, as ``str.lower`` does not give."""
_MOST_LAYERS = 5


@dataclass(frozen=True)
class _Wanted:
    """What to look for in a text without encodings: whole spellings, and pieces, all of one length.

    ``folded`` and ``pieces`` are in lower case: a header's name or a host may come back in another case.
    """

    whole: frozenset[str]
    folded: frozenset[str]
    pieces: frozenset[str]


@dataclass(frozen=True)
class _Plain:
    """A text without its encodings; ``starts`` says where in the encoded one each character begins, and the end."""

    text: str
    starts: list[int]

    @classmethod
    def of(cls, text: str) -> _Plain:
        """Undo percent-encoding, the escapes of JSON, Python and HTML, and UTF-8 read as Latin-1, layer by layer."""
        plain = cls(text, list(range(len(text) + 1)))
        for _ in range(_MOST_LAYERS):
            before = plain.text
            for encoded, decode in _DECODERS:
                plain = plain._without(encoded, decode)
            if plain.text == before:
                break
        # Backslashes are doubled by each layer of escapes, and in a query a plus is a blank: neither tells anything.
        plain = plain._without(_BACKSLASHES, lambda match: match[1])
        return cls(plain.text.replace("+", " "), plain.starts)

    def spans(self, wanted: _Wanted) -> Iterator[tuple[int, int]]:
        """Yield from where to where in the encoded text something wanted stands."""
        folded = self.text.translate(_LOWER)
        for spellings, text in ((wanted.whole, self.text), (wanted.folded, folded)):
            for spelling in spellings:
                at = text.find(spelling)
                while at >= 0:
                    yield self.starts[at], self.starts[at + len(spelling)]
                    at = text.find(spelling, at + 1)
        for at in range(len(self.text) - _SHORTEST_PIECE + 1 if wanted.pieces else 0):
            if folded[at : at + _SHORTEST_PIECE] in wanted.pieces:
                yield self.starts[at], self.starts[at + _SHORTEST_PIECE]

    def _without(self, encoded: re.Pattern[str], decode: Callable[[re.Match[str]], str]) -> _Plain:
        """Return the text with what is encoded so decoded, to one character each, or to none."""
        parts, starts, last = list[str](), list[int](), 0
        for match in encoded.finditer(self.text):
            decoded = decode(match)
            parts += [self.text[last : match.start()], decoded]
            starts += self.starts[last : match.start() + len(decoded)]
            last = match.end()
        return _Plain("".join([*parts, self.text[last:]]), starts + self.starts[last:]) if last else self


def _unescaped(match: re.Match[str]) -> str:
    kind = str(match.lastgroup)
    if kind == "letter":
        return _LETTERS[match[kind]]
    if kind == "entity":
        return html.unescape(match[0])
    code = int(match[kind], 10 if kind == "number" else 16)
    return chr(code) if code < 0x110000 else "\ufffd"


_DECODERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_ESCAPE, _unescaped),
    (_PAIR, lambda match: match[0].encode("utf-16", "surrogatepass").decode("utf-16")),
    (_UTF8_READ_AS_LATIN1, lambda match: match[0].encode("latin-1").decode(errors="replace")[:1]),
)


@functools.lru_cache(maxsize=64)
def _wanted(secrets: frozenset[str]) -> _Wanted:
    whole, folded, pieces = set[str](), set[str](), set[str]()
    for secret in secrets:
        for form in filter(
            None, (_Plain.of(secret.strip()).text, *_in_base64(secret.strip()), *_in_hex(secret.strip()))
        ):
            if len(secret) < _SHORTEST_PIECE:
                whole.add(form)
            form = form.translate(_LOWER)
            if len(secret) >= _SHORTEST_PIECE:
                folded.add(form)
            if "://" not in secret:
                pieces.update(form[at : at + _SHORTEST_PIECE] for at in range(len(form) - _SHORTEST_PIECE + 1))
    return _Wanted(frozenset(whole), frozenset(folded), frozenset(pieces))


def _in_hex(secret: str) -> Iterator[str]:
    if len(secret) >= _SHORTEST_PIECE:
        yield secret.encode(errors="surrogatepass").hex()


def _in_base64(secret: str) -> Iterator[str]:
    """Yield what base64 makes of a secret within a longer text, as of the password in ``user:password``."""
    data = secret.encode(errors="surrogatepass")
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            # The characters at both ends hold bits of the neighbours.
            spelled = encode(bytes(before) + data).decode()[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
            if len(spelled) >= _SHORTEST_BASE64:
                yield _Plain.of(spelled).text
