"""A plan as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lookupcache import expr
from lookupcache.config import LookupConfig
from lookupcache.plan import LookupPlan
from lookupcache.redaction import hide_address

Line = tuple[str, str]

_EVALUATORS = {"source": "applied by the source", "worker": "applied by the worker", "spark": "evaluated by Spark"}
_WHEN = {"pre-filter": "before the lookup", "calc": "before the cache", "residual": "after the cache"}
_NOT_SHARED = (
    "with other applications: what determines the rows cannot be known; lookup.cache.store.name shares a store's"
)


def explain(plan: LookupPlan, *, form: Sequence[Line] = (), state: Sequence[Line] = (), shared: bool = True) -> str:
    """Return the plan as text: where each conjunct went, which columns are requested and cached, and the settings of
    calls.

    ``form`` is the physical form that was chosen and why, and the joins that share its Python stage. ``state``
    describes the state of a join with the latest values of a stream, which has no cache and makes no calls. ``shared``
    is false if no other application may have the rows, even if options name a store or a path.

    >>> from lookupcache.plan import PlacedConjunct, FieldKey
    >>> from lookupcache.schema import parse_ddl
    >>> print(explain(LookupPlan(table="c", connector="sql", source="", schema=parse_ddl("id BIGINT, name STRING"),
    ...     how="left", keys=(FieldKey(column="id", sql="l.`id`"),), columns=("name",),
    ...     conjuncts=(PlacedConjunct(text="o.id = c.id", stage="field key", evaluator="source"),))))
    Lookup join: left, table c, connector sql
    <BLANKLINE>
    Condition
      o.id = c.id       field key
    <BLANKLINE>
    Lookup
      field key         id = l.`id`
      cached columns    name
    <BLANKLINE>
    Cache
      strategy          NONE
      identity          f753a2bcfd95b3cf0cfa4f92fb9beef3
    <BLANKLINE>
    Calls
      timeout           3 min
      retries           3, exponential from 100 ms to 10 s
    """
    parts = parts_of(plan, form=form, state=state, shared=shared)
    width = min(max(len(name) for lines in parts.values() for name, _ in lines), 60)
    return "\n".join([title_of(plan), *(_part(title, lines, width) for title, lines in parts.items() if lines)])


def title_of(plan: LookupPlan) -> str:
    """Return the first line of a plan's text."""
    return f"Lookup join: {plan.how}, table {plan.table}, connector {plan.connector}"


def parts_of(
    plan: LookupPlan, *, form: Sequence[Line] = (), state: Sequence[Line] = (), shared: bool = True
) -> dict[str, list[Line]]:
    """Return the parts of a plan's text, with the arguments of `explain`."""
    parts = {
        "Condition": list(_condition(plan)),
        "Form": list(form),
        "Lookup": list(_lookup(plan)),
        "After the cache": list(_after(plan)),
        "Result": list(_result(plan)),
    }
    if state:
        return {**parts, "State": list(state)}
    return {**parts, "Cache": list(_cache(plan, shared)), "Calls": list(_calls(plan.config))}


def _part(title: str, lines: Sequence[Line], width: int) -> str:
    return "\n".join(["", title, *(f"  {name.ljust(width)}    {text}".rstrip() for name, text in lines)])


def _condition(plan: LookupPlan) -> Iterator[Line]:
    for conjunct in plan.conjuncts:
        key = conjunct.stage.endswith("key")
        words = [conjunct.stage, _WHEN.get(conjunct.stage), None if key else _EVALUATORS[conjunct.evaluator]]
        yield conjunct.text, ", ".join(word for word in words if word)


def _lookup(plan: LookupPlan) -> Iterator[Line]:
    if plan.never:
        yield "never", "a constant that nothing equals: no row is looked up"
    yield from (("left filter", sql) for sql in plan.left_filter)
    yield from (("pre-filter", sql) for sql in plan.pre_filter)
    yield from (("field key", f"{key.column} = {key.sql}") for key in plan.keys)
    yield from (("constant key", f"{c.column} = {expr.literal_text(c.value)}") for c in plan.constants)
    yield from (("pushed filter", expr.to_text(filter_)) for filter_ in plan.pushed)
    yield from (("calc filter", expr.to_text(filter_)) for filter_ in plan.calc)
    yield "cached columns", ", ".join(plan.columns) or "none: only whether there is a row"


def _after(plan: LookupPlan) -> Iterator[Line]:
    if plan.latest is not None:
        yield "version", f"the greatest {plan.latest} of those that pass the conditions"
    if plan.matches != "all":
        yield "matches", {"first": "the first", "single": "one; a second is an error"}[plan.matches]
    yield from (("residual, worker", expr.to_text(filter_)) for filter_ in plan.residual)
    yield from (("residual, Spark", sql) for sql in plan.spark_residual)
    yield from (("filter after", sql) for sql in plan.filter_after)


def _result(plan: LookupPlan) -> Iterator[Line]:
    yield from ((output.name, output.sql) for output in plan.output)
    if plan.config.age_column is not None:
        yield plan.config.age_column, "age of the answer, in seconds"
    if plan.config.error_column is not None:
        yield plan.config.error_column, "error of the lookup: code, message"


