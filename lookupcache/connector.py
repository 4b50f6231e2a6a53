"""The contract between lookupcache and a source, and the registry of connectors.

A connector only returns the rows of some keys. Caching, batching, retries, timeouts, key matching and type checks are
implemented outside of it, once for all connectors.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from lookupcache import expr
from lookupcache.arrays import to_numpy
from lookupcache.errors import ConnectorError, LookupCacheError, LookupRuntimeError, OptionError, PlanError, nearest
from lookupcache.expr import Expr
from lookupcache.metrics import SOURCE, Counters
from lookupcache.plan import LookupPlan, digest
from lookupcache.redaction import hidden as hidden  # re-exported for connectors
from lookupcache.redaction import hide_address as hide_address
from lookupcache.redaction import hide_query, may_have_secrets, query_secrets
from lookupcache.redaction import hide_userinfo as hide_userinfo
from lookupcache.redaction import is_credential as is_credential
from lookupcache.redaction import is_secret as is_secret
from lookupcache.redaction import url_secrets as url_secrets
from lookupcache.redaction import without_credentials as without_credentials
from lookupcache.secrets import is_reference as is_reference
from lookupcache.secrets import resolve_references
from lookupcache.source_options import use_current_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "lookupcache.connectors"
PROCESS = os.urandom(8).hex()
"""The name of this process, and of those that it forks later: they have loaded the same modules."""


def this_process() -> str:
    """Return the name of this process alone, and of none that it forks: its variables may be others."""
    return f"{PROCESS} {os.getpid()}"


_NOT_WORTH_A_RETRY = (
    LookupCacheError, TypeError, ValueError, AttributeError, NameError, ImportError, AssertionError,
    NotImplementedError, RecursionError, KeyError, IndexError, ArithmeticError, pa.ArrowException,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LookupRequest:
    """What a join requests from a source: the same for every call that the join makes.

    - ``table``: the table's name in the join, for errors. It is not part of what joins share rows by: name what to read
      in an option.
    - ``key_columns``: the columns that keys are passed for; ``columns``: the other requested columns. A result has the
      columns ``fields``, which is both, each once.
    - ``constants``: maps further key columns to the one value (a Python value, never None) that they must equal.
    - ``filters``: the filters that `Connector.accept` returned.
    """

    table: str
    key_columns: tuple[str, ...]
    columns: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    filters: tuple[Expr, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of a result: the key columns, then the other requested columns."""
        return tuple(dict.fromkeys((*self.key_columns, *self.columns)))


def request_of(plan: LookupPlan) -> LookupRequest:
    """Return the request of a plan: the columns that are cached, and those that calc reads before.

    Constant columns are fetched too, so that rows of a source with a looser equality can be dropped.
    """
    wanted = {*plan.columns, *(c.column for c in plan.constants)}
    wanted |= {column.name for conjunct in plan.calc for column in expr.columns_of(conjunct)}
    return LookupRequest(
        table=plan.table,
        key_columns=plan.key_columns,
        columns=tuple(name for name in plan.schema.names if name in wanted and name not in plan.key_columns),
        constants={c.column: _constant(c.value) for c in plan.constants},
        filters=plan.pushed,
    )


def missing_argument_error(table: str, name: str, names: Sequence[str]) -> PlanError:
    """Return the error of a join without a value that the rows of a table depend on, as those of a function do."""
    return PlanError(
        f"Table {table!r} is a function of {', '.join(names)}; the join has no {name!r}.",
        hint=f"Join by {', '.join(names)}.",
    )


def _constant(literal: expr.Literal) -> Any:
    """Return a constant as a source gets the value of a key: -0.0 as 0.0, which it equals."""
    value = expr.python_value(literal)
    return value + 0.0 if isinstance(value, float) else value


