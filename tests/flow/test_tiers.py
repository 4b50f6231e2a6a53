"""What every tier promises to `fetch`: a host's files, Redis servers of several kinds, and a folder."""

from __future__ import annotations

import itertools
import math
from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
from drawing import examples
from fake_servers import SERVERS, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store import separate_tokens
from servers import until

from lookupcache import LookupConfig, cached
from lookupcache.decorator.values import Values

SHARING_CLAIMS = ["host", "valkey", *(f"{kind} {major}.{minor}" for kind, (major, minor) in SERVERS)]
FAST = {"host", "folder"}
KEYS = ["a", "b", "c"]
names = itertools.count()


def price(key):
    raise AssertionError("the tests answer for the function")


class Process:
    """The calls of one process, by the tier that it has opened."""

    def __init__(self, kind: str, url: str, name: str) -> None:
        place = {"cache_path": url, "version": name} if kind == "host" else {"store": url, "store_name": name}
        self.function = cached(LookupConfig(cache="LRU", **place))(price)
        [self.tier] = self.function.lookup.tiers
        assert self.tier.open(self.function.lookup._drop)

    def call(self, *keys, **options):
        return self.tier.call([(key,) for key in keys], **{"refresh": False, "most": math.inf, **options})

    def ask(self, *keys) -> tuple[list, dict]:
        """Begin a call and end it at once; return the keys that it was to request, and the values that it has found."""
        call = self.call(*keys)
        mine = [keys[position] for position in call.step(False)]
        call.end(lambda work: work())
        return mine, found(call)

    def renew(self, seconds: float, monkeypatch) -> None:
        """Renew all claims for so long."""
        if hasattr(self.tier, "entries"):
            claims = self.tier.entries.guarded._claims
            monkeypatch.setattr("lookupcache.store.guard.CLAIM_SECONDS", seconds)
        else:
            claims, self.tier.claim_seconds = self.tier.claims, seconds
        claims._work()
        claims.close()


def found(call) -> dict:
    return {key: value for (key,), value in call.found.values.items()}


def publish(call, positions, **values) -> None:
    call.publish(np.array(positions), Values({(key,): value for key, value in values.items()}))


def opener(request, kind):
    """Return a function that opens a kind of tier as a new process; each test has an empty one."""
    separate_tokens(request.getfixturevalue("monkeypatch"))
    folder = request.getfixturevalue("tmp_path_factory").mktemp("tier")
    if kind == "valkey":
        url = request.getfixturevalue("redis_server").url
    elif kind in FAST:
        url = str(folder)
    else:
        url = request.getfixturevalue("fakes")(kind)
    name = f"tier{next(names)}"
    opened = []

    def new() -> Process:
        opened.append(Process(kind, url, name))
        return opened[-1]

    request.addfinalizer(lambda: [one.function.close() for one in opened])
    return new


@pytest.fixture(scope="module")
def fakes():
    """Return a function that returns the URL of a kind of server, which runs while the module's tests do."""
    kinds = {f"{kind} {version[0]}.{version[1]}": (kind, version) for kind, version in SERVERS}
    with ExitStack() as running:
        yield cache(lambda kind: running.enter_context(serving(*kinds[kind])))


def params(kinds):
    return [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in kinds]


@pytest.fixture(params=params([*SHARING_CLAIMS, "folder"]))
def process(request):
    """Return a function that opens one tier as a new process."""
    return opener(request, request.param)


@pytest.fixture(params=params(SHARING_CLAIMS))
def claimant(request):
    """Do the same for the tiers in which processes see the claims of others."""
    return opener(request, request.param)


def test_a_claim_is_for_one_process_whose_rows_are_seen(claimant):
    one, other = claimant().call("a", "b"), claimant().call("b", "c")
    assert one.step(False).tolist() == [0, 1]
    assert (other.step(False).tolist(), other.left.tolist()) == ([1], [0])
    assert other.step(False).size == 0
    publish(one, [0, 1], a=1, b=None)
    assert not one.has_claims
    assert (other.step(False).size, found(other), other.is_complete) == (0, {"b": None}, True)
    publish(other, [1], c=[3])
    assert claimant().ask(*KEYS) == ([], {"a": 1, "b": None, "c": [3]})


