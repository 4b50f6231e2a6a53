"""What protects one call to a source: circuit breaker, rate limit, retries and timeout.

breaker · rate_limit · retry ◄─ policy
"""
