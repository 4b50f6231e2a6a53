"""A Feast repository in a folder, with a real online store, for the tests of the connector."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

with warnings.catch_warnings():
    # Feast and what it imports use deprecated functions of their dependencies.
    warnings.simplefilter("ignore")
    feast = pytest.importorskip("feast", reason="pip install 'lookupcache[feast]'", exc_type=ImportError)
    from feast import types as feast_types
    from feast.on_demand_feature_view import on_demand_feature_view as on_demand_feature_view
    from feast.protos.feast.types.EntityKey_pb2 import EntityKey
    from feast.protos.feast.types.Value_pb2 import Value

ROW = "row_exists"
"""A feature of every view of `Repository.load`, since a view needs one."""
NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)

_TYPES = {
    pa.bool_(): ("Bool", "bool"), pa.int32(): ("Int32", "int32"), pa.int64(): ("Int64", "int64"),
    pa.float32(): ("Float32", "float"), pa.float64(): ("Float64", "double"), pa.string(): ("String", "string"),
    pa.binary(): ("Bytes", "bytes"),
}  # fmt: skip


class Repository:
    """A folder with a feature_store.yaml, a registry, and an online store: SQLite, or Redis at an address.

    Its client does not retry, so that a test of a lost server need not wait.
    """

    def __init__(self, folder: Path, redis: str | None = None) -> None:
        self.folder = folder
        online = (
            {"type": "redis", "connection_string": f"{redis},retry=null"}
            if redis
            else {"type": "sqlite", "path": "online.db"}
        )
        lines = [f"  {name}: {value}" for name, value in online.items()]
        self.text = "\n".join([
            "project: shop", "provider: local", "registry: registry.db", "online_store:", *lines,
            "entity_key_serialization_version: 3",
        ])  # fmt: skip
        (folder / "feature_store.yaml").write_text(self.text)
        self.store = feast.FeatureStore(str(folder))
        self.views = 0

    def view(self, name: str, keys: Sequence[str], fields: Mapping[str, Any], **settings: Any) -> Any:
        """Apply a view with these keys, whose Feast types are in ``fields`` too, and return it."""
        entities = [
            feast.Entity(name=f"entity_{key}", join_keys=[key], value_type=fields[key].to_value_type()) for key in keys
        ]
        path = self.folder / f"{name}.parquet"
        made = feast.FeatureView(
            name=name,
            entities=entities,
            schema=[feast.Field(name=field, dtype=type_) for field, type_ in fields.items()],
            source=feast.FileSource(name=f"{name}_source", path=str(path), timestamp_field="event_timestamp"),
            **settings,
        )
        self.store.apply([*entities, made])
        return made

    def load(self, rows: pa.Table, key: list[str]) -> dict[str, str]:
        """Create a view with exactly these rows, and return the connector's options."""
        self.views += 1
        fields = {field.name: getattr(feast_types, _TYPES[field.type][0]) for field in rows.schema}
        view = self.view(f"v{self.views}", key, {**fields, ROW: feast_types.Bool})
        self.write(view, rows, key)
        return {"repo": str(self.folder), "view": view.name}

    def write(self, view: Any, rows: pa.Table, key: list[str]) -> None:
        """Write rows to the online store as they are, which `write_to_online_store` would convert by pandas."""
        columns = {name: _values(rows.column(name)) for name in rows.column_names}
        data = []
        for number in range(rows.num_rows):
            entity = EntityKey(join_keys=key, entity_values=[columns[name][number] for name in key])
            features = {name: values[number] for name, values in columns.items() if name not in key}
            data.append((entity, {**features, ROW: Value(bool_val=True)}, NOW, None))
        if data:
            self.store._get_provider().online_write_batch(self.store.config, view, data, None)

    def put(self, view: Any, key: str, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Write features as Feast's own values, by the values of a BIGINT or TIMESTAMP key (in seconds)."""
        kind = f"{view.entity_columns[0].dtype.name.lower()}_val"
        data = [
            (EntityKey(join_keys=[key], entity_values=[Value(**{kind: one})]), dict(features), NOW, None)
            for one, features in rows.items()
        ]
        self.store._get_provider().online_write_batch(self.store.config, view, data, None)

    def close(self) -> None:
        """Close its connection."""
        online = self.store._get_provider().online_store
        for name in ("_conn", "_client"):
            if getattr(online, name, None) is not None:
                getattr(online, name).close()
                setattr(online, name, None)


def _values(column: pa.ChunkedArray) -> list[Any]:
    kind = f"{_TYPES[column.type][1]}_val"
    return [Value() if value is None else Value(**{kind: value}) for value in column.to_pylist()]
