"""The command `lookupcache cache`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from host_processes import PLAN, keys_of, look_up, new_cache, right, store
from servers import until

from lookupcache import LookupConfig, cached
from lookupcache.cli.commands import main
from lookupcache.host import host_cache
from lookupcache.host.control import Control
from lookupcache.host.inspection import contents
from lookupcache.host.segment import FORMAT


def run(*arguments, **options) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["cache", *arguments], catch_exceptions=False, **options)
    assert result.exit_code == 0, result.output
    return result.output


def test_caches_are_listed_shown_and_cleared(tmp_path):
    cache = new_cache(tmp_path, about={"table": "customers", "columns": "id, match"})
    store(cache, range(30))
    cache.find(keys_of([1, 2]))
    listed = run("ls", str(tmp_path))
    assert "customers" in listed
    assert {"30", "2", "1"} <= set(listed.split())
    assert "id, match" in run("show", str(tmp_path))
    assert f"Removed v{FORMAT}-" in run("clear", str(tmp_path), "--yes")
    assert list(tmp_path.iterdir()) == []
    until(lambda: not look_up(cache, range(30)))
    store(cache, range(3))
    assert sorted(look_up(cache, range(30))) == [0, 1, 2], "the process has made the folder again"
    cache.close()


@pytest.mark.parametrize("about", ["[]", "1", "{"])
def test_a_damaged_description_is_named(tmp_path, about):
    cache = new_cache(tmp_path, about={"table": "customers"})
    cache.close()
    [file] = tmp_path.glob("*/about.json")
    file.write_text(about)
    for command in ("ls", "show"):
        assert f"v{FORMAT}-{PLAN}" in run(command, str(tmp_path))


def test_a_cache_with_a_damaged_segment_is_listed_with_the_others(tmp_path, monkeypatch):
    cache = new_cache(tmp_path)
    store(cache, range(30))
    store(cache, range(30, 40))
    cache.close()
    damaged = min(tmp_path.glob("*/*.seg"))
    damaged.unlink()
    damaged.write_bytes(b"")
    [content] = contents(tmp_path)
    assert (content.keys, content.segments, content.problem) == (10, 1, None)
    monkeypatch.setattr("lookupcache.host.segment.clock_identity", lambda: b"another boot....")
    assert "unknown" in run("show", str(tmp_path)), "its ages"


def test_a_folder_that_others_may_enter_is_named(tmp_path):
    new_cache(tmp_path).close()
    [folder] = tmp_path.iterdir()
    folder.chmod(0o755)
    for command in ("ls", "show"):
        assert "it needs mode 0700" in run(command, str(tmp_path))


def test_a_folder_is_cleared_while_a_job_writes_into_it(tmp_path, monkeypatch):
    cache = new_cache(tmp_path)
    store(cache, range(30))
    rmdir, removed = os.rmdir, []

    def write_first(path, **options):
        removed.append(path)
        if len(removed) < 3:
            [folder] = tmp_path.iterdir()
            (folder / f"late-{len(removed)}").touch()
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", write_first)
    assert "30 keys" in run("clear", str(tmp_path), "--yes")
    assert list(tmp_path.iterdir()) == []
    assert len(removed) == 3
    cache.close()


def test_clear_removes_leftovers_of_a_killed_command(tmp_path):
    (tmp_path / f"v{FORMAT}-{PLAN}.0123.cleared").mkdir()
    run("clear", str(tmp_path), "--yes")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    new_cache(tmp_path).close()

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", refuse)
    result = CliRunner().invoke(main, ["cache", "clear", str(tmp_path), "--yes"])
    assert result.exit_code == 1
    assert f"v{FORMAT}-{PLAN} could not be removed: Operation not permitted." in result.output


def test_a_cache_cleared_while_it_is_opened_is_created_again(tmp_path, monkeypatch):
    made = []

    def clear_first(*arguments):
        made.append(1)
        if len(made) == 1:
            run("clear", str(tmp_path), "--yes")
        return Control(*arguments)

    monkeypatch.setattr(host_cache, "Control", clear_first)
    cache = new_cache(tmp_path)
    store(cache, range(30))
    assert look_up(cache, range(30)) == right(range(30))
    cache.close()


def test_names_in_a_folder_do_not_control_the_terminal(tmp_path):
    new_cache(tmp_path, about={"table": "c\x1b[31m", "col\x1b": "\x1b[2J"}).close()
    for command in ("ls", "show"):
        printed = run(command, str(tmp_path))
        assert "\x1b" not in printed
        assert "c?[31m" in printed


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    assert "mine" not in run("ls", str(tmp_path))
    run("clear", str(tmp_path), "--yes")
    assert (tmp_path / "mine").exists()


def test_stores_in_folders_are_listed_shown_and_cleared(tmp_path):
    path = tmp_path / "store"
    for name in ("geo-1", "geo-2"):
        function = cached(LookupConfig(cache="LRU", store=str(path), store_name=name, store_timeout=10))(
            lambda key: str(key)
        )
        assert function(1) == "1"
        function.close()
    for location in (str(path), f"file://{path}"):
        assert [line.split()[-3:-1] for line in run("ls", location).splitlines()[1:]] == [
            ["geo-1", "1"],
            ["geo-2", "1"],
        ]
    assert "Python values" in run("show", str(path))
    for identity, removed in (("../geo-1", 0), ("geo-1", 1)):
        assert f"Removed {removed} keys" in run("clear", str(path), identity, "--yes")
    assert [line.split()[-3] for line in run("ls", str(path)).splitlines()[1:]] == ["geo-2"]
    assert "Removed 1 keys" in run("clear", f"file://{path}", "--yes")
    assert run("ls", f"file://{tmp_path}/none").split() == ["table", "identity", "keys", "bytes"]


def test_stored_text_does_not_control_the_terminal(tmp_path):
    function = cached(LookupConfig(cache="LRU", store=str(tmp_path / "store"), store_name="geo", store_timeout=10))(
        lambda key: key
    )
    function(1), function.close()
    about = {"table": "\x1b[31mred\x07", "columns": "[bold]x[/nope]\r\n\x9b2J"}
    (tmp_path / "store/lookupcache-1/geo/about.json").write_text(json.dumps(about))
    shown = run("ls", str(tmp_path / "store")) + run("show", str(tmp_path / "store"))
    for text in ("?[31mred?", "[bold]x[/nope]???2J"):
        assert text in shown
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


def test_a_location_that_is_none_is_shown_without_its_password():
    result = CliRunner().invoke(main, ["cache", "ls", "http://ann:kx7secretq@host"])
    assert result.exit_code == 2
    assert "'http://ann:***@host' is neither a folder nor the URL of a store" in result.output
