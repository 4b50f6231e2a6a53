"""The examples in the documentation run and are true."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import doctest
import importlib.util
import io
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa
import pytest

import lookupcache
from lookupcache import LookupSession
from lookupcache.cli.commands import main
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector, LookupRequest, connector_class, connector_names
from lookupcache.table import LookupTable

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PATHS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = {path.stem: path.read_text() for path in PATHS}
MODULES = sorted(
    ".".join(path.relative_to(folder).with_suffix("").parts)
    for folder, pattern in ((ROOT, "lookupcache/**/*.py"), (ROOT / "connectors", "*/*.py"))
    for path in folder.glob(pattern)
    if not path.stem.startswith("__")
)


WITH_SERVERS = ("databases", "migration", "sources")
"""Pages whose examples need servers or folders: tests/test_guides.py runs them."""
TEST = re.compile(r"^ *(async )?def test_|\(ConnectorSuite\)", re.MULTILINE)


def with_mark(name: str) -> Any:
    """Return a module's name, marked if its examples use Spark."""
    text = Path(str(importlib.util.find_spec(name).origin)).read_text()  # type: ignore[union-attr]
    uses_spark = re.search(r"^ *(>>>|\.\.\.) .*\bspark\b", text, re.MULTILINE)
    return pytest.param(name, marks=pytest.mark.spark) if uses_spark else name


@pytest.mark.parametrize("name", [with_mark(name) for name in MODULES])
def test_examples_of_a_module(name: str, request: pytest.FixtureRequest) -> None:
    examples = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    shown = io.StringIO()
    for example in examples:
        if any(re.search(r"\bspark\b", line.source) for line in example.examples):
            example.globs["spark"] = request.getfixturevalue("spark")
        runner.run(example, out=shown.write)
    assert runner.summarize(verbose=False).failed == 0, shown.getvalue()


@pytest.mark.spark
def test_the_readme_and_the_pages_print_what_they_say(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for page in (README, *(text for name, text in PAGES.items() if name not in WITH_SERVERS)):
        for code, expected in re.findall(r"```python\n((?:(?!```).)*)```\s*```text\n(.*?)```", page, re.DOTALL):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "documentation", "exec"), names)
            assert printed.getvalue().strip() == expected.strip()


OTHERS = ("compiled-plans", "sharing", "sizing", "sql", "streams")
"""The pages with examples that print nothing. Those of other pages have tests of their own."""
PLACES = ("rates/", "orders/", "checkpoint/", "out/", "/mnt/cache", "/data/places")
"""Folders that the pages name, for which the test has some of its own."""


