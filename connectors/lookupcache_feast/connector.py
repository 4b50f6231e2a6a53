"""The `feast` connector: feature views and feature services as lookup tables.

keys ─► one get_online_features of the requested features ─► keys with a row ─► values, timestamps, statuses ─► Arrow
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import distinct_rows, from_numpy, normalized
from lookupcache.connector import Connector, LookupRequest, is_reference, without_far_dates
from lookupcache.environment import cloud_settings, variables
from lookupcache.errors import ConnectorError, OptionError, PlanError, SchemaError, WrongRowsError
from lookupcache.schema import TIMESTAMP, shown_type
from lookupcache.source_options import one_of
from lookupcache_feast.answers import Answer
from lookupcache_feast.features import Feature, Features, owner_of
from lookupcache_feast.repository import (
    close_store,
    contents_of,
    files_of,
    login_of,
    meaning_of,
    online_store_of,
    open_store,
    parse_config,
    read_config,
    secrets_of,
    with_real_sockets,
)  # fmt: skip

_TYPES = {
    pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), TIMESTAMP,
}  # fmt: skip


class FeastConnector(Connector):
    """Looks features up in the online store of Feast: a row per entity key.

    The join keys of the view's entities are the key, and a join needs all of them. The other columns are features, by
    their names, or as ``view__feature`` where several views of a service have one of that name. For a feature
    ``trips``, the column ``trips__ts`` is its event timestamp, and ``trips__status`` a text:

    - ``PRESENT``: it has a value; ``NULL_VALUE``: its value is null;
    - ``NOT_FOUND``: its row has no such feature, or another view of the service has a row for the key;
    - ``OUTSIDE_MAX_AGE``: at the time of the call, it was older than its view's ``ttl``.

    A key for which no view has a row is a miss, whichever features a query reads. Only the requested features are
    read, and at least one of each view. A call to the source is one ``get_online_features``.

    The text of feature_store.yaml is sent to the workers, which need no file; they read the registry that it names.
    There, ``${NAME}`` is the worker's environment variable, which keeps secrets out of the text.

    >>> FeastConnector(pa.schema([("driver_id", pa.int64())]), {"config": "project: p", "view": "drivers"})
    FeastConnector({'config': '***', 'view': 'drivers'})
    """

    options: ClassVar[Mapping[str, str]] = {
        "repo": "The folder with feature_store.yaml, which the driver reads; relative paths in it start there.",
        "config": "The text of a feature_store.yaml, in place of the file's; never shown. 'env:NAME' or 'file:PATH' "
        "are read by the worker.",
        "view": "The feature view.",
        "service": "The feature service, in place of 'view'.",
        "outside-max-age": "A feature that is older than its view's ttl: 'keep' its value (the default, as Feast "
        "does), or 'null'.",
        "metadata": "'true': a schema that is read from the registry has the columns of timestamps and statuses too.",
    }
    secrets = ("config",)
    batch_max_size = 5_000
    _store: Any = None
    _pinned: Mapping[str, Any] | None = None
    _features: Features | None = None

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        if importlib.util.find_spec("feast") is None:
            raise ConnectorError("The feast connector needs feast.", hint="pip install 'lookupcache[feast]'")
        self._check_options()
        self._hides_old = one_of(self.settings, "outside-max-age", ("keep", "null")) == "null"
        self._has_metadata = one_of(self.settings, "metadata", ("false", "true")) == "true"
        _check_types(schema)
        repo = self.settings.get("repo")
        reads_now = repo and "config" not in self.settings and not is_reference(repo)
        self._text: str | None = read_config(str(repo)) if reads_now else None

    def _check_options(self) -> None:
        if not (self.settings.get("repo") or self.settings.get("config")):
            raise OptionError("Connector 'feast' needs option 'repo' or 'config'.", hint=self.options["repo"])
        if bool(self.settings.get("view")) == bool(self.settings.get("service")):
            raise OptionError("Connector 'feast' needs one of the options 'view' and 'service'.", hint="Set one.")

    # ── connecting ───────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Read the definitions from the registry; raises SchemaError for a column that does not fit them."""
        self._store = open_store(self._pinned or parse_config(self._config), self.settings.get("repo"))
        self._features = Features.of_store(self._store, self.settings.get("view"), self.settings.get("service"))
        self._features.check(self.schema)

    def close(self) -> None:
        store, self._store, self._features = self._store, None, None
        close_store(store)

    def infer_schema(self) -> pa.Schema:
        """Return the join keys and features as the registry has them."""
        try:
            self.open()
            return self._definitions.schema(self._has_metadata)
        finally:
            self.close()

    def identity(self) -> Mapping[str, Any]:
        """Return the options, with what feature_store.yaml says without credentials."""
        text = self.settings.get("config") or self._text or ""
        return {**self.settings, "config": text if is_reference(text) else meaning_of(text)}

    def environment(self) -> Mapping[str, Any] | None:
        """Return feature_store.yaml as it is read here, without credentials, and the settings that Feast and its
        drivers read.

        These are unknown for online stores in the cloud, whose account may be that of the machine, and for a service of
        PostgreSQL.
        """
        found = {name: value for name, value in (super().environment() or {}).items() if name != "config"}
        config = parse_config(self._config)
        if online_store_of(config) not in ("sqlite", "redis", "postgres") or "PGSERVICE" in os.environ:
            return None
        folder = os.path.realpath(self.settings.get("repo") or ".")
        read = {"cloud": cloud_settings(), "feast": variables("FEAST_"), **login_of(config)}
        contents = contents_of(with_real_sockets(config))
        return {**found, **read, "folder": folder, "files": files_of(config, folder), "config": contents}

    def pin(self) -> None:
        """Replace the paths of Unix sockets by where their links lead now."""
        self._pinned = with_real_sockets(parse_config(self._config))

    def secret_values(self) -> list[str]:
        """Return the secrets in feature_store.yaml; its other words may be in errors."""
        texts = {self._text, self.settings.get("config")}
        inside = [one for text in texts if text and not is_reference(text) for one in secrets_of(text)]
        return [*(one for one in super().secret_values() if one not in texts), *inside]

    def retryable(self, error: Exception) -> bool:
        """Return whether the online store may answer later; errors of Feast itself are in definitions."""
        return super().retryable(error) and not type(error).__module__.startswith("feast.")

    @property
    def _config(self) -> str:
        return self.settings.get("config") or self._text or read_config(self.settings["repo"])

    @property
    def _definitions(self) -> Features:
        if self._features is None:
            raise ConnectorError("The feast connector is used before open().")
        return self._features

    # ── looking up ───────────────────────────────────────────────────────────────────────────────────────

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return the features of the keys, by one call of Feast."""
        sendable, wrong = without_far_dates(request, keys, self._definitions.keys)
        if wrong:
            empty = pa.schema([self.schema.field(name) for name in request.fields]).empty_table()
            raise WrongRowsError.of(self.lookup(request, sendable) if len(sendable) else empty, wrong)
        entities = _distinct(self._entities(request, keys))
        features = self._definitions.by_column
        columns = {name: owner_of(name, features) for name in request.fields if name not in entities}
        requested = self._requested([feature for feature, _ in columns.values()])
        response = self._store.get_online_features(
            features=[feature.reference for feature in requested],
            entity_rows={name: values.to_pylist() for name, values in entities.items()},
            full_feature_names=True,
        )
        answer = Answer.of(response, time.time(), self._hides_old)
        rows = np.flatnonzero(answer.found(requested) & _in_whole_seconds(entities))
        arrays = {name: values.take(pa.array(rows)) for name, values in entities.items()}
        for name, (feature, part) in columns.items():
            arrays[name] = answer.column(feature, part, self.schema.field(name), rows)
        return pa.table({name: arrays[name] for name in request.fields})

    def _entities(self, request: LookupRequest, keys: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the join keys' columns; raises PlanError for a join without one of them."""
        entities = {}
        for name in self._definitions.keys:
            if name in request.key_columns:
                entities[name] = keys.column(name)
            elif name in request.constants:
                entities[name] = pa.repeat(pa.scalar(request.constants[name], self.schema.field(name).type), len(keys))
            else:
                raise PlanError(
                    f"Table {request.table!r}: its features are looked up by {name!r}, which the join does not have.",
                    hint=f"Join on all of {', '.join(self._definitions.keys)}.",
                )
        return entities

    def _requested(self, wanted: list[Feature]) -> list[Feature]:
        """Return the features to read: those wanted, and one of each other view, which shows whether it has a row."""
        views = {feature.view for feature in wanted}
        others = [some[0] for view, some in self._definitions.of_view.items() if view not in views]
        return [*dict.fromkeys(wanted), *others]


