"""The command line."""

from __future__ import annotations

from click.testing import CliRunner

import lookupcache
from lookupcache.cli import main


def test_version() -> None:
    assert lookupcache.__version__ in CliRunner().invoke(main, ["--version"]).output


def test_connectors_are_listed_with_their_options() -> None:
    told = CliRunner().invoke(main, ["connectors"], catch_exceptions=False)
    assert told.exit_code == 0
    assert "sql" in told.output
    assert "lookupcache_sql:SqlConnector" in told.output
    assert "required" in told.output


def test_our_errors_are_text_without_a_traceback() -> None:
    told = CliRunner().invoke(main, ["demo", "--cache", "ALL", "--max-rows", "5"])
    assert told.exit_code == 1
    assert told.output.startswith("Error: Option 'lookup.cache.max-rows' means nothing with 'lookup.cache' = 'ALL'.")
    assert "Traceback" not in told.output
