"""What two processes must have in common to share the rows of a source: its code, and what its options refer to."""

from __future__ import annotations

from dataclasses import dataclass

from lookupcache.functions.connector import FunctionConnector
from lookupcache.functions.identity import class_identity, source_identity
from lookupcache.plan import digest
from lookupcache.worker.source import Source


@dataclass(frozen=True)
class SourceIdentity:
    """The identity of a source as this process has it.

    - ``called``: what is called, the same for all joins of a function or of a table: limits of calls are by it.
    - ``content``: what determines the rows of a key, but for the plan; None where the plan's ``source`` says it all.
    """

    called: str
    content: str | None

    @classmethod
    def of(cls, source: Source) -> SourceIdentity:
        """Return the identity of a source, by the code that this process has loaded."""
        connector, planned = source.connector, source.plan.source
        if isinstance(connector, FunctionConnector):
            called = source_identity(connector.function, planned)
            return cls(called, digest([called, connector.calling]))
        referenced, code = connector.referenced_values(), class_identity(type(connector))
        return cls(planned, digest([planned, referenced, code]) if referenced or code else None)
