"""Draw orders of operations for the caches and for `cached` by what they newly reach, with hypofuzz, for some minutes.

    python .ci/fuzz_states.py 60    an hour on each of the cores but one

The rules are those of `test_cache_states.py` and `test_cached_states.py`, whose runs in CI draw without regard to what
has been reached. What is found stays in `.hypothesis`: a later run goes on from there, and pytest replays failures, so
it tells at the end whether there is one.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATES = """
from hypothesis import settings
from test_cache_states import ColumnStates, RowStates, StringStates
from test_cached_states import AsyncCalls, Calls

for machine in (ColumnStates, StringStates, RowStates, Calls, AsyncCalls):
    machine.TestCase.settings = settings(deadline=None, stateful_step_count=50)
    globals()[f"Test{machine.__name__}"] = machine.TestCase
"""
COMMAND = "from hypothesis.extra.cli import main; main()"


def main(minutes: float) -> int:
    """Fuzz, count, and replay what failed; return pytest's exit code."""
    folders = [ROOT, ROOT / "connectors", *(ROOT / "tests" / name for name in ("cache", "decorator", "support"))]
    sys.path += map(str, folders)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder, "test_states.py")
        tests.write_text(STATES)
        pytest = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", str(tests)]
        cores = max((os.cpu_count() or 1) - 1, 1)
        line = [sys.executable, "-c", COMMAND, "fuzz", "--no-dashboard", "-n", str(cores), "--", *pytest]
        fuzzer = subprocess.Popen(line, cwd=ROOT, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # It ends by itself only where every test has failed.
            fuzzer.wait(60 * minutes)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(fuzzer.pid, signal.SIGKILL)
        fuzzer.wait()
        print(f"{count(pytest)} orders of operations that hypofuzz chose by the code that they reach")
        replay = [sys.executable, "-m", "pytest", "-q", *pytest]
        return subprocess.run(replay, cwd=ROOT, env={**os.environ, "LOOKUPCACHE_SCALE": "1"}).returncode


def count(pytest: list[str]) -> int:
    """Return how many examples the fuzzer has run, as its database tells; it keeps what earlier runs did."""
    from hypofuzz.collection import collect_tests
    from hypofuzz.database import HypofuzzDatabase
    from hypothesis import settings

    with contextlib.redirect_stdout(io.StringIO()):
        targets = collect_tests(pytest).fuzz_targets
    database = HypofuzzDatabase(settings().database)
    by_worker: dict[tuple[bytes, str], int] = {}
    for target in targets:
        for report in database.reports.fetch(target.database_key):
            run = target.database_key, report.worker_uuid
            by_worker[run] = max(by_worker.get(run, 0), sum(report.status_counts.values()))
    return sum(by_worker.values())


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
