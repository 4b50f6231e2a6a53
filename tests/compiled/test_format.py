"""The format: what is written is read again, and what is damaged, altered or newer is refused with its place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_plan import PLANS as LOOKUPS

from lookupcache import CompiledPlan, CompiledPlanError, LookupConfig, PlanReference
from lookupcache.compiled.check import findings
from lookupcache.compiled.diff import differences
from lookupcache.compiled.document import Document, KeptDefinition, checksums, read, write
from lookupcache.compiled.lookup_fields import columns_needed, columns_read
from lookupcache.compiled.nodes import LeftSideNode, TableUse, config_of, defaults_now, lookup_kind
from lookupcache.compiled.show import show_plan

PLANS = sorted((Path(__file__).parent / "archive").glob("*/*.json"))
TEXT = next(path for path in PLANS if path.stem == "functions").read_text()
JOIN = next(path for path in PLANS if path.stem == "join_worker").read_text()


def altered(change, text=JOIN, *, sealed=True):
    """Return a plan's text with a change to its data, with or without the checksums that would fit."""
    data = json.loads(text)
    change(data)
    if sealed:
        data["checksums"] = checksums(data)
    return json.dumps(data)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_plan_is_read_and_written_again_byte_for_byte(path):
    assert write(read(path.read_text())) == path.read_text()


@pytest.mark.parametrize("name", ["../x", "/x", "", ".", "..", "a/b", "a\nb"])
def test_a_stream_has_a_name_that_stays_in_its_folder(name):
    with pytest.raises(CompiledPlanError, match="is not the name of a stream"):
        read(altered(lambda plan: plan["nodes"][3].update(queryName=name), TEXT))


