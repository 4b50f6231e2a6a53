"""`lookupcache demo`: real flights joined with a real database.

flights   the input, and the database made of it
run       the joins, as a batch or a stream, and the comparison with Spark's own
report    what is printed
"""
