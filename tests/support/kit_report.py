"""The report of the kit in the guides: for each suite how many checks apply, and what it leaves out.

    LOOKUPCACHE_UPDATE_KIT=1 python3 .ci/dev.py test -n0 tests/connectors/test_connector_dynamodb.py

runs every case of the suites of a file, those of the night too, and writes what they found into the file's guide.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from lookupcache.testing import ConnectorSuite

GUIDES = {
    "test_connector_dynamodb": "sources.md",
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


def report(suites: Iterable[type], outcomes: Mapping[Case, str]) -> str:
    """Return the report of a module's suites: for each, its checks, and the types and values that it leaves out."""
    return "".join(f"- {suite.__name__.removeprefix('Test')}: {_found(suite, outcomes)}\n" for suite in suites)


def _found(suite: type, outcomes: Mapping[Case, str]) -> str:
    applied = {check: cases for check in CHECKS if (cases := _cases(suite, check)) is not None}
    found = {check: {outcomes[suite.__name__, check, case] for case in cases} for check, cases in applied.items()}
    others = [f"{check}: {', '.join(sorted(kinds))}" for check, kinds in found.items() if kinds != {"passed"}]
    result = "; ".join(others) or "all cases passed"
    left_out = "; ".join(_left_out(suite))
    return f"{len(applied)} of {len(CHECKS)} checks apply; {result}." + f" Left out: {left_out}." * bool(left_out)


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
