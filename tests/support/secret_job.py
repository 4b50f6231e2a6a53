"""One Spark application that does with secrets what users do, and writes down what was shown, and where.

    python secret_job.py FOLDER < secret    writes FOLDER/shown.json: the texts by place

It runs in a process of its own, since the event log, the pages and the limits of what Spark shows are settings of an
application. One secret is read from stdin and written into options; another is in the environment variable REFERRED,
which ``env:REFERRED`` refers to.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.serializers
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from servers import HttpServer, RedisServer, Reply

from lookupcache import LookupJoin, LookupTable
from lookupcache.cli.commands import main as command
from lookupcache.connector import Connector
from lookupcache.sql import LookupSession

REFERRED = os.environ.get("REFERRED", "")
SCHEMA = "id BIGINT, name STRING"
FAILING = 7
NAMES = {
    "events": "the event log", "checkpoint": "a stream's checkpoint", "warehouse": "the warehouse",
    "local": "Spark's local files", "host": "files of a cache that workers share", "plans": "files of compiled plans",
}  # fmt: skip


class Careless(Connector):
    """Keeps secrets in local variables, and fails for one key with all of them in reach."""

    options = {"password": "A secret.", "token": "Another."}  # noqa: RUF012

    def open(self) -> None:
        password = self.settings["password"]
        self.login = f"{password} {self.settings['token']}"

    def lookup(self, request: Any, keys: pa.RecordBatch) -> pa.Table:
        login, numbers = self.login, keys.column(0).to_pylist()
        if FAILING in numbers:
            raise OSError(f"not for {login}")
        return pa.table({"id": numbers, "name": ["ann"] * len(numbers)})

    def scan(self, request: Any) -> Any:
        yield pa.record_batch({"id": [1], "name": ["ann"]})


def main(folder: Path, literal: str) -> None:
    shown: dict[str, str] = {}
    commands = _record_pickles()
    server = HttpServer(
        lambda requested: Reply({"id": int(requested.path.strip("/").partition("?")[0]), "name": "ann"})
    ).start()
    store = _start_store(folder, literal)
    spark = _session(folder)
    options = {"connector": f"{Careless.__module__}:Careless", "password": literal, "token": "env:REFERRED",
               "lookup.max-retries": "0"}  # fmt: skip
    own = LookupTable("t", SCHEMA, options)
    http = LookupTable("t", SCHEMA, {"connector": "http", "url": server.url + "/{id}?sig=" + literal,
                                     "header.X-Key": "env:REFERRED", "query.k": literal})  # fmt: skip
    (folder / "store.url").write_text(f"redis://:{literal}@127.0.0.1:{store.port}/0")
    location = f"file:{folder}/store.url"
    # A store that does not answer in time is left out, and then nothing of it would be searched.
    shared = {"lookup.cache": "LRU", "lookup.cache.path": f"{folder}/host", "lookup.cache.store": location,
              "lookup.cache.store.timeout": "30 s"}  # fmt: skip
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _batch(spark, own, http, folder, shown)
        _failures(spark, own, folder, shown)
        _statements(spark, options, shown)
        _caches(spark, http.with_options(shared), store, literal, shown)
        _plans_of_statements(spark, server, folder, literal, shown)
        _stream(spark, http, folder, shown)
        _pages(spark, shown)
        shown["command lines and environments"] = _processes()
        shown["the command doctor"] = _doctor(spark)
    shown["the command cache"] = "".join(
        _run_command("cache", action, place) for action in ("ls", "show") for place in (f"{folder}/host", location)
    )
    shown["warnings of the driver"] = " ".join(str(one.message) for one in warned)
    shown["logs of workers that Spark collects"] = repr(spark.tvf.python_worker_logs().collect())
    spark.stop()
    store.close()
    for place in NAMES:
        shown[NAMES[place]] = _files(folder / place)
    server.kill()
    # A value in an option is in the pickle that workers read: they could not connect without it.
    shown["pickles for the workers"] = "".join(commands).replace(literal, "")
    (folder / "shown.json").write_text(json.dumps(shown))
    os._exit(0)


def _session(folder: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events", "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.sql.shuffle.partitions": "1",
        "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled": "true",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        "spark.sql.pyspark.worker.logging.enabled": "true", "spark.sql.debug.maxToStringFields": "1000",
        "spark.sql.maxPlanStringLength": "1000000", "spark.python.worker.faulthandler.enabled": "true",
        "spark.ui.showConsoleProgress": "false", "spark.logConf": "true", "spark.eventLog.compress": "false",
    }  # fmt: skip
    (folder / "events").mkdir()
    session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("INFO")
    return session


def _record_pickles() -> list[str]:
    commands: list[str] = []
    original = pyspark.serializers.CloudPickleSerializer.dumps

    def dumps(self: Any, value: Any) -> bytes:
        command = original(self, value)
        commands.append(command.decode("latin-1"))
        return command

    pyspark.serializers.CloudPickleSerializer.dumps = dumps
    return commands


def _plans(df: DataFrame) -> str:
    query = df._jdf.queryExecution()
    modes = [query.explainString(df._sc._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(mode))
             for mode in ("simple", "extended", "codegen", "cost", "formatted")]  # fmt: skip
    trees = [query.logical().toJSON(), query.optimizedPlan().toJSON(), query.executedPlan().toString()]
    return "\n".join([*modes, *trees, str(query.toString()), df._jdf.schema().json()])


def _batch(spark: SparkSession, own: LookupTable, http: LookupTable, folder: Path, shown: dict[str, str]) -> None:
    left = spark.range(3).toDF("number")
    joins = [LookupJoin(left, own, "number = t.id", "left", select=["name"])]
    joins.append(LookupJoin(left, http, "number = t.id", "left", select=["name"]))
    joins.append(LookupJoin(left, own.with_options({"lookup.cache": "ALL"}), "number = t.id", "left", select=["name"]))
    shown["plans of a DataFrame"] = "\n".join(_plans(join.df) for join in joins)
    shown["explain of a join"] = "\n".join(join.explain() for join in joins)
    shown["rows of lookups"] = repr([join.df.collect() for join in joins])
    shown["metrics of a join"] = repr([join.metrics() for join in joins])
    shown["repr of a join"] = repr([*joins, *(join._context for join in joins), *(join.df for join in joins)])


def _failures(spark: SparkSession, own: LookupTable, folder: Path, shown: dict[str, str]) -> None:
    left = spark.range(FAILING, FAILING + 1).toDF("number")
    for mode in ("fail", "null", "dead-letter"):
        more = {"lookup.on-error": mode}
        more |= {"lookup.error-column": "problem"} if mode == "null" else {}
        more |= {"lookup.dead-letter.path": f"{folder}/letters"} if mode == "dead-letter" else {}
        join = LookupJoin(left, own.with_options(more), "number = t.id", "left", select=["name"])
        try:
            shown["rows of failed lookups"] = f"{shown.get('rows of failed lookups')} {join.df.collect()}"
        except Exception as error:
            shown["the error of a job"] = f"{error} {error!r} {getattr(error, '_stackTrace', '')}"
    shown["dead letters"] = _files(folder / "letters")


def _statements(spark: SparkSession, options: dict[str, str], shown: dict[str, str]) -> None:
    session = LookupSession(spark)
    pairs = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    session.sql(f"CREATE TABLE t ({SCHEMA}) WITH ({pairs})")
    texts = []
    for text in ("SHOW TABLES", "DESCRIBE TABLE EXTENDED t", "SHOW CREATE TABLE t", "DESCRIBE t",
                 "EXPLAIN SELECT t.name FROM range(3) r JOIN t FOR SYSTEM_TIME AS OF PROCTIME() AS t ON r.id = t.id",
                 "SELECT t.name FROM range(3) r JOIN t FOR SYSTEM_TIME AS OF PROCTIME() AS t ON r.id = t.id",
                 f"SELECT * FROM t WITH ('password' = '{options['password']}'", f"CREATE TABLE u (id) WITH ({pairs}",
                 f"CREATE TABLE u (id BIGINT) USING csv OPTIONS ({pairs})"):  # fmt: skip
        try:
            texts.append(repr(session.sql(text).collect()))
        except Exception as error:
            texts.append(f"{error} {error!r}")
    shown["statements of the catalog"] = "\n".join(texts)


def _start_store(folder: Path, password: str) -> RedisServer:
    """Start a store with a password, which is in a file, since command lines are searched."""
    settings = folder / "store.conf"
    settings.write_text(f"requirepass {password}\n")
    return RedisServer(str(settings)).start()


def _caches(spark: SparkSession, table: LookupTable, store: RedisServer, password: str, shown: dict[str, str]) -> None:
    for _ in range(2):
        join = LookupJoin(spark.range(3).toDF("number"), table, "number = t.id", "left", select=["name"])
        shown["rows of lookups"] += repr(join.df.collect())
    shown["metrics of a join"] += repr(join.metrics())
    with store.client(password=password) as client:
        names = client.keys("*")
        shown["names and values of a store"] = f"{names} {client.mget(names)}"


def _plans_of_statements(
    spark: SparkSession, server: HttpServer, folder: Path, literal: str, shown: dict[str, str]
) -> None:
    """Compile plans: one whose secrets are references, and those that contain one, which are refused."""
    left, path = spark.range(3).toDF("number"), folder / "plans" / "join.json"
    path.parent.mkdir()
    options = {"connector": "http", "url": server.url + "/{id}", "token": "env:REFERRED"}
    LookupJoin(left, LookupTable("t", SCHEMA, options), "number = t.id", select=["name"]).compile().write_to_file(path)
    session, texts = LookupSession(spark), []
    spark.sql(f"CREATE TABLE sink (name STRING) USING parquet LOCATION '{folder}/warehouse/sink'")
    tables = {"c": options, "d": {**options, "password": literal, "user": "ann"}, "e": {**options, "token": literal}}
    del tables["d"]["token"]
    for name, given in tables.items():
        pairs = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
        session.sql(f"CREATE TABLE {name} ({SCHEMA}) WITH ({pairs})")
        joined = f"range(3) AS r JOIN {name} FOR SYSTEM_TIME AS OF PROCTIME() ON r.id = {name}.id"
        statement = f"INSERT INTO sink SELECT {name}.name FROM {joined}"
        for text in (f"COMPILE PLAN '{path.parent}/{name}.json' FOR {statement}", f"COMPILE PLAN FOR {statement}",
                     f"EXPLAIN PLAN '{path.parent}/{name}.json'"):  # fmt: skip
            try:
                texts.append(repr(session.sql(text).collect()))
            except Exception as error:
                texts.append(f"{error} {error!r}")
    shown["statements about plans"] = "\n".join(texts)
    shown["the command plan"] = "".join(
        _run_command("plan", *line)
        for line in (("show", path), ("diff", path, path.parent / "c.json"), ("check", "--connect", path))
    )


def _run_command(*arguments: object) -> str:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments])
    return f"{done.output} {done.exception!r}"


def _stream(spark: SparkSession, http: LookupTable, folder: Path, shown: dict[str, str]) -> None:
    spark.range(3).toDF("number").write.parquet(f"{folder}/in")
    stream = spark.readStream.schema("number BIGINT").parquet(f"{folder}/in")
    join = LookupJoin(stream, http, "number = t.id", "left", select=["name"])
    writer = join.df.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [one.json if hasattr(one, "json") else json.dumps(one) for one in query.recentProgress]
    shown["progress of a stream"] = f"{progress} {query.lastProgress} {query.status}"


def _pages(spark: SparkSession, shown: dict[str, str]) -> None:
    url, name = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    paths = ["/jobs/", "/stages/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/", "/storage/",
             *(f"/SQL/execution/?id={number}" for number in range(8)), *(f"/jobs/job/?id={n}" for n in range(8)),
             *(f"/stages/stage/?id={number}&attempt=0" for number in range(8))]  # fmt: skip
    api = ["jobs", "stages?details=true", "environment", "sql?details=true&planDescription=true", "executors",
           "allexecutors", "storage/rdd"]  # fmt: skip
    shown["pages of the UI"] = "".join(_page(f"{url}{path}") for path in paths)
    shown["the REST interface"] = "".join(_page(f"{url}/api/v1/applications/{name}/{path}") for path in api)


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return str(error)


def _processes() -> str:
    """Return the command lines and environments of this process and of all below it, but for the variable itself."""
    texts, known = [], {os.getpid()}
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in known or int(path.name) in known:
                known.add(int(path.name))
                texts += [
                    (path / "cmdline").read_text(),
                    (path / "environ").read_text().replace(f"REFERRED={REFERRED}\0", ""),
                ]
        except OSError:
            continue
    return "\n".join(texts)


def _doctor(spark: SparkSession) -> str:
    from lookupcache.spark.doctor import examine

    return repr(examine(spark))


def _files(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


if __name__ == "__main__":
    # Workers import the connector by its module's name.
    import secret_job

    secret_job.main(Path(sys.argv[1]), sys.stdin.read())
