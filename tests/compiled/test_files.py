"""Plans in files: never half of one, never another's."""

from __future__ import annotations

import errno
import itertools
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
def test_an_invalid_path_is_refused(path, tmp_path, monkeypatch):
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


def sub_tree(folder):
    return fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())


OPENED = {"in memory": lambda _: fs._MockFileSystem(), "below a folder": sub_tree}


@pytest.mark.parametrize("kind", OPENED)
def test_a_file_system_without_links_is_written_by_a_rename(monkeypatch, tmp_path, kind):
    system = OPENED[kind](tmp_path)
    monkeypatch.setattr(files, "_open", lambda path: (system, path))
    assert not files.exists("folder/a.json")
    files.write_text("folder/a.json", "x")
    with pytest.raises(CompiledPlanError, match="already"):
        files.write_text("folder/a.json", "y")
    assert files.read_text("folder/a.json") == "x"
    files.write_text("folder/a.json", "y", overwrite=True)
    assert files.read_text("folder/a.json") == "y"
    with pytest.raises(CompiledPlanError, match="there is no such file"):
        files.read_text("folder/b.json")


@pytest.mark.parametrize("call", ["create_dir", "open_output_stream"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_is_read_only_is_named(tmp_path, monkeypatch, call, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    system = type("ReadOnly", (fs.LocalFileSystem,), {call: refuse})()
    monkeypatch.setattr(files, "_open", lambda path: (system, path))
    with pytest.raises(CompiledPlanError) as caught:
        files.write_text(f"{tmp_path}/a.json", "x")
    assert f"'{tmp_path}/a.json' cannot be written: {os.strerror(number)}" in caught.value.fact
    assert os.listdir(tmp_path) == []


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "a").write_text("x")
    for path in (f"{tmp_path}/a/b.json", f"file://{tmp_path}/a/b.json"):
        with pytest.raises(CompiledPlanError, match="cannot be written"):
            files.write_text(path, "y")
        with pytest.raises(CompiledPlanError, match=r"cannot be read|no such file"):
            files.read_text(path)
    with pytest.raises(CompiledPlanError, match="cannot be read"):
        files.read_text(str(tmp_path))


@pytest.mark.parametrize("kind", ["local", "below a folder"])
def test_reading_a_plan_during_writes_gives_one_whole_plan(tmp_path, monkeypatch, kind):
    if kind != "local":
        monkeypatch.setattr(files, "_open", lambda path: (sub_tree("/"), path))
    path, texts, found = f"{tmp_path}/a.json", [letter * 100_000 for letter in "xy"], []
    files.write_text(path, texts[0])
    writers = [threading.Thread(target=lambda text=text: [files.write_text(path, text, overwrite=True)
               for _ in range(20)]) for text in texts]  # fmt: skip
    [thread.start() for thread in writers]
    while not found or any(thread.is_alive() for thread in writers):
        found.append(files.read_text(path))
    assert set(found) <= set(texts)
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_that_another_program_puts_in_place_is_kept(monkeypatch):
    system = fs._MockFileSystem()

    class Busy:
        def __getattr__(self, name):
            return getattr(system, name)

        def move(self, aside, inner):
            system.move(aside, inner)
            with system.open_output_stream(inner) as file:
                file.write(b"another's")

    monkeypatch.setattr(files, "_open", lambda path: (Busy(), path))
    with pytest.raises(files.FileExists, match="already"):
        files.write_text("a.json", "x")
    assert files.read_text("a.json") == "another's"


def test_a_local_folder_without_links_is_written_by_a_rename(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(files.os, "link", refuse)
    files.write_text(str(tmp_path / "a.json"), "x")
    with pytest.raises(CompiledPlanError, match="already"):
        files.write_text(str(tmp_path / "a.json"), "y")
    assert (files.read_text(str(tmp_path / "a.json")), os.listdir(tmp_path)) == ("x", ["a.json"])


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    files.write_text(str(tmp_path / "link.json"), "x")
    files.write_text(str(tmp_path / "link.json"), "y", overwrite=True)
    assert (tmp_path / "a.json").read_text() == "y"
    assert (tmp_path / "link.json").is_symlink()
    with pytest.raises(CompiledPlanError, match="already"):
        files.write_text(str(tmp_path / "link.json"), "z")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_killed_program_leaves_no_plan_or_a_complete_one(tmp_path, overwrite):
    """Ends a process as SIGKILL does at each call of the file system, and writes again after it."""
    path, text = tmp_path / "folder" / "a.json", "x" * 100
    for step in range(20):
        child = os.fork()
        if child == 0:
            _die_at(step)
            files.write_text(str(path), text, overwrite=overwrite)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert not path.exists() or path.read_text() == text
        if status == 1:
            break
        path.unlink(missing_ok=True)
    assert 3 <= step < 19  # it died before each call, and not in the last run
    assert path.read_text() == text


def _die_at(step):
    """End this process before call number ``step`` of the file system."""
    calls = itertools.count()

    def counted(function):
        def call(*arguments, **options):
            if next(calls) == step:
                os._exit(9)
            return function(*arguments, **options)

        return call

    names = ("get_file_info", "create_dir", "open_output_stream", "move", "delete_file")
    dying = type("Dying", (fs.LocalFileSystem,), {name: counted(getattr(fs.LocalFileSystem, name)) for name in names})
    files._open = lambda path: (dying(), path)
    files.os.link = counted(os.link)
