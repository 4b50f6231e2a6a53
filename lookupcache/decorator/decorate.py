"""`cached`: everything in front of a lookup function, without Spark.

    key ─► cache ─► one call for all callers ─► batch ─► slot ─► timeout ─► breaker, rate limit, retries ─► function

Options are checked here; `decorated` has what `cached` returns, `sync_lookup` and `async_lookup` make the calls.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

from lookupcache.config import LookupConfig
from lookupcache.connector import is_retryable
from lookupcache.decorator.async_lookup import AsyncLookup
from lookupcache.decorator.decorated import (
    CachedAsyncBatch,
    CachedAsyncFunction,
    CachedBatch,
    CachedFunction,
    Decorated,
)
from lookupcache.decorator.keyed_function import KeyedFunction
from lookupcache.decorator.sync_lookup import SyncLookup
from lookupcache.errors import LookupAdvice, OptionError, nearest
from lookupcache.functions.adapter import is_async, is_async_generator
from lookupcache.metrics import Counters
from lookupcache.resilience.policy import ResiliencePolicy
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.resilience.retry import retry_after_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")
P_ = ParamSpec("P_")
R_co = TypeVar("R_co", covariant=True)

Clock = Callable[[], float]
Retryable = Callable[[Exception], bool]
RetryAfter = Callable[[Exception], float | None]


class _Callable(Protocol[P_, R_co]):
    def __call__(self, *args: P_.args, **kwargs: P_.kwargs) -> R_co: ...


class _Decorator(Protocol):
    """Decorates a function of one key."""

    @overload
    def __call__(self, function: type[_Callable[P, Coroutine[Any, Any, R]]]) -> CachedAsyncFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: type[_Callable[P, R]]) -> CachedFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> CachedAsyncFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Iterator[T]]) -> CachedFunction[P, list[T]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> CachedFunction[P, R]: ...


class _BatchDecorator(Protocol):
    """Decorates a function, or a method, of many keys."""

    @overload
    def __call__(self, function: Callable[[list[K]], Coroutine[Any, Any, Mapping[K, V]]]) -> CachedAsyncBatch[K, V]: ...
    @overload
    def __call__(self, function: Callable[[list[K]], Coroutine[Any, Any, Iterable[V]]]) -> CachedAsyncBatch[K, V]: ...
    @overload
    def __call__(
        self, function: Callable[[S, list[K]], Coroutine[Any, Any, Mapping[K, V]]]
    ) -> CachedAsyncBatch[K, V]: ...
    @overload
    def __call__(
        self, function: Callable[[S, list[K]], Coroutine[Any, Any, Iterable[V]]]
    ) -> CachedAsyncBatch[K, V]: ...
    @overload
    def __call__(self, function: Callable[[list[K]], Mapping[K, V]]) -> CachedBatch[K, V]: ...
    @overload
    def __call__(self, function: Callable[[list[K]], Iterable[V]]) -> CachedBatch[K, V]: ...
    @overload
    def __call__(self, function: Callable[[S, list[K]], Mapping[K, V]]) -> CachedBatch[K, V]: ...
    @overload
    def __call__(self, function: Callable[[S, list[K]], Iterable[V]]) -> CachedBatch[K, V]: ...


@overload
def cached(config: type[_Callable[P, Coroutine[Any, Any, R]]], /) -> CachedAsyncFunction[P, R]: ...  # type: ignore[overload-overlap]
@overload
def cached(config: type[_Callable[P, R]], /) -> CachedFunction[P, R]: ...
@overload
def cached(config: Callable[P, Coroutine[Any, Any, R]], /) -> CachedAsyncFunction[P, R]: ...  # type: ignore[overload-overlap]
@overload
def cached(config: Callable[P, Iterator[T]], /) -> CachedFunction[P, list[T]]: ...
@overload
def cached(config: Callable[P, R], /) -> CachedFunction[P, R]: ...
@overload
def cached(
    config: LookupConfig | Mapping[str, Any] | None = None,
    *,
    batch: Literal[True],
    clock: Clock = ...,
    retryable: Retryable = ...,
    retry_after: RetryAfter = ...,
    **options: Any,
) -> _BatchDecorator: ...
@overload
def cached(
    config: LookupConfig | Mapping[str, Any] | None = None,
    *,
    batch: Literal[False] = False,
    clock: Clock = ...,
    retryable: Retryable = ...,
    retry_after: RetryAfter = ...,
    **options: Any,
) -> _Decorator: ...
@overload
def cached(
    config: LookupConfig | Mapping[str, Any] | None = None,
    *,
    batch: bool,
    clock: Clock = ...,
    retryable: Retryable = ...,
    retry_after: RetryAfter = ...,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]: ...
def cached(
    config: Any = None,
    *,
    batch: bool = False,
    clock: Clock = time.monotonic,
    retryable: Retryable = is_retryable,
    retry_after: RetryAfter = retry_after_of,
    **options: Any,
) -> Any:
    """Cache what a function returns: sync or async, one key at a time or, with ``batch=True``, many.

    Use it bare, with a `LookupConfig`, or with the config's fields: ``@cached``, ``@cached(config)``,
    ``@cached(max_rows=500, expire_after_write="10 min")``. Without ``cache`` among them it is LRU, of 10,000 rows.

    The arguments of a call are its key, however they are spelled: ``f(1, b=2)`` and ``f(1, 2)`` share an entry. They
    must be hashable; 1, 1.0 and True are different keys, though not inside a tuple. What the function returns is the
    value, and each hit returns that same object: who changes it changes it for all. An iterator, which could be read
    only once, becomes a list. ``max_rows`` counts a list as its rows and any other value as one; None and an empty
    list are known misses, and ``missing_key`` says whether these are kept.

    With ``batch=True``, ``function(keys)`` takes a list of keys and returns one value per key in the same order, or a
    dict of values by key, where a key that is not in it has None. It is called with those keys only that are not in
    the cache, each once.

    A method has entries for each object, which do not keep it alive, unless it can have no weak reference. In place
    of a function there may be an object with ``__call__``, or a class, of which one is made: its ``open()``, where it
    has one, is called before the first lookup, and in a forked process again.

    The decorated function has ``metrics()``, ``cache_info()``, ``clear()``, also called ``cache_clear``,
    ``invalidate(...)``, which takes what a call takes, or with ``batch=True`` keys, and ``close()``, which calls the
    object's; where the function is async it is awaited, and called ``aclose`` too. ``__wrapped__`` is the function.

    ``lookup.timeout`` ends an async lookup, and with ``lookup.async`` a sync one, which then runs in one of
    ``lookup.async.capacity`` threads. Without it a sync function runs in its caller's thread: there the timeout ends
    only its retries, and the waiting of other callers for the same key, or for an ``open()`` that hangs. A function
    that goes on after its timeout is not waited for any more; when the process exits, for at most a second. A function
    may call its decorated self, as long as that ends. A recursion through it is as deep as Python's stack allows, about
    18 frames a level: 54 levels with the default limit, which `sys.setrecursionlimit` raises. ``lookup.on-error``
    ``null`` returns None instead of a value, and needs no ``lookup.error-column`` here. ``lookup.rate-limit`` holds for
    this function alone, in all processes of an executor; another function, also of the same name, has its own.
    ``lookup.cache.max-bytes`` measures a value when it comes, with all that it refers to, not when it changes later.
    ``clock`` gives seconds; ``retryable`` says which errors are worth a retry, ``retry_after`` how many seconds the
    source wants to be left alone.

    A forked process begins with what its parent had cached, and with none of its calls. Pickled, a function that can be
    imported is its name; any other, as cloudpickle allows, comes out with the same options and an empty cache.

    Raises OptionError for options that need a table or a join, and SourceError where the function returns what can be
    used only once, as a coroutine; else what the function raised last, as it is. An ``async def`` that raises
    StopIteration raises a RuntimeError instead, decorated or not: Python does that.

    >>> @cached(max_rows=100)
    ... def rows_of(customer_id, country="NL"):
    ...     return [{"id": customer_id, "country": country}]
    >>> rows_of(7), rows_of(7, country="NL") is rows_of(7), rows_of.cache_info()
    ([{'id': 7, 'country': 'NL'}], True, CacheInfo(hits=2, misses=1, maxsize=100, currsize=1))
    """
    settings: dict[str, Any] = {"batch": batch, "clock": clock, "retryable": retryable, "retry_after": retry_after}
    if callable(config) or isinstance(config, classmethod | staticmethod):
        return _decorated(config, config=_config(None, options), **settings)
    settings["config"] = _config(config, options)
    _refuse_what_needs_more(settings["config"], batch)
    return functools.partial(_decorated, **settings)


def _config(given: Any, options: dict[str, Any]) -> LookupConfig:
    """Return the config that was given, in whatever form, with these options instead of its own."""
    known = [field.name for field in dataclasses.fields(LookupConfig)]
    for name in options:
        if name not in known:
            hint = f"It is called {_ELSEWHERE[name]!r} here." if name in _ELSEWHERE else None
            raise OptionError(f"There is no option {name!r}.", hint=hint or nearest(name, known, what="options"))
    if isinstance(given, Mapping):
        if not any("." in name for name in given):
            return _config(None, {**given, **options})
        given = LookupConfig.from_options({"lookup.cache": "LRU", **_unnamed(given, "lookup.on-error"), **given})
    elif given is None:
        given, options = LookupConfig(**{"cache": "LRU", **_unnamed(options, "on_error"), **options}), {}
    elif not isinstance(given, LookupConfig):
        raise OptionError(
            f"'cached' takes a function, or a LookupConfig, and was given {type(given).__name__} {given!r}.",
            hint="Give it options by name, as in cached(max_rows=128, expire_after_write='10 min').",
        )
    elif given.cache == "NONE" and "cache" not in options:
        warnings.warn(
            "'cached' keeps nothing here: 'lookup.cache' of its config is NONE.\n\nHint: Set it to LRU or TTL, or give "
            "cached(cache='NONE') too where only retries and limits are wanted.",
            LookupAdvice,
            stacklevel=3,
        )
    return dataclasses.replace(given, **{**_unnamed(options, "on_error"), **options}) if options else given


_ELSEWHERE = {"maxsize": "max_rows", "ttl": "expire_after_write", "ttr": "refresh_after_write"}


def _unnamed(options: Mapping[str, Any], on_error: str) -> dict[str, Any]:
    """Return a name for the column of errors that a config needs, and that names nothing here, where there is none."""
    name = on_error.replace("on-error", "error-column").replace("on_error", "error_column")
    return {name: "error"} if str(options.get(on_error)).lower() == "null" else {}


def _decorated(function: Any, *, config: LookupConfig, batch: bool, **settings: Any) -> Any:
    if isinstance(function, classmethod | staticmethod):
        # The other way round, which means the same.
        return type(function)(_decorated(function.__func__, config=config, batch=batch, **settings))
    _refuse_what_needs_more(config, batch)
    _refuse_what_is_no_function(function)
    kinds: dict[tuple[bool, bool], type[Decorated]] = {
        (False, False): CachedFunction, (False, True): CachedBatch,
        (True, False): CachedAsyncFunction, (True, True): CachedAsyncBatch,
    }  # fmt: skip
    limit_name = None if config.rate_limit is None else _limit_name(function)
    given = {"function": function, "config": config, "batch": batch, "limit_name": limit_name, **settings}
    return kinds[is_async(function), batch](lookup_of, given)


def lookup_of(
    function: Callable[..., Any],
    config: LookupConfig,
    batch: bool,
    clock: Clock,
    retryable: Retryable,
    retry_after: RetryAfter,
    limit_name: str | None = None,
) -> SyncLookup | AsyncLookup:
    """Return the lookup behind a decorated function; ``limit_name`` is shared by copies of it in other processes."""
    limiter = None
    if config.rate_limit is not None:
        limiter = RateLimit.of_executor(config.rate_limit, limit_name or _name(function))
    resilience = ResiliencePolicy(
        config, retryable=retryable, retry_after=retry_after, counters=Counters(), limiter=limiter, clock=clock
    )
    keyed = KeyedFunction(function, batch, config.timeout)
    if not keyed.adapter.is_async:
        return SyncLookup(keyed, config, resilience, clock)
    if config.async_ is False:
        raise OptionError("'lookup.async' = 'false' does not fit an async function.", hint="Leave the option out.")
    return AsyncLookup(keyed, config, resilience, clock)


_limit_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _limit_name(function: Any) -> str:
    """Return the name of a function's rate limit: its own, with a number where living functions have that already.

    So two lambdas have two limits, and a function that is decorated anew in each process of an executor has one.
    """
    name = _name(function)
    try:
        if function not in _limit_names:
            taken = set(_limit_names.values())
            numbered = (f"{name} #{number}" for number in itertools.count(2))
            _limit_names[function] = next(one for one in itertools.chain([name], numbered) if one not in taken)
        return _limit_names[function]
    except TypeError:  # it has no hash, or can have no weak reference
        return name


def _refuse_what_is_no_function(function: Any) -> None:
    if not callable(function):
        raise OptionError(f"'cached' decorates a function, and was given {type(function).__name__}.")
    if is_async_generator(function):
        raise OptionError(
            f"{_name(function)} is an async generator, whose items can be read only once.",
            hint="Write it 'async def' without 'yield', and return a list.",
        )


def _refuse_what_needs_more(config: LookupConfig, batch: bool) -> None:
    if config.cache == "ALL":
        raise OptionError("'lookup.cache' = 'ALL' needs a table that can be read whole.", hint="Use LRU or TTL.")
    given = {
        "'lookup.on-error' = 'dead-letter'": config.on_error == "dead-letter",
        "'lookup.age-column'": config.age_column is not None,
        "'lookup.async.output-mode' = 'allow-unordered'": config.output_mode != "ordered",
        "'lookup.shuffle'": config.shuffle,
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise OptionError(f"{option} needs a join; a decorated function has none.", hint="Leave the option out.")
    if not batch and (config.batch_max_size is not None or config.batch_max_delay is not None):
        raise OptionError(
            "'lookup.batch.max-size' and 'lookup.batch.max-delay' mean nothing to a function of one key.",
            hint="Write it for many keys, with batch=True, or leave the option out.",
        )


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
