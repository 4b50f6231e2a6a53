"""`lookupcache demo`: joins real flights with small tables, and orders with a large one, of SQLite databases.

flights      the flights, and the database with the small tables
customers    the large table, its orders, and their joins
run          the joins of the flights, as a batch or a stream, and of the orders; the comparison with Spark's own joins
report       the printed report
comparison   its last table, printed and as a picture
"""
