"""Hides secrets in texts: the values of secret options, and passwords in URLs.

A source may repeat a secret as it was sent, percent-encoded, with JSON's escapes, in base64 or truncated. `hidden`
decodes both the secret and the text, compares them, and replaces matches with stars.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

STARS = "***"
_PASSWORD_WORDS = "pass(?:word|wd|phrase|code)|pwd"
_CREDENTIAL_WORDS = f"{_PASSWORD_WORDS}|secret|token|authorization|(?:api|private|secret|account)[-_.]?key"
_SECRET = re.compile(rf"{_CREDENTIAL_WORDS}|credential|access[-_.]?key(?![-_.]?id)", re.IGNORECASE)
"""Words in the names of secrets."""
_SECRET_SETTING = re.compile(r"(?:^|[\W_])(?:keys?|sas|auth|pass|sig|signature)(?:$|[\W_])", re.IGNORECASE)
_SECRET_PARAMETERS = re.compile(
    "odbc-connect|code|pass|passcode|session"
    "|.*sess(ion)?-?id|appid|hmac|t?otp|bearer|(.*-)?(key|sig|signature|auth|jwt|sas)"
    "|.*(access|account|app|shared|subscription)key"
)
_COUNTS = re.compile("((max|min)-tokens|tokens-per-[a-z]+)(-.*)?")
"""Names of numbers of a model's tokens, which are no credentials."""
_CREDENTIAL = re.compile(f".*(?:{_CREDENTIAL_WORDS}|secret-access-?key)|(.*-)?(sig|signature)")
_MARK = re.compile(
    "(.*-)?((next|prev|previous|start|end)-?)?(page|next|prev|previous|continuation|cursor|sync|since"
    "|start|end|begin|stop|pad|mask|unk|sep|separator|delimiter|bos|eos|cls|special|prompt)-?token"
)
"""Names of positions in a list of results, and of marks in a text, which are no credentials."""
_PASSWORD = re.compile(f".*(?:{_PASSWORD_WORDS})")
_PLAIN_VALUE = re.compile(
    r"[^a-z]*|[-+]?[\d.,_]+(e[-+]?\d+|\s*[a-z]{1,2})|0x[\da-f]{1,8}"
    r"|true|false|yes|no|on|off|[ytnf]|(en|dis)abled?|null|none|nan|[-+]?inf(inity)?",
    re.IGNORECASE,
)
"""Numbers, with a unit too, and switches, which no service gives out as a token or key."""
_URL = re.compile(r"\s*[a-z][\w+.-]*://\S*\s*", re.IGNORECASE)
_OBJECT = re.compile(r"\s*\{.*:.*\}\s*", re.DOTALL)
_TOKEN = re.compile(r"(?:(?:apikey|basic|bearer|token)\s+)?(?!arn:)[^\s{}\[\]\"']+", re.IGNORECASE)
_LOWER_PATH = re.compile(r"[a-z\d._-]*(/[a-z\d._-]+)+")
"""A path, or the path of a secret in a vault."""
_BEGINS_AS_URL = re.compile(r"\s*[a-z][\w+.:-]*//", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"^(\s*[a-z][\w+.-]*://[^/?#@:\s]*):[^/?#]*@", re.IGNORECASE)
_URL_PARAMETER = re.compile(r"(?<=[?&])([^=&#]+)=([^&#]*)")
_UP_TO_SEPARATOR = re.compile(r"^([^;,]*)(.*)$", re.DOTALL)
_URL_USER = re.compile(r"(?:(?P<http>https?)|(?<!http)(?<!https))://[^/@:\s]*:", re.IGNORECASE)
_PORT = re.compile(r"\d{0,5}[/?#]")
_WORD = re.compile(r"\S+")
_QUERY = re.compile(r"[?=]")
_URL_TOKEN = re.compile(r"\bhttps?://(?P<token>[^/?#@:\s]+)@", re.IGNORECASE)
"""In an HTTP URL, a user without a password is a token."""
_PARAMETER = re.compile(
    r"[?&;#](?P<name>[^=&;?#\s]+)="
    r"(?P<value>(?<=odbc_connect=)[^&\s]+|[^&;#\s]+(?:#(?![^=&;?#\s]+=)[^&;#\s]*)*)"
)
_PARAMETER_OF_ADDRESS = re.compile(
    r"[?&;#](?P<name>[^=&;?#\s]+)=(?P<value>(?<=odbc_connect=)[^&]+|[^&;#]+(?:#(?![^=&;?#\s]+=)[^&;#]*)*)"
)
"""In a text that is an address and nothing else, where a blank belongs to the value."""
_LITERAL = re.compile(r"'(?:[^']|'')*+'|\"(?:[^\"]|\"\")*+\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_ASSIGNED_IN_LITERAL = re.compile(r"\s*+=\s*+(\0?'[^']*+'|[^\s'\"]++)")
_NAME = re.compile(r"[\w.-]+")
_ASSIGNED = re.compile(r"\s*+=\s*+(?!\{)(\S++)")
_LOGIN = re.compile(r"\s*(?:[a-z][\w+.-]*:)+//[^/@:;%\s]*(?::\*\*\*)?", re.IGNORECASE)
"""A URL up to its host, after its password was hidden."""
_NO_PORT = re.compile(
    r"(^\s*[a-zA-Z][\w+.-]*://(?:[^/?#@,\s\[]*,)*[^/:?#@,\s\[]+:)(?!\d{1,5}(?:[/?#,]|$)|\{|\*\*\*)[^/?#@,\s]+(?!.*@)"
)
"""What stands where a port does: a password, if the host was forgotten."""
_PLACEHOLDER = re.compile(r"\{\w+\}['\"]?")
_MARKS = ("=", "@", "://")
"""A text without them has no address, and no setting that is a secret."""

