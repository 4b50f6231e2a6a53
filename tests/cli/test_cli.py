"""The command line."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import EntryPoint

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lookupcache
from lookupcache import connector as room
from lookupcache.cli.commands import COMMANDS, main
from lookupcache.cli.doctor import _lines
from lookupcache.cli.groups import Group
from lookupcache.connector import Connector, LookupRequest, connector_class, connector_names


def test_version() -> None:
    assert lookupcache.__version__ in CliRunner().invoke(main, ["--version"]).output


def test_the_summaries_are_those_of_the_commands_and_not_cut() -> None:
    context = click.Context(main)
    found = {name: main.get_command(context, name) for name in COMMANDS}
    assert {name: command.get_short_help_str(1_000) for name, command in found.items()} == {
        name: summary for name, (_, summary) in COMMANDS.items()
    }
    for words in ([], *([name] for name, command in found.items() if isinstance(command, Group))):
        shown = CliRunner().invoke(main, [*words, "--help"], terminal_width=80).output
        assert "..." not in shown.partition("Commands:")[2]
        assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["no-such"]])
def test_the_help_imports_no_library_that_takes_long(words) -> None:
    code = f"import sys; from lookupcache.cli import main; main({words}, standalone_mode=False)"
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    slow = {"pyspark", "pyarrow", "numpy", "pandas", "sqlglot", "rich", "asyncio"}
    assert ("click" in done.stdout.split(), slow & set(done.stdout.split())) == (True, set())


def test_a_single_connector_is_shown_with_its_options() -> None:
    for name in ("redis", "lookupcache_redis.connector:RedisConnector"):
        result = CliRunner().invoke(main, ["connectors", name], catch_exceptions=False)
        assert (result.exit_code, result.output.startswith(name)) == (0, True)
        assert set(connector_class("redis").options) <= set(result.output.split())
        assert max(map(len, result.output.splitlines())) <= 80
    assert "SqlConnector" not in result.output
    wrong = CliRunner().invoke(main, ["connectors", "rediss"])
    assert (wrong.exit_code, "no connector 'rediss'" in wrong.output, "'redis'?" in wrong.output) == (1, True, True)
    assert len(connector_names()) > 1


def test_findings_fit_80_columns_and_are_whole() -> None:
    from lookupcache.spark.doctor import _CONNECT_LIMITS, _NO_SETTINGS, RULES, Finding

    of_rules = [Finding(rule.key, "none", rule.wanted, rule.why, rule.must) for rule in RULES]
    for finding in [*of_rules, *_CONNECT_LIMITS, _NO_SETTINGS, Finding("Java", "17\x1b[2J", None, "")]:
        lines = list(map(click.unstyle, _lines(finding)))
        assert max(map(len, lines)) <= 80
        text = " ".join(" ".join(lines).split())
        assert finding.name in text
        assert finding.why in text
        assert "\x1b" not in text


def test_connectors_are_listed_with_their_options() -> None:
    result = CliRunner().invoke(main, ["connectors"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "sql" in result.output
    assert "lookupcache_sql.connector:SqlConnector" in result.output.replace("\n", "")
    assert "required" in result.output


def test_our_errors_are_text_without_a_traceback() -> None:
    result = CliRunner().invoke(main, ["demo", "--cache", "ALL", "--max-rows", "5"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: Option 'lookup.cache.max-rows' has no effect with 'lookup.cache' = 'ALL'.")
    assert "Traceback" not in result.output


# ── connectors ───────────────────────────────────────────────────────────────────────────────────────────────


class Driven(Connector):
    """Needs two drivers, of which one is [there]."""

    options = {"list[0]": "An odd one."}  # noqa: RUF012
    drivers = {"sqlite3": "python", "no_such_driver": "lookupcache[odd]"}  # noqa: RUF012
    lookup = Connector.scan


def listed(monkeypatch, *points):
    monkeypatch.setattr(room, "entry_points", lambda group: [EntryPoint(*point, group) for point in points])
    monkeypatch.setenv("COLUMNS", "200")
    return " ".join(CliRunner().invoke(main, ["connectors"], catch_exceptions=False).output.split())


def test_drivers_that_are_installed_or_missing(monkeypatch) -> None:
    result = listed(monkeypatch, ("driven", f"{__name__}:Driven"))
    assert "Needs two drivers, of which one is [there]." in result
    assert (
        "list[0] An odd one. driver sqlite3 installed driver no_such_driver missing pip install 'lookupcache[odd]'"
        in result
    )


def test_an_unimportable_connector_is_listed_with_the_reason(monkeypatch) -> None:
    result = listed(monkeypatch, ("broken", "no_such_module:Broken"), ("driven", f"{__name__}:Driven"))
    assert "broken Connector 'broken' cannot be imported: No module named 'no_such_module'." in result
    assert "Driven" in result


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────

SQL = 'connector = "sql"\nurl = "sqlite:///{folder}/shop.db"\ntable = "customers"\n'
TOML = f'name = "c"\nschema = "id BIGINT, name STRING, salary DOUBLE"\n[options]\n{SQL}'


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Return a function that writes a definition, checks it, and returns what is said and the exit code."""
    monkeypatch.setenv("COLUMNS", "300")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, salary REAL)")
        shop.executemany("INSERT INTO customers VALUES (?, ?, ?)", [(1, "ann", 10.5), (2, "[red]", None)])
        shop.execute("CREATE TABLE nobody (id INTEGER PRIMARY KEY)")

    def run(toml: str = TOML, *arguments: str, name: str = "table.toml") -> tuple[str, int]:
        (tmp_path / name).write_text(toml.replace("{folder}", str(tmp_path)))
        result = CliRunner().invoke(main, ["check", str(tmp_path / name), *arguments], catch_exceptions=False)
        return " ".join(result.output.split()), result.exit_code

    return run


