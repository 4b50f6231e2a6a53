"""One lookup join, several physical forms: which rows go through Python, and who joins. Same rows from each.

    worker      every left row goes through a Python worker, which joins it: any join, batch or stream
    distinct    only the distinct keys go there; Spark joins the left side with what was looked up
    broadcast   the whole table goes from a worker to Spark (`lookup.cache` = ALL), which joins

sides      the two sides inside the job: names, types, SQL over both
judging    residuals and filters that Spark evaluates
worker · distinct · broadcast    the forms: each a function from `Sides` to the result
left_side  what Spark knows of the left side before anything runs
reckoning  how many keys there may be
choice     which form, and why
ways       from the name of a form to its function
"""

from lookupcache.forms.choice import Choice, choose
from lookupcache.forms.sides import Sides
from lookupcache.forms.ways import result_of

__all__ = ["Choice", "Sides", "choose", "result_of"]
