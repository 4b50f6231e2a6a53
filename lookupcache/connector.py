"""The contract between lookupcache and a source, and the registry through which connectors are found.

A connector answers for the rows of some keys, nothing else: caching, batching, retrying, timeouts, key
matching and type checks happen outside of it, the same for every connector.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache import expr
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, nearest
from lookupcache.expr import Expr
from lookupcache.plan import LookupPlan
from lookupcache.redaction import hide_userinfo as hide_userinfo  # connectors take both from here
from lookupcache.redaction import is_secret as is_secret
from lookupcache.redaction import url_passwords
from lookupcache.secrets import is_reference, resolved

ENTRY_POINTS = "lookupcache.connectors"

_NOT_WORTH_A_RETRY = (
    LookupCacheError, TypeError, ValueError, AttributeError, NameError, ImportError, AssertionError,
    NotImplementedError, RecursionError, KeyError, IndexError, pa.ArrowException,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LookupRequest:
    """What a join wants from a source: the same for every call that the join makes.

    ``key_columns`` are the columns that keys are given for, ``columns`` those wanted besides; an answer
    holds ``fields``, which is both, each once. ``constants`` maps further key columns to the one value
    (a Python value, never None) that they must equal. ``filters`` are those that `Connector.accept` took.
    """

    table: str
    key_columns: tuple[str, ...]
    columns: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    filters: tuple[Expr, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of an answer: the key columns, then the other wanted ones."""
        return tuple(dict.fromkeys((*self.key_columns, *self.columns)))


def request_of(plan: LookupPlan) -> LookupRequest:
    """Return what a plan asks of its source: what is cached, and what calc needs to see before.

    Constant columns are fetched too, so that a source with a looser equality adds no rows.
    """
    wanted = {*plan.columns, *(c.column for c in plan.constants)}
    wanted |= {column.name for conjunct in plan.calc for column in expr.columns_of(conjunct)}
    return LookupRequest(
        table=plan.table,
        key_columns=plan.key_columns,
        columns=tuple(name for name in plan.schema.names if name in wanted and name not in plan.key_columns),
        constants={c.column: expr.python_value(c.value) for c in plan.constants},
        filters=plan.pushed,
    )


