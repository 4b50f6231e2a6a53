"""The command `lookupcache doctor`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lookupcache.cli.groups import tables_option
from lookupcache.cli.session import conf_option, remote_option, spark_session
from lookupcache.cli.terminal import printable
from lookupcache.table import LookupTable

if TYPE_CHECKING:
    from lookupcache.spark.doctor import Finding

_WIDTH = 80
_MARK_WIDTH = 13


@click.command()
@tables_option("Open the connector of this table in the workers too")
@remote_option
@conf_option
def doctor(tables: tuple[Path, ...], remote: str | None, conf: tuple[str, ...]) -> None:
    """Check a Spark session: which settings to change for lookup joins, and why; and what it cannot do.

    It starts a session with the settings of spark-defaults.conf and --conf, as your programs do. It runs one small job
    in the workers, and one for each --table. The output has no secrets and can be pasted into a report. For an existing
    session, call lookupcache.spark.doctor.examine(spark); examine(spark, df) also checks the state store that
    a stream needs. The exit code is 1 if a required setting is wrong.
    """
    found = _examine_session([LookupTable.from_toml(file) for file in tables], remote, conf)
    wrong = [one for one in found if one.wanted is not None]
    for finding in (*sorted(wrong, key=lambda one: (not one.must, one.limit)), *(f for f in found if f not in wrong)):
        for line in _lines(finding):
            click.echo(line)
    if any(finding.must for finding in wrong):
        raise SystemExit(1)


def _examine_session(tables: list[LookupTable], remote: str | None, conf: tuple[str, ...]) -> list[Finding]:
    spark = spark_session("lookupcache doctor", remote, conf)
    from lookupcache.spark.doctor import examine

    try:
        return examine(spark, tables=tables)
    finally:
        spark.stop()


def _lines(finding: Finding) -> Iterator[str]:
    """Yield a finding as lines of at most 80 characters, with its mark in front of the first."""
    mark, color = "ok", "green"
    if finding.wanted is not None:
        mark, color = ("required", "red") if finding.must else ("recommended", "yellow")
        mark, color = ("limit", "cyan") if finding.limit else (mark, color)
    first, *more = _wrapped(f"{finding.name} = {finding.found}")
    yield click.style(mark.ljust(_MARK_WIDTH), fg=color) + first
    reason = () if finding.wanted is None else _wrapped(f"-> {finding.wanted}: {finding.why}")
    for line in (*more, *reason):
        yield " " * _MARK_WIDTH + line


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(printable(" ".join(text.split())), _WIDTH - _MARK_WIDTH, break_on_hyphens=False)
