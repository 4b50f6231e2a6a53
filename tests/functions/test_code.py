"""The identity of code: another one for each way in which its meaning can change, the same for what is no change."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import subprocess
import sys
import threading
from types import ModuleType

import cloudpickle
import pytest

from lookupcache.functions import code
from lookupcache.functions.code import identify_code
from lookupcache.functions.identity import source_identity

PATHS = os.pathsep.join(filter(None, sys.path))

# Each defines `root`, the function, class or object whose identity is taken: before and after a change.
CHANGES = {
    "body": ("def root(n): return n + 1", "def root(n): return n + 2"),
    "type of a constant": ("def root(n): return n == 1", "def root(n): return n == 1.0"),
    "sign of a zero": ("def root(n): return 0.0", "def root(n): return -0.0"),
    "set of constants": ("def root(n): return n in {'a', 'b'}", "def root(n): return n in {'a', 'c'}"),
    "name that is called": ("def root(n): return n.lower()", "def root(n): return n.upper()"),
    "default": ("def root(n, more=1): return n + more", "def root(n, more=2): return n + more"),
    "keyword default": ("def root(n, *, more=1): return n + more", "def root(n, *, more=2): return n + more"),
    "default that is a function": (
        "def root(n, by=lambda n: 1): return by(n)",
        "def root(n, by=lambda n: 2): return by(n)",
    ),
    "order of parameters": ("def root(a, b): return a - b", "def root(b, a): return a - b"),
    "kind of parameter": ("def root(a): return a", "def root(*a): return a"),
    "async": ("def root(n): return n", "async def root(n): return n"),
    "what is tried": (
        "def root(n):\n try:\n  x = 1 / n\n  y = 2\n except ValueError: return 0\n return x",
        "def root(n):\n try:\n  x = 1 / n\n except ValueError: return 0\n y = 2\n return x",
    ),
    "comprehension": ("def root(n): return [x + 1 for x in n]", "def root(n): return [x + 2 for x in n]"),
    "nested function": (
        "def root(n):\n def inner(): return 1\n return inner()",
        "def root(n):\n def inner(): return 2\n return inner()",
    ),
    "class in a function": (
        "def root(n):\n class Inner:\n  rate = 1\n return Inner.rate",
        "def root(n):\n class Inner:\n  rate = 2\n return Inner.rate",
    ),
    "closure": (
        "def made(factor):\n return lambda n: n * factor\nroot = made(2)",
        "def made(factor):\n return lambda n: n * factor\nroot = made(3)",
    ),
    "function in a closure": (
        "def made(by):\n return lambda n: by(n)\nroot = made(lambda n: 1)",
        "def made(by):\n return lambda n: by(n)\nroot = made(lambda n: 2)",
    ),
    "list in a closure": (
        "def made(of):\n return lambda n: of[n]\nroot = made([1, {'a': (2,)}])",
        "def made(of):\n return lambda n: of[n]\nroot = made([1, {'a': (3,)}])",
    ),
    "closure that calls itself": (
        "def made():\n def count(n): return n and count(n - 1)\n return count\nroot = made()",
        "def made():\n def count(n): return n and count(n - 2)\n return count\nroot = made()",
    ),
    "decorator": (
        "import functools\ndef twice(f):\n @functools.wraps(f)\n"
        " def call(n): return f(n) * 2\n return call\n@twice\ndef root(n): return n",
        "import functools\ndef twice(f):\n @functools.wraps(f)\n"
        " def call(n): return f(n) * 3\n return call\n@twice\ndef root(n): return n",
    ),
    "what is decorated": (
        "import functools\ndef twice(f):\n @functools.wraps(f)\n"
        " def call(n): return f(n) * 2\n return call\n@twice\ndef root(n): return n",
        "import functools\ndef twice(f):\n @functools.wraps(f)\n"
        " def call(n): return f(n) * 2\n return call\n@twice\ndef root(n): return n + 1",
    ),
    "what is only in __wrapped__": (
        "import functools\n"
        "def one(f): return functools.wraps(f)(lambda n: call.__wrapped__(n))\ncall = root = one(lambda n: 1)",
        "import functools\n"
        "def one(f): return functools.wraps(f)(lambda n: call.__wrapped__(n))\ncall = root = one(lambda n: 2)",
    ),
    "lru_cache": (
        "import functools\n@functools.lru_cache\ndef root(n): return n",
        "import functools\n@functools.lru_cache\ndef root(n): return -n",
    ),
    "lru_cache that is called": (
        "import functools\n@functools.lru_cache\ndef one(n): return n\ndef root(n): return one(n)",
        "import functools\n@functools.lru_cache\ndef one(n): return -n\ndef root(n): return one(n)",
    ),
    "cached function that is called": (
        "from lookupcache import cached\n@cached()\ndef one(n): return n\ndef root(n): return one(n)",
        "from lookupcache import cached\n@cached()\ndef one(n): return -n\ndef root(n): return one(n)",
    ),
    "partial": (
        "import functools\nroot = functools.partial(lambda n, more: n + more, more=1)",
        "import functools\nroot = functools.partial(lambda n, more: n + more, more=2)",
    ),
    "partial's arguments": (
        "import functools\nroot = functools.partial(lambda more, n: n + more, 1)",
        "import functools\nroot = functools.partial(lambda more, n: n + more, 2)",
    ),
    "constant": ("RATE = 1\ndef root(n): return n * RATE", "RATE = 2\ndef root(n): return n * RATE"),
    "constant of a nested function": (
        "RATE = 1\ndef root(n): return [n * RATE for n in n]",
        "RATE = 2\ndef root(n): return [n * RATE for n in n]",
    ),
    "table of constants": (
        "RATES = {'a': [1]}\ndef root(n):\n found = {}\n found[n] = RATES[n]\n return found",
        "RATES = {'a': [2]}\ndef root(n):\n found = {}\n found[n] = RATES[n]\n return found",
    ),
    "set": ("WORDS = {'a', 1}\ndef root(n): return n in WORDS", "WORDS = {'b', 1}\ndef root(n): return n in WORDS"),
    "large list": (
        "MANY = list(range(50))\ndef root(n): return n in MANY",
        "MANY = list(range(51))\ndef root(n): return n in MANY",
    ),
    "table of rows": (
        "ROWS = {str(n): [n, (n, {'a': n})] for n in range(20)}\ndef root(n): return ROWS[n]",
        "ROWS = {str(n): [n, (n, {'a': n or 9})] for n in range(20)}\ndef root(n): return ROWS[n]",
    ),
    "types in a table of rows": (
        "ROWS = [[n, (n,)] for n in range(20)]\ndef root(n): return ROWS[n]",
        "ROWS = [[n, [n]] for n in range(20)]\ndef root(n): return ROWS[n]",
    ),
    "large set": (
        "WORDS = {str(n) for n in range(50)}\ndef root(n): return n in WORDS",
        "WORDS = {str(n) for n in range(51)}\ndef root(n): return n in WORDS",
    ),
    "long text": (
        "TEXT = 'a\\ud800' * 9_000 + 'b'\ndef root(n): return TEXT",
        "TEXT = 'a\\ud800' * 9_000 + 'c'\ndef root(n): return TEXT",
    ),
    "long bytes": (
        "TEXT = bytearray(20_000)\ndef root(n): return TEXT",
        "TEXT = bytes(20_000)\ndef root(n): return TEXT",
    ),
    "pattern": (
        "import re\nWORD = re.compile('a')\ndef root(n): return WORD.match(n)",
        "import re\nWORD = re.compile('a', re.I)\ndef root(n): return WORD.match(n)",
    ),
    "time": (
        "import datetime as dt\nSINCE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)\ndef root(n): return n > SINCE",
        "import datetime as dt\nSINCE = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)\ndef root(n): return n > SINCE",
    ),
    "lambda in a constant": (
        "RULES = {'a': lambda n: 1}\ndef root(n): return RULES['a'](n)",
        "RULES = {'a': lambda n: 2}\ndef root(n): return RULES['a'](n)",
    ),
    "getter in a constant": (
        "import operator\nBY = operator.itemgetter('a')\ndef root(n): return BY(n)",
        "import operator\nBY = operator.itemgetter('b')\ndef root(n): return BY(n)",
    ),
    "enum": (
        "import enum\nclass Kind(enum.Enum):\n A = 1\ndef root(n): return Kind.A.value",
        "import enum\nclass Kind(enum.Enum):\n A = 2\ndef root(n): return Kind.A.value",
    ),
    "method of an enum": (
        "import enum\nclass Kind(enum.Enum):\n A = 1\n def rate(self): return 1\ndef root(n): return Kind.A.rate()",
        "import enum\nclass Kind(enum.Enum):\n A = 1\n def rate(self): return 2\ndef root(n): return Kind.A.rate()",
    ),
    "member of an enum in a default": (
        "import enum\nclass Kind(enum.Enum):\n A = 1\n B = 2\ndef root(n, kind=Kind.A): return kind",
        "import enum\nclass Kind(enum.Enum):\n A = 1\n B = 2\ndef root(n, kind=Kind.B): return kind",
    ),
    "named tuple": (
        "from typing import NamedTuple\nclass Row(NamedTuple):\n a: int = 1\ndef root(n): return Row()",
        "from typing import NamedTuple\nclass Row(NamedTuple):\n a: int = 2\ndef root(n): return Row()",
    ),
    "helper": ("def root(n): return one(n)\ndef one(n): return 1", "def root(n): return one(n)\ndef one(n): return 2"),
    "helper of a helper": (
        "def root(n): return one(n)\ndef one(n): return two(n)\ndef two(n, more=1): return more",
        "def root(n): return one(n)\ndef one(n): return two(n)\ndef two(n, more=2): return more",
    ),
    "helpers that call each other": (
        "def root(n): return one(n)\ndef one(n): return root(n) or 1",
        "def root(n): return one(n)\ndef one(n): return root(n) or 2",
    ),
    "attribute of a function": (
        "def root(n): return root.rate\nroot.rate = 1",
        "def root(n): return root.rate\nroot.rate = 2",
    ),
    "object in a constant": (
        "class Rate:\n def __init__(self, of): self.of = of\nRATE = Rate(1)\ndef root(n): return RATE.of",
        "class Rate:\n def __init__(self, of): self.of = of\nRATE = Rate(2)\ndef root(n): return RATE.of",
    ),
    "class of an object in a constant": (
        "class Rate:\n def of(self): return 1\nRATE = Rate()\ndef root(n): return RATE.of()",
        "class Rate:\n def of(self): return 2\nRATE = Rate()\ndef root(n): return RATE.of()",
    ),
    "slots": (
        "class Rate:\n __slots__ = ('of',)\nRATE = Rate()\nRATE.of = 1\ndef root(n): return RATE.of",
        "class Rate:\n __slots__ = ('of',)\nRATE = Rate()\nRATE.of = 2\ndef root(n): return RATE.of",
    ),
    "text of a class": (
        "class Name(str):\n pass\nNAME = Name('a')\ndef root(n): return NAME",
        "class Name(str):\n pass\nNAME = Name('b')\ndef root(n): return NAME",
    ),
    "method": ("class root:\n def __call__(self, n): return 1", "class root:\n def __call__(self, n): return 2"),
    "default of a method": (
        "class root:\n def __call__(self, n, more=1): return more",
        "class root:\n def __call__(self, n, more=2): return more",
    ),
    "constant that a method reads": (
        "RATE = 1\nclass root:\n def __call__(self, n): return RATE",
        "RATE = 2\nclass root:\n def __call__(self, n): return RATE",
    ),
    "attribute of a class": ("class root:\n rate = 1", "class root:\n rate = 2"),
    "property": (
        "class root:\n @property\n def rate(self): return 1",
        "class root:\n @property\n def rate(self): return 2",
    ),
    "setter": (
        "class root:\n def _set(self, to): self.x = 1\n rate = property(None, _set)\n _set = None",
        "class root:\n def _set(self, to): self.x = 2\n rate = property(None, _set)\n _set = None",
    ),
    "cached_property": (
        "import functools\nclass root:\n @functools.cached_property\n def rate(self): return 1",
        "import functools\nclass root:\n @functools.cached_property\n def rate(self): return 2",
    ),
    "staticmethod": (
        "class root:\n @staticmethod\n def rate(): return 1",
        "class root:\n @staticmethod\n def rate(): return 2",
    ),
    "classmethod": (
        "class root:\n @classmethod\n def rate(cls): return 1",
        "class root:\n @classmethod\n def rate(cls): return 2",
    ),
    "kind of method": ("class root:\n def rate(): return 1", "class root:\n @staticmethod\n def rate(): return 1"),
    "method with a decorator": (
        "import functools\n"
        "def by(n): return lambda f: functools.wraps(f)(lambda *a: f(*a) * n)\n"
        "class root:\n @by(1)\n def rate(self): return 1",
        "import functools\n"
        "def by(n): return lambda f: functools.wraps(f)(lambda *a: f(*a) * n)\n"
        "class root:\n @by(2)\n def rate(self): return 1",
    ),
    "partialmethod": (
        "import functools\nclass root:\n def of(self, n): return n\n one = functools.partialmethod(of, 1)",
        "import functools\nclass root:\n def of(self, n): return n\n one = functools.partialmethod(of, 2)",
    ),
    "singledispatchmethod": (
        "import functools\nclass root:\n @functools.singledispatchmethod\n"
        " def of(self, n): return 0\n @of.register\n def _(self, n: int): return 1",
        "import functools\nclass root:\n @functools.singledispatchmethod\n"
        " def of(self, n): return 0\n @of.register\n def _(self, n: int): return 2",
    ),
    "singledispatch": (
        "import functools\n@functools.singledispatch\ndef root(n): return 0\n@root.register\ndef _(n: int): return 1",
        "import functools\n@functools.singledispatch\ndef root(n): return 0\n@root.register\ndef _(n: int): return 2",
    ),
    "nested class": ("class root:\n class Inner:\n  rate = 1", "class root:\n class Inner:\n  rate = 2"),
    "base class": (
        "class Base:\n def rate(self): return 1\nclass root(Base): pass",
        "class Base:\n def rate(self): return 2\nclass root(Base): pass",
    ),
    "order of base classes": (
        "class A: x = 1\nclass B: x = 2\nclass root(A, B): pass",
        "class A: x = 1\nclass B: x = 2\nclass root(B, A): pass",
    ),
    "metaclass": (
        "class Meta(type):\n def rate(cls): return 1\nclass root(metaclass=Meta): pass",
        "class Meta(type):\n def rate(cls): return 2\nclass root(metaclass=Meta): pass",
    ),
    "dataclass default": (
        "from dataclasses import dataclass\n@dataclass\nclass root:\n rate: int = 1",
        "from dataclasses import dataclass\n@dataclass\nclass root:\n rate: int = 2",
    ),
    "dataclass default factory": (
        "from dataclasses import dataclass, field\n@dataclass\n"
        "class root:\n rate: list = field(default_factory=lambda: [1])",
        "from dataclasses import dataclass, field\n@dataclass\n"
        "class root:\n rate: list = field(default_factory=lambda: [2])",
    ),
    "dataclass method": (
        "from dataclasses import dataclass\n@dataclass\nclass root:\n rate: int = 1\n def __call__(self, n): return n",
        "from dataclasses import dataclass\n@dataclass\nclass root:\n rate: int = 1\n def __call__(self, n): return -n",
    ),
    "dataclass order of fields": (
        "from dataclasses import dataclass\n@dataclass\nclass root:\n a: int = 1\n b: int = 1",
        "from dataclasses import dataclass\n@dataclass\nclass root:\n b: int = 1\n a: int = 1",
    ),
    "callable object": (
        "class Kind:\n def __call__(self, n): return 1\nroot = Kind()",
        "class Kind:\n def __call__(self, n): return 2\nroot = Kind()",
    ),
    "property of a callable object": (
        "class Kind:\n rate = property(lambda self: 1)\n def __call__(self, n): return self.rate\nroot = Kind()",
        "class Kind:\n rate = property(lambda self: 2)\n def __call__(self, n): return self.rate\nroot = Kind()",
    ),
    "attribute of a callable object": (
        "class Kind:\n def __init__(self, rate): self.rate = rate\n"
        " def __call__(self, n): return self.rate\nroot = Kind(1)",
        "class Kind:\n def __init__(self, rate): self.rate = rate\n"
        " def __call__(self, n): return self.rate\nroot = Kind(2)",
    ),
    "class of a bound method": (
        "class Kind:\n def rate(self): return 1\n def of(self, n): return self.rate()\nroot = Kind().of",
        "class Kind:\n def rate(self): return 2\n def of(self, n): return self.rate()\nroot = Kind().of",
    ),
    "object of a bound method": (
        "class Kind:\n"
        " def __init__(self, rate): self.rate = rate\n def of(self, n): return self.rate\nroot = Kind(1).of",
        "class Kind:\n"
        " def __init__(self, rate): self.rate = rate\n def of(self, n): return self.rate\nroot = Kind(2).of",
    ),
    "class of a classmethod": (
        "class Kind:\n rate = 1\n @classmethod\n def of(cls, n): return cls.rate\nroot = Kind.of",
        "class Kind:\n rate = 2\n @classmethod\n def of(cls, n): return cls.rate\nroot = Kind.of",
    ),
    "method of a list": ("root = [1, 2].count", "root = [1, 3].count"),
    "method that lru_cache wraps": (
        "import functools\nclass root:\n @functools.lru_cache\n def __call__(self, n): return 1",
        "import functools\nclass root:\n @functools.lru_cache\n def __call__(self, n): return 2",
    ),
    "method that is a partial": (
        "import functools\nclass root:\n __call__ = functools.partial(max, 1)",
        "import functools\nclass root:\n __call__ = functools.partial(max, 2)",
    ),
    "version": (
        "__version__ = 1\ndef root(n): return __version__",
        "__version__ = 2\ndef root(n): return __version__",
    ),
    "attribute of a class with a special name": ("class root: __rate__ = 1", "class root: __rate__ = 2"),
    "object that chooses what is pickled": (
        "class Rate:\n def __init__(self, of): self.of = of\n"
        " def __getstate__(self): return {'of': self.of}\nRATE = Rate(1)\ndef root(n): return RATE.of",
        "class Rate:\n def __init__(self, of): self.of = of\n"
        " def __getstate__(self): return {'of': self.of}\nRATE = Rate(2)\ndef root(n): return RATE.of",
    ),
    "methods of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass root:\n rate: int = 1",
        "from dataclasses import dataclass\n@dataclass(eq=False)\nclass root:\n rate: int = 1",
    ),
    "kind of property": (
        "class Kind(property):\n def __init__(self, of, more): super().__init__(of); self.more = more\n"
        "class root:\n rate = Kind(len, 1)",
        "class Kind(property):\n def __init__(self, of, more): super().__init__(of); self.more = more\n"
        "class root:\n rate = Kind(len, 2)",
    ),
    "slice": ("PART = slice(1)\ndef root(n): return n[PART]", "PART = slice(2)\ndef root(n): return n[PART]"),
    "function of Python": ("import math\nroot = math.floor", "import math\nroot = math.ceil"),
    "function of Python that is called": (
        "from math import floor as to\ndef root(n): return to(n)",
        "from math import ceil as to\ndef root(n): return to(n)",
    ),
}  # fmt: skip

# The same, for what changes nothing.
KEPT = {
    "comment": ("def root(n): return n", "# More.\ndef root(n):\n    # Nothing.\n    return n"),
    "docstring": ("def root(n): print(n)", "def root(n):\n    'What it does.'\n    print(n)"),
    "docstring of a class": ("class root:\n rate = 1", "class root:\n 'What it does.'\n rate = 1"),
    "docstring of a class in a function": (
        "def root(n):\n class Inner:\n  rate = len\n return Inner",
        "def root(n):\n\n class Inner:\n  'What it does.'\n  rate = len\n return Inner",
    ),
    "lines": (
        "def root(n): return [x for x in n] or max(n, 1)",
        "\n\n\ndef root(n):\n    return [\n        x\n        for x in n\n    ] or max(\n        n,\n        1,\n    )",
    ),
    "lines of a class": (
        "class root:\n def a(self): return 1\n class Inner: b = 1",
        "\n\nclass root:\n\n def a(self):\n  return 1\n\n class Inner:\n  b = 1",
    ),
    "lines of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass root:\n rate: int = 1",
        "from dataclasses import dataclass\n\n\n@dataclass\nclass root:\n 'What it is.'\n rate: int = 1",
    ),
    "unrelated function": ("def root(n): return n", "def root(n): return n\ndef other(n): return 1"),
    "unrelated constant": ("RATE = 1\ndef root(n): return n", "RATE = 2\ndef root(n): return n"),
    "constant whose name is that of an attribute": (
        "real = 1\ndef root(n): return n.real",
        "real = 2\ndef root(n): return n.real",
    ),
    "order of methods": (
        "class root:\n def a(self): return 1\n def b(self): return 2",
        "class root:\n def b(self): return 2\n def a(self): return 1",
    ),
    "annotation": ("def root(n): return n", "def root(n: int) -> int: return n"),
    "dict that the function fills": (
        "KNOWN = {}\ndef root(n):\n if n not in KNOWN: KNOWN[n] = 1\n return KNOWN[n]",
        "KNOWN = {5: 1}\ndef root(n):\n if n not in KNOWN: KNOWN[n] = 1\n return KNOWN[n]",
    ),
    "counts in a dict": (
        "CALLS = {'all': 0}\ndef root(n):\n CALLS['all'] += 1\n return n",
        "CALLS = {'all': 7}\ndef root(n):\n CALLS['all'] += 1\n return n",
    ),
    "list that a helper fills": (
        "KNOWN = []\ndef root(n): return KNOWN and one(n)\ndef one(n): KNOWN.append(n)",
        "KNOWN = [1]\ndef root(n): return KNOWN and one(n)\ndef one(n): KNOWN.append(n)",
    ),
    "variable that the function assigns": (
        "client = None\ndef root(n):\n global client\n client = client or n\n return client",
        "client = 'x'\ndef root(n):\n global client\n client = client or n\n return client",
    ),
    "list of a class that a method fills": (
        "class root:\n known = []\n def __call__(self, n): self.known.append(n)",
        "class root:\n known = [1]\n def __call__(self, n): self.known.append(n)",
    ),
    "secret": (
        "API_KEY = 'a'\ndef root(n): return n, API_KEY",
        "API_KEY = 'b'\ndef root(n): return n, API_KEY",
    ),
    "file": ("def root(n): return __file__\n__file__ = 'a'", "def root(n): return __file__\n__file__ = 'b'"),
    "objects without a value": (
        "import threading\nLOCK = threading.Lock()\ndef root(n):\n with LOCK: return n",
        "import threading\nMORE = threading.Lock()\nLOCK = threading.Lock()\ndef root(n):\n with LOCK: return n",
    ),
    "what lru_cache keeps": (
        "import functools\n@functools.lru_cache\ndef one(n): return n\ndef root(n): return one(n)",
        "import functools\n@functools.lru_cache\ndef one(n): return n\ndef root(n): return one(n)\none(1)",
    ),
}  # fmt: skip


def root_of(text, name="module_with_code"):
    module = ModuleType(name)
    exec(text, module.__dict__)
    return module.__dict__["root"]


@pytest.fixture(autouse=True)
def module(monkeypatch):
    monkeypatch.setitem(sys.modules, "module_with_code", ModuleType("module_with_code"))


@pytest.mark.parametrize("change", CHANGES)
def test_code_that_means_something_else_has_another_identity(change):
    before, after = (identify_code(root_of(text)).digest for text in CHANGES[change])
    assert before != after
    assert [identify_code(root_of(text)).digest for text in CHANGES[change]] == [before, after]


@pytest.mark.parametrize("change", KEPT)
def test_code_that_means_the_same_has_the_same_identity(change):
    before, after = (identify_code(root_of(text)) for text in KEPT[change])
    assert before == after


UNPICKLED = {
    "method that lru_cache wraps", "kind of property",
    "lru_cache", "lru_cache that is called", "what lru_cache keeps", "cached_property", "singledispatchmethod",
    "singledispatch", "objects without a value",
}  # fmt: skip
READ = """
import pickle, sys
from types import ModuleType
from lookupcache.functions.code import identify_code
sys.modules["module_with_code"] = ModuleType("module_with_code")
texts, roots = pickle.load(sys.stdin.buffer)
for text in texts:
    module = ModuleType("module_with_code")
    exec(text, module.__dict__)
    print(identify_code(module.root).digest)
