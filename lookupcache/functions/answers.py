"""Converts the result of a batch function to one answer per key, or raises an error with the reason."""

from __future__ import annotations

import inspect
import io
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lookupcache.errors import SourceError


@dataclass(frozen=True)
class BatchShape:
    """The expected result of a batch function, with the wording of its errors.

    ``subject`` is the function, ``answer`` what it returns for a key, ``answers`` several of them. ``by_key`` says
    that it may be a dict of answers by key instead of a list.

    >>> BatchShape("The function").in_order({2: "b"}, [1, 2])
    [None, 'b']
    """

    subject: str
    answer: str = "value"
    answers: str = "values"
    by_key: bool = True

    def in_order(self, returned: Any, keys: Sequence[Any]) -> list[Any]:
        """Return the answer of each key, None for a key that is not in a dict.

        Raises SourceError if the order of the answers may differ from that of the keys.
        """
        if isinstance(returned, Mapping) and self.by_key:
            return self._by_key(returned, keys)
        unordered = isinstance(returned, Mapping | set | frozenset | str | bytes) or hasattr(returned, "_fields")
        if unordered or hasattr(returned, "columns") or not isinstance(returned, Iterable):
            discard(returned)
            raise SourceError(
                f"{self.subject} returned {type(returned).__name__} for its keys, not a list.", hint=self._hint
            )
        if _has_own_index(returned):
            raise SourceError(
                f"{self.subject} returned {type(returned).__name__} with an index that is not that of its keys.",
                hint=f"{self._hint} If it is in their order, return it with tolist().",
            )
        answers = list(reusable(returned, self.subject))
        if len(answers) != len(keys):
            raise SourceError(
                f"{self.subject} returned {len(answers)} {self.answers} for {len(keys)} keys.", hint=self._hint
            )
        return answers

    @property
    def _hint(self) -> str:
        or_dict = f", or a dict of {self.answers} by key" if self.by_key else ""
        return f"Return one {self.answer} per key, in the order of the keys{or_dict}."

    def _by_key(self, returned: Mapping[Any, Any], keys: Sequence[Any]) -> list[Any]:
        if len(set(keys)) < len(keys):
            raise SourceError(
                f"{self.subject} returned a dict for keys that are equal in Python and differ in their type, such as "
                "1, 1.0 and True. It has one value for them.",
                hint=f"Return a list of one {self.answer} per key, in the order of the keys.",
            )
        if len(returned) > len(keys) or any(key not in returned for key in keys):
            requested = set(keys)
            for key in returned:
                if key not in requested:
                    raise SourceError(
                        f"{self.subject} returned a {self.answer} for {key!r}, which is not one of its keys.",
                        hint="Return the keys as they were passed, of the same type.",
                    )
        return [returned.get(key) for key in keys]


def reusable(value: Any, subject: str = "The function") -> Any:
    """Return a value that can be returned to many callers: itself, or a list of an iterator's items.

    Raises SourceError, about ``subject``, for objects that must be awaited, and for open files.

    >>> reusable(iter("ab")), reusable("ab")
    (['a', 'b'], 'ab')
    """
    if hasattr(type(value), "__next__"):
        if not isinstance(value, io.IOBase):
            return list(value)
    elif not (inspect.isawaitable(value) or isinstance(value, AsyncGenerator)):
        return value
    discard(value)
    raise SourceError(
        f"{subject} returned {type(value).__name__}, which can be used only once.",
        hint="Return its content: read the file, collect the items in a list; declare a function that awaits "
        "'async def'.",
    )


def _has_own_index(returned: Any) -> bool:
    """Return whether a result is a pandas Series by label, whose order may not be that of the keys."""
    if not hasattr(returned, "iloc"):
        return False
    index = returned.index
    return not (hasattr(index, "step") and index.start == 0 and index.step == 1)


def discard(answer: Any) -> None:
    """Close a coroutine that is never awaited: Python would warn about it."""
    if inspect.iscoroutine(answer):
        answer.close()
