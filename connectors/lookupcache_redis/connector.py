"""The `redis` connector: rows by key from Redis, Valkey and servers that speak their protocol.

keys ─► names ─► one round trip: HMGET of the requested fields, pipelined, or one MGET ─► texts, JSON ─► Arrow
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import Connector, LookupRequest, is_reference
from lookupcache.errors import ConnectorError, OptionError
from lookupcache.redis.address import CONNECT_SECONDS, Address
from lookupcache.redis.clients import Cluster, RedisServer
from lookupcache.redis.errors import check_driver, connect_error, is_temporary
from lookupcache.source_options import MAX_BYTES, AnswerLimit, one_of, whole_number
from lookupcache.tls import TLS_OPTIONS
from lookupcache_redis.keys import KeyTemplate
from lookupcache_redis.push import HEARTBEAT, Feed
from lookupcache_redis.rows import TYPES, Rows

SCAN_KEYS = 5_000
"""Keys in a batch of `RedisConnector.scan`."""


class RedisConnector(Connector):
    """Looks rows up in Redis: one Redis key holds one row.

    ``key`` is the template of a Redis key's name with the table's key columns, as in ``customer:{id}`` or
    ``w:{origin}:{hour}``. A join needs all of them, as keys or constants. The other columns are, by ``type``:

    - ``hash``: fields of the same names; only requested fields are fetched. A missing field is null.
    - ``string``: one column, the value.
    - ``json``: members of a JSON object, which is the string value; a missing member is null.
      `lookupcache.formats.json_values.json_array` says how they become the column's types.

    Texts are read as `lookupcache_redis.values.read_text` says. Numbers are in decimal, booleans ``true``, ``false``,
    ``1`` or ``0``. Dates and timestamps are in ISO 8601 (UTC without a zone, truncated to microseconds as by Spark's
    CAST). Binaries are as they are, arrays, structs and maps JSON. A value that does not fit raises SourceError, which
    does not show it. In names, each value has one canonical text: ``7``, never ``07``; ``true``; ``1.50`` for a
    DECIMAL(4,2); ``2013-01-01T05:00:00Z``; ``0.1`` as Python writes it. A key whose value contains the separator after
    it, as ``a:b`` in ``w:{origin}:{hour}``, has no row. With ``escape`` = ``percent`` values are written as in a URL
    (``a%3Ab``), as are separators in values (``a%2Db`` in ``w-{origin}-{hour}``), and may contain any character.

    With ``push`` the server reports changed keys: keys that are set, deleted, flushed, or removed by the server after
    they expired. They are removed from the cache (LRU, TTL) before the next batch of rows is looked up. While the
    connection for these reports is lost, no cached row is used.

    >>> RedisConnector(pa.schema([("id", pa.int64()), ("name", pa.string())]),
    ...                {"url": "redis://:s3cret@db:6379/0", "key": "customer:{id}"})
    RedisConnector({'url': 'redis://:***@db:6379/0', 'key': 'customer:{id}'})
    """

    one_row_per_key: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str]] = {
        "url": "The server: redis://user:password@host:6379/0, rediss:// for TLS, unix:///path, "
        "redis+sentinel://host:26379,host:26379/service/0 or redis+cluster://host:6379,host:6379.",
        "key": "The template of a Redis key's name with the key columns, as in 'customer:{id}' or 'w:{origin}:{hour}'.",
        "type": "The value of a Redis key: 'hash' (the default), 'string' or 'json'.",
        "escape": "'percent': values in names are percent-encoded as in a URL, and so are separators in values; "
        "'none' (the default): as they are.",
        "push": "'true': the server reports changed keys, which are removed from the cache at once.",
        "user": "The user to log in as, if it is not in the URL.",
        "password": "The password, if it is not in the URL; 'env:NAME' or 'file:PATH' keep it out of the code.",
        "sentinel.user": "The user to log in as at the sentinels.",
        "sentinel.password": "The sentinels' password.",
        "max-bytes": "The maximum number of bytes that the server may return for a call; by default "
        f"{MAX_BYTES}. Of a cluster, they are counted after they have arrived.",
        "connect.timeout": f"Seconds to connect; {CONNECT_SECONDS:g} by default.",
        "tls.mode": "With rediss://: 'verify-full' (the default), 'verify-ca' (any host name) or 'require' (any "
        "certificate).",
        **TLS_OPTIONS,
    }
    renamed: ClassVar[Mapping[str, str]] = {
        "username": "user",
        "sentinel.username": "sentinel.user",
        "tls.verify": "tls.mode",
    }
    required = ("url", "key")
    batch_max_size = 10_000

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        options = self.settings
        self.type = one_of(options, "type", TYPES)
        self._most_bytes = whole_number(options, "max-bytes", MAX_BYTES)
        self.push = self.reports_changes = one_of(options, "push", ("false", "true")) == "true"
        escaped = one_of(options, "escape", ("none", "percent")) == "percent"
        self.template = KeyTemplate.parse(options["key"], schema, escaped=escaped)
        self.columns = tuple(name for name in schema.names if name not in self.template.columns)
        if self.type == "string" and len(self.columns) != 1:
            raise OptionError(
                f"With 'type' = 'string' a table has one column apart from those of 'key', not {len(self.columns)}.",
                hint="Use 'json' or 'hash' for more, or correct the schema.",
            )
        if not is_reference(options["url"]):
            self._check_push(Address.of(options))
        check_driver()
        self._rows = Rows(schema, self.template, self.type)
        self._feed = Feed()
        self._server: RedisServer | Cluster | None = None
        self._feeding = False

    def environment(self) -> Mapping[str, Any]:
        """Return the values behind references, and where the links of a Unix socket lead."""
        found, socket = super().environment() or {}, _SOCKET.match(self.settings["url"])
        return {**found, "socket": _real_path(socket[2])} if socket else found

    def pin(self) -> None:
        """Replace the path of a Unix socket by where its links lead now."""
        url = _SOCKET.sub(lambda match: match[1] + _real_path(match[2]), self.settings["url"])
        self.settings = {**self.settings, "url": url}

    # ── connecting ───────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Connect and log in; raises ConnectorError if the server rejects the login or is not a Redis server."""
        check_driver()
        self._check_push(Address.of(self.settings))
        try:
            self._client().check()
            if self.push:
                self._start_feed()
        except Exception as error:
            self.close()
            raise connect_error(error, self.settings["url"]) from error.__cause__

    def close(self) -> None:
        self._stop_feed()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _client(self) -> RedisServer | Cluster:
        if self._server is None:
            self._server = Address.of(self.settings).new_client()
        return self._server

    # ── looking up ───────────────────────────────────────────────────────────────────────────────────────

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join on a part of the key."""
        self._rows.check(request)

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return the rows of the keys, with one round trip, and a second one for keys that seem to be missing."""
        server = self._server
        if server is None:
            raise ConnectorError("The redis connector is used before open().")
        limit = AnswerLimit(request.table, self._most_bytes)
        return self._rows.of_keys(lambda command: server.execute(command, limit), request, keys)

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all keys whose names match the template.

        A key that exists from start to end is found once; SCAN does not read a snapshot.
        """
        server = self._client()
        kind = "HASH" if self.type == "hash" else "STRING"
        names = server.scan(self.template.pattern(request.constants), kind, SCAN_KEYS)
        for some in _split_batches(_unique_names(names), SCAN_KEYS):
            yield from self._rows.of_names(server.execute, request, self.template.read(some)).to_batches()

    def retryable(self, error: Exception) -> bool:
        """Return whether an error is temporary: a lost or late connection, a server that loads or fails over."""
        return is_temporary(error)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    def changed(self, request: LookupRequest) -> pa.RecordBatch | None:
        """Return the keys that the server reported as changed since the last call; None if any may have changed."""
        names = self._feed.take() if self.push else set()
        if names is None:
            return None
        keys = self.template.read(list(names))
        for name, value in request.constants.items():
            type_ = self.schema.field(name).type
            if name in self.template.columns and name not in request.key_columns and not pa.types.is_floating(type_):
                keys = keys.filter(pc.equal(keys.column(name), pa.scalar(value, type_)))
        if set(request.key_columns) <= set(self.template.columns):
            return keys.select(list(request.key_columns))
        # A name does not contain these key columns, so any of their values may be affected.
        fields = [self.schema.field(name) for name in request.key_columns]
        return None if keys.num_rows else pa.RecordBatch.from_pylist([], pa.schema(fields))

    def _check_push(self, address: Address) -> None:
        if self.push and address.kind == "cluster":
            raise OptionError(
                "Option 'push' is 'true', but with a cluster, changes of its servers are not reported.",
                hint="Leave 'push' out; 'lookup.cache.expire-after-write' limits the age of rows.",
            )

    def _start_feed(self) -> None:
        server = self._client()
        assert isinstance(server, RedisServer)
        self._feed.start(lambda: server.connect_tracking(self.template.prefix, HEARTBEAT))
        self._feeding = True

    def _stop_feed(self) -> None:
        if self._feeding:
            self._feeding = False
            self._feed.stop()


_SOCKET = re.compile("(unix://[^/?#]*)(/[^?#]*)", re.IGNORECASE)


def _real_path(path: str) -> str:
    return quote(os.path.realpath(unquote(path)))


def _unique_names(names: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each name once: SCAN may return one several times."""
    seen: set[bytes] = set()
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name


def _split_batches(names: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while some := list(itertools.islice(names, size)):
        yield some
