"""Lookup tables: checked when they are made, silent about secrets."""

from __future__ import annotations

import pickle
from functools import partial

import pyarrow as pa
import pytest

from lookupcache.connector import Connector
from lookupcache.errors import ConnectorError, OptionError, SchemaError
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable

SHOP = {"connector": f"{__name__}:Shop", "url": "db://ann:hunter2@h/d", "password": "hunter2", "size": 5}
SCHEMA = "id BIGINT, name STRING"


class Shop(Connector):
    def lookup(self, request, keys):
        raise NotImplementedError


class Stall(Shop):
    pass


def nobody(key):
    return []


def function_table(**options):
    return LookupTable.from_function("f", SCHEMA, key=["id"], function=nobody, options=options)


def test_a_table_has_a_config_and_a_connector():
    table = LookupTable("t", SCHEMA, SHOP | {"lookup.cache": "LRU"})
    assert table.config.cache == "LRU"
    assert isinstance(table.connector, Shop)
    assert table.connector.settings == {"url": "db://ann:hunter2@h/d", "password": "hunter2", "size": "5"}
    assert table.schema == table.connector.schema == parse_ddl(SCHEMA)


@pytest.mark.parametrize("key", [5, 0, [5], ["id", None], [["id"]], pa.array(["id"]), True, 1.5])
def test_a_key_that_is_no_name_is_refused(key):
    with pytest.raises(SchemaError, match=r"'key' takes names of columns, not \w+\.(?s:.*)key=\['id', 'day'\]"):
        LookupTable.from_function("f", SCHEMA, key=key, function=nobody)


@pytest.mark.parametrize("key", [(), [], {}, "", None, "x"])
def test_a_key_without_a_column_of_the_schema_is_refused(key):
    with pytest.raises(SchemaError, match=r"needs a key column|is not in the schema"):
        LookupTable.from_function("f", SCHEMA, key=key, function=nobody)


def test_a_schema_may_be_a_struct_of_arrow():
    struct = pa.struct([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    assert LookupTable.from_function("f", struct, key="id", function=nobody).schema == pa.schema(list(struct))
    with pytest.raises(SchemaError, match="not DoubleArray"):
        LookupTable.from_function("f", pa.array([1.5]), key="id", function=nobody)


@pytest.mark.parametrize(
    ("schema", "options", "error", "named"),
    [
        (SCHEMA, {}, OptionError, "Table 't' has no option 'connector'"),
        (SCHEMA, {"connector": "nosuch"}, ConnectorError, "'nosuch'"),
        (SCHEMA, SHOP | {"lookup.cash": "LRU"}, OptionError, r"'lookup\.cash'"),
        (SCHEMA, SHOP | {"lookup.cache": "ALL"}, ConnectorError, "ALL(?s:.*)Connector.scan"),
        ("id BIGINT, ID INT", SHOP, SchemaError, "'id' and 'ID'"),
        ("id", SHOP, SchemaError, "'id'"),
        (SCHEMA, {"connector": "sql", "url": "sqlite:///t.db"}, OptionError, "has neither 'table' nor 'query'"),
    ],
)
def test_a_wrong_definition_is_refused_at_once(schema, options, error, named):
    with pytest.raises(error, match=named):
        LookupTable("t", schema, options)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"url": "x"}, OptionError, "no option 'url'"),
        ({"connector": "sql"}, OptionError, "no option 'connector'"),
        ({"lookup.cache": "ALL"}, ConnectorError, "ALL"),
        ({"lookup.cash": "LRU"}, OptionError, r"'lookup\.cash'"),
    ],
)
def test_options_that_a_function_does_not_take_are_refused(options, error, named):
    with pytest.raises(error, match=named):
        function_table(**options)
    with pytest.raises(error, match=named):
        function_table().with_options(options)


def test_options_are_replaced_in_a_copy():
    table = LookupTable("t", SCHEMA, SHOP)
    changed = table.with_options({"lookup.cache": "LRU", "size": "6", "connector": f"{__name__}:Stall"})
    assert (changed.config.cache, changed.connector.settings["size"]) == ("LRU", "6")
    assert isinstance(changed.connector, Stall)
    assert changed.connector_name == f"{__name__}:Stall"
    assert (table.config.cache, table.connector.settings["size"], table.options) == ("NONE", "5", SHOP)


def test_secrets_are_not_shown():
    table = LookupTable("t", SCHEMA, SHOP)
    assert "hunter2" not in repr(table) + repr(table.connector) + table.source
    assert "'size': '5'" in repr(table)


def test_the_source_is_the_class_and_options_but_no_cache():
    table = LookupTable("t", SCHEMA, SHOP)
    assert table.source == LookupTable("u", SCHEMA, SHOP | {"lookup.cache": "LRU"}).source
    assert table.source != table.with_options({"size": 6}).source
    assert function_table().source != table.source


@pytest.mark.parametrize("table", [LookupTable("t", SCHEMA, SHOP), function_table()])
def test_a_table_is_pickled(table):
    copy = pickle.loads(pickle.dumps(table))
    for part in ("name", "schema", "options", "config", "source"):
        assert getattr(copy, part) == getattr(table, part)


class AsyncOnly(Connector):
    async def lookup_async(self, request, keys):
        raise NotImplementedError


async def nobody_async(key):
    return []


@pytest.mark.parametrize(
    ("source", "wanted", "message"),
    [
        ("AsyncOnly", "false", "needs lookup; AsyncOnly has only lookup_async"),
        (nobody_async, "false", "does not fit an async function"),
    ],
)
def test_an_async_option_that_does_not_fit_the_source_is_refused(source, wanted, message):
    options = {"lookup.async": wanted}
    if callable(source):
        arguments = {"key": ["id"], "function": source, "options": options}
        make = partial(LookupTable.from_function, "t", "id BIGINT", **arguments)
    else:
        make = partial(LookupTable, "t", "id BIGINT", {"connector": f"{__name__}:{source}", **options})
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize("name", [None, "", " ", 7])
def test_a_name_that_is_no_text_is_refused(name):
    with pytest.raises(SchemaError, match="The name of a lookup table is a text, not"):
        LookupTable(name, "id INT", {"connector": "http", "url": "http://x/{id}"})
    with pytest.raises(SchemaError, match="The name of a lookup table is a text, not"):
        LookupTable.from_function(name, "id INT", key=["id"], function=lambda key: [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (None, "are a dict, not NoneType"),
        ("connector=http", "are a dict, not str"),
        ([("connector", "http")], "are a dict, not list"),
        ({"connector": "http", 7: "secret"}, "The name of an option is a text, not int"),
    ],
)
def test_options_that_are_no_dict_of_names_are_refused(options, said):
    with pytest.raises(OptionError, match=said) as refused:
        LookupTable("t", "id INT", options)
    assert "secret" not in str(refused.value)
    table = LookupTable("t", "id INT", {"connector": "http", "url": "http://x/{id}"})
    with pytest.raises(OptionError, match=said):
        table.with_options(options)


def test_a_function_whose_key_has_a_column_twice_is_refused():
    with pytest.raises(SchemaError, match="has a column twice: id, id"):
        LookupTable.from_function("t", "id INT, name STRING", key=["id", "id"], function=lambda *key: [])
