"""Plans as files: local paths, or anything that pyarrow's file systems open."""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import fs

from lookupcache.errors import CompiledPlanError
from lookupcache.redaction import hide_userinfo

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_S3 = re.compile(r"^s3[an]://")
_ERRORS = (OSError, ValueError, ImportError, NotImplementedError)


class FileExists(CompiledPlanError):
    """There is a file already, and it is not to be overwritten."""


def exists(path: str) -> bool:
    """Return whether there is a file; raises CompiledPlanError where that cannot be found out."""
    with _naming(path, "cannot be reached"):
        system, inner = _open(path)
        return system.get_file_info(inner).type != fs.FileType.NotFound


def read_text(path: str) -> str:
    """Return a file's text; raises CompiledPlanError where it is not there or is not UTF-8."""
    with _naming(path, "cannot be read"):
        system, inner = _open(path)
        with system.open_input_stream(inner) as file:
            return bytes(file.read()).decode("utf-8-sig")  # editors of Windows put a mark before the text


def write_text(path: str, text: str, *, overwrite: bool = False) -> None:
    """Write a file: aside first, then under its name, so that no reader sees half of it; missing folders are made.

    Raises CompiledPlanError if there is a file already, unless ``overwrite``. Of several that write a local file at
    once, one succeeds. Object stores give a file its name though another may have it. There, the file is read again
    after it was written: one that another program replaced meanwhile is an error too. Of two that write at the very
    same moment both may succeed, and the file is one of both.
    """
    with _naming(path, "cannot be written"):
        system, inner = _open(path)
        folder, _, name = inner.rpartition("/")
        if not name:
            raise CompiledPlanError(f"{_path_text(path)} names no file.", hint="Write a path such as 'plans/job.json'.")
        if not overwrite and system.get_file_info(inner).type != fs.FileType.NotFound:
            raise existing(path)
        if folder:
            system.create_dir(folder, recursive=True)
        aside = f"{folder}/.{name}.{uuid.uuid4().hex[:12]}" if folder else f".{name}.{uuid.uuid4().hex[:12]}"
        _publish(system, aside, inner, text, path, overwrite=overwrite)


def _publish(system: Any, aside: str, inner: str, text: str, path: str, *, overwrite: bool) -> None:
    """Write a file aside and give it its name."""
    try:
        with system.open_output_stream(aside) as file:
            file.write(text.encode())
        if overwrite:
            system.move(aside, inner)
        elif not _has_linked(system, aside, inner, path):
            _move_to_free(system, aside, inner, text, path)
    except BaseException:
        if system.get_file_info(aside).type != fs.FileType.NotFound:
            system.delete_file(aside)
        raise


def _has_linked(system: Any, aside: str, inner: str, path: str) -> bool:
    """Give a local file its name by a link, which unlike a rename fails if the name is taken; False without links."""
    if not isinstance(system, fs.LocalFileSystem):
        return False
    try:
        os.link(aside, inner)
    except FileExistsError:
        raise existing(path) from None
    except OSError as error:
        if error.errno in _WITHOUT_LINKS:
            return False
        raise
    system.delete_file(aside)
    return True


# The errors of file systems without links, such as FAT and some network drives.
_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def _move_to_free(system: Any, aside: str, inner: str, text: str, path: str) -> None:
    """Rename a file to a name that is free; raises FileExists if another program wrote the name meanwhile."""
    if system.get_file_info(inner).type != fs.FileType.NotFound:
        raise existing(path)
    system.move(aside, inner)
    with system.open_input_stream(inner) as file:
        if bytes(file.read()) != text.encode():
            raise existing(path)


def _open(path: str) -> tuple[Any, str]:
    if not path.strip() or "\0" in path:
        raise CompiledPlanError(f"{path!r} is not a path.", hint="Write a path such as 'plans/job.json'.")
    if _URI.match(path):
        system, inner = fs.FileSystem.from_uri(_S3.sub("s3://", path))
        return system, str(inner)
    # A link to a file stays, and its file is written: a rename to the link's name would replace the link.
    return fs.LocalFileSystem(), os.path.realpath(path) if os.path.islink(path) else os.fspath(path)


def existing(path: str) -> FileExists:
    """Return the error for a file that is there already."""
    return FileExists(
        f"There is a file {_path_text(path)} already, which is not overwritten.",
        hint="Write IF NOT EXISTS to keep it, choose another path, or SET 'table.plan.force-recompile' = 'true'.",
    )


def _path_text(path: str) -> str:
    return repr(hide_userinfo(path))


@contextmanager
def _naming(path: str, what: str) -> Iterator[None]:
    """Turn errors of file systems into errors that name the path."""
    try:
        yield
    except CompiledPlanError:
        raise
    except FileNotFoundError:
        raise CompiledPlanError(
            f"Compiled plan {_path_text(path)} {what}: there is no such file.",
            hint="Compile it first, or COMPILE AND EXECUTE PLAN 'path' FOR …, which does both.",
        ) from None
    except _ERRORS as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else hide_userinfo(str(error))
        raise CompiledPlanError(
            f"Compiled plan {_path_text(path)} {what}: {reason}",
            hint="A path is local, or a URI that pyarrow's file systems open, such as 's3://bucket/job.json'.",
        ) from None