def _cache(plan: LookupPlan, shared: bool) -> Iterator[Line]:
    yield "strategy", plan.config.cache
    if plan.config.cache != "NONE":
        yield "scope", _scope(plan.config)
    if plan.config.store is not None:
        yield "store", _store(plan.config)
    is_kept = plan.config.store or plan.config.cache_path
    if plan.code_unknown is not None and is_kept and plan.config.store_name is None:
        yield "shared with", f"no other application, since {plan.code_unknown}; state 'lookup.cache.version'"
    if plan.config.version is not None:
        yield "version", plan.config.version
    if not shared:
        yield "not shared", _NOT_SHARED
    yield from _limits(plan.config)
    yield from _freshness(plan.config)
    yield from _reloads(plan.config)
    if plan.config.cache != "NONE":
        yield "known misses", _misses(plan.config)
    yield "identity", plan.fingerprint


def _scope(config: LookupConfig) -> str:
    if not config.is_host_scope:
        return "worker: each Python worker has its own"
    folder = "Spark's local directory" if config.cache_path is None else config.cache_path
    chosen = " (auto; each its own where that cannot be used)" if config.scope == "auto" else ""
    return f"host: all workers of a machine share one, in {folder}{chosen}"


def _store(config: LookupConfig) -> str:
    assert config.store is not None
    named = "" if config.store_name is None else f", as {config.store_name}"
    age = config.store_expire_after_write
    ends = "" if age is None else f", for {_duration(age)}"
    return f"{hide_address(config.store)}{named}{ends}: shared by all hosts"


def _limits(config: LookupConfig) -> Iterator[Line]:
    rows, size = config.size_in()
    if rows is not None:
        yield "rows, at most", f"{rows:,}"
    if size is not None:
        yield "bytes, at most", f"{size:,}"
    if config.expire_after_write is not None:
        yield "expires after write", _duration(config.expire_after_write)
    if config.expire_after_access is not None:
        yield "expires after access", _duration(config.expire_after_access)
    if config.jitter:
        yield "jitter", f"up to {config.jitter * 100:g} % off each age limit"


def _freshness(config: LookupConfig) -> Iterator[Line]:
    if config.refresh_after_write is not None:
        yield "refreshed after", f"{_duration(config.refresh_after_write)}, old rows served meanwhile"
    if config.stale_if_error is not None:
        yield "stale, at most", f"{_duration(config.stale_if_error)}, where the source fails"


def _reloads(config: LookupConfig) -> Iterator[Line]:
    if config.reload_interval is not None:
        start = {"fixed-delay": "the end", "fixed-rate": "the start"}[config.reload_mode]
        yield "reloaded every", f"{_duration(config.reload_interval)}, from {start} of a load"
    if config.reload_at is not None:
        yield "reloaded at", config.reload_at
    if config.reload_allow_empty:
        yield "empty reload", "allowed"


def _misses(config: LookupConfig) -> str:
    if not config.missing_key:
        return "forgotten"
    age = config.missing_key_expire_after_write
    return "kept" if age is None else f"kept for {_duration(age)}"


def _calls(config: LookupConfig) -> Iterator[Line]:
    yield from _flights(config)
    if config.rate_limit is not None:
        whose = "per executor" if config.rate_limit_scope == "executor" else "for all hosts together"
        yield "rate limit", f"{config.rate_limit:g} calls a second, {whose}"
    yield "timeout", _duration(config.timeout)
    yield "retries", _retries(config)
    if config.retry_on is not None:
        yield "retried errors", config.retry_on
    if config.on_miss_max_attempts:
        waits = f"{config.on_miss_max_attempts}, every {_duration(config.on_miss_delay)}"
        yield "retries on a miss", f"{waits}; no filter is offered to the source"
    if config.breaker_failures is not None:
        yield "breaker", f"after {config.breaker_failures} failures, for {_duration(config.breaker_delay)}"
    if config.on_error != "fail":
        yield "on error", _on_error(config)


def _flights(config: LookupConfig) -> Iterator[Line]:
    flights = f"up to {config.async_capacity} calls at a time, {config.output_mode}"
    if config.async_ is not None:
        yield "async", flights if config.async_ else "no, one call after the other"
    elif (config.async_capacity, config.output_mode) != (LookupConfig.async_capacity, LookupConfig.output_mode):
        yield "async", f"as the connector has it, {flights}"
    if config.batch_max_size is not None:
        yield "keys in a call", f"at most {config.batch_max_size:,}"
    if config.batch_max_delay is not None:
        yield "waits to fill", _duration(config.batch_max_delay)


def _retries(config: LookupConfig) -> str:
    if not config.max_retries:
        return "none"
    first, last = _duration(config.retry_delay), _duration(config.retry_max_delay)
    waits = f"exponential from {first} to {last}" if config.retry_strategy == "exponential" else f"every {first}"
    return f"{config.max_retries}, {waits}"


def _on_error(config: LookupConfig) -> str:
    if config.dead_letter_path is not None:
        return f"dead letter, to {hide_address(config.dead_letter_path)}"
    return f"null, and the error in {config.error_column}"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:g} s"
