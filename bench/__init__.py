"""Benchmarks that compare alternatives in one run; the docstring of each module names its command."""
