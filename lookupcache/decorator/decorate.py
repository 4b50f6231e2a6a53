"""`cached`: a cache for any function, with batches, retries and limits, without Spark.

    key ─► cache ─► one call for all callers ─► batch ─► slot ─► timeout ─► breaker, rate limit, retries ─► function

This module checks the options; `decorated` has the returned objects, `sync_lookup` and `async_lookup` make the calls.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from lookupcache.cache.given_cache import is_cache
from lookupcache.config import LookupConfig
from lookupcache.connector import is_retryable, this_process
from lookupcache.decorator.async_lookup import AsyncLookup
from lookupcache.decorator.decorated import (
    CachedAsyncBatch,
    CachedAsyncFunction,
    CachedBatch,
    CachedFunction,
    Decorated,
)
from lookupcache.decorator.keyed_function import KeyedFunction
from lookupcache.decorator.options import CachedOptions
from lookupcache.decorator.sync_lookup import SyncLookup
from lookupcache.errors import LookupAdvice, OptionError, nearest
from lookupcache.functions.adapter import is_async, is_async_generator, name_of, refuse_uncallable
from lookupcache.metrics import Counters
from lookupcache.resilience.policy import ClusterRate, ResiliencePolicy
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.resilience.retry import retry_after_of

if TYPE_CHECKING:
    from lookupcache.decorator.shared_cache import SharedCache
    from lookupcache.decorator.stored_values import ValueStore
    from lookupcache.functions.identity import CodeIdentity

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
P_ = ParamSpec("P_")
R_co = TypeVar("R_co", covariant=True)

Clock = Callable[[], float]
Retryable = Callable[[Exception], bool]
RetryAfter = Callable[[Exception], float | None]
KeyFunction = Callable[..., Hashable]


class _Callable(Protocol[P_, R_co]):
    def __call__(self, *args: P_.args, **kwargs: P_.kwargs) -> R_co: ...


class _Decorator(Protocol):
    """The type of a decorator of a function of one key."""

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


_OfKeys = Callable[[list[K]], R] | Callable[[Any, list[K]], R]
"""A function, or a method, of many keys."""


class _BatchDecorator(Protocol):
    """The type of a decorator of a function, or a method, of many keys."""

    @overload
    def __call__(self, function: _OfKeys[K, Coroutine[Any, Any, Mapping[K, V]]]) -> CachedAsyncBatch[K, V]: ...
    @overload
    def __call__(self, function: _OfKeys[K, Coroutine[Any, Any, Iterable[V]]]) -> CachedAsyncBatch[K, V]: ...
    @overload
    def __call__(self, function: _OfKeys[K, Mapping[K, V]]) -> CachedBatch[K, V]: ...
    @overload
    def __call__(self, function: _OfKeys[K, Iterable[V]]) -> CachedBatch[K, V]: ...


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
    config: LookupConfig | Mapping[str, Any] | MutableMapping[Any, Any] | None = None,
    *,
    batch: Literal[True],
    clock: Clock = ...,
    retryable: Retryable = ...,
    retry_after: RetryAfter = ...,
    **options: Unpack[CachedOptions],
) -> _BatchDecorator: ...
@overload
def cached(
    config: LookupConfig | Mapping[str, Any] | MutableMapping[Any, Any] | None = None,
    *,
    batch: Literal[False] = False,
    key: KeyFunction | None = None,
    clock: Clock = ...,
    retryable: Retryable = ...,
    retry_after: RetryAfter = ...,
    **options: Unpack[CachedOptions],
) -> _Decorator: ...
@overload
def cached(
    config: LookupConfig | Mapping[str, Any] | MutableMapping[Any, Any] | None = None,
    *,
    batch: bool,
    key: KeyFunction | None = None,
    clock: Clock = ...,
    retryable: Retryable = ...,
    retry_after: RetryAfter = ...,
    **options: Unpack[CachedOptions],
) -> Callable[[Callable[..., Any]], Any]: ...
def cached(
    config: Any = None,
    *,
    batch: bool = False,
    key: KeyFunction | None = None,
    clock: Clock = time.monotonic,
    retryable: Retryable = is_retryable,
    retry_after: RetryAfter = retry_after_of,
    **options: Any,
) -> Any:
    """Cache the results of a function: sync or async, one key at a time or, with ``batch=True``, many.

    Use it without arguments, with a `LookupConfig`, or with the config's fields: ``@cached``, ``@cached(config)``,
    ``@cached(max_rows=500, expire_after_write="10 min")``. The default of ``cache`` is LRU, with 10,000 rows. Processes
    that share a cache (``scope="host"``) have 256 MB in its files in addition, unless a limit is set.

    The arguments of a call are its key, positional or by keyword: ``f(1, b=2)`` and ``f(1, 2)`` share an entry. They
    must be hashable; 1, 1.0 and True are different keys, but not inside a tuple. The function's result is the value;
    each hit returns the same object, so a caller that changes it changes it for all. An iterator, which could be read
    only once, becomes a list. ``max_rows`` counts a list as its rows and any other value as one. None and an empty list
    are known misses, which are cached if ``missing_key`` is true.

    With ``batch=True``, ``function(keys)`` takes a list of keys and returns one value per key in the same order. It may
    return a dict of values by key instead; a key without a value has None. The function gets only keys that are not in
    the cache, each once.

    A method has separate entries for each object, also below `property` and other descriptors. They do not keep the
    object alive, if it supports weak references. Instead of a function, an object with ``__call__`` can be decorated,
    or a class of such objects, which is instantiated. Its ``open()``, if it has one, is called before the first lookup,
    and again in a forked process.

    With ``key``, the arguments need no hash: ``@cached(key=lambda session, id: id)``. The first call of a key decides
    with which arguments the function is called. A method still has separate entries for each object, so ``methodkey``
    of cachetools means the same as ``hashkey``.

    The decorated function has ``metrics()``, ``cache_info()``, ``cache_parameters()``, ``clear()`` (also called
    ``cache_clear``), ``cache_key(...)`` and ``cache_lock``. ``invalidate(...)`` takes the arguments of a call, or with
    ``batch=True`` keys. ``close()`` calls the object's ``close``; for an async function it is awaited, and also named
    ``aclose``. ``__wrapped__`` is the function.

    ``lookup.timeout`` ends an async lookup, and with ``lookup.async`` a sync one, which then runs in one of
    ``lookup.async.capacity`` threads. Without it, a sync function runs in its caller's thread. There the timeout ends
    only its retries, and the wait of other callers for the same key, or for an ``open()`` that hangs. A call that runs
    longer than its timeout is not waited for any more; when the process exits, for at most a second.

    A function may call its decorated self, if that recursion ends. A recursion through it is as deep as Python's stack
    allows, about 18 frames a level: 54 levels with the default limit, which `sys.setrecursionlimit` raises. Nested
    calls are recognized by a context variable. Threads that the function starts, such as those of a
    ``ThreadPoolExecutor``, do not inherit it. A nested call in such a thread needs its own slot, and times out if all
    ``lookup.async.capacity`` slots wait for it. Submit ``contextvars.copy_context().run`` to pass the context on.

    ``lookup.on-error`` ``null`` returns None instead of a value, and needs no ``lookup.error-column`` here.
    ``lookup.rate-limit`` applies to this function alone, in all processes of an executor; another function, even of the
    same name, has its own. ``lookup.cache.max-bytes`` measures a value when it is cached, with all that it refers to,
    not when it changes later.

    A cache of cachetools, given first or as ``cache``, takes the place of the options that limit one:
    ``@cached(cachetools.TTLCache(1000, 60))``. Its keys are tuples of the arguments. A lock protects it, so no other
    code should use it while calls are made.

    With ``cache_path``, all processes of a machine that decorate this function share its results: one call per key,
    until its code or its inputs change. Then arguments and values must be plain data; ``docs/sharing.md`` says
    which data, and how.

    With ``store``, all processes with the same Redis server or folder share it, on all hosts and in later runs
    (``docs/sharing.md``), under the same conditions. `invalidate` and ``clear`` remove values for all.

    A forked process starts with the cached values of its parent (with ``scope`` = ``host``, those in the files), and
    without its calls. A function that can be imported is pickled by name; any other, with cloudpickle, is unpickled
    with the same options and an empty cache.

    Raises OptionError for options that need a table or a join. A call raises SourceError if the function returns an
    object that can be used only once, such as a coroutine. Otherwise it raises the function's last error, unchanged. An
    ``async def`` that raises StopIteration raises a RuntimeError instead, with or without the decorator, as in Python.

    Args:
        config: A function, a `LookupConfig`, options by name, a cache of cachetools, or None.
        batch: Whether the function takes a list of keys.
        key: A function that returns the key of a call's arguments, such as those of ``cachetools.keys``.
        clock: Returns the time in seconds.
        retryable: Returns whether an error is retried.
        retry_after: Returns the seconds that the source requires before a retry, or None.
        options: Fields of `LookupConfig`.

    >>> @cached(max_rows=100)
    ... def rows_of(customer_id, country="NL"):
    ...     return [{"id": customer_id, "country": country}]
    >>> rows_of(7), rows_of(7, country="NL") is rows_of(7), rows_of.cache_info()
    ([{'id': 7, 'country': 'NL'}], True, CacheInfo(hits=2, misses=1, maxsize=100, currsize=1))
    """
    settings: dict[str, Any] = {"batch": batch, "clock": clock, "retryable": retryable, "retry_after": retry_after}
    if key is not None:
        settings["key"] = key
    if callable(config) or isinstance(config, classmethod | staticmethod):
        return _decorate(config, config=_config(None, options), **settings)
    values, config = _given_cache(config, options)
    if values is not None:
        settings["values"] = values
    settings["config"] = _config(config, options)
    _refuse_what_needs_more(settings["config"], batch)
    return functools.partial(_decorate, **settings)


def _given_cache(config: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return a cache of cachetools that is given as ``cache``, which is removed there, or as config; and the config."""
    by_name = options.get("cache")
    if isinstance(by_name, MutableMapping) and not is_cache(by_name):
        raise OptionError(
            f"'cache' is of type {type(by_name).__name__}, which has no limit of its own.",
            hint="Leave it out, and state how many rows are kept, as in cached(max_rows=1_000_000).",
        )
    if not (is_cache(config) or is_cache(by_name)):
        return None, config
    values = options.pop("cache", None) if is_cache(by_name) else config
    kind = type(values).__name__
    if config is not None and config is not values:
        raise OptionError(
            f"'cached' takes either a {kind} as cache, or a config.",
            hint="Pass other options by name beside the cache.",
        )
    if refused := [name for name in options if name in _OF_OWN_CACHES]:
        raise OptionError(
            f"{refused[0]!r} does not fit a {kind}, which alone decides what it keeps and for how long.",
            hint=f"Give the {kind} that limit, or leave it out and use options alone, as in cached(max_rows=128).",
        )
    return values, None