for root in roots:
    print(identify_code(pickle.loads(root)).digest)
"""


def test_another_process_with_another_seed_has_the_same_identities():
    """Functions of a script and of a notebook come there with their code, and what it uses, in a pickle."""
    named = [(name, text) for name, pair in (CHANGES | KEPT).items() for text in pair]
    texts = [text for _, text in named]
    roots = [root_of(text, "__main__") for name, text in named if name not in UNPICKLED]
    environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONHASHSEED": "77"}
    told = subprocess.run(
        [sys.executable, "-B", "-c", READ],
        input=pickle.dumps([texts, [cloudpickle.dumps(root) for root in roots]]),
        env=environment, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    here = [*map(root_of, texts), *roots]
    assert told.stdout.decode().split() == [identify_code(root).digest for root in here]


def test_what_refers_to_itself_comes_to_an_end():
    itself: list = [1]
    itself.append({"inner": itself})
    pairs: list = [1]
    for _ in range(60):
        pairs = [pairs, pairs]  # Written in full, it would have 2 ** 60 items.
    partial = functools.partial(print)
    partial.__setstate__((partial, (), {}, {}))

    def root(n, of=(itself, pairs)):
        return root(n), itself, partial

    assert identify_code(root) == identify_code(root)
    assert identify_code(root).unknown == ()


def test_long_chains_and_deep_values_come_to_an_end():
    deep: list = []
    for _ in range(2_000):
        deep = [deep]
    assert identify_code(lambda n, of=deep: of).unknown == ("list",)
    chain, kind = root_of("def root(n): return n"), object
    for number in range(600):
        chain = (lambda inner: lambda n: inner(n))(chain)
        kind = type(f"Kind{number}", (kind,), {"rate": number})
    assert identify_code(chain) == identify_code(chain)
    assert identify_code(kind) == identify_code(kind)


def test_objects_whose_values_are_not_known_are_reported_where_they_are_bound():
    class Client:
        def __init__(self, url):
            self.url = url

        def __repr__(self):
            raise AssertionError("it may show a secret, or an address")

    lock, client = threading.Lock(), Client("a")
    assert identify_code(lambda n: lock).unknown == ("_thread.lock",)
    assert identify_code(lambda n, lock=lock: n).unknown == ("_thread.lock",)
    assert identify_code(functools.partial(print, lock)).unknown == ("_thread.lock",)
    assert [one.rpartition(".")[2] for one in identify_code(lambda n, to=client: to).unknown] == ["Client"]
    assert identify_code(client.__init__) != identify_code(Client("b").__init__)
    # A helper's own are not: only whose they are is taken from their class.
    helper = "import threading\ndef one(n, lock=threading.Lock()): return n\ndef root(n): return one(n)"
    assert identify_code(root_of(helper)).unknown == ()


def test_an_object_is_asked_for_nothing_by_its_own_code():
    text = """
