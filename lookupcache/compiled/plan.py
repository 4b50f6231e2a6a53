"""`CompiledPlan` and `PlanReference`: plans in programs and in files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lookupcache.compiled import files
from lookupcache.compiled.document import Document, read, write
from lookupcache.compiled.show import sections_of, show_plan, title_of
from lookupcache.errors import CompiledPlanError
from lookupcache.notebook import as_html


@dataclass(frozen=True)
class PlanReference:
    """Where a plan is: in a file, or in a text.

    >>> PlanReference.from_file("plans/job.json").path
    'plans/job.json'
    """

    path: str | None = None
    text: str | None = field(default=None, repr=False)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> PlanReference:
        """Return a reference to a file: a local path, or a URI that pyarrow's file systems open."""
        return cls(path=os.fspath(path))

    @classmethod
    def from_json_string(cls, text: str) -> PlanReference:
        """Return a reference to a plan's text."""
        return cls(text=text)

    def load(self) -> Document:
        """Return the plan; raises CompiledPlanError where it cannot be read."""
        if self.path is not None:
            return read(files.read_text(self.path), self.path)
        return read(self.text or "", "(text)")


@dataclass(frozen=True, eq=False, repr=False)
class CompiledPlan:
    """A statement, or a lookup join, as it was planned: it runs later, elsewhere, with the same meaning.

    Plans of statements come from `LookupSession.compile_plan_sql` and `LookupSession.load_plan`, those of joins from
    `LookupJoin.compile`. Two are equal if their texts are.
    """

    document: Document
    run: Callable[[CompiledPlan], Any] | None = None

    @classmethod
    def of(cls, reference: PlanReference) -> CompiledPlan:
        """Return a plan that belongs to no session, such as that of a lookup join."""
        return cls(reference.load())

    def as_json_string(self) -> str:
        """Return the plan's text, which is the same, byte for byte, for the same statement."""
        return write(self.document)

    def write_to_file(
        self, path: str | os.PathLike[str], *, ignore_if_exists: bool = False, overwrite: bool = False
    ) -> None:
        """Write the plan to a file, so that no reader sees half of it; missing folders are made.

        Args:
            path: A local path, or a URI that pyarrow's file systems open.
            ignore_if_exists: Keep a file that is there; otherwise CompiledPlanError is raised.
            overwrite: Replace a file that is there.
        """
        try:
            files.write_text(os.fspath(path), self.as_json_string(), overwrite=overwrite)
        except files.FileExists:
            if not ignore_if_exists:
                raise

    def explain(self) -> str:
        """Return the plan as text for people."""
        return show_plan(self.document)

    def __repr__(self) -> str:
        return f"<CompiledPlan: {len(self.document.numbered_nodes)} nodes; explain() shows them>"

    def _repr_html_(self) -> str:
        parts = {title: [("", row) for row in rows] for title, rows in sections_of(self.document).items()}
        return as_html(title_of(self.document), parts)

    def execute(self) -> Any:
        """Run the plan of a statement in the session that it belongs to; return the statement's result."""
        if self.run is None:
            raise CompiledPlanError(
                "The plan belongs to no session.",
                hint="Run it with session.execute_plan(plan); a lookup join's with LookupJoin.from_plan(left, plan).",
            )
        return self.run(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompiledPlan) and self.as_json_string() == other.as_json_string()

    def __hash__(self) -> int:
        return hash(self.as_json_string())