def test_a_table_is_read_and_shown(check) -> None:
    result, code = check()
    assert code == 0
    assert "c connector sql Schema, as defined id BIGINT name STRING salary DOUBLE" in result
    assert result.endswith("A row id 1 name 'ann' salary 10.5")


def test_check_infers_the_schema_and_names_the_table_by_its_file(check) -> None:
    result, code = check(f"[options]\n{SQL}", name="customers.toml")
    assert code == 0
    assert (
        "customers connector sql Schema, inferred from the source id BIGINT name STRING salary DOUBLE A row id 1"
        in result
    )


def test_a_row_of_a_key(check) -> None:
    assert check(TOML, "--key", "id=2")[0].endswith("A row id 2 name '[red]' salary NULL")
    assert check(TOML, "--key", "id=1", "--key", "name=ann")[0].endswith("A row id 1 name 'ann' salary 10.5")
    assert check(TOML, "--key", "id=9")[0].endswith("No row has this key.")


def test_names_do_not_control_the_terminal(check) -> None:
    result, code = check(TOML.replace('"c"', '"c\\u001b[31m\\u0007"'))
    assert (code, "\x1b" in result, "\x07" in result) == (0, False, False)
    assert "c?[31m? connector sql" in result


def test_a_table_without_rows(check) -> None:
    result, code = check(TOML.replace("customers", "nobody").replace(", name STRING, salary DOUBLE", ""))
    assert (result.endswith("The table has no rows."), code) == (True, 0)


def test_check_shows_keys_pushed_filters_and_residuals(check) -> None:
    result, code = check(TOML, "--on", "o.customer_id = c.id AND c.salary > 1000", "--where", "upper(c.name) = o.name")
    assert code == 0
    assert "o.customer_id = c.id field key" in result
    assert "pushed filter salary > 1000.0" in result
    assert "upper(c.name) = o.name residual, after the cache, evaluated by Spark" in result


def test_a_where_alone_uses_the_first_column_as_key(check) -> None:
    result, _ = check(TOML, "--where", "salary > 5 AND name = 'ann'")
    assert "id = l.`id`" in result
    assert "pushed filter salary > 5.0" in result
    assert "constant key name = 'ann'" in result


def test_a_left_side_may_be_given(check) -> None:
    result, code = check(TOML, "--on", "o.k = c.id", "--left", "k STRING")
    assert code == 1
    assert "STRING" in result.upper()
    assert check(TOML, "--on", "o.k = c.id", "--left", "k INT")[1] == 0


def test_options_may_be_numbers_and_bare_keys_with_dots(check) -> None:
    options = '"lookup.cache" = "LRU"\nlookup.cache.max-rows = 7\n'
    result, code = check(TOML + options, "--where", "salary > 5")
    assert code == 0
    assert "rows, at most 7" in result


