"""Options: what may be written, what it means, and what contradicts itself.

values (of a text) · flink (other spellings) · contradictions ◄─ lookup_config (all options, one field each)
"""

from lookupcache.config.lookup_config import Eviction, LookupConfig, option_table, split_options

__all__ = ["Eviction", "LookupConfig", "option_table", "split_options"]
