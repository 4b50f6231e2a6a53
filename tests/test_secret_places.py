"""Where a secret could be shown: each option that may hold one, of each connector, and each place that is listed.

The places are those of docs/maintainers/promises.md: the first list is checked here without Spark, the second in one
Spark application with its event log, its pages and all that can be switched on to show more.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import cloudpickle
import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from servers import HttpServer, Reply, free_port

from lookupcache.cli.commands import main as command
from lookupcache.cli.trial import plan_of
from lookupcache.connector import connector_class
from lookupcache.errors import LookupCacheError
from lookupcache.metrics import LookupMetrics
from lookupcache.planner.explain import explain
from lookupcache.redaction import is_secret
from lookupcache.report import Channel
from lookupcache.table import LookupTable
from lookupcache.worker.runner import Layout, lookup_of_process
from lookupcache.worker.task import LetterTask, ScanTask, Task

ROOT = Path(__file__).parent.parent
SECRET = "Zq7vK9huNter4x81"
SCHEMA = "id BIGINT, name STRING"


AT = f"127.0.0.1:{free_port()}"
HTTP = {"connector": "http", "url": f"http://{AT}/{{id}}"}
HTTPS = {"connector": "http", "url": f"https://{AT}/{{id}}"}
REDIS = {"connector": "redis", "url": f"redis://{AT}/0", "key": "c:{id}"}
POSTGRES = {"connector": "sql", "url": f"postgresql://ann@{AT}/shop", "table": "t"}
MARIA = {"connector": "sql", "url": f"mariadb://ann@{AT}/shop", "table": "t"}
QUERY = {"connector": "sql", "url": f"postgresql://ann@{AT}/shop"}
PSYCOPG = {"connector": "sql", "url": f"postgresql+psycopg://ann@{AT}/shop", "table": "t"}
DYNAMODB = {"connector": "dynamodb", "table": "t", "key": "id", "endpoint": f"http://{AT}", "region": "eu-west-1"}
OPENAI = {"connector": "openai", "url": f"http://{AT}/v1", "task": "chat", "model": "m", "prompt": "{id}"}
S3 = {"connector": "files", "path": "s3://b/x", "lookup.cache": "ALL"}
ENDPOINT = {"storage.access_key": "a", "storage.endpoint_override": "http://SERVER"}
NO_KEY = {"tls.certificate": "/no/such/file", "tls.key-password": SECRET}
S3_URL = f"s3://akey:{SECRET}@b/x?endpoint_override=http%3A%2F%2FSERVER"
FEAST = (
    "{{project: p, provider: local, registry: /no/such, online_store: "
    f"{{{{type: redis, connection_string: '{AT},password={{}}'}}}}}}}}"
)
OPTIONS = {
    "http token": {**HTTP, "token": SECRET},
    "http token, repeated": {**HTTP, "url": "http://SERVER/{id}", "token": SECRET},
    "http header, repeated": {**HTTP, "url": "http://SERVER/{id}", "header.X-Key": SECRET},
    "http url, repeated": {**HTTP, "url": f"http://SERVER/{{id}}?sig={SECRET}"},
    "http password": {**HTTP, "user": "ann", "password": SECRET},
    "http user": {**HTTP, "user": SECRET},
    "http header": {**HTTP, "header.X-Key": SECRET},
    "http query": {**HTTP, "query.k": SECRET},
    "http url": {**HTTP, "url": f"http://{AT}/{{id}}?sig={SECRET}"},
    "http scan": {**HTTP, "scan.url": f"http://{AT}/x?token={SECRET}", "lookup.cache": "ALL"},
    "http body": {**HTTP, "url": f"http://{AT}/x?apikey={SECRET}", "body": '{"id": {id}}'},
    "http key": {**HTTPS, **NO_KEY},
    "http user in url": {**HTTP, "url": f"http://ann:{SECRET}@{AT}/{{id}}"},
    "http bad url": {**HTTP, "url": f"htp://ann:{SECRET}@{AT}/{{id}}"},
    "http bad header": {**HTTP, "header.X-Key": f"{SECRET}\r\nX: y"},
    "openai key": {**OPENAI, "api-key": SECRET},
    "openai key, repeated": {**OPENAI, "url": "http://SERVER/v1", "api-key": SECRET},
    "openai embeddings": {**OPENAI, "url": "http://SERVER/v1", "task": "embeddings", "api-key": SECRET},
    "openai url": {**OPENAI, "url": f"http://{AT}/v1?key={SECRET}"},
    "openai user in url": {**OPENAI, "url": f"http://ann:{SECRET}@{AT}/v1"},
    "openai certificate": {**OPENAI, "url": f"https://{AT}/v1", **NO_KEY},
    "redis password": {**REDIS, "password": SECRET},
    "redis url": {**REDIS, "url": f"redis://ann:{SECRET}@{AT}/0"},
    "redis query": {**REDIS, "url": f"redis://{AT}/0?password={SECRET}"},
    "redis bad url": {**REDIS, "url": f"redis://ann:{SECRET}@{AT}x/0"},
    "redis sentinel": {**REDIS, "url": f"redis+sentinel://{AT}/main/0", "sentinel.password": SECRET},
    "redis cluster": {**REDIS, "url": f"redis+cluster://{AT}", "password": SECRET},
    "redis key": {**REDIS, "url": f"rediss://{AT}/0", **NO_KEY},
    "postgresql password": {**POSTGRES, "password": SECRET},
    "postgresql url": {**POSTGRES, "url": f"postgresql://ann:{SECRET}@{AT}/shop"},
    "postgresql query": {**POSTGRES, "url": f"postgresql://ann@{AT}/shop?password={SECRET}"},
    "postgresql key": {**POSTGRES, "tls.mode": "verify-full", **NO_KEY},
    "postgresql bad url": {**POSTGRES, "url": f"postgresql://ann:{SECRET}@{AT}x/shop"},
    "postgresql no database": {**POSTGRES, "url": f"postgresql://ann:{SECRET}@{AT}"},
    "mariadb password": {**MARIA, "password": SECRET},
    "mariadb url": {**MARIA, "url": f"mariadb://ann:{SECRET}@{AT}/shop"},
    "mariadb key": {**MARIA, "tls.mode": "verify-full", **NO_KEY},
    "unknown database": {**MARIA, "url": f"oracle://ann:{SECRET}@{AT}/shop"},
    "no database file": {**MARIA, "url": "duckdb:////no/such/file", "password": SECRET},
    "postgresql options": {**POSTGRES, "url": f"postgresql://ann@{AT}/shop?options=-c%20app.token%3D{SECRET}"},
    "postgresql options, several": {
        **POSTGRES,
        "url": f"postgresql://ann@{AT}/shop?options=-c%20statement_timeout%3D5%20-c%20x.password%3D{SECRET}",
    },
    "postgresql blank": {**POSTGRES, "url": f"postgresql://ann@{AT}/shop?password=a {SECRET}"},
    "sqlalchemy blank": {**PSYCOPG, "url": f"postgresql+psycopg://ann@{AT}/shop?password=a {SECRET}"},
    "sqlite blank": {**POSTGRES, "url": f"sqlite:////no/such?password=a {SECRET}"},
    "duckdb blank": {**POSTGRES, "url": f"duckdb:////no/such?motherduck_token=a {SECRET}"},
    "http blank": {**HTTP, "url": f"http://SERVER/{{id}}?token=a {SECRET}"},
    "openai blank": {**OPENAI, "url": f"http://SERVER/v1?api_key=a {SECRET}"},
    "redis blank": {**REDIS, "url": f"redis://{AT}/0?password=a {SECRET}"},
    "store blank": {**HTTP, "lookup.cache": "LRU", "lookup.cache.store": f"redis://{AT}/0?password=a {SECRET}"},
    "dynamodb blank": {**DYNAMODB, "endpoint": f"http://{AT}?token=a {SECRET}"},
    "query": {**QUERY, "query": f"SELECT * FROM dblink('password={SECRET}') AS t(id bigint, name text)"},
    "query, in quotes": {**QUERY, "query": f"SELECT * FROM dblink('user=ann password = ''a {SECRET}''')"},
    "query, by dollars": {**QUERY, "query": f"SELECT * FROM dblink($x$password='a {SECRET}'$x$)"},
    "query, a URL": {**QUERY, "query": f"SELECT * FROM dblink('postgresql://ann:{SECRET}@{AT}/shop')"},
    "query, refused": {**QUERY, "url": "duckdb:///BASE", "query": f"SELECT * FROM f('password={SECRET}', 'public')"},
    "jdbc url": {"url": f"jdbc:postgresql://{AT}/shop?user=ann&password={SECRET}", "dbtable": "t"},
    "jdbc password": {"connector": "jdbc", "url": f"jdbc:mysql://{AT}/shop", "table-name": "t", "password": SECRET},
    "jdbc key": {"url": f"jdbc:postgresql://{AT}/shop?sslpassword={SECRET}", "dbtable": "t"},
    "jdbc unknown": {"url": f"jdbc:sqlserver://{AT};user=ann;password={SECRET}", "dbtable": "t"},
    "jdbc option": {"url": f"jdbc:mariadb://{AT}/shop", "dbtable": "t", "keyStorePassword": SECRET},
    "sqlalchemy password": {**PSYCOPG, "password": SECRET},
    "sqlalchemy url": {**PSYCOPG, "url": f"postgresql+psycopg://ann:{SECRET}@{AT}/shop"},
    "sqlalchemy query": {**PSYCOPG, "url": f"postgresql+psycopg://ann@{AT}/shop?password={SECRET}"},
    "sqlalchemy at sign": {**PSYCOPG, "url": f"postgresql+psycopg://ann:a@{SECRET}@{AT}/shop"},
    "sqlalchemy at sign, mariadb": {**PSYCOPG, "url": f"mysql+pymysql://ann:a@{SECRET}@{AT}/shop"},
    "sqlalchemy at sign and slash": {**PSYCOPG, "url": f"mysql+pymysql://ann:a@b/{SECRET}@{AT}/shop"},
    "sqlalchemy slash and at sign": {**PSYCOPG, "url": f"mysql+pymysql://ann:b/a@{SECRET}@{AT}/shop"},
    "sqlalchemy at sign in query": {**PSYCOPG, "url": f"mysql+pymysql://{AT}/shop?user=ann&password=a@{SECRET}"},
    "sqlalchemy at sign in query of psycopg": {
        **PSYCOPG,
        "url": f"postgresql+psycopg://ann@{AT}/shop?password=a@{SECRET}",
    },
    "sqlalchemy bad url": {**PSYCOPG, "url": f"mysql+pymysql://ann:{SECRET}@{AT}x/shop"},
    "sqlalchemy unknown": {**PSYCOPG, "url": f"no+such://ann:{SECRET}@{AT}/shop"},
    "sqlalchemy odbc": {**PSYCOPG, "url": f"mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3D{SECRET}"},
    "dynamodb key": {**DYNAMODB, "access-key-id": "AKID", "secret-access-key": SECRET},
    "dynamodb token": {**DYNAMODB, "access-key-id": "AKID", "secret-access-key": "kx7", "session-token": SECRET},
    "dynamodb endpoint": {**DYNAMODB, "endpoint": f"http://ann:{SECRET}@{AT}"},
    "files secret key": {**S3, **ENDPOINT, "storage.secret_key": SECRET},
    "feast config": {"connector": "feast", "view": "v", "config": FEAST.format(SECRET)},
    "files unknown setting": {**S3, "storage.no_such": SECRET},
    "files url": {**S3, "path": S3_URL},
    "files by fsspec": {**S3, "path": f"ftp://ann:{SECRET}@{AT}/x"},
    "store url": {**HTTP, "lookup.cache": "LRU", "lookup.cache.store": f"redis://ann:{SECRET}@{AT}/0"},
    "store query": {**HTTP, "lookup.cache": "LRU", "lookup.cache.store": f"redis://{AT}/0?password={SECRET}"},
    "dead letters": {**POSTGRES, "lookup.on-error": "dead-letter", "lookup.dead-letter.path": S3_URL},
    "marked rows": {**HTTP, "token": SECRET, "lookup.on-error": "null", "lookup.error-column": "problem"},
    "unknown option": {**HTTP, "tokn": SECRET},
    "invalid option": {**HTTP, "token": SECRET, "max-bytes": "many"},
}
REFERRING = ("http token", "redis password", "postgresql password", "mariadb password", "redis url", "openai key",
             "files secret key", "sqlalchemy at sign", "sqlalchemy at sign in query", "postgresql options",
             "postgresql blank", "query, in quotes")  # fmt: skip
REFERENCES = {f"{name}, by {kind}": (name, kind) for name in REFERRING for kind in ("env", "file")}

KEYS = pa.record_batch({"id": pa.array([1, 2], pa.int64())})


def is_shown(text: str) -> bool:
    basic = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    return any(form in text for form in (SECRET, SECRET.lower(), basic, SECRET[:12], SECRET[-12:]))


def look(options: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return what a table and its lookups show, by place; a table that is refused has only an error."""
    shown: dict[str, str] = {}
    with _collecting(shown):
        try:
            table = LookupTable("t", SCHEMA, options)
        except LookupCacheError as error:
            shown["an error on the driver"] = "".join(traceback.format_exception(error))
            return shown
        plan = plan_of(table, "l.id = t.id", None, None)
        task = Task(plan, cloudpickle.dumps(table.connector), Layout(("id",), (0,)), Channel(),
                    options.get("lookup.dead-letter.path"))  # fmt: skip
        scan = ScanTask(plan, task.connector, Channel())
        letters = LetterTask(options.get("lookup.dead-letter.path", ""), "t", ("id",))
        shown |= {
            "repr and str of a table": f"{table!r} {table} {table.connector!r} {table.config!r}",
            "the plan as JSON": json.dumps(plan.to_json()),
            "repr of a plan": repr(plan),
            "a pickle of the plan": pickle.dumps(plan).decode("latin-1"),
            "explain": explain(plan),
            "repr of what Spark runs": f"{task!r} {scan!r} {letters!r}",
            "the identity of a cache": f"{plan.fingerprint} {table.source}",
        }
        shown |= run(task, "an error of a worker", "the rows of a result")
        lookup = lookup_of_process(plan, lambda: table.connector)
        shown["repr of a cache and its source"] = f"{lookup!r} {lookup.source!r} {lookup.cache!r} {vars(lookup.source)}"
        shown["metrics"] = f"{LookupMetrics.of(lookup.counters)!r} {lookup.counters!r}"
        try:
            LookupTable("t", None, options)
        except LookupCacheError as error:
            shown["the error for a schema that cannot be inferred"] = "".join(traceback.format_exception(error))
        shown["the command check"] = check(options, tmp_path)
    return shown


