"""How long a test waits for what another thread or process must do."""

LIMIT = 200.0
"""Seconds; only a hang takes longer."""
