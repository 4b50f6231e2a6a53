"""A classifier as a lookup table: it predicts which module of Python's library a text is about.

texts ─► batches of the best size ─► model, in a thread outside of the event loop ─► topic and score of each text
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
    """An async lookup function for many texts; `open` loads the model in a worker.

    >>> table = topics(Path("topics.pickle"), batch_size=256)
    >>> table.connector_name, table.config.batch_max_size
    ('function', 256)
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        """Load the model, once per worker rather than once per task."""
        self.model = pickle.loads(self.path.read_bytes())

    def close(self) -> None:
        """Release the model."""
        del self.model

    async def __call__(self, texts: list[str]) -> list[list[tuple[str, str, float]]]:
        """Return one row for each text, computed in a thread so that the event loop is not blocked."""
        return await asyncio.to_thread(self.classify, texts)

    def classify(self, texts: Sequence[str]) -> list[list[tuple[str, str, float]]]:
        """Return one row for each text."""
        scores = self.model.predict_proba(texts)
        best = scores.argmax(axis=1)
        names = self.model.classes_[best]
        return [
            [(text, str(name), float(row[n]))] for text, name, row, n in zip(texts, names, scores, best, strict=True)
        ]


def topics(path: Path, batch_size: int) -> LookupTable:
    """Return the model as a table with a cache, so that repeated texts are not classified again."""
    options = {"lookup.batch.max-size": str(batch_size), "lookup.cache": "LRU", "lookup.cache.max-rows": "100000"}
    return LookupTable.from_function(
        "m", "text STRING, topic STRING, score DOUBLE", key=["text"], function=Topics(path), batch=True, options=options
    )


def best_batch_size(
    classify: Callable[[Sequence[Any]], Any],
    keys: Sequence[Any],
    sizes: Sequence[int] = (1, 4, 16, 64, 256, 1024),
) -> tuple[int, dict[int, float]]:
    """Measure the cost per key for each batch size; return the smallest size within 10 % of the best, and all costs.

    Costs are in seconds, the best of three rounds. A larger batch gains nothing, and delays its first key.
    """
    costs = {size: min(_cost_per_key(classify, keys, size) for _ in range(3)) for size in sizes}
    return next(size for size in sizes if costs[size] <= 1.1 * min(costs.values())), costs


def _cost_per_key(classify: Callable[[Sequence[Any]], Any], keys: Sequence[Any], size: int) -> float:
    started = time.perf_counter()
    for start in range(0, len(keys), size):
        classify(keys[start : start + size])
    return (time.perf_counter() - started) / len(keys)


def train() -> tuple[Pipeline, list[tuple[str, str]]]:
    """Return a model trained on every other sentence of the modules' documentation, and the other sentences."""
    sentences = [(text, module.__name__) for module in MODULES for text in documentation(module)]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1_000))
    model.fit(*zip(*sentences[::2], strict=True))
    return model, sentences[1::2]


def documentation(module: ModuleType) -> list[str]:
    """Return the first sentences of the docstrings of a module."""
    things = [module, *(thing for _, thing in inspect.getmembers(module, inspect.isclass))]
    members = [member for thing in things for _, member in inspect.getmembers(thing, inspect.isroutine)]
    texts = {(inspect.getdoc(member) or "").partition("\n\n")[0] for member in members}
    return sorted(text for text in texts if len(text.split()) > 4)
