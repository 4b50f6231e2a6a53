"""A Feast repository in a folder, with a real online store, for the tests of the connector."""

from __future__ import annotations

import datetime as dt
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

if importlib.util.find_spec("feast") is None:
    pytest.skip("pip install 'lookupcache[feast]'", allow_module_level=True)


class _Late:
    """A module that is imported when it is used first: every process collects the tests, and one of them runs them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            # pytest looks for marks and wrapped fixtures in all that a module of tests contains.
            raise AttributeError(attribute)
        with warnings.catch_warnings():
            # Feast and what it imports use deprecated functions of their dependencies.
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(self._name), attribute)


feast = _Late("feast")
feast_types = _Late("feast.types")


def Value(**fields: Any) -> Any:  # noqa: N802
    """Return a value of Feast's own type."""
    return _Late("feast.protos.feast.types.Value_pb2").Value(**fields)


def _entity_key(**fields: Any) -> Any:
    return _Late("feast.protos.feast.types.EntityKey_pb2").EntityKey(**fields)


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
            entity = _entity_key(join_keys=key, entity_values=[columns[name][number] for name in key])
            features = {name: values[number] for name, values in columns.items() if name not in key}
            data.append((entity, {**features, ROW: Value(bool_val=True)}, NOW, None))
        if data:
            self.store._get_provider().online_write_batch(self.store.config, view, data, None)

    def put(self, view: Any, key: str, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Write features as Feast's own values, by the values of a BIGINT or TIMESTAMP key (in seconds)."""
        kind = f"{view.entity_columns[0].dtype.name.lower()}_val"
        data = [
            (_entity_key(join_keys=[key], entity_values=[Value(**{kind: one})]), dict(features), NOW, None)
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
