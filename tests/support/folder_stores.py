"""Stores in folders for tests: on every kind of file system, and with a clock that the test sets."""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow import fs

from lookupcache.store.contract import Store, StoreFullError, identity_prefix
from lookupcache.store.folder_files import ROOT, Files, LocalFiles, OpenFile, folder_name
from lookupcache.store.folder_store import FolderStore
from lookupcache.store.object_files import ObjectFiles

KINDS = ("local", "moved", "put")
"""A mounted folder; a file system of pyarrow that can rename; one that, as S3, only has objects."""


def new_store(kind: str, path: Path) -> Store:
    """Return the store of a new process in a folder."""
    return FolderStore(new_files(kind, path), str(path))


def new_files(kind: str, path: Path) -> Files:
    """Return a folder on a kind of file system."""
    if kind == "local":
        return LocalFiles(str(path))
    if kind == "moved":
        path.mkdir(exist_ok=True)
        system = fs.SubTreeFileSystem(str(path), fs.LocalFileSystem())
        return ObjectFiles(lambda: (system, "bucket"), str(path))
    memory = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("memory")))
    return ObjectFiles(lambda: (memory, f"/bucket{path}"), str(path))


def name_of(number: int, identity: str = "i") -> bytes:
    """Return the name of a key."""
    digits = hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest()
    return f"{identity_prefix(identity)}{{{digits}}}".encode()


def token(process: bytes, number: int = 0) -> bytes:
    """Return the token of an attempt to claim."""
    return process.ljust(16, b".") + number.to_bytes(8, "little")


MINE, YOURS = token(b"mine"), token(b"yours")


def files_of(path: Path, suffix: str) -> list[Path]:
    """Return the files of a kind in a folder."""
    return sorted(path.glob(f"lookupcache-1/*/*{suffix}"))


def entry(number: int) -> bytes:
    """Return what is written for a key."""
    return b"entry %d" % number


def put(
    store: Store, numbers: Iterable[int], claimant: bytes = MINE, seconds: float = math.inf, version: bytes = b""
) -> int:
    """Claim and write entries."""
    names = [name_of(number) for number in numbers]
    store.claim(names, claimant, 60)
    return store.put(names, [entry(number) + version for number in numbers], [seconds] * len(names), claimant)


def get(store: Store, *numbers: int) -> list[bytes | None]:
    """Return the entries of keys."""
    return store.get([name_of(number) for number in numbers]).entries


def make_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this user, who may be root, not write to folders."""

    def refuse(folder: str, name: str, parts: Iterable[Any]) -> None:
        raise OSError(errno.EROFS, "Read-only file system", name)

    monkeypatch.setattr("lookupcache.store.folder_files._write", refuse)


class _Clocked(LocalFiles):
    """Files whose file system has the clock of a test."""

    def __init__(self, clocked: ClockedFolder) -> None:
        self._clocked = clocked
        super().__init__(str(clocked.path))

    def names(self, identity: str) -> list[str]:
        self._check()
        return super().names(identity)

    def write(self, identity: str, name: str, parts: Iterable[Any]) -> None:
        self._check()
        if self._clocked.full:
            raise StoreFullError("No space left on device")
        super().write(identity, name, parts)
        with suppress(FileNotFoundError):  # Removed by another store.
            path = self._clocked.path / ROOT / folder_name(identity) / name
            os.utime(path, (self._clocked.clock, self._clocked.clock))

    def open(self, identity: str, name: str) -> OpenFile:
        self._check()
        return super().open(identity, name)

    def _check(self) -> None:
        if self._clocked.error is not None:
            raise self._clocked.error


class ClockedFolder:
    """A folder with a ``clock``; with ``error`` it raises that, and while ``full`` it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = 1_000_000.5
        self.error: Exception | None = None
        self.full = False
        self.stores: list[Store] = []

    def new_store(self) -> Store:
        """Return the store of a new process."""
        store = FolderStore(_Clocked(self), clock=lambda: self.clock)
        self.stores.append(store)
        return store

    @property
    def claims(self) -> list[bytes]:
        """The claims that have not ended."""
        return [token for store in self.stores for token in store._claims]

    def spoil(self) -> None:
        """Damage every entry."""
        for path in files_of(self.path, ".seg"):
            data = bytearray(path.read_bytes())
            data[-8:] = b"garbage!"
            path.write_bytes(data)

    def clear(self) -> None:
        """Remove all entries, as somebody else may."""
        error, self.error = self.error, None
        full, self.full = self.full, False
        store = self.new_store()
        store.clear()
        store.close()
        self.error, self.full = error, full

    def close(self) -> None:
        """Close all stores."""
        for store in self.stores:
            store.close()
