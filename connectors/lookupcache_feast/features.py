"""Which features a table's columns are, and their types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from lookupcache.errors import ConnectorError, OptionError, SchemaError, nearest
from lookupcache.schema import TIMESTAMP, shown_type

TIME, STATUS = "__ts", "__status"
"""Endings of the columns with a feature's event timestamp and with its status."""

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "INT32": pa.int32(), "INT64": pa.int64(), "FLOAT32": pa.float32(), "FLOAT64": pa.float64(), "BOOL": pa.bool_(),
    "STRING": pa.string(), "BYTES": pa.binary(), "PDF_BYTES": pa.binary(), "IMAGE_BYTES": pa.binary(),
    "UNIX_TIMESTAMP": TIMESTAMP, "JSON": pa.string(), "UUID": pa.string(), "TIME_UUID": pa.string(),
    "DECIMAL": pa.string(), "MAP": pa.map_(pa.string(), pa.string()),
}  # fmt: skip


@dataclass(frozen=True)
class Feature:
    """A feature: its view, its name there, its type, and how long after its event it is used."""

    view: str
    name: str
    type: pa.DataType
    ttl: timedelta | None

    @property
    def reference(self) -> str:
        """How Feast's requests name it."""
        return f"{self.view}:{self.name}"

    @property
    def full_name(self) -> str:
        """Its name in Feast's responses, and the column's name where several views have such a feature."""
        return f"{self.view}__{self.name}"


@dataclass(frozen=True)
class Features:
    """What a feature view or a feature service contains: join keys with their types, and features by view."""

    keys: Mapping[str, pa.DataType]
    of_view: Mapping[str, Sequence[Feature]]

    @classmethod
    def of_store(cls, store: Any, view: str | None, service: str | None) -> Features:
        """Read the definitions from the registry; raises OptionError for a view or service that it does not have."""
        projections = _view_only(store, view) if view else _views_of_service(store, str(service))
        keys: dict[str, pa.DataType] = {}
        of_view: dict[str, list[Feature]] = {}
        for found, fields in projections:
            keys |= {column.name: _type_of(column.dtype, column.name) for column in found.entity_columns}
            of_view[found.name] = [
                Feature(found.name, field.name, _type_of(field.dtype, field.name), found.ttl or None)
                for field in fields
                if field.name not in {column.name for column in found.entity_columns}
            ]
        return cls(keys, of_view)

    @property
    def by_column(self) -> dict[str, Feature]:
        """The features by column name: their own name if only one view has it, or ``view__feature``."""
        features = [feature for some in self.of_view.values() for feature in some]
        count = Counter(feature.name for feature in features)
        short = {one.name: one for one in features if count[one.name] == 1 and one.name not in self.keys}
        return {feature.full_name: feature for feature in features} | short

    def schema(self, metadata: bool) -> pa.Schema:
        """Return the columns of all keys and features; with ``metadata``, those of timestamps and statuses too."""
        columns = dict(self.keys)
        named = {feature: name for name, feature in self.by_column.items()}  # The short name, where there is one.
        for feature, name in named.items():
            columns[name] = feature.type
            columns |= {name + TIME: TIMESTAMP, name + STATUS: pa.string()} if metadata else {}
        return pa.schema(list(columns.items()))

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaError for a column that is neither a key nor of a feature, or that has another type."""
        known = {**self.keys, **{name: feature.type for name, feature in self.by_column.items()}}
        for field in schema:
            expected = known.get(field.name) or _metadata_type(field.name, self.by_column)
            if expected is None:
                raise SchemaError(
                    f"Column {field.name!r} is neither a join key nor a feature.",
                    hint=nearest(field.name, list(known), what="keys and features"),
                )
            if field.type != expected and (field.name in self.keys or not _fits(expected, field.type)):
                raise SchemaError(
                    f"Column {field.name!r} is {shown_type(field.type)}; the feature store has {shown_type(expected)}.",
                    hint="Correct the schema, or leave it out: schema=None reads it from the registry.",
                )


def owner_of(column: str, features: Mapping[str, Feature]) -> tuple[Feature, str]:
    """Return the feature of a column, and the ending that says which part of it: value, time or status."""
    if column in features:
        return features[column], ""
    ending = TIME if column.endswith(TIME) else STATUS
    return features[column.removesuffix(ending)], ending


def _metadata_type(column: str, features: Mapping[str, Feature]) -> pa.DataType | None:
    for ending, type_ in ((TIME, TIMESTAMP), (STATUS, pa.string())):
        if column.endswith(ending) and column.removesuffix(ending) in features:
            return type_
    return None


def _fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether a feature's values are converted without loss, or else with an error."""
    wider = {pa.int32(): (pa.int64(), pa.float64()), pa.float32(): (pa.float64(),)}
    return declared in wider.get(stored, ())


def _view_only(store: Any, name: str) -> list[tuple[Any, Sequence[Any]]]:
    from feast.errors import FeatureViewNotFoundException

    try:
        view = store.get_feature_view(name)
    except FeatureViewNotFoundException:
        raise _unknown("view", name, store.list_feature_views()) from None
    return [(_with_keys(view), view.features)]


def _views_of_service(store: Any, name: str) -> list[tuple[Any, Sequence[Any]]]:
    from feast.errors import FeatureServiceNotFoundException, FeatureViewNotFoundException

    try:
        projections = store.get_feature_service(name).feature_view_projections
    except FeatureServiceNotFoundException:
        raise _unknown("service", name, store.list_feature_services()) from None
    views = []
    for projection in projections:
        if projection.name_alias or projection.join_key_map:
            raise OptionError(
                f"Feature service {name!r} renames view {projection.name!r} or its join keys, which is not supported.",
                hint="Use the view itself, in a lookup table for each meaning of the key.",
            )
        try:
            views.append((_with_keys(store.get_feature_view(projection.name)), projection.features))
        except FeatureViewNotFoundException:
            raise OptionError(
                f"Feature service {name!r} has {projection.name!r}, which computes features on demand.",
                hint="Use a service without it, and compute its columns in Spark.",
            ) from None
    return views


def _unknown(option: str, name: str, there: Sequence[Any]) -> OptionError:
    """Return the error for a view or a service that the registry does not have."""
    return OptionError(
        f"Option {option!r} is {name!r}, which the registry does not have.",
        hint=nearest(name, [one.name for one in there], what=f"feature {option}s"),
    )


def _with_keys(view: Any) -> Any:
    """Return a view that has an entity and features; raises ConnectorError for one without."""
    if not [column for column in view.entity_columns if column.name != "__dummy_id"]:
        raise ConnectorError(f"Feature view {view.name!r} has no entity, so it has no key to look up.")
    if not view.features:
        raise ConnectorError(f"Feature view {view.name!r} has no features.")
    return view


def _type_of(dtype: Any, name: str) -> pa.DataType:
    """Return the Arrow type of a Feast type."""
    found = _PRIMITIVES.get(getattr(dtype, "name", ""))
    if found is not None:
        return found
    if hasattr(dtype, "base_type"):
        return pa.list_(_type_of(dtype.base_type, name))
    if hasattr(dtype, "fields"):
        return pa.struct([(field, _type_of(inner, name)) for field, inner in dtype.fields.items()])
    raise SchemaError(f"Feature {name!r} has Feast's type {dtype}, which no column can have.", hint="Leave it out.")
