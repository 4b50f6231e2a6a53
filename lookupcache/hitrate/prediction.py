"""`hit_rate`: from keys to curves, columns and advice.

read_requests ─► Requests ─► a curve for each deployment ─► Prediction ─► report, plot, JSON
                         └─► ages · replays of other policies ─► advice
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import pyarrow as pa

from lookupcache.config.values import Eviction, parse_bytes, parse_duration, parse_eviction
from lookupcache.errors import OptionError, SchemaError
from lookupcache.hitrate.advice import Advice, choose_size, rows_that_fit, winner
from lookupcache.hitrate.ageing import Ages
from lookupcache.hitrate.curve import Curve, sizes_up_to
from lookupcache.hitrate.deployment import (
    Deployment,
    Scope,
    Spread,
    exact_curve,
    mix,
    needed_sizes,
    shared_curve,
    survey_requests,
)
from lookupcache.hitrate.keys import Progress, Requests, read_requests
from lookupcache.hitrate.plot import as_svg, plot_into
from lookupcache.hitrate.replay import replay
from lookupcache.hitrate.reuse import distances, previous
from lookupcache.hitrate.shards import LEAST_KEYS
from lookupcache.hitrate.width import Width
from lookupcache.notebook import as_html
from lookupcache.schema import as_schema

if TYPE_CHECKING:
    from lookupcache.hitrate.deployment import Survey
    from lookupcache.hitrate.spark import RequestTotals

_T = TypeVar("_T")
_R = TypeVar("_R")

POLICIES: tuple[str, ...] = get_args(Eviction)

_LONG = 20_000_000
_KEYS_WANTED = 8 * LEAST_KEYS
"""Their standard error is below half a point; fewer, if they have too many requests."""
_REPLAYED = 400_000
_LEAST_REPLAYED_SIZE = 100
_MOST_REPLAYED_SIZES = 10
_PARTS = (0.01, 0.1, 0.2)


@dataclass(frozen=True)
class ReportColumn:
    """One curve of the report: its title, and the number of sampled keys, None if it is exact."""

    title: str
    curve: Curve
    sampled_keys: int | None = None


@dataclass(frozen=True)
class AgeRow:
    """Hit ratios under one age limit, without a size and with one; ``limit`` as it was given."""

    limit: str
    after_write: float
    after_access: float
    size: int
    after_write_sized: float
    after_access_sized: float


@dataclass(frozen=True)
class PolicyRow:
    """Hit ratios of the policies at one size, with batches of a number of rows."""

    size: int
    batch: int
    ratios: dict[str, float]


@dataclass(frozen=True)
class DilutionRow:
    """How often each key is requested from the source, on average, by a number of workers at one cache size."""

    workers: int
    worker_scope: float
    host_scope: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction:
    """The predicted hits of a cache with these keys; ``columns[0]`` is the plain curve, the last one the deployment."""

    requests: int
    keys: int
    nulls: int
    seconds: float | None
    sizes: list[int]
    columns: list[ReportColumn]
    ages: list[AgeRow]
    policies: list[PolicyRow]
    fits: dict[str, tuple[int, float]]
    advice: Advice
    dilution: list[DilutionRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def plain(self) -> Curve:
        """The curve of one cache with single requests."""
        return self.columns[0].curve

    def ratio(self, size: int) -> float:
        """Return the plain hit ratio at one size."""
        return float(self.plain.ratio([size])[0])

    def __repr__(self) -> str:
        advice = self.advice
        hits = f"a cache of {advice.rows:,} rows has {advice.ratio:.1%} hits"
        return f"<Prediction: {self.requests:,} requests for {self.keys:,} keys; {hits}>"

    def _repr_html_(self) -> str:
        title = f"{self.requests:,} requests for {self.keys:,} keys"
        advice = [("", text) for text in (*self.texts(), *self.advice.lines())]
        return as_html(title, {"": advice}) + as_svg(self)

    def texts(self) -> list[str]:
        """Return the advised size and its effects as sentences."""
        fits = [f"max-bytes with {name}: {rows:,} rows, {ratio:.2%} hit." for name, (rows, ratio) in self.fits.items()]
        return [*self.advice.texts(), *fits]

    def plot(self, axes: Any = None, title: str = "") -> Any:
        """Draw the curves, the replayed policies and the advised size; return matplotlib's axes.

        A notebook shows the picture below its cell; a script calls ``matplotlib.pyplot.show()``.
        Needs matplotlib: ``pip install 'lookupcache[plot]'``.

        Args:
            axes: The axes to draw into; those of a new figure of pyplot by default.
            title: The title; by default the numbers of requests and keys.
        """
        return plot_into(self, axes, title)

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON data."""
        return {
            "requests": self.requests,
            "keys": self.keys,
            "nulls": self.nulls,
            "seconds": self.seconds,
            "sizes": self.sizes,
            "columns": [_column_json(column, self.sizes) for column in self.columns],
            "ages": [vars(row) for row in self.ages],
            "policies": [vars(row) for row in self.policies],
            "max-bytes": {name: {"rows": rows, "ratio": ratio} for name, (rows, ratio) in self.fits.items()},
            "advice": vars(self.advice),
            "dilution": [vars(row) for row in self.dilution],
            "notes": self.notes,
        }


