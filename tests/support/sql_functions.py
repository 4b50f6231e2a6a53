"""Table functions that the SQL tests' workers import by name."""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class Word(NamedTuple):
    word: str
    length: int


def split(text: str | None) -> list[Word]:
    """Return the words of a text; of no text, one that says so."""
    return [Word("nothing", 0)] if text is None else [Word(word, len(word)) for word in text.split()]


async def async_split(text: str | None) -> list[tuple[str, int]]:
    await asyncio.sleep(0)
    return [tuple(row) for row in split(text)]


async def each_word(text: str | None):
    for row in split(text):
        yield row


each_word.returns = "word STRING, length BIGINT"


async def split_many(texts: list[str | None]) -> list[list[tuple[str, int]]]:
    return [await async_split(text) for text in texts]


split_many.batch = True


def numbers(low: int | None, high: int | None) -> list[int]:
    """Return the numbers from one to the other, both included."""
    return [] if low is None or high is None else list(range(low, high + 1))


def of_struct(person: dict | None) -> list[tuple[str, bool]]:
    """Show a struct, and whether it is null."""
    return [(repr(person), person is None)]


def always() -> list[tuple[str]]:
    return [("here",)]


class Counting:
    """A class of which each worker makes one."""

    def open(self) -> None:
        self.opened = True

    def __call__(self, text: str) -> list[tuple[str, bool]]:
        return [(text, self.opened)]


def no_annotation(text):
    return []


def same(value: str) -> list[tuple[str]]:
    """Return a row with the argument."""
    return [(value,)]
