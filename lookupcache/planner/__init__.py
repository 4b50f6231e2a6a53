"""From a condition in SQL to a `LookupPlan`, without touching a row or a connection.

clauses     the text, cut at AND, WHERE and =
naming      which side and column a name means; parsing
coercion    the type in which a key meets its column, and the SQL that takes it there
literals    literals with Spark's types
constants   constant keys, and what may be computed once
translate   conditions that a worker can evaluate exactly
output      the select list
passes      each conjunct to a step of the join: `plan_join`
reading     a plan's SQL as expressions of a worker
explain     the plan as text
column      a pyspark Column as SQL text
analyst     questions to Spark
"""

from lookupcache.planner.analyst import Analyst
from lookupcache.planner.clauses import substitute
from lookupcache.planner.explain import explain
from lookupcache.planner.naming import LeftColumn
from lookupcache.planner.passes import join_type, plan_join

__all__ = ["Analyst", "LeftColumn", "explain", "join_type", "plan_join", "substitute"]
