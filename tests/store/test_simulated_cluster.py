"""Clusters that start with cold caches, in virtual time (`bench.simulate`): how often each key is requested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.simulate import ONE_SERVER, World, simulate

WORLD = World(hosts=20, workers=4, keys=400, batch=50, draw="uniform", call_seconds=0.02, nodes=1)


@pytest.mark.parametrize("draw", ["uniform", "zipf"])
def test_hosts_with_a_store_request_each_key_once_together(draw):
    world = replace(WORLD, draw=draw)
    assert simulate(replace(world, has_store=False)).per_key == 20
    assert simulate(world).per_key == 1


def test_hosts_go_on_without_a_store_that_is_too_slow():
    # 80 workers ask for 50 keys at once: 4 s of work for a node that takes a millisecond for each.
    slow = replace(WORLD, store_timeout=0.2, cost=replace(ONE_SERVER, get=0.001))
    found = simulate(slow)
    assert found.failures
    assert 1 < found.per_key <= 20
    assert found.wait < 1
    assert simulate(replace(slow, nodes=100)).per_key == 1
    assert simulate(replace(slow, store_timeout=None)).per_key == 1
