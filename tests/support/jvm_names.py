"""Classes of the JVM that are looked up once, for tests that plan thousands of joins.

py4j asks the JVM for a name at each use, and the JVM looks in every jar for the ones that are no class, such as `org`:
a tenth of the time of such a test.
"""

from __future__ import annotations

from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, JVMView


def remember_names(patch: pytest.MonkeyPatch) -> None:
    """Let py4j keep the packages, classes and methods that it has found, until the patch is undone."""
    for class_ in (JVMView, JavaPackage, JavaClass):
        patch.setattr(class_, "__getattr__", _remembering(class_.__getattr__))


def _remembering(look_up: Any) -> Any:
    known: dict[tuple[int, str, str], Any] = {}

    def remembered(owner: Any, name: str) -> Any:
        key = id(owner._gateway_client), vars(owner).get("_fqn", ""), name
        if key not in known:
            known[key] = look_up(owner, name)
        return known[key]

    return remembered
