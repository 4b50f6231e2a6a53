"""From a condition in SQL to a `LookupPlan`, without touching a row or a connection.

clauses         splits the text at AND, WHERE and =
argument_names  the names that Spark gives to fields after the columns they are made of
grammar         the operands of each operator by Spark's grammar
naming          resolves names to sides and columns; parsing
condition       a condition as trees whose names are bound, from text or from a statement
coercion        the common type of a key and its column, and the SQL of the conversion
literals        literals with Spark's types
constant_keys   constant keys, and expressions that are computed once
translate       conditions that a worker can evaluate exactly
output          the select list, and its stars
passes          assigns each conjunct to a step of the join: `plan_join`
sql_reader      reads a plan's SQL as expressions of a worker
explain         the plan as text
column          a pyspark Column as SQL text
settings        the session: its settings, and the interface to Spark's analyzer
"""

from lookupcache.planner.clauses import substitute
from lookupcache.planner.explain import explain
from lookupcache.planner.naming import LeftColumn
from lookupcache.planner.passes import join_type, plan_join
from lookupcache.planner.settings import Analyst

__all__ = ["Analyst", "LeftColumn", "explain", "join_type", "plan_join", "substitute"]