class Proxy:
    def __getattr__(self, name): raise AssertionError(name)
    def __eq__(self, other): raise AssertionError
    __hash__ = None
    def __len__(self): raise AssertionError
    def __iter__(self): raise AssertionError
    @property
    def __class__(self): raise AssertionError
PROXY = Proxy()
class Name(str):
    def __str__(self): raise AssertionError
    __repr__ = __str__
NAME = Name("a")
def root(n, name=NAME): return PROXY, NAME
"""
    assert identify_code(root_of(text)) == identify_code(root_of(text))
    assert identify_code(root_of(text)) != identify_code(root_of(text.replace('Name("a")', 'Name("b")')))


def test_modules_of_the_same_package_are_followed_and_installed_ones_are_not(monkeypatch):
    def root(rate, file):
        package, inner = ModuleType("shop"), ModuleType("shop.prices")
        other = ModuleType("other")
        exec(f"def price(n): return n * {rate}\ndef unused(n): return {rate}", inner.__dict__)
        exec("def price(n): return n", other.__dict__)
        package.prices, other.__file__, other.rate = inner, file, rate
        package.other = other
        for module in (package, inner, other):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        exec("import shop\ndef root(n): return shop.prices.price(n)", package.__dict__)
        exec("import other\ndef by_other(n): return other.rate", package.__dict__)
        return identify_code(package.root).digest, identify_code(package.by_other).digest

    installed = "/usr/lib/python3/site-packages/other.py"
    (one, by_other), (two, by_changed) = root(1, installed), root(2, installed)
    assert one != two
    assert by_other == by_changed
    assert root(1, "/job/other.py")[1] != root(2, "/job/other.py")[1]


@pytest.mark.parametrize("by", ["from helpers.prices import price", "from helpers import prices; price = prices.price"])
def test_a_module_that_a_function_imports_when_it_runs_is_followed_without_being_imported(tmp_path, monkeypatch, by):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helpers").mkdir()
    (tmp_path / "rates.py").write_text("raise AssertionError('imported')")
    root = root_of(f"def root(n):\n import numpy.fft\n {by}\n return price(n)")

    def identity(rate, comment=""):
        text = f"from rates import RATE\ndef price(n):\n  {comment!r}\n  return n * {rate}"
        (tmp_path / "helpers" / "prices.py").write_text(text)
        importlib.invalidate_caches()
        return identify_code(root)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert identity(2) != identity(3) == identity(3, "What it costs.")
    (tmp_path / "rates.py").write_text("RATE = 5")
    importlib.invalidate_caches()
    before = identify_code(root)
    assert before != identity(4)
    before = identity(4)
    try:
        assert root(2) == 8
        assert identify_code(root) == before
    finally:
        for name in ("rates", "helpers", "helpers.prices"):
            sys.modules.pop(name, None)


def test_a_module_that_is_a_value_is_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    text = "def made():\n import prices\n return lambda n: prices.price(n)\nroot = made()"
    identities = []
    for rate in (1, 2):
        (tmp_path / "prices.py").write_text(f"def price(n): return n * {rate}")
        importlib.invalidate_caches()
        identities.append(identify_code(root_of(text)).digest)
        del sys.modules["prices"]
    assert identities[0] != identities[1]


@pytest.mark.parametrize(
    "text",
    [
        "import enum\nclass Kind(enum.Enum):\n A = 1\n value = name = property(lambda self: self.no)\nVALUE = Kind.A",
        "class Meta(type):\n def __getattribute__(cls, name): raise AssertionError\n"
        "class Kind(metaclass=Meta): pass\nVALUE = Kind()",
        "class Meta(type):\n def __hash__(cls): raise AssertionError\nclass Kind(metaclass=Meta): pass\nVALUE = Kind()",
        "class Kind: pass\nVALUE = Kind()\nVALUE.__dict__.update({1: 1, 'a': 1})",
        "class Kind:\n def __repr__(self): raise AssertionError\nVALUE = slice(Kind())",
        "VALUE = len\nfor _ in range(3_000): VALUE = staticmethod(VALUE)",
        "class Meta(type):\n def __eq__(cls, other): raise AssertionError\n __hash__ = type.__hash__\n"
        "class Kind(metaclass=Meta): pass\nVALUE = Kind()",
        "from types import ModuleType\nVALUE = ModuleType('x')\ndel VALUE.__name__",
        "import sys\nfrom types import ModuleType\nclass Lazy(ModuleType):\n"
        " def __getattr__(self, name): raise AssertionError\nVALUE = Lazy('os')",
        "class Kind: __dataclass_fields__ = 5\nVALUE = Kind()",
    ],
)
def test_no_value_fails_and_the_rest_of_the_function_counts(text):
    one, two = (identify_code(root_of(f"{text}\ndef root(n, value=VALUE): return VALUE, {n}")) for n in (1, 2))
    assert one.digest != two.digest


def test_an_object_that_has_any_attribute_has_an_identity_by_its_class():
    class Kind:
        def __getattr__(self, name):
            return threading.Lock()

        def __call__(self, n):
            return n

    assert source_identity(Kind(), "") == source_identity(Kind(), "")


def test_a_table_of_plain_rows_is_not_walked_row_by_row(monkeypatch):
    root = root_of("ROWS = {n: (n, [n, {'a': n}]) for n in range(2_000)}\ndef root(n): return ROWS[n]")
    walked = []
    value = code._Walk._value
    monkeypatch.setattr(code._Walk, "_value", lambda *given: (walked.append(0), value(*given))[1])
    assert identify_code(root) != identify_code(lambda n: n)
    assert len(walked) < 50
