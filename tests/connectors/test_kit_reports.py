"""The guides say of the kit what its suites run as they stand; all lanes run the suites."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import kit_report
import pytest
import test_connector_sql_alchemy as alchemy
import test_connector_sql_clickhouse as clickhouse
import test_connector_sql_firebird as firebird
from test_connector_sql_servers import SERVER_DIALECTS

from lookupcache.testing import ConnectorSuite
from lookupcache.testing.samples import TYPES


def suites_of(module):
    return [
        found
        for found in vars(module).values()
        if inspect.isclass(found) and issubclass(found, ConnectorSuite) and found.__name__.startswith("Test")
    ]


@pytest.mark.parametrize(("module", "guide"), kit_report.GUIDES.items())
def test_a_guide_reports_a_run_in_which_all_cases_passed(module, guide):
    """``LOOKUPCACHE_UPDATE_KIT=1`` with the file of the suites runs all of their cases, and writes the report."""
    suites = suites_of(import_module(module))
    passed = dict.fromkeys(kit_report.cases_of(suites), "passed")
    assert kit_report.reported(guide, module) == kit_report.report(suites, passed)


def test_the_table_of_dialects_says_what_the_tests_run():
    modules = alchemy, clickhouse, firebird
    said, suites = claims(), {suite.tables.scheme: suite for module in modules for suite in suites_of(module)}
    pushed = {scheme for scheme, suite in suites.items() if suite.pushes_filters}
    with_servers = schemes(SERVER_DIALECTS)
    expected = {
        "the kit": set(suites),
        "compiled": {scheme for scheme, *_ in alchemy.COMPILED},
        "filters": pushed,
        "nothing is pushed": set(suites) - pushed,
        "a server that is killed": {scheme for scheme, suite in suites.items() if hasattr(suite, "restart")},
        "on a real server": with_servers,
        "timeouts, cancel": with_servers,
        "`schema=None`": schemes(driver for driver, *_ in alchemy.INFERRED),
    }
    assert {claim: {scheme for scheme, text in said.items() if claim in text} for claim in expected} == expected
    names = {name.partition("(")[0] for name in TYPES}
    for scheme, suite in suites.items():
        assert {name.lower() for name in re.findall("[A-Z_]+", said[scheme])} & names == {*suite.unsupported} & names


def claims():
    """Return what the guide's table says of each dialect that it names with a driver."""
    text = (kit_report.DOCS / "databases.md").read_text().partition("### What was run")[2].partition("###")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {scheme: claim for named, claim in rows for scheme in re.findall(r"`(\w+\+\w+)`", named)}


def schemes(drivers):
    """Return the schemes of the drivers that tests name, which are the names of fixtures."""
    known = {"psycopg": alchemy.PsycopgTables, "pymysql": alchemy.PyMysqlTables, "pysqlite": alchemy.PysqliteTables}
    return {known[driver].scheme for driver in drivers}
