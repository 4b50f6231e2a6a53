"""Fuzz one target, guided by coverage where `atheris` is installed.

    python tests/fuzz/run.py TARGET SECONDS [SEED]

Without atheris (it has wheels for Linux only), inputs are the seeds with random changes, as in the normal test suite.
Atheris writes a failing input to the working directory, otherwise it is in the traceback's note: add it to the seeds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from changes import run_changes


def main(name: str, seconds: float, seed: int = 0) -> None:
    """Fuzz a target for some seconds."""
    try:
        import atheris
    except ImportError:
        from targets import SEEDS, TARGETS

        count = run_changes(TARGETS[name], SEEDS[name], seed, ends=time.monotonic() + seconds)
        print(f"{count} inputs of {name}, changed at random from seed {seed}")
        return
    with atheris.instrument_imports(
        include=["lookupcache", "lookupcache_http", "lookupcache_openai", "lookupcache_redis", "lookupcache_sql"]
    ):
        from targets import SEEDS, TARGETS
    _run_guided(atheris, TARGETS[name], SEEDS[name], seconds, seed)


def _run_guided(
    atheris: object, target: Callable[[bytes], None], seeds: list[bytes], seconds: float, seed: int
) -> None:
    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, one in enumerate(seeds):
        (corpus / str(number)).write_bytes(one)
    longest = max(4_000, *map(len, seeds))
    options = [
        f"-max_total_time={seconds:.0f}",
        f"-seed={seed + 1}",
        f"-max_len={longest}",
        "-timeout=20",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, "-verbosity=0", "-print_final_stats=1", str(corpus)], target)  # type: ignore[attr-defined]
    atheris.Fuzz()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
