"""Secrets in texts: however they are encoded, wherever they stand, whole or in pieces."""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
import sys
import traceback
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import HttpServer, Reply
from time_limit import LIMIT

from lookupcache.errors import LookupCacheError
from lookupcache.planner.explain import explain
from lookupcache.redaction import (
    MOST_LETTERS,
    hidden,
    hide_address,
    hide_userinfo,
    is_credential,
    is_secret,
    is_secret_setting,
    may_have_secrets,
    url_secrets,
    without_credentials,
)
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted, plan_of

LETTERS = "abcXYZ0189/+=_-.~\\\"'<>&%#?: üé😀{}"
ENDS = "abcXYZ0189/=_~<>#üé😀"  # a blank at an end belongs to the text around as well


def every(letter):
    return f"\\u{ord(letter):04x}" if ord(letter) < 1 << 16 else letter


ENCODINGS = {
    "as it is": str, "URL": lambda text: quote(text, safe=""), "URL, lower": lambda text: lowered(quote(text, safe="")),
    "query": quote_plus, "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON of PHP": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "all escaped": lambda text: "".join(map(every, text)), "HTML": html.escape,
    "HTML by numbers": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "bytes": lambda text: repr(text.encode())[2:-1], "read as Latin-1": lambda text: text.encode().decode("latin-1"),
}  # fmt: skip


def lowered(text):
    return re.sub("%..", lambda match: match[0].lower(), text)


def secrets_of(letters, least, most):
    return st.builds("{}{}{}".format, st.sampled_from(ENDS), st.text(letters, min_size=least, max_size=most),
                     st.sampled_from(ENDS))  # fmt: skip


secrets = secrets_of(LETTERS, 4, 40)
encodings = st.lists(st.sampled_from(sorted(ENCODINGS)), min_size=1, max_size=2)


def encoded(text, names):
    for name in names:
        text = ENCODINGS[name](text)
    return text


@pytest.mark.extended
@settings(max_examples=examples(500), deadline=None)
@given(secrets, encodings)
def test_only_the_secret_is_hidden_in_every_encoding(secret, names):
    assert hidden(f"the word {encoded(secret, names)} is not known", [secret]) == "the word *** is not known"


@settings(max_examples=examples(300), deadline=None)
@given(secrets.filter(lambda text: len(text.encode()) >= 8), st.text("abn:", max_size=5), st.text("xyz", max_size=5))
def test_a_secret_is_hidden_in_base64_whatever_surrounds_it(secret, before, behind):
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        spelled = encode(f"{before}{secret}{behind}".encode()).decode()
        left = hidden(f"Authorization: Basic {spelled}", [secret]).removeprefix("Authorization: Basic ")
        assert "***" in left
        # What is left are the characters that hold bits of what stands around.
        assert len(left.replace("***", "")) <= len(spelled) - len(secret.encode()) * 8 // 6 + 1


@pytest.mark.extended
@settings(max_examples=examples(300), deadline=None)
# Of a percent-sign and the like, a piece may be half of an escape; of a URL, no piece is hidden.
@given(secrets_of(sorted(set(LETTERS) - set("%\\&:")), 9, 40), encodings, st.data())
def test_a_piece_of_ten_characters_is_hidden(secret, names, data):
    start = data.draw(st.integers(0, len(secret) - 10))
    piece = secret[start : data.draw(st.integers(start + 10, len(secret)))]
    assert hidden(f"begins with [{encoded(piece, names)}]", [secret]) == "begins with [***]"


@settings(deadline=None)
@given(st.lists(st.text("abc", min_size=3), max_size=3), st.text('xyz/%+\\"&;:= u0041', max_size=200))
def test_nothing_else_is_hidden(given_, text):
    assert hidden(text, given_) == text


@pytest.mark.parametrize("text", ["\\" * 50_000, "%25" * 20_000, "://a:" * 10_000, ";a" * 30_000, "?" + "key" * 20_000])
def test_long_texts_without_a_secret_are_only_cut(text):
    shown = hidden(text, ["s3cret-sesame"])
    assert len(shown) == MOST_LETTERS
    assert text.startswith(shown.partition("…")[0])


