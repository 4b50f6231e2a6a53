"""The objects that `cached` returns: they are called like the function, and have the cache.

    f(1) ──────────► key ─► in the cache? ─► value
    obj.method(1) ─► __get__ ─► key of this object ─► …

There is a class for each kind of function: sync or async, one key or a batch of them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Coroutine, Iterable
from types import FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)
from weakref import WeakValueDictionary

from lookupcache.decorator.arguments import (
    COMPARED_IN_C,
    GivenKey,
    GivenParameters,
    Key,
    all_simple,
    arguments_of,
    hint_without_hash,
    stored_key,
    typed_key,
    without_hash,
)
from lookupcache.decorator.async_lookup import AsyncLookup
from lookupcache.decorator.methods import Owners
from lookupcache.decorator.sync_lookup import SyncLookup
from lookupcache.metrics import LookupMetrics

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)


class _ClassMethod(Protocol[Q, R_co]):
    """The type of a function whose first argument is a class, which type checkers see below `classmethod`."""

    def __call__(self, cls: type, /, *args: Q.args, **kwargs: Q.kwargs) -> R_co: ...


class CacheInfo(NamedTuple):
    """Counts under the names of `functools.lru_cache`; ``maxsize`` and ``currsize`` are rows, as in ``max_rows``."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class Decorated:
    """Base class of all decorated functions.

    ``make`` creates the lookup from the settings, one of which is the function.
    """

    lookup: Any
    _method: Callable[..., Any]
    __wrapped__: Callable[..., Any]
    __name__: str
    __qualname__: str

    def __init__(self, make: Callable[..., Any], settings: dict[str, Any]) -> None:
        self._start({"make": make, "settings": settings})

    def _start(self, state: dict[str, Any]) -> None:
        self._state = state
        # Where this process has the source, each pickle takes the values of its time; a copy has what it was given.
        self._given_code = state["settings"].get("code")
        self.lookup = state["make"](**state["settings"])
        function = state["settings"]["function"]
        # An object's own attributes, or a class's methods, are not the decorated function's.
        updated = functools.WRAPPER_UPDATES if hasattr(function, "__code__") else ()
        functools.update_wrapper(cast(Any, self), function, updated=updated)
        self._binds = hasattr(function, "__get__") and not isinstance(function, MethodType | type)
        self._count = self.lookup.function.parameters.count
        self._bind = self.lookup.function.parameters.bind
        self._has_given_keys = isinstance(self.lookup.function.parameters, GivenParameters)
        self._held_simply = self.lookup.find_simple_hit
        self._instance_of = self.lookup.instances.of
        self._instance_by_id = self.lookup.instances.by_id
        self._call_method = self._method
        self._owners = Owners(self)
        self._here, self._fill = _references(self)

    def metrics(self) -> LookupMetrics:
        """Return the counts so far."""
        return cast(LookupMetrics, self.lookup.metrics())

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, the maximum number of rows, and the number of cached rows."""
        found = self.metrics()
        return CacheInfo(found.hits, found.misses, self.lookup.maxsize, found.cached_rows)

    def cache_parameters(self) -> dict[str, Any]:
        """Return the maximum number of rows and that types of arguments differ, as `functools.lru_cache` does."""
        return {"maxsize": self.lookup.maxsize, "typed": True}

    @property
    def cache(self) -> Any:
        """The cache of cachetools that was given to `cached`, or None."""
        return getattr(self.lookup.cache, "values", None)

    @property
    def cache_lock(self) -> Any:
        """The lock that is held while the cache is used, under the name that cachetools gives it."""
        return self.lookup._lock

    def clear(self) -> None:
        """Remove every entry."""
        self.lookup.clear()

    cache_clear = clear

    def clear_instance(self, instance: Any) -> None:
        """Remove the entries of an object's method."""
        self.lookup.clear(self._instance_of(instance))

    def __repr__(self) -> str:
        name = self.__dict__.get("__qualname__") or repr(self.__dict__.get("__wrapped__"))
        return f"<cached {name}>"

    # ── methods ──────────────────────────────────────────────────────────────────────────────────────────

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None or not self._binds else BoundMethod(self._call_method, instance)

    def _with_instance(self, values: Any) -> Any:
        """Replace the object by its `Instance`, if a method is called on its class, or by another descriptor."""
        if not values or type(values[0]) in COMPARED_IN_C or not (self._binds and self._owners.include(values[0])):
            return values
        return (self._instance_of(values[0]), *values[1:])

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────

    def _key(self, values: Any, named: Any) -> Key:
        if self._has_given_keys:
            return cast(Key, self._bind(*self._with_instance(values), **named))
        if named or len(values) != self._count:
            values = self._bind(*values, **named)
        return typed_key(self._with_instance(values))

    def _explain_unhashable(self, keys: Iterable[Key], error: TypeError) -> TypeError:
        """Return a TypeError that names the unhashable argument, if that is the cause."""
        hashed = ((key.key,) if isinstance(key, GivenKey) else arguments_of(key) for key in keys)
        for value in itertools.chain.from_iterable(hashed):
            if (found := without_hash(value)) is not None:
                return TypeError(
                    f"{self!r} was given a {type(found).__name__}, which has no hash and cannot be a key.\n\n"
                    f"Hint: {hint_without_hash(found)} '__wrapped__' is the function without the cache."
                )
        return error

    def _forget(self, key: Key) -> bool:
        """Remove the entries of keys equal to this one; return whether there were any."""
        try:
            return cast(bool, self.lookup.invalidate(key))
        except TypeError as error:
            raise self._explain_unhashable([key], error) from None

    # ── pickling ─────────────────────────────────────────────────────────────────────────────────────────

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle an importable function by name, any other with an empty cache.

        The identity of its code goes along, since another process may not have the source of the function.
        """
        settings, config = self._state["settings"], self.lookup.config
        stores = self.lookup.store is not None and config.store_name is None
        if (stores or self.lookup.shared is not None) and config.version is None:
            from lookupcache.functions.identity import identity_of_code  # Few functions are shared.

            settings["code"] = self._given_code or identity_of_code(settings["function"])
        if _import_original(self) is not self:
            return _blank, (type(self),), self._state
        return (_found_or_blank, (self._here, type(self)), self._fill) if protocol >= 4 else self.__qualname__

    def __setstate__(self, state: Any) -> None:
        if "lookup" not in self.__dict__:
            self._start(dict(state() if callable(state) else state))


class BoundMethod(functools.partial[Any]):
    """A decorated method of one object: it has its own entries in the method's cache, and the limits in common.

    A partial, which C code creates: each call of a method needs a new one.
    """

    __slots__ = ()

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> Any:
        return self.func.__self__  # type: ignore[attr-defined]

    @property
    def __wrapped__(self) -> Any:
        return self.__func__.__wrapped__.__get__(self.__self__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __get__(self, instance: Any, owner: Any = None) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{self.__func__!r} of {self.__self__!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMethod) and self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((self.__func__, id(self.__self__)))

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__func__.__name__)

    def invalidate(self, /, *args: Any, **kwargs: Any) -> bool:
        """Do the same as `invalidate` of the function, for this object."""
        function = self.__func__
        return cast(bool, function.invalidate(function._instance_of(self.__self__), *args, **kwargs))

    def cache_key(self, /, *args: Any, **kwargs: Any) -> Key:
        """Return the key under which the value of this object for these arguments is cached."""
        function = self.__func__
        return cast(Key, function.cache_key(function._instance_of(self.__self__), *args, **kwargs))

    def clear(self) -> None:
        """Remove the entries of this object."""
        self.__func__.clear_instance(self.__self__)

    cache_clear = clear


class _AsyncDecorated(Decorated):
    """Base class of async functions."""

    lookup: AsyncLookup

    def _start(self, state: dict[str, Any]) -> None:
        super()._start(state)
        # Frameworks use this to recognize async functions.
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:
            self._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]

    async def close(self) -> None:
        """Cancel the calls of this event loop, and the callers that wait for them; close the function's object."""
        await self.lookup.close()

    aclose = close


