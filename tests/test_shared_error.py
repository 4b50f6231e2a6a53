"""An error for several callers: each raises an object of its own, with the frames of no other."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import traceback
import urllib.error
from contextlib import suppress
from typing import Any

import pytest

from lookupcache.errors import LookupTimeoutError
from lookupcache.shared_error import SharedError


class Renamed(Exception):
    """Its arguments are others than those it was created with."""

    def __init__(self, code: int, *, about: str) -> None:
        super().__init__(f"Code {code}.")
        self.code, self.about = code, about


class Slotted(Exception):
    __slots__ = ("code",)


class Unclonable(OSError):
    def __reduce__(self) -> Any:
        raise RuntimeError("No copies.")


class OfNoArguments(OSError):
    def __init__(self) -> None:
        super().__init__(5, "no answer")


def slotted() -> Slotted:
    error = Slotted("s")
    error.code = 7
    return error


COPIED = [
    ValueError("down", 1), KeyError("k"), Renamed(7, about="x"), OSError(2, "gone", "file"), StopIteration(3),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ImportError("no", name="m"), asyncio.CancelledError("closed"),
    LookupTimeoutError("Late.", hint="Wait."), subprocess.CalledProcessError(3, ["ls"]), SystemExit(4),
    ExceptionGroup("both", [ValueError("a")]), AttributeError("a", name="n"),
]  # fmt: skip
SHARED = [slotted(), Unclonable(5, "x"), OfNoArguments(), urllib.error.HTTPError("u", 500, "m", None, None)]  # type: ignore[arg-type]


def raised(error: BaseException) -> BaseException:
    """Return an error after it was raised, with a cause and a note."""
    try:
        error.add_note("a note")
        raise error from LookupError("the cause")
    except BaseException as caught:
        return caught


def state(error: BaseException) -> Any:
    return (type(error), error.args, repr(error.__cause__), error.__suppress_context__, str(error),
            {name: repr(value) for name, value in vars(error).items()})  # fmt: skip


@pytest.mark.parametrize("error", [*COPIED, *SHARED], ids=lambda error: type(error).__name__)
def test_each_caller_has_the_error_with_its_own_frames(error):
    error = raised(error)
    before, lines = state(error), len(traceback.extract_tb(error.__traceback__))
    shared, taken = SharedError(error), []
    for _ in range(4):
        taken.append(one := shared.take())
        assert state(one) == before
        with suppress(type(one)):
            raise one
        assert len(traceback.extract_tb(one.__traceback__)) <= lines + 1
    assert taken[0] is error
    assert len(set(map(id, taken))) == (1 if error in SHARED else 4)


def test_a_note_of_one_caller_is_no_note_of_others():
    shared = SharedError(raised(ValueError("down")))
    first, second = shared.take(), shared.take()
    second.add_note("request 7")
    assert (first.__notes__, shared.take().__notes__) == (["a note"], ["a note"])


def test_threads_take_the_error_itself_once():
    shared, taken = SharedError(ValueError("down")), []
    threads = [threading.Thread(target=lambda: taken.append(shared.take())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, taken))) == 20
