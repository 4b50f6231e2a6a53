"""`cached_property` without a lock: before Python 3.12, that of `functools` has one for all objects of a class.

A child that is forked while another thread of its parent holds it would wait for it forever.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - the name of the original
        """A property whose value is computed when it is read first; two threads may compute it at the same time.

        >>> class Sum:
        ...     @cached_property
        ...     def value(self):
        ...         print("computed")
        ...         return 1 + 1
        >>> one = Sum()
        >>> one.value, one.value
        computed
        (2, 2)
        """

        def __init__(self, function: Any) -> None:
            self.func = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            # The value that was computed first stays.
            return instance.__dict__.setdefault(self._name, self.func(instance))


__all__ = ["cached_property"]