_OF_ANY_CACHE = {"missing_key", "refresh_after_write", "on_miss_max_attempts", "on_miss_delay"}

_OF_OWN_CACHES = {"maxsize", "ttl"} | {
    one.name
    for one in dataclasses.fields(LookupConfig)
    if one.metadata["change"] in ("age", "cache") and one.metadata["cached"] == "used" and one.name not in _OF_ANY_CACHE
}
"""Options that set which values a cache keeps, for how long and where; those of any cache fit a given one too."""


def _config(given: Any, options: dict[str, Any]) -> LookupConfig:
    """Return the config, with these options replacing its own."""
    known = [field.name for field in dataclasses.fields(LookupConfig)]
    for name in options:
        if name not in known:
            hint = _ELSEWHERE.get(name) or nearest(name, known, what="options")
            raise OptionError(f"There is no option {name!r}.", hint=hint)
    if isinstance(given, Mapping):
        if not any("." in name for name in given):
            return _config(None, {**given, **options})
        given = LookupConfig.from_options(
            {"lookup.cache": "LRU", **_error_column_placeholder(given, "lookup.on-error"), **given}
        )
    elif given is None:
        given, options = (
            LookupConfig(**{"cache": "LRU", **_error_column_placeholder(options, "on_error"), **options}),
            {},
        )
    elif not isinstance(given, LookupConfig):
        raise OptionError(
            f"'cached' takes a function or a LookupConfig, not {type(given).__name__} {given!r}.",
            hint="Pass options by name, as in cached(max_rows=128, expire_after_write='10 min').",
        )
    elif given.cache == "NONE" and "cache" not in options:
        warnings.warn(
            "'cached' has no cache here: 'lookup.cache' of its config is NONE.\n\nHint: Set it to LRU or TTL, or pass "
            "cached(cache='NONE') if only retries and limits are needed.",
            LookupAdvice,
            stacklevel=3,
        )
    return (
        dataclasses.replace(given, **{**_error_column_placeholder(options, "on_error"), **options})
        if options
        else given
    )


