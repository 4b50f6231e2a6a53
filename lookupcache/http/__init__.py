"""What connectors of HTTP services share: a client that is bounded in time and size, and its content codings."""