class Connector:
    """A source of rows by key; write `lookup` or `lookup_async`, and what else the source can do.

    A connector is built on the driver with the table's schema and the connector's own options (strings,
    without the ``lookup.*`` ones), pickled, and opened in each worker. Clients belong in `open`. There and in
    lookups `settings` holds what references, ``env:NAME`` and ``file:PATH``, stand for; before, the references.

    Class attributes: ``options`` maps each option's name to a line of documentation, and any other name
    is refused (None accepts all); ``required`` names those that must be given; ``secrets`` those that
    are never shown, besides names such as password or token, which never are; ``drivers`` maps the modules that
    it imports late to what pip installs them with, as in ``{"psycopg": "lookupcache[postgres]"}``;
    ``batch_max_size`` is the most keys a call may carry (None: no limit); ``prefers_async`` picks `lookup_async`
    where both are written; ``thread_safe`` says that threads may share one connector, which otherwise is copied,
    before `open`, for each.

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
    required: ClassVar[Sequence[str]] = ()
    secrets: ClassVar[Sequence[str]] = ()
    drivers: ClassVar[Mapping[str, str]] = {}
    batch_max_size: ClassVar[int | None] = None
    prefers_async: ClassVar[bool] = False
    thread_safe: ClassVar[bool] = False

    _given: Mapping[str, str] | None = None

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        self.schema = schema
        self.settings = dict(options)

    def resolve(self) -> None:
        """Put into `settings` what its references stand for; called in the worker, each time before `open`.

        Raises ConnectorError for a variable or a file that is not there.
        """
        given = self.settings if self._given is None else self._given
        self.settings, self._given = resolved(given), given

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: the references, not what they stand for."""
        state = dict(self.__dict__)
        given = state.pop("_given", None)
        return state if given is None else state | {"settings": given}

    def open(self) -> Any:
        """Connect; called before the first lookup, in the thread or on the event loop where lookups will run.

        It may be ``async def`` where lookups are.
        """

    def close(self) -> Any:
        """Disconnect; called there too, when the worker no longer needs this connector."""

    def accept(self, filters: Sequence[Expr]) -> Sequence[Expr]:
        """Return those of ``filters`` that `lookup` and `scan` will apply themselves, with Spark's meaning.

        Called on the driver, without a connection; the rest is applied to the rows that come back.
        """
        return []

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join whose keys this source cannot be asked by, such as a part of its own key.

        Optional; called on the driver when a join is planned, without a connection, and not for ALL.
        """

    def advice(self, request: LookupRequest) -> Sequence[str]:
        """Return what would make a join's lookups faster, as an index that is missing; a sentence each.

        Optional; called once it is open, in each worker, which warns, and by ``lookupcache check``.
        """
        return []

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, in any order, with the columns ``request.fields``.

        ``keys`` holds distinct keys without nulls, its columns named as ``request.key_columns`` and of
        the types in the schema. Too many rows (a looser equality, say) do no harm: they are dropped.
        """
        raise NotImplementedError

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Do as `lookup` does, on the event loop of the worker, where many calls run at a time."""
        raise NotImplementedError

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield the whole table, constants and accepted filters applied, as batches with ``request.fields``."""
        raise NotImplementedError

    def infer_schema(self) -> pa.Schema:
        """Return the table's columns as the source describes them.

        Optional; it connects and disconnects for itself, with references resolved, on a connector without schema.
        """
        raise NotImplementedError

    def changed(self, request: LookupRequest) -> pa.RecordBatch | None:
        """Return the keys whose rows have changed at the source since the last call; None where any may have.

        Optional, for sources that tell of changes: such keys leave the cache before the next batch of rows is looked
        up. It is called often, from another thread than `lookup`, before `open` and after `close` too, and never
        waits. Columns are named and typed as `lookup`'s keys; a key too many does no harm.
        """
        raise NotImplementedError

    def retryable(self, error: Exception) -> bool:
        """Return whether the same call may succeed later; programming errors, by default, may not."""
        return worth_a_retry(error)

    def runs_async(self, wanted: bool | None) -> bool:
        """Return whether lookups go through `lookup_async`; ``wanted`` is what ``lookup.async`` says.

        Without `lookup_async`, ``lookup.async`` runs `lookup` in threads. Raises OptionError where the option
        forbids the only method that is written.
        """
        sync, can_async = offers(self, "lookup"), offers(self, "lookup_async")
        if wanted is False and not sync:
            raise OptionError(
                f"'lookup.async' = 'false' needs lookup; {type(self).__name__} has only lookup_async.",
                hint="Leave the option out.",
            )
        return can_async and (self.prefers_async or not sync if wanted is None else wanted)

    def identity(self) -> Mapping[str, Any]:
        """Return what tells this source from another of the same class, as JSON data; hashed, never shown."""
        return self.settings

    def secret_values(self) -> list[str]:
        """Return what must not be shown anywhere: secret options, what references stand for, passwords in URLs."""
        whole = [value for key, value in self.settings.items() if self._hides(key)]
        inside = [secret for value in self.settings.values() for secret in url_passwords(str(value))]
        return [secret for secret in (*whole, *inside) if secret]

    def _hides(self, key: str) -> bool:
        """Return whether an option's value is secret; a reference is none, but what it stands for is."""
        if self._given is None:
            return is_secret(key, self.secrets) and not is_reference(self.settings[key])
        return is_secret(key, self.secrets) or is_reference(self._given.get(key))

    def __repr__(self) -> str:
        given = self.settings if self._given is None else self._given
        shown = {k: "***" if is_secret(k, self.secrets) else hide_userinfo(v) for k, v in given.items()}
        return f"{type(self).__name__}({shown})"


def worth_a_retry(error: Exception) -> bool:
    """Return whether an error may be the source's and pass, rather than the program's own.

    >>> worth_a_retry(ConnectionError("refused")), worth_a_retry(TypeError("not a number"))
    (True, False)
    """
    return not isinstance(error, _NOT_WORTH_A_RETRY)


def offers(connector: Connector | type[Connector], method: str) -> bool:
    """Return whether the connector's class writes this optional method itself."""
    kind = connector if isinstance(connector, type) else type(connector)
    return getattr(kind, method) is not getattr(Connector, method)


def connector_names() -> list[str]:
    """Return the registered names, ours and those of other installed packages."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)})


def connector_class(name: str) -> type[Connector]:
    """Return the class registered under ``name``, or that a dotted path ``module:Class`` points to.

    Raises ConnectorError where there is none, where it cannot be imported (naming what to install), and
    where it is no Connector or has nothing to look up with.
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
    """Find a connector, check its options and build it; raises ConnectorError or OptionError."""
    kind = connector_class(name)
    known = kind.options
    for key in options:
        if known is not None and key not in known:
            hint = nearest(key, [*known, "lookup.cache"], what=f"options of connector {name!r}")
            raise OptionError(f"Connector {name!r} has no option {key!r}.", hint=hint)
    for key in kind.required:
        if not options.get(key):
            raise OptionError(
                f"Connector {name!r} needs option {key!r}.",
                hint=(known or {}).get(key, "Add it to the table's options."),
            )
    return kind(schema, dict(options))


def _from_registry(name: str) -> Any:
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not points:
        raise ConnectorError(
            f"There is no connector {name!r}.",
            hint=nearest(name, connector_names(), what="connectors") + " A class of your own is 'module:Class'.",
        )
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