def test_a_secret_where_a_long_text_is_cut_is_starred_first():
    text = "x" * (MOST_LETTERS - 40) + "s3cret-sesame" * 20
    assert "s3cret" not in hidden(text, ["s3cret-sesame"])
    text = "x" * (10 * MOST_LETTERS - 5) + "s3cret-sesame"
    assert "s3c" not in hidden(text, ["s3cret-sesame"])


@settings(max_examples=examples(200), deadline=None)
@given(st.from_regex(r"[a-zA-Z0-9_-]{10,40}", fullmatch=True), st.sampled_from(["upper", "lower", "swapcase"]))
def test_a_long_secret_is_hidden_in_another_case_and_in_hex(secret, case):
    change = getattr(str, case)
    assert hidden(f"[{change(secret)}] [{change(secret.encode().hex())}]", [secret]) == "[***] [***]"


def test_a_short_secret_is_hidden_as_it_is_written_only():
    assert hidden("Red, red and 726564", ["red"]) == "Red, *** and 726564"


def test_a_shorter_secret_is_hidden_as_a_word_only():
    assert hidden("Table 'b' of b: bab, b1 and _b_ %62&", ["b"]) == "Table '***' of ***: bab, b1 and _***_ ***&"


def test_a_full_url_is_hidden_but_not_its_pieces():
    secret = "https://api.example.com/hooks/T0KEN/customers"
    assert hidden(f"POST {secret} failed", [secret]) == "POST *** failed"
    assert hidden("no https://api.example.com/hooks", [secret]) == "no https://api.example.com/hooks"


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────────

SHOWN = ["id", "page", "sort", "keys", "monkey", "design", "fields", "author", "encode", "passage", "limit"]
HIDDEN = [
    "sig", "key", "api_key", "apiKey", "api-key", "apikey", "access_key", "AccessKey", "subscription-key", "code",
    "signature", "X-Amz-Signature", "X-Amz-Credential", "x-goog-signature", "token", "access_token", "auth", "jwt",
    "jsessionid", "hmac", "passcode", "otp", "session_id",
    "client_secret", "password", "pwd", "sas", "appid", "session", "api%5Fkey", "x.api.key",
]  # fmt: skip


@pytest.mark.parametrize("mark", ["?", "?a=1&", "?a=1;", "?a=1&amp;", "#", "?a=1#", "#a=1&"])
def test_parameters_that_are_secrets_by_their_names(mark):
    for name in [*HIDDEN, *SHOWN]:
        url = f"https://api/{{id}}{mark}{name}=8a6f0c31&b=2"
        assert hide_userinfo(url) == (url.replace("8a6f0c31", "***") if name in HIDDEN else url)
        assert url_secrets(url) == (["8a6f0c31"] if name in HIDDEN else [])


def test_places_and_words_are_no_secrets():
    assert hide_userinfo("https://api/x?key={id}&code={country}") == "https://api/x?key={id}&code={country}"
    assert url_secrets("https://api/x?sort_key=customer&key={id}&code=NL&key=1234") == []


USER = st.text("abcXYZ019_-.%", min_size=1, max_size=12)
PASSWORDS = st.text("abXY01/?#:@+%-", min_size=1, max_size=12).filter(lambda text: re.search("[a-zA-Z]", text[0]))
DIGITS = st.from_regex(r"\d{1,5}[/#?]\d{1,5}", fullmatch=True)


@pytest.mark.extended
@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(["postgresql", "redis", "mysql+pymysql"]), USER, PASSWORDS | DIGITS)
def test_a_database_password_with_any_letters_is_starred(scheme, user, password):
    assert hide_userinfo(f"at {scheme}://{user}:{password}@h:1/x failed") == f"at {scheme}://{user}:***@h:1/x failed"


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(["http", "https", "HTTPS", "git+https"]), USER)
def test_a_user_without_a_password_is_a_token_in_http(scheme, user):
    assert hide_userinfo(f"at {scheme}://{user}@h:1/x failed") == f"at {scheme}://***@h:1/x failed"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann@db",
        "https://{user}@h/",
        "http://h:8080/ann@home",
        "https://h:4873/@scope/x",
        "pg://h:1/d?u=a@b",
    ],
)
def test_urls_without_password_are_shown(url):
    assert hide_userinfo(url) == url