class Connector:
    """Base class of sources; implement `lookup` or `lookup_async`, and the other methods that the source supports.

    A connector is created on the driver with the table's schema and the connector's own options (strings, without the
    ``lookup.*`` options). It is pickled, and opened in each worker. Create clients in `open`. From `open` on,
    `settings` contains the secrets that ``env:NAME`` and ``file:PATH`` refer to; before, the references.

    Class attributes:

    - ``options``: maps each option's name to a line of documentation; other names are refused. None accepts all.
    - ``renamed``: maps former names of options to the current ones, under which they are in `settings`.
    - ``required``: the options that must be set.
    - ``secrets``: the options whose values are never shown, in addition to names such as password or token.
    - ``drivers``: maps the modules that are imported on first use to the pip requirement that installs them, for
      example ``{"psycopg": "lookupcache[postgres]"}``.
    - ``batch_max_size``: the maximum number of keys per call; None for no limit.
    - ``prefers_async``: whether `lookup_async` is used where both methods are implemented.
    - ``thread_safe``: whether threads may share one connector; otherwise each thread opens its own copy.
    - ``needs_key``: whether a join needs an equality with a column of the table.
    - ``one_row_per_key``: whether the source can have no more than one row per key, and so no versions of it.
    - ``session_options``: maps options to settings of the Spark session. A join uses the setting's value where the
      table does not set the option, as in ``{"time-zone": "spark.sql.session.timeZone"}``.
    - ``exact_names``: beginnings of names of options whose rest differs by upper and lower case for the source, such as
      ``query.``. Spark passes names in lower case to ``spark.read.format("lookupcache")``, which refuses these.

    >>> class Squares(Connector):
    ...     def lookup(self, request, keys):
    ...         n = keys.column("n")
    ...         return pa.table({"n": n, "square": [i.as_py() ** 2 for i in n]}).select(list(request.fields))
    >>> squares = Squares(pa.schema([("n", pa.int64()), ("square", pa.int64())]), {})
    >>> request = LookupRequest(table="squares", key_columns=("n",), columns=("square",))
    >>> squares.lookup(request, pa.record_batch({"n": [3]})).to_pylist()
    [{'n': 3, 'square': 9}]
    """

    options: ClassVar[Mapping[str, str] | None] = None
    renamed: ClassVar[Mapping[str, str]] = {}
    required: ClassVar[Sequence[str]] = ()
    secrets: ClassVar[Sequence[str]] = ()
    drivers: ClassVar[Mapping[str, str]] = {}
    batch_max_size: ClassVar[int | None] = None
    prefers_async: ClassVar[bool] = False
    thread_safe: ClassVar[bool] = False
    needs_key: ClassVar[bool] = True
    one_row_per_key: ClassVar[bool] = False
    session_options: ClassVar[Mapping[str, str]] = {}
    exact_names: ClassVar[Sequence[str]] = ()

    reports_changes: bool = True
    """Whether `changed`, in a class that has it, reports anything with these options; if not, it is not called."""

    code_variables: tuple[str, ...] = ()
    """Texts of a user's code that may be names of the environment variables which it reads; never shown."""

    code_texts: tuple[str, Sequence[tuple[str, str, str]]] | None = None
    """The `PROCESS` that planned, and the texts of the code's modules there; None if workers need not compare them."""

    _given: Mapping[str, str] | None = None
    _counters: Counters | None = None

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        self.schema = schema
        self.settings = use_current_names(options, self.renamed)

    def resolve(self) -> None:
        """Replace references in `settings` by the secrets; called in the worker, each time before `open`.

        Raises ConnectorError for a variable or a file that does not exist.
        """
        given = self.settings if self._given is None else self._given
        self.settings, self._given = resolve_references(given), given

    def pin(self) -> None:
        """Replace links in `settings` by where they lead now; called after `resolve` if rows are kept by `environment`.

        Optional. Otherwise rows of where a link leads later would be kept as those of where it leads now. A connector
        that connects again after `open` raises `changed_while_read` if `environment` is not what it was here.
        """

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling and copying: it contains the references, not the secrets."""
        state = dict(self.__dict__)
        given = state.pop("_given", None)
        state.pop("_counters", None)
        return state if given is None else state | {"settings": given}

    def count_with(self, counters: Counters) -> None:
        """Take the counters of the worker, which calls this before `open`."""
        self._counters = counters

    def add_count(self, name: str, amount: float = 1) -> None:
        """Add to a count of this source, which `LookupMetrics.source_counts` has under ``name``.

        To be called by any thread or coroutine while the connector is open; without a worker, nothing is counted.
        """
        if self._counters is not None:
            self._counters.add(f"{SOURCE}{name}", amount)

    def open(self) -> Any:
        """Connect; called before the first lookup, in the thread or on the event loop where lookups will run.

        It may be ``async def`` if lookups are.
        """

    def close(self) -> Any:
        """Disconnect; called where `open` was, when the worker no longer needs this connector."""

    def accept(self, filters: Sequence[Expr]) -> Sequence[Expr]:
        """Return those of ``filters`` that `lookup` and `scan` will apply, with Spark's semantics.

        Called on the driver, without a connection; the other filters are applied to the returned rows.
        """
        return []

    def may_be_key(self, column: str) -> bool:
        """Return whether rows can be looked up by this column; equalities with other columns filter the rows.

        Called on the driver, without a connection.
        """
        return True

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join by keys that this source does not support, such as a part of its own key.

        Optional; called on the driver when a join is planned, without a connection, except for ALL.
        """

    def needed_drivers(self) -> Mapping[str, str]:
        """Return those of `drivers` that the options need; by default all of them."""
        return self.drivers

    def advice(self, request: LookupRequest) -> Sequence[str]:
        """Return sentences about what would make a join's lookups faster, such as a missing index.

        Optional; called after `open`, in each worker, which issues warnings, and by ``lookupcache check``.
        """
        return []

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, in any order, with the columns ``request.fields``.

        ``keys`` contains distinct keys without nulls, in columns named as ``request.key_columns``, with the types of
        the schema. Additional rows, for example because of a looser equality, are allowed: they are dropped. An
        exception fails all keys, except for a `WrongRowsError`, which names the keys that it concerns.
        """
        raise NotImplementedError

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Do the same as `lookup` on the event loop of the worker, where many calls run concurrently."""
        raise NotImplementedError

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield the full table, with constants and accepted filters applied, as batches with ``request.fields``."""
        raise NotImplementedError

    def infer_schema(self) -> pa.Schema:
        """Return the table's schema as the source reports it.

        Optional; called on a connector without schema, after `resolve`. It connects and disconnects itself.
        """
        raise NotImplementedError

    def changed(self, request: LookupRequest) -> pa.RecordBatch | None:
        """Return the keys whose rows have changed at the source since the last call; None if any key may have.

        Optional, for sources that report changes: such keys are removed from the cache before the next batch of rows
        is looked up. It is called often, from another thread than `lookup`, also before `open` and after `close`, and
        must not block. Columns are named and typed as `lookup`'s keys; additional keys are allowed.
        """
        raise NotImplementedError

    def retryable(self, error: Exception) -> bool:
        """Return whether the same call may succeed later; by default, all errors except programming errors may."""
        return is_retryable(error)

    def runs_async(self, wanted: bool | None) -> bool:
        """Return whether lookups call `lookup_async`; ``wanted`` is the value of ``lookup.async``.

        Without `lookup_async`, ``lookup.async`` runs `lookup` in threads. Raises OptionError if the option
        forbids the only method that is implemented.
        """
        sync, can_async = offers(self, "lookup"), offers(self, "lookup_async")
        if wanted is False and not sync:
            raise OptionError(
                f"'lookup.async' = 'false' needs lookup; {type(self).__name__} has only lookup_async.",
                hint="Leave the option out.",
            )
        return can_async and (self.prefers_async or not sync if wanted is None else wanted)

    def identity(self) -> Mapping[str, Any]:
        """Return what distinguishes this source from others of the same class, as JSON data; hashed, never shown.

        Called on the driver, where options may be references.
        """
        return self.settings

    def environment(self) -> Mapping[str, Any] | None:
        """Return what determines the rows in this process and is not in `identity`, as JSON data; hashed, never shown.

        That is the content of references, but for credentials, and what a driver reads from elsewhere. Such are a login
        from a variable, an endpoint from a file, and the working directory. None if that cannot be known: then rows are
        shared with no other application. Called after `resolve`, without a connection.
        """
        given = self.settings if self._given is None else self._given
        referenced = {name: self.settings[name] for name, value in given.items() if is_reference(value)}
        found: dict[str, Any] = dict(without_credentials(referenced))
        if path := self.settings.get("tls.certificate"):
            from lookupcache.environment import certificate  # Most workers do without.

            found["certificate"] = certificate(path)
        return found

    def secret_values(self) -> list[str]:
        """Return the values that must not be shown: secret options, resolved references, secrets in URLs."""
        whole = [value for key, value in self.settings.items() if self._hides(key)]
        inside = [secret for value in self.settings.values() for secret in url_secrets(str(value))]
        queries = (query_secrets(str(self.settings[name])) for name in _QUERIES if name in self.settings)
        return [secret for secret in (*whole, *inside, *itertools.chain.from_iterable(queries)) if secret]

    def hide(self, text: str) -> str:
        """Return a text without `secret_values`, however they are encoded in it."""
        return hidden(text, self.secret_values())

    def _hides(self, key: str) -> bool:
        """Return whether an option's value is secret; a reference is not, but the value that it refers to is."""
        if self._given is None:
            return self._is_secret(key) and not is_reference(self.settings[key])
        return self._is_secret(key) or is_reference(self._given.get(key))

    def show_options(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return options as texts to show, without secrets, whether they have current or former names."""
        return {name: "***" if self._is_secret(name) else _show(name, str(value)) for name, value in options.items()}

    def _is_secret(self, name: str) -> bool:
        """Return whether an option's value is secret by its current name or any former one."""
        current = self.renamed.get(name, name)
        former = (old for old, new in self.renamed.items() if new == current)
        return any(is_secret(one, self.secrets) for one in (name, current, *former))

    def __repr__(self) -> str:
        given = self.settings if self._given is None else self._given
        return f"{type(self).__name__}({self.show_options(given)})"


def digest_of(connector: Connector, method: str, data: Any) -> str:
    """Return a hash of what a method of a connector returned; raises ConnectorError if that is no JSON data."""
    try:
        return digest(data, secret=bool(connector.secret_values()) or may_have_secrets(json.dumps(data)))
    except TypeError as error:
        raise ConnectorError(
            f"{type(connector).__name__}.{method} returned what is no JSON data: {error}.",
            hint="Return dicts by texts, lists, texts, numbers, booleans and None.",
        ) from None


def changed_while_read() -> ConnectorError:
    """Return the error for a connection to elsewhere than where kept rows are from, by what `environment` reads."""
    return ConnectorError(
        "A variable, file or link that the table reads was changed while the task ran, and its kept rows are those "
        "from before.",
        hint="Run the job again. If both are one table, set 'lookup.cache.store.name'.",
    )


def is_retryable(error: Exception) -> bool:
    """Return whether an error may be a temporary failure of the source, rather than a programming error.

    >>> is_retryable(ConnectionError("refused")), is_retryable(TypeError("not a number"))
    (True, False)
    """
    return not isinstance(error, _NOT_WORTH_A_RETRY)


def without_far_dates(
    request: LookupRequest, keys: pa.RecordBatch, sent: Iterable[str]
) -> tuple[pa.RecordBatch, dict[int, LookupRuntimeError]]:
    """Return the keys that Python can hold, and the error of each of the others by its position, for `WrongRowsError`.

    For connectors that send values of Python: its dates and timestamps have the years 1 to 9999, Arrow's have more.
    Only the columns that are ``sent`` count: the source need not hold the others.
    """
    wrong: dict[int, LookupRuntimeError] = {}
    for name in set(sent).intersection(request.key_columns):
        column = keys.column(name)
        bounds = _YEARS_1_TO_9999.get(column.type.id)
        if bounds is None:
            continue
        numbers = to_numpy(column.cast(bounds[0]))
        for position in np.flatnonzero((numbers < bounds[1]) | (numbers > bounds[2])).tolist():
            wrong[position] = LookupRuntimeError(
                f"The source of table {request.table!r} cannot be asked for a key's {name!r}: Python's dates have the "
                "years 1 to 9999 only.",
                hint="Filter such rows out before the join.",
            )
    if wrong:
        keys = keys.take(pa.array([position for position in range(len(keys)) if position not in wrong], pa.int64()))
    return keys, wrong


_YEARS_1_TO_9999 = {
    pa.date32().id: (pa.int32(), -719_162, 2_932_896),
    pa.timestamp("us").id: (pa.int64(), -62_135_596_800_000_000, 253_402_300_799_999_999),
}


def offers(connector: Connector | type[Connector], method: str) -> bool:
    """Return whether the connector's class implements this optional method."""
    kind = connector if isinstance(connector, type) else type(connector)
    return getattr(kind, method) is not getattr(Connector, method)


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group; `importlib.metadata` is slow to import, and workers need none."""
    from importlib import metadata

    return metadata.entry_points(group=group)


def connector_names() -> list[str]:
    """Return the names of all registered connectors, including those of other installed packages."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)})


def connector_class(name: str) -> type[Connector]:
    """Return the class that is registered under ``name``, or that a path ``module:Class`` refers to.

    Raises ConnectorError if it is missing, cannot be imported (with the package to install), is not a Connector, or
    implements no lookup method.
    """
    kind = _from_path(name) if ":" in name else _from_registry(name)
    if not (isinstance(kind, type) and issubclass(kind, Connector)):
        raise ConnectorError(f"{name!r} is not a subclass of lookupcache.Connector.")
    if not (offers(kind, "lookup") or offers(kind, "lookup_async")):
        raise ConnectorError(
            f"Connector {name!r} has neither lookup nor lookup_async.",
            hint="Write `def lookup(self, request, keys)` that returns a pyarrow.Table.",
        )
    return kind


def build_connector(name: str, schema: pa.Schema, options: Mapping[str, str]) -> Connector:
    """Find a connector, check its options and create it; raises ConnectorError or OptionError."""
    kind = connector_class(name)
    known = kind.options
    for key in options:
        if known is not None and key not in known and key not in kind.renamed:
            hint = nearest(key, [*known, "lookup.cache"], what=f"options of connector {name!r}", most=3)
            raise OptionError(f"Connector {name!r} has no option {key!r}.", hint=hint)
    current = use_current_names(options, kind.renamed)
    for key in kind.required:
        if not current.get(key):
            raise OptionError(
                f"Connector {name!r} needs option {key!r}.",
                hint=(known or {}).get(key, "Add it to the table's options."),
            )
    return kind(schema, current)


_ELSEWHERE = {
    "jdbc": "sql", "postgres": "sql", "postgresql": "sql", "mysql": "sql", "mariadb": "sql", "sqlite": "sql",
    "rest": "http", "rest-lookup": "http", "filesystem": "files", "parquet": "files", "delta": "files",
    "valkey": "redis",
}  # fmt: skip
"""Names of connectors in Flink and Spark, or of what they connect to, and those of ours."""


def _from_registry(name: str) -> Any:
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not points:
        meant = _ELSEWHERE.get(name.lower())
        hint = nearest(name, connector_names(), what="connectors") if meant is None else f"Did you mean {meant!r}?"
        raise ConnectorError(f"There is no connector {name!r}.", hint=f"{hint} A class of your own is 'module:Class'.")
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        raise ConnectorError(
            f"Connector {name!r} cannot be imported: {error}.", hint=f"pip install 'lookupcache[{name}]'"
        ) from error


def _from_path(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConnectorError(
            f"Connector {path!r} cannot be imported: {error}.",
            hint="A dotted path is 'module:Class', and the module must be importable on driver and workers.",
        ) from error


def _show(option: str, value: str) -> str:
    """Return the value of an option without passwords."""
    if option in _QUERIES:
        return hide_query(value)
    return hide_address(value) if option.lower().endswith(_ADDRESSES) else hide_userinfo(value)


_QUERIES = ("query", "dbtable")
_ADDRESSES = ("url", "path", "store", "endpoint", "endpoint_override")