def _column_json(column: ReportColumn, sizes: list[int]) -> dict[str, Any]:
    return {
        "title": column.title,
        "sampled_keys": column.sampled_keys,
        "ratio": [round(float(ratio), 6) for ratio in column.curve.ratio(sizes)],
        "error": [round(float(error), 6) for error in column.curve.error_at(sizes)],
    }


@dataclass(frozen=True, kw_only=True)
class HitRateArguments:
    """The parsed arguments of `hit_rate`."""

    deployment: Deployment
    sizes: list[int]
    ttls: list[str | int]
    sample: float | None
    cost: float | None
    target: float | None
    rate: float | None
    max_bytes: int | None
    width: Width | None
    policies: tuple[str, ...]
    dilution: tuple[int, ...] = ()

    def per_second(self, requests: int, seconds: float | None) -> float | None:
        """Return the rows per second: those that were stated, or those of some requests; None if unknown."""
        return self.rate or (None if seconds is None else requests / seconds)


def hit_rate(
    source: Any,
    keys: str | Sequence[str] | None = None,
    time: str | None = None,
    *,
    schema: str | pa.Schema | Any | None = None,
    sizes: Sequence[int] | None = None,
    ttls: Sequence[str | int] | None = None,
    batch: int = 10_000,
    workers: int = 1,
    spread: Spread = "random",
    scope: Scope = "host",
    dilution: Sequence[int] = (),
    rows_per_key: int = 1,
    missing: float = 0.0,
    remember_misses: bool = True,
    sample: float | Literal["auto", "no"] = "auto",
    cost: Any = None,
    target: Any = None,
    rate: float | None = None,
    max_bytes: Any = None,
    width: Width | None = None,
    policies: str | Sequence[str] = POLICIES,
    progress: Progress | None = None,
) -> Prediction:
    """Predict the hit rate of a cache from the keys that will be looked up.

    Hits are counted by rows: of a key that is in a batch five times and is not cached, four rows are hits. Raises
    SchemaError for unsuitable columns or input, OptionError for other invalid values.

    Args:
        source: A Spark DataFrame, a pandas or Arrow table, or the path of a Parquet or CSV file or folder.
        keys: The key column, or several; None if there is only one column.
        time: The column with the requests' times, in ascending order.
        schema: The types of key columns, as DDL text, Arrow or Spark schema. By default keys of a CSV, and those in
            names of folders, are texts as written. Others have the types of the source.
        sizes: The cache sizes in rows; by default a range up to the number of keys.
        ttls: Age limits, as durations or as numbers of requests; not for a DataFrame that the executors sample.
        batch: Rows in a batch of the join.
        workers: The number of workers of a host.
        spread: How rows are distributed over workers: ``random``, or by ``key`` (``lookup.shuffle``).
        scope: Whether the workers share a cache (``host``), or each has its own (``worker``).
        dilution: Numbers of workers for which to compare both scopes.
        rows_per_key: How many rows a key has in the lookup table.
        missing: The fraction of keys without rows.
        remember_misses: Whether missing keys are cached.
        sample: The fraction of keys to examine, ``"no"`` for all; ``"auto"`` samples only long input.
        cost: The duration of a call to the source.
        target: The required hit ratio, as 0.95, "95%" or 95.
        rate: Rows per second, if there is no ``time``.
        max_bytes: The value of ``lookup.cache.max-bytes`` to assess.
        width: The measured sizes of rows.
        policies: The eviction policies to compare.
        progress: Called with a step's name, how much of it is done, and of how much.

    >>> import pyarrow as pa
    >>> found = hit_rate(pa.table({"id": [1, 2, 1, 3, 1, 2]}), batch=1)
    >>> [round(found.ratio(size), 3) for size in (1, 2, 3)]
    [0.0, 0.333, 0.5]
    """
    if rate is not None and not 0 < rate < math.inf:
        raise OptionError(f"rate is {rate!r}.", hint="It takes a number above 0.")
    keys = _listed(keys)
    deployment = Deployment(batch=batch, workers=workers, spread=spread, remember_misses=remember_misses, scope=scope)
    deployment = deployment.with_rows(rows_per_key, missing)
    if width is not None:
        deployment = replace(deployment, rows=width.rows)
    wanted = HitRateArguments(
        deployment=deployment,
        sizes=_sizes(sizes),
        ttls=list(ttls or []),
        sample=_part(sample),
        cost=None if cost is None else _parsed("cost", cost, parse_duration),
        target=None if target is None else _ratio(target),
        rate=rate,
        max_bytes=None if max_bytes is None else _parsed("max_bytes", max_bytes, parse_bytes),
        width=width,
        policies=tuple(_parsed("policies", one, parse_eviction) for one in _listed(policies) or ()),
        dilution=tuple(dilution),
    )
    types = None if schema is None else as_schema(schema)
    if hasattr(source, "sparkSession"):
        if source.isStreaming:
            raise SchemaError(
                "Keys cannot be read from a stream, which has no end.",
                hint="Read what it has as a batch, as in spark.read.parquet(…) instead of spark.readStream.parquet(…).",
            )
        if types is not None:
            raise OptionError("A DataFrame has types, so that it takes no schema.", hint="Cast its key columns.")
        return _predict_on_spark(source, keys, time, wanted, auto=sample == "auto")
    return predict(read_requests(source, keys, time, progress, types), wanted, auto=sample == "auto", progress=progress)


