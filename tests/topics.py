"""A classifier as a lookup table: which module of Python's library a text is about.

texts ─► batches of the size that pays ─► model, in a thread beside the event loop ─► topic and score of each
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import email.message
import inspect
import logging
import pickle
import time
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from lookupcache import LookupTable

MODULES = (datetime, decimal, email.message, logging, unittest)


class Topics:
    """An async function of many texts; what it opens in a worker is the model.

    >>> table = topics(Path("topics.pickle"), batch_size=256)
    >>> table.connector_name, table.config.batch_max_size
    ('function', 256)
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        """Load the model: once in a worker, not once in a task."""
        self.model = pickle.loads(self.path.read_bytes())

    def close(self) -> None:
        """Let go of it."""
        del self.model

    async def __call__(self, texts: list[str]) -> list[list[tuple[str, str, float]]]:
        """Return one row for each text. The loop, on which other calls run, must not compute."""
        return await asyncio.to_thread(self.classify, texts)

    def classify(self, texts: Sequence[str]) -> list[list[tuple[str, str, float]]]:
        """Do the work."""
        likely = self.model.predict_proba(texts)
        best = likely.argmax(axis=1)
        names = self.model.classes_[best]
        return [
            [(text, str(name), float(row[n]))] for text, name, row, n in zip(texts, names, likely, best, strict=True)
        ]


def topics(path: Path, batch_size: int) -> LookupTable:
    """Return the model as a table; a text that comes again is not classified again."""
    options = {"lookup.batch.max-size": str(batch_size), "lookup.cache": "LRU", "lookup.cache.max-rows": "100000"}
    return LookupTable.from_function(
        "m", "text STRING, topic STRING, score DOUBLE", key=["text"], function=Topics(path), batch=True, options=options
    )


def best_batch_size(
    ask: Callable[[Sequence[Any]], Any], keys: Sequence[Any], sizes: Sequence[int] = (1, 4, 16, 64, 256, 1024)
) -> tuple[int, dict[int, float]]:
    """Measure what a key costs in batches of each size; return the least size within a tenth of the best, and all.

    Costs are seconds, the best of three rounds. A larger batch than that gains nothing, and makes its first key wait.
    """
    costs = {size: min(_cost(ask, keys, size) for _ in range(3)) for size in sizes}
    return next(size for size in sizes if costs[size] <= 1.1 * min(costs.values())), costs


def _cost(ask: Callable[[Sequence[Any]], Any], keys: Sequence[Any], size: int) -> float:
    began = time.perf_counter()
    for start in range(0, len(keys), size):
        ask(keys[start : start + size])
    return (time.perf_counter() - began) / len(keys)


def train() -> tuple[Pipeline, list[tuple[str, str]]]:
    """Return a model of every other sentence of the modules' documentation, and the sentences that it has not seen."""
    sentences = [(text, module.__name__) for module in MODULES for text in documentation(module)]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1_000))
    model.fit(*zip(*sentences[::2], strict=True))
    return model, sentences[1::2]


def documentation(module: ModuleType) -> list[str]:
    """Return the first sentences of what a module documents."""
    things = [module, *(thing for _, thing in inspect.getmembers(module, inspect.isclass))]
    members = [member for thing in things for _, member in inspect.getmembers(thing, inspect.isroutine)]
    texts = {(inspect.getdoc(member) or "").partition("\n\n")[0] for member in members}
    return sorted(text for text in texts if len(text.split()) > 4)
