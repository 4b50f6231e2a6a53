"""Plain functions as sources: of a lookup table, of a SQL table function."""
