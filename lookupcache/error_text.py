"""The text of errors that leave a worker: readable, without secrets, and encodable.

An error leaves a worker as text, for Spark's driver, for a column of the result or for a file. `errors.text_of` reads
the text of any error. `presentable` returns an error that can be shown with all of its causes, and `clear_locals`
deletes the local variables of their tracebacks.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from traceback import walk_tb
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import TypeVar

from lookupcache import errors
from lookupcache.errors import LookupCacheError, text_of

Ours = TypeVar("Ours", bound=LookupCacheError)


_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """Return a text, whose secrets are hidden, without terminal colours; other control characters are escaped.

    >>> print(without_controls("".join(map(chr, [27])) + "[31mno key " + chr(2)))
    no key \\x02
    """
    return _CONTROL.sub(lambda found: "" if found[0][1:] else f"\\x{ord(found[0]):02x}", text)


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all others that its traceback shows: causes, contexts, and members of groups."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.append(one.__cause__ if one.__suppress_context__ else one.__context__)
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def is_presentable(error: BaseException, hide: Callable[[str], str]) -> bool:
    """Return whether an error can be shown as it is, with its causes: ``hide`` leaves their texts unchanged."""
    texts = (text for one in error_chain(error) for text in (text_of(one), *_notes(one), *_source_line(one)))
    return all(hide(text) == text for text in texts)


def presentable(error: Exception, hide: Callable[[str], str]) -> Exception:
    """Return an error that can be shown: itself, or a copy without its causes.

    An error that is not lookupcache's becomes a RuntimeError.
    """
    if is_presentable(error, hide):
        return error
    if isinstance(error, LookupCacheError):
        return present_error(error, hide).with_traceback(error.__traceback__)
    text = without_controls(hide(text_of(error)))
    return RuntimeError(f"{type(error).__name__}: {text}").with_traceback(error.__traceback__)


def rebuilt(error: Ours, fact: str, hint: str | None) -> Ours:
    """Return a copy of an error with another text; its class is lookupcache's: a subclass may take other arguments."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    made: Ours = kind(fact, hint=hint)
    return made


def present_error(error: Ours, hide: Callable[[str], str]) -> Ours:
    """Return a copy of an error with its texts after ``hide``, and without its causes."""
    shown = rebuilt(error, hide(error.fact), None if error.hint is None else hide(error.hint))
    shown.__cause__ = None
    return shown


def line_of(error: BaseException) -> str | None:
    """Return where the user's code raised an error: its innermost line outside of lookupcache and of libraries.

    If all lines are in libraries, as where the user's code is installed, the first one outside of lookupcache counts.
    """
    frames = [(frame, number) for frame, number in walk_tb(error.__traceback__) if not _is_own(frame)]
    users = [(frame, number) for frame, number in frames if not _is_of_library(frame)]
    for frame, number in users[-1:] or frames[:1]:
        return f"in {frame.f_code.co_name}, {frame.f_code.co_filename}, line {number}"
    return None


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("lookupcache")


def _is_of_library(frame: FrameType) -> bool:
    import sysconfig  # Here, since most workers have no error.

    file = frame.f_code.co_filename
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file.startswith(("<frozen ", *libraries)) or "-packages/" in file


def clear_locals(error: BaseException) -> None:
    """Delete the local variables that the tracebacks of an error and its causes refer to; the lines stay.

    Spark and many tools can show local variables with a traceback, and those of a connector or a client library
    contain passwords. Frames that are still running keep theirs.
    """
    frames = {}
    for one in error_chain(error):
        traceback = one.__traceback__
        while traceback is not None:
            frames[id(traceback.tb_frame)] = traceback.tb_frame
            traceback = traceback.tb_next
    # Python 3.12 and earlier would close a suspended coroutine with its frame. But an error that several coroutines
    # wait for is raised in all of them, and some may go on.
    suspended = _suspended_frames() if frames else set()
    for number, frame in frames.items():
        if number not in suspended:
            with suppress(RuntimeError):
                frame.clear()


def _suspended_frames() -> set[int]:
    """Return the identities of the frames of coroutines and generators that have not ended."""
    return {id(getattr(one, _FRAME_OF[type(one)])) for one in gc.get_objects() if type(one) in _FRAME_OF}


_FRAME_OF: dict[type, str] = {CoroutineType: "cr_frame", GeneratorType: "gi_frame", AsyncGeneratorType: "ag_frame"}


def _source_line(error: BaseException) -> list[str]:
    """Return the line that a traceback shows of a syntax error, which may be in an evaluated text, and its file."""
    return [str(part) for part in (error.text, error.filename) if part] if isinstance(error, SyntaxError) else []


def _notes(error: BaseException) -> list[str]:
    notes: list[str] = []
    with suppress(Exception):
        notes += map(str, getattr(error, "__notes__", ()))
    return notes
