"""`lookupcache demo`: joins real flights with a SQLite database.

flights   the input data and the database
run       the joins, as a batch or a stream, and the comparison with Spark's own joins
report    the printed report
"""