def run(task: Task, error_place: str, rows_place: str) -> dict[str, str]:
    try:
        return {rows_place: repr([batch.to_pylist() for batch in task(iter([KEYS]))])}
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        plain, full = (
            "".join(traceback.TracebackException.from_exception(error, capture_locals=own).format())
            for own in (False, True)
        )
        return {error_place: plain, f"{error_place}, with local variables": full}


def check(options: dict[str, str], tmp_path: Path) -> str:
    path = tmp_path / "table.toml"
    lines = "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in options.items())
    path.write_text(f'name = "t"\nschema = "{SCHEMA}"\n[options]\n{lines}\n')
    return str(CliRunner().invoke(command, ["check", str(path), "--key", "id=1"]).output)


@contextmanager
def _collecting(shown: dict[str, str]) -> Iterator[None]:
    """Collect logs of all loggers at DEBUG, warnings and printed output."""
    log, printed, root = io.StringIO(), io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(log), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as warned, redirect_stdout(printed), redirect_stderr(printed):
            warnings.simplefilter("always")
            yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        shown["logs of all libraries"] = log.getvalue()
        shown["warnings"] = " ".join(str(one.message) for one in warned)
        shown["printed output"] = printed.getvalue()


@pytest.mark.parametrize("name", ["dynamodb", "feast", "files", "http", "openai", "redis", "sql"])
def test_every_option_for_a_secret_has_one_here(name):
    secret = {word for word in connector_class(name).options if is_secret(word)}
    tried = {option for options in OPTIONS.values() if options.get("connector") == name
             for option, value in options.items() if SECRET in value}  # fmt: skip
    assert secret <= tried