_ELSEWHERE = {
    "maxsize": "It is called 'max_rows' here.",
    "ttl": "It is called 'expire_after_write' here.",
    "ttr": "It is called 'refresh_after_write' here.",
    "timer": "It is called 'clock' here.",
    "typed": "Leave it out: types of arguments always differ. To make 1 and 1.0 one key, pass key=lambda *args: args.",
    "lock": "Leave it out: the cache is used under a lock of its own, 'cache_lock' of the function.",
    "condition": "Leave it out: callers that need the same key always wait for one call.",
    "info": "Leave it out: every function has cache_info().",
}
"""The replacement of each parameter of cachetools and functools."""


def _error_column_placeholder(options: Mapping[str, Any], on_error: str) -> dict[str, Any]:
    """Return a placeholder for the error column that the config requires but a decorated function does not use."""
    name = on_error.replace("on-error", "error-column").replace("on_error", "error_column")
    return {name: "error"} if str(options.get(on_error)).lower() == "null" else {}


def _decorate(function: Any, *, config: LookupConfig, batch: bool, **settings: Any) -> Any:
    if isinstance(function, classmethod | staticmethod):
        # The other way round, which means the same.
        return type(function)(_decorate(function.__func__, config=config, batch=batch, **settings))
    _refuse_what_needs_more(config, batch)
    _refuse_key(settings.get("key"), config, batch)
    _refuse_what_is_no_function(function)
    config = config.located()
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
    key: KeyFunction | None = None,
    limit_name: str | None = None,
    code: CodeIdentity | None = None,
    values: MutableMapping[Any, Any] | None = None,
) -> SyncLookup | AsyncLookup:
    """Return the lookup behind a decorated function.

    Copies of the function in other processes share the rate limit ``limit_name``. ``code`` is the identity of its code,
    where another process has taken it. Without ``values``, a mapping, values are in a cache with the config's limits.
    """
    limiter, counters = None, Counters()
    if config.rate_limit is not None and config.rate_limit_scope == "executor":
        limiter = RateLimit.of_executor(config.rate_limit, limit_name or name_of(function))
    identify = functools.cache(functools.partial(_identify, function, config, code, batch))
    store = _value_store(function, config, identify, counters, clock)
    resilience = ResiliencePolicy(
        config, retryable=retryable, retry_after=retry_after, counters=counters, limiter=limiter,
        cluster=_cluster_rate(function, store, config, counters), clock=clock,
    )  # fmt: skip
    keyed = KeyedFunction(function, batch, config.timeout, key)
    shared = _shared_cache(function, config, identify, counters, clock)
    if not keyed.adapter.is_async:
        return SyncLookup(keyed, config, resilience, clock, shared, store, values)
    if config.async_ is False:
        raise OptionError("'lookup.async' = 'false' does not fit an async function.", hint="Leave the option out.")
    return AsyncLookup(keyed, config, resilience, clock, shared, store, values)


