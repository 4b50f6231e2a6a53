"""Feast's response as Arrow: which keys have a row, and the values, event timestamps and statuses of features."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.errors import SourceError
from lookupcache.schema import TIMESTAMP, shown_type
from lookupcache_feast.features import STATUS, TIME, Feature

PRESENT, NULL_VALUE, NOT_FOUND, OUTSIDE_MAX_AGE = 1, 2, 3, 4
_NAMES = np.array(["INVALID", "PRESENT", "NULL_VALUE", "NOT_FOUND", "OUTSIDE_MAX_AGE"])
_NULLS = {None, "null_val"}
_TEXTS = {"json_val", "uuid_val", "time_uuid_val", "decimal_val"}


@dataclass(frozen=True)
class Answer:
    """A response: vectors by the full name of a feature; ``now`` is the time in microseconds since 1970."""

    vectors: Mapping[str, Any]
    now: int
    hides_old: bool

    @classmethod
    def of(cls, response: Any, now: float, hides_old: bool) -> Answer:
        """Read a response of ``get_online_features(…, full_feature_names=True)``."""
        proto = response.proto
        vectors = dict(zip(proto.metadata.feature_names.val, proto.results, strict=True))
        return cls(vectors, int(now * 1_000_000), hides_old)

    def found(self, features: Sequence[Feature]) -> npt.NDArray[np.bool_]:
        """Return for each key whether one of the features' views has a row for it.

        The event timestamp says so where the requested feature has no value in the row. It also does where the online
        store reports a null for a row that does not exist, as Redis does.
        """
        return np.logical_or.reduce([self._has_row(feature) for feature in features])

    def column(self, feature: Feature, part: str, field: pa.Field, rows: npt.NDArray[np.int64]) -> pa.Array:
        """Return the values of some rows, or with ``part``, their event timestamps or statuses."""
        if part == TIME:
            times = self.times(feature)[rows]
            return pa.array(times, pa.int64(), mask=times == 0).cast(TIMESTAMP)
        statuses = self.statuses(feature)
        if part == STATUS:
            return pa.array(_NAMES[statuses[rows]].tolist(), pa.string())
        values = self.vectors[feature.full_name].values
        hidden = self.hides_old & (statuses == OUTSIDE_MAX_AGE)
        return _array((None if hidden[row] else _python_value(values[row], field.type) for row in rows.tolist()), field)

    def statuses(self, feature: Feature) -> npt.NDArray[np.int64]:
        """Return the statuses; Feast's Python library itself reports neither nulls nor features that are too old."""
        statuses = np.array(self.vectors[feature.full_name].statuses, dtype=np.int64)
        statuses = np.where((statuses == PRESENT) & ~self._has_value(feature), NULL_VALUE, statuses)
        statuses = np.where(self._has_row(feature), statuses, NOT_FOUND)
        if feature.ttl is None:
            return statuses
        too_old = self.times(feature) < self.now - int(feature.ttl.total_seconds() * 1_000_000)
        return np.where((statuses == PRESENT) & too_old, OUTSIDE_MAX_AGE, statuses)

    def times(self, feature: Feature) -> npt.NDArray[np.int64]:
        """Return the event timestamps in microseconds since 1970, 0 for a row without one."""
        stamps = self.vectors[feature.full_name].event_timestamps
        return np.array([one.seconds * 1_000_000 + one.nanos // 1_000 for one in stamps], dtype=np.int64)

    def _has_row(self, feature: Feature) -> npt.NDArray[np.bool_]:
        return (self.times(feature) != 0) | self._has_value(feature)

    def _has_value(self, feature: Feature) -> npt.NDArray[np.bool_]:
        values = self.vectors[feature.full_name].values
        return np.array([value.WhichOneof("val") not in _NULLS for value in values], dtype=np.bool_)


def _array(values: Iterable[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(list(values), field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # The error of Arrow, or of a conversion to Python, shows the value.
        raise SourceError(
            f"Feature {field.name!r} has a value that is no {shown_type(field.type)}.",
            hint="Correct the type in the feature view, or write the feature again.",
        ) from None


def _python_value(value: Any, type_: pa.DataType) -> Any:
    """Return a protobuf value as Python, in the form that Arrow expects for a type."""
    from feast.type_map import feast_value_type_to_python_type

    kind = value.WhichOneof("val")
    if kind in _NULLS:
        return None
    if kind in _TEXTS:
        return str(getattr(value, kind))
    return _shaped(feast_value_type_to_python_type(value), type_)


def _shaped(value: Any, type_: pa.DataType) -> Any:
    """Return a nested value with sets as sorted lists, and the values of a MAP<STRING, STRING> as texts."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return [(str(key), None if one is None else _text(one)) for key, one in value.items()]
    if pa.types.is_list(type_):
        items = sorted(value, key=_order) if isinstance(value, set | frozenset) else value
        return [_shaped(item, type_.value_type) for item in items]
    if pa.types.is_struct(type_):
        return {field.name: _shaped(value.get(field.name), field.type) for field in type_}
    _refuse_other(value, type_)
    return _text(value) if pa.types.is_string(type_) else value


def _refuse_other(value: Any, type_: pa.DataType) -> None:
    """Raise TypeError for a value of another type that Arrow would convert, with another meaning or with loss."""
    other = (
        (pa.types.is_integer(type_) and not isinstance(value, int))
        or (pa.types.is_timestamp(type_) and not isinstance(value, datetime))
        or (pa.types.is_binary(type_) and not isinstance(value, bytes))
        or (pa.types.is_string(type_) and isinstance(value, bytes))
        or (pa.types.is_float32(type_) and value == value and float(np.float32(value)) != value)
    )
    if other:
        raise TypeError(f"{type(value).__name__} is no {type_}")


def _order(value: Any) -> tuple[bool, Any]:
    return value is None, value if isinstance(value, int | float | str | bytes | Decimal) else repr(value)


def _text(value: Any) -> str:
    plain: Callable[[Any], str] = str
    if isinstance(value, str):
        return value
    return json.dumps(value, default=plain) if isinstance(value, dict | list | bool | int | float) else plain(value)
