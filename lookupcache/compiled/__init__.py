"""Compiled plans: a statement or a lookup join as it was planned, as versioned JSON, to be run later or elsewhere.

plan_reader · lookup_fields · nodes · document  the format: JSON data, nodes, versions, checksums
code · catalog_objects · settings             functions by name; tables by the matrix; the settings of a plan
files · show · plan                           plans in files, for people, in programs
diff · check                                  the differences of two plans, and whether one would run here
"""

from lookupcache.compiled.plan import CompiledPlan, PlanReference

__all__ = ["CompiledPlan", "PlanReference"]
