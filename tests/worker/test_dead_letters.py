"""Dead letters: files that hold the whole left row and its error, read when the task is through and never before."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from lookupcache.errors import LookupCacheError
from lookupcache.worker import dead_letters
from lookupcache.worker.dead_letters import DeadLetters

ERROR = pa.struct([("code", pa.string()), ("message", pa.string())])
UTC = dt.UTC


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "note": [f"note {number}" for number in ids]})


def errors(count: int, message: str = "down") -> pa.StructArray:
    return pa.array([{"code": "LOOKUP_FAILED", "message": message}] * count, ERROR)


def read(folder: Path) -> list[dict]:
    return ds.dataset(folder).to_table().to_pylist()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_dead_letter_has_the_row_the_table_the_error_and_time(tmp_path):
    letters = DeadLetters(str(tmp_path / "new" / "folder"), "c")
    before = dt.datetime.now(UTC)
    letters.write(rows(7), errors(1))
    letters.close(complete=True)
    [letter] = read(tmp_path / "new" / "folder")
    assert before <= letter.pop("lookup_failed_at") <= dt.datetime.now(UTC)
    error = {"code": "LOOKUP_FAILED", "message": "down"}
    assert letter == {"id": 7, "note": "note 7", "lookup_table": "c", "lookup_error": error}


def test_columns_have_the_names_that_are_given(tmp_path):
    letters = DeadLetters(str(tmp_path), "c", names=["order, no.", "Bemerkung"])
    letters.write(rows(7), errors(1))
    letters.close(complete=True)
    assert list(read(tmp_path)[0])[:2] == ["order, no.", "Bemerkung"]


def test_nothing_is_read_before_the_task_has_ended(tmp_path):
    letters = DeadLetters(str(tmp_path), "c")
    letters.write(rows(1), errors(1))
    assert [name.startswith("_part-0-0-0-") for name in names(tmp_path)] == [True]
    assert ds.dataset(tmp_path).files == []
    letters.write(rows(2, 3), errors(2))
    letters.close(complete=True)
    assert [name.startswith("part-0-0-0-") for name in names(tmp_path)] == [True]
    assert [letter["id"] for letter in read(tmp_path)] == [1, 2, 3]


def test_a_task_that_does_not_complete_leaves_nothing(tmp_path):
    letters = DeadLetters(str(tmp_path), "c")
    letters.write(rows(1), errors(1))
    letters.close(complete=False)
    assert names(tmp_path) == []


def test_without_errors_there_is_no_file_and_no_folder(tmp_path):
    letters = DeadLetters(str(tmp_path / "none"), "c")
    letters.write(rows(), errors(0))
    letters.close(complete=True)
    assert not (tmp_path / "none").exists()


def test_a_file_that_has_grown_large_is_followed_by_another(tmp_path, monkeypatch):
    monkeypatch.setattr(dead_letters, "_MOST_BYTES", 100)
    letters = DeadLetters(str(tmp_path), "c")
    for number in range(3):
        letters.write(rows(number), errors(1))
    letters.close(complete=True)
    assert len(names(tmp_path)) == 3
    assert sorted(letter["id"] for letter in read(tmp_path)) == [0, 1, 2]


def test_tasks_share_a_folder(tmp_path):
    for number in range(2):
        letters = DeadLetters(f"file://{tmp_path}", f"t{number}")
        letters.write(rows(number), errors(1))
        letters.close(complete=True)
    assert sorted(letter["lookup_table"] for letter in read(tmp_path)) == ["t0", "t1"]


DAY = dt.timedelta(days=1)
AS_TEXT = {
    "a duration": (pa.duration("us"), DAY, "1 day, 0:00:00"),
    "an interval": (pa.month_day_nano_interval(), (1, 2, 3), "MonthDayNano(months=1, days=2, nanoseconds=3)"),
    "a list of durations": (pa.list_(pa.duration("us")), [DAY], f"[{DAY!r}]"),
    "a struct with a duration": (pa.struct([("d", pa.duration("us"))]), {"d": DAY}, str({"d": DAY})),
    "a struct of nothing": (pa.struct([]), {}, "{}"),
    "a column of nulls": (pa.null(), None, None),
}


@pytest.mark.parametrize(("type_", "value", "text"), AS_TEXT.values(), ids=AS_TEXT)
def test_values_without_a_parquet_type_are_written_as_text(tmp_path, type_, value, text):
    letters = DeadLetters(str(tmp_path), "c")
    letters.write(pa.record_batch({"x": pa.array([value, None], type_)}), errors(2))
    letters.close(complete=True)
    assert [letter["x"] for letter in read(tmp_path)] == [text, None]
    assert pq.read_schema(next(tmp_path.iterdir())).field("x").type == pa.string()


def test_a_folder_that_cannot_be_made_fails_and_names_the_option(tmp_path):
    (tmp_path / "file").write_text("in the way")
    letters = DeadLetters(str(tmp_path / "file" / "folder"), "c")
    with pytest.raises(LookupCacheError, match=r"(?s)Table 'c': dead(.*)file/folder(.*)lookup\.dead-letter\.path"):
        letters.write(rows(1), errors(1))
    letters.close(complete=False)


def test_a_file_that_vanishes_is_an_error_unless_the_task_failed(tmp_path):
    for complete in (False, True):
        letters = DeadLetters(str(tmp_path), "c")
        letters.write(rows(1), errors(1))
        next(tmp_path.iterdir()).unlink()
        if complete:
            with pytest.raises(LookupCacheError, match=r"lookup\.dead-letter\.path"):
                letters.close(complete)
        else:
            letters.close(complete)


def test_credentials_are_in_no_error(tmp_path):
    letters = DeadLetters("foo://ann:hunter2@host/letters?token=t0ken", "c")
    with pytest.raises(LookupCacheError) as caught:
        letters.write(rows(1), errors(1))
    assert "foo://ann:***@host/letters" in str(caught.value)
    assert [secret for secret in ("hunter2", "t0ken") if secret in str(caught.value)] == []
    assert caught.value.__cause__ is None
