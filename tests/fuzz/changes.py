"""Random changes of inputs: parts that mean something are put in, pieces are cut, repeated, or taken from others."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

PARTS = [
    b"'", b'"', b"\\", b"{", b"}", b"[", b"]", b"/", b"..", b"%2e", b":", b"@", b"?", b"#", b"\n", b"\0", b"\xff",
    b"\xed\xa0\x80", b"9" * 30, b"-", b"1e999", b"null", b"NaN", b"`", b"--", b"/*", b"*/", b";", b",", b"<", b">",
    b"(", b")", b"$", b"{id}", b"{a}", b"\xc2\x85", b"\xe2\x80\xa8", b" ", b"=", b"&", b"true", b"\r",
]  # fmt: skip
LONGEST = 3_000
"""Inputs that are longer are cut, unless a seed is as long."""


def run_changes(
    target: Callable[[bytes], None], seeds: list[bytes], seed: int, count: int | None = None, ends: float = 0.0
) -> int:
    """Call a target with its seeds and with changes of them, so often or until a time; return how often.

    What it raises has a note with the input.
    """
    draw, pool, done = random.Random(seed), list(seeds), 0
    while done < count if count is not None else time.monotonic() < ends:
        data = seeds[done] if done < len(seeds) else change(draw, pool)
        try:
            target(data)
        except BaseException as error:
            error.add_note(f"The input is {data!r}.")
            raise
        if draw.random() < 0.02:
            pool.append(data)
        done += 1
    return done


def change(draw: random.Random, pool: list[bytes]) -> bytes:
    """Return an input of the pool with one to six changes."""
    data = draw.choice(pool)
    longest = max(LONGEST, len(data))
    for _ in range(draw.choice([1, 1, 2, 3, 6])):
        start = draw.randint(0, len(data))
        end = min(len(data), start + draw.randint(0, 6))
        other = draw.choice(pool)
        cut = draw.randint(0, len(other))
        part = draw.choice(
            [
                b"",
                draw.choice(PARTS),
                draw.choice(PARTS),
                bytes([draw.randrange(256)]),
                other[cut : cut + 20],
                data[:50],
            ]
        )
        data = data[:start] + part + (data[draw.choice([start, end]) :] if draw.random() < 0.95 else b"")
    return data[:longest]