def _identify(function: Any, config: LookupConfig, code: CodeIdentity | None, batch: bool) -> str:
    """Return the identity of a function's values at its first call, when all functions that it calls are defined.

    A function that takes a key or a list may return other values for a list. A process that was given the function
    imports other modules itself: where these are not those of the ``code``, the identity is of this process alone.
    """
    from lookupcache.functions.identity import stored_identity
    from lookupcache.functions.value_codec import FORM
    from lookupcache.plan import digest

    found = stored_identity(function, config.version, code)
    if code is not None and config.version is None:
        from lookupcache.functions.loaded_code import has_other_code

        subject = f"{name_of(function)}: this process shares no values"
        if has_other_code(code.process, code.texts, subject, "the function was pickled"):
            found = digest([found, this_process()])
    return digest([FORM, found, *(["batch"] if batch else [])])


def _value_store(
    function: Any, config: LookupConfig, identify: Callable[[], str], counters: Counters, clock: Clock
) -> ValueStore | None:
    """Return the values that a function's processes on all hosts share, if its options name the store."""
    if config.store is None:
        return None
    # Only functions with a store import it.
    from lookupcache.decorator.stored_values import ValueStore

    return ValueStore(function, config, identify, counters, clock)


def _cluster_rate(
    function: Any, store: ValueStore | None, config: LookupConfig, counters: Counters
) -> ClusterRate | None:
    """Return the rate that options set for the processes of all hosts, if any."""
    if store is None or config.rate_limit_scope == "executor":
        return None
    from lookupcache.store.cluster_rate import StoredRate

    return StoredRate(config, config.store_name or name_of(function), counters, store.function)