@pytest.fixture
def prepared(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Give the names that the examples use, in a folder with the data that they read."""
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as shop:
        shop.execute("CREATE TABLE customers (id INTEGER, name TEXT)")
        shop.execute("INSERT INTO customers VALUES (1, 'Ann')")
    for folder in ("rates", "orders"):
        (tmp_path / folder).mkdir()
    own = spark.newSession()
    own.sql("CREATE TABLE named (order_id INT, name STRING) USING parquet")
    orders = own.createDataFrame([(10, 1, 0), (11, 9, 1)], "order_id INT, customer_id BIGINT, at INT")
    orders.createOrReplaceTempView("orders")
    options = {"connector": "sql", "url": "sqlite:///shop.db", "table": "customers"}
    customers = LookupTable("c", "id BIGINT, name STRING", options)
    session = LookupSession(own)
    session.register_table(customers, "customers")
    yield {
        **{name: getattr(lookupcache, name) for name in lookupcache.__all__},
        "spark": own, "session": session, "orders": orders, "customers": customers,
        "geocode": lambda address: [], "addresses": ["Wien"],
    }  # fmt: skip
    for stream in own.streams.active:
        stream.stop()
    own.sql("DROP TABLE named")


@pytest.mark.spark
@pytest.mark.parametrize("name", OTHERS)
def test_an_example_that_prints_nothing_runs(name: str, prepared: dict[str, Any], tmp_path: Path) -> None:
    codes = re.findall(r"```python\n((?:(?!```).)*)```(?!\s*```text)", PAGES[name], re.DOTALL)
    for code in (code for code in codes if not code.startswith("options = ")):
        for place in PLACES:
            code = code.replace(f'"{place}"', repr(str(tmp_path / Path(place).name)))
        if "@dp.table" in code:
            _run_flows(code, prepared)
        else:
            exec(compile(code, name, "exec"), prepared)


def _run_flows(code: str, names: dict[str, Any]) -> None:
    """Run the query functions of a pipeline's source over a stream of the declared columns."""
    registry = pytest.importorskip("pyspark.pipelines.graph_element_registry")
    flows = list[Any]()
    recorded = SimpleNamespace(register_output=lambda _: None, register_flow=flows.append)
    stream = names["spark"].readStream.format("rate").load()
    stream.selectExpr("value AS id", "value AS customer").createOrReplaceTempView("orders")
    with registry.graph_element_registration_context(recorded):
        exec(compile(code.replace("SparkSession.active()", "spark"), "pipelines", "exec"), names)
    assert [flow.func().columns for flow in flows] == [["id", "name"]]


def test_every_page_with_examples_is_run_by_a_test() -> None:
    with_others = {
        name
        for name, page in PAGES.items()
        if re.search(r"```python\n(?!options = )((?:(?!```).)*)```(?!\s*```text)", page, re.DOTALL)
    }
    assert with_others - {*OTHERS, "functions", "migration", "models", "sources"} == set()


@pytest.mark.parametrize("code", re.findall(r"```python\n(options = .*?)```", "\n".join(PAGES.values()), re.DOTALL))
def test_the_options_shown_go_together(code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(code, "documentation", "exec"), names)
    options = names["options"]
    if {"connector", "url"} & {*options}:
        assert LookupTable("t", "id BIGINT, name STRING, city STRING", options).connector
    else:
        assert LookupConfig.from_options(options) != LookupConfig()


def test_the_file_of_a_table_is_read(tmp_path: Path) -> None:
    [text] = re.findall(r"^    ```toml\n(.*?)^    ```", PAGES["operating"], re.DOTALL | re.MULTILINE)
    (tmp_path / "table.toml").write_text(re.sub("^    ", "", text, flags=re.MULTILINE))
    table = LookupTable.from_toml(tmp_path / "table.toml")
    assert (table.connector_name, table.config.cache) == ("sql", "LRU")


def test_families_of_options_that_the_guide_names_exist() -> None:
    kinds = [connector_class(name) for name in connector_names()]
    families = {name.partition(".")[0] for kind in kinds for name in kind.options or {} if "." in name}
    named = re.findall(r"`([a-z-]+)\.\*`", PAGES["databases"] + PAGES["sources"])
    assert set(named) - families == set()
    assert {"pages", "tls", "header"} <= set(named)


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *PATHS]
    assert [link for path in documents for link in _dead_links(path)] == []


def _dead_links(path: Path) -> Iterator[str]:
    for target in re.findall(
        r"\]\((?!https?:)([^)\s]*)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    ):
        name, _, anchor = target.partition("#")
        found = path.parent / name if name else path
        if not found.is_file() or (anchor and anchor not in _anchors(found.read_text())):
            yield f"{path.name}: {target}"


def _anchors(page: str) -> set[str]:
    return {*map(_anchor, re.findall(r"^#+ (.*)$", page, re.MULTILINE)), *re.findall(r'<a id="([^"]+)">', page)}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def test_blank_lines_separate_paragraphs_lists_and_tables() -> None:
    """Markdown on the site takes a table or list directly after a text as a part of that text."""
    documents = [*ROOT.glob("*.md"), *PATHS]
    assert [place for path in documents for place in _joined_blocks(path)] == []


def _joined_blocks(path: Path) -> Iterator[str]:
    text = re.sub(r"^ *```.*?```$", "```", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    before = ""
    for line in text.splitlines():
        patterns = {"": r"\s*$", "list": r"([-*]|\d+\.)? ", "table": r"\|", "heading": "#", "other": "<|```|> |:::"}
        kind = next((kind for kind, pattern in patterns.items() if re.match(pattern, line)), "text")
        if before and kind and kind != before and "other" not in (before, kind):
            yield f"{path.name}: a {kind} directly after a {before}: {line[:60]}"
        before = kind


def test_the_site_lists_every_page() -> None:
    pages = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / ".ci" / "mkdocs.yml").read_text(), re.MULTILINE)
    listed = {name for name in pages if (ROOT / "docs" / name).exists()}
    assert listed == {path.relative_to(ROOT / "docs").as_posix() for path in PATHS}
    assert {"index.md", "changelog.md", "contributing.md", "security-policy.md"} <= set(pages)


