"""`PlanReader`: JSON data and the path to it, so that each error of a compiled plan names the place it is about.

A `Format` says for a kind of values how they are written as JSON data and read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from lookupcache.errors import CompiledPlanError, LookupCacheError, nearest

Value = TypeVar("Value")

DAMAGED = "Compile the statement again, or restore the file from a copy: a plan is not edited by hand."
_ERRORS = (
    TypeError, ValueError, KeyError, IndexError, AttributeError, AssertionError, RecursionError, ArithmeticError,
    NotImplementedError,
)  # fmt: skip
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}


@dataclass(frozen=True)
class PlanReader:
    """A part of a plan: its data, where in the plan it is, and the plan's own name, such as its file.

    >>> PlanReader({"nodes": [{"id": "x"}]}, "", "p.json").entry("nodes").items()[0].entry("id").number()
    Traceback (most recent call last):
    lookupcache.errors.CompiledPlanError: Compiled plan p.json, nodes[0].id: 'x' is not a number.
    <BLANKLINE>
    Hint: Compile the statement again, or restore the file from a copy: a plan is not edited by hand.
    """

    data: Any
    path: str
    source: str

    def wrong(self, what: str, hint: str = DAMAGED) -> CompiledPlanError:
        """Return an error about this part."""
        where = f", {self.path}" if self.path else ""
        return CompiledPlanError(f"Compiled plan {self.source}{where}: {what}", hint=hint)

    def text(self) -> str:
        """Return a text."""
        return str(self._of(str))

    def flag(self) -> bool:
        """Return a truth value."""
        return bool(self._of(bool))

    def number(self) -> int:
        """Return an integer."""
        if isinstance(self.data, bool):
            raise self._not(int)
        return int(self._of(int))

    def one_of(self, choices: Sequence[str], what: str) -> str:
        """Return a text that is one of some."""
        if self.text() not in choices:
            raise self.wrong(f"there is no {what} {self.data!r}.", nearest(self.data, choices, what=f"{what}s"))
        return self.text()

    def items(self) -> list[PlanReader]:
        """Return the parts of a list."""
        return [PlanReader(item, f"{self.path}[{n}]", self.source) for n, item in enumerate(self._of(list))]

    def entries(self) -> dict[str, PlanReader]:
        """Return the parts of an object by their names."""
        before = f"{self.path}." if self.path else ""
        return {name: PlanReader(value, before + _step(name), self.source) for name, value in self._of(dict).items()}

    def entry(self, name: str) -> PlanReader:
        """Return a part of an object, which has to be there."""
        entries = self.entries()
        if name not in entries:
            raise self.wrong(f"{name!r} is missing.")
        return entries[name]

    def optional(self, name: str) -> PlanReader | None:
        """Return a part of an object, None where it is not there or null."""
        found = self.entries().get(name)
        return None if found is None or found.data is None else found

    def only(self, names: Sequence[str]) -> None:
        """Raise an error for a part of an object that is not among the known ones."""
        unknown = [name for name in self.entries() if name not in names]
        if unknown:
            raise self.wrong(
                f"{unknown[0]!r} is not known here.",
                "A newer lookupcache wrote the plan, or the file was altered: upgrade lookupcache, or compile again.",
            )

    def read(self, read: Callable[[Any], Value]) -> Value:
        """Return a function's result for the data; its errors become errors about this part."""
        try:
            return read(self.data)
        except CompiledPlanError:
            raise
        except LookupCacheError as error:
            raise self.wrong(error.fact, error.hint or DAMAGED) from None
        except _ERRORS as error:
            raise self.wrong(f"it cannot be read: {type(error).__name__}: {str(error)[:200]}.") from None

    def _of(self, kind: type) -> Any:
        if not isinstance(self.data, kind):
            raise self._not(kind)
        return self.data

    def _not(self, kind: type) -> CompiledPlanError:
        return self.wrong(f"{_short(self.data)} is not {_KINDS[kind]}.")


def _step(name: str) -> str:
    return name if name.isidentifier() else repr(name)


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:60]}…"


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Format:
    """How values of a kind are written as JSON data, and read.

    >>> written = or_none(list_of(TEXT))
    >>> written.write(("a", "b")), written.read(PlanReader(["a", "b"], "", "p.json")), written.write(None)
    (['a', 'b'], ('a', 'b'), None)
    """

    write: Callable[[Any], Any]
    read: Callable[[PlanReader], Any]


@dataclass(frozen=True)
class Field:
    """A field of an object: the path of the attribute, and the format of its value."""

    attribute: str
    format: Format

    def write(self, owner: Any) -> Any:
        """Return the field of an object as JSON data."""
        return self.format.write(attrgetter(self.attribute)(owner))


TEXT = Format(str, PlanReader.text)
FLAG = Format(bool, PlanReader.flag)
NUMBER = Format(int, PlanReader.number)
ANY = Format(lambda value: value, lambda reader: reader.data)


def one_of(choices: Sequence[str], what: str) -> Format:
    """Return the format of a text that is one of some."""
    return Format(str, lambda reader: reader.one_of(choices, what))


def or_none(one: Format) -> Format:
    """Return a format in which null stands for None."""
    return Format(
        lambda value: None if value is None else one.write(value),
        lambda reader: None if reader.data is None else one.read(reader),
    )


def list_of(one: Format) -> Format:
    """Return the format of a tuple of values."""
    return Format(
        lambda values: [one.write(value) for value in values],
        lambda reader: tuple(one.read(item) for item in reader.items()),
    )


def by_name(one: Format) -> Format:
    """Return the format of values by name."""
    return Format(
        lambda values: {name: one.write(value) for name, value in values.items()},
        lambda reader: {name: one.read(item) for name, item in reader.entries().items()},
    )


def pair(first: str, one: Format, second: str, other: Format) -> Format:
    """Return the format of a tuple of two values, an object with these names."""

    def read(reader: PlanReader) -> tuple[Any, Any]:
        reader.only([first, second])
        return one.read(reader.entry(first)), other.read(reader.entry(second))

    return Format(lambda value: {first: one.write(value[0]), second: other.write(value[1])}, read)


def record(make: Callable[..., Any], **fields: Format) -> Format:
    """Return the format of objects that ``make`` makes of these attributes."""

    def read(reader: PlanReader) -> Any:
        reader.only(list(fields))
        return make(**{name: one.read(reader.entry(name)) for name, one in fields.items()})

    return Format(lambda value: {name: one.write(getattr(value, name)) for name, one in fields.items()}, read)
