"""The contract, the registry, and what a connector may show of itself."""

from __future__ import annotations

import asyncio
import pickle
import sys
import types
from importlib.metadata import EntryPoint

import pyarrow as pa
import pytest
from lookupcache_sql.connector import SqlConnector

from lookupcache import connector as room
from lookupcache.connector import (
    Connector,
    LookupRequest,
    build_connector,
    connector_class,
    connector_names,
    hide_userinfo,
    is_retryable,
    is_secret,
    offers,
)
from lookupcache.errors import ConnectorError, LookupCacheError, OptionError, SourceError
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable
from lookupcache.tls import TLS_OPTIONS

SCHEMA = parse_ddl("id BIGINT")


class Shop(Connector):
    options = {"url": "Where the shop is.", "password": "Its password.", "badge": "Who asks.", "size": "How many."}  # noqa: RUF012
    required = ("url",)
    secrets = ("badge",)

    def lookup(self, request, keys):
        return pa.table(keys.to_pydict())


class Renamed(Shop):
    """Its option 'badge' was called 'pass_word'; neither name says that it is a secret, nor does 'user' of 'token'."""

    options = {"url": "Where.", "badge": "Who asks.", "user": "Who."}  # noqa: RUF012
    renamed = {"pass_word": "badge", "token": "user"}  # noqa: RUF012


class Silent(Connector):
    pass


class Inner:
    not_a_connector = int


# ── finding a connector ──────────────────────────────────────────────────────────────────────────────────────


def test_a_registered_name_and_a_dotted_path():
    assert "sql" in connector_names()
    assert connector_class("sql") is SqlConnector
    assert connector_class(f"{__name__}:Shop") is Shop


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("sqll", r"no connector 'sqll'(?s:.*)'sql'(?s:.*)'module:Class'"),
        (":", r"':' cannot be imported"),
        (".here:Class", r"'\.here:Class' cannot be imported"),
        ("no_such_module:Class", "No module named 'no_such_module'"),
        (f"{__name__}:Nothing", "has no attribute 'Nothing'"),
        (f"{__name__}:Inner", "not a subclass of lookupcache.Connector"),
        (f"{__name__}:SCHEMA", "not a subclass of lookupcache.Connector"),
        (f"{__name__}:Silent", "neither lookup nor lookup_async(?s:.*)def lookup"),
    ],
)
def test_a_name_that_is_not_a_connector(name, named):
    with pytest.raises(ConnectorError, match=named):
        connector_class(name)


@pytest.mark.parametrize("value", ["no_such_driver_module:Driver", "sys:NoSuchClass"])
def test_the_error_for_a_missing_driver_names_what_to_install(monkeypatch, value):
    broken = EntryPoint("broken", value, room.ENTRY_POINTS)
    monkeypatch.setattr(room, "entry_points", lambda group: [broken])
    with pytest.raises(ConnectorError, match=r"pip install 'lookupcache\[broken\]'") as raised:
        connector_class("broken")
    assert raised.value.__cause__ is not None


def test_a_module_that_comes_later_is_found(monkeypatch):
    module = types.ModuleType("a_strangers_module")
    module.Theirs = Shop
    monkeypatch.setitem(sys.modules, "a_strangers_module", module)
    assert connector_class("a_strangers_module:Theirs") is Shop


# ── its options ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_connector_gets_its_schema_and_its_options():
    shop = build_connector(f"{__name__}:Shop", SCHEMA, {"url": "x", "size": "5"})
    assert (shop.schema, shop.settings) == (SCHEMA, {"url": "x", "size": "5"})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "x", "sizes": "5"}, "no option 'sizes'(?s:.*)'size'"),
        ({"url": "x", "host": "h"}, "no option 'host'(?s:.*)the nearest are 'size', 'password', 'lookup.cache'"),
        ({"url": "x", "lookup.cash": "LRU"}, r"'lookup\.cash'(?s:.*)'lookup\.cache'"),
        ({}, "needs option 'url'(?s:.*)Where the shop is"),
        ({"url": ""}, "needs option 'url'"),
    ],
)
def test_foreign_and_missing_options_are_refused(options, named):
    with pytest.raises(OptionError, match=named):
        build_connector(f"{__name__}:Shop", SCHEMA, options)


