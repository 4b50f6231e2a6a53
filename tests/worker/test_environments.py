"""What a connector reads from outside of its options is part of the identity by which applications share rows.

Each case is a table in one environment. Each change of the environment, of a variable, a file, the working directory or
the user, must give another identity, but for changes of credentials.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import functools
import http.server
import importlib
import importlib.util
import math
import os
import pickle
import pwd
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme
from pyarrow import fs
from servers import RedisServer
from tenants import of_the_tenant

from lookupcache import LookupTable
from lookupcache.connector import Connector
from lookupcache.environment import cloud_settings
from lookupcache.errors import ConnectorError, LookupAdvice, LookupCacheError, OptionError
from lookupcache.functions.identity import stored_identity
from lookupcache.planner import explain
from lookupcache.testing.join import LocalJoin, Wanted, plan_of
from lookupcache.worker.runner import Layout, Runner, lookup_of_process
from lookupcache.worker.source import Source
from lookupcache.worker.source_identity import environment_of, shares_nothing

SCHEMA = "id BIGINT, name STRING"
WANTED = Wanted(key=("id",), columns=("name",))


@dataclass(frozen=True)
class Case:
    """A table's options, its environment, and one-by-one changes of that: ``counts``, or of credentials, ``secret``.

    Names with a dot or a slash are files in the home, which is the working directory, the others are variables. What
    follows a blank tells apart several changes of one.
    """

    options: dict[str, str]
    start: dict[str, str] = field(default_factory=dict)
    counts: dict[str, str] = field(default_factory=dict)
    secret: dict[str, str] = field(default_factory=dict)
    folder: bool = False
    user: bool = False


YAML = """
project: shop
provider: local
registry: {registry}
online_store: {{type: redis, connection_string: "{store}"}}
"""
YAML_OF_POSTGRES = """
project: shop
provider: local
registry: r
online_store: {type: postgres, host: db, user: ann, password: kx6, database: shop, sslcert_path: etc/client.pem}
"""
FEAST = {"connector": "feast", "view": "stats"}
SERVICES = "[main]\nuser={}\npassword={}\n[other]\nuser=bob\n"
ACCOUNT = '{{"gcs_base_url": "http://{}", "private_key": "{}"}}'
KEYS = "[d]\naws_access_key_id = {}\naws_secret_access_key = {}\n"


AUTHORITY = trustme.CA()


def _certificate(name):
    made = AUTHORITY.issue_cert(f"{name}@shop.test", common_name=name, organization_unit_name="shop")
    return made.private_key_and_cert_chain_pem.bytes().decode()


CERTIFICATES = {name: _certificate(name.split()[0]) for name in ("ann", "ann again", "bob")}


def _basic(login):
    return f"Basic {base64.b64encode(login.encode()).decode()}"


OF_LIBPQ = {
    "PGUSER": "ann", "PGOPTIONS": "-c role=ann", "PGHOSTADDR": "10.0.0.1", "PGPORT": "1", "PGTZ": "CET",
    "PGAPPNAME": "ann", "PGHOST": "/run/two", "PGGEQO": "off", "PGCLIENTENCODING": "LATIN1", "PGNEW": "yes",
    ".postgresql/postgresql.crt": CERTIFICATES["ann"],
}  # fmt: skip
OWN_CERTIFICATE = (
    {"etc/client.pem": CERTIFICATES["ann"]}, {"etc/client.pem": CERTIFICATES["bob"], "etc/client.pem again": "none"},
    {"etc/client.pem": CERTIFICATES["ann again"]},
)  # fmt: skip

NAMES_OF_CREDENTIALS = (
    "password", "passphrase", "passcode", "secret", "token", "authorization", "signature", "api_key", "private_key",
    "secret_key", "account_key",
)  # fmt: skip
LETTERS = "ABCDEFGHIJK"

FILES = tempfile.TemporaryDirectory()
"""Has a DuckDB file with a table ``t`` and a view ``v``."""
OF_DUCKDB = (
    {"HOME": "/elsewhere", "DUCKDB_S3_ENDPOINT": "test", "AWS_ACCESS_KEY_ID": "two", "PGHOST": "test",
     "PGUSER": "ann", "MYSQL_HOST": "test", "MYSQL_DATABASE": "test",
     ".aws/config": "[default]\nendpoint_url = http://test\n"},
    {"AWS_SECRET_ACCESS_KEY": "kx7", "PGPASSWORD": "kx7", "MYSQL_PWD": "kx7"},
)  # fmt: skip
"""What counts, and what does not."""

CASES = {
    "postgres": Case(
        {"connector": "sql", "url": "postgresql://db/shop", "table": "t"},
        counts=OF_LIBPQ,
        secret={"PGPASSWORD": "kx7", "PGPASSFILE": "kx7", "PGSSLKEY": "kx7", "PGBOUNCER_PORT": "kx7",
                "PG_VERSION": "kx7", "PGDATA": "kx7"},
        user=True,
    ),
    "postgres, tls.certificate": Case(
        {"connector": "sql", "url": "postgresql://ann@db/shop", "table": "t", "tls.certificate": "etc/client.pem"},
        *OWN_CERTIFICATE, folder=True,
    ),
    "mariadb, tls.certificate": Case(
        {"connector": "sql", "url": "mariadb://ann@db/shop", "table": "t", "tls.certificate": "etc/client.pem"},
        *OWN_CERTIFICATE, folder=True,
    ),
    "redis, tls.certificate": Case(
        {"connector": "redis", "url": "rediss://db/0", "key": "c:{id}", "tls.certificate": "etc/client.pem"},
        *OWN_CERTIFICATE, folder=True,
    ),
    "postgres, a service in a file": Case(
        {"connector": "sql", "url": "postgresql://ann@db/shop?service=main&servicefile=etc/pg_service.conf",
         "table": "t"},
        {"etc/pg_service.conf": SERVICES.format("ann", "kx6"),
         "elsewhere/etc/pg_service.conf": SERVICES.format("cem", "kx6")},
        {"etc/pg_service.conf": SERVICES.format("bob", "kx6")}, {"etc/pg_service.conf": SERVICES.format("ann", "kx7")},
        folder=True,
    ),
    "postgres, a certificate": Case(
        {"connector": "sql", "url": "postgresql://ann@db/shop?sslcert=etc/client.pem", "table": "t"},
        *OWN_CERTIFICATE, folder=True,
    ),
    "postgres, a certificate by a variable": Case(
        {"connector": "sql", "url": "postgresql://ann@db/shop", "table": "t"},
        {"PGSSLCERT": "etc/client.pem", **OWN_CERTIFICATE[0]}, *OWN_CERTIFICATE[1:], folder=True,
    ),
    "postgres, a certificate of a service": Case(
        {"connector": "sql", "url": "postgresql://ann@db/shop?service=main", "table": "t"},
        {".pg_service.conf": "[main]\nsslcert=etc/client.pem\n", **OWN_CERTIFICATE[0]}, *OWN_CERTIFICATE[1:],
        folder=True,
    ),
    "postgres, a certificate, by SQLAlchemy": Case(
        {"connector": "sql", "url": "postgresql+psycopg://ann@db/shop?sslcert=etc/client.pem", "table": "t"},
        *OWN_CERTIFICATE, folder=True,
    ),
    "mariadb, a certificate, by SQLAlchemy": Case(
        {"connector": "sql", "url": "mariadb+pymysql://ann@db/shop?ssl_cert=etc/client.pem", "table": "t"},
        *OWN_CERTIFICATE, folder=True,
    ),
    "postgres, a service": Case(
        {"connector": "sql", "url": "postgresql://ann@db/shop?service=main", "table": "t"},
        {".pg_service.conf": SERVICES.format("ann", "kx6"), "etc/pg_service.conf": SERVICES.format("cem", "kx6")},
        {".pg_service.conf": SERVICES.format("bob", "kx6"), "PGSERVICEFILE": "etc/pg_service.conf",
         "PGSYSCONFDIR": "etc", ".pg_service.conf again": SERVICES.format("bob\nuser=ann", "kx6"),
         ".pg_service.conf indented": SERVICES.format("ann", "kx6\n  host=db")},
        {".pg_service.conf": SERVICES.format("ann", "kx7")},
    ),
    "postgres, a service by a variable": Case(
        {"connector": "sql", "url": "postgresql://ann@db/shop", "table": "t"},
        {".pg_service.conf": SERVICES.format("ann", "kx6"), "PGSERVICE": "main"},
        {".pg_service.conf": SERVICES.format("bob", "kx6"), "PGSERVICE": "other"},
        {".pg_service.conf": SERVICES.format("ann", "kx7")},
    ),
    "postgres, by SQLAlchemy": Case(
        {"connector": "sql", "url": "postgresql+psycopg://db/shop", "table": "t"},
        counts=OF_LIBPQ,
        secret={"PGPASSWORD": "kx7", "PGPASSFILE": "kx7", "PGSSLKEY": "kx7", "PGBOUNCER_PORT": "kx7",
                "PG_VERSION": "kx7", "PGDATA": "kx7"},
        user=True,
    ),
    "mariadb, by SQLAlchemy": Case(
        {"connector": "sql", "url": "mariadb+pymysql://db/shop", "table": "t"}, counts={"LOGNAME": "ann"}, user=True
    ),
    "sqlite, by SQLAlchemy": Case(
        {"connector": "sql", "url": "env:A", "table": "t"}, {"A": "sqlite+pysqlite:///a", "TZ": "Europe/Berlin"},
        {"A": "sqlite+pysqlite:///b", "TZ": "Europe/Vienna"}, folder=True,
    ),
    "dynamodb": Case(
        {"connector": "dynamodb", "table": "t", "key": "id", "access-key-id": "env:B", "secret-access-key": "env:C"},
        {"B": "ann", "C": "kx6", ".aws/credentials": KEYS.format("one", "kx6")},
        {"B": "bob", "AWS_ENDPOINT_URL_DYNAMODB": "http://test", "AWS_PROFILE": "test", "AWS_REGION": "eu-west-1",
         "HTTPS_PROXY": "http://proxy", "no_proxy": "amazonaws.com",
         ".aws/config": "[default]\nregion = eu-west-1\n", ".aws/credentials": KEYS.format("two", "kx6")},
        {"C": "kx7", "AWS_SESSION_TOKEN": "kx7", "AWS_BATCH_JOB_ID": "kx7", "AWS_LAMBDA_LOG_STREAM_NAME": "kx7",
         ".aws/credentials": KEYS.format("one", "kx7"),
         ".aws/credentials with colons": KEYS.format("one", "kx7").replace(" =", ":")},
    ),
    "dynamodb, a file by a variable": Case(
        {"connector": "dynamodb", "table": "t", "key": "id", "access-key-id": "a", "secret-access-key": "env:B"},
        {"B": "kx6", "AWS_CONFIG_FILE": "$SHOP/aws.ini", "SHOP": "one",
         "one/aws.ini": "[default]\nregion = eu-west-1\n", "two/aws.ini": "[default]\nregion = eu-west-2\n"},
        {"SHOP": "two", "one/aws.ini": "[default]\nregion = eu-west-3\n"}, {"B": "kx7"}, folder=True,
    ),
    "mariadb": Case(
        {"connector": "sql", "url": "mariadb://db/shop", "table": "t"}, counts={"LOGNAME": "ann"}, user=True
    ),
    "mariadb, a user": Case(
        {"connector": "sql", "url": "mariadb://db/shop", "table": "t", "user": "env:A", "password": "env:B"},
        {"A": "ann", "B": "kx6"}, {"A": "bob"}, {"B": "kx7", "LOGNAME": "ann"},
    ),
    "sqlite": Case(
        {"connector": "sql", "url": "env:A", "table": "t"}, {"A": "sqlite:///a", "TZ": "Europe/Berlin"},
        {"A": "sqlite:///b", "TZ": "Europe/Vienna"}, folder=True
    ),
    "duckdb": Case(
        {"connector": "sql", "url": "env:A", "table": "t"}, {"A": "duckdb:///a"}, {"A": "duckdb:///b"}, folder=True
    ),
    "duckdb, a query": Case(
        {"connector": "sql", "url": "duckdb:////a", "query": "SELECT * FROM 'a.csv'"},
        counts=OF_DUCKDB[0], secret=OF_DUCKDB[1], folder=True
    ),
    "duckdb, a view": Case(
        {"connector": "sql", "url": f"duckdb:///{FILES.name}/shop.duckdb", "table": "V"}, counts=OF_DUCKDB[0],
        secret=OF_DUCKDB[1], folder=True
    ),
    "duckdb, a table beside a view": Case(
        {"connector": "sql", "url": f"duckdb:///{FILES.name}/shop.duckdb", "table": "t"},
        secret={**OF_DUCKDB[0], **OF_DUCKDB[1]}
    ),
    "files": Case({"connector": "files", "path": "env:A"}, {"A": "one"}, {"A": "two"}, folder=True),
    "files in S3": Case(
        {"connector": "files", "path": "s3://shop/t", "storage.endpoint_override": "env:A",
         "storage.access_key": "env:B", "storage.secret_key": "env:C"},
        {"A": "http://prod", "B": "ann", "C": "kx6", ".aws/credentials": KEYS.format("one", "kx6")},
        {"A": "http://test", "B": "bob", "AWS_ENDPOINT_URL_S3": "http://test", "AWS_PROFILE": "test",
         "aws_endpoint": "http://test", "endpoint": "http://test", "Endpoint_Url": "http://test", "PROXY_URL": "http://test",
         "REGION": "cn-north-1", "default_region": "cn-north-1",
         "AWS_ACCESS_KEY_ID": "two", ".aws/config": "[default]\nendpoint_url = http://test\n",
         ".aws/credentials": KEYS.format("two", "kx6")},
        {"C": "kx7", "AWS_SECRET_ACCESS_KEY": "kx7", "AWS_SESSION_TOKEN": "kx7",
         ".aws/credentials": KEYS.format("one", "kx7")},
    ),
    "files in GCS": Case(
        {"connector": "files", "path": "gs://shop/t"},
        {"https_proxy": "http://ann:kx6@proxy", "GOOGLE_SERVICE_ACCOUNT": "~/.gcs/account.json",
         ".gcs/account.json": ACCOUNT.format("one", "kx6")},
        {"https_proxy": "http://ann:kx6@test", "CLOUD_STORAGE_EMULATOR_ENDPOINT": "http://test",
         "CLOUD_STORAGE_TESTBENCH_ENDPOINT": "http://test", "GOOGLE_APPLICATION_CREDENTIALS": "/two.json",
         "GCLOUD_PROJECT": "two", "CLOUDSDK_CORE_PROJECT": "two", ".gcs/account.json": ACCOUNT.format("two", "kx6")},
        {"https_proxy": "http://ann:kx7@proxy", ".gcs/account.json": ACCOUNT.format("one", "kx7")},
    ),
    "files in Azure": Case(
        {"connector": "files", "path": "abfss://shop@two.dfs.core.windows.net/t"}, {},
        {"AZURE_STORAGE_ACCOUNT_NAME": "two", "azure_tenant_id": "two", "NO_PROXY": "windows.net"},
        {"AZURE_STORAGE_ACCOUNT_KEY": "kx7", "AZURE_CLIENT_SECRET": "kx7"},
    ),
    "http, a file": Case(
        {"connector": "http", "url": "file:etc/url", "query.session": "file:etc/session",
         "query.token": "file:etc/token"},
        {"etc/url": "https://api/{id}?session=1", "etc/session": "1", "etc/token": "kx6",
         "elsewhere/etc/url": "https://api/{id}?session=3", "elsewhere/etc/session": "1", "elsewhere/etc/token": "kx6"},
        {"etc/url": "https://api/{id}?session=2", "etc/session": "2"}, {"etc/token": "kx7"}, folder=True,
    ),
    "http, names of credentials": Case(
        {"connector": "http", "url": "https://api/{id}",
         **{f"query.{name}": f"env:{letter}" for letter, name in zip(LETTERS, NAMES_OF_CREDENTIALS, strict=True)}},
        dict.fromkeys(LETTERS, "kx6"), secret=dict.fromkeys(LETTERS, "kx7"),
    ),
    "http": Case(
        {"connector": "http", "url": "env:A", "header.X-Tenant": "env:B", "query.code": "env:C",
         "query.api_key": "env:D"},
        {"A": "https://api/{id}?key=AT&access_token=kx6", "B": "one", "C": "AT", "D": "kx6"},
        {"A": "https://api/{id}?key=DE&access_token=kx6", "B": "two", "C": "DE",
         "A again": "https://api/{id}?key=AT&access_token={name}"},
        {"A": "https://api/{id}?key=AT&access_token=kx7", "D": "kx7"},
    ),
    "http, numbers by the names of tokens": Case(
        {"connector": "http", "url": "env:A", "query.per_token": "env:B", "query.needs_token": "env:C",
         "query.password": "env:D"},
        {"A": "https://api/{id}?price_per_token=1", "B": "0.5", "C": "yes", "D": "1"},
        {"A": "https://api/{id}?price_per_token=2", "B": "0.75", "C": "no"}, {"D": "2"},
    ),
    "http, a login": Case(
        {"connector": "http", "url": "https://api/{id}", "header.Authorization": "env:A"},
        {"A": _basic("ann:kx6")}, {"A": _basic("bob:kx6"), "A unpadded": _basic("bob:kx6").rstrip("="),
        "A garbled": "Basic -", "A digest": "Digest username=ann"},
        {"A": _basic("ann:kx7"), "A unpadded": _basic("ann:kx6").rstrip("=").replace(" ", "\t")},
    ),
    "http, a login in a header of its own": Case(
        {"connector": "http", "url": "https://api/{id}", "header.X-Shop-Authorization": "env:A"},
        {"A": _basic("ann:kx6")}, {"A": _basic("bob:kx6")}, {"A": _basic("ann:kx7")},
    ),
    "http, a certificate": Case(
        {"connector": "http", "url": "https://api/{id}", "tls.certificate": "etc/client.pem"},
        *OWN_CERTIFICATE, folder=True,
    ),
    "files in S3, in a container": Case(
        {"connector": "files", "path": "s3://shop/t"}, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/one"},
        secret={"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/two"}
    ),
    "http, a token": Case(
        {"connector": "http", "url": "https://api/{id}", "header.Authorization": "env:A"},
        {"A": "Bearer kx6=="}, secret={"A": "Bearer kx7", "A again": "kx7"},
    ),
    "redis": Case(
        {"connector": "redis", "url": "env:A", "key": "c:{id}", "password": "env:B"},
        {"A": "redis://ann:kx6@db/0", "B": "kx6"}, {"A": "redis://bob:kx6@db/0"},
        {"A": "redis://ann:kx7@db/0", "B": "kx7"},
    ),
    "feast": Case(
        FEAST | {"config": "env:A"},
        {"A": YAML.format(registry="r", store="${B},password=kx6,db=1"), "B": "db:6379"},
        {"A": YAML.format(registry="r", store="${B},password=kx6,db=2"), "B": "test:6379", "PGUSER": "ann",
         "FEAST_S3_ENDPOINT_URL": "http://test", ".aws/config": "[default]\nendpoint_url = http://test\n",
         ".aws/credentials": KEYS.format("two", "kx6")},
        {"A": YAML.format(registry="r", store="${B},password=kx7,db=1")},
        folder=True,
    ),
    "feast, a repository": Case(
        FEAST | {"repo": "shop"},
        {"shop/feature_store.yaml": YAML.format(registry="r", store="db:6379,password=kx6"),
         "elsewhere/shop/feature_store.yaml": YAML.format(registry="r", store="db:6379,password=kx6")},
        {"shop/feature_store.yaml": YAML.format(registry="r", store="test:6379,password=kx6"),
         "shop/feature_store.yaml again": YAML.format(registry="s", store="db:6379,password=kx6")},
        {"shop/feature_store.yaml": YAML.format(registry="r", store="db:6379,password=kx7"),
         "shop/feature_store.yaml again": "# of the shop\n" + YAML.format(registry="r", store="db:6379,password=kx6")},
        folder=True,
    ),
    "feast, PostgreSQL by a certificate": Case(
        FEAST | {"config": YAML_OF_POSTGRES}, *OWN_CERTIFICATE, folder=True,
    ),
    "feast, Redis by a certificate": Case(
        FEAST | {"config": YAML.format(registry="r", store="db:6379,ssl=true,ssl_certfile=etc/client.pem")},
        *OWN_CERTIFICATE, folder=True,
    ),
    "feast, a password at the end": Case(
        FEAST | {"config": "env:A"}, {"A": YAML.format(registry="r", store="db:6379,password=kx6")},
        {"A": YAML.format(registry="r", store="test:6379,password=kx6"),
         "A again": YAML.format(registry="r", store="db:6379,password=kx6;db=2")},
        {"A": YAML.format(registry="r", store="db:6379,password=kx7")}, folder=True,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _file():
    with duckdb.connect(f"{FILES.name}/shop.duckdb") as database:
        database.execute("CREATE TABLE t AS SELECT 1 AS id, '' AS name")
        database.execute("CREATE VIEW v AS SELECT * FROM t")


@pytest.fixture(autouse=True)
def _zone():
    """Set the zone of the process when the variables are those from before again."""
    yield
    time.tzset()


def without_variables(environment):
    for variable in list(os.environ):
        if variable.startswith(("PG", "AWS_", "GOOGLE_", "GCLOUD_", "AZURE_", "FEAST_")) or "proxy" in variable.lower():
            environment.delenv(variable)


def put(environment, folder, name, value):
    """Set a variable, or write a file, which the test removes with its folder."""
    if "." in name or "/" in name:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(value)
    else:
        environment.setenv(name, value)


def skip_without_feast(options):
    if options["connector"] == "feast" and importlib.util.find_spec("feast") is None:
        pytest.skip("feast is not installed")


def table_of(options):
    return LookupTable("t", "id BIGINT" if options["connector"] == "feast" else SCHEMA, options)


def identity(options):
    """Return the identity of a table that is planned here, in this process as its worker."""
    time.tzset()
    table = table_of(options)
    found = Source(plan_of(table, Wanted(key=("id",))), table.connector).identity
    assert found.is_known
    return table.source, found.content


@pytest.mark.parametrize("name", CASES)
def test_the_identity_has_the_environment_but_no_credentials(name, monkeypatch, tmp_path):
    case = CASES[name]
    skip_without_feast(case.options)
    without_variables(monkeypatch)
    home = tmp_path / "home"
    (home / "elsewhere").mkdir(parents=True)
    monkeypatch.chdir(home)
    for variable, value in {"LOGNAME": "root", "HOME": str(home), **case.start}.items():
        put(monkeypatch, home, variable, value)
    first, seen = identity(case.options), {}
    for kind, changes in (("counts", case.counts), ("secret", case.secret)):
        for variable, value in changes.items():
            place, *_ = variable.split()
            with monkeypatch.context() as changed:
                put(changed, home, place, value)
                seen[kind, variable] = identity(case.options) != first
            if place in case.start:
                put(monkeypatch, home, place, case.start[place])
            else:
                (home / place).unlink(missing_ok=True)
    with monkeypatch.context() as changed:
        changed.chdir(home / "elsewhere")
        seen["folder", ""] = identity(case.options) != first
    assert seen == {(kind, variable): kind == "counts" or (kind == "folder" and case.folder) for kind, variable in seen}
    assert identity(case.options) == first


def test_each_variable_and_file_of_the_docs_has_a_case():
    docs = Path(__file__).parents[2].joinpath("docs/sharing.md").read_text()
    table = docs.partition("| read from outside |")[2].partition("\n\n")[0]
    changed, secret = (
        {name.split()[0] for case in CASES.values() for name in getattr(case, kind)} for kind in ("counts", "secret")
    )
    changed |= {"HOME", "PGSYSCONFDIR", "PGSERVICEFILE", *(name for case in CASES.values() for name in case.start)}
    named = re.findall(r"`(…?_?[A-Z][A-Z_]*[A-Z]_?…?|~/[\w./]+)`", table)
    assert len(named) > 20
    for name in named:
        read = secret if name in ("AWS_LAMBDA_…", "AWS_BATCH_…") else changed
        pattern = re.escape(name.removeprefix("~/")).replace("…", ".*")
        assert any(re.fullmatch(pattern, one, re.IGNORECASE) for one in read), name


SOCKETS = {
    "redis": {"connector": "redis", "url": "unix://ann:kx6@HERE/current/r.sock?db=1", "key": "c:{id}"},
    "postgres": {"connector": "sql", "url": "postgresql://ann@/shop?host=HERE/current&port=5433", "table": "t"},
    "postgres, in the place of a host": {
        "connector": "sql", "url": "postgresql://ann:kx6@ENCODED%2Fcurrent:5433/shop", "table": "t"
    },
    "postgres, by SQLAlchemy": {
        "connector": "sql", "url": "postgresql+psycopg://ann@/shop?host=HERE/current", "table": "t"
    },
    "mariadb": {"connector": "sql", "url": "mariadb://ann@/shop?unix_socket=HERE/current/m.sock", "table": "t"},
    "mariadb, by SQLAlchemy": {
        "connector": "sql", "url": "mariadb+pymysql://ann@/shop?unix_socket=HERE/current/m.sock", "table": "t"
    },
}  # fmt: skip


def test_feast_goes_on_with_the_sockets_to_which_links_led(tmp_path):
    skip_without_feast(FEAST)
    from lookupcache_feast.repository import with_real_sockets

    (tmp_path / "one").mkdir()
    (tmp_path / "current").symlink_to("one")
    for store in (
        {"type": "redis", "connection_string": f"db:6379,unix_socket_path={tmp_path}/current/r.sock,password=kx6"},
        {"type": "postgres", "host": f"{tmp_path}/current", "port": 5433},
    ):
        real = with_real_sockets({"project": "shop", "online_store": store})
        assert real == {"project": "shop", "online_store": {
            name: value.replace("current", "one") if name != "port" else value for name, value in store.items()
        }}  # fmt: skip
    for unchanged in ({"online_store": {"connection_string": "db:6379,db=1"}}, {"online_store": "redis"}, {}):
        assert with_real_sockets(unchanged) == unchanged


def placed(options, folder):
    """Return options with the path of a folder, as it is and encoded as in the place of a host."""
    paths = {"HERE": str(folder), "ENCODED": quote(str(folder), safe="")}
    return {option: functools.reduce(lambda text, mark: text.replace(mark, paths[mark]), paths, value)
            for option, value in options.items()}  # fmt: skip


@pytest.mark.parametrize("options", [
    {"connector": "files", "path": "current"}, {"connector": "sql", "url": "sqlite:///current/a", "table": "t"},
    {"connector": "sql", "url": "sqlite+pysqlite:///current/a", "table": "t"},
    {"connector": "sql", "url": "duckdb:///current/a", "table": "t"},
    FEAST | {"repo": "current"},
    FEAST | {"config": "{project: shop, provider: local, registry: r, online_store: {path: current/online.db}}"},
    FEAST | {"config": "{project: shop, provider: local, registry: {path: current/r}, online_store: {type: redis}}"},
    FEAST | {"config": "{project: shop, provider: local, registry: r, online_store: {type: redis, "
             "connection_string: 'db:6379,unix_socket_path=HERE/current/r.sock,db=1'}}"},
    FEAST | {"config": "{project: shop, provider: local, registry: r, online_store: {type: postgres, "
             "host: HERE/current, port: 5433, user: ann, database: shop}}"},
    *SOCKETS.values(),
], ids=["files", "sqlite", "sqlite, by SQLAlchemy", "duckdb", "feast", "feast, store", "feast, registry",
        "feast, Redis", "feast, PostgreSQL", *SOCKETS])  # fmt: skip
def test_a_link_that_leads_elsewhere_is_another_identity(options, monkeypatch, tmp_path):
    skip_without_feast(options)
    monkeypatch.chdir(tmp_path)
    options = placed(options, tmp_path)
    found = []
    for folder in ("one", "one", "two"):
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "feature_store.yaml").write_text(YAML.format(registry="r", store="db:6379"))
        Path("current").unlink(missing_ok=True)
        Path("current").symlink_to(folder)
        found.append(identity(options))
    assert found[0] == found[1] != found[2]


def test_a_file_that_is_written_has_the_views_of_before(tmp_path, monkeypatch):
    path = tmp_path / "a.duckdb"
    options = {"connector": "sql", "url": f"duckdb:///{path}", "table": "t"}
    with duckdb.connect(path) as database:
        database.execute("CREATE TABLE t (id BIGINT, name TEXT)")
    first = identity(options)
    write = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); c.execute('INSERT INTO t VALUES (1, NULL)');"
    command = [sys.executable, "-c", f"{write} c.execute('CHECKPOINT'); print(flush=True); input()", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        assert identity(options) == first
        monkeypatch.setattr("lookupcache_sql.duckdb._VIEWS", {})
        assert identity(options) != first
        writer.communicate(b"\n")
    assert identity(options) == first
    with duckdb.connect(path) as database:
        database.execute("DROP TABLE t; CREATE VIEW t AS SELECT 1 AS id, '' AS name")
    assert identity(options) != first


def test_a_variable_with_the_folder_of_a_socket_counts_with_where_it_leads(monkeypatch, tmp_path):
    monkeypatch.setenv("PGHOST", str(tmp_path / "current"))
    options = {"connector": "sql", "url": "postgresql+psycopg://ann@/shop", "table": "t"}
    found = []
    for folder in ("one", "one", "two"):
        (tmp_path / "current").unlink(missing_ok=True)
        (tmp_path / "current").symlink_to(folder)
        found.append(identity(options))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("name", SOCKETS)
def test_a_task_goes_on_with_the_socket_to_which_a_link_led(name, monkeypatch, tmp_path):
    options = placed(SOCKETS[name], tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "current").symlink_to("one")
    connector = table_of(options).connector
    connector.resolve()
    before = connector.environment()
    connector.pin()
    places = unquote(connector.settings["url"])
    assert (str(tmp_path / "one") in places, "current" in places) == (True, False)
    assert connector.environment() == before
    unchanged = {option: value.replace("current", "one") for option, value in options.items()}
    again = table_of(unchanged).connector
    again.resolve()
    again.pin()
    assert again.settings["url"] == unchanged["url"]


LINKED = {
    "sqlite": {"connector": "sql", "url": "sqlite:///current/a.sqlite", "table": "t"},
    "sqlite, by SQLAlchemy": {"connector": "sql", "url": "sqlite+pysqlite:///current/a.sqlite?timeout=5", "table": "t"},
    "sqlite, by a reference": {"connector": "sql", "url": "file:current/url", "table": "t"},
    "duckdb": {"connector": "sql", "url": "duckdb:///current/a.duckdb", "table": "t"},
    "files": {"connector": "files", "path": "current/rows"},
}


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """Tables under two folders, with the folder's name in each row; returns what points the link at a folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        rows = f"SELECT CAST(1 AS BIGINT) AS id, '{name}' AS name UNION ALL SELECT 2, '{name}'"
        Path(name, "rows").mkdir(parents=True)
        Path(name, "url").write_text(f"sqlite:///{tmp_path}/{name}/a.sqlite")
        with contextlib.closing(sqlite3.connect(f"{name}/a.sqlite")) as database, database:
            database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
            database.execute(f"INSERT INTO t {rows}")
        with duckdb.connect(f"{name}/a.duckdb") as database:
            database.execute(f"CREATE TABLE t AS {rows}")
        pq.write_table(pa.table({"id": [1, 2], "name": [name] * 2}), f"{name}/rows/a.parquet")

    def point(name):
        Path("new").symlink_to(name)
        Path("new").rename("current")

    return point


