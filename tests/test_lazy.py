"""Properties that are computed once, also in a process that was forked meanwhile."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from time_limit import LIMIT

from lookupcache.host.segment import Segment
from lookupcache.lazy import cached_property


class Slow:
    """Computes a value when it may."""

    def __init__(self) -> None:
        self.began, self.may = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> list[int]:
        """A new list."""
        self.began.set()
        assert self.may.wait(LIMIT)
        return []


def test_a_value_is_computed_once():
    slow = Slow()
    slow.may.set()
    assert slow.value is slow.value
    assert Slow.value.__doc__ == "A new list."
    del slow.__dict__["value"]
    assert slow.value == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_thread():
    slow, other = Slow(), Slow()
    other.may.set()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.began.wait(LIMIT)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if other.value == [] else 1)
    assert os.waitpid(child, 0)[1] == 0
    slow.may.set()
    thread.join()


def test_no_property_of_a_segment_has_a_lock():
    """Threads of `cached` read them while others may fork."""
    found = [one for one in vars(Segment).values() if type(one).__name__ == "cached_property"]
    assert len(found) >= 10
    assert all(not hasattr(one, "lock") for one in found)
