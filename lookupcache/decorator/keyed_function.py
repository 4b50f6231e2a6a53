"""`KeyedFunction`: calls the decorated function with keys, and returns one value per key."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lookupcache.decorator.arguments import GivenParameters, Key, Parameters, values_of
from lookupcache.functions.adapter import Arguments, adapter_of
from lookupcache.functions.answers import BatchShape, reusable

_SHAPE = BatchShape("The batch function")


class KeyedFunction:
    """A function of any kind, with the parameters that are its key.

    >>> double = KeyedFunction(lambda keys: [[key, -key] for key in keys], batch=True)
    >>> double.values([(1,), (2,)], double.adapter.call([(1,), (2,)]))
    {(1,): [1, -1], (2,): [2, -2]}
    """

    def __init__(
        self,
        function: Callable[..., Any],
        batch: bool,
        timeout: float = math.inf,
        key: Callable[..., Any] | None = None,
    ) -> None:
        self.batch = batch
        self.parameters = Parameters(function, batch) if key is None else GivenParameters(key)
        self.adapter: Any = adapter_of(function, self._arguments, timeout)

    def values(self, keys: Sequence[Key], answer: Any) -> dict[Key, Any]:
        """Return the value of each key; raises SourceError for a value that cannot be cached."""
        if not self.batch:
            return {keys[0]: reusable(answer)}
        answers = _SHAPE.in_order(answer, [values_of(key)[-1] for key in keys])
        # Not a generator: it would turn a StopIteration of an iterator among the answers into a RuntimeError.
        return dict(zip(keys, [reusable(value) for value in answers], strict=True))

    def _arguments(self, keys: Sequence[Key]) -> Arguments:
        values = values_of(keys[0])
        if self.batch:
            return (*values[:-1], [values_of(key)[-1] for key in keys]), {}
        return self.parameters.arguments(values)