# ── by the http connector ────────────────────────────────────────────────────────────────────────────────────

SECRET = 'Zq7/vK+9="ü'
LONG = SECRET + "0123456789abcdef" * 3


def options(secret):
    return {
        "header": {"header.X-Key": secret.encode("ascii", "ignore").decode()},
        "token": {"token": secret.encode("ascii", "ignore").decode()},
        "query": {"query.k": secret},
        "password": {"user": "bob", "password": secret},
        "user": {"user": secret},
        "url": {"url": f"URL/{{id}}?sig={quote(secret, safe='')}"},
    }


PLACES = {
    "an error's body": lambda said: Reply(f"you sent: {said}", 403),
    "the end of what is shown": lambda said: Reply("x" * 180 + said, 403),
    "much white space": lambda said: Reply("x" + " \n" * 5_000 + said, 500),
    "a wrong value": lambda said: Reply({"id": 1, "v": said}),
    "a wrong value, cut": lambda said: Reply({"id": 1, "v": "x" * 25 + said}),
    "a wrong document": lambda said: Reply({"error": said}),
    "no row": lambda said: Reply({"data": [said]}),
    "no JSON": lambda said: Reply(said),
    "the next page": lambda said: Reply({"data": [], "next": f"http://elsewhere/{quote(said)}"}),
    "where to go": lambda said: Reply("", 302, {"Location": f"http://elsewhere/{quote(said)}"}),
    "the coding": lambda said: Reply("", 200, {"Content-Encoding": quote(said)}),
}


@pytest.fixture(scope="module")
def server():
    started = HttpServer(None).start()
    yield started
    started.kill()


@pytest.mark.extended(keep_one_in=10)
@pytest.mark.slow
@pytest.mark.parametrize("place", sorted(PLACES))
@pytest.mark.parametrize("option", sorted(options("")))
@pytest.mark.parametrize("secret", [SECRET, LONG], ids=["short", "long"])
def test_a_service_that_repeats_what_it_was_sent(server, secret, option, place, caplog):
    own = options(secret)[option]
    [sent] = [value for value in own.values() if value != "bob"]
    sent = secret if option == "url" else sent
    basic = base64.b64encode(f"{own.get('user', '')}:{own.get('password', '')}".encode()).decode()
    own = {"connector": "http", "url": server.url + "/{id}", "rows": "$.data", "lookup.max-retries": "0", **own}
    own["url"] = own["url"].replace("URL", server.url)
    if "value" in place:
        own["rows"] = "$"
    if place == "the next page":
        own["pages.next"] = "$.next"
    table = LookupTable("t", "id BIGINT, v BIGINT", own)
    texts = [repr(table), repr(table.connector), json.dumps(plan_of(table, WANTED).to_json())]
    texts += [explain(plan_of(table, WANTED)), caplog.text]
    for name in ("as it is", "URL", "JSON of PHP", "all escaped", "HTML", "read as Latin-1"):
        for said in {ENCODINGS[name](sent), *([basic] if "user" in own else [])}:
            server.reply = lambda requested, said=said: PLACES[place](said.replace("\r", ""))
            texts += said_of(table)
    assert [text for text in texts if tells(sent, text) or ("user" in own and basic[:12] in text)] == []


WANTED = Wanted(key=("id",))


def said_of(table):
    """Return what is said of a lookup that fails, with all that led to that."""
    with pytest.raises(LookupCacheError) as raised, LocalJoin(table, WANTED) as join:
        join.rows([(1,)])
    error, texts = raised.value, []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return texts


