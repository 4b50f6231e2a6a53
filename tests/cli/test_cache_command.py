"""The command `lookupcache cache`."""

from __future__ import annotations

from click.testing import CliRunner
from host_processes import keys_of, new_cache, store

from lookupcache.cli.commands import main
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
    store(cache, range(30))
    assert cache.is_lost
    cache.close()


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    assert "mine" not in run("ls", str(tmp_path))
    run("clear", str(tmp_path), "--yes")
    assert (tmp_path / "mine").exists()