KEPT = {"lookup.cache": "LRU", "lookup.cache.path": "kept"}, {"lookup.cache": "LRU", "lookup.cache.store": "kept"}


@pytest.mark.parametrize("kept", KEPT, ids=["path", "store"])
@pytest.mark.parametrize("name", LINKED)
def test_rows_are_kept_as_those_of_where_a_link_led(name, kept, linked, tmp_path):
    """A link that changes while a task runs, which reads on from where it led; the next one sees what is there now."""
    options = {option: value.replace("kept", str(tmp_path / "kept")) for option, value in kept.items()}
    linked("one")
    with LocalJoin(table_of(LINKED[name] | options), WANTED) as join:
        assert join.rows([(1,)]) == [("one",)]
        linked("two")
        assert join.rows([(2,)]) == [("one",)]
        assert join.source.is_outdated
    for folder, requested in (("one", 0), ("two", 2), ("two", 0)):
        linked(folder)
        with LocalJoin(table_of(LINKED[name] | options), WANTED) as join:
            assert join.rows([(1,), (2,)]) == [(folder,)] * 2
            assert (join.source.counters["requested_keys"], join.source.is_outdated) == (requested, False)


@pytest.mark.parametrize("kept", [*KEPT, {"lookup.cache": "LRU"}], ids=["path", "store", "nothing kept"])
def test_a_new_task_reads_from_where_a_link_leads_now(kept, linked, tmp_path, monkeypatch):
    options = {**LINKED["files"], **kept, "lookup.cache.max-rows": "1"}
    table = table_of({option: value.replace("kept", str(tmp_path / "kept")) for option, value in options.items()})
    plan, found = plan_of(table, WANTED), []
    monkeypatch.setattr("lookupcache.worker.runner._lookups", OrderedDict())
    for key, folder in enumerate(("one", "two", "two", "one")):
        linked(folder)
        lookup = lookup_of_process(plan, lambda: pickle.loads(pickle.dumps(table.connector)))
        join = Runner(plan, Layout(("id",), (0,)), lookup)
        [batch] = join.run([pa.record_batch({"id": [1 + key % 2]})])
        found.append(batch.column(batch.num_columns - 1)[0].as_py())
    lookup.disconnect()
    assert found == ["one", "two", "two", "one"]


