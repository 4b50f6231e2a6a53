"""What two processes must have in common to share the rows of a source, beside the plan: what it reads from outside."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

from lookupcache.connector import Connector, digest_of, this_process
from lookupcache.environment import named_variables
from lookupcache.errors import LookupCacheError
from lookupcache.functions.connector import FunctionConnector
from lookupcache.plan import LookupPlan, digest


class PlannedSource(Protocol):
    """A connector under a plan, as `Source` and `Connection` are."""

    plan: LookupPlan
    connector: Connector


@dataclass(frozen=True)
class SourceIdentity:
    """The identity of a source as this process has it; the plan's ``source`` has that of its options and code.

    - ``called``: what is called, whatever its version: limits of calls for all hosts are by it.
    - ``content``: what determines the rows of a key; None where the plan's ``source`` says it all. It is of this
      process alone if its code is not the driver's.
    - ``is_known``: whether that is all that determines them; if not, nothing is shared with other applications.
    """

    called: str
    content: str | None
    is_known: bool = True

    @classmethod
    def of(cls, source: PlannedSource) -> SourceIdentity:
        """Return the identity of a source, by its plan and its connector in this process."""
        plan, connector = source.plan, source.connector
        planned = plan.source
        called = connector.full_name if isinstance(connector, FunctionConnector) else planned
        if _has_other_code(plan, connector):
            return cls(called, digest([planned, this_process()]), is_known=False)
        return cls._of_environment(called, planned, connector)

    @classmethod
    def _of_environment(cls, called: str, planned: str, connector: Connector) -> SourceIdentity:
        found = environment_of(connector)
        if read := named_variables(connector.code_variables):
            found = None if found is None else found + digest(read, secret=True)
        return cls(called, digest([planned, found]) if found else None, found is not None)

    def is_outdated(self, source: PlannedSource) -> bool:
        """Return whether rows of a source are kept by this identity, and it has another now.

        So it is after a link, file or variable that the source reads was changed.
        """
        if not (self.is_known and source.plan.config.keeps_rows_by_content):
            return False
        return self != self._of_environment(self.called, source.plan.source, source.connector)


def _has_other_code(plan: LookupPlan, connector: Connector) -> bool:
    """Return whether this worker's code is another than that by which the driver has planned; warns then, once.

    Rows of such code must not be kept by the identity of the driver's.
    """
    sent = connector.code_texts
    if not plan.config.keeps_rows_by_content or sent is None:
        return False
    from lookupcache.functions.loaded_code import has_other_code  # Most workers keep no rows.

    subject = f"Table {plan.table!r}: this worker shares no rows"
    return has_other_code(*sent, subject, "the driver has planned")


def environment_of(connector: Connector) -> str | None:
    """Return a hash of what a connector reads from outside, an empty text for nothing, None if it cannot be known."""
    try:
        resolved = _resolved(connector)
        found = resolved.environment()
    except (LookupCacheError, OSError):  # As of a variable that is not set: to open the connector fails, too.
        return None
    if found is None:
        return None
    return digest_of(resolved, "environment", found) if found else ""


def shares_nothing(plan: LookupPlan, connector: Connector) -> bool:
    """Return whether a plan's rows are kept for other applications, but it cannot be known which may have them.

    On the driver, for `explain`; where only workers have what options refer to, it is not known yet.
    """
    if not plan.config.keeps_rows_by_content:
        return False
    try:
        return _resolved(connector).environment() is None
    except LookupCacheError:
        return False
    except OSError:  # As of a working directory that was removed.
        return True


def _resolved(connector: Connector) -> Connector:
    resolved = copy.copy(connector)
    resolved.resolve()
    return resolved
