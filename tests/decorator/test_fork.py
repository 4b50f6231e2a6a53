"""What a decorated function does in a forked process: none of its parent's threads, locks, loops and calls is there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from time_limit import LIMIT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]

START = """
import asyncio, multiprocessing, os, signal, sys, threading
from lookupcache import LookupConfig, cached
from lookupcache.resilience.rate_limit import RateLimit
signal.alarm(100)

def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            print(work(), flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)

held, let_go = threading.Event(), threading.Event()

def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert held.wait(10), "the thread has failed"

def hold(lock):
    with lock:
        held.set()
        let_go.wait(10)
"""

CASES = {
    "a pool that was used": (
        """
        f = cached(async_=True, timeout="20 s")(lambda key: key * 10)
        f(1)
        in_child(lambda: (f(1), f(2), f.cache_info().hits))
        """,
        "(10, 20, 1)",
    ),
    "a batch that fills in a pool": (
        """
        f = cached(async_=True, batch=True, batch_max_delay="1 ms", timeout="20 s")(lambda keys: keys)
        f([1])
        in_child(lambda: f([1, 2]))
        """,
        "[1, 2]",
    ),
    "a call that the parent is making": (
        """
        parent = os.getpid()
        @cached(timeout="1 h")
        def f(key):
            if os.getpid() == parent:
                held.set()
                let_go.wait(10)
            return key
        in_thread(lambda: f(1))
        in_child(lambda: f(1))
        """,
        "1",
    ),
    "a refresh that the parent is making": (
        """
        parent, now = os.getpid(), [0.0]
        @cached(refresh_after_write="10 s", timeout="1 h", clock=lambda: now[0])
        def f(key):
            if now[0] and os.getpid() == parent:
                held.set()
                let_go.wait(10)
            return now[0]
        f(1)
        now[0] = 11.0
        f(1), held.wait(10)
        in_child(lambda: (f(1), f.close(), f(1)))
        """,
        "(0.0, None, 11.0)",
    ),
    "the cache's lock": (
        """
        f = cached(lambda key: key)
        f(1)
        in_thread(lambda: hold(f.lookup._lock))
        in_child(lambda: (f(1), f(2), f.cache_info().currsize))
        """,
        "(1, 2, 2)",
    ),
    "all other locks": (
        """
        from contextlib import ExitStack
        from lookupcache import metrics
        from lookupcache.executor import nesting
        f = cached(max_retries=0, breaker_failures=5, rate_limit=1000, async_=True)(lambda key: key)
        f.lookup.resilience._limiter = RateLimit(1000)
        class All(ExitStack):
            def __enter__(self):
                own = [f.lookup.batches._lock, f.lookup.slots._lock, f.lookup.instances._lock]
                own += [f.lookup.function.adapter._lock]
                guards = [f.lookup.resilience._breaker._lock, f.lookup.resilience._limiter._memory.lock]
                for lock in own + guards + [nesting._lock, metrics._add_lock]:
                    self.enter_context(lock)
        in_thread(lambda: hold(All()))
        in_child(lambda: (f(1), f.metrics().calls))
        """,
        "(1, 1)",
    ),
    "the rate limit's file": (
        """
        import tempfile
        from pathlib import Path
        from lookupcache.resilience import rate_limit as rate
        f = cached(max_retries=0, rate_limit=1000)(lambda key: key)
        f.lookup.resilience._limiter = RateLimit(1000, Path(tempfile.mkdtemp()) / "slots")
        def hold_file():
            with rate._lock_file(f.lookup.resilience._limiter.path):
                held.set()
                let_go.wait(10)
        in_thread(hold_file)
        child = os.fork()
        if child == 0:
            let_go.wait(20)
            os._exit(0)
        let_go.set()
        print(f(1))
        os.kill(child, 9), os.waitpid(child, 0)
        """,
        "1",
    ),
    "a breaker's trial": (
        """
        parent, now, fails = os.getpid(), [0.0], [True]
        @cached(max_retries=0, breaker_failures=1, breaker_delay="10 s", clock=lambda: now[0])
        def f(key):
            if fails[0]:
                raise OSError("down")
            if os.getpid() == parent:
                held.set()
                let_go.wait(10)
            return key
        try:
            f(1)
        except OSError:
            now[0], fails[0] = 11.0, False
        in_thread(lambda: f(1))
        in_child(lambda: f(2))
        """,
        "2",
    ),
    "an event loop": (
        """
        @cached(timeout="1 h")
        async def f(key):
            if not held.is_set():
                held.set()
                await asyncio.Event().wait()
            return key
        in_thread(lambda: asyncio.run(f(1)))
        in_child(lambda: asyncio.run(f(1)))
        """,
        "1",
    ),
    "an object that is being opened": (
        """
        parent = os.getpid()
        class Shop:
            def open(self):
                if os.getpid() == parent:
                    held.set()
                    let_go.wait(10)
            def __call__(self, key):
                return key
        f = cached(timeout="1 h")(Shop)
        in_thread(lambda: f(1))
        in_child(lambda: f(1))
        """,
        "1",
    ),
    "a connection": (
        """
        class Shop:
            def open(self):
                self.opened_in = os.getpid()
            def __call__(self, key):
                return self.opened_in == os.getpid()
        f, g = cached(Shop), cached(Shop())
        f(1), g(1)
        in_child(lambda: (f(1), f(2), g(2)))
        """,
        "(True, True, True)",
    ),
    "the call that forks": (
        """
        @cached(timeout="20 s")
        def f(key):
            if key == 1:
                in_child(lambda: f(2))
            return key
        f(1)
        print(f(1), f(2), f.cache_info().misses)
        """,
        "2\n1 2 2",
    ),
    "multiprocessing": (
        """
        @cached(async_=True, timeout="20 s")
        def f(key):
            return (key, os.getpid() != parent)
        parent = os.getpid()
        f(1)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(f, [1, 2]))
        """,
        "[(1, False), (2, True)]",
    ),
    "an invalidation by another process": (
        """
        import time
        from pathlib import Path
        truth = Path("truth")
        def source(key):
            return int(truth.read_text())
        def change(value, work):
            truth.write_text(value)
            if os.fork() == 0:
                work()
                os._exit(0)
            os.wait()
        def seen(value):
            end = time.monotonic() + 20
            while f(1) != value and time.monotonic() < end:
                time.sleep(0.01)
            return f(1)
        truth.write_text("0")
        f = cached(scope="host", cache_path="cache", version="1")(source)
        f(1)
        def child():
            before = f(1), f.cache_info().misses
            change("1", lambda: f.invalidate(1))
            first = seen(1)
            change("2", f.clear)
            return *before, first, seen(2)
        in_child(child)
        """,
        "(0, 1, 1, 2)",
    ),
    "methods": (
        """
        class Shop:
            @cached
            def f(self, key):
                return (self.name, key)
        a = Shop()
        a.name = "a"
        a.f(1)
        in_child(lambda: (a.f(1), a.f(2), Shop.f.cache_info()[:2]))
        """,
        "(('a', 1), ('a', 2), (1, 2))",
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES)
def test_a_forked_process_is_not_blocked_by(case, tmp_path):
    code, expected = CASES[case]
    program = START + textwrap.dedent(code) + "\nos._exit(0)\n"
    ended = subprocess.run(
        [sys.executable, "-u", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT
    )
    assert (ended.stdout.strip(), ended.returncode) == (expected, 0), ended.stderr


_FORKS_WHILE_PANDAS_IS_IMPORTED = """
import os, signal, sys, threading
from pathlib import Path

folder = Path(sys.argv[1])
began, forked = folder / "began", folder / "forked"
(folder / "pandas.py").write_text(
    f"import pathlib, time\\npathlib.Path({str(began)!r}).touch()\\n"
    f"until = time.monotonic() + 0.5\\n"
    f"while time.monotonic() < until: time.sleep(0.01)\\n"
    "raise ImportError('there is none')"
)
sys.path.insert(0, str(folder))
from lookupcache import cached

def square(n):
    return n * n

shared = cached(scope="host", cache_path=str(folder / "cache"), max_rows=10)(square)
thread = threading.Thread(target=shared, args=(2,))
thread.start()
while not began.exists():
    pass
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(0 if shared(3) == 9 else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.extended
def test_a_fork_while_pyarrow_imports_pandas_does_not_hang(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(_FORKS_WHILE_PANDAS_IS_IMPORTED)
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], timeout=LIMIT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