def test_a_file_that_is_there_is_kept_replaced_or_an_error(tmp_path):
    first, second = (CompiledPlan(read(text)) for text in (TEXT, JOIN))
    first.write_to_file(tmp_path / "a.json", ignore_if_exists=True)
    second.write_to_file(tmp_path / "a.json", ignore_if_exists=True)
    with pytest.raises(CompiledPlanError, match="already"):
        second.write_to_file(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == TEXT
    second.write_to_file(tmp_path / "a.json", ignore_if_exists=True, overwrite=True)
    assert (tmp_path / "a.json").read_text() == JOIN


def test_blanks_and_the_order_of_names_do_not_matter():
    data = json.loads(JOIN)
    assert write(read(json.dumps(dict(reversed(data.items()))))) == JOIN


@pytest.mark.extended
@given(
    lookup=LOOKUPS.filter(lambda plan: plan.keys), alias=st.text(max_size=5), version=st.sampled_from(["0.0.1", "9.9"])
)
def test_any_lookup_join_goes_through_its_plan_unchanged(lookup, alias, version):
    missing = set(columns_needed(lookup)) - set(lookup.schema.names)
    lookup = replace(lookup, schema=pa.schema([*lookup.schema, *(pa.field(name, pa.int64()) for name in missing)]))
    reads = columns_read(lookup)
    node = lookup_kind(lookup)(
        use=TableUse(table=alias, hints={"url": alias}),
        alias=alias,
        input=1,
        reads=reads,
        lookup=replace(lookup, table="", connector="", source="", schema=reads, config=LookupConfig()),
        form="worker",
        stage=(),
        configuration=lookup.config.to_json(),
        output=((alias, "int"), (alias, "int")),
    )
    tables = {alias: KeptDefinition(columns=reads, options={"connector": alias}, inline=True)}
    document = Document(nodes=(LeftSideNode(output=(("a", "int"),)), node), tables=tables, defaults=defaults_now())
    text = write(replace(document, version=version))
    found = read(text)
    assert found.nodes == document.nodes
    assert found.tables == document.tables
    assert config_of(found.nodes[1].configuration, found.defaults) == lookup.config
    assert write(found) == text


@given(end=st.integers(0, len(JOIN.rstrip()) - 1))
def test_a_plan_that_ends_too_early_is_refused_with_the_place(end):
    with pytest.raises(CompiledPlanError, match=r"^Compiled plan p\.json, line \d+, column \d+: it is not JSON"):
        read(JOIN[:end], "p.json")


@given(position=st.integers(0, len(JOIN) - 2), letter=st.sampled_from('x7"{]\\\0\n é'))
def test_a_plan_with_another_letter_is_refused_or_means_the_same(position, letter):
    try:
        found = read(JOIN[:position] + letter + JOIN[position + 1 :], "p.json")
    except CompiledPlanError as error:
        reported = error.fact
    else:
        reported = "Compiled plan p.json" if found.nodes == read(JOIN).nodes else "other nodes"
    assert reported.startswith("Compiled plan p.json")


@pytest.mark.parametrize(
    ("change", "place", "fact"),
    [
        (lambda p: p["nodes"][1].update(joinType="outer"), "nodes[1].joinType", "there is no join type 'outer'"),
        (lambda p: p["nodes"][1].update(keys=[]), "nodes[1].keys", "a lookup has a key"),
        (lambda p: p["nodes"][1].update(keys="id"), "nodes[1].keys", "'id' is not a list"),
        (lambda p: p["nodes"][1].update(neverMatches=1), "nodes[1].neverMatches", "1 is not true or false"),
        (lambda p: p["nodes"][1].update(input=True), "nodes[1].input", "True is not a number"),
        (lambda p: p["nodes"][1].update(input=2), "nodes[1]", "it reads node 2, which is not a query before it"),
        (lambda p: p["nodes"][1].pop("form"), "nodes[1]", "'form' is missing"),
        (lambda p: p["nodes"][1].update(form="auto"), "nodes[1].form", "there is no form 'auto'"),
        (lambda p: p["nodes"][1].update(extra=1), "nodes[1]", "'extra' is not known here"),
        (lambda p: p["nodes"][1].update(type="lookup-join_9"), "nodes[1].type", "type 'lookup-join_9'"),
        (lambda p: p["nodes"][1].update(id=7), "nodes[1].id", "it is not 2"),
        (lambda p: p["nodes"][1]["operators"].update({">": 2}), "nodes[1].operators", "has version 2"),
        (lambda p: p["nodes"][1]["operators"].clear(), "nodes[1].operators", "they are []"),
        (lambda p: p["nodes"][1]["calc"].append(["rm", "int"]), "nodes[1].calc[1]", "no operator 'rm'"),
        (lambda p: p["nodes"][1]["calc"].append(["rm"]), "nodes[1].calc[1]", "it is not an expression"),
        (lambda p: p["nodes"][1]["calc"][0].append(["literal", "int", 1]), "nodes[1].calc[0]", "has 3 arguments"),
        (lambda p: p["nodes"][1]["calc"][0][2].append(1), "nodes[1].calc[0][2]", "has 3 parts in place of two"),
        (lambda p: p["nodes"][1]["calc"][0][3].__setitem__(2, "x"), "nodes[1].calc[0][3][2]", "it cannot be read"),
        (lambda p: p["nodes"][1]["calc"][0][2].__setitem__(1, "q"), "nodes[1].reads", "column 'q' is missing"),
        (lambda p: p["parameters"].update(x=["right", "a", "int"]), "parameters.x", "it is not a literal"),
        (lambda p: p["nodes"][1]["reads"][0].update(type="it"), "nodes[1].reads[0].type", "not a type"),
        (lambda p: p["nodes"][1]["reads"].pop(0), "nodes[1].reads", "column 'id' is missing"),
        (lambda p: p["nodes"][1]["use"].update(table="q"), "nodes[1].use", "table 'q' is not in the plan"),
        (lambda p: p["nodes"][1]["configuration"].update({"lookup.cash": 1}), "nodes[1].configuration", "no option"),
        (lambda p: p["nodes"][1]["configuration"].update({"lookup.cache": 1}), "nodes[1].configuration", "is 1"),
        (lambda p: p["nodes"][1].update(stage=[2]), "nodes[1]", "it shares its Python stage with node 2"),
        (lambda p: p.update(edges=[]), "edges", "they are not those of the nodes"),
        (lambda p: p.update(plugins=[]), "", "'plugins' is not known here"),
        (lambda p: p.update(nodes=[], edges=[]), "nodes", "neither a statement nor a join"),
        (lambda p: p.update(catalogObjects="SOME"), "catalogObjects", "there is no value 'SOME'"),
        (lambda p: p.update(format=2), "", "its format is 2, written by lookupcache"),
        (lambda p: p.update(format=0), "", "its format is 0"),
        (lambda p: p.pop("checksums"), "", "'checksums' is missing"),
    ],
)
def test_an_invalid_plan_is_refused_with_the_place_of_its_error(change, place, fact):
    sealed = "checksums" not in fact
    with pytest.raises(CompiledPlanError) as caught:
        read(altered(change, sealed=sealed), "p.json")
    assert caught.value.fact.startswith(f"Compiled plan p.json{', ' + place if place else ''}: ")
    assert fact in caught.value.fact
    assert caught.value.hint


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda p: p["nodes"][1]["keys"][0].update(sql="l.`x`"), "nodes[1]"),
        (lambda p: p["settings"].update({"spark.sql.ansi.enabled": "false"}), "settings"),
        (lambda p: p["tables"]["p"]["options"].update(connector="evil:Source"), "tables"),
        (lambda p: p["defaults"].update({"lookup.timeout": 1.0}), "defaults"),
    ],
)
def test_an_altered_part_is_named(change, part):
    with pytest.raises(CompiledPlanError, match=rf"{part.replace('[', '.').replace(']', '.')} was altered"):
        read(altered(change, sealed=False))


