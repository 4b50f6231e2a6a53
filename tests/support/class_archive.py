"""An archive of the classes that Spark loads, with which each JVM that the tests start takes half the CPU time.

    python tests/support/class_archive.py    make the archive of this environment, unless it exists

`dev.py test` makes it. It lies in the environment (``sys.prefix``), with the versions of Java and PySpark in its name.
A JVM that it does not fit starts without it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that runs a few queries would take more CPU time to optimize its code than it saves."""
LARGE = (
    "-XX:+UseSerialGC -Xmn900m -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""For the session that the tests share: code is optimized after ten times as many calls as by default. By default, a
quarter of the CPU time of some hundred queries goes into optimizing code."""
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
QUERIES = '''
import sys
from pyspark.sql import SparkSession

folder = sys.argv[1]
settings = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
    "spark.local.dir": folder, "spark.sql.warehouse.dir": folder,
}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
left = spark.createDataFrame([(n, f"k{n % 7}", n / 2) for n in range(20)], "id long, k string, v double")
left.createOrReplaceTempView("l")
spark.range(5).selectExpr("id", "concat('k', id) AS k").createOrReplaceTempView("r")
for how in ("INNER", "LEFT", "LEFT SEMI", "LEFT ANTI"):
    for condition in ("l.k = r.k", "l.k = r.k AND l.id > r.id"):
        spark.sql(f"SELECT l.* FROM l {how} JOIN r ON {condition} ORDER BY id").toArrow()
spark.sql("""
    WITH x AS (SELECT k, count(*) n, max(v) m FROM l GROUP BY k)
    SELECT *, row_number() OVER (ORDER BY n), (SELECT max(id) FROM r WHERE r.k = x.k) FROM x
""").collect()
left.mapInArrow(lambda batches: batches, left.schema).toPandas()
left.write.parquet(f"{folder}/p")
stream = spark.readStream.schema(left.schema).parquet(f"{folder}/p").dropDuplicates(["k"]).writeStream
stream.format("noop").trigger(availableNow=True).option("checkpointLocation", f"{folder}/c").start().awaitTermination()
spark.stop()
'''


def path() -> Path | None:
    """Return where the archive of this environment lies; None without a JAVA_HOME that tells its version."""
    try:
        release = Path(os.environ["JAVA_HOME"], "release").read_text()
    except (KeyError, OSError):
        return None
    version = re.search(r'^JAVA_VERSION="(.+)"', release, re.MULTILINE)
    return Path(sys.prefix, f"spark-{pyspark.__version__}-java-{version[1]}.jsa") if version else None


def jvm_options(size: str = SMALL) -> str:
    """Return the options of every JVM of the tests: with the archive where there is one."""
    archive = path()
    return f"{size} -XX:SharedArchiveFile={archive} {QUIET}" if archive and archive.exists() else size


def make() -> None:
    """Make the archive, if there is none; without it, tests only take longer."""
    archive = path()
    if archive is None or archive.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "classes.jsa")
        options = f"{SMALL} {QUIET} -XX:ArchiveClassesAtExit={made}"
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
        line = [sys.executable, "-c", QUERIES, folder]
        try:
            subprocess.run(line, env=environment, capture_output=True, timeout=180, check=True)
            for other in archive.parent.glob("spark-*.jsa"):
                other.unlink()
            # Within one file system, so that another run sees the whole file or none.
            part = archive.with_suffix(".part")
            part.write_bytes(made.read_bytes())
            part.rename(archive)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"No archive of Spark's classes: {error}", file=sys.stderr)


if __name__ == "__main__":
    from lookupcache.java import local_spark_environment

    local_spark_environment()
    make()
