"""The code that runs on the Spark driver: the join, its physical forms, tables read in full, the doctor.

join ─► forms (how a join runs) · latest (with the latest values of a stream)
     ─► planned · lineage (a join whose result is the left side of another)
        ─► catalyst (the selection between the two) · user_functions · variables
     ─► declared (a left side in a declarative pipeline)
     ─► freezing (a join in a compiled plan)
scan (in SQL), data_source (`spark.read`)    a lookup table read in full
registry (all joins of the process) ◄─ listener (a stream's progress); exporter (to Prometheus)
doctor                                       settings of a session that slow joins
"""

from lookupcache.versions import refuse_unsupported

refuse_unsupported()