def test_a_connection_to_elsewhere_is_refused_while_rows_are_kept(linked, tmp_path):
    table = table_of({**LINKED["sqlite, by a reference"], "lookup.cache": "LRU", "lookup.cache.path": str(tmp_path)})
    linked("one")
    with LocalJoin(table, WANTED) as join:
        assert join.rows([(1,)]) == [("one",)]
        linked("two")
        with pytest.raises(ConnectorError, match="was changed while the task ran"):
            join.source.scan()


LITERAL = {
    "mariadb": {"connector": "sql", "url": "mariadb://ann@db/shop", "table": "t", "password": "kx6"},
    "mariadb, a URL": {"connector": "sql", "url": "mariadb://ann:kx6@db/shop", "table": "t"},
    "http": {"connector": "http", "url": "https://api/{id}", "header.Authorization": "Bearer kx6"},
    "http, a URL": {"connector": "http", "url": "https://api/{id}?access_token=kx6"},
    "redis": {"connector": "redis", "url": "redis://ann@db/0", "key": "c:{id}", "password": "kx6"},
    "redis, a URL": {"connector": "redis", "url": "redis://ann:kx6@db/0", "key": "c:{id}"},
    "openai": {"connector": "openai", "url": "http://h/v1", "task": "chat", "model": "m", "prompt": "{id}",
               "api-key": "kx6"},
    "dynamodb": {"connector": "dynamodb", "table": "t", "key": "id", "access-key-id": "ann",
                 "secret-access-key": "kx6"},
}  # fmt: skip