# ── what it shows ────────────────────────────────────────────────────────────────────────────────────────────


def test_secrets_are_not_shown():
    shop = Shop(
        SCHEMA, {"url": "db://ann:hunter2@h/d?token=hunter2", "password": "hunter2", "badge": "hunter2", "size": "5"}
    )
    assert "hunter2" not in repr(shop)
    assert "'size': '5'" in repr(shop)
    assert set(shop.secret_values()) == {"hunter2"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:pw@db:5432/shop", "postgresql://ann:***@db:5432/shop"),
        ("redis://:pw@db", "redis://:***@db"),
        ("mysql://ann:p@w@db/shop", "mysql://ann:***@db/shop"),
        ("mysql://ann:p/w@db/shop", "mysql://ann:***@db/shop"),
        ("pg://h/d?user=ann&password=pw&ssl=on", "pg://h/d?user=ann&password=***&ssl=on"),
        ("http://h/?api_key=pw;Access-Token=pw", "http://h/?api_key=***;Access-Token=***"),
        ("cannot reach a://b:pw@c, nor d://e:pw@f", "cannot reach a://b:***@c, nor d://e:***@f"),
        ("http://h:8080/users/ann@home", "http://h:8080/users/ann@home"),
        ("sqlite:////data/shop.db", "sqlite:////data/shop.db"),
    ],
)
def test_the_password_of_a_url_is_starred(text, shown):
    assert hide_userinfo(text) == shown


def test_secrets_are_recognized_by_their_names():
    for name in (
        "password",
        "db.PASSWORD",
        "api_key",
        "auth-token",
        "client-secret",
        "header.Authorization",
        "pwd",
        "tokens",
    ):
        assert is_secret(name)
    for name in ("url", "table", "user", "key", "author", "max-tokens", "max_tokens", "tokens-per-minute"):
        assert not is_secret(name)
    assert is_secret("badge", ["badge"])


# ── names of options ─────────────────────────────────────────────────────────────────────────────────────────

OURS = ("dynamodb", "feast", "files", "http", "openai", "redis", "sql")


@pytest.mark.parametrize("name", OURS)
def test_a_former_name_leads_to_an_option(name):
    kind = connector_class(name)
    for former, current in kind.renamed.items():
        assert current in kind.options
        assert former not in kind.options


def test_connectors_call_the_same_option_the_same():
    former = {old: new for name in OURS for old, new in connector_class(name).renamed.items()}
    used = {option: name for name in OURS for option in connector_class(name).options}
    assert {option: name for option, name in used.items() if option in former} == {}
    assert set(former.values()) == {"user", "sentinel.user", "tls.mode", "tls.certificate"}
    for name in ("http", "redis", "sql"):
        assert {"user", "password", "connect.timeout", *TLS_OPTIONS} <= set(connector_class(name).options)
    assert {"connect.timeout", "max-bytes", *TLS_OPTIONS} <= set(connector_class("openai").options)


@pytest.mark.parametrize(
    ("connector", "rest", "former"),
    [
        ("redis", {"url": "rediss://h", "key": "k:{id}", "type": "hash"}, {"username": "ann", "tls.verify": "full"}),
        ("redis", {"url": "redis+sentinel://h/m", "key": "k:{id}"}, {"sentinel.username": "ann"}),
        ("sql", {"url": "postgresql://h/d", "table": "t"}, {"tls": "require"}),
        ("http", {"url": "https://h/{id}"}, {"tls.cert": "c.pem"}),
    ],
)
def test_a_former_name_means_the_same(connector, rest, former):
    renamed = connector_class(connector).renamed
    current = {renamed[name]: value for name, value in former.items()}
    assert build_connector(connector, SCHEMA, rest | former).settings == rest | current
    assert build_connector(connector, SCHEMA, rest | former).identity() == rest | current
    assert connector_class(connector)(SCHEMA, rest | former).settings == rest | current
    for name, value in former.items():
        with pytest.raises(OptionError, match=f"Options '{name}' and '{renamed[name]}' are the same option"):
            build_connector(connector, SCHEMA, rest | current | {name: value})


