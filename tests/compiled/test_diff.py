"""What differs between two plans, what it means, and the exit codes of the commands."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_format import JOIN, altered

from lookupcache.cli.commands import main
from lookupcache.compiled.diff import differences, verdict_of
from lookupcache.compiled.document import read

ARCHIVE = Path(__file__).parent / "archive"
FUNCTIONS = next(ARCHIVE.glob("*/functions.json"))


def lookup(**fields):
    return lambda plan: plan["nodes"][1].update(fields)


def option(**options):
    return lambda plan: plan["nodes"][1]["configuration"].update(
        {f"lookup.{name.replace('_', '-').replace('--', '.')}": value for name, value in options.items()}
    )


def unpush(plan):
    node = plan["nodes"][1]
    node["calc"], node["pushedFilters"] = [*node["calc"], *node["pushedFilters"]], []


def other_literal(plan):
    plan["nodes"][1]["calc"][0][3][2] = 200.0


BASE = altered(option(cache="LRU", cache__max_rows=10_000))
CASES = {
    "a filter that moves": (unpush, "compatible", ["cache identity", "source load"]),
    "another filter": (other_literal, "incompatible", ["result", "cache identity"]),
    "another key": (lookup(keys=[{"column": "id", "sql": "l.`k` + 1"}]), "incompatible", ["result"]),
    "another kind of join": (lookup(joinType="inner"), "incompatible", ["result"]),
    "another form": (lookup(form="distinct"), "compatible", ["source load"]),
    "a stage of its own": (lookup(stage=[1]), "compatible", []),
    "another left filter": (lookup(leftFilter=["l.`k` > 0"]), "unknown", ["result"]),
    "a larger cache": (option(cache__max_rows=7), "compatible", ["cache identity"]),
    "another eviction": (option(cache__eviction="s3-fifo"), "compatible", ["cache identity", "source load"]),
    "more calls at a time": (option(async__capacity=7), "compatible", ["source load"]),
    "rows marked": (option(on_error="null", error_column="e"), "incompatible", ["result"]),
    "an older row": (option(cache__expire_after_write=60.0), "unknown", ["result"]),
    "another timeout": (option(timeout=1.0), "unknown", ["result"]),
    "another default": (lambda p: p["defaults"].update({"lookup.max-retries": 9}), "unknown", ["result"]),
    "a new option": (lambda p: p["defaults"].pop("lookup.shuffle"), "compatible", []),
    "another setting": (lambda p: p["settings"].update({"spark.sql.ansi.enabled": "false"}), "unknown", ["result"]),
    "another source": (lambda p: p["tables"]["p"]["options"].update(connector="x"), "unknown", ["cache identity"]),
    "another version": (lambda p: p.update(lookupcache="9.9.9"), "compatible", []),
    "another left side": (
        lambda p: p["nodes"][0]["output"].append({"name": "z", "type": "int"}), "incompatible", ["stream state"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_difference_has_a_verdict_with_its_reason(case):
    change, verdict, effects = CASES[case]
    found = differences(read(BASE), read(altered(change, BASE)))
    assert verdict_of(found) == verdict
    reported = {effect for one in found for effect in one.effects}
    assert set(effects) <= reported
    assert all(one.why and one.path for one in found)
    if case != "a new option":
        assert found


@pytest.mark.extended
def test_a_plan_does_not_differ_from_itself():
    for path in ARCHIVE.glob("*/*.json"):
        assert differences(read(path.read_text()), read(path.read_text())) == []


def statement(change):
    return altered(change, FUNCTIONS.read_text())


STATEMENTS = {
    "blanks in a text": (lambda p: p["nodes"][0].update(text=p["nodes"][0]["text"] + " \n"), "compatible"),
    "another text": (lambda p: p["nodes"][0].update(text="SELECT 1"), "unknown"),
    "a stream": (lambda p: p["nodes"][0].update(streaming=True), "incompatible"),
    "another sink": (lambda p: p["nodes"][3].update(sink=["other"]), "incompatible"),
    "another checkpoint": (lambda p: p["nodes"][3].update(queryName="other"), "incompatible"),
    "another parameter": (lambda p: p["parameters"].update(least=["literal", "bigint", 2]), "incompatible"),
    "another function": (lambda p: p["functions"]["split"].update(function="sql_functions:each_word"), "unknown"),
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_a_difference_of_statements_has_a_verdict(case):
    change, verdict = STATEMENTS[case]
    assert verdict_of(differences(read(FUNCTIONS.read_text()), read(statement(change)))) == verdict


def test_a_lookup_that_was_added_has_no_state():
    data = json.loads(FUNCTIONS.read_text())
    shorter = read(altered(lambda p: (p["nodes"].__delitem__(slice(4, None)), p["edges"].__delitem__(slice(3, None))),
                           json.dumps(data)))  # fmt: skip
    found = differences(shorter, read(FUNCTIONS.read_text()))
    assert [one.why for one in found if "lookup was" in one.why] == ["a lookup was added; it has no state"]
    assert verdict_of(found) == "incompatible"  # a statement was added too


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


def run(*arguments):
    found = CliRunner().invoke(main, ["plan", *map(str, arguments)])
    return found.exit_code, found.output


@pytest.fixture
def files(tmp_path):
    def write(name, change=lambda plan: None, text=JOIN):
        (tmp_path / name).write_text(altered(change, text))
        return tmp_path / name

    return write


@pytest.mark.parametrize(("case", "code"), [("another form", 0), ("another key", 1), ("another setting", 3)])
def test_the_exit_code_says_whether_a_plan_fits(files, case, code):
    found, output = run("diff", files("a.json"), files("b.json", CASES[case][0]))
    assert found == code
    assert CASES[case][1] in output


def test_equal_plans_and_files_that_are_none(files, tmp_path):
    assert run("diff", files("a.json"), files("b.json")) == (0, "The plans are equal.\n")
    (tmp_path / "c.json").write_text("{")
    code, output = run("diff", files("a.json"), tmp_path / "c.json")
    assert code == 1
    assert "line 1, column 2" in output


def test_show_says_what_a_plan_does(files):
    code, output = run("show", FUNCTIONS)
    assert code == 0
    for text in ("sources:rows_of(id)", "INSERT INTO people_sink", "by id = ", "split", "spark.sql.session.timeZone"):
        assert text in output


def test_check_finds_what_is_missing(files, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "support"))
    assert run("check", files("a.json"))[0] == 0
    wrong = files("b.json", lambda p: p["tables"]["p"]["options"].update(connector="nowhere"))
    code, output = run("check", wrong)
    assert code == 1
    assert "There is no connector 'nowhere'" in output
    missing = altered(lambda p: p["tables"]["people"].update(function="no_such_package:f"), FUNCTIONS.read_text())
    wrong.write_text(missing)
    code, output = run("check", wrong)
    assert code == 1
    assert "no_such_package:f cannot be found" in output


def test_check_imports_no_function_of_a_plan(files):
    code, output = run("check", FUNCTIONS)
    assert code == 3
    assert "nothing of it is imported" in output


def test_check_takes_the_tables_of_the_catalog(tmp_path):
    plan = next(ARCHIVE.glob("*/identifiers.json"))
    assert run("check", plan)[0] == 3
    table = tmp_path / "customers.toml"
    table.write_text(
        'schema = "id BIGINT, name STRING, country STRING, zip STRING, salary DOUBLE"\n[options]\nconnector = "sql"\n'
        f'url = "sqlite:///{tmp_path}/shop.db"\ntable = "customers"\n'
    )
    assert run("check", plan, "--table", table)[0] == 0
    table.write_text(table.read_text().replace("id BIGINT, name STRING", "id BIGINT, name INT"))
    code, output = run("check", plan, "--table", table)
    assert code == 1
    assert "'name' differ" in output


@pytest.fixture
def in_the_catalog(tmp_path):
    """Return what writes a definition of the table that the plan of a name reads from the catalog."""

    def write(url, connector="sql"):
        path = tmp_path / "customers.toml"
        path.write_text(
            'schema = "id BIGINT, name STRING, country STRING, zip STRING, salary DOUBLE"\n[options]\n'
            f'connector = "{connector}"\nurl = "{url}"\ntable = "customers"\n'
        )
        return path

    return write


def test_check_names_the_drivers_that_a_source_needs(in_the_catalog, monkeypatch):
    plan = next(ARCHIVE.glob("*/identifiers.json"))
    known = importlib.util.find_spec
    code, output = run("check", plan, "--table", in_the_catalog("postgresql://h/d"))
    assert code == 0
    version = importlib.metadata.version("adbc-driver-postgresql")
    assert f"driver adbc_driver_postgresql {version} is installed" in output
    monkeypatch.setattr("importlib.util.find_spec", lambda name: known(name) if name != "pymysql" else None)
    assert run("check", plan, "--table", in_the_catalog("postgresql://h/d"))[0] == 0
    assert run("check", plan, "--table", in_the_catalog("sqlite:///shop.db"))[0] == 0
    code, output = run("check", plan, "--table", in_the_catalog("mysql://h/d"))
    assert code == 1
    assert "pip install 'lookupcache[mysql]'" in output
    monkeypatch.setenv("SHOP", "mysql://h/d")
    code, output = run("check", plan, "--table", in_the_catalog("env:SHOP"))
    assert code == 3
    assert "not checked   table customers: driver pymysql, which some sources need, is not installed" in output


def test_check_says_what_it_does_not_check(in_the_catalog, tmp_path):
    import sqlite3

    sqlite3.connect(tmp_path / "shop.db").execute(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT, zip TEXT, salary DOUBLE)"
    ).connection.close()
    plan = next(ARCHIVE.glob("*/identifiers.json"))
    table = in_the_catalog(f"sqlite:///{tmp_path}/shop.db")
    without, connected = (run("check", plan, "--table", table, *more)[1] for more in ([], ["--connect"]))
    assert "No part of this check: the sources, whether they can be read and what columns they have" in without
    assert "No part of this check: Spark's tables, views, texts, settings and sinks" in connected


@pytest.mark.parametrize(
    ("columns", "code", "reported"),
    [
        ("id INTEGER PRIMARY KEY, country TEXT", 1, "The columns that the source of 'customers' reports"),
        ("id INTEGER PRIMARY KEY, name TEXT", 0, "the source of c can be reached; it has no rows"),
        ("id SMALLINT PRIMARY KEY, name TEXT", 0, "can be reached"),
        ("id INTEGER PRIMARY KEY, name DATE", 3, "column 'name' is DATE at the source and STRING in the plan"),
        ("id BLOB PRIMARY KEY, name TEXT", 3, "column 'id' is"),
    ],
)
def test_check_compares_the_columns_of_the_source(tmp_path, columns, code, reported):
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute(f"CREATE TABLE customers ({columns})")
    table = tmp_path / "customers.toml"
    table.write_text(
        'schema = "id BIGINT, name STRING"\n[options]\nconnector = "sql"\n'
        f'url = "sqlite:///{tmp_path}/shop.db"\ntable = "customers"\n'
    )
    found, output = run("check", next(ARCHIVE.glob("*/identifiers.json")), "--table", table, "--connect")
    assert reported in output
    assert found == code