@pytest.mark.parametrize("name", LITERAL)
def test_a_credential_counts_where_an_option_states_it_itself(name, monkeypatch):
    """As docs/sharing.md says; by a reference, a new one is the same identity."""
    without_variables(monkeypatch)
    options = LITERAL[name]
    [stated] = [option for option, value in options.items() if "kx6" in value]
    new = options | {stated: options[stated].replace("kx6", "kx7")}
    found = []
    for one in (options, new):
        monkeypatch.setenv("A", one[stated])
        found.append((identity(one), identity(one | {stated: "env:A"})))
    assert found[0][0] != found[1][0]
    assert found[0][1] == found[1][1]


class OfPath(Connector):
    def lookup(self, request, keys): ...

    def environment(self):
        return {"path": Path("kept")}

    identity = environment


def test_what_is_no_json_data_is_an_error_that_names_the_connector():
    with pytest.raises(ConnectorError, match=r"OfPath\.environment returned what is no JSON data: .*PosixPath"):
        environment_of(OfPath(pa.schema([]), {}))
    with pytest.raises(ConnectorError, match=r"OfPath\.identity returned what is no JSON data: .*PosixPath"):
        _ = table_of({"connector": f"{__name__}:OfPath"}).source


def test_a_literal_configuration_counts_without_its_password():
    skip_without_feast(FEAST)
    stores = ("db:6379,password=kx6", "db:6379,password=kx7", "test:6379,password=kx6")
    first, rotated, other = (identity(FEAST | {"config": YAML.format(registry="r", store=one)}) for one in stores)
    assert first == rotated != other


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("name", ["postgres", "mariadb", "mariadb, a user"])
def test_the_identity_has_the_system_user_if_it_is_the_login(name, monkeypatch):
    monkeypatch.setenv("A", "ann")
    monkeypatch.setenv("B", "kx6")
    first = identity(CASES[name].options)
    os.seteuid(65534)
    try:
        assert (identity(CASES[name].options) != first) == CASES[name].user
    finally:
        os.seteuid(0)


