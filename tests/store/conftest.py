"""Stores in folders, each as a process of its own opens it."""

from __future__ import annotations

import pytest
from folder_stores import new_store


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory, monkeypatch):
    """Downloads are put there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("tmp")))


@pytest.fixture
def stores(tmp_path):
    """Return a function that opens the store of another process."""
    opened = []

    def open_another(kind="local", path=tmp_path / "store"):
        opened.append(new_store(kind, path))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()