QUICK = {"lookup.max-retries": "0", "lookup.timeout": "2 s"}


@pytest.fixture(scope="module")
def refusing():
    """Return the address of an HTTP server that refuses everything, and repeats what it was sent."""
    server = HttpServer(lambda requested: Reply(f"{requested.path} {sorted(requested.headers.items())}", 403)).start()
    yield server.url.removeprefix("http://")
    server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("case", [*OPTIONS, *REFERENCES])
def test_a_secret_is_shown_nowhere(case, tmp_path, monkeypatch, refusing):
    name, kind = REFERENCES.get(case, (case, ""))
    options = {option: value.replace("SERVER", refusing) for option, value in {**QUICK, **OPTIONS[name]}.items()}
    if options.get("url") == "duckdb:///BASE":
        options["url"] = f"duckdb:///{tmp_path}/a.duckdb"
        duckdb.connect(f"{tmp_path}/a.duckdb").close()
    if kind:
        [option] = [option for option, value in options.items() if SECRET in value]
        monkeypatch.setenv("PLACE_SECRET", options[option])
        (tmp_path / "secret").write_text(options[option])
        options[option] = "env:PLACE_SECRET" if kind == "env" else f"file:{tmp_path}/secret"
    shown = look(options, tmp_path)
    assert [place for place, text in shown.items() if is_shown(text)] == []
    assert {"an error on the driver", "an error of a worker", "the rows of a result"} & set(shown)


