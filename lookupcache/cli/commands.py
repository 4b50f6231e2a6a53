"""The command `lookupcache`: its commands are imported when they are used, so that its help is quick."""

from __future__ import annotations

import click

from lookupcache import __version__
from lookupcache.cli.groups import LazyGroup

COMMANDS = {
    "cache": (
        "lookupcache.cli.host:cache",
        "Look at the caches that the workers of a host share, and at stores, or remove what is in them.",
    ),
    "check": (
        "lookupcache.cli.check:check",
        "Test a table: connect, read a row, show the schema and what a condition would push to the source.",
    ),
    "connectors": (
        "lookupcache.cli.connectors:connectors",
        "List the installed connectors and their options, or show the connectors NAME only.",
    ),
    "dashboard": (
        "lookupcache.cli.top:dashboard",
        "Print a dashboard for Grafana, as JSON to import, over the metrics of lookupcache.export_metrics().",
    ),
    "demo": (
        "lookupcache.cli.demo:demo",
        "Join flights with three small tables and orders with a large one, and compare with Spark's own joins.",
    ),
    "doctor": (
        "lookupcache.cli.doctor:doctor",
        "Check a Spark session: which settings to change for lookup joins, and why; and what it cannot do.",
    ),
    "hitrate": (
        "lookupcache.cli.hitrate:hitrate", "Predict a cache's hit rate from the keys that will be looked up."
    ),
    "plan": ("lookupcache.cli.plan:plan", "Show, compare and check compiled plans; nothing of a plan is run."),
    "sql": ("lookupcache.cli.sql:run_file", "Run the statements of a file, such as a Flink job's, in order."),
    "top": ("lookupcache.cli.top:top", "Show the lookups of a running job or stream, live."),
}  # fmt: skip
"""Where each command is, and the first sentence of its help."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lookupcache")
def main() -> None:
    """A lookup join for Spark with a cache that stores only the needed columns and rows."""