VALUES = (None, True, -1, 1.5, "", "x", [], [[]], {}, {"x": 1}, 2**70)


def paths(data, path=()):
    """Yield the path of each part of a plan."""
    yield path
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, part in parts:
        yield from paths(part, (*path, name))


def changes(path, number):
    """Return changes of one part: another value, removed, repeated, or with a further name."""

    def part_of(plan):
        for name in path[:-1]:
            plan = plan[name]
        return plan

    def extend(plan):
        one = part_of(plan)[path[-1]]
        one.update(unknown=1) if isinstance(one, dict) else one.append(one[0] if one else 1)

    if number % 2:
        yield lambda plan: part_of(plan).__setitem__(path[-1], VALUES[number % len(VALUES)])
    else:
        yield [lambda plan: part_of(plan).__delitem__(path[-1]), extend][number // 2 % 2]


@pytest.mark.slow
@pytest.mark.parametrize("text", [JOIN, TEXT], ids=["join", "statements"])
def test_a_plan_with_any_part_changed_is_refused_or_usable(text):
    """Whatever is read can be written, shown, compared and checked; what cannot is refused when it is read."""
    refused, plan = 0, read(text)
    for number, path in enumerate(path for path in paths(json.loads(text)) if path and path[0] != "checksums"):
        for change in changes(path, number):
            try:
                changed = altered(change, text)
                found = read(changed, "p.json")
            except CompiledPlanError as error:
                refused += error.fact.startswith("Compiled plan p.json")
                continue
            except (AttributeError, TypeError):
                continue  # neither a list nor an object, so it cannot be extended
            assert write(read(write(found))) == write(found), path
            assert show_plan(found)
            assert [str(one) for one in differences(plan, found)] or write(found) == write(plan) or len(path) > 1
            assert list(findings(found, {}, "ALL", None))
    assert refused > 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"\\ud800"',
        "1e999",
        f"{'9' * 5000}",
        "\ufeff{}",
        "1",
        '"x"',
        "{}",
        "[" * 100_000,
        '{"format": NaN}',
        '{"a": 1, "a": 2}',
    ],
)
def test_a_text_that_is_no_plan_is_refused(text):
    with pytest.raises(CompiledPlanError):
        read(text)


def test_a_plan_without_a_session_says_how_it_is_run():
    plan = CompiledPlan.of(PlanReference.from_json_string(TEXT))
    with pytest.raises(CompiledPlanError, match="execute_plan"):
        plan.execute()
    assert plan == CompiledPlan.of(PlanReference.from_json_string(TEXT))
    assert plan != CompiledPlan.of(PlanReference.from_json_string(JOIN))


def test_a_plan_has_no_names_of_our_classes_and_no_pickles():
    texts = "".join(path.read_text() for path in PLANS)
    assert "lookupcache." not in texts
    assert "gAS" not in texts  # how a pickle in base64 begins


def test_a_removed_option_is_refused_only_where_a_plan_sets_it():
    def older(plan):
        plan["defaults"]["lookup.async.capacity.cluster"] = None

    def set_in_it(plan):
        older(plan)
        plan["nodes"][1]["configuration"]["lookup.async.capacity.cluster"] = 8

    assert read(altered(older)).nodes[1].configuration == read(JOIN).nodes[1].configuration
    with pytest.raises(
        CompiledPlanError, match=r"no option 'lookup\.async\.capacity\.cluster'(?s:.*)lookup\.rate-limit"
    ):
        read(altered(set_in_it))
