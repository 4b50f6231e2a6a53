"""Clients over redis-py's connections: a server or a cluster, one round trip for many keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lookupcache.redis.commands import KeyCommand, pack, replies_of_keys
from lookupcache.redis.errors import cluster_needed
from lookupcache.redis.replies import limit_bytes, within
from lookupcache.source_options import AnswerLimit

if TYPE_CHECKING:
    import redis


class RedisServer:
    """One server, over redis-py's connection pool; ``sentinels`` are the clients that report its address."""

    def __init__(self, client: redis.Redis, sentinels: Sequence[redis.Redis] = ()) -> None:
        self._client = client
        self._sentinels = sentinels

    def execute(self, key_command: KeyCommand, limit: AnswerLimit | None = None) -> list[Any]:
        """Return the reply for each key, which may be an error; raises the error of a lost connection.

        With a limit, reading stops with its error as soon as the replies have more bytes.
        """
        replies = self._exchange(key_command.pack(), 1 if key_command.together else len(key_command.keys), limit)
        return replies_of_keys(key_command, replies)

    def run(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Send commands in one round trip; return the reply for each, which may be an error."""
        return self._exchange(b"".join(map(pack, commands)), len(commands))

    def _exchange(self, packed: bytes, count: int, limit: AnswerLimit | None = None) -> list[Any]:
        """Send encoded commands, and return their replies; raises the error of a lost connection."""
        from redis.exceptions import MovedError, ResponseError

        pool = self._client.connection_pool
        connection = pool.get_connection()
        replies = []
        try:
            connection.send_packed_command([packed])
            with limit_bytes(connection, limit):
                for _ in range(count):
                    try:
                        replies.append(connection.read_response())
                    except MovedError as error:
                        raise cluster_needed() from error
                    except ResponseError as error:
                        replies.append(error)
        except BaseException:
            # Unread replies would be taken as those of the next command.
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        return replies

    def check(self) -> None:
        """Connect, log in and check that a Redis server answers."""
        from redis.exceptions import NoPermissionError

        with suppress(NoPermissionError):
            self._client.ping()

    def connect(self) -> None:
        """Connect, for the next command; a server that refuses PING, as one does that cannot save its data, answers."""
        from redis.exceptions import ResponseError

        with suppress(ResponseError):
            self._client.ping()

    def scan(self, pattern: bytes, kind: str, count: int) -> Iterator[bytes]:
        """Yield the names of keys of a type, possibly with duplicates.

        All over one connection, so that a lost one fails the scan: a cursor is not valid on another server.
        """
        from redis import Redis

        with Redis(connection_pool=self._client.connection_pool, single_connection_client=True) as client:
            yield from client.scan_iter(pattern, count, _type=kind)

    def connect_tracking(self, prefix: bytes, seconds: float) -> Any:
        """Return a new connection on which the server reports changed keys; reads on it time out after ``seconds``."""
        pool = self._client.connection_pool
        settings = {**pool.connection_kwargs, "protocol": 3, "socket_timeout": seconds, "redis_connect_func": None}
        connection = pool.connection_class(**settings)
        try:
            connection.connect()
            # Without a handler, redis-py drops such messages.
            connection._parser.set_invalidation_push_handler(_keep)
            connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", *(["PREFIX", prefix] if prefix else []))
            connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def close(self) -> None:
        for client in (self._client, *self._sentinels):
            client.connection_pool.disconnect()


class Cluster:
    """The servers of a cluster; each gets the commands for the keys of its slots, in parallel."""

    def __init__(self, client: redis.RedisCluster) -> None:
        self._client = client

    def execute(self, key_command: KeyCommand, limit: AnswerLimit | None = None) -> list[Any]:
        """Return the reply for each key, which may be an error; a limit is compared with the replies of all servers."""
        pipeline = self._client.pipeline()
        for command in key_command.commands():
            pipeline.execute_command(*command)
        return within(limit, pipeline.execute(raise_on_error=False))

    def run(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Send commands of one key each to their servers; return the reply for each, which may be an error."""
        pipeline = self._client.pipeline()
        for name, *arguments in commands:
            pipeline.execute_command(name.decode(), *arguments)
        return pipeline.execute(raise_on_error=False)

    def group(self, names: Sequence[bytes]) -> list[list[int]]:
        """Return the numbers of those names that are on the same server."""
        groups: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            groups.setdefault(self._client.get_node_from_key(name).name, []).append(number)
        return list(groups.values())

    def time(self) -> tuple[int, int]:
        """Return the clock of one of the servers, as TIME does."""
        return self._client.time(target_nodes=self._client.RANDOM)

    def check(self) -> None:
        """Check that a server answers."""
        self._client.ping(target_nodes=self._client.RANDOM)

    def connect(self) -> None:
        """Connect to all servers that have keys, for the next commands; raises an error if none of them answers."""
        from redis.exceptions import RedisError, ResponseError

        errors: list[Exception] = []
        nodes = self._client.get_primaries()
        for node in nodes:
            try:
                self._client.ping(target_nodes=node)
            except ResponseError:
                pass
            except (RedisError, OSError) as error:
                errors.append(error)
        if errors and len(errors) == len(nodes):
            raise errors[0]

    def scan(self, pattern: bytes, kind: str, count: int) -> Iterator[bytes]:
        """Yield the names of keys of a type on all servers, possibly with duplicates."""
        return self._client.scan_iter(pattern, count, _type=kind, target_nodes=self._client.PRIMARIES)

    def close(self) -> None:
        self._client.close()


def _keep(message: Any) -> Any:
    return message