_SHORTEST_WITHIN_WORDS = 4
_SHORTEST_KEY = 8
_SHORTEST_PIECE = 10
_SHORTEST_BASE64 = 6


MOST_LETTERS = 10_000
"""The maximum length of a text that is shown: it may be in every row of a result."""


def is_secret(key: str, secrets: Sequence[str] = ()) -> bool:
    """Return whether an option's value must be hidden, by its name.

    >>> is_secret("auth-token"), is_secret("max-tokens")
    (True, False)
    """
    hyphenated = _hyphenated(key)
    has_word = _SECRET.search(key) is not None and not _COUNTS.fullmatch(hyphenated)
    return key in secrets or has_word or _CREDENTIAL.fullmatch(hyphenated) is not None


def is_secret_setting(name: str) -> bool:
    """Return whether a value that SET gives to this name must be hidden."""
    return is_secret(name) or _SECRET_SETTING.search(name) is not None


def may_have_secrets(text: str) -> bool:
    """Return whether a text has a word in it that names of secrets have.

    >>> may_have_secrets('{"PRICE_PER_TOKEN": "0.02"}'), may_have_secrets('{"PGUSER": "ann"}')
    (True, False)
    """
    return _SECRET.search(text) is not None or _SECRET_SETTING.search(text) is not None


def is_credential(name: str, value: Any) -> bool:
    """Return whether a text of this name is certainly a credential, which decides who may read, not what is there.

    Values of other names are hidden too, as of ``key`` or ``session``, but they may decide which rows there are. So may
    a number or a switch by the name of a token, and by that of a secret, text that says where it is: a URL, a path,
    JSON. What is in doubt is no credential here, and `is_secret` hides it.

    >>> is_credential("auth-token", "kx7"), is_credential("header.X-Api-Key", "kx7"), is_credential("PGPASSWORD", "7")
    (True, True, True)
    >>> is_credential("key", "kx7"), is_credential("token.url", "kx7"), is_credential("query.nextPageToken", "kx7")
    (False, False, False)
    >>> is_credential("PRICE_PER_TOKEN", "0.02"), is_credential("DB_SECRET", "prod/db"), is_credential("TOKEN", "a://b")
    (False, False, False)
    """
    hyphenated, text = _hyphenated(name), str(value).strip()
    if isinstance(value, Mapping | list) or not _CREDENTIAL.fullmatch(hyphenated) or _MARK.fullmatch(hyphenated):
        return False
    if _URL.fullmatch(text) or _OBJECT.fullmatch(text):
        return False
    if _PASSWORD.fullmatch(hyphenated):
        return True
    return _TOKEN.fullmatch(text) is not None and not (_LOWER_PATH.fullmatch(text) or _PLAIN_VALUE.fullmatch(text))


