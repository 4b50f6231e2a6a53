"""Set up this checkout and run it; needs Python 3.11 or later and nothing else.

    python3 .ci/dev.py demo [OPTIONS]     real flights joined with a real database
    python3 .ci/dev.py test [ARGUMENTS]   the tests, through pytest
    python3 .ci/dev.py check              ruff, formatting, mypy
    python3 .ci/dev.py bench NAME         a benchmark of bench/

The first run makes `.venv` and installs what the command needs; later ones install again only when
pyproject.toml or constraints.txt changed.
"""

import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"
EXTRAS = {"demo": ["demo"], "test": ["test"], "check": ["check"], "bench": ["bench"]}
BESIDE = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
"""Without further choice, tests run in two processes, each with a Spark of its own."""
HAS_JAVA = """
from lookupcache.errors import JavaMissing
from lookupcache.java import local_spark_environment
try:
    local_spark_environment()
except JavaMissing:
    raise SystemExit(3)
"""


def main(arguments):
    """Run one command; return its exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036
        return f"lookupcache needs Python 3.11 or later; this is {sys.version.split()[0]}."
    if not arguments or arguments[0] not in EXTRAS:
        return __doc__
    command, rest = arguments[0], arguments[1:]
    install(EXTRAS[command])
    if command != "check" and run([PYTHON, "-c", HAS_JAVA]) == 3:
        install(["java"])
    return max(run(line) for line in lines(command, rest))


def lines(command, rest):
    """Return the command lines that a command stands for."""
    if command == "demo":
        return [[PYTHON, "-m", "lookupcache", "demo", *rest]]
    if command == "test":
        return [[PYTHON, "-m", "pytest", *(BESIDE if all(word.startswith("--") for word in rest) else []), *rest]]
    if command == "bench":
        return [[PYTHON, "-m", f"bench.{name}", *options] for name, *options in [rest or ["join"]]]
    tools = [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]]
    return [[PYTHON, "-m", *tool] for tool in tools]


def install(extras):
    """Bring `.venv` up to date with these extras; those installed before stay."""
    now = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")))
    state = {"files": now.hexdigest(), "python": sys.version}
    done = json.loads(STAMP.read_text()) if STAMP.exists() else {"extras": []}
    wanted = sorted({*done["extras"], *extras})
    if done == {**state, "extras": wanted}:
        return
    if done.get("python") != sys.version:
        make_venv()
    target = f"{ROOT}[{','.join(wanted)}]"
    print(f"Installing {', '.join(extras)} into {VENV.relative_to(ROOT)}: a minute or two, once.", flush=True)
    if run([PYTHON, "-m", "pip", "install", "-qq", "-c", ROOT / "constraints.txt", "-e", target]):
        sys.exit("The installation failed; the reason stands above.")
    STAMP.write_text(json.dumps({**state, "extras": wanted}))


def make_venv():
    """Make `.venv` anew."""
    try:
        venv.create(VENV, clear=True, with_pip=True)
    except (subprocess.CalledProcessError, ImportError):
        sys.exit("This Python cannot make virtual environments; on Debian and Ubuntu, install python3-venv.")


def run(line):
    """Run a command line in the checkout; return its exit code."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run([str(word) for word in line], cwd=ROOT, env={**os.environ, **quiet}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