def test_every_command_is_described() -> None:
    table = PAGES["reference"].partition("## Command line")[2].partition("## Python API")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(main.list_commands(click.Context(main)))


def test_the_connector_shown_works() -> None:
    [code] = re.findall(r"```python\n(import pyarrow.*?)```", PAGES["functions"], re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "functions.md", "exec"), names)
    connector = names["Squares"](pa.schema([("n", pa.int64()), ("square", pa.int64())]), {})
    request = LookupRequest(table="s", key_columns=("n",), columns=("square",))
    answer = connector.lookup(request, pa.record_batch({"n": pa.array([2, 3])}))
    assert answer.column("square").to_pylist() == [4, 9]


def test_the_architecture_names_all_packages_and_existing_files() -> None:
    page = PAGES["architecture"]
    table = page.partition("## Layers")[2].partition("## Decisions")[0]
    packages = {path.stem for path in (ROOT / "lookupcache").iterdir() if path.suffix == ".py" or path.is_dir()}
    connectors = {path.name for path in (ROOT / "connectors").iterdir() if path.is_dir()}
    named = set(re.findall(r"`(\w+)`", table))
    assert {name for name in packages | connectors if not name.startswith(("_", "."))} - named == set()
    files = re.findall(r"\b((?:\w+/)+\w+\.py)\b", page)
    assert len(files) > 30
    assert [file for file in files if not (ROOT / "lookupcache" / file).exists() and not (ROOT / file).exists()] == []


@pytest.mark.parametrize("folder", ["lookupcache", "connectors"])
def test_a_docstring_lists_arguments_that_exist(folder: str) -> None:
    nodes = (node for path in sorted((ROOT / folder).glob("**/*.py")) for node in ast.walk(ast.parse(path.read_text())))
    listed = [(node.name, argument) for node in nodes for argument in _listed_but_unknown(node)]
    assert listed == []


def _listed_but_unknown(node: ast.AST) -> Iterator[str]:
    """Yield the names under Args that are no parameter of a function, and no parameter or field of a class."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    section = (ast.get_docstring(node) or "").partition("Args:\n")[2].split("\n\n")[0]
    if not section:
        return
    names = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    if isinstance(node, ast.ClassDef):
        names |= {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    for line in re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):", section, re.MULTILINE):
        yield from (name for name in line.replace("*", "").split(", ") if name not in names)


OPTION_GROUPS = {
    "lookup.cache": "Cache and sharing",
    "lookup.cache.max-rows": "Size",
    "lookup.cache.expire-after-write": "Freshness",
    "lookup.cache.reload-interval": "Full tables",
    "lookup.async": "Calls",
    "lookup.max-retries": "Retries",
    "lookup.on-error": "Failures",
    "lookup.age-column": "The join",
}
"""The groups of the page of options, each by its first option."""


def option_tables() -> dict[str, str]:
    """Return a table of the options of each group."""
    tables: dict[str, str] = {}
    title = ""
    for one in dataclasses.fields(LookupConfig):
        key = one.metadata["key"]
        title = OPTION_GROUPS.get(key, title)
        tables.setdefault(title, "| option | default | meaning |\n|---|---|---|")
        tables[title] += f'\n| <a id="{key}"></a>`{key}` | {one.metadata["shown"]} | {one.metadata["doc"]} |'
    return tables


def connector_options(name: str, kind: type[Connector]) -> str:
    """Return a table of a connector's options."""
    former = {current: f"formerly `{old}`" for old, current in kind.renamed.items()}
    rows = ["| option | meaning |", "|---|---|"]
    for option, meaning in (kind.options or {}).items():
        notes = ", ".join(filter(None, ["required" if option in kind.required else "", former.get(option)]))
        rows.append(f'| <a id="{name}.{option}"></a>`{option}`{f" ({notes})" if notes else ""} | {meaning} |')
    return "\n".join(rows)


