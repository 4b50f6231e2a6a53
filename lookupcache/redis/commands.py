"""Commands of Redis as the bytes that are sent: one command for many keys, or one for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KeyCommand:
    """A command for many keys with further arguments ``fields``; with ``together``, it is sent once for all keys."""

    command: bytes
    keys: list[bytes]
    fields: tuple[bytes, ...] = ()
    together: bool = False

    def pack(self) -> bytes:
        """Return the encoded commands; redis-py's own encoding takes longer than the round trip."""
        if self.together:
            return pack([self.command, *self.keys])
        head = b"*%d\r\n%b" % (len(self.fields) + 2, _bulk(self.command))
        tail = b"".join(map(_bulk, self.fields))
        return b"".join([b"%b$%d\r\n%b\r\n%b" % (head, len(key), key, tail) for key in self.keys])

    def commands(self) -> Iterator[tuple[str | bytes, ...]]:
        """Yield one command per key, for a cluster, whose keys are on several servers."""
        command = "GET" if self.command == b"MGET" else self.command.decode()
        return ((command, key, *self.fields) for key in self.keys)


def pack(command: Sequence[bytes]) -> bytes:
    """Return an encoded command.

    >>> pack([b"GET", b"a"])
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\na\\r\\n'
    """
    # Without a step of the interpreter per word: a command may have thousands.
    parts = [b"\r\n"] * (3 * len(command))
    parts[0::3] = map(_HEADS.__getitem__, map(len, command))
    parts[1::3] = command
    return b"*%d\r\n%b" % (len(command), b"".join(parts))


class _Heads(dict[int, bytes]):
    """The bytes before a word of each usual length."""

    def __missing__(self, size: int) -> bytes:
        head = b"$%d\r\n" % size
        return self.setdefault(size, head) if size <= _MOST_HEADS else head


_MOST_HEADS = 4_096

_HEADS = _Heads()


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def replies_of_keys(key_command: KeyCommand, replies: list[Any]) -> list[Any]:
    """Return a reply per key, or a number for all of them; raises an error that is the reply for all of them."""
    if not key_command.together:
        return replies
    [reply] = replies
    if isinstance(reply, Exception):
        raise reply
    return [reply] if isinstance(reply, int) else list(reply)