def start(name, monkeypatch, tmp_path):
    """Make the environment in which a case starts."""
    skip_without_feast(CASES[name].options)
    without_variables(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for variable, value in {"HOME": str(tmp_path), **CASES[name].start}.items():
        put(monkeypatch, tmp_path, variable, value)


@pytest.mark.parametrize("name", CASES)
def test_a_user_without_a_name_has_an_identity(name, monkeypatch, tmp_path):
    """As in a container, whose user may be any number."""
    start(name, monkeypatch, tmp_path)
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    identity(CASES[name].options)


@pytest.mark.parametrize("name", CASES)
def test_a_removed_working_directory_matters_to_relative_paths_only(name, monkeypatch, tmp_path):
    start(name, monkeypatch, tmp_path)
    options = CASES[name].options
    identity(options)  # What it imports cannot be found later.
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with contextlib.nullcontext() if not CASES[name].folder else contextlib.suppress(LookupCacheError, AssertionError):
        identity(options)


@pytest.mark.parametrize("options", [
    {"connector": "files", "path": "t"}, {"connector": "sql", "url": "sqlite:///a", "table": "t"},
    {"connector": "sql", "url": "sqlite+pysqlite:///a", "table": "t"},
    {"connector": "sql", "url": "duckdb:///a", "table": "t"},
    {"connector": "sql", "url": "sqlite:////a", "table": "t", "lookup.cache": "LRU", "lookup.cache.path": "kept"},
], ids=["files", "sqlite", "sqlite, by SQLAlchemy", "duckdb", "lookup.cache.path"])  # fmt: skip
def test_a_relative_path_in_a_removed_working_directory_is_refused(options, monkeypatch, tmp_path):
    table_of(options)  # What it imports cannot be found later.
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(OptionError, match="is a relative path, and this process's working directory was removed"):
        _ = table_of(options).config.located(), table_of(options).source


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("name", CASES)
def test_a_home_that_cannot_be_read_fails_no_join(name, monkeypatch, tmp_path):
    start(name, monkeypatch, tmp_path)
    (tmp_path / ".duckdb" / "stored_secrets").mkdir(parents=True)
    connector = table_of(CASES[name].options).connector
    environment_of(connector)  # What it imports cannot be read later.
    tmp_path.chmod(0o700)
    os.seteuid(54321)
    try:
        found = environment_of(connector)
    finally:
        os.seteuid(0)
    assert found is None or name not in ("postgres, a service", "duckdb, a query", "files in S3")


@pytest.mark.parametrize(
    "options",
    [
        {"connector": "sql", "url": "postgresql://ann@db/shop?service=nowhere", "table": "t"},
        {"connector": "sql", "url": "mysql+pymysql://ann@db/shop?read_default_group=shop", "table": "t"},
        {
            "connector": "sql",
            "url": "duckdb:///a",
            "query": "SELECT 1 AS id, '' AS name",
            "env": {".duckdb/stored_secrets/s3.duckdb_secret": "kx7"},
        },
        {
            "connector": "sql",
            "url": "duckdb:///a",
            "query": "SELECT * FROM postgres_scan('', 'public', 't')",
            "env": {"PGSERVICE": "main"},
        },
        {
            "connector": "sql",
            "url": "duckdb:///a",
            "query": "SELECT * FROM postgres_scan('service=main', 'public', 't')",
        },
        {
            "connector": "sql",
            "url": f"duckdb:///{FILES.name}/shop.duckdb",
            "table": "v",
            "env": {".duckdb/stored_secrets/s3.duckdb_secret": "kx7"},
        },
        {
            "connector": "dynamodb",
            "table": "t",
            "key": "id",
            "region": "eu-west-1",
            "env": {".aws/credentials": KEYS.format("one", "kx7").replace("[d]", "[other]")},
        },
        {
            "connector": "dynamodb",
            "table": "t",
            "key": "id",
            "region": "eu-west-1",
            "profile": "d",
            "env": {"AWS_ACCESS_KEY_ID": "one"},
        },
        {"connector": "files", "path": "hdfs://name/t"},
        FEAST | {"config": "project: shop\nprovider: aws\nregistry: r\n"},
        FEAST | {"config": YAML.format(registry="r", store="db:6379"), "env": {"PGSERVICE": "main"}},
    ],
    ids=lambda options: options["connector"],
)
def test_nothing_is_shared_if_the_origin_of_rows_is_unknown(options, tmp_path, monkeypatch):
    skip_without_feast(options)
    without_variables(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "spark"))
    options = dict(options)
    for name, value in options.pop("env", {}).items():
        put(monkeypatch, tmp_path, name, value)
    (tmp_path / "spark").mkdir()
    kept = tmp_path / "kept"
    for place in ("path", "store"):
        table = table_of({**options, "lookup.cache": "LRU", f"lookup.cache.{place}": str(kept)})
        plan = plan_of(table, Wanted(key=("id",)))
        assert "not shared" in explain(plan, shared=not shares_nothing(plan, table.connector))
        with LocalJoin(table, Wanted(key=("id",))):
            assert not kept.exists()
    named = table_of({**table.options, "lookup.cache.store.name": "mine"})
    assert not shares_nothing(plan_of(named, Wanted(key=("id",))), named.connector)


