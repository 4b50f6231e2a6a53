"""Plain functions as sources: adapter (one interface for all kinds of functions), connector, table_function."""
