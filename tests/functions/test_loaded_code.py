"""Whether a process has loaded the texts with which another process planned."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys

import cloudpickle
import pytest

from lookupcache.functions import loaded_code
from lookupcache.functions.identity import identity_of_code
from lookupcache.functions.loaded_code import STARTED, changed_module

TEXT = """
import dataclasses, functools
import loaded_code_rates as rates

@dataclasses.dataclass
class Money:
    value: int
    @property
    def doubled(self): return 2 * self.value

@functools.lru_cache
def price(n): return Money(n * rates.rate()).doubled
"""


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Return a function that writes two modules, and returns what the driver has of their texts; it loads them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("loaded_code_prices", "loaded_code_rates")

    def write(*of_names):
        for name, text in zip(names, of_names, strict=True):
            (tmp_path / f"{name}.py").write_text(text)

    def texts(*of_names, load=True):
        kept = {name: sys.modules.pop(name, None) for name in names}
        write(*of_names)
        found = identity_of_code(importlib.import_module(names[0]).price)
        assert found.unknown is None
        if not load:
            sys.modules.update({name: module for name, module in kept.items() if module is not None})
        return found.texts

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(loaded_code, "STARTED", math.inf)  # As if the files were older than this process.
    texts.write = write
    yield texts
    for name in names:
        sys.modules.pop(name, None)


RATES = "def rate(): return 1"


def test_what_was_loaded_is_that_of_the_text(texts):
    found = texts(TEXT, RATES)
    assert [name for name, *_ in found] == ["loaded_code_prices", "loaded_code_rates"]
    assert changed_module(found) is changed_module(found) is None


def test_a_file_that_changed_after_the_process_started_is_a_change(texts, monkeypatch):
    """It may have been loaded before; only functions can be compared with a text, but not what they read."""
    found = texts(TEXT, f"{RATES}\nTAX = {{'AT': 20}}")
    monkeypatch.setattr(loaded_code, "STARTED", STARTED)
    assert changed_module(found) == "loaded_code_prices"


LOADED_FIRST = """
import sys
import rates_of_test
from pathlib import Path
Path(rates_of_test.__file__).write_text("RATE = 2")
from lookupcache.functions.loaded_code import STARTED, _is_newer
print(_is_newer(rates_of_test), _is_newer(sys.modules["lookupcache.functions.loaded_code"]))
"""


def test_a_file_that_changed_before_lookupcache_was_imported_is_a_change(tmp_path):
    (tmp_path / "rates_of_test.py").write_text("RATE = 1")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", LOADED_FIRST]
    said = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "False"]


def test_comments_and_layout_are_no_change(texts):
    found = texts(TEXT, RATES)
    texts.write(f"# Says\n# more.\n\n{TEXT}", f"{RATES}  # Of today.")
    assert changed_module(found) is None


@pytest.mark.parametrize(
    ("edited", "module"),
    [
        ((TEXT, "def rate(): return 2"), "loaded_code_rates"),
        ((TEXT.replace("return Money", "return 1 + Money"), RATES), "loaded_code_prices"),
        ((TEXT.replace("2 *", "3 *"), RATES), "loaded_code_prices"),
    ],
)
def test_a_file_that_was_edited_on_one_side_is_a_change(texts, edited, module):
    found = texts(TEXT, RATES)
    texts.write(*edited)
    assert changed_module(found) == module  # After the driver loaded it.
    texts.write(TEXT, RATES)
    reloaded = texts(*edited, load=False)
    assert changed_module(reloaded) == module  # After this process loaded it.


def test_a_constant_that_was_edited_after_a_check_is_a_change(texts):
    found = texts(TEXT, f"A = 1\n{RATES}")
    assert changed_module(found) is None
    reloaded = texts(TEXT, f"A = 2\n{RATES}", load=False)
    assert changed_module(reloaded) == "loaded_code_rates"


def test_a_module_that_is_not_loaded_yet_counts_by_its_file(texts):
    found = texts(TEXT, RATES)
    for name in ("loaded_code_prices", "loaded_code_rates"):
        del sys.modules[name]
    assert changed_module(found) is None
    texts.write(TEXT, "def rate(): return 2")
    assert changed_module(found) == "loaded_code_rates"
    texts.write(TEXT, "def rate(: return 2")
    assert changed_module(found) == "loaded_code_rates"


def test_a_module_without_a_text_here_counts_as_the_same():
    assert changed_module([("loaded_code_missing", "0", "0")]) is None


def test_a_module_of_the_same_name_that_is_installed_and_not_loaded_is_another(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "loaded_code_installed.py").write_text("A = 1")
    monkeypatch.syspath_prepend(str(folder))
    assert changed_module([("loaded_code_installed", "0", "0")]) is None


def test_modules_that_are_sent_by_value_are_not_compared(texts):
    texts(TEXT, RATES)
    module = sys.modules["loaded_code_rates"]
    cloudpickle.register_pickle_by_value(module)
    try:
        found = identity_of_code(sys.modules["loaded_code_prices"].price).texts
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert [name for name, *_ in found] == ["loaded_code_prices"]