@pytest.mark.parametrize("has_looked", [False, True], ids=["first look", "later look"])
def test_rows_published_before_a_claim_ended_are_not_requested(claimant, monkeypatch, has_looked):
    """Also where it was published between the look and the claim of the next one, or of another key."""
    one, two, process = claimant().call("a"), claimant().call("b"), claimant()
    other = process.call("a", "b")
    mine = one.step(False)
    if has_looked:
        two.step(False)
        assert not other.step(False).size
        two.end(lambda work: work())
    store = getattr(process.tier, "entries", None)
    claims, name = (process.tier._host, "claim") if store is None else (store.guarded, "claim_missing")
    claim = getattr(claims, name)

    def late_claim(*given, **options):
        if one.has_claims:
            publish(one, mine, a=1)
        return claim(*given, **options)

    monkeypatch.setattr(claims, name, late_claim)
    assert other.step(False).tolist() == [1]
    assert (other.step(False).size, found(other)) == (0, {"a": 1})


def test_a_claim_that_ends_without_a_value_is_free(claimant):
    one, other = claimant().call("a", "b"), claimant().call("a")
    one.step(False)
    assert not other.step(False).size
    one.end(lambda work: work())
    assert not one.has_claims
    assert other.step(False).tolist() == [0]


def test_a_claim_lasts_as_long_as_it_was_renewed_for(claimant, monkeypatch):
    process, other = claimant(), claimant().call("a")
    process.call("a").step(False)
    assert not other.step(False).size
    process.renew(0.001, monkeypatch)
    until(lambda: other.step(False).size)


def test_after_the_timeout_keys_of_others_are_requested(claimant):
    one, other = claimant().call("a"), claimant().call("a", "b")
    one.step(False)
    assert other.step(False).tolist() == [1]
    assert other.step(True).tolist() == [0]
    other.end(lambda work: work())
    assert claimant().ask("a", "b") == (["b"], {}), "the claim of the first is still there"


def test_an_invalidation_wins_over_what_was_requested_before(process):
    one, other, key = process(), process(), "a"
    for keys in ([(key,)], None):
        old = one.call(key)
        mine = old.step(False)
        other.tier.invalidate(keys)
        new = other.call(key)
        assert new.step(False).tolist() == [0], "who has requested it before is not waited for"
        one.ask("another key")
        publish(old, mine, a="old")
        assert process().ask(key)[1] == {}
        publish(new, [0], a="new")
        assert other.ask(key)[1] == {"a": "new"}
        other.tier.invalidate(keys)
        assert other.ask(key) == (["a"], {})


def test_of_keys_that_are_written_alike_one_is_shared(process):
    call = process().call(float("nan"), float("nan"), "a")
    assert sorted(call.step(False).tolist()) == [0, 1, 2]
    call.end(lambda work: work())


ACTIONS = st.sampled_from(["step", "step", "publish", "publish", "end", "invalidate"])
STEPS = st.lists(st.tuples(st.integers(0, 1), ACTIONS, st.sets(st.sampled_from(KEYS), min_size=1)), max_size=25)


@pytest.mark.parametrize("kind", params(["host", "valkey", "folder"]))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_drawn_calls_of_two_processes_find_the_last_value(request, kind, steps):
    """No key has two claims where claims are seen, and each value is the last one that was published."""
    new = opener(request, kind)
    processes, calls, current, numbers = [new(), new()], [{}, {}], {}, itertools.count()
    for which, what, keys in steps:
        process, open_calls = processes[which], calls[which]
        if what == "invalidate":
            process.tier.invalidate([(key,) for key in keys])
            for key in keys:
                current.pop(key, None)
            for other in calls:
                other.clear()
        for key in sorted(keys) if what != "invalidate" else ():
            call = open_calls.setdefault(key, process.call(key))
            if what == "step" and not call.is_complete:
                mine = call.step(False).size > 0
                assert found(call).get(key) == (None if mine else current.get(key))
                assert not (mine and kind != "folder" and key in calls[1 - which] and calls[1 - which][key].has_claims)
            elif what == "publish" and call.has_claims:
                current[key] = next(numbers)
                publish(call, [0], **{key: current[key]})
            elif what == "end":
                call.end(lambda work: work())
            if call.is_complete and not call.has_claims:
                del open_calls[key]
