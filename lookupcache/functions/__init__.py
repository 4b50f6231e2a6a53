"""Plain functions as sources: adapter (a function of any kind, called in one way), connector, table_function."""