def tells(secret, text):
    """Return whether a text holds eleven characters of a secret, decoded in one of the usual ways."""
    read = [text, unquote(text), unquote_plus(text), html.unescape(text), text.replace("\\/", "/")]
    read += [re.sub(r"\\u(....)", lambda match: chr(int(match[1], 16)), one) for one in read]
    pieces = {secret[at : at + 11] for at in range(max(len(secret) - 10, 1))}
    return any(piece in one for piece in pieces for one in read)


MISTYPED = (
    "{scheme}//ann:{secret}@h/1", "{scheme}:/ann:{secret}@h/1", "ann:{secret}@h/1", "{scheme}:ann:{secret}@h/1",
    "{scheme}:\\\\ann:{secret}@h/1", "{scheme};//ann:{secret}@h/1", " {scheme}://ann:{secret}@h/1",
    "{scheme}:///ann:{secret}@h/1", "{scheme}://ann:{secret} @h:ab/1", "{scheme}://ann:{secret}@h:port/1",
    "{scheme}://ann;{secret}@h/1",
    "{scheme}://ann%3A{secret}@h/1", "{scheme}://ann:{secret}@", "{scheme}://ann:{secret}@h:99999999/1", "jdbc:{scheme}://ann:{secret}@h/1",
    "jdbc:{scheme}://h/1?user=ann&password={secret}", "{scheme}://h/1 password={secret}", "{scheme}://h:{secret}@x/1",
)  # fmt: skip
OPTIONS_WITH_ADDRESSES = {
    "postgresql": {"connector": "sql", "url": "", "table": "t"},
    "sqlite": {"connector": "sql", "url": "", "table": "t"},
    "redis": {"connector": "redis", "url": "", "key": "{id}"},
    "https": {"connector": "http", "url": "", "body": "[{keys}]"},
    "http": {"connector": "openai", "url": "", "task": "chat", "model": "m", "prompt": "{id}"},
    "s3": {"connector": "files", "path": ""},
    "rediss": {"connector": "files", "path": "/t", "lookup.cache": "LRU", "lookup.cache.store": ""},
    "gs": {"connector": "files", "path": "/t", "lookup.cache": "LRU", "lookup.cache.store": ""},
    "hdfs": {"connector": "files", "path": "/t", "lookup.on-error": "dead-letter", "lookup.dead-letter.path": ""},
}


@pytest.mark.extended
@pytest.mark.parametrize("scheme", OPTIONS_WITH_ADDRESSES)
def test_the_password_in_a_mistyped_address_is_not_shown(scheme):
    secret = "kx7q-9hidden"
    for mistyped in MISTYPED:
        address = mistyped.format(scheme=scheme, secret=secret)
        options = {name: value or address for name, value in OPTIONS_WITH_ADDRESSES[scheme].items()}
        try:
            table = LookupTable("t", "id BIGINT, v BIGINT", options)
            said = [repr(table), repr(table.connector), repr(table.config), explain(plan_of(table, WANTED))]
        except LookupCacheError as error:
            said = ["".join(traceback.format_exception(error))]
        # Python shows the line that raised the error, but not its variables.
        assert [text for text in said if secret in text] == []


@pytest.mark.parametrize(
    "text", ["redis://ann:s3cret-1", "redis://ann:s3cret-1%40h:6379/0", "redis+cluster://a:1,ann:s3cret-1/0"]
)
def test_a_password_where_the_port_should_be_is_hidden(text):
    assert "s3cret" not in hide_address(text)


@pytest.mark.parametrize(
    "text",
    ["redis+cluster://a:1,b:2/0", "redis://[::1]:6379", "http://h:{port}/x", "file:///a:b", "/a//b:c", "s3://b/k:x"],
)
def test_an_address_without_a_secret_is_shown(text):
    assert hide_address(text) == text


