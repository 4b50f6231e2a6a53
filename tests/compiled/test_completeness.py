"""Fails when a node type, a field, an option or a setting has no plan in the archive, or no rule of comparison."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import get_args

import pytest
from session_settings import MEANING

from lookupcache import LookupConfig, LookupPlan, expr
from lookupcache.compiled import nodes, settings
from lookupcache.compiled.diff import OPTION_RULES, RULES
from lookupcache.compiled.document import KEEPS, checksums
from lookupcache.compiled.lookup_fields import DERIVED, OPERATOR_VERSIONS
from lookupcache.config.lookup_config import Form
from lookupcache.planner import settings as planner_settings

PLANS = [json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "archive").glob("**/*.json"))]
PLANS = [plan for plan in PLANS if "format" in plan]
NODES = [node for plan in PLANS for node in plan["nodes"]]
FIELDS_OF = {name: tuple(kind.FIELDS) for name, kind in nodes.NODE_TYPES.items()}
OPTIONS = [option.metadata["key"] for option in dataclasses.fields(LookupConfig)]
ADD = "Add a statement to plan_world.py, and run tests/compiled with LOOKUPCACHE_UPDATE_GOLDEN=1."
EARLIER = {"lookup-join_2": "lookup-join_1"}
"""The version of a type whose fields a later one has too, written and read by the same code."""
NEVER_SET = {("insert_1", "output")}
"""Fields that are always empty."""


def test_every_class_of_nodes_has_a_type_that_can_be_read():
    assert set(get_args(nodes.Node)) == set(nodes.NODE_TYPES.values())


@pytest.mark.parametrize("type_", nodes.NODE_TYPES)
def test_every_type_of_nodes_has_a_plan(type_):
    assert type_ in {node["type"] for node in NODES}, ADD


@pytest.mark.extended
@pytest.mark.parametrize(("type_", "name"), [(type_, name) for type_, names in FIELDS_OF.items() for name in names])
def test_every_field_has_a_plan_and_a_rule(type_, name):
    alike = [type_, *(one for one in (EARLIER.get(type_),) if one is not None and name in FIELDS_OF[one])]
    values = [node[name] for node in NODES if node["type"] in alike and node.get(name) not in (None, [], {}, False, "")]
    assert values or (type_, name) in NEVER_SET, ADD
    assert (type_, name) in RULES or name == "configuration"


def test_every_rule_is_of_a_field():
    assert {key for key in RULES if key[1] not in FIELDS_OF[key[0]]} == set()
    assert set(OPTION_RULES) == set(OPTIONS)


@pytest.mark.parametrize("key", OPTIONS)
def test_every_option_has_a_plan_and_a_rule(key):
    assert [node for node in NODES if key in node.get("configuration", {})], ADD.partition(", and ")[2]
    assert key in OPTION_RULES
    assert any(key in plan["defaults"] for plan in PLANS)


def test_every_attribute_of_a_lookup_is_in_its_plan():
    attributes = [f"lookup.{field.name}" for field in dataclasses.fields(LookupPlan) if field.name not in DERIVED]
    written = [one.attribute for one in nodes.AsOfLookupNode.FIELDS.values()]
    assert sorted(attributes) == sorted(name for name in written if name.startswith("lookup."))


def test_every_operator_has_a_version_and_a_plan():
    assert set(OPERATOR_VERSIONS) == {*expr.OPERATORS, "cast"}
    archived = {operator for node in NODES for operator in node.get("operators", ())}
    assert set(OPERATOR_VERSIONS) - archived == set(), ADD


def test_every_form_and_every_way_to_keep_tables_has_a_plan():
    assert {node["form"] for node in NODES if "form" in node} == set(get_args(Form)) - {"auto"}
    assert {plan["catalogObjects"] for plan in PLANS} == set(KEEPS)


def test_every_setting_that_the_planner_reads_is_in_a_plan():
    names = [value for name, value in inspect.getmembers(planner_settings) if str(value).startswith("spark.sql.")]
    missing = [name for name in names if name not in settings.MEANINGS and not name.startswith(settings.LEGACY)]
    assert missing == []


def test_every_setting_that_changes_a_meaning_is_in_a_plan():
    # The other one changes what a job in Java gets from Spark, and no result of SQL.
    names = set(MEANING) - {"spark.sql.datetime.java8API.enabled"} - {*settings.MEANINGS, *settings.WHERE_SET}
    assert [name for name in names if not name.startswith(settings.LEGACY)] == []


def test_no_archived_plan_was_altered():
    assert [plan for plan in PLANS if plan["checksums"] != checksums(plan)] == []
