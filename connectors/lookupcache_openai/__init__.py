"""The `openai` connector: vectors and columns by key from a language model."""

from lookupcache_openai.connector import OpenAIConnector

__all__ = ["OpenAIConnector"]