def without_credentials(data: Any) -> Any:
    """Return JSON data without the values that are certainly credentials, also in the texts that are URLs.

    >>> without_credentials({"user": "ann", "password": "s3cret", "url": "db://ann:s3cret@db/shop?code=AT&token=abc"})
    {'user': 'ann', 'url': 'db://ann@db/shop?code=AT&token'}
    >>> without_credentials("http://api/customers?token=abc;tenant=a")
    'http://api/customers?token;tenant=a'
    """
    if isinstance(data, Mapping):
        return {name: without_credentials(one) for name, one in data.items() if not is_credential(str(name), one)}
    if isinstance(data, list):
        return [without_credentials(value) for value in data]
    if not isinstance(data, str) or not _URL.fullmatch(data):
        return data
    text = _URL_PASSWORD.sub(r"\1@", data)
    return _URL_PARAMETER.sub(_without_credential, text)


def _without_credential(match: re.Match[str]) -> str:
    """Return a parameter without its value where that is a credential; a placeholder like ``{id}`` is no credential.

    Some servers take a semicolon or a comma as the end of a value.
    """
    value, rest = _UP_TO_SEPARATOR.findall(match[2])[0]
    is_left_out = is_credential(unquote(match[1]), unquote(value)) and not _PLACEHOLDER.fullmatch(value)
    return match[1] + rest if is_left_out else match[0]


def hide_userinfo(text: str) -> str:
    """Replace the password of a URL with stars, and passwords, tokens, keys and signatures in its query.

    A user without a password is shown, except in HTTP, where it is a token.

    >>> hide_userinfo("postgresql://ann:s3cret@db:5432/shop?token=abc&ssl=on")
    'postgresql://ann:***@db:5432/shop?token=***&ssl=on'
    >>> hide_userinfo("https://api/{id}?key={id}&sig=abc")
    'https://api/{id}?key={id}&sig=***'
    >>> hide_userinfo("mssql+pyodbc:///?odbc_connect=Driver=X;PWD={s3cret}")
    'mssql+pyodbc:///?odbc_connect=***'
    """
    shown = with_stars(text, _login_spans(text))
    return with_stars(shown, _parameter_spans(shown))


def hide_address(text: str) -> str:
    """Do as `hide_userinfo` for the value of an option that takes an address, which may be mistyped.

    Where a login is not in the place that a URL has for it, all up to its end is replaced.

    >>> hide_address("postgresql//ann:s3cret@db:5432/shop"), hide_address("postgresql://db/shop password=s3cret")
    ('***@db:5432/shop', 'postgresql://db/shop password=***')
    >>> hide_address("postgresql://ann:s3cret@db/shop"), hide_address("postgresql://ann:s3cret")
    ('postgresql://ann:***@db/shop', 'postgresql://ann:***')
    """
    if not any(mark in text for mark in _MARKS):
        return text
    shown = with_stars(text, _login_spans(text))
    shown = with_stars(shown, _parameter_spans(shown, _PARAMETER_OF_ADDRESS))
    shown = with_stars(shown, values_of_secrets(_ASSIGNED, shown, 0, len(shown)))
    login, _, rest = shown.rpartition("@")
    if ":" in login and not _LOGIN.fullmatch(login):
        return f"***@{rest}"
    return _NO_PORT.sub(r"\1***", shown)


def hide_query(text: str) -> str:
    """Do as `hide_userinfo` for a query, whose texts may be connection strings with passwords.

    >>> hide_query("SELECT * FROM dblink('user=ann password=s3cret', 'SELECT 1') WHERE token = 7")
    "SELECT * FROM dblink('user=ann password=***', 'SELECT 1') WHERE token = 7"
    """
    return hide_userinfo(with_stars(text, (span for span, _ in _settings_in_query(text))))


