"""The guides of the sources and of what users come from run on real servers, and print what they say."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from servers import PASSWORD, PostgresServer, RedisServer

from lookupcache import LookupSession
from lookupcache.connector import connector_class, offers

PAGES = Path(__file__).parent.parent / "docs"
CUSTOMERS = [
    "CREATE TABLE customers (id BIGINT PRIMARY KEY, name TEXT, country TEXT)",
    "INSERT INTO customers VALUES (1, 'Ann', 'AT'), (2, 'Bob', 'BE')",
]


def sections(page: str) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", (PAGES / page).read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    return [
        (language, code)
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if language in languages
    ]


def run_section(text: str, spark: Any, addresses: Mapping[str, str]) -> None:
    """Run the Python code of a section, and compare what it prints with each block of text."""
    names: dict[str, Any] = {"spark": spark, "__name__": "__main__"}
    printed, compared = io.StringIO(), 0
    for language, code in blocks(text, "python", "text"):
        if language == "text":
            assert printed.getvalue().strip() == code.strip()
            printed, compared = io.StringIO(), compared + 1
            continue
        for shown, real in addresses.items():
            code = code.replace(shown, real)
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "a page", "exec"), names)
    assert compared


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shop(postgres_server: PostgresServer, tmp_path: Path) -> Mapping[str, str]:
    """Return where the pages' database is, and its password."""
    (tmp_path / "password").write_text(PASSWORD)
    postgres_server.run("DROP TABLE IF EXISTS customers", *CUSTOMERS)
    url = postgres_server.url.replace(f":{PASSWORD}@", "@")
    return {"postgresql://shop@db.example:5432/shop": url, "env:SHOP_PASSWORD": f"file:{tmp_path / 'password'}"}


MIGRATION = (PAGES / "migration.md").read_text()


@pytest.mark.spark
def test_a_job_of_flink(spark: Any, shop: Mapping[str, str]) -> None:
    url, password = shop.values()
    [(_, statements)] = blocks(MIGRATION, "sql")
    for shown, real in {
        "jdbc:postgresql://db/shop": "jdbc:postgresql://" + url.partition("@")[2],
        "env:SHOP_PASSWORD": password,
    }.items():
        assert shown in statements
        statements = statements.replace(shown, real)
    session = LookupSession(spark)
    orders = spark.createDataFrame([(10, 1), (11, 2), (12, 3)], "id INT, customer_id BIGINT")
    orders.createOrReplaceTempView("orders")
    found = session.run(statements)[-1]
    assert sorted(map(tuple, found.collect())) == [(10, "Ann"), (11, "Bob")]


@pytest.mark.spark
def test_a_dict(spark: Any) -> None:
    run_section(MIGRATION, spark, {})


# ── the guides to the sources ────────────────────────────────────────────────────────────────────────────────

SOURCES = sections("sources.md")
GUIDES = {name: (PAGES / f"{name}.md").read_text() for name in ("databases", "functions")} | {
    name: SOURCES[name] for name in ("DynamoDB", "Redis", "HTTP", "Files", "Feast")
}


def test_every_source_has_a_test() -> None:
    tested = Path(__file__).read_text()
    printing = [name for name, text in SOURCES.items() if blocks(text, "text")]
    assert len(printing) >= 5
    assert [name for name in printing if f'SOURCES["{name}"]' not in tested] == []


@pytest.mark.spark
def test_a_database(spark: Any, shop: Mapping[str, str]) -> None:
    run_section(GUIDES["databases"], spark, shop)


@pytest.mark.spark
def test_redis(spark: Any) -> None:
    server = RedisServer().start()
    try:
        addresses = {"cache.example:6379": f"127.0.0.1:{server.port}", "cache.example": "127.0.0.1"}
        run_section(SOURCES["Redis"], spark, {**addresses, "port=6379": f"port={server.port}"})
    finally:
        server.close()


@pytest.mark.spark
def test_a_service(spark: Any, service: Any) -> None:
    service.set_rows({"1": [{"id": 1, "name": "Ann", "address": {"city": "Vienna"}}]})
    run_section(SOURCES["HTTP"], spark, {"https://api.example": service.url})


@pytest.mark.spark
def test_a_budget(spark: Any, service: Any) -> None:
    service.set_rows({"1 Main St": [{"lat": 48.21, "lon": 16.4}], "2 Main St": [{"lat": 48.22, "lon": 16.4}]})
    run_section(SOURCES["A service that costs money"], spark, {"https://geo.example": service.url})
    # One for each address, though one of them is in two rows, and none for the second run or beyond the budget.
    assert len(service.requests()) == 3


@pytest.mark.spark
def test_files(spark: Any) -> None:
    run_section(SOURCES["Files"], spark, {})


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning")
def test_a_feature_store(spark: Any, tmp_path: Path) -> None:
    import pandas as pd
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource
    from feast.types import Float32, Int64
    from feast.value_type import ValueType

    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "feature_store.yaml").write_text(
        "project: shop\nprovider: local\nregistry: registry.db\nonline_store: {type: sqlite, path: online.db}\n"
        "entity_key_serialization_version: 3\n"
    )
    store = FeatureStore(str(tmp_path / "features"))
    driver = Entity(name="driver", join_keys=["driver_id"], value_type=ValueType.INT64)
    types = {"driver_id": Int64, "trips": Int64, "rating": Float32}
    stats = FeatureView(
        name="driver_stats",
        entities=[driver],
        ttl=timedelta(days=1),
        schema=[Field(name=name, dtype=dtype) for name, dtype in types.items()],
        source=FileSource(path=str(tmp_path / "stats.parquet"), timestamp_field="event_timestamp"),
    )
    store.apply([driver, stats])
    now = datetime.now(UTC)
    rows = {"driver_id": [1, 2], "trips": [120, 7], "rating": [4.8, 3.9]}
    times = {"event_timestamp": [now, now - timedelta(days=9)]}
    store.write_to_online_store("driver_stats", pd.DataFrame({**rows, **times}))
    run_section(SOURCES["Feast"], spark, {"features/": f"{tmp_path}/features"})


def test_the_table_of_connectors_is_generated() -> None:
    """With LOOKUPCACHE_UPDATE_GOLDEN the page is changed instead."""
    path = PAGES / "sources.md"
    shown = re.sub(
        "(<!-- facts -->\n).*?(<!-- /facts -->)", rf"\1{facts()}\2", path.read_text(), count=1, flags=re.DOTALL
    )
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN"):
        path.write_text(shown)
    assert path.read_text() == shown


def facts() -> str:
    """Return what connectors can do, by their classes, as a Markdown table."""
    lines = [
        "| connector | required options | keys per call | async | full table | pushes filters | reads its columns |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name in ("sql", "dynamodb", "redis", "http", "files", "openai", "feast"):
        kind = connector_class(name)
        most = kind.batch_max_size
        keys = "by options" if isinstance(most, property) else f"{most:,}" if most else "any number"
        can = [offers(kind, method) for method in ("lookup_async", "scan", "accept", "infer_schema")]
        required = ", ".join(f"`{option}`" for option in kind.required) or "one of several"
        cells = ["yes" if one else "no" for one in can]
        page = {"sql": "databases.md", "openai": "models.md"}.get(name, f"#{name}")
        lines.append(f"| [`{name}`]({page}) | {required} | {keys} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_answers_the_same_questions(name: str) -> None:
    for word in ("Keys and types", "Several rows per key", "Pushed", "Errors", "Credentials", "Limits"):
        assert f"**{word}" in GUIDES[name], word