def predict(
    requests: Requests, wanted: HitRateArguments, *, auto: bool, progress: Progress | None = None
) -> Prediction:
    """Predict from requests in memory; ``auto`` says that long traces are sampled."""
    report: Progress = progress or (lambda what, done, of: None)
    notes: list[str] = []
    rate = wanted.sample
    if auto and len(requests) > _LONG:
        rate = _rate(len(requests), requests.keys)
    if rate is not None and rate < 1 and requests.keys * rate < LEAST_KEYS:
        notes.append(
            f"Exact: of {requests.keys:,} keys a part of {rate:g} would be fewer than {LEAST_KEYS:,}, which is too few."
        )
        rate = None
    sizes = wanted.sizes or sizes_up_to(round(requests.keys * max(wanted.deployment.mean_weight, 1)))
    shown = _deployments(wanted.deployment)
    columns = _each("Curves", shown, lambda one: _column(*one, requests, rate, sizes), report)
    last, per_second = columns[-1], wanted.per_second(len(requests), requests.seconds)
    chosen = _advice(last.curve, wanted, per_second)
    policies = _policies(requests, wanted, chosen.rows, report)
    best, gain = winner(policies[-1].ratios) if policies and policies[-1].size == chosen.rows else ("lru", 0.0)
    if best != "lru":
        chosen = _advice(last.curve, wanted, per_second, best, gain)
    return Prediction(
        requests=len(requests),
        keys=requests.keys,
        nulls=requests.nulls,
        seconds=requests.seconds,
        sizes=sizes,
        columns=columns,
        ages=_ages(requests, wanted.ttls, chosen.rows, report),
        policies=policies,
        fits=_fits(last.curve, wanted),
        advice=chosen,
        dilution=[_dilution_row(requests, wanted.deployment, workers, chosen.rows) for workers in wanted.dilution],
        notes=notes,
    )