def _distinct(entities: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return each entity once: a join by its key and by a feature has it with several values of the feature."""
    first = distinct_rows([normalized(values, values.type) for values in entities.values()]).first
    return {name: values.take(from_numpy(first)) for name, values in entities.items()}


def _in_whole_seconds(entities: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_]:
    """Return which keys Feast looks up as they are: of a timestamp, it drops the fractions of a second."""
    whole = np.ones(len(next(iter(entities.values()))), dtype=np.bool_)
    for values in entities.values():
        if pa.types.is_timestamp(values.type):
            whole &= values.cast(pa.int64()).to_numpy(zero_copy_only=False) % 1_000_000 == 0
    return whole


def _check_types(schema: pa.Schema) -> None:
    """Raise SchemaError for a column of a type that no feature has."""
    for field in schema:
        if not _is_possible(field.type):
            raise SchemaError(
                f"Column {field.name!r} is {shown_type(field.type)}, which no feature is.",
                hint="Use BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, STRING, BINARY, TIMESTAMP, an ARRAY or STRUCT of them, "
                "or MAP<STRING, STRING>, and convert the value in the query.",
            )


def _is_possible(type_: pa.DataType) -> bool:
    if pa.types.is_list(type_):
        return _is_possible(type_.value_type)
    if pa.types.is_struct(type_):
        return all(_is_possible(field.type) for field in type_)
    if pa.types.is_map(type_):
        return type_.key_type == pa.string() and type_.item_type == pa.string()
    return type_ in _TYPES
