"""Keeps pyarrow from importing pandas in a worker before anything uses pandas.

Most conversions of Python and numpy values to Arrow ask whether the value is a pandas object. For that, pyarrow imports
pandas where it is installed, which takes a third of a second in a fresh worker. No value is one until something else
imports it.

Some modules of pyarrow's, such as `pyarrow.dataset`, which ADBC's drivers import too, convert a boolean constant when
they are loaded. From C++ pyarrow attempts the import only once, so it must not be refused there; but a boolean whose
type is passed is not examined.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pyarrow as pa

_PANDAS = "pandas"
_COMPILED = "pyarrow._"


def defer_pandas() -> None:
    """Let pyarrow do without pandas until something else imports it; then pyarrow knows its types as usual.

    Nothing happens if this was called before, or if pyarrow's interface has changed. If pandas has been imported since,
    in a way that was not noticed, pyarrow is informed now: see `report_pandas`.
    """
    # A private name: without it, pyarrow imports pandas as it always did.
    interface = getattr(pa.lib, "_pandas_api", None)
    if interface is None:
        return
    if _PANDAS in sys.modules:
        report_pandas()
        return
    if any(isinstance(one, _PandasFinder) for one in sys.meta_path):
        return
    finder = _PandasFinder(interface)
    sys.meta_path.insert(0, finder)
    finder.refuse_once()


def report_pandas() -> None:
    """Let pyarrow know the types of pandas if it has been imported; another finder may have loaded it unnoticed."""
    interface = getattr(pa.lib, "_pandas_api", None)
    # Not while it is being imported, in another thread.
    if interface is not None and hasattr(sys.modules.get(_PANDAS), "DataFrame"):
        # pyarrow refuses versions that are too old, which is no error of a lookup.
        with suppress(ImportError):
            _ = interface.pd


class _PandasFinder:
    """Refuses the import of pandas that pyarrow attempts, and reports to pyarrow when another import has loaded it."""

    def __init__(self, interface: Any) -> None:
        self._interface = interface
        self._own = threading.local()

    def refuse_once(self) -> None:
        """Let pyarrow attempt its import, which it does once."""
        self._own.refuses = True
        try:
            _ = self._interface.have_pandas
        finally:
            self._own.refuses = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where the other finders find pandas, to be reported to pyarrow once it is loaded, or pyarrow's own."""
        around = self._reported if name == _PANDAS else _booleans_of_known_type if name.startswith(_COMPILED) else None
        if around is None or getattr(self._own, "searches", False):
            return None
        if name == _PANDAS and getattr(self._own, "refuses", False):
            raise ModuleNotFoundError("pandas has not been imported yet", name=_PANDAS)
        self._own.searches = True
        try:
            spec = find_spec(name)
        finally:
            self._own.searches = False
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _Around(spec.loader, around)  # type: ignore[method-assign]
        return spec

    @contextmanager
    def _reported(self) -> Iterator[None]:
        yield
        # Only now: a search for pandas is not always followed by an import.
        with suppress(ValueError):
            sys.meta_path.remove(self)
        # pyarrow refuses versions that are too old, which is no error of this import.
        with suppress(ImportError):
            _ = self._interface.pd


class _Around:
    """Loads a module as its loader does, inside a context, and leaves the loader as it was, which can be pickled."""

    def __init__(self, loader: Any, context: Callable[[], AbstractContextManager[None]]) -> None:
        self._loader = loader
        self._load = loader.exec_module
        self._context = context

    def __call__(self, module: ModuleType) -> None:
        with self._context():
            self._load(module)
            if vars(self._loader).get("exec_module") is self:
                del self._loader.exec_module


_scalar = pa.lib.scalar


@contextmanager
def _booleans_of_known_type() -> Iterator[None]:
    """Let pyarrow's modules, and those that they import, make a boolean without looking for its type."""
    before, pa.lib.scalar = pa.lib.scalar, _typed_scalar
    try:
        yield
    finally:
        pa.lib.scalar = before


def _typed_scalar(value: Any, *args: Any, **options: Any) -> Any:
    if isinstance(value, bool) and not args and not options:
        args = (pa.bool_(),)
    return _scalar(value, *args, **options)
