"""The matrix of compile × restore, cell by cell; secrets; functions by name."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from sources import PEOPLE, SCHEMA, rows_of
from test_format import altered

from lookupcache import CompiledPlanError, LookupTable
from lookupcache.compiled.catalog_objects import Objects, define_function, define_table, planned_lookup
from lookupcache.compiled.code import import_named, name_of
from lookupcache.compiled.document import KEEPS, Document, read
from lookupcache.compiled.nodes import TableUse
from lookupcache.functions.table_function import TableFunction
from lookupcache.schema import parse_ddl

PLANNED = LookupTable("c", "id BIGINT, name STRING", {"connector": "sql", "url": "sqlite:///planned.db", "table": "c"})
SAME = LookupTable("c", "id BIGINT, name STRING", {"connector": "sql", "url": "sqlite:///catalog.db", "table": "c"})
OTHER = LookupTable("c", "id BIGINT, name INT", {"connector": "sql", "url": "sqlite:///catalog.db", "table": "c"})

PLAN, CATALOG = "sqlite:///planned.db", "sqlite:///catalog.db"
MATRIX = {
    # compile, restore: with the same columns in the catalog, with others, without the table
    ("IDENTIFIER", "IDENTIFIER"): ((CATALOG, "string"), (CATALOG, "int"), "There is no lookup table 'c'"),
    ("IDENTIFIER", "ALL"): ((CATALOG, "string"), (CATALOG, "int"), "There is no lookup table 'c'"),
    ("IDENTIFIER", "ALL_ENFORCED"): ("not complete", "not complete", "not complete"),
    ("SCHEMA", "IDENTIFIER"): ((CATALOG, "string"), "'name' differ", "There is no lookup table 'c'"),
    ("SCHEMA", "ALL"): ((CATALOG, "string"), (CATALOG, "string"), "There is no lookup table 'c'"),
    ("SCHEMA", "ALL_ENFORCED"): ("not complete", "not complete", "not complete"),
    ("ALL", "IDENTIFIER"): ((CATALOG, "string"), (CATALOG, "int"), "There is no lookup table 'c'"),
    ("ALL", "ALL"): ((PLAN, "string"), (PLAN, "string"), (PLAN, "string")),
    ("ALL", "ALL_ENFORCED"): ((PLAN, "string"), (PLAN, "string"), (PLAN, "string")),
}


@pytest.mark.parametrize(("compiled", "restored"), MATRIX)
@pytest.mark.parametrize(("number", "known"), [(0, SAME), (1, OTHER), (2, None)], ids=["same", "other", "missing"])
def test_a_cell_of_the_matrix(compiled, restored, number, known):
    document = Document(keeps=compiled, tables={"c": define_table("c", PLANNED, compiled)})
    objects = Objects(document, restored, lambda name: known)
    expected = MATRIX[compiled, restored][number]
    if isinstance(expected, str):
        with pytest.raises(CompiledPlanError, match=expected):
            objects.table(TableUse(table="c"))
    else:
        found = objects.table(TableUse(table="c"))
        assert (found.options["url"], str(found.schema.field("name").type).replace("int32", "int")) == expected


@pytest.mark.parametrize(("compiled", "restored"), MATRIX)
def test_functions_follow_the_matrix(compiled, restored):
    planned = TableFunction.of("f", rows_of, returns=SCHEMA)
    known = TableFunction.of("f", len, returns=SCHEMA)
    document = Document(keeps=compiled, functions={"f": define_function("f", planned, compiled)})
    objects = Objects(document, restored, registered_function=lambda name: known)
    expected = MATRIX[compiled, restored][0]
    if isinstance(expected, str):
        with pytest.raises(CompiledPlanError, match=expected):
            objects._function("f")
    else:
        assert objects._function("f").function is (rows_of if expected[0] == PLAN else len)


def test_inline_tables_are_complete_whatever_the_options_say():
    for keeps in KEEPS:
        document = Document(keeps=keeps, tables={"c": define_table("c", PLANNED, "ALL", inline=True)})
        assert Objects(document, "IDENTIFIER").table(TableUse(table="c")).options["url"] == PLAN


# ── a catalog that changed since ─────────────────────────────────────────────────────────────────────────

COLUMNS = "id BIGINT, name STRING, country STRING"
SHOP = {"connector": "sql", "url": CATALOG, "table": "c", "lookup.cache": "NONE", "lookup.timeout": "1 s"}
CHANGED = {
    "columns in another order": ("country STRING, name STRING, id BIGINT", SHOP),
    "a column more": (f"{COLUMNS}, zip STRING", SHOP),
    "a column less that is not read": ("id BIGINT, name STRING", SHOP),
    "a column less that is read": ("id BIGINT, country STRING", SHOP),
    "another type": (COLUMNS.replace("name STRING", "name INT"), SHOP),
    "other options": (COLUMNS, {**SHOP, "table": "other"}),
    "another connector": (COLUMNS, {"connector": "sources:Memory", "rows": "[]", "url": CATALOG}),
}
OTHERS, READ, UNFILTERED = "columns of table 'customers'", "that are looked up in 'c'", "does not apply a filter"
BY_NAME = dict.fromkeys(CHANGED, CATALOG) | {
    "a column less that is read": READ, "another type": READ, "another connector": UNFILTERED,
}  # fmt: skip
BY_COLUMNS = dict.fromkeys(CHANGED, OTHERS) | {
    "columns in another order": CATALOG, "other options": CATALOG, "another connector": UNFILTERED,
}  # fmt: skip
FOUND = {
    # compile, restore: the URL of the table that is looked up, or the error
    ("IDENTIFIER", "IDENTIFIER"): BY_NAME,
    ("IDENTIFIER", "ALL"): BY_NAME,
    ("IDENTIFIER", "ALL_ENFORCED"): dict.fromkeys(CHANGED, "not complete"),
    ("SCHEMA", "IDENTIFIER"): BY_COLUMNS,
    ("SCHEMA", "ALL"): dict.fromkeys(CHANGED, CATALOG) | {"another connector": UNFILTERED},
    ("SCHEMA", "ALL_ENFORCED"): dict.fromkeys(CHANGED, "not complete"),
    ("ALL", "IDENTIFIER"): BY_NAME,
    ("ALL", "ALL"): dict.fromkeys(CHANGED, PLAN),
    ("ALL", "ALL_ENFORCED"): dict.fromkeys(CHANGED, PLAN),
}


def pushing(plan):
    """Let the lookup push a filter to the source, which a connector may not be able to apply."""
    plan["nodes"][1]["pushedFilters"] = [["=", "boolean", ["right", "name", "string"], ["literal", "string", "ann"]]]
    plan["nodes"][1]["operators"] = {"=": 1}


NODES = read(altered(pushing, next((Path(__file__).parent / "archive").glob("*/identifiers.json")).read_text()))


@pytest.mark.extended(keep_one_in=10)
@pytest.mark.parametrize(("compiled", "restored"), FOUND)
@pytest.mark.parametrize("change", CHANGED)
def test_a_lookup_over_a_table_that_changed(compiled, restored, change):
    planned = LookupTable("customers", COLUMNS, {"connector": "sql", "url": PLAN, "table": "c"})
    known = LookupTable("customers", *CHANGED[change])
    document = replace(NODES, keeps=compiled, tables={"customers": define_table("customers", planned, compiled)})
    node = document.node(2)

    def lookup():
        table = Objects(document, restored, lambda _: known).lookup_table(node)
        return table, planned_lookup(node, table, "p.json")

    expected = FOUND[compiled, restored][change]
    if expected not in (PLAN, CATALOG):
        with pytest.raises(CompiledPlanError, match=expected):
            lookup()
        return
    table, found = lookup()
    assert table.options["url"] == expected
    assert table.options.get("table") == ("other" if (expected, change) == (CATALOG, "other options") else "c")
    assert {name: found.schema.field(name).type for name in ("id", "name")} == {"id": pa.int64(), "name": pa.string()}
    assert (found.pushed, found.keys) == (node.lookup.pushed, node.lookup.keys)
    assert (found.config.cache, found.config.timeout) == ("LRU", 180.0)  # the node's, whatever the catalog says


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────

SECRETS = [
    ({"url": "postgresql://ann:hunter2@db/shop"}, "'url'"),
    ({"url": "http://h/{id}?token=hunter2", "connector": "http"}, "'url'"),
    ({"connector": "redis", "url": "redis://db", "password": "hunter2", "key": "c:{id}"}, "'password'"),
    ({"connector": "http", "url": "http://h/{id}", "header.Authorization": "Bearer hunter2"}, "'header.Authorization'"),
]


def with_options(options):
    connector = options.get("connector", "sql")
    own = {"table": "c"} if connector == "sql" else {}
    try:
        return LookupTable("c", "id BIGINT, name STRING", {"connector": connector, **own, **options})
    except Exception as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("options", "named"), SECRETS)
def test_a_literal_secret_is_refused_where_a_plan_keeps_options(options, named):
    table = with_options(options)
    with pytest.raises(CompiledPlanError) as caught:
        define_table("c", table, "ALL")
    assert named in caught.value.fact
    assert "'env:NAME'" in str(caught.value.hint)
    assert "'SCHEMA'" in str(caught.value.hint)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str([define_table("c", table, keeps) for keeps in ("SCHEMA", "IDENTIFIER")])


def test_references_stay_references():
    table = with_options({"connector": "redis", "url": "redis://db", "password": "env:REDIS_PASSWORD", "key": "c:{id}"})
    assert define_table("c", table, "ALL").options["password"] == "env:REDIS_PASSWORD"


# ── functions ────────────────────────────────────────────────────────────────────────────────────────────


class Callable:
    def __call__(self, key):
        return []


def inner():
    def hidden(key):
        return []

    return hidden


NAMELESS = [
    (lambda key: [], "a lambda"), (inner(), "inside of a function"), (Callable(), "an object of class Callable"),
    (functools.partial(rows_of), "an object of class partial"), (PEOPLE.index, "an object"), (len, "Python's own"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "reason"), NAMELESS, ids=[reason for _, reason in NAMELESS])
def test_a_function_without_a_name_cannot_be_compiled(function, reason):
    with pytest.raises(CompiledPlanError, match=reason) as caught:
        define_table("t", LookupTable.from_function("t", SCHEMA, key=["id"], function=function), "ALL")
    assert "Define it with def at the top of a module" in str(caught.value.hint)


def test_a_class_and_a_function_go_by_their_modules_and_names():
    assert name_of(Callable, "t") == f"{__name__}:Callable"
    assert import_named(name_of(rows_of, "t"), "p.json") is rows_of


@pytest.mark.parametrize(
    "path",
    ["os:system", "builtins:eval", "subprocess:run", "posix:system", "__main__:main", "sources:asyncio.run",
     "sources:base64", "sources:PEOPLE", "sources:nothing", "no.such.module:f", "sources", "sources:", ":f", "a b:c",
     "sources:Memory.lookup.__globals__", "lookupcache.schema:sqlglot.parse_one", "../x:f"],
)  # fmt: skip
def test_a_plan_calls_only_functions_of_the_module_it_names(path):
    with pytest.raises(CompiledPlanError):
        import_named(path, "p.json")


def test_a_function_that_came_to_be_another_is_refused(monkeypatch):
    import sources

    document = Document(tables={"t": define_table("t", LookupTable.from_function("t", SCHEMA, key=["id"],
                        function=rows_of), "ALL")})  # fmt: skip
    monkeypatch.setattr(sources, "rows_of", parse_ddl)
    with pytest.raises(CompiledPlanError, match="not a function that is defined in that module"):
        Objects(document).table(TableUse(table="t"))
