"""The `sql` connector."""