def query_secrets(text: str) -> list[str]:
    """Return the passwords and the like in the connection strings of a query.

    >>> query_secrets("SELECT * FROM dblink('user=ann password=s3cret', 'SELECT 1') WHERE token = 7")
    ['s3cret']
    """
    found = (value for _, value in _settings_in_query(text))
    return list(dict.fromkeys(form for one in found for form in (one, one.partition(";")[0]) if form))


def _settings_in_query(text: str) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the place of each value of a secret in the texts of a query, and the value without quotes."""
    for literal in _LITERAL.finditer(text) if "=" in text else ():
        margin = 1 if literal[1] is None else len(literal[1]) + 2
        within, first = literal[0][margin:-margin].replace("''", "\0'"), literal.start() + margin
        for start, end in values_of_secrets(_ASSIGNED_IN_LITERAL, within, 0, len(within)):
            yield (first + start, first + end), within[start:end].replace("\0", "").strip("'")


def url_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part of a text that `hide_userinfo` replaces."""
    yield from _login_spans(text)
    yield from _parameter_spans(text)


def values_of_secrets(value: re.Pattern[str], text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each value behind the name of a secret, the last group of a pattern."""
    done = start
    for name in _NAME.finditer(text, start, end):
        if name.start() >= done and is_secret(name[0]) and (found := value.match(text, name.end(), end)):
            first, done = found.span(found.lastindex or 0)
            if first < done:
                yield first, done


def hidden(text: str, secrets: Iterable[str]) -> str:
    r"""Replace secrets in a text with stars, however they are encoded, and those in its URLs.

    Characters that UTF-8 cannot encode are escaped. Parts of a secret of ten characters or more are replaced too,
    unless the secret is a URL, whose parts are in many texts. Within words, a secret of less than four
    characters is left. So truncate a text after calling this, never before.

    >>> hidden("ann:s3cret-2 and s3cret at db://ann:pw@h", ["s3cret", "s3cret-2"])
    'ann:*** and *** at db://ann:***@h'
    >>> hidden(r'{"key": "a\/b\u002bc"} for /x?k=a%2Fb%2Bc', ["a/b+c"])
    '{"key": "***"} for /x?k=***'
    >>> hidden("bad name: \udcff", [])
    'bad name: \\udcff'
    """
    # Text far beyond the final length is not searched: a source may return megabytes.
    length, text = len(text), text[: 10 * MOST_LETTERS]
    starred = with_stars(text, sorted(_Plain.of(text).spans(_patterns_of(frozenset(secrets)))))
    return _cut(hide_userinfo(starred).encode("utf-8", "backslashreplace").decode(), length)


def with_stars(text: str, spans: Iterable[tuple[int, int]], between: str = "") -> str:
    """Return a text with stars instead of these parts, which are in order; parts that touch are one.

    So are parts with only the characters of ``between`` between them.
    """
    shown, last = list[str](), 0
    for start, end in spans:
        if not shown or text[last:start].strip(between):
            shown += [text[last:start], STARS]
        last = max(last, end)
    return "".join([*shown, text[last:]])


def _login_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the passwords of URLs, and of the tokens in their place, in order."""
    if "@" in text:
        tokens = (match for match in _URL_TOKEN.finditer(text) if not _PLACEHOLDER.fullmatch(match["token"]))
        yield from sorted([*_password_spans(text), *(match.span("token") for match in tokens)])


def _parameter_spans(text: str, parameter: re.Pattern[str] = _PARAMETER) -> Iterator[tuple[int, int]]:
    """Yield start and end of the values of parameters in URLs that are secrets, or have some in them."""
    for match in parameter.finditer(text):
        if _is_secret_parameter(match) or any(_settings_in_parameter(match)):
            yield match.span("value")


def _settings_in_parameter(match: re.Match[str]) -> Iterator[str]:
    """Yield the values of secrets in the settings that a parameter has as its value, as ``options`` of PostgreSQL."""
    if "%3d" in match["value"].lower():
        value = unquote(match["value"])
        yield from (value[start:end] for start, end in values_of_secrets(_ASSIGNED, value, 0, len(value)))


def _password_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the passwords of URLs; a word has at most one, up to its last @.

    Digits before a slash are a port, except before an @ in the URL of a database.
    One pattern for all of it would take quadratic time for some texts, and a source may return any.
    """
    for word in _WORD.finditer(text):
        last = text.rfind("@", *word.span())
        start = at = query = word.start()
        while user := _URL_USER.search(text, start, max(last, start)):
            start = user.start() + 1
            if port := _PORT.match(text, user.end(), word.end()):
                if at < port.end():
                    at = text.find("@", port.end(), word.end())
                    at = word.end() if at < 0 else at
                if query < port.end():
                    found = _QUERY.search(text, port.end(), word.end())
                    query = word.end() if found is None else found.start()
                if user["http"] or at >= query:
                    continue
            yield user.end(), last
            break


def _cut(text: str, length: int) -> str:
    """Truncate a text; ``length`` is its length before secrets were replaced."""
    if len(text) <= MOST_LETTERS:
        return text
    more = f"… ({length:,} letters in all)"
    return text[: MOST_LETTERS - len(more)] + more


def url_secrets(text: str) -> list[str]:
    """Return a URL's password, and the tokens and keys in its query, both encoded and decoded.

    A value without a digit, or with few characters, may be an ordinary word and is not returned.

    >>> url_secrets("https://ann:p%40w@db/shop?sort_key=customer&sig=8a6f0c31")
    ['p%40w', 'p@w', '8a6f0c31']
    """
    found = [text[start:end] for start, end in _password_spans(text)]
    tokens = (match["token"] for match in _URL_TOKEN.finditer(text))
    found += [token for token in tokens if len(token) >= _SHORTEST_KEY and re.search(r"\d", token)]
    parameter = _PARAMETER_OF_ADDRESS if _BEGINS_AS_URL.match(text) else _PARAMETER
    for match in parameter.finditer(text) if "://" in text else ():
        found += _settings_in_parameter(match)
        word = len(match["value"]) < _SHORTEST_KEY or not re.search(r"\d", match["value"])
        if _is_secret_parameter(match) and (is_secret(unquote(match["name"])) or not word):
            found.append(match["value"])
    return list(dict.fromkeys(form for secret in found for form in (secret, unquote(secret))))


def _hyphenated(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _is_secret_parameter(match: re.Match[str]) -> bool:
    """Return whether a parameter's name is that of a secret; a placeholder like ``{id}`` as its value is no secret."""
    name = _hyphenated(unquote(match["name"]))
    secret = is_secret(name) or _SECRET_PARAMETERS.fullmatch(name)
    return bool(secret) and not _PLACEHOLDER.fullmatch(match["value"])


# ── encodings ────────────────────────────────────────────────────────────────────────────────────────────────

_ESCAPE = re.compile(
    r"%(?P<percent>[0-9a-fA-F]{2})"
    r"|&(?:#(?P<number>\d{1,7})|#[xX](?P<hex>[0-9a-fA-F]{1,6})|(?P<entity>amp|lt|gt|quot|apos));"
    # Possessive, from the first backslash: otherwise a long run of backslashes would take quadratic time.
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
class _Patterns:
    """What to search for in decoded text: full secrets, and pieces of them, all of one length.

    ``folded`` and ``pieces`` are in lower case: a source may return a header's name or a host in another case.
    """

    full: frozenset[str]
    folded: frozenset[str]
    pieces: frozenset[str]


@dataclass(frozen=True)
class _Plain:
    """A decoded text; ``starts`` is the position of each character in the encoded text, and of its end."""

    text: str
    starts: list[int]

    @classmethod
    def of(cls, text: str) -> _Plain:
        """Decode percent-encoding, the escapes of JSON, Python and HTML, and UTF-8 read as Latin-1, layer by layer."""
        plain = cls(text, list(range(len(text) + 1)))
        for _ in range(_MOST_LAYERS):
            before = plain.text
            for encoded, decode in _DECODERS:
                plain = plain._without(encoded, decode)
            if plain.text == before:
                break
        # Each layer of escapes doubles backslashes, and in a query a plus is a blank: so both are ignored.
        plain = plain._without(_BACKSLASHES, lambda match: match[1])
        return cls(plain.text.replace("+", " "), plain.starts)

    def spans(self, patterns: _Patterns) -> Iterator[tuple[int, int]]:
        """Yield start and end, in the encoded text, of each match."""
        folded = self.text.translate(_LOWER)
        for secrets, text in ((patterns.full, self.text), (patterns.folded, folded)):
            for secret in secrets:
                at = text.find(secret)
                while at >= 0:
                    if len(secret) >= _SHORTEST_WITHIN_WORDS or not self._is_in_word(at, at + len(secret)):
                        yield self.starts[at], self.starts[at + len(secret)]
                    at = text.find(secret, at + 1)
        for at in range(len(self.text) - _SHORTEST_PIECE + 1 if patterns.pieces else 0):
            if folded[at : at + _SHORTEST_PIECE] in patterns.pieces:
                yield self.starts[at], self.starts[at + _SHORTEST_PIECE]

    def _is_in_word(self, start: int, end: int) -> bool:
        """Return whether a letter or digit is beside this part."""
        return self.text[max(start - 1, 0) : start].isalnum() or self.text[end : end + 1].isalnum()

    def _without(self, encoded: re.Pattern[str], decode: Callable[[re.Match[str]], str]) -> _Plain:
        """Return the text with each match decoded, to one character or none."""
        parts, starts, last = list[str](), list[int](), 0
        for match in encoded.finditer(self.text):
            decoded = decode(match)
            parts += [self.text[last : match.start()], decoded]
            starts += self.starts[last : match.start() + len(decoded)]
            last = match.end()
        return _Plain("".join([*parts, self.text[last:]]), starts + self.starts[last:]) if last else self


def _unescape(match: re.Match[str]) -> str:
    kind = str(match.lastgroup)
    if kind == "letter":
        return _LETTERS[match[kind]]
    if kind == "entity":
        import html  # Here, since a text rarely has one, and the module holds a large table.

        return html.unescape(match[0])
    code = int(match[kind], 10 if kind == "number" else 16)
    return chr(code) if code < 0x110000 else "\ufffd"


_DECODERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_ESCAPE, _unescape),
    (_PAIR, lambda match: match[0].encode("utf-16", "surrogatepass").decode("utf-16")),
    (_UTF8_READ_AS_LATIN1, lambda match: match[0].encode("latin-1").decode(errors="replace")[:1]),
)


@functools.lru_cache(maxsize=64)
def _patterns_of(secrets: frozenset[str]) -> _Patterns:
    full, folded, pieces = set[str](), set[str](), set[str]()
    for secret in map(str.strip, secrets):
        is_long = len(secret) >= _SHORTEST_PIECE
        in_hex = secret.encode(errors="surrogatepass").hex() if is_long else ""
        for form in filter(None, (_Plain.of(secret).text, *_in_base64(secret), in_hex)):
            lower = form.translate(_LOWER)
            (folded if is_long else full).add(lower if is_long else form)
            if "://" not in secret:
                pieces.update(lower[at : at + _SHORTEST_PIECE] for at in range(len(lower) - _SHORTEST_PIECE + 1))
    return _Patterns(frozenset(full), frozenset(folded), frozenset(pieces))


def _in_base64(secret: str) -> Iterator[str]:
    """Yield the encodings of a secret as part of a longer text, such as the password in ``user:password``."""
    data = secret.encode(errors="surrogatepass")
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            # The characters at both ends contain bits of the text around it, so they are cut off.
            encoded = encode(bytes(before) + data).decode()[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
            if len(encoded) >= _SHORTEST_BASE64:
                yield _Plain.of(encoded).text
