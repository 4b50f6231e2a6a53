"""A cache in files that all processes of a host share: immutable segments, mapped, with claims of keys.

`docs/maintainers/shared-cache.md` has the design: files, formats, locks, and what a crash leaves.

    host_cache ─► segments ─► segment        what the folder has now; one immutable file of entries
               ─► claims                     which process requests a key
               ─► maintenance ─► merge, eviction
    control                                  a mapped page of numbers
    folder, clock                            files of this user alone; seconds since boot
    mapped_rows                              the rows of a batch where they lie
    joined_rows                              rows of several batches written as one, without a copy
    inspection                               what lies in a folder, for `lookupcache cache`
"""

from lookupcache.host.folder import HostUnavailableError
from lookupcache.host.host_cache import Found, HostCache

__all__ = ["Found", "HostCache", "HostUnavailableError"]
