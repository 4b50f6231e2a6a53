"""A lookup join for Spark: enrich a DataFrame from any source by key, through a cache that keeps only what it needs."""

__version__ = "0.1.0"
