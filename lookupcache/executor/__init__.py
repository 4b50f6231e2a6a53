"""Runs a bounded number of concurrent calls, in threads or on an event loop.

job ◄─ thread_slots ◄─ threads    ─► call_group (the worker's groups of calls)
    ◄─ task_slots   ◄─ coroutines ─┘
latch (wait for an event), nesting (which call waits for which)

`cached` submits its calls to the slots directly.
"""
