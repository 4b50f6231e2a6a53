"""What happens in a Python worker of Spark: batches of rows come, batches of the result leave.

task ─► runner ─► lookup ─► partial_cache (LRU, TTL, NONE) or full_cache (ALL) ─► source ─► calls ─► the connector
             └─► dead_letters   └─► host_lookup, host_table: the same over a cache       └─► answers (read and checked)
                                    that the workers of a host share (host_scope)

chain          several tasks, each over the batches of the one before; shared: a lookup that two of them use
store_source   a source behind a store that hosts share
full_scan      all rows of a table, for a relation that is read like any other
connection     opens a connector; error_naming: its errors, with the table's name and without secrets
pandas_import  keeps pyarrow from importing pandas before it is used
"""