@pytest.mark.parametrize(
    ("toml", "arguments", "says"),
    [
        ("[options", [], "is not valid TOML"),
        ('nane = "c"\n', [], "has an unknown key 'nane'. Hint: Did you mean 'name'?"),
        ('name = "c"\n', [], "has no section [options]."),
        ("[options]\n", [], "has no option 'connector'"),
        ('schema = "id BIGINT"\n[options]\n', [], "has no option 'connector'"),
        ('[options]\nconnector = "sqll"\n', [], "There is no connector 'sqll'."),
        (f"[options]\n{SQL}tabel = 'x'\n", [], "Connector 'sql' has no option 'tabel'. Hint: Did you mean 'table'?"),
        (TOML.replace("shop.db", "no.db"), [], "there is no database file"),
        (TOML.replace('"customers"', '"customer"'), [], "no table or view 'customer'. Hint: Did you mean 'customers'?"),
        (TOML.replace("salary", "celery"), [], "Table 'customers' has no column 'celery'"),
        (TOML.replace("name STRING", "name INT"), [], "column 'name': the database contains 'ann', which is no INT."),
        (TOML.replace('"sqlite:///{folder}/shop.db"', '"env:NO_SUCH_URL"'), [], "Option 'url' is 'env:NO_SUCH_URL'"),
        (TOML, ["--key", "idd=1"], "has no column 'idd'. Hint: Did you mean"),
        (TOML, ["--key", "id=x"], "--key id=x: the value is not a valid BIGINT."),
        (TOML, ["--key", "id"], "--key 'id' is not a key."),
        (TOML, ["--key", "id=1", "--key", "id=2"], "--key 'id' is given twice."),
        (TOML, ["--on", "o.id + 1 = c.id"], "can only be evaluated by Spark"),
        (TOML, ["--on", "o.id = c.idd"], "idd"),
        (TOML, ["--on", "o.id ="], "Error"),
    ],
)
def test_check_reports_each_mistake_without_a_traceback(check, toml: str, arguments: list[str], says: str) -> None:
    result, code = check(toml, *arguments)
    assert code == 1
    assert says in result
    assert "Traceback" not in result


def test_a_missing_file_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["check", "no-such.toml"]).exit_code == 2


def test_a_setting_without_a_value_is_an_error() -> None:
    result = CliRunner().invoke(main, ["doctor", "--conf", "spark.python.worker.reuse"])
    assert (result.exit_code, "--conf 'spark.python.worker.reuse' is no setting." in result.output) == (1, True)


class Rough(Connector):
    """Fails as drivers do, with what they know."""

    options = {"password": "Opens it.", "fails": "Where."}  # noqa: RUF012

    def open(self) -> None:
        self.fail("open")

    def close(self) -> None:
        self.closed.append(True)

    closed: list[bool] = []  # noqa: RUF012

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        self.fail("lookup")
        return pa.table({"id": [7, 8], "name": ["other", "eight"]})

    def fail(self, place: str) -> None:
        if self.settings.get("fails") == place:
            raise OSError(f"login with {self.settings['password']} at db://ann:{self.settings['password']}@h failed")


class RoughAsync(Rough):
    """Does the same on an event loop."""

    lookup = Connector.lookup

    async def open(self) -> None:
        Rough.open(self)

    async def close(self) -> None:
        Rough.close(self)

    async def lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        return Rough.lookup(self, request, keys)


@pytest.mark.parametrize("kind", ["Rough", "RoughAsync"])
@pytest.mark.parametrize("place", ["open", "lookup"])
def test_a_drivers_error_is_shown_without_secrets(check, monkeypatch, kind: str, place: str) -> None:
    monkeypatch.setenv("ROUGH_PASSWORD", "s3same")
    options = f"connector = '{__name__}:{kind}'\npassword = 'env:ROUGH_PASSWORD'\nfails = '{place}'\n"
    result, code = check(f"schema = 'id BIGINT, name STRING'\n[options]\n{options}", "--key", "id=8")
    assert code == 1
    assert "The source cannot be read: OSError: login with *** at db://ann:***@h failed." in result


@pytest.mark.parametrize("kind", ["Rough", "RoughAsync"])
def test_a_row_is_that_of_the_key_and_all_is_closed(check, monkeypatch, kind: str) -> None:
    monkeypatch.setattr(Rough, "closed", [])
    toml = f"schema = 'id BIGINT, name STRING'\n[options]\nconnector = '{__name__}:{kind}'\n"
    assert check(toml, "--key", "id=8")[0].endswith("A row id 8 name 'eight'")
    assert Rough.closed == [True]


def test_a_connector_that_cannot_scan_wants_a_key(check) -> None:
    toml = f"schema = 'id BIGINT, name STRING'\n[options]\nconnector = '{__name__}:Rough'\n"
    result, code = check(toml)
    assert (code, "cannot read a row without a key. Hint: Pass an existing key, as in --key id=1." in result) == (
        1,
        True,
    )


def test_a_connector_that_cannot_infer_wants_a_schema(check) -> None:
    result, code = check(f"[options]\nconnector = '{__name__}:Rough'\n")
    assert (code, "cannot infer it. Hint: Pass it as in CREATE TABLE: 'id BIGINT, name STRING'." in result) == (1, True)


def test_a_key_without_an_index_is_warned_of(check) -> None:
    result, code = check(TOML, "--key", "name=ann")
    assert (code, "Warning In table 'customers' no index starts with a key column (name)" in result) == (0, True)
    assert "Warning" not in check(TOML, "--key", "id=1")[0]