def _predict_on_spark(
    df: Any, keys: Sequence[str] | None, time: str | None, wanted: HitRateArguments, *, auto: bool
) -> Prediction:
    """Predict from a DataFrame; if it is long or a sample is requested, the executors sample it."""
    from lookupcache.hitrate import spark

    given, rate = spark.words_and_times(df, keys, time), wanted.sample
    totals = spark.total_requests(given) if auto or rate is not None else None
    if auto and totals is not None and totals.requests > _LONG:
        rate = _rate(totals.requests, totals.keys)
    if totals is None or rate is None or rate >= 1 or totals.keys * rate < LEAST_KEYS:
        return predict(spark.collect_requests(given, time), wanted, auto=False)
    if wanted.ttls:
        raise OptionError(
            "ttls are not supported where the executors sample the keys.",
            hint="Leave them out, or pass sample='no' with a DataFrame of a part of the keys.",
        )
    shown = _deployments(wanted.deployment)
    surveys = spark.survey_on_executors(given, totals.requests, [one for _, one in shown], rate)
    return _of_surveys(surveys, totals, [title for title, _ in shown], wanted, rate)


def _rate(requests: int, keys: int) -> float:
    """Return the part of keys to sample.

    >>> _rate(10**8, 10**6), _rate(10**9, 10**5), _rate(10**8, 10**4)
    (0.064, 0.16, 1.0)
    """
    wanted = min(_KEYS_WANTED / max(keys, 1), _LONG / max(requests, 1))
    return min(max(wanted, 2 * LEAST_KEYS / max(keys, 1)), 1.0)


def _of_surveys(
    surveys: list[Survey], totals: RequestTotals, titles: list[str], wanted: HitRateArguments, rate: float
) -> Prediction:
    keys = round(surveys[0].keys / rate)
    sizes = wanted.sizes or sizes_up_to(round(keys * max(wanted.deployment.mean_weight, 1)))
    columns = [
        ReportColumn(title, survey.curve(sizes), survey.keys) for title, survey in zip(titles, surveys, strict=True)
    ]
    chosen = _advice(columns[-1].curve, wanted, wanted.per_second(totals.requests, totals.seconds))
    return Prediction(
        requests=totals.requests,
        keys=keys,
        nulls=totals.nulls,
        seconds=totals.seconds,
        sizes=sizes,
        columns=columns,
        ages=[],
        policies=[],
        fits=_fits(columns[-1].curve, wanted),
        advice=chosen,
        notes=[
            f"Sampled on the executors: a part of {rate:.3g} of the keys. Ages and other evictions need all requests."
        ],
    )


def _deployments(last: Deployment) -> list[tuple[str, Deployment]]:
    """Return the deployments that the report compares, from the plain cache to the full deployment."""
    found = [("plain", Deployment())]
    if last.batch > 1:
        found.append((f"batches of {last.batch:,}", Deployment(batch=last.batch)))
    if last.workers > 1:
        for spread, title in (("random", "rows at random"), ("key", "rows by key")):
            one = Deployment(batch=last.batch, workers=last.workers, spread=spread)  # type: ignore[arg-type]
            found.append((f"{last.workers} workers, {title}", one))
        if last.spread == "random":
            found[-2:] = found[:-3:-1]
        if last.scope == "host":
            found.append((f"{last.workers} workers, one cache", replace(last, rows=(1,), remember_misses=True)))
    if last.rows != (1,):
        found.append((_rows_title(last), last))
    return found


