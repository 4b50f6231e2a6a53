"""The latest value of a stream: a lookup join with the last row per key of another stream.

source     the result of `LookupTable.from_stream`: the stream, its key, its order
values     the values of a bucket: new rows are folded in, left rows are matched
load       the load phase, in which left rows wait until the table is loaded
payload    rows as Arrow IPC in a binary column, split by bucket
tasks      the functions that Spark runs in its Python workers
processor  the join for Spark's transformWithState, of which a query may have several, and in which left rows can wait

The driver's part is `lookupcache.spark.latest`; docs/streams.md has the meaning, and
docs/maintainers/architecture.md the path of a row.
"""