def test_the_page_of_options_is_generated() -> None:
    """With LOOKUPCACHE_UPDATE_GOLDEN the page is changed instead."""
    page = PAGES["options"]
    for title, table in option_tables().items():
        page = _with_table(page, f"options: {title}", table)
    for name in ("dynamodb", "feast", "files", "http", "openai", "redis", "sql"):
        page = _with_table(page, f"options of {name}", connector_options(name, connector_class(name)))
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN"):
        (ROOT / "docs" / "options.md").write_text(page)
    else:
        assert page == PAGES["options"], "run this with LOOKUPCACHE_UPDATE_GOLDEN=1"


def _with_table(page: str, mark: str, table: str) -> str:
    start, end = f"<!-- {mark} -->\n", f"\n<!-- /{mark} -->"
    before, found, rest = page.partition(start)
    assert found
    assert end in rest
    return f"{before}{start}{table}{end}{rest.partition(end)[2]}"


def test_every_promise_names_tests_that_are_there() -> None:
    promises = PAGES["promises"].partition("\n## Places")[0].split("\n## ")[1:]
    for promise in promises:
        tests = re.findall(r"`(tests/[\w./]+)`", promise)
        assert tests, promise
        assert [test for test in tests if not (ROOT / test).exists()] == []
        # A file of this name without a test in it would hold nothing.
        assert [test for test in tests if test.endswith(".py") and not TEST.search((ROOT / test).read_text())] == []
        benchmarks = re.findall(r"dev.py bench (\w+)", promise)
        assert [name for name in benchmarks if not (ROOT / "bench" / f"{name}.py").exists()] == []
    assert len(promises) >= 8


def test_the_architecture_names_what_is_there() -> None:
    page = PAGES["architecture"]
    code = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.glob("lookupcache/**/*.py")}
    members = re.findall(r"\b([A-Z]\w+)\.(_?[a-z]\w+)", page)
    classes = re.findall(r"(\w+/[\w/]+\.py)`?[:,] `?(?!Spark|JSON|Flink)([A-Z]\w+)", page)
    assert len(members) > 10
    assert len(classes) > 10
    for owner, name in members:
        homes = [text for text in code.values() if f"\nclass {owner}" in text]
        assert any(re.search(rf"\b{name}\b", text) for text in homes), f"{owner}.{name} is no more"
    for module, name in classes:
        assert f"\nclass {name}" in code[f"lookupcache/{module}"], f"{name} is no more in {module}"


def test_the_readme_starts_with_its_purpose_and_its_code_runs() -> None:
    start = README.splitlines()[:10]
    assert ["docs/images/demo.svg" in line for line in start].count(True) == 1
    for question in ("What it is for", "When not to use it", "What is promised by default"):
        assert any(line.startswith(f"- **{question}.** ") for line in start)
    assert README.count("```python") == len(re.findall(r"```python\n((?:(?!```).)*)```\s*```text", README, re.DOTALL))
    commands = re.findall(r"dev\.py (\w+)", README)
    assert [name for name in commands if f'"{name}": [' not in (ROOT / ".ci" / "dev.py").read_text()] == []


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 150
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
