"""What happens in a Python worker of Spark: batches of rows come, batches of the result leave.

task ─► runner ─► lookup ─► partial (LRU, TTL, NONE) or full (ALL) ─► source ─► the connector
             └─► dead_letters                                            └─► answers (read and checked)

chain: several tasks, each over the batches of the one before
"""