# ── in a Spark application ───────────────────────────────────────────────────────────────────────────────────

REFERRED = "Wm3xP8seCret5y62"


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    """Return what a Spark application showed of two secrets, by place."""
    folder = tmp_path_factory.mktemp("application")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / "secret_job.py", folder], input=SECRET, text=True,
        capture_output=True, env={**os.environ, "REFERRED": REFERRED}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads((folder / "shown.json").read_text())
    return {**shown, "logs of driver and workers": done.stderr + done.stdout}


@pytest.mark.extended
def test_no_secret_is_shown_by_a_spark_application(application):
    found = [place for place, text in application.items() if any(form in text for form in (SECRET, SECRET[:12]))]
    found += [place for place, text in application.items() if any(form in text for form in (REFERRED, REFERRED[:12]))]
    assert found == []


@pytest.mark.extended
def test_the_application_has_shown_what_it_was_to_show(application):
    assert "env:REFERRED" in application["pickles for the workers"]
    assert "SparkListenerJobStart" in application["the event log"]
    assert "not for *** ***" in application["the error of a job"]
    assert "deserializer = " in application["the error of a job"], "Local variables are to be shown."
    assert "not for *** ***" in application["dead letters"]
    assert "ann" in application["files of a cache that workers share"]
    assert "lookupcache:1:" in application["names and values of a store"]
    assert application["names and values of a store"].count("ann") == 3
    assert "env:REFERRED" in application["files of compiled plans"]
    assert application["statements about plans"].count("secret") >= 4, "Plans with a secret are refused."
    assert "env:REFERRED" in application["the command plan"]
    assert application["the command cache"].count("None") == 4, "No command has failed."
    assert "***" in application["statements of the catalog"]
    empty = {"the warehouse", "Spark's local files", "warnings of the driver"}
    assert {place for place, text in application.items() if not text.strip("[] ")} <= empty | {
        "logs of workers that Spark collects"
    }


@pytest.mark.extended
def test_the_documentation_lists_every_place(application, tmp_path):
    page = (ROOT / "docs" / "maintainers" / "promises.md").read_text()
    listed = set(re.findall(r"^- (.+)$", page.partition("## Places")[2].partition("\n## ")[0], re.MULTILINE))
    searched = set(application)
    for case in ("http token", "marked rows", "http bad url"):
        searched |= set(look({**QUICK, **OPTIONS[case]}, tmp_path))
    assert listed == searched
    assert len(listed) >= 20
