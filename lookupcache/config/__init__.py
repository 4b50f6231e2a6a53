"""Lookup options: parsing and validation.

values              parsers for option texts: durations, sizes, numbers, names
flink               translates Flink's option keys
contradictions      checks options against each other
lookup_config       `LookupConfig`, one field per option; imports the other three
"""

from lookupcache.config.lookup_config import LookupConfig, split_options
from lookupcache.config.values import Eviction

__all__ = ["Eviction", "LookupConfig", "split_options"]
