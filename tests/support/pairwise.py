"""Combinations of options such that each two values that go together occur together at least once.

Most defects that need several options need two; all pairs take some dozen cases where all combinations take billions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

Case = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]

_CANDIDATES = 8
_ATTEMPTS = 10
_REPAIRS = 12


@dataclass
class Covering:
    """Cases that cover all pairs of values, ``pairs`` of them; ``excluded`` are the pairs that no case can have."""

    cases: list[Case] = field(default_factory=list)
    pairs: int = 0
    excluded: list[tuple[Case, set[str]]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{len(self.cases)} cases cover {self.pairs} pairs of values; {len(self.excluded)} contradict each other"

    def part(self, number: int, of: int, folder: Path) -> Iterator[tuple[Case, Path]]:
        """Return every ``of``-th case and a new folder for it; use them within `named`."""
        for case_number, case in list(enumerate(self.cases))[number::of]:
            own = folder / str(case_number)
            own.mkdir()
            yield case, own


@contextmanager
def named(case: Case) -> Iterator[None]:
    """Add the case to an error that is raised within."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {case}")
        raise


def covering(values: Mapping[str, Sequence[Any]], conflict: Callable[[Case], set[str]], seed: int = 0) -> Covering:
    """Return cases that cover every pair of values, each as large a part of the rest as a greedy search finds.

    Args:
        values: The values of each parameter; the first is its default, which must go with every other value.
        conflict: Returns the parameters that contradict each other in a case; none if the case may be.
        seed: The seed of the search; the same seed gives the same cases.
    """
    search = _Search(values, conflict, Random(seed))
    found = Covering()
    while search.open:
        pair = min(search.open)
        if not any(search.complete(pair, drawn=False) for _ in range(_ATTEMPTS)):
            search.open.discard(pair)
            found.excluded.append((search.case_of(pair), search.reasons[pair]))
            continue
        candidates = [case for case in (search.complete(pair) for _ in range(_CANDIDATES)) if case]
        candidates += [case for case in [search.complete(pair, drawn=False)] if case]
        if not candidates:
            continue  # The next round draws again.
        best = max(candidates, key=lambda case: len(search.pairs_of(case) & search.open))
        covered = search.pairs_of(best) & search.open
        search.open -= covered
        found.pairs += len(covered)
        found.cases.append({name: values[name][number] for name, number in best.items()})
    return found


class _Search:
    """Cases as numbers of values, since not every value can be hashed."""

    def __init__(
        self, values: Mapping[str, Sequence[Any]], conflict: Callable[[Case], set[str]], random: Random
    ) -> None:
        self.values = values
        self.conflict = conflict
        self.random = random
        self.reasons: dict[Pair, set[str]] = {}
        self.open: set[Pair] = set()
        for one, other in itertools.combinations(sorted(values), 2):
            for first, second in itertools.product(range(len(values[one])), range(len(values[other]))):
                self.open.add(((one, first), (other, second)))

    def case_of(self, pair: Pair) -> Case:
        return {name: self.values[name][number] for name, number in pair}

    def pairs_of(self, case: Mapping[str, int]) -> set[Pair]:
        return set(itertools.combinations(sorted(case.items()), 2))

    def complete(self, pair: Pair, drawn: bool = True) -> dict[str, int] | None:
        """Return a case with this pair; values that contradict others are replaced until none does.

        The other values are ``drawn``, or the defaults, from which it shows soon whether the pair can be had at all.
        """
        fixed = dict(pair)
        case = {name: self.random.randrange(len(values)) if drawn else 0 for name, values in self.values.items()}
        case |= fixed
        for _ in range(len(self.values) if drawn else _REPAIRS):
            clash = self.conflict({name: self.values[name][number] for name, number in case.items()})
            if not clash:
                return case
            self.reasons.setdefault(pair, set()).update(clash)
            free = sorted(clash - set(fixed))
            if not free:
                return None
            # A value that is not the default is one too many; where all are, another value is what is missing.
            name = self.random.choice([name for name in free if case[name]] or free)
            case[name] = 0 if case[name] else self.random.randrange(len(self.values[name]))
        return None
