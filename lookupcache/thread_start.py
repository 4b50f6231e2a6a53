"""`start_thread`: the start of a thread fails without memory, instead of hanging."""

from __future__ import annotations

import mmap
import threading

_NEEDED_BYTES = 4 << 20
"""What a thread needs to begin, beside its stack."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises RuntimeError, as `threading.Thread.start` does, if there is no memory for it.

    That method waits until the thread runs. A thread that gets a stack and then no memory ends before it says that it
    runs, and the wait would never end. So it is in a worker that has mapped more than
    ``spark.executor.pyspark.memory``: the stack is one that its daemon has left.

    >>> thread = threading.Thread(target=sum, args=[(1, 2)])
    >>> start_thread(thread)
    >>> thread.join()
    """
    try:
        mmap.mmap(-1, _NEEDED_BYTES).close()
    except OSError:
        raise RuntimeError(
            "can't start new thread: there is no memory for it.\n\nHint: Raise the limit of the process's address "
            "space, which Spark sets for each worker from 'spark.executor.pyspark.memory'. It must be above what a "
            "worker maps when it starts, and with 'lookupcache.daemon' that is more."
        ) from None
    thread.start()