@pytest.mark.parametrize("is_reused", [False, True])
@pytest.mark.parametrize("kind", ["path", "store"])
def test_variables_that_a_function_names_tell_rows_apart(monkeypatch, tmp_path, kind, is_reused):
    """As they are in the worker: those of the driver may have other values."""
    options = {"lookup.cache": "LRU", f"lookup.cache.{kind}": str(tmp_path / "kept")}
    found, table = [], None
    for tenant, token in (("ann", "kx6"), ("bob", "kx6"), ("ann", "kx7")):
        monkeypatch.setenv("SHOP_TENANT", "driver")
        if table is None or not is_reused:
            table = LookupTable.from_function("t", SCHEMA, key=["id"], function=of_the_tenant, options=options)
        plan_of(table, WANTED)
        monkeypatch.setenv("SHOP_TENANT", tenant)
        monkeypatch.setenv("SHOP_TOKEN", token)
        assert "SHOP_TENANT" in pickle.loads(pickle.dumps(table.connector)).code_variables
        with LocalJoin(table, WANTED) as join:
            found.append((join.rows([(1,)]), join.source.counters["requested_keys"]))
    assert found == [([("ann",)], 1), ([("bob",)], 1), ([("ann",)], 0)]


CODE = """
from lookupcache.connector import Connector
def rows(id): return [{"id": id, "name": "ann"}]
class Own(Connector):
    def __init__(self, schema, options): super().__init__(schema, {})
    def lookup(self, request, keys): return []
"""


