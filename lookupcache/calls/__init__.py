"""Calls to a source: what stands around one of them, and how many are made at a time.

breaker · rate · retry ◄─ guard        around one call
flight ◄─ coroutines · threads         many calls for the keys of a batch
"""