REPEATED = (
    "http://a:", "x://a:", "p://a:1/", "p://a:1/?", "p://a:1/=@", "http://a:1/@", "http://http://", "password",
    "password =", "a=#", "?a=", "#", "://", "@", "\\", "%25", "&#1;", "http://a@", "token token =",
)  # fmt: skip
"""What a source may repeat a hundred thousand times in the text of an error."""
HIDES_ALL = """
import sys
from lookupcache import redaction
for part in sys.argv[1:]:
    text = "@ " + part * (300_000 // len(part)) + " ?@"
    redaction.hide_userinfo(text), redaction.hide_address(text), redaction.url_secrets(text)
    redaction.hidden(text, ["s3cret-secret", "aaa"])
"""


@pytest.mark.extended
def test_no_text_takes_quadratic_time():
    """A pattern that did would take a minute for one of them; all of them take seconds."""
    subprocess.run([sys.executable, "-c", HIDES_ALL, *REPEATED], timeout=LIMIT, check=True)


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(["password", "token", "pwd", " ", "'", ":", "//", "?", "&", "ann", "s3cret", "-"])))
def test_a_text_without_an_address_or_a_setting_has_no_secret(words):
    """So the many texts that a function holds are not searched."""
    text = "".join(words).replace("://", "")
    assert hide_address(text) == hide_userinfo(text) == hidden(text, []) == text


_WORDS = st.sampled_from(
    [
        "price",
        "per",
        "token",
        "tokens",
        "max",
        "secret",
        "password",
        "pass",
        "key",
        "api",
        "account",
        "access",
        "pwd",
        "signature",
        "sig",
        "page",
        "next",
        "session",
        "code",
        "header",
        "X",
        "id",
        "authorization",
    ]
)
_NAMES = st.tuples(st.lists(_WORDS, min_size=1, max_size=4), st.sampled_from("-_.")).map(
    lambda one: one[1].join(one[0])
)


@given(_NAMES, st.text(max_size=12) | st.floats().map(str) | st.integers().map(str) | st.booleans().map(str))
@settings(max_examples=examples(400))
def test_what_is_left_out_is_hidden(name, value):
    """What is in doubt is both: a part of the identity, and hidden."""
    if is_credential(name, value):
        assert is_secret(name) or is_secret_setting(name)
        assert without_credentials({name: value}) == {}
    else:
        assert name in without_credentials({name: value})
        assert may_have_secrets(name) or not is_credential(name, "kx7")
    if not re.search("pass(word|code)?$|pwd$", name, re.IGNORECASE):
        assert not is_credential(name, "0.02")


@pytest.mark.parametrize(
    "value",
    ["0.02", "1e-6", "-3", "1,000", "5%", "1/2", "[1, 2]", "5ms", "10 s", "0x10", "inf", "nan", "true", "OFF", "y",
     "enabled", "", 7, True, ["kx7"], {"a": "kx7"}],
)  # fmt: skip
def test_what_no_service_gives_out_is_no_token(value):
    assert not is_credential("PRICE_PER_TOKEN", value)
    assert is_secret("PRICE_PER_TOKEN")
    assert is_credential("PRICE_PER_TOKEN", "kx7")
    if not isinstance(value, list | dict):
        assert is_credential("PGPASSWORD", value)


@pytest.mark.parametrize(
    "value",
    ['{"host": "prod", "password": "kx7"}', "prod/shop-db", "/run/secrets/db", "arn:aws:secretsmanager:eu:1:secret:a",
     "postgresql://u:kx7@prod/shop", "host=prod password=kx7", "[prod]"],
)  # fmt: skip
def test_what_says_where_a_secret_is_counts(value):
    assert not is_credential("DB_SECRET", value)
    assert is_secret("DB_SECRET")
    assert "kx7@" not in without_credentials({"DB_SECRET": value})["DB_SECRET"]


@pytest.mark.parametrize(
    "value", ["kx7", "Bearer kx7", "Basic dXNlcg==", "eyJh.eyJz.c2ln", "wJalr/K7+MDENG=", "a-b_c~d"]
)
def test_one_word_is_a_token(value):
    assert is_credential("header.Authorization", value)
    assert is_credential("SHOP_TOKEN", value)
