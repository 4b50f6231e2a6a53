"""Formats of sources, shared by connectors: JSON text, paths into a document, JSON values as Arrow columns."""
