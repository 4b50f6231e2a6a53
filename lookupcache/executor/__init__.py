"""How many calls are made at a time, and where: on an event loop or in threads.

call_group ◄─ coroutines · threads
"""
