"""The commands and scripts of the store and of the rate limit, on other kinds and versions of servers than run here.

`fakeredis` implements them in Python, with Lua: what a server does with its memory, its clock or its connections is
tested with real ones.
"""

from __future__ import annotations

import pytest
from drawing import examples
from fake_servers import SERVERS, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore
from servers import until

from lookupcache.store.contract import OTHERS, OWN, THERE, Store
from lookupcache.store.redis_rate import RedisRate
from lookupcache.store.redis_store import RedisStore, _pieces

TOKENS = [b"mine" + bytes(8), b"mine" + b"\1" * 8, b"another's" + bytes(8)]
NAMES = [b"lookupcache:1:x:{%d}" % number for number in range(3)]


@pytest.fixture(scope="module", params=SERVERS, ids=lambda one: f"{one[0]} {one[1][0]}.{one[1][1]}")
def url(request):
    with serving(*request.param) as url:
        yield url


some = st.lists(st.integers(0, len(NAMES) - 1), min_size=1, max_size=len(NAMES), unique=True)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim_missing", "put", "put", "renew", "release", "invalidate", "get", "clear"]),
        some,
        st.sampled_from(TOKENS),
    ),
    min_size=5,
    max_size=20,
)


def take(store: Store, step: str, which: list[int], token: bytes):
    """Take a step; return what of it must be the same for all stores."""
    names = [NAMES[number] for number in which]
    if step in ("claim", "claim_missing"):
        states, reading = getattr(store, step)(names, token, 60)
        return states, reading.entries
    if step == "put":
        # Of two lifetimes, as rows and known misses have.
        return store.put(
            names, [b"%d" % number * 9 for number in which], [60.0 + number % 2 for number in which], token
        )
    if step == "get":
        return store.get(names).entries
    if step == "clear":
        store.clear("x")
    elif step == "invalidate":
        store.invalidate(names)
    elif step == "renew":
        store.renew(names, token, 60)
    else:
        store.release(names, token)
    return None


@settings(max_examples=examples(6), deadline=None)
@given(steps=STEPS)
def test_a_server_does_what_the_contract_says(url, steps):
    store, model = RedisStore(url, 10), MemoryStore()
    store.clear()
    for step in steps:
        assert take(store, *step) == take(model, *step)
    assert take(store, "get", [0, 1, 2], b"") == take(model, "get", [0, 1, 2], b"")
    assert sum(content.entries for content in store.contents()) == len(model.entries)
    store.close()


def test_claims_lapse_and_entries_are_described(url):
    store = RedisStore(url, 10)
    store.clear()
    assert store.claim(NAMES[:2], TOKENS[0], 60)[0] == [True] * 2
    assert store.claim(NAMES[:1], TOKENS[2], 60)[0] == [OTHERS]
    assert store.claim(NAMES[:1], TOKENS[1], 60)[0] == [OWN]
    assert [store.put(NAMES[:1], [b"entry"], [60.0], token) for token in reversed(TOKENS)] == [0, 0, 1]
    assert store.claim_missing(NAMES[:2], TOKENS[2], 60)[0] == [THERE, OTHERS]
    store.renew(NAMES[:2], TOKENS[1], 0.001)
    until(lambda: store.claim(NAMES[1:2], TOKENS[2], 60)[0] != [OTHERS])
    assert store.describe("x", {"table": "t"}) == store.describe("x", {"table": "u"}) == {"table": "t"}
    store.close()


def test_a_rate(url):
    one, other = (RedisRate(url, 10, "source") for _ in range(2))
    times = one.take_times(3, 1, 1, b"m")
    assert (times.granted, times.first, times.members) == (2, 0, 1)
    times = other.take_times(3, 1, 1, b"n")
    assert (times.granted, times.members) == (0, 2)
    one.close(), other.close()


class Counted(bytes):
    """An argument that counts how often its length is read."""

    counts = 0

    def __len__(self) -> int:
        Counted.counts += 1
        return super().__len__()


def test_each_argument_of_a_script_is_added_up_once():
    """A server of a cluster that refuses scripts for several slots runs one for each of ten thousand names."""
    own, Counted.counts = [[Counted(b"entry")] for _ in range(10_000)], 0
    assert [piece for number in range(10_000) for piece in _pieces([number], own)] == [[n] for n in range(10_000)]
    assert Counted.counts == 10_000