@pytest.mark.parametrize("kind", ["function", "connector"])
@pytest.mark.parametrize("options", [{"lookup.cache.path": "kept"}, {"lookup.cache.store": "/kept"}])
def test_a_worker_whose_code_is_not_the_drivers_has_an_identity_of_its_own(monkeypatch, tmp_path, kind, options):
    """It does not count where nothing is kept by the code: without a path and a store, by a version, by a name."""
    (tmp_path / "code_of_test.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "code_of_test", raising=False)
    monkeypatch.setattr("lookupcache.functions.loaded_code._warned", set())
    monkeypatch.setattr("lookupcache.functions.loaded_code.STARTED", math.inf)  # As if the file were older.
    code = importlib.import_module("code_of_test")

    def identity(options, *texts):
        """Return the identity of the source in another process; with texts, these are those of the driver."""
        options = {"lookup.cache": "LRU", **options}
        if kind == "function":
            table = LookupTable.from_function("t", SCHEMA, key=["id"], function=code.rows, options=options)
        else:
            table = LookupTable("t", SCHEMA, {"connector": "code_of_test:Own", **options})
        plan, sent = plan_of(table, Wanted(key=("id",))), pickle.loads(pickle.dumps(table.connector))
        if sent.code_texts is None:
            return "not compared"
        assert Source(plan, sent).identity.is_known
        assert [name for name, *_ in sent.code_texts[1]] == ["code_of_test"]
        sent.code_texts = "the driver's process", texts or sent.code_texts[1]
        return Source(plan, sent).identity

    same, other = identity(options), ("code_of_test", "0", "0")
    assert same.is_known
    with pytest.warns(LookupAdvice, match="'code_of_test'.*\n\nHint: Start the application again"):
        changed = identity(options, other)
    assert not changed.is_known
    assert changed.content != same.content
    assert identity(options, other) == changed  # Without a warning, which would be an error.
    for more in ({}, {**options, "lookup.cache.version": "1"}):
        assert identity(more, other) == "not compared"
    if "lookup.cache.store" in options:
        assert identity({**options, "lookup.cache.store.name": "mine"}, other).is_known


def test_variables_a_function_names_tell_stored_values_apart(monkeypatch):
    found = []
    for tenant in ("ann", "ann", "bob"):
        monkeypatch.setenv("SHOP_TENANT", tenant)
        found.append(stored_identity(of_the_tenant, None))
    assert found[0] == found[1] != found[2]
    assert stored_identity(of_the_tenant, "1") == stored_identity(of_the_tenant, "1")


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A server, or a proxy, where nothing is found."""

    def do_GET(self):
        self.server.asked += 1
        self.send_error(404)

    do_HEAD = do_POST = do_CONNECT = do_GET  # noqa: N815 - the names that http.server calls

    def log_message(self, *_): ...


def read_delta():
    import deltalake

    deltalake.DeltaTable("s3://shop/t")


def read_gcs():
    fs.GcsFileSystem(anonymous=True, retry_time_limit=dt.timedelta(seconds=1)).get_file_info("shop/t")


def read_dynamodb():
    import boto3

    boto3.client("dynamodb", endpoint_url="http://db.test").list_tables()


LED_BY = [
    pytest.param(
        read_delta,
        ["aws_endpoint", "ENDPOINT", "Endpoint_Url", "PROXY_URL", "HTTPS_PROXY"],
        marks=pytest.mark.leaves("a file or socket is left open"),
    ),
    (read_gcs, ["CLOUD_STORAGE_EMULATOR_ENDPOINT", "CLOUD_STORAGE_TESTBENCH_ENDPOINT", "https_proxy"]),
    (read_dynamodb, ["HTTP_PROXY"]),
]


@pytest.mark.extended
@pytest.mark.parametrize(("read", "names"), LED_BY, ids=lambda one: getattr(one, "__name__", ""))
def test_variables_that_lead_a_client_elsewhere_are_its_settings(read, names, monkeypatch):
    """The drawn environments hold what the clients really do."""
    without_variables(monkeypatch)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    before = cloud_settings()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in names:
            server.asked = 0
            with monkeypatch.context() as changed:
                changed.setenv(name, f"http://127.0.0.1:{server.server_port}")
                with contextlib.suppress(Exception):
                    read()
                assert cloud_settings() != before
            assert server.asked > 0, name
        server.shutdown()


CALLS = {
    "lookup.timeout": "50 s", "lookup.max-retries": "1", "lookup.retry.delay": "1 ms", "lookup.async.capacity": "3",
    "lookup.batch.max-size": "7", "lookup.rate-limit": "1000", "lookup.shuffle": "true", "lookup.on-error": "null",
    "lookup.error-column": "error", "lookup.breaker.failures": "9", "lookup.batch.max-delay": "1 ms",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["path", "store"])
def test_calls_and_files_that_no_function_reads_do_not_matter(kind, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.executescript(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, note TEXT); INSERT INTO t VALUES (1, 'Ann', '')"
        )
    options = {
        "connector": "sql", "url": f"sqlite:///{tmp_path}/shop.db", "table": "t", "lookup.cache": "LRU",
        f"lookup.cache.{kind}": str(tmp_path / "kept"),
    }  # fmt: skip

    def found(schema, **more):
        with LocalJoin(LookupTable("t", schema, options | more), WANTED) as join:
            return [row[0] for row in join.rows([(1,)])], join.source.counters["requested_keys"]

    assert found(SCHEMA) == (["Ann"], 1)
    assert found(f"{SCHEMA}, note STRING", **CALLS) == (["Ann"], 0)
    # Entries in the files of a host expire and are evicted by one set of limits.
    assert found(SCHEMA, **{"lookup.cache.max-rows": "9"}) == (["Ann"], int(kind == "path"))


# ── with servers ─────────────────────────────────────────────────────────────────────────────────────────────


def rows(options, tmp_path, kind):
    """Return the rows of a table whose cache, of this kind, other applications keep."""
    shared = {"lookup.cache": "LRU", f"lookup.cache.{kind}": str(tmp_path / kind)}
    with LocalJoin(LookupTable("t", SCHEMA, {"connector": "sql", **options, **shared}), WANTED) as join:
        return join.rows([(1,), (2,)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["path", "store"])
def test_postgres_rows_are_those_of_the_environment(postgres_server, monkeypatch, tmp_path, kind):
    """What libpq reads is part of the identity: the drawn environments hold what the driver really does."""
    server = postgres_server
    statements = ["DROP SCHEMA IF EXISTS ann, bob CASCADE"]
    for user in ("ann", "bob"):
        statements += [
            f"DROP ROLE IF EXISTS {user}", f"CREATE ROLE {user} LOGIN PASSWORD 'kx7'", f"CREATE SCHEMA {user}",
            f"GRANT USAGE ON SCHEMA {user} TO {user}", f"CREATE TABLE {user}.mine (id INT PRIMARY KEY, name TEXT)",
            f"INSERT INTO {user}.mine VALUES (1, '{user}')", f"GRANT SELECT ON {user}.mine TO {user}",
        ]  # fmt: skip
    server.run(*statements)
    place = server.url.rpartition("@")[2]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSWORD", "kx7")

    def of_both(url, set_environment):
        found = []
        for user in ("ann", "bob"):
            with monkeypatch.context() as changed:
                set_environment(changed, user)
                found.append(rows({"url": url, "table": "mine"}, tmp_path, kind))
        return found

    def write_service(_, user):
        (tmp_path / ".pg_service.conf").write_text(f"[main]\noptions=-c search_path={user}\n")

    expected = [[("ann",)], [("bob",)]]
    try:
        assert of_both(f"postgresql://{place}", lambda env, user: env.setenv("PGUSER", user)) == expected
        assert of_both(server.url, lambda env, user: env.setenv("PGOPTIONS", f"-c search_path={user}")) == expected
        assert of_both(f"{server.url}?service=main", write_service) == expected
    finally:
        server.run("DROP SCHEMA ann, bob CASCADE", "DROP ROLE ann", "DROP ROLE bob")


@pytest.mark.slow
def test_mariadb_rows_are_those_of_the_user_of_the_system(maria_server, tmp_path):
    """The driver takes a login from the system when it is imported, so each user has a process."""
    server = maria_server
    server.run(
        "CREATE OR REPLACE TABLE shop.of_all (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO shop.of_all VALUES (1, 'ann'), (2, 'bob')",
        "CREATE OR REPLACE SQL SECURITY DEFINER VIEW shop.mine AS "
        "SELECT * FROM shop.of_all WHERE name = substring_index(session_user(), '@', 1)",
        *(f"CREATE OR REPLACE USER {user}@'%'" for user in ("ann", "bob")),
        *(f"GRANT SELECT ON shop.mine TO {user}@'%'" for user in ("ann", "bob")),
    )
    options = {"url": f"mariadb://{server.url.rpartition('@')[2]}", "table": "mine", "tls.mode": "disable"}
    for kind in ("path", "store"):
        code = f"""
import sys, pathlib
sys.path[:0] = {sys.path!r}
from test_environments import rows
print(rows({options!r}, pathlib.Path({str(tmp_path)!r}), {kind!r}))
"""
        found = [
            subprocess.run([sys.executable, "-c", code], env={**os.environ, "LOGNAME": user}, capture_output=True,
                           text=True, cwd=Path(__file__).parent).stdout
            for user in ("ann", "bob")
        ]  # fmt: skip
        assert found == ["[('ann',)]\n", "[('bob',)]\n"]


def _password_of(server):
    return server.url.partition("://shop:")[2].partition("@")[0]


LATER = {
    "postgres, the folder": ("postgresql://shop:PASSWORD@/postgres?host=HERE/current&port=PORT", "one"),
    "postgres, the socket": ("postgresql://shop:PASSWORD@/postgres?host=HERE/fixed&port=PORT", "refused"),
    "postgres, a variable, by SQLAlchemy": ("postgresql+psycopg://shop:PASSWORD@/postgres", "refused"),
    "mariadb, the folder": ("mariadb://shop:PASSWORD@/shop?unix_socket=HERE/current/s", "one"),
    "mariadb, the folder, by SQLAlchemy": ("mariadb+pymysql://shop:PASSWORD@/shop?unix_socket=HERE/current/s", "one"),
    "redis, the folder": ("unix://HERE/current/s", "one"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kept", KEPT, ids=["path", "store"])
@pytest.mark.parametrize("name", LATER)
def test_a_connection_that_a_task_makes_later_leads_where_its_first_did(name, kept, request, tmp_path, monkeypatch):
    """The server ends all connections after a link of its socket was changed, or of the folder with it.

    What a link to a folder led to is read on; where a driver follows a link itself, the task fails. So no row is kept
    as one of a place where it is not from.
    """
    url, expected = LATER[name]
    kind = name.partition(",")[0]
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            # The path of a socket has 107 letters at most, and that of a test's folder may have 90.
            socket = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redis"))) / "socket"
            server = RedisServer("--unixsocket", str(socket))
            stack.callback(server.close)
            client = stack.enter_context(server.start().client())
            client.mset({"c:1": "one", "c:2": "one"})
            end = functools.partial(client.execute_command, "CLIENT", "KILL", "TYPE", "normal")
            file, options = "s", {"connector": "redis", "key": "c:{id}", "type": "string"}
        else:
            server = request.getfixturevalue(f"{kind.replace('db', '')}_server")
            if server.external_url:
                pytest.skip("the server given by the environment may be on another machine")
            server.run("DROP TABLE IF EXISTS sockets", "CREATE TABLE sockets (id INT PRIMARY KEY, name VARCHAR(9))",
                       "INSERT INTO sockets VALUES (1, 'one'), (2, 'one')")  # fmt: skip
            file = f".s.PGSQL.{server.port}" if kind == "postgres" else "s"
            socket = server.folder / ("socket" if kind == "mariadb" else file)
            end, options = functools.partial(_end_connections, server, kind), {"connector": "sql", "table": "sockets"}
        # Another name of a socket is another place, as far as can be seen from here.
        for place in ("one", "two"):
            folder = socket.parent / f"{tmp_path.name}-{place}"
            folder.mkdir()
            stack.callback(shutil.rmtree, folder)
            folder.chmod(0o755)
            os.link(socket, folder / file)

        def point(place):
            (tmp_path / "new").symlink_to(socket.parent / f"{tmp_path.name}-{place}")
            (tmp_path / "new").rename(tmp_path / "current")

        (tmp_path / "fixed").mkdir()
        (tmp_path / "fixed" / file).symlink_to(tmp_path / "current" / file)
        if "a variable" in name:
            monkeypatch.setenv("PGHOST", str(tmp_path / "current"))
            monkeypatch.setenv("PGPORT", str(server.port))
        url = url.replace("HERE", str(tmp_path)).replace("PORT", str(server.port))
        options |= {"url": url.replace("PASSWORD", _password_of(server)), "lookup.retry.delay": "1 ms"}
        options |= {option: value.replace("kept", str(tmp_path / "kept")) for option, value in kept.items()}
        point("one")
        with LocalJoin(LookupTable("t", SCHEMA, options), WANTED) as join:
            assert join.rows([(1,)]) == [("one",)]
            point("two")
            end()
            if expected == "refused":
                with pytest.raises(ConnectorError, match="was changed while the task ran"):
                    join.rows([(2,)])
            else:
                assert join.rows([(2,)]) == [(expected,)]
        for requested in (2, 0):
            with LocalJoin(LookupTable("t", SCHEMA, options), WANTED) as join:
                assert join.rows([(1,), (2,)]) == [("one",), ("one",)]
                assert join.source.counters["requested_keys"] == requested


def _end_connections(server, kind):
    """End all connections but one's own."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        if kind == "postgres":
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop' "
                           "AND pid <> pg_backend_pid()")  # fmt: skip
            cursor.fetchall()
        else:
            cursor.execute("SELECT id FROM information_schema.processlist "
                           "WHERE user = 'shop' AND id <> connection_id()")  # fmt: skip
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")
