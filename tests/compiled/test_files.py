"""Plans in files: never half of one, never another's."""

from __future__ import annotations

import os
import threading

import pytest
from pyarrow import fs

from lookupcache import CompiledPlanError
from lookupcache.compiled import files


@pytest.mark.parametrize("name", ["a.json", "new/folders/a.json", "a b%20ü'\"{}$.json", "-x", "a\nb"])
def test_a_plan_is_written_and_read_under_any_name(tmp_path, name):
    path = str(tmp_path / name)
    files.write_text(path, "é")
    assert files.exists(path)
    assert files.read_text(path) == "é"
    assert sorted(os.listdir(os.path.dirname(path))) == [os.path.basename(path)]


def test_a_uri_is_opened_by_its_file_system(tmp_path):
    files.write_text(f"file://{tmp_path}/a%20b.json", "x")
    assert (tmp_path / "a b.json").read_text() == "x"
    assert files.read_text(f"file:{tmp_path}/a%20b.json") == "x"


def test_a_relative_path_is_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write_text("a.json", "x")
    assert (tmp_path / "a.json").read_text() == "x"


def test_an_existing_file_is_overwritten_only_on_request(tmp_path):
    path = str(tmp_path / "a.json")
    files.write_text(path, "first")
    with pytest.raises(CompiledPlanError, match=r"already, which is not overwritten"):
        files.write_text(path, "second")
    assert files.read_text(path) == "first"
    files.write_text(path, "second", overwrite=True)
    assert files.read_text(path) == "second"


def test_of_many_that_write_at_once_one_succeeds(tmp_path):
    path, start, done = str(tmp_path / "a.json"), threading.Barrier(8), []

    def write(number):
        start.wait()
        try:
            files.write_text(path, str(number))
        except CompiledPlanError:
            return
        done.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert [files.read_text(path)] == [str(number) for number in done]
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "link", fail)
    with pytest.raises(CompiledPlanError, match="cannot be written: No space left"):
        files.write_text(str(tmp_path / "a.json"), "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["", " ", "a\0b", "folder/", "nowhere://a/b", "s3:///x"])
def test_what_is_no_path_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompiledPlanError):
        files.write_text(path, "x")


def test_errors_name_the_path_without_its_secrets(tmp_path):
    with pytest.raises(CompiledPlanError, match="there is no such file"):
        files.read_text(str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_bytes(b"\xff")
    with pytest.raises(CompiledPlanError, match="cannot be read"):
        files.read_text(str(tmp_path / "a.json"))
    with pytest.raises(CompiledPlanError) as caught:
        files.read_text("unknown://ann:hunter2@host/a.json")
    assert "hunter2" not in str(caught.value)


def test_a_file_system_without_links_is_written_by_a_rename(monkeypatch):
    system = fs._MockFileSystem()
    monkeypatch.setattr(files, "_open", lambda path: (system, path))
    files.write_text("folder/a.json", "x")
    with pytest.raises(CompiledPlanError, match="already"):
        files.write_text("folder/a.json", "y")
    assert files.read_text("folder/a.json") == "x"
