"""The identity of code: the same in each application with the same code, a new identity after a change of it."""

from __future__ import annotations

import array
import copy
import gc
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import types

import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import separate_tokens
from tenants import Client
from worker_functions import bound

from lookupcache import LookupConfig, cached
from lookupcache.functions.identity import identity_of_code, identity_of_connector, stored_identity
from lookupcache.functions.source_text import text_of_module
from lookupcache.functions.variables_read import variables_in
from lookupcache.plan import digest
from lookupcache.store.names import identity_of
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted, plan_of

PATHS = os.pathsep.join(filter(None, sys.path))

SCRIPT = """
import json, sys
{imports}
from lookupcache.connector import Connector
from lookupcache.functions.identity import identity_of_code
from lookupcache.functions.table_function import TableFunction, argument
from lookupcache.table import LookupTable

RATE = float(os.environ["RATE"])
LOCK = threading.Lock()
LOG = logging.getLogger("prices")
STARTED = os.getpid()

def plain(n):
    return n * 2  {comment}

def reads(n):
    LOG.info("read")
    return [n * RATE for _ in range(1)]

def calls(n):
    return reads(n)

def made(rate):
    def scaled(n):
        return scaled(n - 1) if n > 9 else n * rate
    return scaled

def with_default(n, rate=RATE, *, more={{"x": [RATE]}}):
    return n * rate

def by_helper(n):
    return helpers.price(n)

def by_late_import(n):
    from more.late import late
    return late(n)

class Fetch:
    words = {{"a", "b", "c"}}
    def __init__(self, rate=1.0):
        self.rate = rate
        self.lock = threading.Lock()
    def __call__(self, n):
        return n * self.rate

class Rated(Fetch):
    rate = RATE
    __slots__ = ("x",)

@dataclasses.dataclass(frozen=True)
class Row:
    rate: float
    kind: str = "x"
    def __call__(self, n):
        return n * self.rate

class Point(typing.NamedTuple):
    rate: float
    def __call__(self, n):
        return n

class Kind(enum.Enum):
    LOW = 1
    HIGH = RATE
    def __call__(self, n):
        return n

def logged(function):
    @functools.wraps(function)
    def call(n):
        return function(n)
    return call

@logged
def decorated(n):
    return n

@functools.lru_cache
def kept(n):
    return n * RATE

class Source(Connector):
    unit = RATE
    def lookup(self, request, keys):
        return None

KINDS = dict(
    plain=plain, reads=reads, calls=calls, made=made(2.0), made_by_rate=made(RATE), default=with_default,
    helper=by_helper, late=by_late_import, object=Fetch(), rated_object=Fetch(RATE), kind=Fetch, rated_kind=Rated,
    method=Fetch(2.0).__call__, rated_method=Fetch(RATE).__call__, partial=functools.partial(plain, 1),
    rated_partial=functools.partial(plain, rate=RATE), row=Row(2.0), rated_row=Row(RATE), point=Point(RATE),
    low=Kind.LOW, decorated=decorated, kept=kept, scaled=lambda n: n, other=lambda n: -n,
    in_set=made(frozenset({{"a", 1, ("b", 2.0)}})), source=Source,
)
found = {{name: [one.digest, one.unknown] for name, one in zip(KINDS, map(identity_of_code, KINDS.values()))}}
tables = {{"table " + name: LookupTable.from_function("t", "id BIGINT, v DOUBLE", key="id", function=KINDS[name])
          for name in ("plain", "rated_object", "kind", "rated_partial")}}
for name in ("calls", "object"):
    function = TableFunction.of("f", KINDS[name], returns="a DOUBLE")
    tables["sql " + name] = function.table("t", (), [argument("n", pyarrow.int64(), "arg1", nullable=True)])
tables["table source"] = LookupTable("t", "id BIGINT", {{"connector": "__main__:Source"}})
found.update({{name: [table.source, table.code_unknown] for name, table in tables.items()}})
print(json.dumps(found))
"""
HELPERS = "import os\nRATE = os.environ['HELPED']\ndef price(n):\n    return RATE\ndef unused(n):\n    return 1\n"
IMPORTS = ("os", "threading", "logging", "functools", "typing", "enum", "dataclasses", "pyarrow", "helpers")
READ_RATE = {
    "reads", "calls", "made_by_rate", "default", "rated_object", "rated_kind", "rated_method", "rated_partial",
    "rated_row", "point", "low", "kept", "source", "table rated_object", "table rated_partial", "table source",
    "sql calls",
}  # fmt: skip


def identities(folder, *, script=SCRIPT, helpers=HELPERS, late="def late(n): return n", comment="", seed="0", **env):
    """Return the identities that an application in a folder has of its callables."""
    (folder / "more").mkdir(parents=True, exist_ok=True)
    imports = IMPORTS if not comment else reversed(IMPORTS)
    text = script.format(imports="\n".join(f"import {name}" for name in IMPORTS), comment=comment)
    first = "".join(f"__import__({name!r})\n" for name in imports)  # In another order, by a file that is not the same.
    for name, written in {"job.py": text, "helpers.py": helpers, "more/late.py": late, "start.py": first}.items():
        (folder / name).write_text(written)
    command = [sys.executable, "-B", "job.py"]
    environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONHASHSEED": seed, "RATE": "2.5", "HELPED": "1", **env}
    told = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    found = json.loads(told.stdout)
    assert {name: unknown for name, (_, unknown) in found.items() if unknown} == {}
    return {name: digest for name, (digest, _) in found.items()}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return identities(tmp_path_factory.mktemp("first"))


def changed(one, other):
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]}


@pytest.mark.slow
def test_each_callable_has_the_same_identity_in_all_applications(first, tmp_path):
    assert len(set(first.values())) == len(first)
    assert changed(first, identities(tmp_path / "other", comment="# twice", seed="77")) == set()


@pytest.mark.slow
def test_a_bound_or_read_value_changes_the_identity_of_its_users(first, tmp_path):
    assert changed(first, identities(tmp_path, RATE="3.5")) == READ_RATE
    assert changed(first, identities(tmp_path, HELPED="2")) == {"helper"}


@pytest.mark.slow
def test_an_edit_of_any_project_module_changes_all_identities(first, tmp_path):
    edits = [
        {"script": SCRIPT.replace("n * 2 ", "n * 3 ")},
        {"helpers": HELPERS.replace("return 1", "return 2")},
        {"late": "def late(n): return -n"},
    ]
    for number, edit in enumerate(edits):
        assert changed(first, identities(tmp_path / str(number), **edit)) == first.keys()


SPAWNS = """
import multiprocessing, sys
from lookupcache.functions.identity import stored_identity
class Client:
    def find(self, n): return n
CLIENT = Client()
def root(n): return CLIENT.find(n)
def identities(_): return [root.__module__, stored_identity(root, None), stored_identity(CLIENT.find, "1")]
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for found in (identities(0), *pool.map(identities, [0])): print(*found)
"""


