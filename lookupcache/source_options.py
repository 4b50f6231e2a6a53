"""What connectors share: families and former names of options, choices, durations, paths, and the size of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lookupcache.errors import OptionError, SourceError, nearest

if TYPE_CHECKING:
    import pyarrow as pa

Value = TypeVar("Value")

_MOST_DIGITS = 18
"""Any such number fits into 64 bits, which some databases need."""

MAX_BYTES = 256 << 20
"""How much databases and Redis may return for a call, by default."""


class FamilyOptions(dict[str, str]):
    """Texts of options, some of which are families: ``header.*`` is every name that starts with ``header.``.

    >>> "header.X-Api-Key" in FamilyOptions({"header.*": "A header."}), "headers" in FamilyOptions({"header.*": ""})
    (True, False)
    """

    def __contains__(self, name: object) -> bool:
        start, dot, rest = str(name).partition(".")
        return dict.__contains__(self, name) or bool(dot and rest and dict.__contains__(self, f"{start}.*"))


def use_current_names(options: Mapping[str, Value], renamed: Mapping[str, str]) -> dict[str, Value]:
    """Return options under their current names; ``renamed`` maps a former name to the current one.

    Raises OptionError if an option has both names, even with equal values: one of them would be ignored.

    >>> use_current_names({"url": "redis://db", "username": "ann"}, {"username": "user"})
    {'url': 'redis://db', 'user': 'ann'}
    >>> use_current_names({"user": "ann", "username": "bob"}, {"username": "user"})
    Traceback (most recent call last):
    lookupcache.errors.OptionError: Options 'username' and 'user' are the same option.
    <BLANKLINE>
    Hint: Leave out 'username', its former name.
    """
    current: dict[str, Value] = {}
    for name, value in options.items():
        used = renamed.get(name, name)
        if used != name and (used in options or used in current):
            raise OptionError(
                f"Options {name!r} and {used!r} are the same option.", hint=f"Leave out {name!r}, its former name."
            )
        current[used] = value
    return current


def working_directory() -> Path | None:
    """Return the directory where relative paths start; None if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def path_from(folder: Path | None, path: str, option: str) -> Path:
    """Return the path that an option names, absolute; raises OptionError for a relative one without a folder.

    >>> path_from(Path("/srv"), "shop.db", "url"), path_from(None, "/data/shop.db", "url")
    (PosixPath('/srv/shop.db'), PosixPath('/data/shop.db'))
    """
    if folder is None and not Path(path).is_absolute():
        raise OptionError(
            f"Option {option!r} is a relative path, and this process's working directory was removed.",
            hint="Write an absolute path, or start the process in a directory that exists.",
        )
    return (folder or Path()) / path


def replace_options(
    options: Mapping[str, Value], changes: Mapping[str, Value], renamed: Mapping[str, str]
) -> dict[str, Value]:
    """Return options with some replaced, also where one of the two uses the former name.

    >>> replace_options({"url": "redis://db", "username": "ann"}, {"user": "bob"}, {"username": "user"})
    {'url': 'redis://db', 'user': 'bob'}
    """
    replaced = {renamed.get(name, name) for name in changes}
    return {name: value for name, value in options.items() if renamed.get(name, name) not in replaced} | dict(changes)


def one_of(options: Mapping[str, str], name: str, choices: Sequence[str], default: str | None = None) -> str:
    """Return an option's value; raises OptionError for one that is not a choice.

    Args:
        options: The connector's options.
        name: The option.
        choices: The values that it may have.
        default: The value if it is not set; by default the first choice.

    >>> one_of({"escape": "percent"}, "escape", ["none", "percent"]), one_of({}, "escape", ["none", "percent"])
    ('percent', 'none')
    """
    value = options.get(name) or default or choices[0]
    if value not in choices:
        raise OptionError(f"Option {name!r} is {value!r}.", hint=nearest(value, choices, what="values"))
    return value


def seconds(options: Mapping[str, str], name: str) -> float | None:
    """Return an option's seconds, None if it is not set; raises OptionError.

    >>> seconds({"connect.timeout": "0.5"}, "connect.timeout")
    0.5
    """
    text = options.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise OptionError(f"Option {name!r} is {text!r}.", hint="It is a number of seconds, as in '30' or '0.5'.")
    return value


def whole_number(options: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    """Return an option's number, ``default`` if it is not set; raises OptionError for one below ``least``.

    >>> whole_number({"max-bytes": "1000"}, "max-bytes", 64), whole_number({}, "max-bytes", 64)
    (1000, 64)
    """
    value = options.get(name, str(default))
    if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS and int(value) >= least):
        hint = f"It is a whole number, {least} or more, of at most {_MOST_DIGITS} digits."
        raise OptionError(f"Option {name!r} is {value!r}.", hint=hint)
    return int(value)


class AnswerLimit:
    """Counts the bytes of the answer to a call, while it is read.

    Args:
        table: The table, for the error.
        most: The maximum number of bytes, the option ``max-bytes``.

    >>> limit = AnswerLimit("customers", 1000)
    >>> limit.add(1000)
    >>> limit.add(1)
    Traceback (most recent call last):
    lookupcache.errors.SourceError: Table 'customers': the source returned more than 1,000 bytes for one call.
    <BLANKLINE>
    Hint: Raise option 'max-bytes', or request fewer keys per call with 'lookup.batch.max-size'.
    """

    def __init__(self, table: str, most: float) -> None:
        self.table = table
        self.most = most
        self.size = 0

    def add(self, count: int) -> None:
        """Count bytes; raises SourceError if the answer is too large."""
        self.size += count
        if self.size > self.most:
            raise self.error()

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield and count batches; raises SourceError before the first that is too much."""
        for batch in batches:
            self.add(batch.nbytes)
            yield batch

    @property
    def is_exceeded(self) -> bool:
        """Whether the answer was too large, so that a part of it may not have been read."""
        return self.size > self.most

    def error(self) -> SourceError:
        """Return the error for an answer that is too large."""
        return SourceError(
            f"Table {self.table!r}: the source returned more than {self.most:,} bytes for one call.",
            hint="Raise option 'max-bytes', or request fewer keys per call with 'lookup.batch.max-size'.",
        )


SHIPPED = frozenset({"builtins", "lookupcache", "pyspark_lookupcache"}) | {
    f"lookupcache_{name}" for name in ("dynamodb", "feast", "files", "http", "openai", "redis", "sql")
}
"""The packages whose code changes with the version of lookupcache; a name that only begins so is another's."""


def is_shipped(kind: type) -> bool:
    """Return whether a class and those that it extends come with lookupcache."""
    return all(one.__module__.partition(".")[0] in SHIPPED for one in kind.__mro__)
