"""What takes bytes from outside, as functions of bytes: each raises nothing but what it is documented to raise.

An input that makes one raise is a defect, or a check here that failed. ``SEEDS`` are the inputs to start from.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path as File
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from lookupcache_http.rows import RowReader, rows_at
from lookupcache_http.template import BodyTemplate, UrlTemplate
from lookupcache_redis.keys import KeyTemplate
from lookupcache_redis.values import MISFITS, read_text
from yarl import URL

from lookupcache import expr
from lookupcache.cli.trial import Definition
from lookupcache.config import LookupConfig
from lookupcache.connector import LookupRequest
from lookupcache.errors import ConnectorError, LookupCacheError, SchemaError, SourceError
from lookupcache.formats.json_path import Path
from lookupcache.formats.json_text import parse_json
from lookupcache.http.client import resolve_url, with_parameters
from lookupcache.http.coding import Decoder
from lookupcache.plan import LookupPlan
from lookupcache.planner.clauses import tokens
from lookupcache.redaction import hidden, hide_userinfo
from lookupcache.schema import parse_ddl, to_ddl
from lookupcache.secrets import resolve_references
from lookupcache.sql.text import Statement, without_comments

Target = Callable[[bytes], None]
SEEDS: dict[str, list[bytes]] = {}
TARGETS: dict[str, Target] = {}


def target(*seeds: bytes | str) -> Callable[[Target], Target]:
    def register(function: Target) -> Target:
        TARGETS[function.__name__] = function
        SEEDS[function.__name__] = [seed.encode() if isinstance(seed, str) else seed for seed in seeds]
        return function

    return register


def text_of(data: bytes) -> str:
    return data.decode(errors="replace")


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────

SCHEMA = parse_ddl(
    "id BIGINT, a STRING, b DOUBLE, c DECIMAL(10,2), d DATE, e TIMESTAMP, f TIMESTAMP_NTZ, g BOOLEAN, h BINARY, "
    "i ARRAY<STRUCT<x: INT, y: MAP<STRING, FLOAT>>>"
)
REQUEST = LookupRequest(table="t", key_columns=("id",), columns=tuple(SCHEMA.names[1:]))
PATHS = {name: Path.parse(name) for name in SCHEMA.names}


def wrong(what: str, hint: str | None = None) -> SourceError:
    return SourceError(what, hint=hint)


@target(
    b'[{"id": 1, "a": "x", "b": 1.5, "c": 1.25, "d": "2024-05-01", "e": "2024-05-01T12:00:00Z", "g": true}]',
    b'{"id": 9223372036854775807, "f": "2024-05-01 12:00", "h": "AAEC", "i": [{"x": 1, "y": {"k": 1e30}}]}',
    b'[{"id": null, "b": NaN, "c": "1e999999999", "a": "\\ud800"}]', b"[" * 3000, b'[{"id": 1e99999}]', b"null",
)  # fmt: skip
def json_answer(data: bytes) -> None:
    reader = RowReader(REQUEST, SCHEMA, PATHS, True, wrong, str)
    try:
        document = parse_json(data)
    except ValueError:
        return
    with suppress(SourceError):
        table = reader.table(rows_at(Path.parse("$"), document, wrong, str))
        assert table.schema.equals(SCHEMA)
        table.validate(full=True)


@target(b"\x00" + gzip.compress(b"[1]" * 99), b"\x01" + zlib.compress(b"x" * 999), b"\x01" + b"\x03\x00", b"\x02[]")
def content_coding(data: bytes) -> None:
    coding = ("gzip", "deflate", "identity")[data[0] % 3] if data else "gzip"
    decoder, body = Decoder(coding), bytearray()
    with suppress(zlib.error):
        for start in range(1, len(data), 7):
            body += decoder.decode(data[start : start + 7], 501 - len(body))
            assert len(body) <= 501
            if len(body) > 500:
                return


@target(b"1|1.5|2024-05-01|2013-01-01T05:00:00-05:00|true", b"0x1|nan|0001-01-01|9999-12-31T23:59:59.999999999Z|2")
def redis_value(data: bytes) -> None:
    for field, value in zip(SCHEMA, data.split(b"|"), strict=False):
        with suppress(*MISFITS):
            array = read_text([value, None], field.type)
            assert (array.type, len(array), array.null_count >= 1) == (field.type, 2, True)
            array.validate(full=True)


@target("w:{a}:{id}\nw:x:5", "{id}\n7", "c-{a}-{d}\nc-a-2024-05-01", "{{x}}{id}\n{x}1")
def redis_name(data: bytes) -> None:
    template, _, name = data.partition(b"\n")
    for escaped in (False, True):
        try:
            parsed = KeyTemplate.parse(text_of(template), SCHEMA, escaped=escaped)
        except LookupCacheError:
            continue
        keys = parsed.read([name])
        again = parsed.names({field.name: keys.column(field.name) for field in keys.schema})
        assert again in ([], [name])


@target(
    "https://api/customers?page=1\n?page=2", "http://h:1/a\n//evil/x", "http://h/\nhttp://h@evil/", "http://h/\n\\\\e"
)
def next_page(data: bytes) -> None:
    base, _, reference = text_of(data).partition("\n")
    try:
        url = URL(base, encoded=True)
        origin = url.origin()
    except ValueError:
        return
    found = resolve_url(url, reference)
    if found is not None:
        assert found.origin() == origin
        assert not found.user
        parts = urlsplit(str(found))
        assert (parts.hostname or "").lower() == (urlsplit(str(origin)).hostname or "").lower()


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────


@target(
    "https://api/customers/{id}?fields={columns}\na/../b", "http://h:8/{id}-{a}/x?y={a}\n..", "http://h/%{id}\n2e",
    "HTTP://h\\{id}\n@evil", "http://h/{id};{a}\n;", "http://h/a{id}\n\ud800".encode(errors="surrogatepass"),
)  # fmt: skip
def url_template(data: bytes) -> None:
    text, _, value = text_of(data).partition("\n")
    try:
        template = UrlTemplate.parse(text)
    except ValueError:
        return
    values: dict[str, Any] = dict.fromkeys(template.names, value)
    with suppress(ValueError):
        plain = template.fill(dict.fromkeys(template.names, "x"))
        filled = template.fill(values)
        if filled is None or plain is None:
            return
        assert urlsplit(filled)[:2] == urlsplit(plain)[:2]
        assert filled.count("/") == plain.count("/")
        assert filled.count("?") == plain.count("?")
        assert not set(filled) & set(" \r\n\t\0")
        assert URL(filled, encoded=True).host == URL(plain, encoded=True).host
        assert with_parameters(filled, {"k": value}).startswith(filled)


@target('{"ids": {keys}, "q": "{a}"}\n"', "[{id}]\n\\", '{"a": "\\"{id}", "b": {id}}\nx')
def body_template(data: bytes) -> None:
    text, _, value = text_of(data).partition("\n")
    try:
        template = BodyTemplate.parse(text)
    except ValueError:
        return
    empty = json.loads(template.fill(dict.fromkeys(template.names)))
    filled = json.loads(template.fill(dict.fromkeys(template.names, value)))
    assert _shape(filled, value) == _shape(empty, value)


def _shape(document: Any, value: str) -> Any:
    if isinstance(document, dict):
        return {name: _shape(inner, value) for name, inner in document.items()}
    if isinstance(document, list):
        return [_shape(inner, value) for inner in document]
    return None if document == value or document is None else document


@target("$.a.b[2]['x y'].*", "data[*].id", "$['\\'']", "$")
def json_path(data: bytes) -> None:
    with suppress(ValueError):
        path = Path.parse(text_of(data))
        path.nodes({"a": {"b": [1, 2, {"x y": {"c": 3}}]}, "data": [{"id": 1}]})
        _ = path.name, path.start()


@target(
    "id BIGINT NOT NULL, tags ARRAY<STRING>", "`a``b` DECIMAL(38,18), m MAP<STRING, STRUCT<x: INT>>", "a INT, A INT",
    "id INT) USING csv --", "a INT COMMENT 'x', b TIMESTAMP_NTZ", "a INT DEFAULT 1", "a CHAR(3)", "ab INTERVAL DAY",
)  # fmt: skip
def ddl(data: bytes) -> None:
    try:
        schema = parse_ddl(text_of(data))
    except SchemaError:
        return
    assert parse_ddl(to_ddl(schema)).equals(schema)


@target("max_rows=100\nexpire_after_write=10 min", "lookup.timeout=5 s\nlookup.cache=TTL", "lookup.rate-limit=1e400")
def options(data: bytes) -> None:
    pairs = [line.partition("=")[::2] for line in text_of(data).split("\n")]
    with suppress(LookupCacheError):
        config = LookupConfig.from_options(dict(pairs))
        assert LookupConfig.from_options(config.to_json()) == config


@target(
    'name = "t"\nschema = "id INT"\n[options]\nconnector = "sql"\n', "[options.a]\nb.c = [1]\n", "schema = 1\n[options]"
)
def table_file(data: bytes) -> None:
    path = FOLDER / "table.toml"
    path.write_bytes(data)
    with suppress(LookupCacheError):
        definition = Definition.read(path)
        assert all(isinstance(one, str) for pair in definition.options.items() for one in pair)
        definition.table()


@target("s3cret-sesame\n", b"\xff\xfe", "\r\n", "a\0b", "")
def secrets_file(data: bytes) -> None:
    path = FOLDER / "secret"
    path.write_bytes(data)
    try:
        found = resolve_references({"password": f"file:{path}"})["password"]
    except ConnectorError as error:
        if len(data) >= 8 and text_of(data) in str(error):
            raise AssertionError("the error shows the content") from error
        return
    assert found.encode() in (data, data.removesuffix(b"\n"), data.removesuffix(b"\r\n"))


# ── statements and plans ─────────────────────────────────────────────────────────────────────────────────────


@target(
    "CREATE TABLE t (id INT) WITH ('connector' = 'sql', 'password' = 'S')",
    "SELECT /*+ LOOKUP('table'='t') */ * FROM a JOIN t FOR SYSTEM_TIME AS OF a.p AS t ON a.i = t.i -- x",
    "SELECT 'it''s', \"a\", `b``c`, r'\\', X'61' /* a /* b */ c */", "CREATE TABLE t WITH ('password' = 'S", "'\\",
)  # fmt: skip
def statement(data: bytes) -> None:
    text = text_of(data)
    last = 0
    for token in tokens(text):
        assert last <= token.start < token.end <= len(text)
        last = token.end
    assert len(without_comments(text)) == len(text)
    made = Statement.of(text)
    assert len(made.parser_input) >= len(made.sql)
    assert all(0 <= start <= end <= len(text) for start, end in made.hidden)


@target(
    "s3cret\nann:s3cret at db://ann:pw@h", "a/b+c1234567\n{\"k\": \"a\\/b\\u002bc1234567\"}", "%41%\n%2541",
    "p\n\\\\\\u0070", "0123456789\nMDEyMzQ1Njc4OQ==",
)  # fmt: skip
def error_text(data: bytes) -> None:
    secret, _, text = text_of(data).partition("\n")
    shown = hidden(f"{text} {secret}", [secret, "other-secret"])
    shown.encode()
    if len(secret.strip()) >= 10 and not set(secret) & set("*\\+%&:/ \t"):
        assert secret not in shown
    hide_userinfo(text)


PLAN = LookupPlan(
    table="t", connector="sql", source="-", schema=parse_ddl("id BIGINT, name STRING"), how="left",
    keys=(), columns=("name",), left_columns=("id",), config=LookupConfig(max_retries=2),
    calc=(expr.Call("<", (expr.Column("right", "id", pa.int64()), expr.Literal(5, pa.int64()))),),
)  # fmt: skip


@target(
    json.dumps(PLAN.to_json()), "{}", '{"table": 1}', '{"schema": "id INT", "keys": [{}], "calc": [["and"]]}',
    '{"schema": "id INT", "calc": [["<", "boolean", ["right", 1]]]}',
)  # fmt: skip
def plan_file(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    with suppress(LookupCacheError):
        plan = LookupPlan.from_json(document)
        assert LookupPlan.from_json(json.loads(json.dumps(plan.to_json()))).to_json() == plan.to_json()


@target("down: \ud800 \x00".encode(errors="surrogatepass"), b"\xff" * 9, "x" * 99)
def dead_letter(data: bytes) -> None:
    import pyarrow.parquet as pq

    from lookupcache.worker.dead_letters import DeadLetters

    kinds = pa.struct([("code", pa.string()), ("message", pa.string())])
    message = data.decode(errors="surrogateescape").encode("utf-8", "backslashreplace").decode()
    letters = DeadLetters(str(FOLDER / "letters"), "t")
    letters.write(pa.record_batch({"id": [data]}), pa.array([{"code": "x", "message": message}], kinds))
    letters.close(True)
    [path] = (FOLDER / "letters").iterdir()
    [row] = pq.read_table(path).to_pylist()
    path.unlink()
    assert (row["id"], row["lookup_error"]["message"]) == (data, message)


FOLDER = File(tempfile.mkdtemp(prefix=f"fuzz{os.getpid()}-"))