def _rows_title(last: Deployment) -> str:
    mean = float(np.mean([count for count in last.rows if count] or [0]))
    none = last.rows.count(0) / len(last.rows)
    how = "remembered" if last.remember_misses else "requested again"
    return f"{mean:.3g} rows a key" + (f", {none:.1%} of keys missing, {how}" if none else "")


def _column(
    title: str, deployment: Deployment, requests: Requests, rate: float | None, sizes: list[int]
) -> ReportColumn:
    if rate is None or rate >= 1:
        if deployment.scope == "host" and deployment.workers > 1:
            return ReportColumn(title, shared_curve(requests, deployment, _replayed_sizes(sizes, requests)))
        return ReportColumn(title, exact_curve(requests, deployment))
    survey = survey_requests(requests.words, deployment, rate)
    return ReportColumn(title, survey.curve(sizes), survey.keys)


def _replayed_sizes(sizes: list[int], requests: Requests) -> list[int]:
    """Return the sizes to replay: of long input only some, the largest among them."""
    step = 1 if len(requests) <= _REPLAYED else -(-len(sizes) // _MOST_REPLAYED_SIZES)
    return sizes[::-1][::step][::-1]


def _dilution_row(requests: Requests, deployment: Deployment, workers: int, size: int) -> DilutionRow:
    each = replace(deployment, workers=workers, scope="worker", spread="random")
    curves = exact_curve(requests, each), shared_curve(requests, replace(each, scope="host"), [size])
    return DilutionRow(workers, *((1 - float(one.ratio([size])[0])) * len(requests) / requests.keys for one in curves))


def _advice(
    curve: Curve, wanted: HitRateArguments, per_second: float | None, eviction: str = "lru", gain: float = 0.0
) -> Advice:
    return choose_size(
        curve,
        wanted.deployment,
        target=wanted.target,
        rate=per_second,
        cost=wanted.cost,
        width=wanted.width,
        eviction=eviction,
        gain=gain,
    )


def _fits(curve: Curve, wanted: HitRateArguments) -> dict[str, tuple[int, float]]:
    """Return how many rows fit into ``max-bytes``, and their hit ratio: with all columns, and with those after calc."""
    if wanted.max_bytes is None:
        return {}
    if wanted.width is None:
        raise OptionError("'max-bytes' needs the size of a row.", hint="Name the table, as by --table.")
    rows = {
        "whole rows": rows_that_fit(wanted.max_bytes, wanted.width, calc=False),
        "what calc leaves": rows_that_fit(wanted.max_bytes, wanted.width, calc=True),
    }
    return {name: (size, float(curve.ratio([size])[0])) for name, size in rows.items()}


def _ages(requests: Requests, ttls: list[str | int], size: int, report: Progress) -> list[AgeRow]:
    ttls = ttls or _usual_limits(requests)
    if not ttls:
        return []
    before = previous(requests.ids)
    free = Ages.of(before, np.arange(len(requests)))
    sized = Ages.of(before, np.arange(len(requests)), distances(before), size, order=free.order)
    return _each("Age limits", ttls, lambda ttl: _age_row(requests, free, sized, ttl, size), report)


def _usual_limits(requests: Requests) -> list[str | int]:
    """Return age limits that suit the input."""
    if requests.seconds is None:
        return [count for count in (100, 1_000, 10_000, 100_000, 1_000_000) if count < len(requests)]
    return [f"{requests.seconds / part:.6g} s" for part in (1000, 100, 10)]


def _age_row(requests: Requests, free: Ages, sized: Ages, ttl: str | int, size: int) -> AgeRow:
    by_count = isinstance(ttl, int) or ttl.strip().isdigit()
    limit = int(ttl) if by_count else round(_parsed("ttl", ttl, parse_duration) * 1_000_000)
    if not by_count and requests.times is None:
        raise OptionError(f"ttl is {ttl!r}, which needs times.", hint="Name the time column, or give a number of rows.")
    if limit < 1:
        raise OptionError(f"ttl is {ttl!r}: nothing would be kept.", hint="It takes a duration, or a number of rows.")
    if not by_count and requests.times is not None:
        times = requests.times[free.order]
        free, sized = replace(free, times=times), replace(sized, times=times)
    count = len(requests)
    return AgeRow(
        limit=f"{limit:,} requests" if by_count else str(ttl),
        after_write=free.after_write(limit) / count,
        after_access=free.after_access(limit) / count,
        size=size,
        after_write_sized=sized.after_write(limit) / count,
        after_access_sized=sized.after_access(limit) / count,
    )


def _each(step: str, items: Sequence[_T], make: Callable[[_T], _R], report: Progress) -> list[_R]:
    """Return what is made of each item, and report how many of them are done."""
    made = list[_R]()
    report(step, 0, len(items))
    for item in items:
        made.append(make(item))
        report(step, len(made), len(items))
    return made


def _policies(requests: Requests, wanted: HitRateArguments, chosen: int, report: Progress) -> list[PolicyRow]:
    """Replay other policies, with single requests and in batches, on a sample if there are many keys."""
    if not set(wanted.policies) - {"lru"}:
        return []
    part = min(_REPLAYED / len(requests), 1.0)
    words = requests.words
    if part < 1:
        words = words[(mix(words) >> np.uint64(11)).astype(np.float64) < part * 2.0**53]
    small = Requests(words)
    sizes = {round(part_ * requests.keys) for part_ in _PARTS} | {chosen}
    sizes = {size for size in sizes if round(size * part) >= _LEAST_REPLAYED_SIZE and size < requests.keys}
    replays = [(size, 1) for size in sorted(sizes - {chosen})]
    if chosen in sizes:
        replays += [(chosen, 1), (chosen, wanted.deployment.batch)][: 1 + (wanted.deployment.batch > 1)]
    return _each("Replays of other policies", replays, lambda one: _policy_row(small, one, part, wanted), report)


def _policy_row(requests: Requests, replayed: tuple[int, int], part: float, wanted: HitRateArguments) -> PolicyRow:
    size, batch = replayed
    here = max(round(size * part), 1)
    at_once = 1 if batch == 1 else max(round(batch * part), 1)
    others = [policy for policy in wanted.policies if policy != "lru"]
    ratios = {policy: replay(requests.ids, policy, here, at_once) / len(requests) for policy in others}
    needed = needed_sizes(requests, Deployment(batch=at_once))
    return PolicyRow(size, batch, {"lru": float(np.mean(needed <= here)), **ratios})


def _listed(names: str | Sequence[str] | None) -> Sequence[str] | None:
    return [names] if isinstance(names, str) else names


def _sizes(sizes: Sequence[int] | None) -> list[int]:
    for size in sizes or []:
        if size < 1:
            raise OptionError(f"A cache of {size} rows holds nothing.", hint="Sizes are whole numbers, 1 or more.")
    return sorted(set(sizes or []))


def _part(sample: float | str) -> float | None:
    if sample in ("auto", "no"):
        return None
    try:
        part = float(sample)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise OptionError(
            f"sample is {sample!r}.", hint="It takes a part of the keys, above 0 and up to 1, auto or no."
        )
    return part


def _parsed(name: str, value: Any, parse: Callable[[Any], _T]) -> _T:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(f"{name} is {value!r}.", hint=f"It takes {error}.") from None


def _ratio(value: Any) -> float:
    """Parse 0.95, "95%", or 95, which is a percentage since it is above 1.

    >>> _ratio("95%"), _ratio(0.5), _ratio("95")
    (0.95, 0.5, 0.95)
    """
    text = str(value).strip()
    try:
        ratio = float(text.removesuffix("%"))
        ratio = ratio / 100 if ratio > 1 or text.endswith("%") else ratio
    except ValueError:
        ratio = -1.0
    if not 0 < ratio <= 1:
        raise OptionError(f"target is {value!r}.", hint="It takes a part of the rows, such as 95, 95% or 0.95.")
    return ratio
