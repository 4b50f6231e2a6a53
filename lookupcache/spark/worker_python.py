"""Whether the workers of a local session start a Python that can run what the driver sends them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from lookupcache.errors import OptionError
from lookupcache.report import is_classic

_PROBE = """\
import sys, importlib.util as util
print(*sys.version_info[:2], *(name for name in sys.argv[1:] if util.find_spec(name) is None))
"""
_NEEDED = ("pyarrow", "lookupcache")
_SECONDS = 60
_FILES = ("spark.submit.pyFiles", "spark.archives")


def refuse_other_python(spark: SparkSession) -> None:
    """Raise OptionError where a local session's workers would start a Python that cannot run lookups.

    Spark itself says so only in the first job, after a long traceback.
    """
    if (problem := problem_of_workers(spark)) is not None:
        raise OptionError(f"Spark's workers cannot run lookups: {problem}.", hint=CURE)


CURE = (
    "Before the session starts, set PYSPARK_PYTHON to the driver's Python: "
    "os.environ['PYSPARK_PYTHON'] = sys.executable."
)


def problem_of_workers(spark: SparkSession) -> str | None:
    """Return why the workers of a local session cannot run lookups; None if they can, or if they run elsewhere."""
    if not is_classic(spark) or not (spark.sparkContext.master or "").startswith("local"):
        return None
    context = spark.sparkContext
    command = str(context.pythonExec)
    if problem_with(command) is None:  # before the settings, which take a hundred messages to Java
        return None
    has_files = bool(context._python_includes or any(context.getConf().get(name, "") for name in _FILES))
    return problem_with(command, has_files=has_files)


@functools.cache
def problem_with(command: str, *, has_files: bool = False) -> str | None:
    """Return why workers cannot run on a Python, whose program is ``command``; None if they can.

    ``has_files`` says that Spark copies packages, or a Python, to the workers, so that they need not be installed.

    >>> problem_with(sys.executable), problem_with("no-such-python")
    (None, "they would start 'no-such-python', which does not exist")
    """
    found = shutil.which(command)
    if found is None:
        return None if has_files else f"they would start {command!r}, which does not exist"
    if _is_own(found):
        return None
    answer = _ask(found)
    if answer is None:
        return f"they would start {command!r}, which is no Python that runs"
    version, missing = answer
    own = ".".join(map(str, sys.version_info[:2]))
    if version != own:
        return f"they would start {command!r}, which is Python {version}; the driver's {sys.executable} is {own}"
    return f"they would start {command!r}, where {missing[0]} is not installed" if missing and not has_files else None


def _ask(program: str) -> tuple[str, list[str]] | None:
    """Return the version of a Python, and which packages it lacks; None if it does not answer."""
    command = [program, "-c", _PROBE, *_NEEDED]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor, *missing = answer.stdout.split()
    return f"{major}.{minor}", missing


def _is_own(program: str) -> bool:
    """Return whether a program is the one that runs this process, in the same environment."""
    own = Path(sys.executable)
    return Path(program).parent == own.parent and os.path.samefile(program, own)
