"""`ConnectorSuite`: tests for connectors, to inherit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lookupcache.testing.lifecycle import LifecycleChecks
from lookupcache.testing.requests import RequestChecks
from lookupcache.testing.samples import KEY_TYPES, TRAITS, TYPES
from lookupcache.testing.secrets import SecretChecks
from lookupcache.testing.values import ValueChecks

_CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "test_many_rows_of_a_key": lambda suite: not suite.unique_keys,
    "test_duplicates_are_kept": lambda suite: not suite.unique_keys,
    "test_the_whole_table": lambda suite: suite.can_scan,
    "test_it_says_that_it_cannot_scan": lambda suite: not suite.can_scan,
    "test_a_type_that_it_cannot_hold_is_refused": lambda suite: bool(_unsupported_types(suite)),
    "test_odd_column_names": lambda suite: "odd names" not in suite.unsupported,
    "test_a_source_that_dies_and_comes_back": lambda suite: getattr(suite, "restart", None) is not None,
}


class ConnectorSuite(ValueChecks, RequestChecks, LifecycleChecks, SecretChecks):
    """The tests of a connector: inherit them, define how a table is created, and list the limits of the source.

    A subclass, whose name starts with ``Test``, defines

    - ``connector``: the registered name, or ``module:Class``;
    - ``load``: a fixture that returns a function ``load(rows, key)``. It creates a table with exactly these rows, a
      pyarrow.Table, for lookups by the columns ``key``, and returns the connector's options for it. A test may call it
      several times, and no longer uses the previous table then;
    - ``restart``, if the source can be killed: a fixture that returns two functions. The first kills it, the second
      starts it again, with its rows, and returns when it is ready;

    and may set

    - ``unsupported``: what the source cannot store, with the reason: by type (``map``, ``decimal``,
      ``decimal(38,18)``) or by trait. The traits are ``nan``, ``infinity``, ``negative zero``, ``subnormal``,
      ``empty string``, ``blank string``, ``long string``, ``nul``, ``empty binary``, ``year 1``, ``null`` and
      ``odd names``. A column of such a type
      must be refused;
    - ``unsupported_keys``: the same for key columns, in addition to ``unsupported``;
    - ``unique_keys``: whether a key has at most one row;
    - ``pushes_filters``, ``can_scan``: whether the connector accepts filters, and implements `scan`;
    - ``filter_examples``: how many filters to draw; ``patience``: the seconds after `close` in which all resources must
      be released.

    Each failure names the fault and the cure. Tests that do not apply are removed from the suite.
    A column whose field has the metadata `JSON` of `lookupcache.testing.samples` contains JSON texts, and may be
    stored as such.

    >>> class TestEcho(ConnectorSuite):
    ...     connector = "my_package.echo:Echo"
    ...     unsupported = {"map": "a row is a line of text", "nan": "the format has no NaN"}
    ...
    ...     @pytest.fixture
    ...     def load(self, tmp_path):
    ...         def load(rows, key):
    ...             path = tmp_path / "rows.txt"
    ...             return {"path": str(path)}
    ...         return load
    """

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        for name, applies in _CONDITIONS.items():
            if not applies(cls):
                setattr(cls, name, None)
            elif getattr(cls, name) is None:
                setattr(cls, name, getattr(ConnectorSuite, name))
        _check_trait_names(cls)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Create a test for each type that the source can store, and for each that it cannot."""
        names: dict[str, Callable[[], list[str]]] = {
            "spark_type": lambda: self.supported.types(),
            "unsupported_type": lambda: _unsupported_types(type(self)),
            "key_type": lambda: self.supported_keys.types(KEY_TYPES),
            "constant_type": lambda: self.supported.types(KEY_TYPES),
        }
        for name, types in names.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, types())


def _unsupported_types(suite: Any) -> list[str]:
    return [name for name in TYPES if name != "json" and suite().supported.reason_unsupported(name)]


def _check_trait_names(suite: Any) -> None:
    known = {*TRAITS, *TYPES, *(name.partition("(")[0].partition("<")[0] for name in TYPES), "null", "odd names"}
    for name in (*suite.unsupported, *suite.unsupported_keys):
        if name not in known:
            raise ValueError(
                f"{suite.__name__}: {name!r} is not a type or trait; known are {', '.join(sorted(known))}."
            )
