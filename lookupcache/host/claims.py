"""`Claims`: which process requests a key from the source, so that the others of the host wait for its rows.

A claim is an element of a bucket, which the key's hash chooses. Correctness never depends on a claim: if there is no
space for one, or it lapses, a key is requested twice.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Hashes, Mask
from lookupcache.host.folder import Folder

NAME = "claims"
LOCK = "claims.lock"
_WAYS = 16
_MOST_CLAIMANTS = 1 << 12
_MILLISECONDS = np.uint64(48)
_DEADLINE = np.uint64((1 << 47) - 1)
_QUEUED = np.uint64(1 << 47)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)

Buckets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClaimStates:
    """The states of the claims of keys.

    - ``claimants``: the number of the living process that has claimed each key, 0 for none.
    - ``is_queued``: which of these claims are of calls that wait for something else than their source.
    - ``has_lapsed``: which keys have a claim that a living process does not renew any more.
    """

    claimants: npt.NDArray[np.int64]
    is_queued: Mask
    has_lapsed: Mask


class Claims:
    """The claims of a host, and this process's number among the claimants.

    A claimant lives as long as it holds the lock of its ``alive`` file. Times are of the host's clock. The number of
    ``buckets``, of 16 claims each, is a power of two.
    """

    def __init__(self, folder: Folder, buckets: int) -> None:
        self._folder = folder
        self._buckets = buckets
        self._map()
        self._alive = -1
        self.number = 0
        self._enlist()

    def close(self) -> None:
        """End all claims of this process."""
        if self._alive >= 0:
            with suppress(OSError):
                self._remove_claims_of(self.number)
            self.drop()
        self._keys = self._infos = np.zeros((0, _WAYS), np.uint64)

    def drop(self) -> None:
        """Close the file that shows that this process lives: a forked child must not keep its parent's open."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    def claim(self, hashes: Hashes, now: float, seconds: float) -> Mask:
        """Claim keys with distinct hashes; return which of them this process is to request.

        For the others, there is a claim of another process. A key for which there is no space is to be requested.
        """
        with self._folder.lock(LOCK):
            bucket, index = self._find(hashes)
            taken = index >= 0
            rows = np.flatnonzero(taken)
            infos = self._infos[bucket[rows], index[rows]]
            lapsed = ~self._in_force(infos, now) | (self._claimants(infos) == self.number)
            self._infos[bucket[rows[lapsed]], index[rows[lapsed]]] = self._info(now + seconds)
            self._insert(hashes[~taken], bucket[~taken], now, now + seconds)
            mine = ~taken
            mine[rows[lapsed]] = True
            return mine

    def renew(self, hashes: Hashes, now: float, seconds: float, *, is_queued: bool = False) -> None:
        """Extend this process's claims of these keys; ``is_queued`` says that calls wait for more than their source."""
        with self._folder.lock(LOCK):
            at = self._own(hashes)
            self._infos[at] = self._info(now + seconds) | (_QUEUED if is_queued else np.uint64(0))

    def release(self, hashes: Hashes) -> None:
        """End this process's claims of these keys."""
        with self._folder.lock(LOCK):
            self._infos[self._own(hashes)] = 0

    def remove(self, hashes: Hashes | None) -> None:
        """End the claims of all processes of these keys, or with None of all keys: their rows may be outdated."""
        with self._folder.lock(LOCK):
            if hashes is None:
                self._infos[:] = 0
                return
            bucket, index = self._find(hashes)
            rows = np.flatnonzero(index >= 0)
            self._infos[bucket[rows], index[rows]] = 0

    def states(self, hashes: Hashes, now: float) -> ClaimStates:
        """Return what is known of the claims of keys; takes no lock."""
        bucket, index = self._find(hashes)
        infos = np.where(index >= 0, self._infos[bucket, index], np.uint64(0))
        force, claimants = self._in_force(infos, now), self._claimants(infos)
        has_lapsed = (claimants > 0) & ~force
        for number in np.unique(claimants[has_lapsed]).tolist():
            if not self.lives(number):
                has_lapsed &= claimants != number
        return ClaimStates(np.where(force, claimants, 0), force & ((infos & _QUEUED) != 0), has_lapsed)

    # ── the table ────────────────────────────────────────────────────────────────────────────────────────

    def _find(self, hashes: Hashes) -> tuple[Buckets, Buckets]:
        """Return the bucket of each key, and the index of its claim there, -1 for none."""
        bucket = (((hashes ^ (hashes >> _HALF)) * _ODD) >> np.uint64(33)).view(np.int64) & (self._buckets - 1)
        same = (self._keys[bucket] == hashes[:, None]) & (self._infos[bucket] != 0)
        return bucket, np.where(same.any(axis=1), same.argmax(axis=1), -1)

    def _own(self, hashes: Hashes) -> tuple[Buckets, Buckets]:
        """Return where this process's claims of keys are: all of them, also in a table that was damaged."""
        bucket, _ = self._find(hashes)
        infos = self._infos[bucket]
        own = (self._keys[bucket] == hashes[:, None]) & (infos != 0) & (self._claimants(infos) == self.number)
        rows, index = np.nonzero(own)
        return bucket[rows], index

    def _insert(self, hashes: Hashes, bucket: Buckets, now: float, deadline: float) -> None:
        """Write claims into free elements of their buckets: the first key of a bucket takes the first, and so on."""
        order = np.argsort(bucket, kind="stable")
        hashes, bucket = hashes[order], bucket[order]
        # Several keys of one call may have the same bucket. The n-th of them takes its n-th free element, so that all
        # are written at once and none over another. Keys without a free element are not claimed.
        rank = np.arange(len(bucket)) - np.searchsorted(bucket, bucket)
        free = ~self._in_force(self._infos[bucket].ravel(), now).reshape(-1, _WAYS)
        wanted = free & (np.cumsum(free, axis=1) == rank[:, None] + 1)
        rows = np.flatnonzero(wanted.any(axis=1))
        index = wanted[rows].argmax(axis=1)
        self._keys[bucket[rows], index] = hashes[rows]
        self._infos[bucket[rows], index] = self._info(deadline)

    def _info(self, deadline: float) -> np.uint64:
        return np.uint64(self.number << 48 | int(deadline * 1000))

    def _claimants(self, infos: Hashes) -> npt.NDArray[np.int64]:
        return (infos >> _MILLISECONDS).astype(np.int64)

    def _in_force(self, infos: Hashes, now: float) -> Mask:
        """Return which claims have neither lapsed nor lost their claimant."""
        force = (infos & _DEADLINE) > np.uint64(int(now * 1000))
        if force.any():
            claimants = self._claimants(infos)
            for number in np.flatnonzero(np.bincount(claimants[force])).tolist():
                if not self.lives(number):
                    force &= claimants != number
        return force

    def _map(self) -> None:
        size = self._buckets * _WAYS * 16
        for _ in range(2):
            try:
                mapped, found = self._folder.map(NAME, writable=True)
            except (FileNotFoundError, ValueError):
                found = None
            if found is not None and found.st_size == size:
                break
            self._create(size)
        else:
            raise OSError("the table of claims cannot be made")
        shape = (self._buckets, _WAYS)
        self._keys = np.frombuffer(mapped, "<u8", self._buckets * _WAYS).reshape(shape)
        self._infos = np.frombuffer(mapped, "<u8", self._buckets * _WAYS, size // 2).reshape(shape)

    def _create(self, size: int) -> None:
        name = f"{NAME}.new"
        with self._folder.lock(LOCK):
            if self._folder.size(NAME) != size:
                # A process that was killed may have left one.
                self._folder.remove(name)
                self._folder.allocate(name, size)
                self._folder.rename(name, NAME)

    # ── claimants ────────────────────────────────────────────────────────────────────────────────────────

    def _enlist(self) -> None:
        """Take the first number whose file is not locked; remove claims and files that a dead process left under it."""
        for number in range(1, _MOST_CLAIMANTS):
            fd = self._folder.open(f"alive-{number}", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            self.number, self._alive = number, fd
            try:
                # If a process that is stopped has the lock, the claims lapse.
                with suppress(TimeoutError):
                    self._remove_claims_of(number)
                self._remove_files_of(number)
            except BaseException:
                self.drop()
                raise
            return
        raise OSError("there are too many processes")

    def _remove_claims_of(self, number: int) -> None:
        with self._folder.lock(LOCK):
            self._infos[self._claimants(self._infos) == number] = 0

    def _remove_files_of(self, number: int) -> None:
        """Remove what a process of this number was writing: the next one may write files of the same names."""
        for name in self._folder.names():
            if name.startswith(f"{number}-") and name.endswith(".tmp"):
                self._folder.remove(name)

    def lives(self, number: int) -> bool:
        return number == self.number or is_locked(self._folder, f"alive-{number}")


def is_locked(folder: Folder, name: str) -> bool:
    """Return whether another process holds the lock of a file."""
    try:
        fd = folder.open(name, os.O_RDWR)
    except OSError:
        return False
    try:
        # Shared: two processes that check at the same time must not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
