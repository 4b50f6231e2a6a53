"""The Spark session of commands that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lookupcache.errors import LookupCacheError, OptionError
from lookupcache.java import local_spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

remote_option = click.option("--remote", metavar="URL", help="A Spark Connect server, e.g. sc://host:15002.")
conf_option = click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of the session, as in spark-submit."
)


def spark_session(name: str, remote: str | None, conf: tuple[str, ...]) -> SparkSession:
    """Return a session with the settings of spark-defaults.conf and of ``conf``, as programs get it."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise LookupCacheError("pyspark is not installed.", hint="pip install 'lookupcache[spark]'") from error
    if remote is None:
        local_spark_environment()
    builder = SparkSession.builder.appName(name).config(map={"spark.ui.enabled": "false", **dict(map(_setting, conf))})
    return (builder.remote(remote) if remote else builder).getOrCreate()


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise OptionError(f"--conf {text!r} is no setting.", hint="Write it as KEY=VALUE.")
    return name, value
