"""What the doctor finds in a session, and how the command tells it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lookupcache.demo.run import SETTINGS
from lookupcache.doctor import RULES, examine

pytestmark = pytest.mark.spark

ILL = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.exchange.reuse": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled": "true",
}


@pytest.fixture
def ill(spark):
    """Return a session of its own with settings that do not help."""
    session = spark.newSession()
    for key, value in ILL.items():
        session.conf.set(key, value)
    return session


def test_settings_that_do_not_help_are_named_with_a_cure(ill):
    found = {finding.name: finding for finding in examine(ill)}
    assert [key for key in ILL if found[key].wanted is None or found[key].found != ILL[key]] == []
    assert found["spark.python.udf.pipelined.enabled"].wanted == "true"
    assert found["spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"].must


def test_what_is_well_is_told_too(spark):
    well = {finding.name for finding in examine(spark) if finding.wanted is None}
    assert {"spark.python.worker.reuse", "spark.sql.adaptive.enabled", "Java", "package pyarrow"} <= well


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_the_demo_sets_what_helps(rule):
    assert rule.well(SETTINGS.get(rule.key, rule.default))


def test_the_command_looks_at_a_session_of_its_own():
    command = [sys.executable, "-m", "lookupcache", "doctor", "--conf", "spark.python.worker.reuse=false"]
    command += ["--conf", "spark.master=local[1]"]
    told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert told.returncode == 1, told.stdout + told.stderr
    words = " ".join(told.stdout.split())
    assert "required spark.python.worker.reuse = false" in words
    assert "takes its cache and its connections with it" in words