@pytest.mark.slow
def test_a_script_and_the_processes_that_it_spawns_share_values(tmp_path):
    (tmp_path / "job.py").write_text(SPAWNS)
    told = subprocess.run([sys.executable, "-B", "job.py"], cwd=tmp_path, check=True, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": PATHS})  # fmt: skip
    script, spawned = (line.split() for line in told.stdout.splitlines())
    assert [script[0], spawned[0]] == ["__main__", "__mp_main__"]
    assert script[1:] == spawned[1:]


STARTED = """
from shop_of_test import helpers
from lookupcache.functions.identity import identity_of_code
def root(n): return helpers.price(n)
def main():
    found = identity_of_code(root)
    print(found.digest, found.unknown, root(1))
if __name__ == "__main__":
    main()
"""
STARTS = {
    "its name": ["-m", "shop_of_test.job"],
    "its path": ["{folder}/shop_of_test/job.py"],
    "runpy": ["-c", "import runpy; runpy.run_module('shop_of_test.job', run_name='__main__', alter_sys=True)"],
    "a function of it": ["-c", "from shop_of_test import job; job.main()"],
}


@pytest.mark.slow
@pytest.mark.parametrize("by", STARTS)
@pytest.mark.parametrize("record", ["site-packages/x", "image/shop-1.dist-info/RECORD"])
def test_an_installed_package_counts_by_code_however_it_is_started(tmp_path, by, record):
    (tmp_path / record).parent.mkdir(parents=True)
    (tmp_path / record).write_text("shop_of_test/__init__.py,,\n")
    folder = tmp_path / record.partition("/")[0]
    (folder / "shop_of_test").mkdir()
    (folder / "shop_of_test" / "__init__.py").touch()
    (folder / "shop_of_test" / "job.py").write_text(STARTED)
    command = [sys.executable, "-B", *(one.format(folder=folder) for one in STARTS[by])]
    environment, found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), PATHS])}, []
    for price in (1, 1, 2):
        (folder / "shop_of_test" / "helpers.py").write_text(f"def price(n): return {price}")
        told = subprocess.run(command, cwd="/", env=environment, check=True, capture_output=True, text=True)
        found.append(told.stdout.split())
    assert [one[1:] for one in found] == [["None", "1"], ["None", "1"], ["None", "2"]]
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


@pytest.mark.slow
def test_code_without_assertions_is_other_code(tmp_path):
    (tmp_path / "job.py").write_text(
        "from lookupcache.functions.identity import identity_of_code\n"
        "def root(n): return 1 if __debug__ else 2\nprint(identity_of_code(root).digest)"
    )
    environment = {**os.environ, "PYTHONPATH": PATHS}
    commands = [[sys.executable, "-B", *flags, "job.py"] for flags in ([], [], ["-O"])]
    found = [subprocess.check_output(one, cwd=tmp_path, env=environment) for one in commands]
    assert found[0] == found[1] != found[2]
    assert b"None\n" not in found


# ── in one process ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Import a text as a module, as it was when the file was loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text, name="module_of_test"):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return load


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates()
VALUES = st.recursive(
    PLAIN,
    lambda one: st.lists(one) | st.tuples(one, one) | st.dictionaries(st.text(), one) | st.frozensets(PLAIN),
    max_leaves=8,
)


def _meaning(value):
    """Return a value as text, in which sets have an order and types are told apart."""
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(repr, value))}"
    if isinstance(value, list | tuple):
        return f"{type(value)}{[*map(_meaning, value)]}"
    if isinstance(value, dict):
        return f"dict{[(name, _meaning(of)) for name, of in value.items()]}"
    return repr(value)


@settings(max_examples=examples(200), deadline=None)
@given(VALUES, VALUES)
def test_plain_values_that_are_bound_are_told_apart(one, other):
    """Drawn: equal values of other types, -0.0, sets, and nested ones of all these."""
    found = [identity_of_code(bound(value)).digest for value in (one, copy.deepcopy(one), other)]
    assert None not in found
    assert found[0] == found[1]
    assert (found[0] == found[2]) == (_meaning(one) == _meaning(other))


def test_project_objects_count_by_all_attributes():
    """Also by those whose names may be those of credentials, as TOKEN is in code about language."""
    found = [identity_of_code(Client(*given).find) for given in [("x",), ("x",), ("x", "b"), ("y",)]]
    assert found[0] == found[1]
    assert len({one.digest for one in found}) == 3
    itself: list = [1]
    itself.append({"inner": itself})
    assert identity_of_code(bound(itself)) == identity_of_code(bound(itself))


