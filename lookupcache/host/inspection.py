"""The contents of the folders of a path: for `lookupcache cache`."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookupcache.host.claims import is_locked
from lookupcache.host.clock import host_now
from lookupcache.host.control import Control
from lookupcache.host.folder import Folder, HostUnavailableError
from lookupcache.host.host_cache import ABOUT
from lookupcache.host.segment import SegmentError, summarize
from lookupcache.host.segments import current_names

_NAME = re.compile(r"v\d+-([0-9a-f]{32})")
_CLEARED = ".cleared"
"""The end of the name of a folder that is being removed."""
_MOST_ATTEMPTS = 50
_PAUSE_SECONDS = 0.01


@dataclass(frozen=True)
class Content:
    """What a folder has; ``ages`` are the least and the largest in seconds, None where no age is known.

    ``hits``, ``evictions`` and ``merges`` are counts since the folder was made; ``processes`` use it now. ``problem``
    says why it cannot be read.
    """

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    keys: int = 0
    rows: int = 0
    nbytes: int = 0
    segments: int = 0
    ages: tuple[float, float] | None = None
    hits: int = 0
    evictions: int = 0
    merges: int = 0
    processes: int = 0
    problem: str | None = None


def contents(path: str | os.PathLike[str]) -> Iterator[Content]:
    """Yield what the folder of each plan has."""
    for folder in sorted(Path(path).iterdir()):
        if _NAME.fullmatch(folder.name) and not folder.is_symlink():
            yield _content(folder)


def clear(path: str | os.PathLike[str]) -> Iterator[Content]:
    """Remove the folders of all plans; processes that use one go on with their own caches.

    Yields what was removed, and what could not be, with the reason as its ``problem``.
    """
    for content in list(contents(path)):
        try:
            # Under another name, so that processes which begin now make a new one instead.
            cleared = content.path.with_name(f"{content.path.name}.{os.urandom(8).hex()}{_CLEARED}")
            content.path.rename(cleared)
            _remove(cleared)
            yield replace(content, problem=None)
        except OSError as error:
            yield replace(content, problem=error.strerror or str(error))
    for left in Path(path).glob(f"v*{_CLEARED}"):
        # Of a process that was killed while it removed one.
        with suppress(OSError):
            _remove(left)


def _remove(folder: Path) -> None:
    """Remove a folder in which processes may still write and remove files: until they notice, a moment later."""
    for _ in range(_MOST_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE_SECONDS)
    shutil.rmtree(folder)


def _content(path: Path) -> Content:
    try:
        folder = Folder(path, create=False)
    except HostUnavailableError as error:
        return Content(path, problem=str(error))
    try:
        return _read(folder, path)
    except (OSError, ValueError) as error:
        return Content(path, problem=str(error))
    finally:
        folder.close()


def _read(folder: Folder, path: Path) -> Content:
    names = folder.names()
    summaries = []
    for name in current_names(names):
        try:
            summaries.append(summarize(folder, name))
        except (SegmentError, OSError, ValueError):
            continue  # It was merged in the meantime, or is damaged: the next process that opens it drops it.
    ages = host_now() - np.concatenate([np.empty(0), *(one.written for one in summaries)])
    hits = evictions = merges = 0
    if "control" in names:
        control = Control(folder, bytes.fromhex(path.name.partition("-")[2]), create=False)
        hits, evictions, merges = control["hits"], control["evictions"], control["merges"]
    about = json.loads((path / ABOUT).read_text()) if ABOUT in names else {}
    if not isinstance(about, dict):
        raise ValueError(f"{ABOUT} is damaged")
    return Content(
        path,
        about,
        keys=sum(one.entries for one in summaries),
        rows=sum(one.rows for one in summaries),
        nbytes=sum(folder.size(name) for name in names),
        segments=len(summaries),
        ages=(float(ages.min()), float(ages.max())) if ages.size else None,
        processes=sum(is_locked(folder, name) for name in names if name.startswith("alive-")),
        hits=hits,
        evictions=evictions,
        merges=merges,
    )
