"""The report of the kit in the guides: how many checks passed in all cases, and the others, by suite.

    LOOKUPCACHE_UPDATE_KIT=1 python3 .ci/dev.py test -n0 tests/connectors/test_connector_dynamodb.py

runs every case of the suites of a file, those of the night too, and writes what they found into the file's guide.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from lookupcache.testing import ConnectorSuite

GUIDES = {
    "test_connector_dynamodb": "dynamodb.md",
    "test_connector_sql_alchemy": "databases.md",
    "test_connector_sql_clickhouse": "databases.md",
    "test_connector_sql_firebird": "databases.md",
}
"""The guide of each module whose suites are reported."""

DOCS = Path(__file__).resolve().parents[2] / "docs"

Case: TypeAlias = tuple[str, str, str]
"""The name of a suite, of a check, and the parameter of a case."""


def reported(guide: str, module: str) -> str:
    """Return the report that a guide has of a module's suites."""
    return _between(module).search((DOCS / guide).read_text())[2]


def write(outcomes: Mapping[str, Mapping[Case, str]], suites: Mapping[str, Sequence[type]]) -> None:
    """Write the reports of modules into their guides: of those whose cases were all run."""
    for module, found in outcomes.items():
        if set(found) >= set(cases_of(suites[module])):
            path, text = DOCS / GUIDES[module], report(suites[module], found)
            path.write_text(_between(module).sub(lambda match, text=text: match[1] + text + match[3], path.read_text()))


def cases_of(suites: Iterable[type]) -> Iterator[Case]:
    """Yield the cases of suites."""
    for suite in suites:
        for check in CHECKS:
            yield from ((suite.__name__, check, case) for case in _cases(suite, check) or ())


def report(suites: Sequence[type], outcomes: Mapping[Case, str]) -> str:
    """Return the report of a module's suites: a Markdown table, and the types and values that were left out."""
    names = [suite.__name__.removeprefix("Test") for suite in suites]
    rows = {check: [_cell(suite, check, outcomes) for suite in suites] for check in CHECKS}
    others = {check: cells for check, cells in rows.items() if not all(map(_PASSED.fullmatch, cells))}
    lines = [f"{len(rows) - len(others)} of {len(rows)} checks passed in all cases. The others:", ""]
    lines += [f"| check | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {_meaning(check)} | {' | '.join(cells)} |" for check, cells in others.items()]
    left_out = [f"- {name}: {text}." for name, suite in zip(names, suites, strict=True) for text in _left_out(suite)]
    return "\n".join([*lines, "", *left_out, ""] if left_out else [*lines, ""])


_PASSED = re.compile(r"(\d+ )?passed")


def _cell(suite: type, check: str, outcomes: Mapping[Case, str]) -> str:
    cases = _cases(suite, check)
    if cases is None:
        return "–"
    found = [outcomes[suite.__name__, check, case] for case in cases]
    if cases == [""]:
        return found[0]
    counts = [f"{len(list(same))} {outcome}" for outcome, same in groupby(sorted(found, reverse=True))]
    left_out = len(_cases(ConnectorSuite, check) or ()) - len(cases)
    return ", ".join([*counts, f"{left_out} left out"] if left_out > 0 else counts)


def _cases(suite: Any, check: str) -> list[str] | None:
    """Return the parameters of a check's cases, an empty text where it has none; None if it does not apply."""
    function = getattr(suite, check)
    if function is None:
        return None
    wanted = _Parameters(function)
    suite().pytest_generate_tests(wanted)
    return wanted.values


class _Parameters:
    """What pytest passes to `pytest_generate_tests`, for a function."""

    def __init__(self, function: Any) -> None:
        self.fixturenames = list(inspect.signature(function).parameters)
        marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
        self.values = list(marks[0].args[1]) if marks else [""]

    def parametrize(self, _: str, values: Iterable[str]) -> None:
        self.values = list(values)


def _meaning(check: str) -> str:
    [first, *_] = inspect.getdoc(getattr(ConnectorSuite, check)).split("\n\n")
    return " ".join(first.split()).replace("``", "`")


def _left_out(suite: Any) -> list[str]:
    """Return which types and values a suite leaves out, and why."""
    as_keys = {name: reason for name, reason in suite.unsupported_keys.items() if name not in suite.unsupported}
    return [*_reasons(suite.unsupported), *(f"as keys, {text}" for text in _reasons(as_keys))]


def _reasons(reasons: Mapping[str, str]) -> list[str]:
    names = {reason: [name for name in reasons if reasons[name] == reason] for reason in reasons.values()}
    return [f"{', '.join(same)} ({reason})" for reason, same in names.items()]


def _between(module: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- kit: {module} -->\n\n)(.*?)(\n<!-- end of kit -->)", re.DOTALL)


CHECKS = [name for name in dir(ConnectorSuite) if name.startswith("test_")]