UNKNOWN = {
    "a closure": ("def made(of):\n    return lambda n: of\nroot = made(object())", r"the closure of .*'object'"),
    "a default": ("def root(n, of=object()): return n", "a default of 'root' is an object of 'object'"),
    "a global": ("import queue\nQ = queue.Queue()\ndef root(n): return Q", "the global 'Q' of 'root'.*'Queue'"),
    "of a helper": ("def one(n): return V\ndef root(n): return one(n)\nV = object()", "the global 'V' of 'one'"),
    "an attribute": ("class K:\n    def __call__(self, n): return n\nroot = K()\nroot.x = object()", "an attribute of"),
    "of a class": ("class root:\n    x = object()\n    def __call__(self, n): return n", "the attribute 'x' of class"),
    "a set": ("def one(n): return n\ndef root(n, of={one}): return n", "a set of more than plain values"),
    "made by exec": ("found = {}\nexec('def root(n): return n', globals())", "source of 'root' cannot be read"),
    "an extended type": ("class T(str): pass\ndef root(n, of=T('x')): return n", "an object of 'T'"),
    "a context": ("import contextvars\nV = contextvars.ContextVar('V')\ndef root(n): return V.get()", "'ContextVar'"),
    "of a thread": ("import threading\nV = threading.local()\ndef root(n): return V.x", "an object of '_local'"),
    "a number": ("import decimal\nclass T(decimal.Decimal): pass\ndef root(n, of=T('1')): return n", "object of 'T'"),
    "a class by exec": ("exec(f'class K:\\n def __call__(k, n): return {1}')\nroot = K()", "source of 'K.__call__'"),
    "a whole module": ("import rates\ndef root(n): return getattr(rates, 'RATE')", "'LATER' of module 'rates'"),
    "of a function": ("V = 1\ndef root(n): return root.__globals__['V']", "the code of 'root' reads '__globals__'"),
    "of a function, by a text": ("V = 1\ndef root(n): return getattr(root, '__globals__')['V']", "'__globals__'"),
    "of a frame": ("import sys\nroot = lambda n: [sys._getframe(1).f_globals['V'] for _ in n]", "'f_globals'"),
    "of a loaded module": ("import sys\ndef root(n): return sys.modules['rates'].RATE", "reads 'sys.modules'"),
    "of loaded modules": ("def root(n):\n    import sys\n    return sys.modules.get(n)", "reads 'sys.modules'"),
    "subclasses": ("class K: ...\ndef root(n): return K.__subclasses__()[0](n)", "reads '__subclasses__'"),
    "another name of eval": ("V, E = 1, eval\ndef root(n): return E('V')", "the global 'E' of 'root' is 'eval'"),
    "a late name of exec": ("V = 1\ndef root(n):\n    from builtins import exec as run\n    run('V')", "is 'exec'"),
    "globals as a default": ("V = 1\ndef root(n, of=globals): return of()['V']", "a default of 'root' is 'globals'"),
    "a computed import": ("from importlib import import_module\ndef root(n): return import_module(f'shop_{n}')",
                          "the code of 'root' reads a module by a computed name"),
    "a sum as an import": ("def root(n): return __import__('shop_' + n)", "a computed name"),
    "a relative import": ("import importlib\ndef root(n): return importlib.import_module('.%s' % n, __package__)",
                          "a computed name"),
    "an import of parts": ("import importlib\ndef root(n): return importlib.import_module('.'.join(['shop', n]))",
                           "a computed name"),
    "an import by a variable": ("import importlib\ndef root(n):\n    name = f'shop.{n}'\n"
                                "    return importlib.import_module(name)", "a computed name"),
    "an import of itself": ("import importlib\nV = 1\ndef root(n): return importlib.import_module(__name__).V",
                            "a computed name"),
    "an import in a text": ("def root(n): exec('import rates')", "reads a module that a text imports"),
    "a module of a function": ("import inspect\nV = 1\ndef root(n): return inspect.getmodule(root).V", "'getmodule'"),
    "modules of a folder": ("import importlib, pkgutil\n"
                            "def root(n): return [importlib.import_module(m.name) for m in pkgutil.iter_modules([n])]",
                            "'iter_modules'"),
    "too deep": ("import sys\nV = []\nfor _ in range(2 * sys.getrecursionlimit()): V = [V]\n"
                 "def root(n, of=V): return n", "RecursionError"),
    "fails": ("class M(type):\n    def __getattribute__(c, n): raise OSError\nclass K(metaclass=M): pass\n"
              "def root(n, of=K()): return n", "cannot be read: OSError"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_value_without_stable_text_is_named_and_not_shared(module, case):
    text, reason = UNKNOWN[case]
    module("RATE, LATER = 1, iter(())", "rates")
    root = module(text).root
    found = identity_of_code(root)
    assert found.digest is None
    assert re.search(reason, found.unknown), found.unknown


RATES = "import os\nRATE = os.environ['RATE']\nSCALE = 2\n"
WAYS = {
    "a flag of a dataclass": "import dataclasses, rates\n@dataclasses.dataclass(eq=rates.RATE == '1')\nclass K:\n"
                             "    a: int\ndef root(n): return K(n) == K(n)",
    "a flag of a field": "import dataclasses, rates\n@dataclasses.dataclass\nclass K:\n"
                         "    a: int = dataclasses.field(compare=rates.RATE == '1')\ndef root(n): return K(n)",
    "arguments by name": "import dataclasses, rates\n"
                         "K = dataclasses.make_dataclass('K', [('a', int)], kw_only=rates.RATE == '1')\n"
                         "def root(n): return K",
    "a function of attrs": "import attrs, rates\n@attrs.define\nclass K:\n"
                           "    a: int = attrs.field(converter=lambda n: n + rates.RATE)\ndef root(n): return K(n)",
    "an alias of attrs": "import attrs, rates\n@attrs.define\nclass K:\n"
                         "    a: int = attrs.field(alias=f'of_{rates.RATE}')\ndef root(n): return K(n)",
    "an order of attrs": "import attr, rates\n@attr.s(order=True)\nclass K:\n    a = attr.ib(default=rates.RATE)\n"
                         "def root(n): return K() < K()",
    "a flag of attrs": "import attrs, rates\n@attrs.define(repr=rates.RATE == '1')\nclass K:\n    a: int\n"
                       "def root(n): return K",
    "a boundary": "import enum, rates\nclass K(enum.Flag, boundary=enum.KEEP if rates.RATE == '1' else enum.EJECT):\n"
                  "    A = 1\ndef root(n): return K(n)",
    "an abstract method": "import abc, rates\nclass K(abc.ABC): ...\nK.__abstractmethods__ = frozenset({rates.RATE})\n"
                          "def root(n): return K()",
    "a helper reads another": "import rates\ndef one(n): return rates.RATE\ndef root(n): return rates.SCALE * one(n)",
    "from a late import": "import rates\ndef root(n):\n    from rates import RATE\n    return RATE",
    "a late import": "import rates as loaded\ndef root(n):\n    import rates as late\n    return late.RATE",
    "getattr": "import rates\ndef root(n): return getattr(rates, 'RATE')",
    "a module as a local": "import rates\ndef root(n):\n    late = rates\n    return late.RATE",
    "a module as a default": "import rates\ndef root(n, of=rates): return of.RATE",
    "a module in a dict": "import rates\nALL = {'a': rates}\ndef root(n): return ALL['a'].RATE",
    "a module in an object": "import rates\nclass K:\n    def __call__(k, n): return k.of.RATE\n"
    "root = K()\nroot.of = rates",
    "globals()": "from rates import RATE\ndef root(n): return globals()['RATE']",
    "eval": "from rates import RATE\ndef root(n): return eval('RATE')",
    "globals() of builtins": "import builtins\nfrom rates import RATE\ndef root(n): return builtins.globals()['RATE']",
    "eval of late builtins": "from rates import RATE\ndef root(n):\n    import builtins as b\n"
                             "    return b.eval('RATE')",
    "eval of the module's builtins": "from rates import RATE\ndef root(n): return __builtins__['eval']('RATE')",
    "two underscores": "from rates import RATE as __rate\ndef root(n): return __rate",
    "a special name": "import rates\nclass K:\n    __rate__ = rates.RATE\n"
    "    def __call__(k, n): return k.__rate__\nroot = K()",
    "a special method": "import functools, rates\nclass K:\n    def find(k, rate, n): return rate\n"
    "    __call__ = functools.partialmethod(find, rates.RATE)\nroot = K()",
    "a field's default": "import dataclasses, rates\n@dataclasses.dataclass(slots=True)\nclass root:\n"
    "    rate: str = rates.RATE\n    def __call__(k, n): return k.rate",
    "a field's factory": "import dataclasses\nfrom rates import RATE\ndef made(): return [RATE]\n"
    "@dataclasses.dataclass\nclass root:\n"
    "    rate: list = dataclasses.field(default_factory=made)\n    def __call__(k, n): return k.rate",
    "a class of partials": "import functools, rates\nclass P(functools.partial):\n    rate = rates.RATE\n"
    "    def __call__(p, n): return p.rate\nroot = P(len)",
    "a partial's attribute": "import functools, rates\nroot = functools.partial(len)\nroot.rate = rates.RATE",
    "a name like a secret's": "from rates import RATE as TOKENIZER\ndef root(n): return TOKENIZER",
    "a type hint": "import rates, typing\nT = list[typing.Literal[rates.RATE]]\ndef root(n): return T",
    "an enum's attribute": "import enum, rates\nclass E(enum.Enum):\n    A = 1\n"
    "    def __init__(self, n): self.rate = rates.RATE\ndef root(n): return E.A.rate",
    "a field's metadata": "import dataclasses, rates\n@dataclasses.dataclass\nclass root:\n"
    "    n: int = dataclasses.field(default=1, metadata={'rate': rates.RATE})\n    def __call__(k, n): return n",
    "a class without a file": "import rates, types\n"
    "K = types.new_class('K', exec_body=lambda names: names.update(rate=rates.RATE))\ndef root(n): return K.rate",
    "an attribute beside a cache": "import functools, rates\n@functools.cache\ndef root(n): return root.rate\n"
    "root.rate = rates.RATE",
    "single dispatch": "import functools, rates\n@functools.singledispatch\ndef root(n): return n\n"
    "@root.register\ndef _(n: int): return rates.RATE",
    "a late import by a text": "import importlib, rates as loaded\n"
    "def root(n): return importlib.import_module('rates').RATE",
    "a bound of a queue": "import collections, rates\nQ = collections.deque(maxlen=int(rates.RATE))\n"
    "def root(n): return Q.maxlen",
    "a name as of a language model": "from rates import RATE as STOP_TOKEN\ndef root(n): return STOP_TOKEN",
    "flags": "import enum, rates\nclass F(enum.IntFlag):\n    A = 1\nV = F(int(rates.RATE) * 8)\ndef root(n): return V",
    "a module's names": "import rates\ndef root(n): return rates.__dict__['RATE']",
    "names of a late import": "def root(n):\n    import rates as late\n    return late.__dict__['RATE']",
    "getattr of a late import": "def root(n):\n    import rates as late\n    return getattr(late, 'RA' + 'TE')",
    "a module of a late import": "def root(n):\n    from beside import rates\n    return abs(rates.RATE)",
    "a module that a late import binds": "def root(n):\n    import beside as late\n    return abs(late.rates.RATE)",
    "a property of a module": "import beside, rates, types\nLATE = rates.RATE\nclass K(types.ModuleType):\n"
    "    late = property(lambda module: LATE)\nbeside.__class__ = K\ndef root(n): return beside.late",
    "a method of a module": "import beside, rates, types\nLATE = rates.RATE\nclass K(types.ModuleType):\n"
    "    def __getattr__(module, name): return LATE\nbeside.__class__ = K\ndef root(n): return beside.late",
    "a package of a late import": "def root(n):\n    import rates.not_loaded\n    return rates.RATE",
    "the user in a URL": "import rates\nURL = f'db://{rates.RATE}:x@db/shop'\ndef root(n): return URL",
    "the user in a header": "import rates\nH = {'Authorization': 'Basic ' + rates.RATE}\ndef root(n): return H",
    "a header with a user": "import rates\nAUTHORIZATION = 'Basic ' + rates.RATE\ndef root(n): return AUTHORIZATION",
    "a name of an installed module": "def root(n):\n    from shop_of_test import RATE\n    return RATE",
    "the script's arguments": "import sys\ndef root(n): return sys.argv[1]",
    "arguments by a late import": "def root(n):\n    import sys as late\n    return late.argv[1]",
    "a caller of a method": "import operator, rates\nF = operator.methodcaller('find', rate=rates.RATE)\n"
    "def root(n): return F(n)",
    "in a wrapped dataclass": "import dataclasses, functools, rates\n@dataclasses.dataclass\nclass K:\n    n: int = 1\n"
    "def wrapped(made, rate):\n    @functools.wraps(made)\n    def init(k, n): made(k, rate)\n    return init\n"
    "K.__init__ = wrapped(K.__init__, rates.RATE)\ndef root(n): return K(n)",
    "in a wrapped named tuple": "import collections, functools, rates\nK = collections.namedtuple('K', 'n')\n"
    "def wrapped(made, rate):\n    @functools.wraps(made)\n    def new(k, n): return made(k, rate)\n    return new\n"
    "K.__new__ = wrapped(K.__new__, rates.RATE)\ndef root(n): return K(n)",
    "a default of a generated method": "import dataclasses, rates\n@dataclasses.dataclass\nclass K:\n"
    "    n: str = rates.RATE\nMADE = K.__init__\ndef root(n): return MADE",
    "a docstring": "import rates\ndef f(n): ...\nf.__doc__ = rates.RATE\ndef root(n): return f.__doc__",
    "a docstring within": "import rates\ndef made(prompt):\n    def f(n): return f.__doc__\n    f.__doc__ = prompt\n"
    "    return f\nroot = made(rates.RATE)",
    "a docstring of a class": "import rates\nclass K: 'x'\nK.__doc__ = rates.RATE\ndef root(n): return K.__doc__",
    "a docstring of a module": "import rates\n__doc__ = rates.RATE\ndef root(n): return __doc__",
    "a function's name": "import rates\ndef f(n): ...\nf.__name__ = rates.RATE\ndef root(n): return f.__name__",
    "a class's name": "import rates\nclass K: ...\nK.__name__ = rates.RATE\ndef root(n): return K.__name__",
    "a private name of an enum": "import enum, rates\nclass E(enum.Enum):\n    A = 1\n    __rate = rates.RATE\n"
    "    def rate(e): return e.__rate\ndef root(n): return E.A.rate()",
    "a late attribute of an enum": "import enum, rates\nclass E(enum.Enum):\n    A = 1\nE._rate = rates.RATE\n"
    "def root(n): return E._rate",
    "a lock of one's own": "import threading, rates\nclass K(threading.Semaphore): ...\nK = K(4)\n"
    "K.rate = rates.RATE\ndef root(n): return K.rate",
    "an event of one's own": "import threading, rates\nclass K(threading.Event): ...\nK = K()\nK.rate = rates.RATE\n"
    "def root(n): return K.rate",
    "a logger of one's own": "import logging, rates\nclass K(logging.LoggerAdapter): ...\n"
    "K = K(logging.getLogger(), {'rate': rates.RATE})\ndef root(n): return K.extra",
    "metadata of Arrow's field": "import pyarrow as pa, rates\n"
    "F = pa.field('a', pa.int8(), metadata={'b': rates.RATE})\ndef root(n): return F.metadata",
    "metadata within Arrow's type": "import pyarrow as pa, rates\n"
    "T = pa.list_(pa.struct([pa.field('a', pa.int8(), metadata={'b': rates.RATE})]))\ndef root(n): return T",
    "long metadata of Arrow's schema": "import pyarrow as pa, rates\nS = pa.schema([('a', pa.int8())], "
    "metadata={'b': 999 * 'x' + rates.RATE})\ndef root(n): return S.metadata",
    "a name of a folder": "from rates import RATE as PWD\ndef root(n): return PWD",
    "a field beside a function": "import dataclasses, rates\n@dataclasses.dataclass\nclass root:\n"
    "    f: object = lambda n: n\n    rate: str = rates.RATE\n    def __call__(k, n): return k.rate",
    "arguments of a late import": "def root(n):\n    from sys import argv\n    return argv[1]",
    "an attribute beside single dispatch": "import functools, rates\n@functools.singledispatch\n"
    "def root(n): return root.rate\nroot.rate = rates.RATE",
    "a key of cached": "import rates\nfrom lookupcache import cached\ndef by(rate): return lambda n: n // rate\n"
    "@cached(key=by(rates.RATE))\ndef first(n): return n\ndef root(n): return first(n)",
    "a formula among the names of a library": "import math, rates\nN = dict(vars(math))\n"
    "exec(f'def root(n): return n * {rates.RATE}', N)\nroot = N['root']",
    "a method among the names of a library": "import json, rates\nN = dict(vars(json))\n"
    "exec(f'class K:\\n    def root(k, n): return {rates.RATE}', N)\nroot = N['K'].root",
    "a value among the names of a library": "import math, rates\n"
    "root = eval('lambda n: n * rate', {**vars(math), 'rate': rates.RATE})",
    "a callee among the names of a library": "import math, rates\nN = dict(vars(math))\n"
    "exec(f'def one(n): return {rates.RATE}\\ndef root(n): return one(n)', N)\nroot = N['root']",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_value_counts_by_whatever_way_code_reads_it(module, installed, monkeypatch, way):
    found = []
    for rate in ("1", "1", "2"):
        monkeypatch.setenv("RATE", rate)
        monkeypatch.setattr(sys, "argv", ["job.py", rate])
        module(RATES, "rates")
        module("import rates", "beside")
        installed(RATES)
        found.append(identity_of_code(module(WAYS[way]).root))
    assert found[0].unknown is None
    assert found[0] == found[1] != found[2]


USED = {
    "flags": ("import enum\nclass F(enum.Flag):\n    A = 1\n    B = 2\ndef root(n): return F.A",
              "~F.A, F(3), hash(F.A)"),
    "a warning": ("import warnings\ndef f(n): warnings.warn('late')\ndef root(n): return globals()['f'](n)",
                  "root(1)"),
    "a cache": ("import functools\n@functools.cache\ndef root(n): return n", "root(1)"),
    "single dispatch": ("import functools\n@functools.singledispatch\ndef root(n): return n", "root(1)"),
    "an abstract class": ("import abc\nclass K(abc.ABC):\n    def __call__(k, n): return n\nroot = K()",
                          "isinstance(1, K), issubclass(int, K)"),
    "a generic class": ("import typing\nclass K(typing.Generic[typing.TypeVar('T')]):\n"
                        "    def __call__(k, n): return n\nroot = K()", "K[int]()"),
    "a lock of one's own": ("import threading\nclass K(threading.Semaphore): ...\nK = K(4)\ndef root(n): return K",
                            "K.acquire()"),
    "annotations": ("import typing\nclass K:\n    x: 'int'\ndef root(n: 'int'): return K",
                    "typing.get_type_hints(K)"),
    "a copy": ("import copy\nclass K:\n    def __call__(k, n): return n\nroot = K()", "copy.copy(root)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", USED)
@pytest.mark.filterwarnings("ignore:late")
def test_traces_that_using_code_leaves_do_not_count(module, kind):
    text, use = USED[kind]
    loaded = module(text)
    before = identity_of_code(loaded.root)
    eval(use, vars(loaded))
    assert before.unknown is None
    assert identity_of_code(loaded.root) == before


def test_code_is_unknown_if_its_file_was_edited_after_loading(module, tmp_path):
    before = module("def root(n): return 1").root
    assert identity_of_code(before).digest is not None
    (tmp_path / "module_of_test.py").write_text("def root(n): return 2")
    assert "was edited since" in identity_of_code(before).unknown


def test_a_dataclass_that_was_loaded_is_not_the_one_of_its_edited_file(module, tmp_path):
    text = "import dataclasses\n@dataclasses.dataclass\nclass root:\n    {}: int"
    before = module(text.format("net")).root
    (tmp_path / "module_of_test.py").write_text(text.format("gross"))
    old = identity_of_code(before)
    assert old != identity_of_code(module(text.format("gross")).root)


SHOP = """
price = lambda n: {rate}
both = [lambda n: n, lambda n: -n]
def made(rate):
    if rate == 1:
        def inner(n): return n
    else:
        def inner(n): return -n
    return inner
def by_default(rate):
    def inner(n, rate=rate): return rate
    return inner
def kind(given):
    class Inner:
        rate = given
    return Inner
"""
CHOSEN = {"a lambda": "both[{rate} - 1]", "within a function": "made({rate})", "by a default": "by_default({rate})",
          "a class": "kind({rate})"}  # fmt: skip


@pytest.fixture
def installed(module, tmp_path):
    """Import a text as a module of an installed package."""

    def load(text):
        (tmp_path / "site-packages").mkdir(exist_ok=True)
        (tmp_path / "site-packages" / "shop_of_test.py").write_text(text)
        loaded = module(text, "shop_of_test")
        loaded.__file__ = str(tmp_path / "site-packages" / "shop_of_test.py")
        return loaded

    return load


def test_only_a_functions_own_installed_package_counts_by_code(module, installed):
    def identity(rate, name):
        shop = installed(f"def price(n): return {rate}")
        root = module("import shop_of_test\ndef root(n): return shop_of_test.price(n)").root
        return identity_of_code(root if name == "root" else shop.price).digest

    assert identity(1, "root") == identity(2, "root") is not None
    assert identity(1, "price") != identity(2, "price")


@pytest.mark.parametrize(
    ("record", "counts"), [("rates-1.dist-info/RECORD", False), ("rates.egg-info/SOURCES.txt", True)]
)
def test_a_package_that_was_installed_beside_the_code_counts_by_its_name(module, monkeypatch, tmp_path, record, counts):
    monkeypatch.syspath_prepend(tmp_path / "image")
    (tmp_path / "image" / record).parent.mkdir(parents=True)
    (tmp_path / "image" / record).write_text("rates_of_test/__init__.py,,\n")
    (tmp_path / "image" / "rates_of_test").mkdir()
    found = []
    for rate in (1, 2):
        (tmp_path / "image" / "rates_of_test" / "__init__.py").write_text(f"def price(n): return {rate}")
        root = module("def root(n):\n    import rates_of_test\n    return rates_of_test.price(n)").root
        found.append(identity_of_code(root))
    assert found[0].unknown is None
    assert (found[0] != found[1]) is counts


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
def test_parts_of_a_package_without_a_name_count_by_code(module, installed, chosen):
    found = []
    for rate in (1, 1, 2):
        shop = installed(SHOP)
        root = module("def made(used):\n    def call(n): return used\n    return call").made
        found.append(identity_of_code(root(eval(chosen.format(rate=rate), vars(shop)))))
    assert found[0].unknown is None
    assert found[0] == found[1] != found[2]


LATER = {
    "by its text": ("import importlib\ndef root(n): return importlib.import_module('later').f(n)", "later.py"),
    "by a dunder": ("def root(n): return __import__('later').f(n)", "later.py"),
    "in folders without files": ("def root(n):\n    from parts.of import later\n    return later.f(n)",
                                 "parts/of/later.py"),
    "by a name elsewhere": ("import importlib\nNAMES = ['later']\n"
                            "def root(n): return [importlib.import_module(name).f(n) for name in NAMES]", "later.py"),
    "by a name that is a value": ("import importlib\nNAME = ''.join(['la', 'ter'])\n"
                                  "def root(n): return importlib.import_module(NAME).f(n)", "later.py"),
    "by a name in an object": ("import importlib, types\nOF = types.SimpleNamespace(plugin='la' + str('ter:f'))\n"
                               "def root(n): return importlib.import_module(OF.plugin.partition(':')[0]).f(n)",
                               "later.py"),
    "by a path to a function": ("import pkgutil\nPATH = 'later:f'\ndef root(n): return pkgutil.resolve_name(PATH)(n)",
                                "later.py"),
    "by a finder": ("def root(n):\n    import found_later\n    return found_later.f(n)", "src/found_later.py"),
    "named as one of Python's": ("import sched\ndef root(n): return sched.f(n)", "sched.py"),
    "in a try": ("def root(n):\n    try:\n        from ..above import f\n    except ImportError:\n"
                 "        from later import f\n    return f(n)", "later.py"),
}  # fmt: skip


class Finder:
    """Finds modules as that of an editable installation does."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        file = self.folder / f"{name}.py"
        return importlib.util.spec_from_file_location(name, file) if name.startswith("found") else None


@pytest.mark.parametrize("way", LATER)
def test_an_edit_of_a_module_counts_however_it_is_imported(module, monkeypatch, tmp_path, way):
    text, name = LATER[way]
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder(tmp_path / "src")])
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.delitem(sys.modules, "sched", raising=False)
    found = []
    for result in (1, 1, 2):
        (tmp_path / name).write_text(f"def f(n): return {result}")
        sys.modules.pop("sched", None)
        found.append(identity_of_code(module(text).root))
    assert found[0].unknown is None
    assert found[0] == found[1] != found[2]


FORMATTED = ["f'{n} {n}'", "f'{n}  {n}'", "f'{n}\\t{n}'", "f'{n=}'", "f'{n = }'", "f'{n} {n:> 4}'", "f'{n} {n:>4}'",
             "f'{n!r}'", "f'{{n}}'", "f'{n}'", "f' {n}'", "' '", "'  '"]  # fmt: skip


def test_blanks_count_in_texts_and_not_between_tokens(module):
    found = [identity_of_code(module(f"def root(n):\n    return {one}").root).digest for one in FORMATTED]
    assert None not in found
    assert len({*found}) == len(found)
    other = "\f# more\ndef root( n ):\n\treturn {} \\\n\n"
    assert [identity_of_code(module(other.format(one)).root).digest for one in FORMATTED] == found


KNOWN = {
    "a subscript": "os.environ['SHOP_A']",
    "a method": "os.environ.get('SHOP_A')",
    "a method with a default": "os.environ.get('SHOP_A', [str(n), 2][1])",
    "a method that changes it": "os.environ.pop('SHOP_A', None)",
    "a function": "os.getenv('SHOP_A')",
    "a function with a default": "os.getenv('SHOP_A', f(str(8080), g=[1]))",
    "a function with names": "os.getenv(key='SHOP_A', default=n + 1)",
    "a membership": "'SHOP_A' not in os.environ",
    "an imported mapping": "environ['SHOP_A']",
    "an imported function": "getenv('SHOP_A') or n",
    "bytes": "os.environb[b'SHOP_A']",
    "within a call": "f(os.environ['SHOP_A'], 2)",
    "of a lambda": "(lambda: os.environ['SHOP_A'].lower() == 'x')()",
    "in another module": "given_of_test.read()",
    "by Python's module for POSIX": "posix.environ[b'SHOP_A']",
    "a client": "boto3.session.Session().region_name",
    "a driver of a client": "sqlalchemy.create_engine('postgresql+psycopg:///shop').connect()",
    "a client of secrets": "hvac.Client().read(n)",
}
COMPUTED = {
    "a global": "os.environ[NAME]",
    "a sum": "os.environ['SHOP_' + n]",
    "a choice": "os.environ['SHOP_A' if n else 'SHOP_B']",
    "a default that is the name": "os.environ.get(n, 'SHOP_A')",
    "a sum before a default": "os.environ.get('SHOP_' + n, 2)",
    "another case": "os.environ['shop_a'.upper()]",
    "a formatted text": "os.getenv(f'SHARD{n}')",
    "a percent format": "os.getenv('%s_REGION' % n)",
    "all": "dict(os.environ)",
    "a loop": "[one for one in os.environ if one.startswith('SHOP_')]",
    "a merge": "{**os.environ}",
    "a copy": "os.environ.copy()['SHOP_A']",
    "a name after the default": "os.getenv(default='SHOP_A', key=NAME)",
    "a name after the default of a mapping": "os.environ.get(default='SHOP_A', key=n)",
    "a function by another name": "_get('SHOP_A')",
    "at import by another name": "SHOP",
    "at import by a decorator": "LOADED",
    "a private method": "K().find()",
    "a hook of an enum": "E.A",
    "a text that is run": "eval(TEXT)",
    "a text that is formatted": "'{o.environ[SHOP_A]}'.format(o=os)",
    "a method that a library calls": "K().format('{SHOP_A}')",
    "a class of another library": "Env()('SHOP_A')",
    "a bound method": "os.environ.get",
    "another function": "f(os.environ)",
    "any membership": "n in os.environ",
    "an attribute by a text": "getattr(os, 'environ')['SHOP_A']",
    "the names of a module": "vars(os)['environ']['SHOP_A']",
    "an expression": "eval(\"os.environ['SHOP_A']\")",
    "another name": "read['SHOP_A']",
    "a module by another name": "system.environ[n]",
    "a path": "os.path.expandvars('/data/$SHOP_A')",
    "a template": "string.Template('db-$SHOP_A').substitute(os.environ)",
    "a parser": "configparser.ConfigParser(os.environ)['DEFAULT']['shop_a']",
    "a function of the project": "get('SHOP_A')",
    "another module": "given_of_test.get('SHOP_A')",
    "an option's default": "click.option('--a', envvar='SHOP_A')",
    "a class of settings": "type('A', (BaseSettings,), {})().aws_region",
    "a library": "decouple.config('SHOP_A')",
    "a part of a library": "Config()('SHOP_A')",
    "an object of the project": "ENV.SHOP_A",
}
OF_TEST = ["SHOP_A", "AWS_REGION", "PGHOST", "VAULT_ADDR"]
READING = """
import os, string, configparser
import os as system
from os import environ, getenv
NAME = "SHOP_A"
def f(*values, **named): return values
"""


@pytest.mark.parametrize("way", KNOWN)
def test_a_variable_counts_if_its_name_stands_where_it_is_read(module, monkeypatch, way):
    module("import os\ndef read(): return os.environ['SHOP_A']", "given_of_test")
    imports = [name for name in ("posix", "boto3", "sqlalchemy", "hvac", "given_of_test") if name in KNOWN[way]]
    text = f"{READING}def root(n):\n    import {', '.join(imports or ['os'])}\n    return {KNOWN[way]}"
    root, found = module(text).root, []
    for value in ("1", "1", "2"):
        for name in OF_TEST:
            monkeypatch.setenv(name, value)
        found.append(stored_identity(root, None))
    assert found[0] == found[1] != found[2]


READERS = {
    "another name": "from given_of_test import read\n",
    "a function of the project": "def get(name): return os.environ[name]\n",
    "another module": "import given_of_test\n",
    "a function by another name": "from given_of_test import get as _get\n",
    "at import by another name": "from given_of_test import get as _get\nSHOP = _get('SHOP_A')\n",
    "at import by a decorator": "def run(f): return f()\n@run\ndef LOADED(): return os.environ[NAME]\n",
    "a private method": "class K:\n    def find(self): return self.__find()\n"
    "    def __find(self): return os.environ[NAME]\n",
    "a hook of an enum": "import enum\nclass E(enum.Enum):\n"
    "    def _generate_next_value_(n, *_): return os.environ[n]\n"
    "    PATH = enum.auto()\n    A = PATH\n",
    "a method that a library calls": "class K(string.Formatter):\n"
    "    def get_value(self, key, *_): return os.environ[key]\n",
    "a class of another library": "from environ import Env\n",
    "a text that is run": "TEXT = 'os.environ[NAME]'\n",
    "an option's default": "import click\n",
    "a class of settings": "from pydantic_settings import BaseSettings\n",
    "a library": "import decouple\n",
    "a part of a library": "from starlette.config import Config\n",
    "an object of the project": "class Env:\n    def __getattr__(self, name): return os.environ[name]\nENV = Env()\n",
}


@pytest.mark.parametrize("way", COMPUTED)
def test_nothing_is_shared_if_a_variables_name_is_computed(module, monkeypatch, way):
    module("import os\nread = os.environ\ndef get(name): return os.environ[name]", "given_of_test")
    module("def config(name): ...", "decouple")
    monkeypatch.setenv("SHOP_A", "1")
    for name, of in (("pydantic_settings", "BaseSettings"), ("starlette.config", "Config"), ("environ", "Env")):
        made = types.ModuleType(name)
        setattr(made, of, type(of, (), {}))
        monkeypatch.setitem(sys.modules, name, made)
    root = module(f"{READING}{READERS.get(way, '')}def root(n): return {COMPUTED[way]}").root
    assert "may read environment variables by" in str(identity_of_code(root).unknown)


def test_variables_that_code_does_not_name_do_not_count(module, monkeypatch):
    text = "import boto3, os, platform\ndef root(n): return os.environ['SHOP_A'], 'SHOP_B', platform.system()"
    root = module(text).root
    names = ("_", "PATH", "PWD", "SHOP_B", "SHOP_A_X", "AWS_SECRET_ACCESS_KEY", "AWS_BATCH_JOB_ID",
             "AWS_LAMBDA_LOG_STREAM_NAME")  # fmt: skip
    found = []
    for value in ("kx7", "kx8"):
        for name in names:
            monkeypatch.setenv(name, value)
        found.append(stored_identity(root, None))
    assert found[0] == found[1]


def test_each_name_of_a_choice_counts_or_the_names_are_not_known():
    """The compiler of later versions of Python writes the test for each of the names."""

    def root(n):
        return ("SHOP_A" if n else "SHOP_B") in os.environ

    assert variables_in(root.__code__) in (None, {"SHOP_A", "SHOP_B"})


def test_a_token_by_the_name_of_a_variable_does_not_count(module, monkeypatch):
    root, found = module("import os\ndef root(n): return os.environ['SHOP_TOKEN']").root, []
    for value in ("kx7", "kx8"):
        monkeypatch.setenv("SHOP_TOKEN", value)
        found.append(stored_identity(root, None))
    assert found[0] == found[1]


def test_rows_of_unknown_code_are_shared_only_in_one_application(monkeypatch):
    def table(*numbers):
        function = bound(array.array("q", numbers))
        return LookupTable.from_function("t", "id BIGINT", key="id", function=function)

    found = [table(1), table(1), table(2)]
    assert all("the closure of" in one.code_unknown for one in found)
    one, same, other = [table.source for table in found]
    assert one == same != other
    monkeypatch.setattr("lookupcache.connector.PROCESS", "another application")
    assert table(1).source not in (one, other)
    monkeypatch.undo()
    monkeypatch.setattr("os.getpid", lambda: -1)  # As in a process that was forked.
    assert table(1).source not in (one, other)


def test_reloaded_code_without_an_identity_is_another_table(module, monkeypatch):
    connector = (
        "import os\nfrom lookupcache.connector import Connector\nclass Source(Connector):\n"
        "    def __init__(self, schema, options):\n        super().__init__(schema, options)\n"
        "        self.rate, self.unknown = os.environ['RATE'], memoryview(b'x')\n"
        "    def lookup(self, request, keys): ..."
    )
    found = []
    for rate in ("1", "1", "2"):
        monkeypatch.setenv("RATE", rate)
        root = module(f"def root(n, unknown=memoryview(b'x')): return {rate}").root
        tables = [LookupTable.from_function("t", "id BIGINT", key="id", function=root)]
        module(connector)
        tables.append(LookupTable("t", "id BIGINT", {"connector": "module_of_test:Source"}))
        assert all("memoryview" in table.code_unknown for table in tables)
        found.append([table.source for table in tables])
    assert found[0] == found[1]
    assert all(one != other for one, other in zip(found[0], found[2], strict=True))


def test_a_version_counts_for_one_function_not_for_its_namesakes(module):
    functions = [module(f"def root(n): return {number}", f"shop_{number}_of_test").root for number in (1, 2)]
    options = {"lookup.cache": "LRU", "lookup.cache.path": "/tmp/kept", "lookup.cache.version": "1"}
    tables = [LookupTable.from_function("t", "n INT, v INT", key=["n"], function=f, options=options) for f in functions]
    assert tables[0].source != tables[1].source
    assert tables[0].connector.full_name == "shop_1_of_test.root"
    assert tables[0].connector.name == "root"


@pytest.mark.parametrize("kept", [False, True])
def test_tables_with_different_tokens_share_no_rows(tmp_path, kept):
    options = {"lookup.cache": "LRU", **({"lookup.cache.path": str(tmp_path)} if kept else {})}
    made = [Client("x", "a"), Client("x", "a"), Client("x", "b")]
    first, same, other = (
        LookupTable.from_function("t", "id BIGINT", key="id", function=one.find, options=options).source for one in made
    )
    assert first == same != other


TENANTS = """
from lookupcache.connector import Connector
class Client:
    def __call__(self, id): return [(id, self.tenant)]
    def find(self, id): return self(id)
CLIENT, TENANT = Client(), "ann"
def by_global(id): return [(id, TENANT)]
def closed(tenant):
    def find(id): return [(id, tenant)]
    def close(other):
        nonlocal tenant
        tenant = other
    return find, close
by_closure, close = closed("ann")
class Source(Connector):
    def __init__(self, schema, options):
        super().__init__(schema, options)
        self.tenant = TENANT
    def lookup(self, request, keys): ...
"""
TAKEN = {
    "a global": lambda of: of.by_global,
    "a closure": lambda of: of.by_closure,
    "an object": lambda of: of.CLIENT,
    "the object of a method": lambda of: of.CLIENT.find,
    "a connector": lambda of: of.Source,
}
REUSED = {
    "itself": lambda table: table,
    "other options": lambda table: table.with_options({"lookup.timeout": "9 s"}),
    "a config": lambda table: table.with_config(table.config),
    "a schema": lambda table: table.with_schema(table.schema),
    "an alias": lambda table: table.renamed("other"),
}


@pytest.mark.parametrize("reused", REUSED)
@pytest.mark.parametrize("taken", TAKEN)
def test_each_join_of_one_table_takes_the_values_of_its_time(module, taken, reused):
    tenants, found = module(TENANTS), []
    if taken == "a connector":
        table = LookupTable("t", "id BIGINT, name STRING", {"connector": "module_of_test:Source"})
    else:
        function = TAKEN[taken](tenants)
        table = LookupTable.from_function("t", "id BIGINT, name STRING", key="id", function=function)
    for tenant in ("ann", "ann", "bob", "ann"):
        tenants.TENANT = tenants.CLIENT.tenant = tenant
        tenants.close(tenant)
        found.append(plan_of(REUSED[reused](table), Wanted(key=("id",))).source)
    assert found[0] == found[1] == found[3] != found[2]


OF_EACH_TENANT = [
    ("store_name", "store"), ("store_name", "store cache_path"), ("store", ""), ("store", "cache_path"),
    ("cache_path", ""), ("version", "store"), ("version", "cache_path"), ("version", "store cache_path"),
]  # fmt: skip
"""An option by which a tenant's rows are told apart whatever his token, and those that all tenants have in common."""


@pytest.mark.parametrize("by", ["join", "cached"])
@pytest.mark.parametrize(("own", "shared"), OF_EACH_TENANT)
def test_an_option_of_each_tenant_counts_beside_what_tenants_share(module, monkeypatch, tmp_path, own, shared, by):
    separate_tokens(monkeypatch)
    tenants = module(
        "class Client:\n    def __init__(self, token): self.token = token\n"
        "    def find(self, id): return [{'id': id, 'name': self.token}]"
    )
    found = []
    for tenant in ("ann", "bob", "ann"):
        options = {name: str(tmp_path / name) for name in shared.split()}
        options[own] = f"{tmp_path}/{tenant}" if own in ("store", "cache_path") else tenant
        config, find = LookupConfig(cache="LRU", **options), tenants.Client(tenant).find
        if by == "cached":
            function = cached(config)(find)
            [row] = function(1)
            found.append((row["name"], function.metrics().requested_keys))
            function.close()
        else:
            table = LookupTable.from_function(
                "t", "id BIGINT, name STRING", key="id", function=find, options=config.to_json()
            )
            with LocalJoin(table, Wanted(key=("id",), columns=("name",))) as join:
                [[name]] = join.rows([(1,)])
                found.append((name, join.source.counters["requested_keys"]))
    assert found == [("ann", 1), ("bob", 1), ("ann", 0)]


ROTATED = {
    "an entry of a dict": "OF = [{'user': 'ann', 'password': RATE}]",
    "a URL": "OF = f'postgresql://ann:{RATE}@db/shop'",
    "a header": "OF = {'Authorization': f'Bearer {RATE}'}",
    "an argument": "import functools\nOF = functools.partial(print, api_key=RATE)",
    "an attribute": "import types\nOF = types.SimpleNamespace(user='ann', token=RATE)",
}


@pytest.mark.parametrize("form", ROTATED)
def test_a_credential_among_the_values_of_code_counts(module, monkeypatch, form):
    found = []
    for rate in ("1", "1", "2"):
        monkeypatch.setenv("RATE", rate)
        module(RATES, "rates")
        root = module(f"from rates import RATE\n{ROTATED[form]}\ndef root(n): return OF").root
        found.append(identity_of_code(root).digest)
    assert None not in found
    assert found[0] == found[1] != found[2]


SECRETS = """
import collections, functools
def made(token):
    return lambda n: token
def fetch(password, n):
    return n
Login = collections.namedtuple("Login", "user, password")
HEADERS = {"Authorization": VALUE}
URL = f"postgresql://ann:{VALUE}@db/shop"
DSN = f"host=db password={VALUE}"
TOKENS = [VALUE]
LOGIN = Login("ann", VALUE)
closure = made(VALUE)
by_argument = functools.partial(fetch, VALUE)
def by_default(n, password=VALUE): return n
"""


def test_no_password_is_in_a_hash_that_is_tried_fast(module, monkeypatch):
    """As one of a hundred words, it could be found from the name of a store's entry."""
    hashed_fast = []

    def watched(data, *, secret=False):
        hashed_fast.append(None if secret else json.dumps(data))
        return digest(data, secret=secret)

    monkeypatch.setattr("lookupcache.functions.identity.digest", watched)
    monkeypatch.setattr("builtins.VALUE", "kx7kx7", raising=False)
    module(SECRETS, "given_of_test")
    for name in ("HEADERS", "URL", "DSN", "TOKENS", "LOGIN", "closure", "by_argument", "by_default"):
        found = identity_of_code(module(f"from given_of_test import {name}\ndef root(n): return {name}").root)
        assert found.digest is not None, found.unknown
    assert {*hashed_fast} == {None}


def test_a_connector_counts_by_what_it_took_when_it_was_made(module, monkeypatch):
    text = """
import os
from lookupcache.connector import Connector
class Source(Connector):
    def __init__(self, schema, options):
        super().__init__(schema, options)
        self.tenant, self.types = os.environ["RATE"], schema.types
    def lookup(self, request, keys): ...
"""
    found = []
    for rate in ("1", "1", "2"):
        monkeypatch.setenv("RATE", rate)
        module(text)
        found.append(LookupTable("t", "id BIGINT", {"connector": "module_of_test:Source"}))
    assert found[0].code_unknown is None
    assert found[0].source == found[1].source != found[2].source


VERSIONED = {"lookup.cache": "LRU", "lookup.cache.path": "/tmp/kept", "lookup.cache.version": "1"}
DECLARED = {
    "own": ({"connector": "module_of_test:Source"}, True),
    "openai": ({"connector": "openai", "url": "http://h/v1", "task": "chat", "model": "m", "prompt": "{id}"}, True),
    "http": ({"connector": "http", "url": "http://h/{id}"}, False),
    "redis": ({"connector": "redis", "url": "redis://h", "key": "{id}"}, False),
}


@pytest.mark.parametrize("version", [{}, VERSIONED], ids=["", "version"])
@pytest.mark.parametrize("source", DECLARED)
def test_unread_columns_count_where_they_decide_the_rows(module, source, version):
    """A model is asked for all columns, and a connector of one's own may use its schema."""
    module(
        "from lookupcache.connector import Connector\n"
        "class Source(Connector):\n    def lookup(self, request, keys): return self.schema"
    )
    options, counts = DECLARED[source]
    stored = []
    for schema in ("id BIGINT, name STRING", "id BIGINT, name STRING, size INT"):
        table = LookupTable("t", schema, options | version)
        assert table.code_unknown is None
        stored.append(identity_of(plan_of(table, Wanted(key=("id",), columns=("name",)))))
    assert (stored[0] != stored[1]) == counts


def test_a_version_replaces_the_code():
    stated = {"lookup.cache": "LRU", "lookup.cache.path": "/tmp/kept", "lookup.cache.version": "2"}
    found = [
        LookupTable.from_function("t", "id BIGINT", key="id", function=bound(value), options=options)
        for value in (1, 2) for options in ({}, stated, {**stated, "lookup.cache.version": "3"})
    ]  # fmt: skip
    sources = [table.source for table in found]
    assert sources[1] == sources[4]
    assert len(set(sources)) == 4
    assert stored_identity(bound(1), "2") == stored_identity(bound(object()), "2") != stored_identity(bound(1), "3")


def test_only_its_options_identify_a_connector_of_lookupcache():
    sqlite = LookupTable("t", "id BIGINT", {"connector": "sql", "url": "sqlite:///x.db", "table": "t"})
    assert identity_of_connector(sqlite.connector) is None


def test_threads_read_modules_at_the_same_time(monkeypatch, tmp_path):
    """A garbage collection in one thread lets another run, in the middle of what Python does for a module's text."""
    lines = "\n".join(
        f"from os import path as p{at}\ndef f{at}(key):\n    return [key, (p{at}, key)]" for at in range(300)
    )
    names = [f"read_by_threads_{at}" for at in range(24)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"NAME = {name!r}\n{lines}\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = {}
    threads = [
        threading.Thread(target=lambda part=part: found.update({one: text_of_module(one) for one in part}))
        for part in (names[::3], names[1::3], names[2::3])
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(lambda *_: sum(range(200)))
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.callbacks.pop()
        sys.setswitchinterval(interval)
    assert {one: text and len(text.imports) for one, text in found.items()} == dict.fromkeys(names, 300)
