"""What takes bytes from outside, as functions of bytes: each raises nothing but what it is documented to raise.

An input that makes one raise is a defect, or a check here that failed. ``SEEDS`` are the inputs to start from.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path as File
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from lookupcache_http.rows import RowReader, rows_at
from lookupcache_http.template import BodyTemplate, UrlTemplate
from lookupcache_openai.answer_schema import list_schema, object_schema
from lookupcache_openai.answers import AnswerError, columns_of, content_of, parse_document, vectors
from lookupcache_redis.keys import KeyTemplate
from lookupcache_redis.values import MISFITS, read_text
from lookupcache_sql.postgres import _address
from lookupcache_sql.server import DatabaseServer, tls_options
from yarl import URL

from lookupcache.cache.keys import KeyBatch
from lookupcache.compiled import CompiledPlan, PlanReference
from lookupcache.compiled.document import checksums
from lookupcache.config import LookupConfig
from lookupcache.connector import LookupRequest
from lookupcache.errors import ConnectorError, LookupCacheError, SchemaError, SourceError
from lookupcache.formats.json_path import Path
from lookupcache.formats.json_text import parse_json
from lookupcache.functions.value_codec import UnsupportedValueError, ValueCodec
from lookupcache.host.claims import Claims
from lookupcache.host.folder import Folder
from lookupcache.host.segment import (
    Segment,
    SegmentData,
    SegmentError,
    SegmentRange,
    checksum_of,
    summarize,
    write_segment,
)
from lookupcache.http.client import HttpProtocolError, resolve_url, with_parameters
from lookupcache.http.coding import Decoder
from lookupcache.planner.clauses import tokens
from lookupcache.redaction import hidden, hide_userinfo
from lookupcache.redis.address import Address
from lookupcache.schema import parse_ddl, to_ddl
from lookupcache.secrets import resolve_references
from lookupcache.sql.text import Statement, blank_comments
from lookupcache.store.frames import HEADER_BYTES, seal
from lookupcache.store.rows import from_frames, to_frames
from lookupcache.table import LookupTable
from lookupcache.table_file import TableFile

FOLDER = File(tempfile.mkdtemp(prefix=f"fuzz{os.getpid()}-"))
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
    try:
        document = parse_json(data)
    except ValueError:
        return
    for lenient in (True, False):
        reader = RowReader(REQUEST, SCHEMA, PATHS, lenient, wrong, str)
        with suppress(SourceError):
            table = reader.table(rows_at(Path.parse("$"), document, lenient, wrong, str))
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


@target(
    b'{"data": [{"index": 0, "embedding": [1, 2.5]}, {"index": 1, "embedding": [1e400]}]}', b"[]",
    b'{"data": [{"index": 1, "embedding": [NaN]}, {"index": true, "embedding": []}]}',
    b'{"choices": [{"finish_reason": "stop", "message": {"content": "{\\"a\\": \\"x\\", \\"b\\": 1e999}"}}]}',
    b'{"choices": [{"message": {"content": "{\\"rows\\": [{\\"a\\": null, \\"b\\": 2}]}", "refusal": null}}]}',
)  # fmt: skip
def model_answer(data: bytes) -> None:
    columns = pa.schema([("a", pa.string()), ("b", pa.float64())])
    with suppress(AnswerError, HttpProtocolError):
        document = parse_document(data, "the service")
        with suppress(AnswerError):
            for vector in vectors(document, 2, pa.list_(pa.float32()), 2):
                assert isinstance(vector, AnswerError) or (len(vector) == 2 and np.isfinite(vector).all())
        for has_many in (False, True):
            schema = list_schema(object_schema(columns)) if has_many else object_schema(columns)
            with suppress(AnswerError):
                found = columns_of(content_of(document), schema, columns, has_many)
                assert [array.type for array in found.values()] == columns.types


# ── files and servers that processes share ───────────────────────────────────────────────────────────────────

ROWS = pa.schema([("t", pa.string()), ("n", pa.list_(pa.int32())), ("s", pa.struct([("x", pa.bool_())]))])
KEY = KeyBatch.of([pa.array(["k"])], [pa.string()])
HASHED = 77


@cache
def frames() -> list[bytes]:
    rows = pa.table({"t": ["ab", None], "n": [[1, None], []], "s": [{"x": True}, None]}, schema=ROWS)
    return [to_frames(KEY, rows.slice(0, count), np.array([count]), 5.0, HASHED)[0] for count in (0, 1, 2)]


@target(*(kind + frame for kind in (b"\0", b"\x01") for frame in frames()))
def store_entry(data: bytes) -> None:
    frame = data[1:]
    if data[:1] == b"\x01" and len(frame) >= HEADER_BYTES:
        # With a right checksum: what a client wrote that is not ours.
        words = np.frombuffer(frame[: len(frame) // 8 * 8], np.uint8).copy()
        rows = np.array([int.from_bytes(frame[4:6], "little")])
        seal(words, np.array([0]), rows, 5.0, HASHED)
        frame = words.tobytes()
    found = from_frames([frame, None], KEY.take(np.array([0, 0])), [pa.string()], ROWS, HASHED)
    assert found.positions.tolist() in ([], [0])
    assert int(found.counts.sum()) == found.rows.num_rows
    found.rows.validate(full=True)
    if data[:1] != b"\x01" and len(found.positions):
        assert frame in frames()


@dataclass(frozen=True)
class City:
    """What a cached function may return."""

    name: str
    people: int = 0


CITIES = ValueCodec({"City": City})


@target(
    '{"$tuple": [1, {"$date": "2024-02-29"}]}', '{"$dict": [[1, {"$decimal": "1.50"}]]}', '{"$object": ["A", {}]}',
    '{"$object": []}', '{"$bytes": "AAEC"}', '{"$datetime": ["2024-05-01T12:00:00", 0, "UTC"]}', "[[[[1e999]]]]",
    "[" * 3000, CITIES.write((1.5, b"x", None, {1: "a"}, City("Wien", 2_000_000))),
)  # fmt: skip
def stored_value(data: bytes) -> None:
    try:
        value = CITIES.read(data)
    except ValueError:
        return
    with suppress(UnsupportedValueError):  # It is nested more deeply than what is written.
        assert CITIES.read(CITIES.write(value)) == value or value != value or "nan" in repr(value)


PLAN_HASH = b"p" * 16
SEGMENT = str(SegmentRange(1, 1, 1, 1))


@cache
def folder() -> Folder:
    return Folder(FOLDER / "host")


@cache
def segment() -> bytes:
    keys = KeyBatch.of([pa.array(["a", "b"])], [pa.string()], 3)
    times = np.array([1.0, 2.0])
    rows = pa.record_batch({"t": pa.array(["x"])})
    marks = np.zeros(2, np.uint8)
    write_segment(folder(), SEGMENT, SegmentData(keys, rows, np.array([1, 0]), *[times] * 4, marks), PLAN_HASH)
    return (folder().path / SEGMENT).read_bytes()


@target(b"\0" + segment(), b"\x01" + segment(), b"\x01" + segment()[:256], b"\x01")
def host_segment(data: bytes) -> None:
    content = bytearray(data[1:])
    if data[:1] == b"\x01" and len(content) >= 256:
        # With a right checksum: a file that a program with a defect has written.
        content += bytes(-len(content) % 64)
        content[12:16] = checksum_of(memoryview(content)).to_bytes(4, "little")
    (folder().path / SEGMENT).write_bytes(content)
    with suppress(SegmentError, OSError, ValueError):
        summarize(folder(), SEGMENT)
    try:
        found = Segment(folder(), SEGMENT, PLAN_HASH, [pa.string()], pa.schema([("t", pa.string())]))
    except SegmentError:
        return
    # So small a file is always compared with its checksum.
    assert content[12:16] == checksum_of(memoryview(bytes(content))).to_bytes(4, "little")
    # What `HostCache` counts as a failure of the host.
    with suppress(OSError, pa.ArrowException, ValueError, IndexError, SegmentError):
        found.gather(slice(None)).validate(full=True)
        found.keys(slice(None))
        found.gather(np.arange(len(found)))


@target(bytes(512), np.arange(64, dtype="<u8").tobytes(), b"\xff" * 512)
def host_claims(data: bytes) -> None:
    claims = Claims(folder(), 2)
    try:
        claims._keys[:] = np.frombuffer(data[:256].ljust(256, b"\0"), "<u8").reshape(2, 16)
        claims._infos[:] = np.frombuffer(data[256:512].ljust(256, b"\0"), "<u8").reshape(2, 16)
        hashes = np.unique(np.frombuffer(data[:64].ljust(64, b"\1"), "<u8"))
        mine = claims.claim(hashes, 5.0, 10.0)
        assert len(mine) == len(hashes)
        claims.renew(hashes, 6.0, 10.0)
        claims.states(hashes, 7.0)
        claims.release(hashes)
        assert not (claims.states(hashes, 7.0).claimants == claims.number).any()
        claims.remove(None)
        assert claims.claim(hashes, 5.0, 10.0).all()
    finally:
        claims.close()


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
    "a DECIMAL(38, 1, 8)",
)  # fmt: skip
def ddl(data: bytes) -> None:
    try:
        schema = parse_ddl(text_of(data))
    except SchemaError:
        return
    assert parse_ddl(to_ddl(schema)).equals(schema)


@target(
    "postgresql://ann@h:5432/d?sslmode=require", "mariadb://ann:pw@127.0.0.1/d?unix_socket=/s", "postgresql://[::1]/d",
    "postgresql://localhost/d?hostaddr=10.0.0.1", "postgresql:///d?host=127.0.0.1,h", "postgresql://h:x/d", "mariadb://[/",
)  # fmt: skip
def database_url(data: bytes) -> None:
    settings = {"url": text_of(data)}
    with suppress(LookupCacheError):
        server = DatabaseServer.of(settings, 1)
        assert server.host
        assert str(server)
        mode = tls_options(settings).mode
        if mode == "prefer" and not server.is_socket and server.host.lower() != "localhost":
            found = socket.getaddrinfo(server.host, 1, flags=socket.AI_NUMERICHOST)
            assert all(
                str(one[4][0]).startswith("127.") or str(one[4][0]) in ("::1", "::ffff:127.0.0.1") for one in found
            )
        if settings["url"].startswith("postgresql://"):
            sent = _address({**settings, "password": "&sslmode=disable"})
            assert mode == "prefer" or "sslmode" in settings["url"].partition("?")[2] or "sslmode=verify-full" in sent


@target(
    "redis://u:p@h:1/0", "rediss://h?db=1", "redis+sentinel://a:1,b/main/0", "redis+cluster://a,b:1", "unix:///s?db=x"
)
def redis_url(data: bytes) -> None:
    with suppress(LookupCacheError):
        address = Address.of({"url": text_of(data)})
        assert all(host for host, _ in address.nodes)


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
        definition = TableFile.read(path)
        assert all(isinstance(one, str) for pair in definition.options.items() for one in pair)
        LookupTable.from_toml(path)


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
    assert len(blank_comments(text)) == len(text)
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


ARCHIVE = File(__file__).parent.parent / "compiled" / "archive" / "0.1.0"


@target(*((ARCHIVE / f"{name}.json").read_bytes() for name in ("join_worker", "stream")), b"{}", b'{"format": 1e999}')
def compiled_plan(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    texts = [text_of(data)]
    if isinstance(document, dict):
        with suppress(RecursionError):
            # With right checksums: a plan that somebody wrote.
            texts.append(json.dumps({**document, "checksums": checksums({**document, "checksums": {}})}))
    for text in texts:
        with suppress(LookupCacheError):
            plan = CompiledPlan.of(PlanReference.from_json_string(text))
            plan.explain()
            written = plan.as_json_string()
            assert CompiledPlan.of(PlanReference.from_json_string(written)).as_json_string() == written


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