def _shared_cache(
    function: Any, config: LookupConfig, identify: Callable[[], str], counters: Counters, clock: Clock
) -> SharedCache | None:
    """Return the values that a function's processes share, if its options name the folder."""
    if config.scope == "host" and config.cache != "NONE" and config.cache_path is None:
        raise OptionError(
            "'lookup.cache.scope' = 'host' needs a folder here: without Spark, processes have no common one.",
            hint="Set 'lookup.cache.path' (cache_path) to a local folder.",
        )
    if config.scope == "worker" or config.cache_path is None:
        return None
    # Only functions that share import it.
    from lookupcache.decorator.shared_cache import SharedCache

    return SharedCache(function, config, identify, counters, clock, None if clock is time.monotonic else clock)


_limit_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _limit_name(function: Any) -> str:
    """Return the name of a function's rate limit: its own name, with a number if other functions have the same name.

    So two lambdas have two limits, and a function that is decorated again in each process of an executor has one.
    """
    name = name_of(function)
    try:
        if function not in _limit_names:
            taken = set(_limit_names.values())
            numbered = (f"{name} #{number}" for number in itertools.count(2))
            _limit_names[function] = next(one for one in itertools.chain([name], numbered) if one not in taken)
        return _limit_names[function]
    except TypeError:  # it has no hash, or does not support weak references
        return name


def _refuse_what_is_no_function(function: Any) -> None:
    if not callable(function):
        raise OptionError(f"'cached' decorates a function, not {type(function).__name__}.")
    refuse_uncallable(function)
    if is_async_generator(function):
        raise OptionError(
            f"{name_of(function)} is an async generator, whose items can be read only once.",
            hint="Write it 'async def' without 'yield', and return a list.",
        )


def _refuse_key(key: Any, config: LookupConfig, batch: bool) -> None:
    """Raise OptionError for a ``key`` that is no function, or that does not fit the other options."""
    if key is None:
        return
    if not callable(key):
        raise OptionError(
            f"'key' is {type(key).__name__} {key!r}, not a function.",
            hint="Pass a function of the arguments, such as cachetools.keys.hashkey or lambda session, id: id.",
        )
    for name, is_given in {"batch=True": batch, "store": config.store, "cache_path": config.cache_path}.items():
        if is_given:
            raise OptionError(
                f"'key' does not fit {name}, with which the arguments themselves are the keys.",
                hint="Leave 'key' out, and decorate a function whose arguments are the key.",
            )


def _refuse_what_needs_more(config: LookupConfig, batch: bool) -> None:
    if config.cache == "ALL":
        raise OptionError("'lookup.cache' = 'ALL' needs a table that can be read in full.", hint="Use LRU or TTL.")
    refused = {"lookup.on-error": config.on_error} if config.on_error == "dead-letter" else {}
    keys = {one.metadata["key"] for one in dataclasses.fields(config) if one.metadata["cached"] == "refused"}
    refused |= {key: value for key, value in config.to_json().items() if key in keys}
    for key, value in refused.items():
        raise OptionError(
            f"{key!r} = {value!r} needs a join; a decorated function has none.", hint="Leave the option out."
        )
    if not batch and (config.batch_max_size is not None or config.batch_max_delay is not None):
        raise OptionError(
            "'lookup.batch.max-size' and 'lookup.batch.max-delay' have no effect for a function of one key.",
            hint="Write it for many keys, with batch=True, or leave the option out.",
        )