class _SyncDecorated(Decorated):
    """Base class of sync functions."""

    lookup: SyncLookup

    def close(self) -> None:
        """Wait for the calls in threads, at most ``lookup.timeout``, and close the function's object."""
        self.lookup.close()


class _OneKey(Decorated, Generic[P]):
    """Base class of functions of one key."""

    def invalidate(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the entry for these arguments, do not cache a call in flight for it; return whether there was either.

        Equal arguments match here, whatever their types.
        """
        if self._has_given_keys:
            return self._forget(self._key(args, kwargs))
        return self._forget(self._with_instance(self._bind(*args, **kwargs)))

    def cache_key(self, /, *args: P.args, **kwargs: P.kwargs) -> Key:
        """Return the key under which the value for these arguments is cached."""
        return stored_key(self._key(args, kwargs))


class _ManyKeys(Decorated, Generic[K, V]):
    """Base class of functions of many keys."""

    def _look_up(self, values: Any, named: Any) -> tuple[list[Key], list[V] | None]:
        """Return the keys of a call, and their values if the cache has them all."""
        *first, given = self._with_instance(self._bind(*values, **named))
        if isinstance(given, str | bytes):
            raise TypeError(f"{self!r} takes a list of keys, not {type(given).__name__}.\n\nHint: Use a list.")
        given = list(given)
        keys = [(*first, key) for key in given] if first else list(zip(given, strict=True))
        if all_simple(given) and all_simple(first):
            return keys, self.lookup.find_simple_hits(keys)
        return list(map(typed_key, keys)), None

    def invalidate(self, /, *keys: K) -> bool:
        """Remove these keys, and do not cache calls in flight for them; return whether there were any."""
        given = self._with_instance(keys)
        first = given[: self._count - 1]
        found = [self._forget((*first, key)) for key in given[len(first) :]]
        return any(found)

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any = None) -> Self: ...


class CachedFunction(_SyncDecorated, _OneKey[P], Generic[P, R]):
    """A sync function with a cache."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's value."""
        if not kwargs and len(args) == self._count and (entry := self._held_simply(args)) is not None:
            return entry.value
        return self._value(self._key(args, kwargs))

    def _method(self, owner: Any, /, *args: Any, **kwargs: Any) -> R:
        # Ids of freed objects are removed, so an id found here is that of a living object.
        args = (self._instance_by_id.get(id(owner)) or self._instance_of(owner), *args)
        if not kwargs and len(args) == self._count and (entry := self._held_simply(args)) is not None:
            return entry.value
        return self._value(self._key(args, kwargs))

    def _value(self, key: Key) -> R:
        try:
            entry = self.lookup.find_hit(key)
        except TypeError as error:
            raise self._explain_unhashable([key], error) from None
        return self.lookup.find([key])[key] if entry is None else entry.value

    if TYPE_CHECKING:

        @overload
        def __get__(self: _ClassMethod[Q, T], instance: None, owner: type) -> CachedFunction[Q, T]: ...
        @overload
        def __get__(self, instance: None, owner: Any = None) -> Self: ...
        @overload
        def __get__(
            self: CachedFunction[Concatenate[Any, Q], T], instance: object, owner: Any = None
        ) -> CachedFunction[Q, T]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


class CachedAsyncFunction(_AsyncDecorated, _OneKey[P], Generic[P, R]):
    """An async function with a cache."""

    async def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's value."""
        if not kwargs and len(args) == self._count and (entry := self._held_simply(args)) is not None:
            return entry.value
        return await self._value(self._key(args, kwargs))

    async def _method(self, owner: Any, /, *args: Any, **kwargs: Any) -> R:
        # Ids of freed objects are removed, so an id found here is that of a living object.
        args = (self._instance_by_id.get(id(owner)) or self._instance_of(owner), *args)
        if not kwargs and len(args) == self._count and (entry := self._held_simply(args)) is not None:
            return entry.value
        return await self._value(self._key(args, kwargs))

    async def _value(self, key: Key) -> R:
        try:
            entry = self.lookup.find_hit(key)
        except TypeError as error:
            raise self._explain_unhashable([key], error) from None
        return (await self.lookup.find([key]))[key] if entry is None else entry.value

    if TYPE_CHECKING:

        @overload
        def __get__(
            self: _ClassMethod[Q, Coroutine[Any, Any, T]], instance: None, owner: type
        ) -> CachedAsyncFunction[Q, T]: ...
        @overload
        def __get__(self, instance: None, owner: Any = None) -> Self: ...
        @overload
        def __get__(
            self: CachedAsyncFunction[Concatenate[Any, Q], T], instance: object, owner: Any = None
        ) -> CachedAsyncFunction[Q, T]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


class CachedBatch(_SyncDecorated, _ManyKeys[K, V]):
    """A sync function of many keys with a cache."""

    @overload
    def __call__(self, keys: Iterable[K], /) -> list[V]: ...
    @overload
    def __call__(self, instance: object, keys: Iterable[K], /) -> list[V]: ...
    @overload
    def __call__(self, /, **named: Iterable[K]) -> list[V]: ...
    def __call__(self, /, *args: Any, **named: Any) -> list[V]:
        """Return the value of each key; called on its class, a method takes its object before the keys."""
        return self._values(args, named)

    def _method(self, owner: Any, /, *args: Any, **kwargs: Any) -> list[V]:
        return self._values((self._instance_of(owner), *args), kwargs)

    def _values(self, values: Any, named: Any) -> list[V]:
        keys, held = self._look_up(values, named)
        if held is not None:
            return held
        try:
            found = self.lookup.find(keys)
            return [found[key] for key in keys]
        except TypeError as error:
            raise self._explain_unhashable(keys, error) from None


class CachedAsyncBatch(_AsyncDecorated, _ManyKeys[K, V]):
    """An async function of many keys with a cache."""

    @overload
    async def __call__(self, keys: Iterable[K], /) -> list[V]: ...
    @overload
    async def __call__(self, instance: object, keys: Iterable[K], /) -> list[V]: ...
    @overload
    async def __call__(self, /, **named: Iterable[K]) -> list[V]: ...
    async def __call__(self, /, *args: Any, **named: Any) -> list[V]:
        """Return the value of each key; called on its class, a method takes its object before the keys."""
        return await self._values(args, named)

    async def _method(self, owner: Any, /, *args: Any, **kwargs: Any) -> list[V]:
        return await self._values((self._instance_of(owner), *args), kwargs)

    async def _values(self, values: Any, named: Any) -> list[V]:
        keys, held = self._look_up(values, named)
        if held is not None:
            return held
        try:
            found = await self.lookup.find(keys)
            return [found[key] for key in keys]
        except TypeError as error:
            raise self._explain_unhashable(keys, error) from None


# ── pickling ─────────────────────────────────────────────────────────────────────────────────────────────
#
# pickle writes a function as its name, and cloudpickle one of `__main__` as its code. An object cannot find out which
# of them is at work. So each decorated function has two helper functions. After unpickling, the first is registered
# here if it was written as a name. The second returns the state if it was written as code.

_known: WeakValueDictionary[FunctionType, Decorated] = WeakValueDictionary()


def _references(decorated: Decorated) -> tuple[Callable[[], None], Callable[[], dict[str, Any]]]:
    state = decorated._state

    def here() -> None: ...

    def fill() -> dict[str, Any]:
        return state

    for name, function in (("_here", here), ("_fill", fill)):
        function.__module__ = decorated.__module__
        function.__qualname__ = f"{decorated.__dict__.get('__qualname__')}.{name}"
    _known[cast(FunctionType, here)] = decorated
    return here, fill


def _import_original(decorated: Decorated) -> Any:
    """Import the object under the name of a decorated function."""
    found: Any = sys.modules.get(decorated.__module__)
    for name in (decorated.__dict__.get("__qualname__") or "?").split("."):
        found = getattr(found, name, None)
    return found


def _blank(kind: type[Decorated]) -> Decorated:
    return kind.__new__(kind)


def _found_or_blank(here: FunctionType, kind: type[Decorated]) -> Decorated:
    return _known.get(here) or _blank(kind)
