"""SQL with lookups: lookups become lookup joins, and Spark runs the rest.

session ─► statements ─► detection · queries   which kind of statement; which code runs it
query ─► rewrite ─► select                     a query, checked by Spark, then each SELECT with its lookups
    lookups · laterals · scalars · latest      kinds of lookups: joins, table functions, sub-queries, streaming views
    derived                                    queries over one lookup table, which are looked up as the table
    conditions · scope · reads                 names and conditions, bound to relations and columns
    from_clause                                the relations that are joined so far
    masks                                      text for Spark alone: behind pipes, and unknown to the parser
    hints · variables                          syntax around it
ddl · definitions · catalog                    CREATE, DROP, SHOW, DESCRIBE
models · windows                               Flink's models, and windows in FROM
script                                         files of statements
plan_statements ─► compiled ─► plan_runs       compiled plans: written, restored, run
text · dialect · token_reader              the text: spans and edits, its parser, its tokens
failures · redaction                           Spark's errors with positions; secrets in texts
"""

from lookupcache.versions import refuse_unsupported

refuse_unsupported()

from lookupcache.sql.session import LookupSession  # noqa: E402 - an older Spark lacks names that it imports

__all__ = ["LookupSession"]
