"""Set up this checkout and run a command in it; needs only Python 3.11 or later.

    python3 .ci/dev.py demo [OPTIONS]     run the demo, which joins real flights with a database
    python3 .ci/dev.py test               run the tests that a change must not break, in less than ten minutes
    python3 .ci/dev.py test --fast        run the tests that need neither Spark nor servers, in less than one
    python3 .ci/dev.py test --all         run all tests that need no night
    python3 .ci/dev.py test --sample=4    run one in four of the tests that only --all runs, others with each commit
    python3 .ci/dev.py test tests/cache   run all tests of a folder or file; other arguments are those of pytest
    python3 .ci/dev.py check              run ruff, the format check and mypy
    python3 .ci/dev.py bench NAME         run a benchmark of bench/
    python3 .ci/dev.py docs               build the documentation as a site, into site/; `docs serve` shows it
    python3 .ci/dev.py release            build wheel, sdist and SBOM in dist/, check them, run the demo from the wheel
    python3 .ci/dev.py nightly [SCALE]    run the tests that draw, 20 times as large
    python3 .ci/dev.py matrix             run a core of tests on every Spark and Python; write the page of versions
    python3 .ci/dev.py mutation           change the code in one place at a time, and see whether a test fails

The first run creates `.venv` and installs what the command needs; later runs install again only if
pyproject.toml or constraints.txt has changed.
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
EXTRAS = {
    "demo": ["demo"],
    "test": ["test"],
    "check": ["bench", "check", "test"],  # which `check` contains: without their names, they would be installed again
    "bench": ["bench"],
    "docs": ["docs"],
    "release": ["release"],
    "nightly": ["fuzz", "mutation", "bench"],
    "mutation": ["mutation"],
    "matrix": ["cli"],
}
PARALLEL = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=20"]
"""Tests run in two processes, each with its own Spark. One that ends is replaced, see tests/support/replacing.py."""
FAST = ["-n", "2", "--dist", "worksteal", "--max-worker-restart=0"]
"""Fast tests share nothing that is slow to start, so single tests are distributed instead of files."""
HAS_JAVA = """
from lookupcache.errors import JavaMissingError
from lookupcache.java import local_spark_environment
try:
    local_spark_environment()
except JavaMissingError:
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
    return max(run(line) for line in command_lines(command, rest))


def command_lines(command, rest):
    """Return the command lines of a command."""
    if command == "demo":
        return [[PYTHON, "-m", "lookupcache", "demo", *rest]]
    if command == "test":
        parallel = FAST if "--fast" in rest else PARALLEL
        line = [PYTHON, "-m", "pytest", *(parallel if all(word.startswith("--") for word in rest) else []), *rest]
        return [line] if "--fast" in rest else [[PYTHON, "tests/support/class_archive.py"], line]
    if command == "bench":
        return [[PYTHON, "-m", f"bench.{name}", *options] for name, *options in [rest or ["join"]]]
    if command == "docs":
        return [[PYTHON, ROOT / ".ci" / "docs_site.py", *rest]]
    if command in ("nightly", "mutation", "matrix", "release"):
        return [[PYTHON, ROOT / ".ci" / f"{command}.py", *rest]]
    tools = [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]]
    return [[PYTHON, "-m", *tool] for tool in tools]


def install(extras):
    """Install these extras in `.venv`, in addition to those installed before."""
    digest = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")))
    state = {"files": digest.hexdigest(), "python": sys.version}
    installed = json.loads(STAMP.read_text()) if STAMP.exists() else {"extras": []}
    required = sorted({*installed["extras"], *extras})
    if installed == {**state, "extras": required}:
        return
    if installed.get("python") != sys.version:
        create_venv()
    target = f"{ROOT}[{','.join(required)}]"
    print(f"Installing {', '.join(extras)} into {VENV.relative_to(ROOT)}: takes a minute or two, once.", flush=True)
    if run([PYTHON, "-m", "pip", "install", "-qq", "--no-compile", "-c", ROOT / "constraints.txt", "-e", target]):
        sys.exit("The installation failed; see the error above.")
    STAMP.write_text(json.dumps({**state, "extras": required}))


def create_venv():
    """Create the environment, replacing an existing one."""
    try:
        venv.create(VENV, clear=True, with_pip=True)
    except (subprocess.CalledProcessError, ImportError):
        sys.exit("This Python cannot create virtual environments; on Debian and Ubuntu, install python3-venv.")


def run(line):
    """Run a command line in the checkout; return its exit code."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # The tests start hundreds of processes. Without stored bytecode, each would compile all that it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run([str(part) for part in line], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
