"""Test processes that are replaced: where one ends, its current test fails, and another runs the rest of its tests."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class ReplacingScheduling(LoadFileScheduling):
    """Whole files per process, as with ``--dist loadfile``.

    As of 3.8, xdist would give the test that ended a process to the next process, which would end as well; and it would
    give a new process one file only: if that has a single test, the process waits for a second one that never comes.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a process that has ended, and queue the rest of its tests; return the test that it was running."""
        files = self.assigned_work.pop(node)
        pending = [(tests, name) for tests in files.values() for name, is_done in tests.items() if not is_done]
        if not pending:
            return None
        tests, crashed = pending[0]
        tests[crashed] = True
        self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        # A new process that still collects its tests gets some when it has reported them.
        if node in self.registered_collections:
            super()._reschedule(node)

    def schedule(self) -> None:
        """Distribute the files: all of them at first, later those of a process that has ended."""
        is_first = self.collection is None
        super().schedule()
        if not is_first:
            super().schedule()
