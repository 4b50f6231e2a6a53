"""Where Spark finds the format ``lookupcache``: it imports each installed module whose name starts with ``pyspark_``.

>>> DefaultSource.name()
'lookupcache'
"""

from lookupcache.spark.data_source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
