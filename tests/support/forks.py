"""Work in a forked process of the test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def reply_of_child(work: Callable[[], object]) -> str:
    """Run something in a forked process, which is killed after 30 s; return the repr of its result, or its error."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            os.write(writes, repr(work()).encode())
        except BaseException as error:
            os.write(writes, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        reply = pipe.read().decode()
    os.waitpid(child, 0)
    return reply
