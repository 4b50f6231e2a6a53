"""A connector that somebody else ships, installed together with our wheel: found, listed, and tested with our kit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_packaging import installed, run, wheel  # noqa: F401

STRANGER = Path(__file__).parent / "stranger"


@pytest.fixture(scope="module")
def theirs(installed, tmp_path_factory):  # noqa: F811
    """Return a copy of the stranger's package, and the Python of an environment with both packages."""
    folder = tmp_path_factory.mktemp("stranger") / "package"
    shutil.copytree(STRANGER, folder)
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", installed, "install", *offline, folder)
    return folder, installed


@pytest.mark.extended
def test_its_tests_pass(theirs):
    folder, python = theirs
    (folder / "lookupcache_csv.py").unlink()  # what is installed is tested
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey", "tests"]
    result = subprocess.run(command, cwd=folder, env={"PYTHONPATH": ""}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout


def test_the_command_lists_it(theirs):
    _, python = theirs
    result = run(python.parent / "lookupcache", "connectors", COLUMNS="200", PYTHONPATH="")
    assert "csv  Looks rows up in a CSV file with a header" in result
    assert "lookupcache_csv:CsvConnector" in result
    assert "The file, as in '/data/customers.csv'." in result


def test_the_command_tries_it(theirs, tmp_path):
    _, python = theirs
    (tmp_path / "customers.csv").write_text('id,name\n1,ann\n2,""\n')
    options = f'connector = "csv"\npath = "{tmp_path / "customers.csv"}"\n'
    (tmp_path / "c.toml").write_text(f'schema = "id BIGINT, name STRING"\n[options]\n{options}')
    result = run(python.parent / "lookupcache", "check", tmp_path / "c.toml", "--key", "id=2", PYTHONPATH="")
    assert result.split()[-6:] == ["A", "row", "id", "2", "name", "''"]


def test_it_is_an_example_short_enough_to_read():
    source = (STRANGER / "lookupcache_csv.py").read_text().partition("class CsvConnector")[2]
    assert len([line for line in source.splitlines() if line.strip()]) <= 30
