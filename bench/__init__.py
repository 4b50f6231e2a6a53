"""Measurements, side by side in one run; see each module's first lines for its command."""
