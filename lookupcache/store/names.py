"""Identities and names: which entries two jobs share, and what the entry of a key is called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from lookupcache.cache.keys import KeyBatch, hash_keys
from lookupcache.plan import LookupPlan, content_of, digest
from lookupcache.store.contract import identity_prefix
from lookupcache.store.frames import FORMAT_VERSION

_SEEDS = (np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB))
"""The same in every process and version: names are found again by other hosts and later runs."""


def identity_of(plan: LookupPlan, source: str | None = None) -> str:
    """Return the identity of a plan's entries in a store: the name that options set, or that of their content."""
    return plan.config.store_name or digest([FORMAT_VERSION, *content_of(plan, source)])


def schema_hash(schema: str) -> int:
    """Return the hash of a schema that is in every entry.

    >>> schema_hash("id BIGINT -> name STRING") == schema_hash("id BIGINT -> name BINARY")
    False
    """
    return int.from_bytes(hashlib.sha256(schema.encode()).digest()[:8], "little")


def is_of_other_schema(about: Mapping[str, str], schema: str) -> bool:
    """Return whether what describes an identity names another schema than that of some entries' columns.

    A description that names none is garbage: entries of another schema are not read in any case.
    """
    found = about.get("schema", "")
    return re.fullmatch("[0-9a-f]{16}", found) is not None and found != schema


def names_of_keys(identity: str, keys: KeyBatch) -> list[bytes]:
    """Return the name of each key's entry: a hash, since a key may be long or personal data.

    Two keys can have the same name, so an entry has its key, which is compared.
    """
    words = np.stack([hash_keys(keys.columns, seed) for seed in _SEEDS], axis=1)
    return _names(identity, np.ascontiguousarray(words).tobytes().hex(), len(keys))


def names_of_bytes(identity: str, keys: Sequence[bytes]) -> list[bytes]:
    """Return the name of the entry of each key that is encoded as bytes."""
    hashes = b"".join(hashlib.blake2b(key, digest_size=16).digest() for key in keys)
    return _names(identity, hashes.hex(), len(keys))


def _names(identity: str, digits: str, count: int) -> list[bytes]:
    head, text = f"{identity_prefix(identity)}{{".encode(), digits.encode()
    return [b"%b%b}" % (head, text[at : at + 32]) for at in range(0, 32 * count, 32)]
