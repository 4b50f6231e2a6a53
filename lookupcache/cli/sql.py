"""The command `lookupcache sql`."""

from __future__ import annotations

from pathlib import Path

import click

from lookupcache.cli.session import conf_option, remote_option, spark_session


@click.command("sql")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.sql")
@remote_option
@conf_option
def run_file(file: Path, remote: str | None, conf: tuple[str, ...]) -> None:
    """Run the statements of a file, such as a Flink job's, in order.

    If a statement cannot run on Spark, the error names its line, and no statement is run. The rows of queries are
    printed, at most 100 of each. Streams that the file starts run until they end or fail.
    """
    spark = spark_session("lookupcache sql", remote, conf)
    from lookupcache import LookupSession

    try:
        for df in LookupSession(spark).run(file.read_text(encoding="utf-8")):
            if df.columns:
                df.show(100, truncate=False)
        for query in spark.streams.active:
            query.awaitTermination()
    finally:
        spark.stop()