SERVERS = {
    "redis": {"url": "redis://h", "key": "k:{id}", "type": "hash"},
    "sql": {"url": "postgresql://h/d", "table": "t"},
    "http": {"url": "http://h/{id}"},
    "openai": {"url": "http://h/v1", "task": "chat", "model": "m", "prompt": "{id}"},
}


@pytest.mark.parametrize("connector", SERVERS)
@pytest.mark.parametrize(("seconds", "valid"), [("2", True), ("0.5", True), ("0", False), ("soon", False)])
def test_a_timeout_is_in_seconds_everywhere(connector, seconds, valid):
    options = SERVERS[connector] | {"connect.timeout": seconds}
    schema = parse_ddl("id BIGINT, name STRING")
    if valid:
        assert build_connector(connector, schema, options).settings == options
        return
    with pytest.raises(OptionError, match=f"Option 'connect.timeout' is '{seconds}'"):
        build_connector(connector, schema, options)


@pytest.mark.parametrize("name", ["badge", "pass_word", "user", "token"])
@pytest.mark.parametrize("kind", ["value", "env", "file"])
def test_a_secret_is_hidden_under_both_names(name, kind, monkeypatch, tmp_path):
    monkeypatch.setenv("SHOP_SECRET", "hunter2")
    (tmp_path / "secret").write_text("hunter2\n")
    value = {"value": "hunter2", "env": "env:SHOP_SECRET", "file": f"file:{tmp_path / 'secret'}"}[kind]
    options = {"url": "db://h", name: value}
    shop = build_connector(f"{__name__}:Renamed", SCHEMA, options)
    shop.resolve()
    table = LookupTable("t", SCHEMA, {"connector": f"{__name__}:Renamed", **options})
    assert shop.secret_values() == ["hunter2"]
    assert "hunter2" not in f"{shop} {table}"
    assert kind == "value" or b"hunter2" not in pickle.dumps(shop)
    assert shop.show_options(options)[name] == "***"


def test_replacing_an_option_by_its_other_name():
    table = LookupTable("t", SCHEMA, {"connector": f"{__name__}:Renamed", "url": "db://h", "token": "ann"})
    assert table.with_options({"user": "bob"}).connector.settings == {"url": "db://h", "user": "bob"}


# ── the contract's defaults ──────────────────────────────────────────────────────────────────────────────────


def test_the_fields_of_a_request_are_distinct():
    request = LookupRequest(table="t", key_columns=("a", "b"), columns=("b", "c", "c"))
    assert request.fields == ("a", "b", "c")


def test_methods_that_a_connector_does_not_define_have_defaults():
    bare, request = Silent(SCHEMA, {}), LookupRequest(table="t", key_columns=("id",))
    keys = pa.record_batch({"id": [1]})
    assert [offers(bare, method) for method in ("lookup", "lookup_async", "scan")] == [False] * 3
    assert offers(Shop, "lookup")
    assert bare.accept([]) == []
    bare.open()
    bare.close()
    for ask in (lambda: bare.lookup(request, keys), lambda: list(bare.scan(request))):
        with pytest.raises(NotImplementedError):
            ask()
    with pytest.raises(NotImplementedError):
        asyncio.run(bare.lookup_async(request, keys))


def test_a_connector_is_pickled_with_its_options_and_its_schema():
    shop = pickle.loads(pickle.dumps(Shop(SCHEMA, {"url": "x"})))
    assert (shop.schema, shop.settings, shop.identity()) == (SCHEMA, {"url": "x"}, {"url": "x"})


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), RuntimeError("later"), EOFError()])
def test_an_error_of_the_source_is_worth_a_retry(error):
    assert is_retryable(error)
    assert Shop(SCHEMA, {}).retryable(error)


@pytest.mark.parametrize(
    "error", [TypeError(), KeyError("x"), LookupCacheError("x"), SourceError("x"), pa.ArrowInvalid()]
)
def test_an_error_of_the_program_is_not(error):
    assert not is_retryable(error)
